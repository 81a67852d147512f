"""`clippedgossip data`."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from clippedgossip.cli import data as command
from clippedgossip.errors import DataError
from clippedgossip.tasks import load
from clippedgossip.tasks.sources.catalog import CATALOG
from tests.tasks.sources.tiny_data import IDX, Mirror, idx_spec, mirrored_spec, own_cache, two_mirrors


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return own_cache(tmp_path, monkeypatch)


@pytest.fixture
def mirrors() -> Iterator[list[Mirror]]:
    with two_mirrors() as served:
        yield served


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    command.register(app)
    result = CliRunner().invoke(app, ["data", *arguments])
    return result.exit_code, result.stdout, result.exception


def test_the_command_fetches_and_lists(
    mirrors: list[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", mirrored_spec(mirrors[0]))
    before = {row["name"]: row["state"] for row in json.loads(run("list", "--json")[1])}
    assert before["digits"] == "embedded"
    assert before["mnist"] == before["tiny"] == "absent"
    code, out, _ = run("fetch", "tiny", "digits")
    assert code == 0
    assert "tiny: mirror" in out
    assert "nothing to fetch" in out
    rows = json.loads(run("fetch", "tiny", "--json")[1])
    ready: dict[str, object] = {
        "name": "tiny",
        "state": "ready",
        "path": str(cache / "tiny"),
        "origins": {},
        "error": None,
    }
    assert rows == [ready]
    code, out, _ = run("list")
    assert "tiny           ready" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_one_data_set_that_fails_does_not_hide_the_others(
    mirrors: list[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    for name in list(CATALOG):
        monkeypatch.delitem(CATALOG, name)
    monkeypatch.setitem(CATALOG, "gone", idx_spec(name="gone"))
    monkeypatch.setitem(CATALOG, "tiny", mirrored_spec(mirrors[0]))
    code, out, error = run("fetch", "all", *options)
    assert code != 0
    assert isinstance(error, DataError)
    assert "gone could not be fetched" in str(error)
    if not options:
        assert out.startswith("tiny: mirror")
        return
    gone, tiny = json.loads(out)
    assert gone == {
        "name": "gone",
        "state": "absent",
        "path": str(cache / "gone"),
        "origins": {},
        "error": str(error),
    }
    assert (tiny["state"], set(tiny["origins"]), tiny["error"]) == ("ready", set(IDX), None)


def test_a_folder_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    error = run("fetch", "all", "--from", str(tmp_path / "nowhere"))[2]
    assert str(error).count("is no folder") == 1


def test_the_help_says_where_it_looks_in_which_order() -> None:
    text = " ".join(run("fetch", "--help")[1].split())
    places = ["cache", "--from", "CLIPPEDGOSSIP_DATA", "/usr/share/datasets", "mirrors", "registries"]
    order = [text.index(place) for place in places]
    assert order == sorted(order)


def test_the_command_knows_its_names() -> None:
    error = run("fetch", "mnits")[2]
    assert isinstance(error, DataError)
    assert "did you mean 'mnist'" in str(error)
    with pytest.raises(DataError, match="known: cifar10, digits, fashion-mnist, mnist"):
        load("imagenet")
