from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, at_least, whole
from clippedgossip.rules.bound import Bound, Seen, around_own
from clippedgossip.rules.clipped_gossip import clip_factor
from clippedgossip.rules.sorting import uniform_over


@dataclass(frozen=True)
class CenteredClipping(LinearRule):
    """v ← v + mean_j Clip(x_j − v, τ) over own and received, from v = x_i.

    Needs: a radius of the order of the distances between regular models.
    Fails: as clipped gossip does, and more on irregular graphs: it ignores the weights, so the average of the
    models drifts. Several iterations let a Byzantine neighbour pull several times.
    Cost: O(k²d) for the distances; the iterations work on them alone.
    Origin: Karimireddy, He and Jaggi, 2021, arXiv:2012.10333.
    """

    radius: float = 1.0
    iterations: int = 3

    def __post_init__(self) -> None:
        at_least("radius", self.radius, 0)
        whole("iterations", self.iterations, 1)

    def coefficients(self, near: Neighborhood) -> Tensor:
        found = near.centered(self.iterations, self.radius, clip=True)
        if found is not None:
            return found
        share = uniform_over(near.closed_present)
        center = torch.zeros_like(share)
        center[:, 0] = 1
        for _ in range(self.iterations):
            pull = share * clip_factor(near.squared_to(center).sqrt(), self.radius)
            center = center * (1 - pull.sum(1, keepdim=True)) + pull
        return center

    def bound(self, seen: Seen) -> Bound:
        """Each iteration moves by at most τ."""
        return around_own(seen, self.iterations * self.radius)
