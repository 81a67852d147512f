from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.rules._checks import at_least, fraction
from clippedgossip.rules.base import CoordinateRule
from clippedgossip.rules.sorting import select, sorted_with_weights


@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """Per coordinate, the mean without the `trim` largest and smallest of own and received (§ existing robust
    aggregators). Needs a bound on the number of Byzantine neighbours: one, or one for each node."""

    trim: int | tuple[int, ...]

    def __post_init__(self) -> None:
        at_least("trim", min(self.trims()), 0)

    def trims(self) -> tuple[int, ...]:
        return self.trim if isinstance(self.trim, tuple) else (self.trim,)

    def check(self, neighbors: int) -> None:
        if isinstance(self.trim, int):
            self._check(self.trim, neighbors)

    @staticmethod
    def _check(trim: int, neighbors: int) -> None:
        if 2 * trim > neighbors:
            raise RuleError(
                f"trim is {trim} per side, but a node has only {neighbors} neighbours and itself; "
                f"trim at most {neighbors // 2}"
            )

    def per_node(self, rows: Tensor) -> Tensor:
        if isinstance(self.trim, int):
            return torch.full_like(rows, self.trim)
        if int(rows.max()) >= len(self.trim):
            raise RuleError(
                f"trim gives {len(self.trim)} values; one for each node, or a single number, is needed"
            )
        return torch.tensor(self.trim, device=rows.device)[rows]

    def combine(self, values: list[Tensor], weights: Tensor, rows: Tensor) -> Tensor:
        if isinstance(self.trim, int):
            kept = select(values, range(self.trim, len(values) - self.trim))
            return _mean(kept)
        trims = self.per_node(rows)
        for trim in set(trims.tolist()):
            self._check(trim, len(values) - 1)
        ordered = torch.stack(select(values, range(len(values))), 1)
        place = torch.arange(len(values), device=rows.device)
        inside = (place >= trims[:, None]) & (place < len(values) - trims[:, None])
        share = inside / inside.sum(1, keepdim=True)
        return (share.to(ordered.dtype)[:, None] @ ordered)[:, 0]


@dataclass(frozen=True)
class WeightedTrimmedMean(CoordinateRule):
    """TM*: per coordinate, the weighted mean without weight `trim` from either end, the boundary value in
    part. Needs a bound on the Byzantine weight δ_i around a node."""

    trim: float
    weighted = True

    def __post_init__(self) -> None:
        fraction("trim", self.trim, below=0.5)

    def combine(self, values: list[Tensor], weights: Tensor, rows: Tensor) -> Tensor:
        ordered, mass = sorted_with_weights(values, weights)
        above = mass.cumsum(1)
        kept = (above.clamp(max=1 - self.trim) - (above - mass).clamp(min=self.trim)).clamp(min=0)
        return (kept * ordered).sum(1) / kept.sum(1)


def _mean(values: list[Tensor]) -> Tensor:
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total.div_(len(values))
