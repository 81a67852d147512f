from dataclasses import dataclass

from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, whole
from clippedgossip.rules.bound import Bound, Seen, Unbounded
from clippedgossip.rules.sorting import uniform_over


@dataclass(frozen=True)
class GeometricMedian(LinearRule):
    """argmin_v Σ_j ‖v − x_j‖ over own and received models, by the smoothed Weiszfeld iteration
    v ← Σ_j β_j x_j / Σ_j β_j, β_j = 1/max(‖v − x_j‖, ν), from the mean.

    Needs: nothing.
    Fails: across a bottleneck, where the majority of a node's neighbours are of its own clique: the others
    are outliers to it. With a Byzantine majority among the neighbours nothing is guaranteed.
    Cost: O(k²d) for the distances; the iterations work on them alone.
    Origin: Pillutla, Kakade and Harchaoui, 2019, arXiv:1912.13445.
    """

    iterations: int = 8
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        whole("iterations", self.iterations, 1)
        if not 1e-12 <= self.smoothing <= 1e15:  # its square is taken
            raise RuleError(f"smoothing is {self.smoothing}; it must be at least 1e-12 and at most 1e+15")

    def coefficients(self, near: Neighborhood) -> Tensor:
        found = near.centered(self.iterations, self.smoothing, clip=False)
        if found is not None:
            return found
        share = uniform_over(near.closed_present)
        for _ in range(self.iterations):
            pull = near.closed_present * near.squared_to(share).clamp(min=self.smoothing**2).rsqrt()
            share = pull / pull.sum(1, keepdim=True)
        return share

    def bound(self, seen: Seen) -> Bound:
        return Unbounded("so many iterations from the mean may not reach the median")
