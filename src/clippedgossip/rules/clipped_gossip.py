"""ClippedGossip and its clipping radius τ_i."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.devices import ours
from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules.base import LinearRule, at_least, fraction, whole
from clippedgossip.rules.bound import Bound, Seen, Unbounded, around_own
from clippedgossip.rules.sorting import beyond, rounding

SLACK = 1e-9  # 0.1 · 30 is a little more than 3


@dataclass(frozen=True)
class Radius(ABC):
    """A clipping radius τ_i for each node, from what the node sees in a round."""

    @abstractmethod
    def __call__(self, near: Neighborhood) -> Tensor:
        """(b, 1) τ_i."""

    def largest(self, seen: Seen) -> float | Unbounded:
        """The largest τ_i that Byzantine messages can cause."""
        return Unbounded("none is stated for its radius")


@dataclass(frozen=True)
class Fixed(Radius):
    """The same τ for every node and round."""

    value: float

    def __post_init__(self) -> None:
        at_least("radius", self.value, 0)

    def __call__(self, near: Neighborhood) -> Tensor:
        return torch.full_like(near.weights[:, :1], self.value)

    def largest(self, seen: Seen) -> float | Unbounded:
        return self.value


@dataclass(frozen=True)
class Oracle(Radius):
    """τ_i² = (1/δ_i) Σ_{j∈R} W_ij ‖x_i − x_j‖², eq. (tau); ∞ where δ_i = 0.

    Needs to know which nodes are Byzantine: for theory and tests only.
    """

    def __call__(self, near: Neighborhood) -> Tensor:
        if near.byzantine is None:
            raise RuleError(
                "the oracle radius needs to know the Byzantine nodes: rule(…, Context(byzantine=mask))\n"
                "or use Adaptive(delta_max=…), which does not need this"
            )
        lies = near.byzantine
        delta = torch.where(lies, near.weights, 0.0).sum(1, keepdim=True)
        spread = torch.where(lies, 0.0, near.weights * near.squared).sum(1, keepdim=True)
        return torch.where(delta > 0, (spread / delta).sqrt(), torch.inf)

    def largest(self, seen: Seen) -> float | Unbounded:
        """τ_i itself: it does not depend on Byzantine messages."""
        if not seen.faulty:
            return seen.spread
        spread = float((seen.weights[~seen.byzantine] * seen.regular_distances.square()).sum())
        return math.sqrt(spread / seen.byzantine_weight)


@dataclass(frozen=True)
class Adaptive(Radius):
    """τ_i² = Σ_{j∈S} W_ij ‖x_i − x_j‖², S the nearest nodes, self included, whose weight stays within
    1 − δ_max (§ choosing clipping radius). Needs a bound on δ_max."""

    delta_max: float

    def __post_init__(self) -> None:
        fraction("delta_max", self.delta_max)

    def __call__(self, near: Neighborhood) -> Tensor:
        return _spread_of_nearest(near, self.delta_max)

    def largest(self, seen: Seen) -> float | Unbounded:
        """No node of S is further than the furthest regular one: with it and all regular nodes S would weigh
        more than 1 − δ_max. So τ_i² is at most the weight of S times the square of that distance."""
        if seen.outweighs(self.delta_max):
            return Unbounded(f"more Byzantine weight than {self.delta_max}")
        return math.sqrt(min(1.0, seen.neighbor_weight)) * seen.spread


@dataclass(frozen=True)
class Local(Radius):
    """Adaptive with a bound on the node's own δ_i in place of δ_max: the sum of its `faulty` largest weights.
    Needs a bound on the number of Byzantine neighbours of a node."""

    faulty: int

    def __post_init__(self) -> None:
        whole("faulty", self.faulty, 0)

    def __call__(self, near: Neighborhood) -> Tensor:
        most = min(self.faulty, near.weights.shape[1])
        return _spread_of_nearest(near, near.weights.topk(most, 1).values.sum(1, keepdim=True))

    def largest(self, seen: Seen) -> float | Unbounded:
        """As that of Adaptive: the Byzantine weight is at most the bound."""
        if seen.faulty > self.faulty:
            return Unbounded(f"more Byzantine neighbours than {self.faulty}")
        return math.sqrt(min(1.0, seen.neighbor_weight)) * seen.spread


def _spread_of_nearest(near: Neighborhood, delta: Tensor | float) -> Tensor:
    """(b, 1) the root of Σ_{j∈S} W_ij ‖x_i − x_j‖², S the nearest nodes of weight at most 1 − δ."""
    squared, order = torch.where(near.present, near.squared, torch.inf).sort(dim=1, stable=True)
    weights = near.weights.gather(1, order)
    # The sum's rounding must not let in a neighbour of less weight: its message may be of any length.
    slack = torch.minimum(rounding(near.weights), weights / 4)
    nearest = (weights > 0) & (beyond(weights) >= delta - slack)
    return torch.where(nearest, weights * squared, 0.0).sum(1, keepdim=True).sqrt()


@dataclass(frozen=True)
class Quantile(Radius):
    """τ_i = the q-quantile of the distances ‖x_i − x_j‖ to the neighbours: of k, the ⌈qk⌉-th smallest.

    Needs nothing. Where fewer than ⌈qk⌉ neighbours are regular, a Byzantine neighbour can set τ_i.
    """

    q: float

    def __post_init__(self) -> None:
        if not 0 < self.q <= 1:
            raise RuleError(f"q is {self.q}; it must be above 0 and at most 1")

    def __call__(self, near: Neighborhood) -> Tensor:
        squared = torch.where(near.present, near.squared, torch.inf).sort(1).values
        rank = (self.q * near.present.sum(1, keepdim=True, dtype=torch.float64) - SLACK).ceil().long()
        return torch.nn.functional.pad(squared, (1, 0)).gather(1, rank.clamp(min=0)).sqrt()  # own one first

    def largest(self, seen: Seen) -> float | Unbounded:
        """The ⌈qk⌉-th smallest distance is at most the ⌈qk⌉-th smallest regular one, where there is one."""
        if math.ceil(self.q * len(seen.weights) - SLACK) > len(seen.regular_distances):
            return Unbounded(f"more Byzantine neighbours than a share of {1 - self.q:g}")
        return seen.spread


@dataclass(frozen=True)
class ClippedGossip(LinearRule):
    """x_i ← Σ_j W_ij (x_i + Clip(x_j − x_i, τ_i)), eq. (ClippedGossip).

    Needs: what its radius needs: nothing (a number, Quantile), a bound on δ_max (Adaptive) or on a node's
    Byzantine neighbours (Local), or all (Oracle).
    Fails: where δ_max/γ² is large: behind a bottleneck, or with much Byzantine weight around a node. A radius
    that is too small stops information, one that is too large lets the attack through.
    Cost: O(kd): two passes over the messages.
    Origin: He, Karimireddy and Jaggi, 2022, arXiv:2202.01545.
    """

    radius: float | Radius = 1.0
    clips: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.radius, Radius):
            object.__setattr__(self, "radius", Fixed(float(self.radius)))

    @property
    def capturable(self) -> bool:
        return super().capturable and ours(self.radius)

    def coefficients(self, near: Neighborhood) -> Tensor:
        assert isinstance(self.radius, Radius)
        return from_neighbors(near.weights * clip_factor(near.distances, self.radius(near)))

    def bound(self, seen: Seen) -> Bound:
        """The node moves by at most Σ_j W_ij τ_i."""
        assert isinstance(self.radius, Radius)
        largest = self.radius.largest(seen)
        if isinstance(largest, Unbounded):
            return largest
        return around_own(seen, seen.neighbor_weight * largest)


def clip_factor(norm: Tensor, radius: Tensor | float) -> Tensor:
    """min(1, τ/‖z‖), so that Clip(z, τ) = factor·z."""
    return torch.where(norm > radius, radius / norm, 1.0)
