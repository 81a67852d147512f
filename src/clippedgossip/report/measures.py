"""Numbers of a run: curves by round, means over its last rounds, totals."""

import math
from collections.abc import Callable, Iterable, Mapping

from clippedgossip.records import Round
from clippedgossip.report.grouping import Run
from clippedgossip.report.statistics import Estimate, estimate

Measure = Callable[[Round], float | None]

_LAST = 6
"""Means are over the last sixth of a run (the paper: 150 of 900 rounds), unless its config has
`evaluate_last`."""


def accuracy_of(group: str) -> Measure:
    """Accuracy of the model averaged over a group of nodes."""
    return lambda r: (r.accuracy or {}).get(group)


def field(name: str) -> Measure:
    """A number of a `Round` by its name."""
    return lambda r: getattr(r, name)


def by_round(run: Run, measure: Measure) -> dict[int, float]:
    """{round: value} where there is a value. A run that diverged ends with ∞ if it has no number there."""
    found = {r.round: measure(r) for r in run.rounds}
    values = {number: float(value) for number, value in found.items() if value is not None}
    if values and run.diverged and run.rounds[-1].round not in values:
        values[run.rounds[-1].round] = math.inf
    return values


def at_the_end(runs: Iterable[Run], measure: Measure) -> Estimate | None:
    """Each run's mean over its last rounds, then mean and interval over the runs."""
    means = []
    for run in runs:
        values, first = by_round(run, measure), _first_of_the_last(run)
        last = [value for number, value in values.items() if number >= first] or list(values.values())[-1:]
        means.append(math.fsum(last) / len(last) if last else None)
    return estimate(means)


def _first_of_the_last(run: Run) -> int:
    """As in the summary of the run: the last `evaluate_last` rounds. If it diverged: its last record."""
    end, training = run.rounds[-1].round, run.config.get("training")
    if run.diverged:
        return end
    asked = training.get("evaluate_last") if isinstance(training, Mapping) else None
    return end + 1 - (asked if isinstance(asked, int) else (end + 1) // _LAST)


def total(runs: Iterable[Run], measure: Measure) -> int | None:
    """The sum over all rounds of all runs."""
    values = [value for run in runs for value in by_round(run, measure).values()]
    return int(sum(values)) if values else None
