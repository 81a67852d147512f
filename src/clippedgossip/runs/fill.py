"""Run the unfinished runs of a set. Processes and machines need to share a folder, nothing else."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import torch

from clippedgossip.devices import free_memory, release
from clippedgossip.errors import counted
from clippedgossip.files import canonical
from clippedgossip.records import RunDirectory
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import CHECKPOINT_EVERY, Attempt, lock, run_together
from clippedgossip.simulate.setup import needed_bytes
from clippedgossip.simulate.state import Moment
from clippedgossip.tasks.module_function import SMALL

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # (what is being done, rounds done, rounds in all)

TOGETHER = 16  # runs at a time; more gain little on one core
ON_GPU = 128
"""Runs at a time on a GPU. A round of 16 is as fast. But to compile, capture and check the rounds of a stack
takes as long on an H200 as to train 16 to 32 runs of 10 workers for 900 rounds."""
FEW = 4  # a stack of fewer runs takes much longer for each of them
MEMORY_SHARE = 0.7  # share of the free memory for one stack


@dataclass(kw_only=True)
class SweepOutcome:
    """How the runs ended; `runs` are in the order of their configs."""

    runs: list[RunDirectory] = field(default_factory=list)
    done: int = 0  # how many are finished, by this call or before, diverged runs included
    diverged: dict[str, str] = field(default_factory=dict)  # {folder: why}
    failed: dict[str, str] = field(default_factory=dict)  # {folder: why}, in this call
    elsewhere: list[RunDirectory] = field(default_factory=list)  # runs that other processes train


def run_unfinished(
    configs: Sequence[RunConfig],
    root: Path | str,
    *,
    together: int = ON_GPU,
    processes: int = 1,
    wait: bool = False,
    progress: Progress | None = None,
    checkpoint_every: float = CHECKPOINT_EVERY,
) -> SweepOutcome:
    """Run every config that is not finished under `root`. If a run fails, the others continue.

    At most `together` runs of one shape are trained in one stack; fewer towards the end, so that none of the
    `processes` that share these runs waits long for another. `wait` waits until other processes have finished
    their runs, and takes over the runs of processes that died.
    """
    attempts = [Attempt.of(config, root) for config in configs]
    outcome = SweepOutcome(runs=[attempt.run for attempt in attempts])
    counter = _RoundCounter(attempts, progress)
    tried: set[Path] = set()
    while True:
        open_ = [a for a in attempts if a.run.path not in tried and not a.run.finished]
        for waiting in _by_shape(open_):
            most = _most(waiting, together)
            while waiting:
                unfinished = sum(not attempt.run.finished for attempt in attempts)
                with ExitStack() as locks:
                    mine = _claim(waiting, min(most, _share(unfinished, processes)), locks)
                    tried |= {attempt.run.path for attempt in mine}
                    _run_batch(mine, counter, checkpoint_every, outcome)
        left = [a for a in attempts if a.run.path not in tried and not a.run.finished]
        if not left or not wait:
            break
        counter.show(f"waiting for {counted(len(left), 'run')} of other processes")
        time.sleep(1.0)
    outcome.elsewhere = [attempt.run for attempt in left]
    outcome.done = sum(attempt.run.finished for attempt in attempts)
    ends = {str(attempt.run.path): attempt.run.diverged for attempt in attempts}
    outcome.diverged = {path: why for path, why in ends.items() if why is not None}
    return outcome


def _run_batch(
    attempts: Sequence[Attempt], counter: "_RoundCounter", checkpoint_every: float, outcome: SweepOutcome
) -> None:
    """Run a batch: runs that are at the same round in one stack; if that fails, one by one."""
    ordered = sorted(attempts, key=lambda attempt: attempt.checkpoint_round())
    for _, group in groupby(ordered, key=lambda attempt: attempt.checkpoint_round()):
        members = list(group)
        try:
            run_together(members, on_round=counter.on_round, checkpoint_every=checkpoint_every)
        except Exception as error:  # one run must not end the others
            if len(members) > 1:
                for member in members:
                    member.diverged = None
                    _run_batch([member], counter, checkpoint_every, outcome)
                continue
            outcome.failed[str(members[0].run.path)] = members[0].run.failure or str(error)
        for member in members:
            counter.end(member)


def _by_shape(attempts: Sequence[Attempt]) -> list[deque[Attempt]]:
    """Runs of one shape each."""
    shapes: dict[str, deque[Attempt]] = {}
    for attempt in attempts:
        shapes.setdefault(_shape(attempt), deque()).append(attempt)
    return list(shapes.values())


def _most(alike: Sequence[Attempt], together: int) -> int:
    """How many of these runs are faster in one stack than one by one."""
    if together == 1 or len(alike) == 1:
        return 1
    return min(together, most_together(alike[0].device, _need(alike[0])[1]))


def _share(unfinished: int, processes: int) -> int:
    """How many of the runs one of the processes takes at a time: half of its part of them, unless that is too
    few for a stack, and at least one. One process takes all: on a GPU each size of a stack is compiled."""
    if processes == 1:
        return max(1, unfinished)  # others, that it does not know of, may have finished them all
    return max(1, math.ceil(unfinished / (2 * processes)), min(FEW, math.ceil(unfinished / processes)))


def _claim(waiting: deque[Attempt], most: int, locks: ExitStack) -> list[Attempt]:
    """Lock the first runs that no other process has, as many as fit into memory. They, and those of other
    processes, no longer wait."""
    mine: list[Attempt] = []
    release(waiting[0].device)
    budget, used = MEMORY_SHARE * free_memory(waiting[0].device), 0
    while waiting and len(mine) < most:
        attempt = waiting.popleft()
        if not lock(attempt, locks):
            continue
        used += _need(attempt)[0] if most > 1 else 0
        if mine and used > budget:
            waiting.appendleft(attempt)
            break
        mine.append(attempt)
    return mine


def packed(items: Iterable[T], need: Callable[[T], int], budget: float, most: int) -> Iterator[list[T]]:
    """As many at a time as fit into the budget of bytes."""
    batch: list[T] = []
    used = 0
    for item in items:
        bytes_ = need(item)
        if batch and (used + bytes_ > budget or len(batch) == most):
            yield batch
            batch, used = [], 0
        batch.append(item)
        used += bytes_
    if batch:
        yield batch


def most_together(device: str, parameters: int) -> int:
    """How many runs at a time are faster than one by one. On one core, four runs of 10 workers and 4,810
    parameters take half of the time, sixteen take 40 %."""
    if device.startswith("cuda"):
        return ON_GPU
    return TOGETHER if parameters <= SMALL else 1


def _shape(attempt: Attempt) -> str:
    """What runs in one stack must share: data, model and training."""
    mapping = attempt.config.to_mapping()
    data = {key: mapping["data"].get(key) for key in ("name", "samples", "test_samples", "augment")}
    shared = {"data": data, "model": mapping["model"], "training": mapping["training"]}
    return canonical(shared | {"device": attempt.device})


def _need(attempt: Attempt) -> tuple[int, int]:
    """Its bytes and parameters."""
    try:
        setup = attempt.built = attempt.built or attempt.config.build()
    except Exception:  # of own code, or of ours: running it will say what is wrong
        return 0, SMALL + 1
    return needed_bytes([setup.task], [setup], torch.device(attempt.device)), setup.task.layout.size


class _RoundCounter:
    """Counts the rounds of all runs that are done."""

    def __init__(self, attempts: Sequence[Attempt], progress: Progress | None) -> None:
        self._progress = progress
        self._rounds = {id(attempt.config): 0 for attempt in attempts}
        self._total = sum(attempt.config.training.rounds for attempt in attempts)
        self._runs, self._ended = len(attempts), 0
        for attempt in attempts:
            if attempt.run.finished:
                self.end(attempt)

    def on_round(self, config: RunConfig, moment: Moment) -> None:
        self._rounds[id(config)] = moment.round
        self.show(config.label)

    def end(self, attempt: Attempt) -> None:
        self._rounds[id(attempt.config)] = attempt.config.training.rounds
        self._ended += 1

    def show(self, label: str) -> None:
        if self._progress is not None:
            text = f"rounds, {self._ended}/{self._runs} runs, {label}"
            self._progress(text, sum(self._rounds.values()), self._total)
