from dataclasses import dataclass

from torch import Tensor

from clippedgossip.rules.base import CoordinateRule
from clippedgossip.rules.bound import Bound, Seen, too_many
from clippedgossip.rules.sorting import halfway, rounding, select, sorted_with_weights


@dataclass(frozen=True)
class Median(CoordinateRule):
    """Per coordinate, the median of own and received; of an even number, the mean of the middle two.

    Needs: nothing.
    Fails: if the data of the nodes differ much: the median is then far from the mean. It takes nothing from
    across a bottleneck.
    Cost: O(kd log k).
    Origin: Yin, Chen, Kannan and Bartlett, 2018, arXiv:1803.01498.
    """

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        low, high = (len(values) - 1) // 2, len(values) // 2
        middle = select(values, range(low, high + 1))
        return middle[0] if low == high else halfway(middle[0], middle[1])

    def drops(self, size: int) -> int:
        return (size - 1) // 2

    def bound(self, seen: Seen) -> Bound:
        """Between regular values, while those are the majority."""
        return seen.range if 2 * seen.faulty < seen.count else too_many(seen, (seen.count - 1) // 2)


@dataclass(frozen=True)
class WeightedMedian(CoordinateRule):
    """Median*: per coordinate, the value at which the weight below passes ½; the mean of the two values when
    it meets ½ between them.

    Needs: nothing.
    Fails: where a node's own weight is ½ or more: it keeps its model. Else as the median does.
    Cost: O(kd log k).
    Origin: He, Karimireddy and Jaggi, 2022, arXiv:2202.01545.
    """

    weighted = True

    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        ordered, mass = sorted_with_weights(values, weights)
        above = mass.cumsum(1)
        last = len(values) - 1
        slack = rounding(weights[:, 1:])[:, :, None]
        low = (above < 0.5 - slack).sum(1, keepdim=True).clamp(max=last)
        high = (above <= 0.5 + slack).sum(1, keepdim=True).clamp(max=last)
        return halfway(ordered.gather(1, low), ordered.gather(1, high))[:, 0]

    def bound(self, seen: Seen) -> Bound:
        """Between regular values, while those have the larger weight."""
        most = 0.5 - 2 * float(rounding(seen.weights))  # weights that miss ½ by their rounding meet it
        return seen.range if seen.byzantine_weight < most else too_many(seen, most, "Byzantine weight")
