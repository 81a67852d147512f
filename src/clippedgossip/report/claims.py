"""Claims of the paper beside our results, each with its verdict and where its threshold comes from.

Most claims are numbers: a quantity for each seed, and the bounds in which it must lie. The verdict goes by
the 95 % confidence interval over the seeds.
"""

import html
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from clippedgossip.report.statistics import estimate

Verdict = Literal["holds", "does not hold", "undecided", "by construction", "not run"]
PLURALS: dict[Verdict, str] = {
    "holds": "hold",
    "does not hold": "do not hold",
    "undecided": "undecided",
    "by construction": "by construction",
    "not run": "not run",
}
_SIGNS: dict[Verdict, tuple[str, str]] = {  # of a page: class and sign
    "holds": ("holds", "✓"),
    "does not hold": ("fails", "✗"),
    "undecided": ("open", "?"),
    "by construction": ("holds", "="),
    "not run": ("open", "○"),
}
ROUNDING = 1e-9
MOST = 12  # decimals: ROUNDING, with room to spare
UNDEFINED = -math.inf
NO_WORSE = "at least -0.3 points"
NO_WORSE_SOURCE = "0.3 points mean nothing on ten thousand test images"
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
    verdict: Verdict = "not run"
    """`by construction`: it follows from algebra or from the network. It is checked, but cannot fail."""
    note: str = ""
    source: str = ""
    """Where it is said, and where the threshold comes from."""
    main: bool = False
    """Whether the quick scale must give the same verdict as the paper's."""

    @property
    def seen(self) -> str:
        return " ".join(part for part in (self.ours, self.interval) if part) or "–"


@dataclass(frozen=True)
class Claims:
    """Several claims: a part of a page, a table in a terminal, rows of JSON. By construction: last."""

    claims: Sequence[Claim]
    caption: str = ""

    def __post_init__(self) -> None:
        ordered = sorted(self.claims, key=lambda claim: claim.verdict == "by construction")
        object.__setattr__(self, "claims", ordered)

    def count(self, verdict: Verdict) -> int:
        return Counter(claim.verdict for claim in self.claims)[verdict]

    @property
    def tally(self) -> str:
        """`5 hold, 1 does not hold, 2 undecided`."""
        counts = {verdict: self.count(verdict) for verdict in PLURALS}
        said = [f"{n} {word if n == 1 else PLURALS[word]}" for word, n in counts.items() if n]
        return ", ".join(said) or "no claims"

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
        return [asdict(claim) for claim in self.claims]


def exact(text: str, ours: str, holds: bool, *, source: str, paper: str = "", note: str = "") -> Claim:
    """A claim about something that has no noise."""
    verdict: Verdict = "holds" if holds else "does not hold"
    return Claim(text=text, paper=paper, ours=ours, verdict=verdict, note=note, source=source)


def check(
    text: str,
    numbers: Floats | Iterable[float] | float,
    must: str,
    *,
    source: str = "",
    paper: str = "",
    note: str = "",
    digits: int = 1,
    main: bool = False,
    construction: bool = False,
) -> Claim:
    """Holds if the 95 % interval over the seeds lies within the bounds, does not hold if it lies outside,
    and is undecided otherwise. One seed decides nothing. A plain number has no noise: it decides.

    It must be `at least 20 points`, `at most 3 ×` or `47 to 53 %`. Where that names percent or points, the
    numbers are fractions. NaN is a seed that was not run, ∞ one that diverged. With a seed that is
    UNDEFINED, but not the only one, the claim does not hold.
    """
    low, high, unit = _test(must)
    values = np.atleast_1d(np.asarray(numbers, dtype=np.float64))
    note = f"{note}; must be {must}" if note else f"must be {must}"
    asked, values = len(values), values[~np.isnan(values)]
    if len(values) < asked and len(values):
        note = f"{note}; {len(values)} of {asked} seeds"
    if diverged := int(np.isinf(values).sum()):
        note = f"{note}; {diverged} of {len(values)} seeds diverged"
    claim = Claim(text=text, paper=paper, note=note, source=source, main=main)
    if not len(values):
        return claim
    factor, sure = _factor(unit), isinstance(numbers, float | int)
    alone = len(values) == 1 and not sure
    if (values == UNDEFINED).any():
        return replace(claim, ours="undefined", verdict="undecided" if alone else "does not hold")
    found = estimate(values.tolist())
    assert found is not None
    if diverged:
        verdicts = {_judged(value, 0.0, low, high) for value in values.tolist()}
        verdict: Verdict = "undecided" if alone or len(verdicts) > 1 else verdicts.pop()
        return replace(claim, ours="∞", interval=unit, verdict=verdict)
    margin = None if found.high is None else found.high - found.mean
    reach = margin if margin is not None else 0.0 if sure else math.inf
    verdict = _judged(found.mean, reach, low, high)
    number, spread = found.mean * factor, reach * factor
    first = digits + (round(number, digits) == 0 != round(number, digits + 1))
    agree = (
        places
        for places in range(first, MOST)
        if _judged(round(number, places) / factor, round(spread, places) / factor, low, high) == verdict
    )
    digits = next(agree, MOST)
    shown = "" if margin is None else f"± {spread:.{digits}f} "
    return replace(
        claim,
        ours=f"{number:{'+' if unit == 'points' else ''}z.{digits}f}",
        interval=f"{shown}{unit}".strip(),
        verdict="by construction" if construction and verdict == "holds" else verdict,
    )


def rounds_to(text: str, number: float, paper: str, *, note: str = "") -> Claim:
    """A number of the text that follows from the network: ours must round to it."""
    exact = Decimal(paper)
    half = Decimal(5).scaleb(int(exact.as_tuple().exponent) - 1)
    must, source = f"{exact - half} to {exact + half}", "The number in the text, rounded."
    return check(text, number, must, source=source, paper=paper, note=note, digits=4, construction=True)


def _judged(mean: float, margin: float, low: float | None, high: float | None) -> Verdict:
    """By the interval around the mean."""
    least, most = mean - margin, mean + margin
    below, above = -math.inf if low is None else low, math.inf if high is None else high
    if most < below - ROUNDING or least > above + ROUNDING:
        return "does not hold"
    within = least >= below - ROUNDING and most <= above + ROUNDING
    return "holds" if within and math.isfinite(margin) else "undecided"


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
    kind, sign = _SIGNS[claim.verdict]
    said = [html.escape(note) for note in (claim.note, claim.source) if note]
    notes = "".join(f'<div class="soft">{note}</div>' for note in said)
    return (
        f'<tr role="row"><td role="cell">{html.escape(claim.text)}{notes}</td>'
        f'<td role="cell" data-label="Paper">{html.escape(claim.paper) or "–"}</td>'
        f'<td role="cell" data-label="Here">{html.escape(claim.seen)}</td>'
        f'<td role="cell"><span class="verdict {kind}">'
        f'<span aria-hidden="true">{sign}</span> {claim.verdict}</span></td></tr>'
    )
