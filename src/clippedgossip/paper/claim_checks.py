"""Claims as numbers: a quantity per seed, and the interval its mean must lie in for the claim to hold."""

import math
from collections.abc import Iterable
from typing import Literal

import numpy as np

from clippedgossip.paper.results import Floats
from clippedgossip.report.claims import Claim
from clippedgossip.report.statistics import estimate

ROUNDING = 1e-9
MOST = 12  # decimals: ROUNDING, with room to spare
TIE = 0.003  # of accuracies: what ten thousand test images cannot tell apart
Unit = Literal["%", "points", "×", ""]


def check(
    text: str,
    numbers: Floats | Iterable[float] | float,
    *,
    low: float | None = None,
    high: float | None = None,
    unit: Unit = "%",
    paper: str = "",
    note: str = "",
    digits: int = 1,
) -> Claim:
    """Holds iff low ≤ mean ≤ high over the seeds that were run; not run if there are none.

    Percent and points are given as fractions: 0.5 is 50 %.
    """
    values = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
    test = _test(low, high, unit)
    note = f"{note}; {test}" if note else test
    asked, values = len(values), values[~np.isnan(values)]
    if not len(values):
        return Claim(text=text, paper=paper, note=note)
    if len(values) < asked:
        note = f"{note}; {len(values)} of {asked} seeds"
    factor = _factor(unit)
    mean = float(values.mean())
    found = estimate(values.tolist()) if len(values) > 1 and math.isfinite(mean) else None
    digits = _decimals(mean, low, high, factor, digits)
    sign = "+" if unit == "points" else ""
    shown = "∞" if math.isinf(mean) else f"{mean * factor:{sign}z.{digits}f}"
    margin = "" if found is None or found.high is None else f"± {(found.high - mean) * factor:.{digits}f} "
    return Claim(
        text=text,
        paper=paper,
        ours=shown,
        interval=f"{margin}{unit}".strip(),
        holds=_within(mean, low, high),
        note=note,
    )


def near(
    text: str, numbers: Floats, target: float, within: float, *, paper: str = "", note: str = ""
) -> Claim:
    """An accuracy that must be near another number."""
    return check(text, numbers, low=target - within, high=target + within, paper=paper, note=note)


def worst(parts: Iterable[Floats]) -> Floats:
    """Seed by seed the smallest."""
    smallest: Floats = np.minimum.reduce(list(parts))
    return smallest


def best(parts: Iterable[Floats]) -> Floats:
    """Seed by seed the largest."""
    largest: Floats = np.maximum.reduce(list(parts))
    return largest


def _within(mean: float, low: float | None, high: float | None) -> bool:
    return (low is None or mean >= low - ROUNDING) and (high is None or mean <= high + ROUNDING)


def _decimals(mean: float, low: float | None, high: float | None, factor: float, digits: int) -> int:
    """As many as asked for, and more where the number shown would deny the verdict or pass for zero."""
    if math.isinf(mean):
        return digits
    number, holds = mean * factor, _within(mean, low, high)
    first = digits + (round(number, digits) == 0 != round(number, digits + 1))
    agree = (
        places for places in range(first, MOST) if holds == _within(round(number, places) / factor, low, high)
    )
    return next(agree, MOST)


def _test(low: float | None, high: float | None, unit: Unit) -> str:
    factor = _factor(unit)
    bounds = [f"{bound * factor:g}" for bound in (low, high) if bound is not None]
    words = "" if len(bounds) == 2 else "at most " if low is None else "at least "
    named = "point" if unit == "points" and bounds in (["1"], ["-1"]) else unit
    return f"must be {words}{' to '.join(bounds)} {named}".strip()


def _factor(unit: Unit) -> float:
    return 100.0 if unit in ("%", "points") else 1.0
