"""Whether a process keeps growing, as one that leaks does; start-up, caches and arenas grow but once."""

import re
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

SETTLED = 20
"""Rounds of its own after which a process has done everything once: steps, checkpoints, evaluations."""
_PARTS = 4
_FEWEST = 5 * _PARTS


class Memory:
    """Resident memory of processes, each by itself: one that was started again begins anew."""

    def __init__(self) -> None:
        self._first: dict[int, int] = {}
        self._resident: dict[int, list[int]] = {}
        self.peak = 0
        """The most bytes any of them ever held, also between two looks."""

    def look(self, pid: int, round: int) -> None:
        """Notes what a process that is in this round holds."""
        held, most = resident(pid)
        self.peak = max(self.peak, most)
        if not round:  # still starting; where it resumes is not known yet
            return
        first = self._first.setdefault(pid, round)
        if held and round - first >= SETTLED:
            self._resident.setdefault(pid, []).append(held)

    def growth(self) -> int:
        """Bytes by which the process that grew most kept growing, at its slowest speed, after its first
        rounds."""
        return max(map(steady_growth, self._resident.values()), default=0)


def steady_growth(held: Sequence[int]) -> int:
    """The growth if all parts grew as slowly as the slowest one: only a leak never stops growing.

    Of four equal parts in time each is worth its median. Few samples say nothing.
    """
    if len(held) < _FEWEST:
        return 0
    cuts = [len(held) * part // _PARTS for part in range(_PARTS + 1)]
    levels = [statistics.median_low(held[a:b]) for a, b in pairwise(cuts)]
    slowest = min(b - a for a, b in pairwise(levels))
    return max(slowest, 0) * _PARTS


def resident(pid: int) -> tuple[int, int]:
    """Bytes a process holds now, and the most it ever held; zeros when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0, 0
    found = dict(re.findall(r"^Vm(RSS|HWM):\s+(\d+) kB", text, re.MULTILINE))
    return 1024 * int(found.get("RSS", 0)), 1024 * int(found.get("HWM", 0))
