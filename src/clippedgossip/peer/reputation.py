"""How a neighbour has behaved: whether it is worth waiting for, and whether it is listened to at all.

Silence costs waiting, so this peer waits more and more rarely. Violations of the protocol cost work, so the
neighbour is backed off. Both end: nobody is shut out for ever. Distance never counts against a neighbour:
that is the rule's business.
"""

import time
from collections import Counter
from collections.abc import Callable

from clippedgossip.peer.peer_config import Limits
from clippedgossip.peer.rejection import VIOLATIONS, Rejection

_PATIENT_ROUNDS = 3
_LONGEST_PAUSE = 8
"""Rounds: so that whoever comes back is heard again soon."""
_CLEAN_ROUNDS = 10


class Reputation:
    """One neighbour's record."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self.missing: Counter[Rejection] = Counter()
        self.trust = 0.5
        """How regularly it delivers: a fraction of the deadline is granted accordingly."""
        self._limits = limits
        self._clock = clock
        self._silent = 0
        self._wait_again = 0
        self._strikes = 0
        self._clean = 0
        self._backoff = limits.backoff_least
        self._backed_off_until: float | None = None

    @property
    def alive(self) -> bool:
        """Whether it was heard of lately."""
        return self._silent == 0

    def backed_off(self) -> bool:
        """True while it is not listened to."""
        return self.backoff_left > 0

    @property
    def backoff_left(self) -> float:
        """Seconds until it is listened to again."""
        return 0.0 if self._backed_off_until is None else max(self._backed_off_until - self._clock(), 0.0)

    def worth_waiting(self, round: int) -> bool:
        """After some silent rounds, wait only now and then: 1, 2, 4, … rounds apart."""
        return self._silent < _PATIENT_ROUNDS or round >= self._wait_again

    @property
    def patience(self) -> float:
        """The fraction of a deadline it is worth.

        Whoever delivers gets all of it, whoever stalls less and less. So a peer that a staller keeps waiting
        still delivers within what its other neighbours grant it, and the delay does not spread.
        """
        return 0.25 + 0.75 * self.trust

    def came(self) -> None:
        self.trust += 0.2 * (1 - self.trust)
        self._silent = 0
        self._clean += 1
        if self._clean >= _CLEAN_ROUNDS:
            self._strikes, self._backoff = 0, self._limits.backoff_least
            self._backed_off_until = None

    def missed(self, reason: Rejection, round: int) -> None:
        self.missing[reason] += 1
        if reason in VIOLATIONS:
            self._violated()
        elif reason is Rejection.NOTHING_NEW:
            self._silent = 0
            self.trust *= 0.5
        elif reason in (Rejection.LATE, Rejection.DEAD, Rejection.REFUSED):
            self._silent += 1
            self.trust *= 0.5
            pause = min(2 ** max(self._silent - _PATIENT_ROUNDS, 0), _LONGEST_PAUSE)
            if round >= self._wait_again:
                self._wait_again = round + pause
        elif reason is not Rejection.BACKED_OFF:
            self._silent = 0

    def _violated(self) -> None:
        self._clean = 0
        self._strikes += 1
        # After a pause, one more violation is enough.
        if self._strikes >= self._limits.strikes or self._backed_off_until is not None:
            self._backed_off_until = self._clock() + self._backoff
            self._backoff = min(2 * self._backoff, self._limits.backoff_most)
