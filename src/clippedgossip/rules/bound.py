"""The guarantee of a rule: where a node's model is after mixing, whatever its Byzantine neighbours sent."""

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Context
from clippedgossip.rules.sorting import rounding


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """One node's round with all that is known of it: what it received, and which messages are Byzantine."""

    own: Tensor  # (d,) float64
    received: Tensor  # (k, d) float64
    weights: Tensor  # (k,) float64
    byzantine: Tensor  # (k,)
    context: Context = field(default_factory=Context)
    margin: float = 0.0  # how far every regular model may be from where it is given

    @property
    def count(self) -> int:
        """How many models there are, the own one included."""
        return len(self.weights) + 1

    @property
    def faulty(self) -> int:
        """How many of them are Byzantine."""
        return int(self.byzantine.sum())

    @property
    def byzantine_weight(self) -> float:
        """δ_i = Σ_{j∈B} W_ij."""
        return float(self.weights[self.byzantine].sum())

    def outweighs(self, allowed: float) -> bool:
        """Whether the Byzantine weight is more than a rule was told, by more than the weights' rounding."""
        smallest = float(self.weights[self.byzantine].min()) if self.faulty else 0.0
        return self.byzantine_weight > allowed + min(float(rounding(self.weights)), smallest / 4)

    @property
    def neighbor_weight(self) -> float:
        """Σ_j W_ij."""
        return float(self.weights.sum())

    @cached_property
    def regular(self) -> Tensor:
        """(m, d) own and received models that are not Byzantine."""
        return torch.cat([self.own[None], self.received[~self.byzantine]])

    @cached_property
    def regular_distances(self) -> Tensor:
        """‖x_i − x_j‖ of the regular neighbours."""
        found: Tensor = (self.received[~self.byzantine] - self.own).norm(dim=1)
        return found + 2 * self.margin

    @property
    def spread(self) -> float:
        """The largest of them."""
        return float(self.regular_distances.max()) if len(self.regular_distances) else 0.0

    @property
    def diameter(self) -> float:
        """The largest distance between any two regular models."""
        return float((self.regular[:, None] - self.regular).norm(dim=2).max()) + 2 * self.margin

    @property
    def own_norm(self) -> float:
        """‖x_i‖."""
        return float(self.own.norm()) + self.margin

    @property
    def range(self) -> "Box":
        """Between the smallest and the largest regular value of each coordinate."""
        return Box(low=self.regular.amin(0), high=self.regular.amax(0)).wider(self.margin)


@dataclass(frozen=True, eq=False, kw_only=True)
class Ball:
    """‖x − centre‖ ≤ radius."""

    centre: Tensor
    radius: float

    def excess(self, mixed: Tensor) -> Tensor:
        """(n,) how far outside each of the models (n, d) is; negative inside."""
        apart: Tensor = (mixed.double() - self.centre).norm(dim=-1)
        return apart - self.radius

    @property
    def size(self) -> float:
        """The numbers that rounding is measured by: how long the models in it are."""
        return float(self.centre.norm()) + self.radius


@dataclass(frozen=True, eq=False, kw_only=True)
class Box:
    """low ≤ x ≤ high, coordinate by coordinate."""

    low: Tensor
    high: Tensor

    def excess(self, mixed: Tensor) -> Tensor:
        """(n,) how far outside each of the models (n, d) is, where it is furthest; negative inside."""
        return torch.maximum(self.low - mixed.double(), mixed.double() - self.high).amax(-1)

    def wider(self, by: Tensor | float) -> "Box":
        """The same, larger by this on every side."""
        return Box(low=self.low - by, high=self.high + by)

    @property
    def size(self) -> float:
        """The numbers that rounding is measured by."""
        return float(torch.maximum(self.low.abs(), self.high.abs()).max())


@dataclass(frozen=True)
class Unbounded:
    """There is no bound, and why."""

    why: str


Bound = Ball | Box | Unbounded


def around_own(seen: Seen, radius: float) -> Ball:
    """The node moves by at most `radius`."""
    return Ball(centre=seen.own, radius=radius + seen.margin)


def too_many(seen: Seen, allowed: float, what: str = "Byzantine neighbours") -> Unbounded:
    return Unbounded(f"more than {allowed:g} {what}")
