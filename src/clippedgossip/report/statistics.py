"""Means and 95 % confidence intervals over seeds."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds and its 95 % interval (Student's t); one seed has no interval."""

    mean: float
    low: float | None = None
    high: float | None = None
    count: int = 1

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval, or the mean alone."""
        return (
            self.mean if self.low is None else self.low,
            self.mean if self.high is None else self.high,
        )

    def text(self, *, scale: float = 1.0, digits: int = 1, unit: str = "") -> str:
        """`96.4 ± 0.3 %`, or without the ± for one seed."""
        margin = "" if self.high is None else f" ± {(self.high - self.mean) * scale:.{digits}f}"
        return f"{self.mean * scale:.{digits}f}{margin}{unit}"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a plot, with the band around it where there is one. Gaps are None."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None


def estimate(values: Iterable[float | None]) -> Estimate | None:
    """Mean and interval of what is there; None when nothing is."""
    known = [float(value) for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    mean = math.fsum(known) / len(known)
    if len(known) == 1:
        return Estimate(mean=mean)
    from scipy.special import stdtrit

    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in known) / (len(known) - 1))
    margin = float(stdtrit(len(known) - 1, 0.975)) * deviation / math.sqrt(len(known))
    return Estimate(mean=mean, low=mean - margin, high=mean + margin, count=len(known))


def over_seeds(name: str, seeds: Iterable[Mapping[int, float | None]]) -> Series:
    """One line with its band from {round: value} of each seed; one that stopped counts while it lasts."""
    seeds = list(seeds)
    rounds = sorted({number for seed in seeds for number in seed})
    estimates = [estimate(seed.get(number) for seed in seeds) for number in rounds]
    means = [None if point is None else point.mean for point in estimates]
    if not any(point is not None and point.low is not None for point in estimates):
        return Series(name=name, x=rounds, y=means)
    bounds = [(None, None) if point is None else point.bounds for point in estimates]
    return Series(
        name=name, x=rounds, y=means, low=[low for low, _ in bounds], high=[high for _, high in bounds]
    )
