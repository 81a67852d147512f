"""How the runs ended, one row for each line: for the page, for a terminal, for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from clippedgossip.report import measures
from clippedgossip.report.grouping import Group
from clippedgossip.report.page import Cell, Table
from clippedgossip.report.statistics import Estimate


@dataclass(frozen=True, kw_only=True)
class Row:
    """How the runs of one line ended."""

    setting: str
    rule: str
    runs: int
    last_round: int
    accuracy: Mapping[str, Estimate | None] = field(default_factory=dict)
    worst_accuracy: Estimate | None = None
    consensus_distance: Estimate | None = None
    missing: int | None = None
    rejected: int | None = None
    state: str = "finished"


def row(group: Group) -> Row:
    """The row of one setting."""
    names = dict.fromkeys(name for run in group.runs for r in run.rounds for name in r.accuracy or {})
    return Row(
        setting=group.setting,
        rule=group.rule,
        runs=len(group.runs),
        last_round=max(run.rounds[-1].round for run in group.runs),
        accuracy={name: measures.at_the_end(group.runs, measures.accuracy_of(name)) for name in names},
        worst_accuracy=measures.at_the_end(group.runs, measures.field("worst_accuracy")),
        consensus_distance=measures.at_the_end(group.runs, measures.field("consensus_distance")),
        missing=measures.total(group.runs, measures.field("missing")),
        rejected=measures.total(group.runs, measures.field("rejected")),
        state=", ".join(dict.fromkeys(run.directory.state for run in group.runs)),
    )


def to_table(rows: Sequence[Row]) -> Table:
    """For the page: every column that has something in it, the rows of a setting under its name."""
    peers = _are_peers(rows)
    columns: dict[str, list[Cell]] = {"peer" if peers else "rule": [entry.rule for entry in rows]}
    for name in _groups(rows):
        columns[f"accuracy {name} %"] = [_percent(entry.accuracy.get(name)) for entry in rows]
    columns |= {
        "worst node %": [_percent(entry.worst_accuracy) for entry in rows],
        "consensus distance": [_small(entry.consensus_distance) for entry in rows],
        "missing": [entry.missing for entry in rows],
        "refused": [entry.rejected for entry in rows],
        "runs": [None if peers else entry.runs for entry in rows],
        "last round": [entry.last_round for entry in rows],
        "state": [entry.state for entry in rows],
    }
    filled = {name: cells for name, cells in columns.items() if any(cell is not None for cell in cells)}
    last = "the last sixth of the rounds" if peers else "the last rounds, training.evaluate_last of them"
    caption = f"Accuracy and consensus distance are means over {last}"
    several = any(entry.runs > 1 for entry in rows)
    caption += "; ± is half of the 95 % interval over seeds." if several else "."
    return _under_settings(rows, filled, caption)


def to_short_table(rows: Sequence[Row]) -> Table:
    """For a terminal: what matters most."""
    peers = _are_peers(rows)
    columns: dict[str, list[Cell]] = {"peer" if peers else "rule": [entry.rule for entry in rows]}
    for name in _groups(rows)[:2]:
        columns[f"accuracy\n{name} %"] = [_percent(entry.accuracy.get(name)) for entry in rows]
    columns["consensus distance"] = [_small(entry.consensus_distance, margin=False) for entry in rows]
    if peers:
        columns["missing"] = [entry.missing for entry in rows]
        columns["refused"] = [entry.rejected for entry in rows]
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


def _groups(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for entry in rows for name in entry.accuracy))


def _percent(value: Estimate | None) -> str | None:
    return None if value is None else value.text(scale=100)


def _small(value: Estimate | None, *, margin: bool = True) -> str | None:
    if value is None or value.diverged:
        return None if value is None else value.text()
    return f"{value.mean:.3g}" + (
        f" ± {value.high - value.mean:.1g}" if margin and value.high is not None else ""
    )
