"""Means and 95 % confidence intervals over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds and its 95 % interval (Student's t). One seed has no interval.

    Where a seed diverged, its value is infinite. Then the mean is infinite too.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 1
    """Seeds, those that diverged included."""
    diverged: int = 0

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the mean alone."""
        return (self.mean if self.low is None else self.low, self.mean if self.high is None else self.high)

    @property
    def margin(self) -> float | None:
        """Half of the interval, or more where a bound of what is possible cuts one side off."""
        if self.low is None or self.high is None:
            return None
        return max(self.high - self.mean, self.mean - self.low)

    def text(self, *, scale: float = 1.0, digits: int = 1) -> str:
        """`96.4 ± 0.3`, for one seed `96.4`; or `3 of 3 diverged`, with the mean if some did not and it has
        one: `64.3 ± 138.3 (1 of 3 diverged)`."""
        lost = f"{self.diverged} of {self.count} diverged" if self.count > 1 else "diverged"
        if self.diverged and (self.diverged == self.count or not math.isfinite(self.mean)):
            return lost
        margin = "" if self.margin is None else f" ± {self.margin * scale:.{digits}f}"
        return f"{self.mean * scale:.{digits}f}{margin}" + (f" ({lost})" if self.diverged else "")


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a plot, with the band around it where there is one. Gaps are None."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None

    @classmethod
    def of(cls, name: str, x: Sequence[float], points: Sequence[Estimate | None]) -> "Series":
        """Means, with a band if some of them have an interval."""
        means = [None if point is None else point.mean for point in points]
        if not any(point is not None and point.low is not None for point in points):
            return cls(name=name, x=x, y=means)
        bounds = [(None, None) if point is None else point.bounds for point in points]
        low, high = ([bound[side] for bound in bounds] for side in (0, 1))
        return cls(name=name, x=x, y=means, low=low, high=high)


ANY, POSITIVE, SHARE = (-math.inf, math.inf), (0.0, math.inf), (0.0, 1.0)
"""What values can be: anything, distances and losses, accuracies. No interval reaches further."""
Range = tuple[float, float]


def estimate(values: Iterable[float | None], within: Range = ANY) -> Estimate | None:
    """Mean and interval of the values that are there. None if there are none. NaN counts as not there."""
    known = [float(value) for value in values if value is not None and not math.isnan(value)]
    if not known:
        return None
    if diverged := sum(map(math.isinf, known)):
        return Estimate(mean=math.inf, count=len(known), diverged=diverged)
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean=mean)
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    margin = float(stdtrit(len(known) - 1, 0.975)) * deviation / math.sqrt(len(known))
    low, high = max(mean - margin, min(within[0], mean)), min(mean + margin, max(within[1], mean))
    return Estimate(mean=mean, low=low, high=high, count=len(known))


def over_seeds(name: str, seeds: Iterable[Mapping[int, float | None]], within: Range = POSITIVE) -> Series:
    """One line with its band, from {round: value} of each seed.

    A seed that stopped early counts up to there. Where a seed diverged (∞), the line ends.
    """
    seeds = list(seeds)
    rounds = sorted({number for seed in seeds for number in seed})
    diverged = (number for seed in seeds for number, value in seed.items() if value == math.inf)
    end = min(diverged, default=math.inf)
    values = {number: [seed.get(number) for seed in seeds] for number in rounds}
    points = [estimate(values[number], within) if number < end else None for number in rounds]
    return Series.of(name, rounds, points)
