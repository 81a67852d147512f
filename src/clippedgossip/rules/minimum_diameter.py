from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, ToldFaulty
from clippedgossip.rules.bound import Bound, Seen, around_own, too_many
from clippedgossip.rules.sorting import uniform_over

MOST_SUBSETS = 20_000


@dataclass(frozen=True)
class MDA(ToldFaulty, LinearRule):
    """Minimum-diameter averaging: the mean of the n−f of own and received whose largest distance is least.

    Needs: a bound f on the number of Byzantine neighbours.
    Fails: across a bottleneck, where the far side widens every subset and is left out; with more than a score
    of neighbours the subsets are too many.
    Cost: O(k²d), and all (k+1 choose f) subsets.
    Origin: El Mhamdi et al., 2020, arXiv:1905.03853.
    """

    @property
    def capturable(self) -> bool:
        return False

    def check(self, neighbors: int) -> None:
        super().check(neighbors)
        subsets = comb(neighbors + 1, self.faulty)
        if subsets > MOST_SUBSETS:
            raise RuleError(
                f"MDA would try {subsets} subsets of {neighbors + 1} models, at most {MOST_SUBSETS} are "
                "tried; lower faulty, or use NNM or Krum"
            )

    def coefficients(self, near: Neighborhood) -> Tensor:
        chosen = torch.zeros_like(near.closed_present)
        counts = near.closed_present.sum(1)
        order = near.closed_present.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        for n in set(counts.tolist()) - {1}:  # whoever is alone keeps its model, see `plan`
            nodes = (counts == n).nonzero()[:, 0]
            members = order[nodes, :n]
            pairs = near.pairs[nodes[:, None, None], members[:, :, None], members[:, None]]
            kept = _subsets(n, n - self.faulty).to(pairs.device)
            diameters = torch.stack([pairs[:, s][:, :, s].amax((1, 2)) for s in kept], 1)
            best = kept[diameters.argmin(1)]
            chosen[nodes[:, None], members.gather(1, best)] = True
        return uniform_over(chosen)

    def bound(self, seen: Seen) -> Bound:
        """The n−f chosen have at most the regular models' diameter, and one of them is regular."""
        if seen.faulty > self.faulty or seen.count <= 2 * self.faulty:
            return too_many(seen, min(self.faulty, (seen.count - 1) // 2))
        return around_own(seen, 2 * seen.diameter)


@cache
def _subsets(n: int, size: int) -> Tensor:
    return torch.tensor(list(combinations(range(n), size)))
