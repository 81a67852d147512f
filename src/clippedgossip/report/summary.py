"""One row per setting: for the page, for a terminal, for JSON."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clippedgossip.report import measures
from clippedgossip.report.grouping import Group
from clippedgossip.report.page import Cell, Table
from clippedgossip.report.statistics import Estimate

if TYPE_CHECKING:
    import rich.console

WIDTH = 80


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
    headings = {number: entry.setting for number, entry in enumerate(rows) if _opens(rows, number)}
    return Table(list(filled), list(zip(*filled.values(), strict=True)), caption, headings)


def to_rich(rows: Sequence[Row]) -> "rich.console.Group":
    """For a terminal of 80 columns: what matters most, the rows of a setting under its name."""
    import rich.console
    import rich.table
    import rich.text

    peers = _are_peers(rows)
    names = _groups(rows)[:2]
    last = ["missing", "refused"] if peers else ["runs"]
    titles = [*(f"accuracy\n{name} %" for name in names), "consensus\ndistance", *last]
    cells = [_cells(entry, names, peers) for entry in rows]
    widths = [max(len(part) for part in title.split("\n")) for title in titles]
    widths = [max(width, *(len(row[place]) for row in cells)) for place, width in enumerate(widths)]
    left = max(len(entry.rule) for entry in rows)
    left = max(12, min(left, WIDTH - sum(widths) - 2 * len(widths)))

    def table(header: bool = False) -> rich.table.Table:
        empty = rich.table.Table(box=None, show_header=header, pad_edge=False, padding=(0, 1))
        empty.add_column("peer" if peers else "rule", width=left, overflow="fold")
        for title, width in zip(titles, widths, strict=True):
            empty.add_column(title, justify="right", width=width, no_wrap=True)
        return empty

    parts: list[rich.console.RenderableType] = [table(header=True)]
    under = table()
    for number, entry in enumerate(rows):
        if number == 0 or _opens(rows, number):
            under = table()
            heading = [rich.text.Text(f"\n{entry.setting}", style="bold")] if _opens(rows, number) else []
            parts += [*heading, under]
        under.add_row(rich.text.Text(entry.rule), *cells[number])
    return rich.console.Group(*parts)


def _cells(entry: Row, names: Sequence[str], peers: bool) -> list[str]:
    distance = entry.consensus_distance
    return [
        *(_percent(entry.accuracy.get(name)) or "–" for name in names),
        "–" if distance is None else f"{distance.mean:.3g}",
        *map(str, [entry.missing, entry.rejected] if peers else [entry.runs]),
    ]


def _opens(rows: Sequence[Row], number: int) -> bool:
    """Whether a setting begins with this row; peers of one run share it, and need not be told."""
    if _are_peers(rows) and len({entry.setting for entry in rows}) == 1:
        return False
    return number == 0 or rows[number].setting != rows[number - 1].setting


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
