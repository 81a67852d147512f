from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, ToldFaulty
from clippedgossip.rules.bound import Bound, Seen, around_own, too_many
from clippedgossip.rules.sorting import nearest, uniform_over


@dataclass(frozen=True)
class NNA(ToldFaulty, LinearRule):
    """The mean of the own and the received models, without the f furthest from the own one.

    Needs: a bound f on the number of Byzantine neighbours.
    Fails: across a bottleneck: with f ≥ 1 the one neighbour on the other side is the furthest. It ignores the
    weights, so on irregular graphs the average of the models drifts.
    Cost: O(kd).
    Origin: Farhadkhani et al., 2023, arXiv:2209.10931 (MoNNA).
    """

    def coefficients(self, near: Neighborhood) -> Tensor:
        squared = torch.where(near.present, near.squared, torch.inf)
        kept = nearest(squared, near.present.sum(1) - self.faulty)
        return uniform_over(torch.cat([near.closed_present[:, :1], kept], 1))

    def bound(self, seen: Seen) -> Bound:
        """No model that is kept is further away than the furthest regular neighbour."""
        if seen.faulty > self.faulty:
            return too_many(seen, self.faulty)
        return around_own(seen, seen.spread)
