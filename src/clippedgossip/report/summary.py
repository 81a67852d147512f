"""How the runs ended, one row for each line: for the page, for a terminal, for JSON.

The numbers come from curves by round: means over the last rounds, totals, the edges clipped most often.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from clippedgossip.records import ACCURACY, Round
from clippedgossip.report.grouping import Group, Run
from clippedgossip.report.page import Cell, Table
from clippedgossip.report.statistics import ANY, POSITIVE, SHARE, Estimate, Range, estimate

Measure = Callable[[Round], float | None]

_LAST = 6
"""Means are over the last sixth of a run (the paper: 150 of 900 rounds), unless its config has
`evaluate_last`."""
SHOWN = 5
"""Edges shown for each line. The records name all of them."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """How the runs of one line ended."""

    setting: str
    rule: str
    runs: int
    last_round: int
    metric: str = ACCURACY
    score: Mapping[str, Estimate | None] = field(default_factory=dict)
    worst_score: Estimate | None = None
    consensus_distance: Estimate | None = None
    missing: int | None = None
    rejected: int | None = None
    state: str = "finished"


def row(group: Group) -> Row:
    """The row of one setting."""
    names = dict.fromkeys(name for run in group.runs for r in run.rounds for name in r.score)
    metric = group.runs[0].rounds[-1].metric
    share = SHARE if metric == ACCURACY else ANY
    return Row(
        setting=group.setting,
        rule=group.rule,
        runs=len(group.runs),
        last_round=max(run.rounds[-1].round for run in group.runs),
        metric=metric,
        score={name: at_the_end(group.runs, score_of(name), share) for name in names},
        worst_score=at_the_end(group.runs, number("worst_score"), share),
        consensus_distance=at_the_end(group.runs, number("consensus_distance")),
        missing=total(group.runs, number("missing")),
        rejected=total(group.runs, number("rejected")),
        state=", ".join(dict.fromkeys(run.directory.state for run in group.runs)),
    )


def score_of(group: str) -> Measure:
    """The metric of the model averaged over a group of nodes."""
    return lambda r: r.score.get(group)


def number(name: str) -> Measure:
    """A number of a `Round` by its name."""
    return lambda r: getattr(r, name)


def by_round(run: Run, measure: Measure) -> dict[int, float]:
    """{round: value} where there is a value. A run that diverged ends with ∞ if it has no number there."""
    found = {r.round: measure(r) for r in run.rounds}
    values = {number: float(value) for number, value in found.items() if value is not None}
    if values and run.diverged and run.rounds[-1].round not in values:
        values[run.rounds[-1].round] = math.inf
    return values


def at_the_end(runs: Iterable[Run], measure: Measure, within: Range = POSITIVE) -> Estimate | None:
    """Each run's mean over its last rounds, then mean and interval over the runs."""
    means = []
    for run in runs:
        values, first = by_round(run, measure), _first_of_the_last(run)
        last = [value for number, value in values.items() if number >= first] or list(values.values())[-1:]
        means.append(math.fsum(last) / len(last) if last else None)
    return estimate(means, within)


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


