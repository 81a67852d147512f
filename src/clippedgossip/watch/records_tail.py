"""The end of a growing `records.jsonl`, and its whole course in a few hundred points."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from clippedgossip.decode import from_json
from clippedgossip.records import ACCURACY

POINTS = 500
"""Points of a curve, at most. Beyond, neighbouring ones are averaged."""
RECENT = 25
"""Records that are kept whole."""
_MOST_BYTES = 8 << 20
"""Read at a time: a page that starts late catches up over several updates."""
_LONGEST_LINE = 1 << 20
_MARK = 64

Measure = Callable[[Mapping[str, Any]], Mapping[str, object]]
"""A record -> the numbers of it that are drawn."""


class Tail:
    """Follows one file, which grows by lines and may be cut back. Memory is bounded, whatever it holds."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        self._path: Path | None = None
        self._forget()

    def _forget(self) -> None:
        self.recent: deque[dict[str, Any]] = deque(maxlen=RECENT)
        self.damaged = 0
        """Lines that are no record."""
        self._bins: dict[int, tuple[int, dict[str, tuple[float, int]]]] = {}
        self._width = 1
        self._offset = 0
        self._before = b""
        """The last bytes before `_offset`, to notice that the file was cut back and grew again."""

    def follow(self, path: Path | None) -> None:
        """Reads what is new in the file; begins anew where it is another file, or was cut back."""
        if path != self._path:
            self._path = path
            self._forget()
        if path is None:
            return
        try:
            with path.open("rb") as file:
                file.seek(self._offset - len(self._before))
                if file.read(len(self._before)) != self._before:
                    self._forget()
                    file.seek(0)
                chunk = file.read(_MOST_BYTES)
        except OSError:
            return
        end = chunk.rfind(b"\n") + 1
        if not end and len(chunk) >= _LONGEST_LINE:  # an endless line: leave it out
            end = len(chunk)
        self._offset += end
        self._before = (self._before + chunk[:end])[-_MARK:]
        for line in chunk[:end].splitlines():
            self._add(line)

    def _add(self, line: bytes) -> None:
        try:
            record = from_json(line) if len(line) <= _LONGEST_LINE else None
        except ValueError:
            record = None
        if not isinstance(record, dict) or not isinstance(record.get("round"), int):
            self.damaged += 1
            return
        self.recent.append(record)
        self._put(record["round"], self._measure(record))

    def _put(self, round: int, values: Mapping[str, object]) -> None:
        _, sums = self._bins.get(round // self._width, (0, {}))
        for name, value in values.items():
            if is_number(value):
                total, count = sums.get(name, (0.0, 0))
                sums[name] = total + value, count + 1
        self._bins[round // self._width] = round, sums
        if len(self._bins) > POINTS:
            old, self._bins, self._width = self._bins, {}, 2 * self._width
            for last, sums in old.values():
                _, joined = self._bins.get(last // self._width, (0, {}))
                for name, (total, count) in sums.items():
                    before, number = joined.get(name, (0.0, 0))
                    joined[name] = before + total, number + count
                self._bins[last // self._width] = last, joined

    @property
    def last(self) -> dict[str, Any]:
        """The last record; empty where there is none."""
        return self.recent[-1] if self.recent else {}

    def curve(self, name: str) -> list[tuple[int, float]]:
        """[(round, value), …], means over `width` rounds where there are many."""
        return [(round, sums[name][0] / sums[name][1]) for round, sums in self._bins.values() if name in sums]

    def names(self) -> list[str]:
        """What was measured, in the order of its first appearance."""
        return list(dict.fromkeys(name for _, sums in self._bins.values() for name in sums))


def is_number(value: object) -> TypeGuard[float]:
    """Whether it can be drawn; files may be damaged."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def metric_of(record: Mapping[str, Any]) -> str:
    """What the models were tested by; records of accuracy do not name it."""
    return str(record.get("metric", ACCURACY))


def score_of(record: Mapping[str, Any]) -> object:
    """The metric of all regular nodes, where the record has one."""
    scores = record.get(metric_of(record))
    return scores.get("all") if isinstance(scores, dict) else None
