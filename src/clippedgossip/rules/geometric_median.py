from dataclasses import dataclass

from torch import Tensor

from clippedgossip.inbox import Neighborhood
from clippedgossip.rules._checks import at_least
from clippedgossip.rules.base import LinearRule


@dataclass(frozen=True)
class GeometricMedian(LinearRule):
    """argmin_v Σ_j ‖v − x_j‖ over own and received models, by the smoothed Weiszfeld iteration
    v ← Σ_j β_j x_j / Σ_j β_j, β_j = 1/max(‖v − x_j‖, ν), from the mean (Pillutla et al.). Needs nothing."""

    iterations: int = 8
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        at_least("iterations", self.iterations, 1)
        at_least("smoothing", self.smoothing, 1e-12)

    def coefficients(self, near: Neighborhood) -> Tensor:
        here = near.closed_present.to(near.weights.dtype)
        share = here / here.sum(1, keepdim=True)
        for _ in range(self.iterations):
            pull = here / near.squared_to(share).sqrt().clamp(min=self.smoothing)
            share = pull / pull.sum(1, keepdim=True)
        return share
