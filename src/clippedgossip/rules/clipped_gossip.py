from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.devices import ours
from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules.base import LinearRule
from clippedgossip.rules.bound import Bound, Seen, Unbounded, around_own
from clippedgossip.rules.radius import Fixed, Radius


@dataclass(frozen=True)
class ClippedGossip(LinearRule):
    """x_i ← Σ_j W_ij (x_i + Clip(x_j − x_i, τ_i)), eq. (ClippedGossip).

    Needs what its radius needs: nothing (a number), a bound on δ_max (Adaptive), or all (Oracle).
    """

    radius: float | Radius = 1.0

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
