from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.rules._checks import enough_neighbors, whole
from clippedgossip.rules.base import CoordinateRule
from clippedgossip.rules.sorting import select


@dataclass(frozen=True)
class MeaMed(CoordinateRule):
    """Per coordinate, the mean of the n−f values nearest the median (Xie et al., generalized Byzantine
    SGD). Needs a bound f on the number of Byzantine neighbours."""

    faulty: int

    def __post_init__(self) -> None:
        whole("faulty", self.faulty, 0)

    def check(self, neighbors: int) -> None:
        enough_neighbors("MeaMed", self.faulty, neighbors, self.faulty, neighbors)

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        n = len(values)
        ordered = torch.stack(select(values, range(n)), 1)
        median = (ordered[:, (n - 1) // 2] + ordered[:, n // 2]) / 2
        size = n - self.faulty
        windows = ordered.unfold(1, size, 1)  # the nearest ones are neighbours in order
        reach = torch.maximum(median[:, None] - windows[..., 0], windows[..., -1] - median[:, None])
        best = reach.argmin(1, keepdim=True)
        return windows.mean(-1).gather(1, best)[:, 0]
