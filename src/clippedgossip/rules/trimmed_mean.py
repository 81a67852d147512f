from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from clippedgossip.errors import RuleError, counted
from clippedgossip.mixing.slots import Layout
from clippedgossip.rules.base import CoordinateRule, fraction, whole
from clippedgossip.rules.bound import Bound, Seen, too_many
from clippedgossip.rules.median import WeightedMedian
from clippedgossip.rules.sorting import before, beyond, mean, middle, rounding, sorted_with_weights

MOST = 0.5 - 1e-6  # of weight from either end: beyond it, what is left is rounding, and TM* is the median


@dataclass(frozen=True)
class Trimmed(CoordinateRule):
    """A rule that drops the same amount from either end: one amount for all nodes, or one for each node
    of the network, by its number. Byzantine nodes have one too, which is not used."""

    trim: Any

    @property
    def trims(self) -> tuple[Any, ...]:
        return self.trim if isinstance(self.trim, tuple) else (self.trim,)

    def at(self, node: int) -> "Trimmed":
        if not isinstance(self.trim, tuple):
            return self
        if not 0 <= node < len(self.trim):
            raise RuleError(
                f"trim gives {len(self.trim)} values and none for node {node}\n"
                "give one for each node by its number, Byzantine nodes included, or a single number"
            )
        return replace(self, trim=self.trim[node])

    def parts(self, layout: Layout) -> Iterator[tuple[CoordinateRule, int, Tensor]]:
        if not isinstance(self.trim, tuple):
            yield from super().parts(layout)
            return
        for count, trim, rows in layout.by_count_and(tuple(self.at(node).trim for node in layout.numbers)):
            yield replace(self, trim=trim), count, rows


@dataclass(frozen=True)
class TrimmedMean(Trimmed):
    """Per coordinate, the mean without the `trim` largest and smallest of own and received (§ existing robust
    aggregators).

    Needs: a bound on the number of Byzantine neighbours: one, or one for each node by its number.
    Fails: on sparse graphs, where too few values are left (2·trim must be below k + 1), and across a
    bottleneck, where the value from the other side is the one trimmed.
    Cost: O(kd log k).
    Origin: Yin, Chen, Kannan and Bartlett, 2018, arXiv:1803.01498.
    """

    trim: int | tuple[int, ...]

    def __post_init__(self) -> None:
        for trim in self.trims:
            whole("trim", trim, 0)

    def check(self, neighbors: int) -> None:
        if not isinstance(self.trim, tuple) and 2 * self.trim > neighbors:
            raise RuleError(
                f"trim is {self.trim} per side, but a node has only {counted(neighbors, 'neighbour')} and "
                f"itself; trim at most {neighbors // 2}"
            )

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        return mean(middle(values, self.trims[0]), weights.dtype)

    def drops(self, size: int) -> int:
        return int(self.trims[0])

    def bound(self, seen: Seen) -> Bound:
        """Between regular values, if as many go from either end as are Byzantine."""
        return seen.range if seen.faulty <= self.trims[0] else too_many(seen, self.trims[0])


@dataclass(frozen=True)
class WeightedTrimmedMean(Trimmed):
    """TM*: per coordinate, the weighted mean without weight `trim` from either end, the boundary value in
    part.

    Needs: a bound on the Byzantine weight δ_i around a node: one, or one for each node by its number.
    Fails: across a bottleneck, as the trimmed mean does, and where δ_i is ½ or more.
    Cost: O(kd log k).
    Origin: He, Karimireddy and Jaggi, 2022, arXiv:2202.01545.
    """

    trim: float | tuple[float, ...]
    weighted = True

    def __post_init__(self) -> None:
        for trim in self.trims:
            fraction("trim", trim, below=0.5 + 1e-12)

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        trim = float(self.trims[0])
        if trim > MOST:
            return WeightedMedian().combine(values, weights)
        ordered, mass = sorted_with_weights(values, weights)
        gone = (trim - before(mass)).clamp(min=0) + (trim - beyond(mass)).clamp(min=0)
        kept = (mass - gone).clamp(min=0)
        # A value kept with no more than the weights' rounding is one that goes: it counts as the next.
        least = torch.minimum(kept.amax(1, keepdim=True) / 2, rounding(weights[:, 1:])[:, :, None])
        survives = kept > least
        low = torch.where(survives, ordered, torch.inf).amin(1, keepdim=True)
        high = torch.where(survives, ordered, -torch.inf).amax(1, keepdim=True)
        found = (kept * ordered.clamp(low, high)).sum(1) / kept.sum(1)
        return found.clamp(low[:, 0], high[:, 0])

    def bound(self, seen: Seen) -> Bound:
        """Between regular values, if as much weight goes from either end as is Byzantine."""
        trim = self.trims[0]
        if trim > MOST:
            return WeightedMedian().bound(seen)
        return too_many(seen, trim, "Byzantine weight") if seen.outweighs(trim) else seen.range
