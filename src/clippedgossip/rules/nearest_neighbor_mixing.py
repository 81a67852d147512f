from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import enough_neighbors, whole
from clippedgossip.rules.bound import Bound, Seen, too_many
from clippedgossip.rules.premix import Premix
from clippedgossip.rules.sorting import nearest, uniform_over


@dataclass(frozen=True, kw_only=True)
class NNM(Premix):
    """Nearest-neighbour mixing: each of own and received becomes the mean of its n−f
    nearest, itself included, before the rule sees it.

    Needs: a bound f on the number of Byzantine neighbours, and what its rule needs.
    Fails: where its rule fails for want of information: what is far stays out of every mean.
    Cost: O(k²d), then that of its rule.
    Origin: Allouah et al., 2023, arXiv:2302.01772.
    """

    faulty: int

    def __post_init__(self) -> None:
        whole("faulty", self.faulty, 0)

    def check(self, neighbors: int) -> None:
        enough_neighbors("NNM", self.faulty, neighbors, self.faulty, neighbors)
        self.rule.check(neighbors)

    def premix(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        here = near.closed_present
        keys = torch.where(here[:, None], near.pairs, torch.inf)
        eye = torch.eye(here.shape[1], dtype=torch.bool, device=here.device)
        keys = torch.where(eye, -1.0, keys)
        return uniform_over(nearest(keys, here.sum(1) - self.faulty)), near.weights

    def bound(self, seen: Seen) -> Bound:
        """The n−f nearest of a regular model, and their mean, are within the regular models' diameter."""
        if seen.faulty > self.faulty:
            return too_many(seen, self.faulty)
        return self.rule.bound(replace(seen, margin=seen.margin + seen.diameter))
