"""How long a round waits: a multiple of what is usual, within bounds no neighbour can move."""

from clippedgossip.peer.peer_config import Deadlines

_MEMORY = 0.2
_STRETCH = 1.5


class Deadline:
    """Adapts to the time each neighbour's message usually takes.

    It follows the *lower median* over the neighbours: a minority that stalls, or answers as late as it can,
    does not stretch the deadline of the others.
    """

    def __init__(self, bounds: Deadlines) -> None:
        self._bounds = bounds
        self._usual: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        """`most` until anything was seen."""
        if not self._usual:
            return self._bounds.most
        ranked = sorted(self._usual.values())
        return self._of(ranked[(len(ranked) - 1) // 2])

    def within(self, elapsed: float) -> float:
        """The deadline of a round in which half of the neighbours came within `elapsed` seconds."""
        return max(self._of(elapsed), self.seconds) if self._usual else self._of(elapsed)

    def _of(self, usual: float) -> float:
        return min(max(self._bounds.margin * usual, self._bounds.least), self._bounds.most)

    def came(self, name: str, seconds: float) -> None:
        """A message came after this time; jumps up at once, comes down slowly."""
        before = self._usual.get(name, seconds)
        self._usual[name] = max(seconds, before + _MEMORY * (seconds - before))

    def forget(self, name: str) -> None:
        self._usual.pop(name, None)

    def late(self, name: str) -> None:
        """A message did not come in time, so what is usual may be longer than thought."""
        least = self._bounds.least / self._bounds.margin
        self._usual[name] = min(max(self._usual.get(name, 0.0), least) * _STRETCH, self._bounds.most)
