"""One row per setting: for the page, for a terminal, for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clippedgossip.report import measures
from clippedgossip.report.grouping import Group
from clippedgossip.report.page import Cell, Table
from clippedgossip.report.statistics import Estimate

if TYPE_CHECKING:
    import rich.table


@dataclass(frozen=True, kw_only=True)
class Row:
    """How the runs of one setting ended."""

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
    """For the page: every column that has something in it."""
    peers = _are_peers(rows)
    columns: dict[str, list[Cell]] = {}
    if _named(rows):
        columns["run" if peers else "setting"] = [entry.setting for entry in rows]
    columns["peer" if peers else "rule"] = [entry.rule for entry in rows]
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
    caption = "Accuracy and consensus distance are means over the last sixth of the rounds"
    caption += "." if peers else "; ± is half of the 95 % interval over seeds."
    return Table(list(filled), list(zip(*filled.values(), strict=True)), caption)


def to_rich(rows: Sequence[Row]) -> "rich.table.Table":
    """For a terminal of 80 columns: what matters most."""
    import rich.box
    import rich.markup
    import rich.table

    peers = _are_peers(rows)
    names = _groups(rows)[:2]
    last = ["missing", "refused"] if peers else ["runs"]
    table = rich.table.Table(box=rich.box.SIMPLE, pad_edge=False)
    if _named(rows):
        table.add_column("run" if peers else "setting", overflow="fold")
    table.add_column("peer" if peers else "rule", no_wrap=True)
    for title in (*(f"accuracy\n{name} %" for name in names), "consensus\ndistance", *last):
        table.add_column(title, justify="right", no_wrap=True)
    for entry in rows:
        distance = entry.consensus_distance
        counts = [entry.missing, entry.rejected] if peers else [entry.runs]
        table.add_row(
            *([rich.markup.escape(entry.setting)] if _named(rows) else []),
            rich.markup.escape(entry.rule),
            *(_percent(entry.accuracy.get(name)) or "–" for name in names),
            "–" if distance is None else f"{distance.mean:.3g}",
            *map(str, counts),
        )
    return table


def _named(rows: Sequence[Row]) -> bool:
    """Whether the setting belongs in the table: peers of one run share it."""
    return not _are_peers(rows) or len({entry.setting for entry in rows}) > 1


def _are_peers(rows: Sequence[Row]) -> bool:
    return all(entry.missing is not None for entry in rows)


def _groups(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for entry in rows for name in entry.accuracy))


def _percent(value: Estimate | None) -> str | None:
    return None if value is None else value.text(scale=100)


def _small(value: Estimate | None) -> str | None:
    if value is None:
        return None
    margin = "" if value.high is None else f" ± {value.high - value.mean:.1g}"
    return f"{value.mean:.3g}{margin}"
