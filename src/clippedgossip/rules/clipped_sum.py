from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood, from_neighbors
from clippedgossip.rules._checks import fraction
from clippedgossip.rules.base import LinearRule
from clippedgossip.rules.clipped_gossip import clip_factor


@dataclass(frozen=True)
class CSPlus(LinearRule):
    """CS+ (Gaucher et al.): x_i + Σ_j W_ij Clip(x_j − x_i, τ_i), τ_i the distance at which the weight of the
    nearer neighbours reaches their total less 2b. Needs a bound b on the Byzantine weight around a node."""

    byzantine_weight: float

    def __post_init__(self) -> None:
        fraction("byzantine_weight", self.byzantine_weight)

    def coefficients(self, near: Neighborhood) -> Tensor:
        if not near.weights.shape[1]:  # a node by itself
            return near.closed_weights
        distances, order = torch.where(near.present, near.distances, torch.inf).sort(1)
        reached = near.weights.gather(1, order).cumsum(1)
        target = near.weights.sum(1, keepdim=True) - 2 * self.byzantine_weight
        place = (reached < target - 1e-9).sum(1, keepdim=True).clamp(max=near.weights.shape[1] - 1)
        radius = torch.where(target > 1e-9, distances.gather(1, place), 0.0)
        return from_neighbors(near.weights * clip_factor(near.distances, radius))
