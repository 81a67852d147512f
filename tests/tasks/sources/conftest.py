"""Each test has a cache of its own; two mirrors can be had."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.sources.tiny_data import Mirror, own_cache, two_mirrors


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_cache(tmp_path, monkeypatch)


@pytest.fixture
def mirrors() -> Iterator[list[Mirror]]:
    with two_mirrors() as served:
        yield served
