"""Run the unfinished ones of some configs: in this process on a GPU, in one process for each core otherwise.

`python -m clippedgossip.paper.processes 0/2` is such a worker process. It reads its work from its input.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from clippedgossip.devices import find_device, usable_cores
from clippedgossip.errors import RunError, UserError
from clippedgossip.paper.base import Progress
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.fill import run_unfinished

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def run_all(
    configs: Sequence[RunConfig], root: Path, *, device: str, workers: int | None, progress: Progress
) -> None:
    """Run every config that is not finished under `root`. A run that fails says why in its folder.

    Small models do not gain from threads, and lose much where cores are busy. So each process has one thread.
    """
    device = str(find_device(device))
    distinct = {config.run(root): config for config in configs}
    unfinished = [config for run, config in distinct.items() if not run.finished]
    count = workers or (1 if device.startswith("cuda") else usable_cores())
    count = min(count, len(unfinished))
    if count > 1:
        _in_processes(unfinished, root, device, count, progress)
    elif unfinished:
        run_unfinished(unfinished, root, wait=True, progress=progress)


def _in_processes(
    configs: Sequence[RunConfig], root: Path, device: str, count: int, progress: Progress
) -> None:
    """Each process starts at another place of the same list. The locks of the runs keep them apart."""
    environment = os.environ | dict.fromkeys(_THREADS, "1")
    request = {"root": str(root), "device": device, "configs": [config.to_mapping() for config in configs]}
    workers = []
    with tempfile.TemporaryFile("w+") as said:
        try:
            for index in range(count):
                command = [sys.executable, "-m", "clippedgossip.paper.processes", f"{index}/{count}"]
                worker = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stderr=said, env=environment, text=True
                )
                workers.append(worker)
                assert worker.stdin is not None
                with suppress(BrokenPipeError), worker.stdin as pipe:  # its exit code says more
                    pipe.write(json.dumps(request))
            meter = _Meter(configs, root, progress)
            while any(worker.poll() is None for worker in workers):
                meter.show()
                time.sleep(0.2)
            meter.show()
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
        if any(worker.returncode for worker in workers):
            said.seek(0)
            last = (said.read().strip().splitlines() or ["it gave no reason"])[-1]
            goes_on = "" if "same command again" in last else "\nrun the same command again: it goes on"
            raise RunError(f"a worker process ended early: {last}{goes_on}")


class _Meter:
    """Counts the rounds done, from the folders of the runs."""

    def __init__(self, configs: Sequence[RunConfig], root: Path, progress: Progress) -> None:
        self._open = {config.run(root): config.training.rounds for config in configs}
        self._runs, self._total = len(configs), sum(self._open.values())
        self._done = 0
        self._progress = progress

    def show(self) -> None:
        partly = 0
        for run in [run for run in self._open if run.path.exists()]:
            if run.finished:
                self._done += self._open.pop(run)
            else:
                partly += _last_round(run.records_path)
        label = f"{self._runs - len(self._open)}/{self._runs} runs"
        self._progress(label, self._done + partly, self._total)


def _last_round(records: Path) -> int:
    """The round of the last whole line; 0 where there is none."""
    try:
        lines = records.read_bytes().split(b"\n")
        return int(json.loads(lines[-2])["round"]) if len(lines) > 1 else 0
    except (OSError, ValueError, KeyError):
        return 0


def main() -> None:
    """A worker process. It ends with its parent."""
    index, count = map(int, sys.argv[1].split("/"))
    request = json.load(sys.stdin)
    configs = [RunConfig.from_mapping({**raw, "device": request["device"]}) for raw in request["configs"]]
    start = index * len(configs) // count
    parent = os.getppid()

    def progress(label: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)

    torch.set_num_threads(1)
    try:
        run_unfinished([*configs[start:], *configs[:start]], request["root"], progress=progress)
    except UserError as error:
        sys.exit("; ".join(str(error).splitlines()))  # the parent shows the last line


if __name__ == "__main__":
    main()
