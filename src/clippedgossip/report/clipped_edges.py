"""The edges that were clipped most often. They lead from Byzantine nodes, or over a bottleneck."""

from collections.abc import Sequence

from clippedgossip.report.grouping import Group
from clippedgossip.report.page import Cell, Table

SHOWN = 5
"""Edges shown for each line. The records name all of them."""


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
