"""Which edges were clipped: where the rule stood in the way, for an attacker or a bottleneck."""

from collections.abc import Sequence

from clippedgossip.report.grouping import Group
from clippedgossip.report.page import Cell, Table

SHOWN = 5
"""Edges of each setting, the most clipped first; records name them all."""


def clipped_edges(groups: Sequence[Group]) -> Table | None:
    """The edges clipped most often, by setting; None where none was."""
    rows: list[list[Cell]] = []
    headings: dict[int, str] = {}
    for entry in groups:
        most = sorted(_shares(entry).items(), key=lambda edge: -edge[1])[:SHOWN]
        if most:
            headings[len(rows)] = f"{entry.setting} – {entry.rule}"
        rows += [[sender, receiver, f"{share:.1%}"] for (sender, receiver), share in most]
    caption = (
        f"The edges clipped most often, at most {SHOWN} of a line, and in how many of the rounds. "
        "The last record of a run, clipped_edges, names them all."
    )
    return Table(["from", "to", "clipped"], rows, caption, headings) if rows else None


def _shares(entry: Group) -> dict[tuple[Cell, Cell], float]:
    """Mean over the runs that came to their end."""
    ends = [run.rounds[-1].clipped_edges for run in entry.runs]
    known = [edges for edges in ends if edges is not None]
    shares: dict[tuple[Cell, Cell], float] = {}
    for edges in known:
        for sender, receiver, share in edges:
            shares[sender, receiver] = shares.get((sender, receiver), 0.0) + share / len(known)
    return shares
