"""What the page shows, as plain values: sentences, a drawing, curves, tables. The page only lays it out."""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from clippedgossip.network.network import DRAWN, Network
from clippedgossip.records import ACCURACY
from clippedgossip.watch.words import metric_title, text

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


def places(network: Network, names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Where each node is drawn: x in [0, 1] and y from 0 up; nothing for a network too large to draw."""
    if network.n > DRAWN:
        return {}
    from clippedgossip.report.network_drawing import layout

    spots = layout(network)
    spots = (spots - spots.min(0)) / max(float(np.ptp(spots, axis=0).max()), 1e-9)
    return {name: (x, y) for name, (x, y) in zip(names, spots.tolist(), strict=True)}


def chart(title: str, lines: Iterable[Line], *, percent: bool = False, log: bool = False) -> dict[str, Any]:
    """A chart over the rounds; lines without points are left out."""
    drawn = [{"name": text(name), "points": list(points)} for name, points in lines if points]
    return {"title": title, "percent": percent, "log": log, "lines": drawn}


def table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], note: str = ""
) -> dict[str, Any]:
    return {"title": title, "note": note, "columns": list(columns), "rows": [list(row) for row in rows]}


def score_chart(metric: str, better: bool, lines: Iterable[Line]) -> dict[str, Any]:
    """What the task is measured by, over the rounds."""
    title = f"{metric_title(metric)} on the test set"
    return chart(title if better else f"{title}; less is better", lines, percent=metric == ACCURACY)
