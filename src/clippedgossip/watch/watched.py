"""What the page shows, as plain values: sentences, a drawing, curves, tables. The page only lays it out."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import networkx as nx

from clippedgossip.network import Network
from clippedgossip.records import ACCURACY
from clippedgossip.watch.records_tail import is_number

DRAWN = 200
"""Nodes of the largest network that is drawn."""
_LONGEST = 200
_FRESH = 0.5
Cell = str | tuple[str, str]
"""A text, or a text and its tone: good, warn or bad."""
Line = tuple[str, Sequence[tuple[int, float]]]


class Watched(ABC):
    """Something to watch. Any number of readers cost no more than one: its state is found out anew at most
    twice a second."""

    def __init__(self) -> None:
        self.asked = 0.0
        """When the state was asked for last (monotonic)."""
        self._lock = threading.Lock()
        self._known: tuple[float, str, dict[str, Any]] = (-_FRESH, "", {})

    def state(self, chosen: str = "") -> dict[str, Any]:
        """The state for the page; `chosen` is the node to show in detail."""
        with self._lock:
            self.asked = time.monotonic()
            then, of, known = self._known
            if self.asked - then >= _FRESH or of != chosen:
                known = self.look(chosen)
                self._known = (self.asked, chosen, known)
            return known

    @abstractmethod
    def look(self, chosen: str) -> dict[str, Any]:
        """Reads the files and says what there is."""


def places(graph: "nx.Graph[str]") -> dict[str, tuple[float, float]]:
    """Where each node is drawn, in [0, 1]²; nothing for a network too large to draw."""
    if not 0 < len(graph) <= DRAWN:
        return {}
    from clippedgossip.report.network_drawing import layout

    return scaled(graph, layout(Network(graph)).tolist())


def scaled(names: Iterable[str], spots: Sequence[Sequence[float]]) -> dict[str, tuple[float, float]]:
    """The spots with x in [0, 1] and y from 0 up, in their proportions."""
    low = [min(spot[axis] for spot in spots) for axis in (0, 1)]
    span = max(*(max(spot[axis] for spot in spots) - low[axis] for axis in (0, 1)), 1e-9)
    return {
        name: ((x - low[0]) / span, (y - low[1]) / span) for name, (x, y) in zip(names, spots, strict=True)
    }


def chart(title: str, lines: Iterable[Line], *, percent: bool = False, log: bool = False) -> dict[str, Any]:
    """A chart over the rounds; lines without points are left out."""
    drawn = [{"name": text(name), "points": list(points)} for name, points in lines if points]
    return {"title": title, "percent": percent, "log": log, "lines": drawn}


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = ""
) -> dict[str, Any]:
    return {"title": title, "note": note, "columns": list(columns), "rows": [list(row) for row in rows]}


def text(value: object) -> str:
    """Of bounded length, on one line."""
    said = " ".join(str(value).split())
    return said if len(said) <= _LONGEST else said[: _LONGEST - 1] + "…"


def number(value: object, digits: int = 3) -> str:
    return f"{value:.{digits}g}" if is_number(value) else "–"


def percent(value: object) -> str:
    return f"{value:.1%}" if is_number(value) else "–"


def score_text(metric: str, value: object) -> str:
    """A metric's value: accuracy in percent, others as they are."""
    return percent(value) if metric == ACCURACY else number(value, 4)


def score_chart(metric: str, better: bool, lines: Iterable[Line]) -> dict[str, Any]:
    """What the task is measured by, over the rounds."""
    title = f"{metric_title(metric)} on the test set"
    return chart(title if better else f"{title}; less is better", lines, percent=metric == ACCURACY)


def metric_title(metric: str) -> str:
    return text(metric[:1].upper() + metric[1:])


def metric_of(record: Mapping[str, Any]) -> str:
    """What the models were tested by; records of accuracy do not name it."""
    return str(record.get("metric", ACCURACY))


def score_of(record: Mapping[str, Any]) -> object:
    """The metric of all regular nodes, where the record has one."""
    scores = record.get(metric_of(record))
    return scores.get("all") if isinstance(scores, dict) else None


def age(seconds: object) -> str:
    """How long ago, in words."""
    if not is_number(seconds):
        return "never"
    for unit, name in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{max(seconds, 0):.0f} s ago"


def counts(table: object) -> str:
    """{"late": 3} -> "late 3", the most frequent first."""
    if not isinstance(table, Mapping):
        return ""
    found = sorted(((k, v) for k, v in table.items() if is_number(v) and v), key=lambda pair: -pair[1])
    return ", ".join(f"{text(name)} {count}" for name, count in found[:12])
