"""What launches find compiled."""

from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest


class Ahead:
    """Watches kernels that are compiled ahead into this folder: the jobs, and the files that they left."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from clippedgossip.mixing import launches  # needs Triton

        self.folder = folder
        self.jobs: list[Future[Any]] = []
        self.left: list[Path] = []
        monkeypatch.setenv(launches.CACHE, str(folder))
        monkeypatch.setattr(launches, "wait", self._wait)

    def files(self) -> list[Path]:
        """Kernels, and the C code that launches each."""
        return sorted(path for path in self.folder.glob("*/_*") if path.suffix in (".cubin", ".so"))

    def assert_found(self) -> None:
        """Launches compiled nothing more."""
        assert self.jobs
        assert all(job.exception() is None for job in self.jobs)
        assert self.files() == self.left != []

    def _wait(self, jobs: list[Future[Any]], seconds: float) -> None:
        wait(jobs, seconds)
        self.jobs.extend(jobs)
        self.left = self.files()
