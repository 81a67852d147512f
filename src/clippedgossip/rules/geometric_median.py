from dataclasses import dataclass

from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules._checks import at_least, whole
from clippedgossip.rules.base import LinearRule

MOST_IN_ONE_KERNEL = 128  # a GPU program keeps the distances between so many messages at hand


@dataclass(frozen=True)
class GeometricMedian(LinearRule):
    """argmin_v Σ_j ‖v − x_j‖ over own and received models, by the smoothed Weiszfeld iteration
    v ← Σ_j β_j x_j / Σ_j β_j, β_j = 1/max(‖v − x_j‖, ν), from the mean (Pillutla et al.). Needs nothing."""

    iterations: int = 8
    smoothing: float = 0.1

    def __post_init__(self) -> None:
        whole("iterations", self.iterations, 1)
        at_least("smoothing", self.smoothing, 1e-12)

    def coefficients(self, near: Neighborhood) -> Tensor:
        if near.weights.is_cuda and near.closed_present.shape[1] <= MOST_IN_ONE_KERNEL:
            from clippedgossip.mixing.kernels_cuda import weiszfeld_cuda as weiszfeld_here
        else:
            weiszfeld_here = weiszfeld
        return weiszfeld_here(near.pairs, near.closed_present, self.iterations, self.smoothing)


def weiszfeld(pairs: Tensor, present: Tensor, iterations: int, smoothing: float) -> Tensor:
    """The iteration in terms of coefficients: ‖v − x_j‖² = (c D)_j − ½ c D cᵀ for v = Σ_j c_j x_j."""
    here = present.to(pairs.dtype)
    share = here / here.sum(1, keepdim=True)
    for _ in range(iterations):
        to_each = (share[:, :, None] * pairs).sum(1)
        squared = to_each - (to_each * share).sum(1, keepdim=True) / 2
        pull = here * squared.clamp(min=smoothing**2).rsqrt()
        share = pull / pull.sum(1, keepdim=True)
    return share
