"""Why a neighbour's message is missing from a round. Every reason is counted."""

from enum import StrEnum

from clippedgossip.errors import ClippedGossipError


class Rejection(StrEnum):
    """The only ways in which a message can fail to be mixed."""

    LATE = "late"
    """It was coming, or the neighbour was not there yet, when the deadline passed."""
    DEAD = "dead"
    """No connection, or it broke."""
    BEHIND = "behind"
    """The neighbour serves older rounds only."""
    AHEAD = "ahead"
    """The neighbour no longer has this round."""
    REFUSED = "refused"
    """The hello did not fit: another version, run, model, dtype or rule."""
    MALFORMED = "malformed"
    """Bytes that are not the protocol, a bad digest or a bad signature."""
    WRONG_ROUND = "wrong round"
    WRONG_SHAPE = "wrong shape"
    NON_FINITE = "non-finite"
    EQUIVOCATION = "equivocation"
    """A second model for a round, different from the first."""
    BACKED_OFF = "backed off"
    """The neighbour sent rubbish before and has not been let back in yet."""


VIOLATIONS = frozenset(
    {
        Rejection.MALFORMED,
        Rejection.WRONG_ROUND,
        Rejection.WRONG_SHAPE,
        Rejection.NON_FINITE,
        Rejection.EQUIVOCATION,
    }
)
"""What no honest peer ever sends. Only these lead to backing off; lateness and distance never do."""


class Rejected(ClippedGossipError):
    """A message that will not be mixed, and why."""

    def __init__(self, reason: Rejection, detail: str, *, round: int | None = None) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.round = round
        """The round the neighbour says it is in, where it said so."""
