from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.rules.base import CoordinateRule, ToldFaulty
from clippedgossip.rules.bound import Bound, Seen, too_many
from clippedgossip.rules.sorting import halfway, select


@dataclass(frozen=True)
class MeaMed(ToldFaulty, CoordinateRule):
    """Per coordinate, the mean of the n−f values nearest the median; of two equally far, the smaller.

    Needs: a bound f on the number of Byzantine neighbours.
    Fails: across a bottleneck, where the value from the other side is far from the median; under mimic, which
    pulls the median to the values of one node.
    Cost: O(kd log k).
    Origin: Xie, Koyejo and Gupta, 2018, arXiv:1802.10116.
    """

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        n = len(values)
        ordered = torch.stack(select(values, range(n)), 1)
        median = halfway(ordered[:, (n - 1) // 2], ordered[:, n // 2])
        size = n - self.faulty
        windows = ordered.unfold(1, size, 1)  # the nearest ones are neighbours in order
        below = median[:, None] - ordered[:, : self.faulty]
        above = ordered[:, size:] - median[:, None]
        start = (below > above).sum(1, keepdim=True)  # the lowest goes while the next above is nearer
        return windows.mean(-1, dtype=torch.float64).gather(1, start)[:, 0]

    def bound(self, seen: Seen) -> Bound:
        """The median is between regular values, and n−f of them are no further from it than their range."""
        if seen.faulty > self.faulty or 2 * seen.faulty >= seen.count:
            return too_many(seen, min(self.faulty, (seen.count - 1) // 2))
        return seen.range.wider(seen.range.high - seen.range.low)
