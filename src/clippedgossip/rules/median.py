from dataclasses import dataclass

from torch import Tensor

from clippedgossip.rules.base import CoordinateRule
from clippedgossip.rules.sorting import select, sorted_with_weights


@dataclass(frozen=True)
class Median(CoordinateRule):
    """Per coordinate, the median of own and received; of an even number, the mean of the middle two
    (Yin et al.). Needs nothing."""

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        low, high = (len(values) - 1) // 2, len(values) // 2
        middle = select(values, range(low, high + 1))
        return middle[0] if low == high else (middle[0] + middle[1]).div_(2)


@dataclass(frozen=True)
class WeightedMedian(CoordinateRule):
    """Median*: per coordinate, the value at which the weight below passes ½; the mean of the two values when
    it meets ½ between them. Needs nothing."""

    weighted = True

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        ordered, mass = sorted_with_weights(values, weights)
        above = mass.cumsum(1)
        last = len(values) - 1
        low = (above < 0.5 - 1e-6).sum(1, keepdim=True).clamp(max=last)
        high = (above <= 0.5 + 1e-6).sum(1, keepdim=True).clamp(max=last)
        return ((ordered.gather(1, low) + ordered.gather(1, high)) / 2)[:, 0]
