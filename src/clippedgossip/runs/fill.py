"""Run what is missing of some runs. A shared folder is all that processes and machines need to share."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from clippedgossip.devices import free_memory
from clippedgossip.errors import UserError
from clippedgossip.records import RunDirectory, canonical
from clippedgossip.runs import budget as plan
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import Attempt, Cadence, carry_out, lock_all
from clippedgossip.simulate.state import Moment

Progress = Callable[[str, int, int], None]
"""What is being done, rounds done, rounds in all."""

TOGETHER = 16  # more runs at a time gain nothing on one GPU
MEMORY_SHARE = 0.7  # of what is free, for runs that go together


@dataclass(kw_only=True)
class Outcome:
    """What became of the runs; `runs` in the order of their configs."""

    runs: list[RunDirectory] = field(default_factory=list)
    done: int = 0
    """Finished, by this call or before; those that diverged too."""
    diverged: dict[str, str] = field(default_factory=dict)
    """{folder: why}."""
    failed: dict[str, str] = field(default_factory=dict)
    """{folder: why}, of this call."""
    elsewhere: list[RunDirectory] = field(default_factory=list)
    """Being run by other processes."""


def run_missing(
    configs: Sequence[RunConfig],
    root: Path | str,
    *,
    together: bool = True,
    wait: bool = False,
    progress: Progress | None = None,
    cadence: Cadence | None = None,
) -> Outcome:
    """Run every config that is not finished under `root`; a failure is noted and the rest goes on.

    `together` stacks runs of one shape on a GPU. `wait` stays until runs in the hands of other processes are
    finished, and takes over those whose process died.
    """
    attempts = [Attempt.of(config, root) for config in configs]
    outcome = Outcome(runs=[attempt.run for attempt in attempts])
    meter = _Meter(attempts, progress)
    tried: set[Path] = set()
    while True:
        open_ = [a for a in attempts if a.run.path not in tried and not a.run.finished]
        for batch in _batches(open_, together):
            with ExitStack() as locks:
                mine = lock_all(batch, locks)
                tried |= {attempt.run.path for attempt in mine}
                _run(mine, meter, cadence, outcome)
        left = [a for a in attempts if a.run.path not in tried and not a.run.finished]
        if not left or not wait:
            break
        meter.show(f"waiting for {len(left)} runs of other processes")
        time.sleep(1.0)
    outcome.elsewhere = [attempt.run for attempt in left]
    outcome.done = sum(attempt.run.finished for attempt in attempts)
    ends = {str(attempt.run.path): attempt.run.diverged for attempt in attempts}
    outcome.diverged = {path: why for path, why in ends.items() if why is not None}
    return outcome


def _run(attempts: Sequence[Attempt], meter: "_Meter", cadence: Cadence | None, outcome: Outcome) -> None:
    """Attempts of one batch, in step where they stand at one round; if that cannot be, one by one."""
    ordered = sorted(attempts, key=lambda attempt: attempt.stands_at())
    for _, group in groupby(ordered, key=lambda attempt: attempt.stands_at()):
        members = list(group)
        try:
            carry_out(members, on_round=meter.on_round, cadence=cadence)
        except Exception as error:  # one run must not end the others
            if len(members) > 1:
                for member in members:
                    member.diverged = None
                    _run([member], meter, cadence, outcome)
                continue
            outcome.failed[str(members[0].run.path)] = members[0].run.failure or str(error)
        for member in members:
            meter.end(member)


def _batches(attempts: Sequence[Attempt], together: bool) -> Iterator[list[Attempt]]:
    """Runs of one shape, as many as fit; one at a time on a CPU."""
    if not together or not any(stacks(attempt.device) for attempt in attempts):
        yield from ([attempt] for attempt in attempts)
        return
    shapes: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        shapes.setdefault(_shape(attempt), []).append(attempt)
    for alike in shapes.values():
        budget = MEMORY_SHARE * free_memory(alike[0].device)
        batch: list[Attempt] = []
        used = 0
        for attempt in alike:
            need = _need(attempt)
            if batch and (used + need > budget or len(batch) == TOGETHER):
                yield batch
                batch, used = [], 0
            batch.append(attempt)
            used += need
        yield batch


def stacks(device: str) -> bool:
    """Whether several runs at a time are faster there."""
    return device.startswith("cuda")


def _shape(attempt: Attempt) -> str:
    """What runs must share to go in step: data, model and training."""
    mapping = attempt.config.to_mapping()
    data = {key: mapping["data"].get(key) for key in ("name", "samples", "test_samples", "augment")}
    shared = {"data": data, "model": mapping["model"], "training": mapping["training"]}
    return canonical(shared | {"device": attempt.device})


def _need(attempt: Attempt) -> int:
    try:
        return plan.plan(attempt.config, device=attempt.device).memory_bytes
    except UserError:  # what is wrong with it will be said when it is run
        return 0


class _Meter:
    """Rounds done, of all runs."""

    def __init__(self, attempts: Sequence[Attempt], progress: Progress | None) -> None:
        self._progress = progress
        self._rounds = {id(attempt.config): 0 for attempt in attempts}
        self._total = sum(attempt.config.training.rounds for attempt in attempts)
        self._runs, self._ended = len(attempts), 0
        for attempt in attempts:
            if attempt.run.finished:
                self.end(attempt)

    def on_round(self, config: RunConfig, moment: Moment) -> None:
        self._rounds[id(config)] = moment.round  # every round: its text would take as long as a small one
        self.show(config.label)

    def end(self, attempt: Attempt) -> None:
        self._rounds[id(attempt.config)] = attempt.config.training.rounds
        self._ended += 1

    def show(self, label: str) -> None:
        if self._progress is not None:
            text = f"{self._ended}/{self._runs} runs, {label}"
            self._progress(text, sum(self._rounds.values()), self._total)
