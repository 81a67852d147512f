from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.rules._checks import at_least, fraction
from clippedgossip.rules.base import CoordinateRule, Rule
from clippedgossip.rules.sorting import middle, select, sorted_with_weights

Bound = TypeVar("Bound", int, float)


@dataclass(frozen=True)
class TrimmedMean(CoordinateRule):
    """Per coordinate, the mean without the `trim` largest and smallest of own and received (§ existing robust
    aggregators). Needs a bound on the number of Byzantine neighbours: one, or one for each node."""

    trim: int | tuple[int, ...]

    def __post_init__(self) -> None:
        at_least("trim", min(_as_tuple(self.trim)), 0)

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

    @property
    def steady(self) -> bool:
        return not isinstance(self.trim, tuple)

    def at(self, node: int) -> Rule:
        return replace(self, trim=_of_node(self.trim, node))

    def among(self, rows: slice) -> CoordinateRule:
        return replace(self, trim=self.trim[rows]) if isinstance(self.trim, tuple) else self

    def per_node(self, rows: Tensor) -> Tensor:
        return _of_nodes(self.trim, rows)

    def combine(self, values: list[Tensor], weights: Tensor, rows: Tensor) -> Tensor:
        if isinstance(self.trim, int):
            return _mean(middle(values, self.trim))
        trims = self.per_node(rows)
        for trim in set(trims.tolist()):
            self._check(int(trim), len(values) - 1)
        ordered = torch.stack(select(values, range(len(values))), 1)
        place = torch.arange(len(values), device=rows.device)
        inside = (place >= trims[:, None]) & (place < len(values) - trims[:, None])
        share = inside / inside.sum(1, keepdim=True)
        return (share.to(ordered.dtype)[:, None] @ ordered)[:, 0]


@dataclass(frozen=True)
class WeightedTrimmedMean(CoordinateRule):
    """TM*: per coordinate, the weighted mean without weight `trim` from either end, the boundary value in
    part. Needs a bound on the Byzantine weight δ_i around a node: one, or one for each node."""

    trim: float | tuple[float, ...]
    weighted = True

    def __post_init__(self) -> None:
        for trim in _as_tuple(self.trim):
            fraction("trim", trim, below=0.5 + 1e-12)

    @property
    def steady(self) -> bool:
        return not isinstance(self.trim, tuple)

    def at(self, node: int) -> Rule:
        return replace(self, trim=_of_node(self.trim, node))

    def among(self, rows: slice) -> CoordinateRule:
        return replace(self, trim=self.trim[rows]) if isinstance(self.trim, tuple) else self

    def per_node(self, rows: Tensor) -> Tensor:
        return _of_nodes(self.trim, rows)

    def combine(self, values: list[Tensor], weights: Tensor, rows: Tensor) -> Tensor:
        ordered, mass = sorted_with_weights(values, weights)
        trim = self.per_node(rows).to(mass.dtype).clamp(max=0.5 - 1e-4)[:, None, None]  # ½ is the median
        above = mass.cumsum(1)
        kept = (torch.minimum(above, 1 - trim) - torch.maximum(above - mass, trim)).clamp(min=0)
        return (kept * ordered).sum(1) / kept.sum(1)


def _as_tuple(trim: float | tuple[float, ...]) -> tuple[float, ...]:
    return trim if isinstance(trim, tuple) else (trim,)


def _of_node(trim: Bound | tuple[Bound, ...], node: int) -> Bound:
    if not isinstance(trim, tuple):
        return trim
    if not 0 <= node < len(trim):
        raise RuleError(f"trim gives {len(trim)} values and none for node {node}; give one for each node")
    return trim[node]


def _of_nodes(trim: float | tuple[float, ...], rows: Tensor) -> Tensor:
    """(b,) the trim of each node."""
    if not isinstance(trim, tuple):
        return torch.full(rows.shape, trim, device=rows.device)
    if int(rows.max()) >= len(trim):
        raise RuleError(f"trim gives {len(trim)} values; one for each node, or a single number, is needed")
    return torch.tensor(trim, device=rows.device)[rows]


def _mean(values: list[Tensor]) -> Tensor:
    total = values[0]
    for value in values[1:]:
        total += value
    return total.div_(len(values))
