"""The record of one round."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from clippedgossip.errors import RunError


@dataclass(frozen=True, kw_only=True)
class Round:
    """One round of a simulated or a real network. A field that was not measured is None."""

    round: int
    accuracy: Mapping[str, float | None] | None = None
    """Test accuracy, in [0, 1], of the model averaged over a group of regular nodes:
    {"all": …, "clique A": …}."""
    mean_accuracy: float | None = None
    """Mean of the accuracies of single regular nodes."""
    worst_accuracy: float | None = None
    """Lowest accuracy of a single regular node."""
    loss: float | None = None
    consensus_distance: float | None = None
    """Ξ: mean squared distance of the regular models to their mean. Only a simulation can know it."""
    neighbour_distance: float | None = None
    """A peer's: mean squared distance of its model to those it received."""
    clipped: float | None = None
    """Fraction of the received messages that were clipped, from the first round on."""
    clipped_edges: Sequence[Sequence[Any]] | None = None
    """[sender, receiver, fraction] of every edge with clipped messages, the most clipped first. Only the last
    record of a simulated run has it."""
    lr: float | None = None
    peer: str | None = None
    missing: int | None = None
    """Neighbours whose message did not count in this round."""
    rejected: int | None = None
    """Those of them that sent something no regular peer sends."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further entries, kept as they are."""

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured, by name, such as `metrics["accuracy"]["all"]` and `metrics["loss"]`."""
        return {name: value for name, value in self.to_json().items() if name not in ("round", "peer")}

    def to_json(self) -> dict[str, Any]:
        """A flat mapping in the order of the fields, without those that are None."""
        flat = {name: getattr(self, name) for name in _FIELDS}
        return {name: value for name, value in flat.items() if value is not None} | dict(self.extra)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Self:
        number = record.get("round")
        if not isinstance(number, int) or isinstance(number, bool):
            raise RunError(f"a record needs a whole number as 'round', got {number!r}")
        if "peer" in record and "consensus_distance" in record:  # as version 0.1 called a peer's distance
            record = {**record, "neighbour_distance": record["consensus_distance"]}
            record = {name: value for name, value in record.items() if name != "consensus_distance"}
        known = {name: record[name] for name in _FIELDS if name in record}
        return cls(**known, extra={name: value for name, value in record.items() if name not in _FIELDS})


_FIELDS = tuple(entry.name for entry in dataclasses.fields(Round) if entry.name != "extra")
