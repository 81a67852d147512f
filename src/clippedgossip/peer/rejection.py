"""Why no message of a neighbour was used in a round. Every reason is counted."""

from enum import StrEnum

from clippedgossip.errors import ClippedGossipError


class Rejection(StrEnum):
    """The only ways in which a neighbour's message can fail to be mixed."""

    LATE = "late"
    """It was on its way when the deadline passed."""
    DEAD = "dead"
    """No connection, or it broke."""
    NOTHING_NEW = "nothing new"
    """The neighbour answered that it has no message that was not used yet."""
    REFUSED = "refused"
    """The hello did not fit: another version, run, model, dtype or rule. Or its key is not the pinned one."""
    MALFORMED = "malformed"
    """Bytes that are not the protocol, a bad digest or a bad signature."""
    REPLAYED = "replayed"
    """A message that was used before."""
    WRONG_SHAPE = "wrong shape"
    NON_FINITE = "non-finite"
    EQUIVOCATION = "equivocation"
    """A second model for a round, different from the first."""
    BACKED_OFF = "backed off"
    """The neighbour violated the protocol before and is not listened to for a while."""
    CONVICTED = "convicted"
    """The neighbour is proved to have equivocated, and `on_conviction` is "exclude"."""


VIOLATIONS = frozenset(
    {
        Rejection.MALFORMED,
        Rejection.REPLAYED,
        Rejection.WRONG_SHAPE,
        Rejection.NON_FINITE,
        Rejection.EQUIVOCATION,
    }
)
"""What no regular peer ever sends. Only these lead to backing off; lateness and distance never do."""


class Rejected(ClippedGossipError):
    """A message that will not be mixed, and why."""

    def __init__(self, reason: Rejection, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
