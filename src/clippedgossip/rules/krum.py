from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, ToldFaulty, whole
from clippedgossip.rules.bound import Bound, Seen, Unbounded, around_own, too_many
from clippedgossip.rules.sorting import nearest, uniform_over
from clippedgossip.theory import krum_caveat


@dataclass(frozen=True)
class Krum(ToldFaulty, LinearRule):
    """Of own and received, the model with the least sum of squared distances to its n−f−2 nearest others.

    Needs: a bound f on the number of Byzantine neighbours; its theorem wants n > 2f + 2.
    Fails: without any attack, where nodes have different data: it copies one model and averages nothing.
    Mimic makes it copy the same one each round.
    Cost: O(k²d).
    Origin: Blanchard, El Mhamdi, Guerraoui and Stainer, 2017, arXiv:1703.02757.
    """

    others: ClassVar[int] = 2

    def caveat(self, neighbors: int) -> str | None:
        return krum_caveat(self.faulty, neighbors + 1, type(self).__name__)

    def coefficients(self, near: Neighborhood) -> Tensor:
        scores = self.scores(near, near.closed_present.sum(1))
        best = scores.argmin(1, keepdim=True)  # ties go to the first
        return torch.zeros_like(scores).scatter_(1, best, 1.0)

    def scores(self, near: Neighborhood, n: Tensor) -> Tensor:
        """(b, k+1) Σ of the n−f−2 smallest squared distances to others; ∞ for empty slots."""
        here = near.closed_present
        ordered = torch.where(here[:, None], near.pairs, torch.inf).sort(2).values  # to itself 0, the first
        counted = torch.arange(here.shape[1], device=here.device) < (n - self.faulty - 1)[:, None]
        sums = torch.where(counted[:, None], ordered, 0.0).sum(2)
        return torch.where(here, sums, torch.inf)

    def bound(self, seen: Seen) -> Bound:
        """Of the n−f−2 models nearest to a Byzantine one, n−2f−1 are regular; a regular model's score is at
        most (n−f−2)·diameter². So the chosen one is within √(n−f−2) diameters of a regular one."""
        counted = seen.count - self.faulty - 2
        if seen.faulty > self.faulty or counted < self.faulty:
            return too_many(seen, min(self.faulty, (seen.count - 2) // 2))
        return around_own(seen, (1 + counted**0.5) * seen.diameter)


@dataclass(frozen=True)
class MultiKrum(Krum):
    """The mean of the `select` models with the best Krum scores; n−f of them unless said.

    Needs: a bound f on the number of Byzantine neighbours.
    Fails: without any attack, where nodes have different data: the models that differ most are dropped, and
    with them what they know. Mimic adds to it, and the other side of a bottleneck is dropped too.
    Cost: O(k²d).
    Origin: Blanchard, El Mhamdi, Guerraoui and Stainer, 2017, arXiv:1703.02757.
    """

    select: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.select is not None:
            whole("select", self.select, 1)

    def check(self, neighbors: int) -> None:
        super().check(neighbors)
        if self.select is not None and self.select > neighbors + 1:
            raise RuleError(
                f"select is {self.select}, but a node sees {neighbors + 1} models; select at most that"
            )

    def coefficients(self, near: Neighborhood) -> Tensor:
        n = near.closed_present.sum(1)
        chosen = n - self.faulty if self.select is None else torch.full_like(n, self.select)
        return uniform_over(nearest(self.scores(near, n), chosen))

    def bound(self, seen: Seen) -> Bound:
        """The same, while there are as many regular models as are selected."""
        if self.select is not None and self.select > seen.count - seen.faulty:
            return Unbounded("more models are selected than are regular")
        return super().bound(seen)