def to_table(rows: Sequence[Row]) -> Table:
    """For the page: every column that has something in it, the rows of a setting under its name."""
    peers = _are_peers(rows)
    columns: dict[str, list[Cell]] = {"peer" if peers else "rule": [entry.rule for entry in rows]}
    columns |= _scores(rows, " ")
    worst = {metric: f"worst node{_unit(metric)}" for metric in dict.fromkeys(entry.metric for entry in rows)}
    columns |= {
        label: [_shown(entry, entry.worst_score) if entry.metric == metric else None for entry in rows]
        for metric, label in worst.items()
    }
    columns |= {
        "consensus distance": [_small(entry.consensus_distance) for entry in rows],
        "missing": [entry.missing for entry in rows],
        "rejected": [entry.rejected for entry in rows],
        "runs": [None if peers else entry.runs for entry in rows],
        "last round": [entry.last_round for entry in rows],
        "state": [entry.state for entry in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    last = "the last sixth of the rounds" if peers else "the last rounds, training.evaluate_last of them"
    metrics = " and ".join(dict.fromkeys(entry.metric for entry in rows)).capitalize()
    caption = f"{metrics} and consensus distance are means over {last}"
    several = any(entry.runs > 1 for entry in rows)
    caption += "; ± is half of the 95 % interval over seeds." if several else "."
    return _under_settings(rows, filled, caption)


def to_short_table(rows: Sequence[Row]) -> Table:
    """For a terminal: what matters most."""
    peers = _are_peers(rows)
    columns: dict[str, list[Cell]] = {"peer" if peers else "rule": [entry.rule for entry in rows]}
    columns |= dict(list(_scores(rows, "\n").items())[:2])
    columns["consensus distance"] = [_small(entry.consensus_distance, margin=False) for entry in rows]
    if peers:
        columns["missing"] = [entry.missing for entry in rows]
        columns["rejected"] = [entry.rejected for entry in rows]
    else:
        columns["runs"] = [entry.runs for entry in rows]
    return _under_settings(rows, columns)


def _under_settings(rows: Sequence[Row], columns: Mapping[str, Sequence[Cell]], caption: str = "") -> Table:
    headings = {number: entry.setting for number, entry in enumerate(rows) if _opens(rows, number)}
    return Table(list(columns), list(zip(*columns.values(), strict=True)), caption, headings)


def _opens(rows: Sequence[Row], number: int) -> bool:
    """Whether a setting begins with this row. The name of a single run of peers is not shown."""
    if _are_peers(rows) and len({entry.setting for entry in rows}) == 1:
        return False
    return number == 0 or rows[number].setting != rows[number - 1].setting


def _are_peers(rows: Sequence[Row]) -> bool:
    return all(entry.missing is not None for entry in rows)


def _scores(rows: Sequence[Row], between: str) -> dict[str, list[Cell]]:
    """A column for each metric and group of nodes."""
    wanted = dict.fromkeys((entry.metric, name) for entry in rows for name in entry.score)
    return {
        f"{metric}{between}{name}{_unit(metric)}": [
            _shown(entry, entry.score.get(name)) if entry.metric == metric else None for entry in rows
        ]
        for metric, name in wanted
    }


def _unit(metric: str) -> str:
    return " %" if metric == ACCURACY else ""


def _shown(entry: Row, value: Estimate | None) -> str | None:
    if entry.metric != ACCURACY:
        return _small(value)
    return None if value is None else value.text(scale=100)


def _small(value: Estimate | None, *, margin: bool = True) -> str | None:
    if value is None or value.diverged:
        return None if value is None else value.text()
    return f"{value.mean:.3g}" + (f" ± {value.margin:.1g}" if margin and value.margin is not None else "")


def clipped_edges(groups: Sequence[Group]) -> Table | None:
    """The edges clipped most often, for each line. None if no edge was clipped."""
    rows: list[list[Cell]] = []
    headings: dict[int, str] = {}
    for entry in groups:
        most = sorted(_shares(entry).items(), key=lambda edge: -edge[1])[:SHOWN]
        if most:
            headings[len(rows)] = f"{entry.setting} – {entry.rule}"
        rows += [[sender, receiver, f"{share:.1%}"] for (sender, receiver), share in most]
    caption = (
        f"The edges clipped most often, at most {SHOWN} for each line, and in how many of the rounds. "
        "`clipped_edges` in the last record of a run names all of them."
    )
    return Table(["from", "to", "clipped"], rows, caption, headings) if rows else None


def _shares(entry: Group) -> dict[tuple[Cell, Cell], float]:
    """Means over the runs that are finished."""
    ends = [run.rounds[-1].clipped_edges for run in entry.runs]
    known = [edges for edges in ends if edges is not None]
    shares: dict[tuple[Cell, Cell], float] = {}
    for edges in known:
        for sender, receiver, share in edges:
            shares[sender, receiver] = shares.get((sender, receiver), 0.0) + share / len(known)
    return shares
