from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules.base import LinearRule, fraction
from clippedgossip.rules.bound import Bound, Seen, around_own, too_many
from clippedgossip.rules.clipped_gossip import clip_factor
from clippedgossip.rules.sorting import beyond, rounding


@dataclass(frozen=True)
class CSPlus(LinearRule):
    """CS+: x_i + Σ_j W_ij Clip(x_j − x_i, τ_i), τ_i the largest distance of a neighbour
    such that those further away weigh 2b or more, as in the authors' code.

    Needs: a bound b on the Byzantine weight around a node.
    Fails: where 2b is the weight of the neighbours or more: the radius is then 0 and nothing moves, as on
    a ring with one Byzantine node.
    Cost: O(kd).
    Origin: Gaucher, Dieuleveut and Hendrikx, 2024, arXiv:2410.10418.
    """

    byzantine_weight: float
    clips: ClassVar[bool] = True

    def __post_init__(self) -> None:
        fraction("byzantine_weight", self.byzantine_weight)

    def coefficients(self, near: Neighborhood) -> Tensor:
        if not near.weights.shape[1]:  # a node by itself
            return near.closed_weights
        distances, order = torch.where(near.present, near.distances, torch.inf).sort(dim=1, stable=True)
        further = beyond(near.weights.gather(1, order))
        slack = rounding(near.weights)
        if self.byzantine_weight:  # less than it: else nobody is clipped
            slack = slack.clamp(max=self.byzantine_weight / 2)
        unclipped = near.present.gather(1, order) & (further >= 2 * self.byzantine_weight - slack)
        radius = torch.where(unclipped, distances, 0.0).amax(1, keepdim=True)
        return from_neighbors(near.weights * clip_factor(near.distances, radius))

    def bound(self, seen: Seen) -> Bound:
        """2b of weight is clipped, so a regular neighbour is: τ_i is at most the furthest one's distance."""
        if seen.outweighs(self.byzantine_weight):
            return too_many(seen, self.byzantine_weight, "Byzantine weight")
        return around_own(seen, seen.neighbor_weight * seen.spread)
