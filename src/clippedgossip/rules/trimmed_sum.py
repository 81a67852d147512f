from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules.base import LinearRule, fraction
from clippedgossip.rules.bound import Bound, Seen, around_own, too_many
from clippedgossip.rules.sorting import rounding


@dataclass(frozen=True)
class GTS(LinearRule):
    """Gossip with the furthest neighbours dropped up to weight b, the one at the boundary in part; what they
    lose goes to self.

    Needs: a bound b on the Byzantine weight around a node.
    Fails: across a bottleneck: the neighbour on the other side is the furthest, and it is dropped.
    Cost: O(kd).
    Origin: Gaucher, Dieuleveut and Hendrikx, 2024, arXiv:2410.10418; with equal weights it is NNA.
    """

    byzantine_weight: float

    def __post_init__(self) -> None:
        fraction("byzantine_weight", self.byzantine_weight)

    def coefficients(self, near: Neighborhood) -> Tensor:
        order = torch.where(near.present, near.squared, -1.0).argsort(dim=1, descending=True, stable=True)
        weights = near.weights.gather(1, order)
        further = weights.cumsum(1) - weights
        kept = weights - (self.byzantine_weight - further).clamp(min=0)
        kept = torch.where(kept > rounding(near.weights), kept, 0.0)
        return from_neighbors(torch.zeros_like(weights).scatter(1, order, kept))

    def bound(self, seen: Seen) -> Bound:
        """Nobody who is kept is further than the furthest regular neighbour."""
        if seen.outweighs(self.byzantine_weight):
            return too_many(seen, self.byzantine_weight, "Byzantine weight")
        return around_own(seen, seen.neighbor_weight * seen.spread)
