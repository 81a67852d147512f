"""What one round looked like."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from clippedgossip.errors import RunError


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a simulated or a real network. What was not measured is None."""

    round: int
    accuracy: Mapping[str, float | None] | None = None
    """Of the model averaged over a group of regular nodes, in [0, 1]: {"all": …, "clique A": …}."""
    mean_accuracy: float | None = None
    """Mean over single regular nodes."""
    worst_accuracy: float | None = None
    """Lowest of the single regular nodes."""
    loss: float | None = None
    consensus_distance: float | None = None
    """Ξ: mean squared distance of the regular models to their mean; for a peer, to what it received."""
    clipped: float | None = None
    """Fraction of the received messages that were clipped, from the first round on."""
    clipped_edges: Sequence[Sequence[Any]] | None = None
    """[sender, receiver, fraction] of every edge along which messages were clipped, the most clipped first;
    in the last record of a simulated run."""
    lr: float | None = None
    peer: str | None = None
    missing: int | None = None
    """Neighbours whose message did not count this round."""
    rejected: int | None = None
    """Those of them that sent something no honest peer sends."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Anything else, kept as it is."""

    def to_json(self) -> dict[str, Any]:
        """Flat, in the order of the fields, without those that are None."""
        flat = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in flat.items() if value is not None} | dict(self.extra)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        number = record.get("round")
        if not isinstance(number, int) or isinstance(number, bool):
            raise RunError(f"a record needs a whole number as 'round', got {number!r}")
        known = {name: record[name] for name in _FIELDS if name in record}
        return cls(**known, extra={name: value for name, value in record.items() if name not in _FIELDS})


_FIELDS = tuple(entry.name for entry in dataclasses.fields(Round) if entry.name != "extra")
