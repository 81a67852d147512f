"""Where the others are: which round a peer that fell behind, or comes back, should go on with."""

import time
from collections import deque
from collections.abc import Callable, Collection

_WINDOW = 10


class Pace:
    """How fast rounds can go, from this peer's own fastest stretch."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._recent: deque[float] = deque(maxlen=_WINDOW + 1)
        self._fastest: float | None = None
        self._origin: tuple[int, float] | None = None

    def finished(self, round: int) -> None:
        """A round was done, one after the one before."""
        now = self._clock()
        self._origin = self._origin or (round, now)
        self._recent.append(now)
        if len(self._recent) > _WINDOW:
            stretch = (now - self._recent[0]) / _WINDOW
            self._fastest = stretch if self._fastest is None else min(self._fastest, stretch)

    def jumped(self) -> None:
        self._recent.clear()

    def plausible(self) -> int:
        """The furthest round anyone can have reached at that pace; -1 when nothing is known."""
        if self._fastest is None or self._origin is None:
            return -1
        round, then = self._origin
        return round + int((self._clock() - then) / max(self._fastest, 1e-6))


def meeting_round(own: int, claims: Collection[int], plausible: int) -> int:
    """The round to go on with, given the rounds the neighbours say they are in.

    A maximum can be forged, so the lower median decides. Where the neighbours split evenly (after a partition
    of a ring has healed, one is ahead and one is not) the upper median counts as well, but only as far as
    rounds can plausibly have gone: a liar gains nothing by naming a round in the far future.
    """
    ranked = sorted(claims)
    if not ranked:
        return own
    lower, upper = ranked[(len(ranked) - 1) // 2], ranked[len(ranked) // 2]
    return max(own, lower, min(upper, plausible))
