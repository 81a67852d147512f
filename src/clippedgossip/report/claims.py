"""Claims of the paper beside our results. A claim that does not hold is shown as such.

Most claims are numbers: a quantity per seed, and the interval in which its mean must lie.
"""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clippedgossip.report.statistics import estimate

ROUNDING = 1e-9
MOST = 12  # decimals: ROUNDING, with room to spare
UNDEFINED = -math.inf
NO_WORSE = "at least -0.3 points"  # less than that means nothing on ten thousand test images
HALF = "47 to 53 %"  # what a model reaches that knows half of the classes
Floats = NDArray[np.float64]
_HEADER = ("Claim", "Paper", "Here", "Verdict")
_TEST = re.compile(r"(at least |at most |\S+ to )(\S+)(?: (%|points?|×))?")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One finding: its text, the paper's number if there is one, ours with its interval, the verdict."""

    text: str
    paper: str = ""
    ours: str = ""
    interval: str = ""
    holds: bool | None = None
    """None if it was not run."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not run"}[self.holds]

    @property
    def seen(self) -> str:
        return " ".join(part for part in (self.ours, self.interval) if part) or "–"


@dataclass(frozen=True)
class Claims:
    """Several claims: a part of a page, a table in a terminal, rows of JSON."""

    claims: Sequence[Claim]
    caption: str = ""

    @property
    def tally(self) -> str:
        """`5 hold, 1 does not hold, 2 not run`."""
        held, failed, unrun = (
            sum(claim.holds is verdict for claim in self.claims) for verdict in (True, False, None)
        )
        words = [
            (held, "holds" if held == 1 else "hold"),
            (failed, "does not hold" if failed == 1 else "do not hold"),
        ]
        return (
            ", ".join(f"{count} {word}" for count, word in [*words, (unrun, "not run")] if count)
            or "no claims"
        )

    def to_html(self) -> str:
        """A table. On a narrow screen each claim becomes a card."""
        head = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in _HEADER)
        rows = "".join(_row(claim) for claim in self.claims)
        caption = html.escape(f"{self.caption} ({self.tally})" if self.caption else self.tally)
        return (
            f'<table class="stack" role="table"><caption>{caption}</caption>'
            f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
            f'<tbody role="rowgroup">{rows}</tbody></table>'
        )

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(claim) | {"verdict": claim.verdict} for claim in self.claims]


def check(
    text: str,
    numbers: Floats | Iterable[float] | float,
    must: str,
    *,
    paper: str = "",
    note: str = "",
    digits: int = 1,
) -> Claim:
    """Holds iff the mean over the seeds that were run is what it must be; not run if there are none.

    It must be `at least 20 points`, `at most 3 ×` or `47 to 53 %`. Where that names percent or points, the
    numbers are fractions. NaN is a seed that was not run, ∞ one that diverged. With a seed that is
    UNDEFINED the claim does not hold.
    """
    low, high, unit = _test(must)
    values = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
    note = f"{note}; must be {must}" if note else f"must be {must}"
    asked, values = len(values), values[~np.isnan(values)]
    if not len(values):
        return Claim(text=text, paper=paper, note=note)
    if len(values) < asked:
        note = f"{note}; {len(values)} of {asked} seeds"
    if diverged := int(np.isinf(values).sum()):
        note = f"{note}; {diverged} of {len(values)} seeds diverged"
    if (values == UNDEFINED).any():
        return Claim(text=text, paper=paper, ours="undefined", holds=False, note=note)
    factor = _factor(unit)
    found = estimate(values.tolist())
    assert found is not None
    mean = found.mean
    digits = _decimals(mean, low, high, factor, digits)
    sign = "+" if unit == "points" else ""
    shown = "∞" if math.isinf(mean) else f"{mean * factor:{sign}z.{digits}f}"
    margin = "" if found.high is None else f"± {(found.high - mean) * factor:.{digits}f} "
    return Claim(
        text=text,
        paper=paper,
        ours=shown,
        interval=f"{margin}{unit}".strip(),
        holds=_within(mean, low, high),
        note=note,
    )


def ratio(above: Floats, below: Floats) -> Floats:
    """The ratio for each seed. If both runs diverged there is none, and no claim about it holds."""
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(above) & np.isinf(below), UNDEFINED, above / below)


def worst(parts: Iterable[Floats]) -> Floats:
    """The smallest, for each seed."""
    smallest: Floats = np.minimum.reduce(list(parts))
    return smallest


def best(parts: Iterable[Floats]) -> Floats:
    """The largest, for each seed."""
    largest: Floats = np.maximum.reduce(list(parts))
    return largest


def _within(mean: float, low: float | None, high: float | None) -> bool:
    return (low is None or mean >= low - ROUNDING) and (high is None or mean <= high + ROUNDING)


def _decimals(mean: float, low: float | None, high: float | None, factor: float, digits: int) -> int:
    """At least `digits`. More if the rounded number would contradict the verdict or look like zero."""
    if math.isinf(mean):
        return digits
    number, holds = mean * factor, _within(mean, low, high)
    first = digits + (round(number, digits) == 0 != round(number, digits + 1))
    agree = (
        places for places in range(first, MOST) if holds == _within(round(number, places) / factor, low, high)
    )
    return next(agree, MOST)


def _test(must: str) -> tuple[float | None, float | None, str]:
    """The bounds, percent as fractions, and the unit."""
    match = _TEST.fullmatch(must)
    assert match is not None, must
    unit = "points" if match[3] == "point" else match[3] or ""
    bound = float(match[2]) / _factor(unit)
    if match[1] == "at least ":
        return bound, None, unit
    return None if match[1] == "at most " else float(match[1][:-4]) / _factor(unit), bound, unit


def _factor(unit: str) -> float:
    return 100.0 if unit in ("%", "points") else 1.0


def _row(claim: Claim) -> str:
    kind = {True: "holds", False: "fails", None: "open"}[claim.holds]
    sign = {True: "✓", False: "✗", None: "○"}[claim.holds]
    note = f'<div class="soft">{html.escape(claim.note)}</div>' if claim.note else ""
    return (
        f'<tr role="row"><td role="cell">{html.escape(claim.text)}{note}</td>'
        f'<td role="cell" data-label="Paper">{html.escape(claim.paper) or "–"}</td>'
        f'<td role="cell" data-label="Here">{html.escape(claim.seen)}</td>'
        f'<td role="cell"><span class="verdict {kind}">'
        f'<span aria-hidden="true">{sign}</span> {claim.verdict}</span></td></tr>'
    )
