from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, ToldFaulty
from clippedgossip.rules.bound import Bound, Seen, around_own, too_many

NEVER_NONE = 1e-300  # of own weight 0: a node that drops all neighbours has itself left


@dataclass(frozen=True)
class IOS(ToldFaulty, LinearRule):
    """Iterative outlier scissor: f times, drop the neighbour furthest from the weighted mean of
    those still trusted, self included; then their renormalised weighted mean.

    Needs: a bound f on the number of Byzantine neighbours.
    Fails: across a bottleneck, as NNA does, and where the Byzantine weight is near ½: the mean it measures
    from is then the attack's.
    Cost: O(k²d) for the distances; the f steps work on them alone.
    Origin: Wu, Chen and Ling, 2023, arXiv:2206.04568.
    """

    def coefficients(self, near: Neighborhood) -> Tensor:
        own, others = near.closed_weights.tensor_split([1], 1)
        trusted = torch.cat([own.clamp(min=NEVER_NONE), others], 1)
        for _ in range(self.faulty):
            mean = trusted / trusted.sum(1, keepdim=True)
            doubtful = torch.where(trusted > 0, near.squared_to(mean), -1.0)
            doubtful[:, 0] = -1.0  # a node trusts itself
            trusted = trusted.scatter(1, doubtful.argmax(1, keepdim=True), 0.0)
        return trusted / trusted.sum(1, keepdim=True)

    def bound(self, seen: Seen) -> Bound:
        """Let β be the Byzantine weight, R the distance of the furthest regular model, D that of the furthest
        Byzantine one. From the mean the latter is at least (1−β)D − R away, a regular model at most βD + 2R.
        So while D > 3R/(1−2β), the model that is dropped is Byzantine."""
        beta = seen.byzantine_weight
        if seen.faulty > self.faulty or beta >= 0.5:
            return too_many(seen, self.faulty)
        return around_own(seen, 3 * seen.spread / (1 - 2 * beta))
