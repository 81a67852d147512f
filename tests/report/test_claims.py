"""Claims on a page, on a terminal and as JSON."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest

from clippedgossip.report import (
    Claim,
    Claims,
)
from clippedgossip.report.claims import check, ratio
from clippedgossip.report.terminal import claims_table, show
from tests.report.pages import CLAIMS, Outline


def test_claims_say_in_words_what_holds() -> None:
    assert CLAIMS.tally == "1 holds, 1 does not hold, 1 not run"
    text = claims_table(CLAIMS).plain
    assert max(map(len, text.splitlines())) <= 80
    words = Outline(CLAIMS.to_html()).text
    for verdict in ("holds", "does not hold", "not run"):
        assert verdict in text
        assert verdict in words
    assert [row["verdict"] for row in CLAIMS.to_json()] == ["holds", "does not hold", "not run"]
    json.dumps(CLAIMS.to_json(), allow_nan=False)


def test_brackets_in_a_claim_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show(claims_table(Claims([Claim(text="accuracy in [0, 1] and [red]", ours="[1, 2]")])))
    assert "[red]" in capsys.readouterr().out


def test_a_claim_wraps_under_itself_and_keeps_numbers_with_their_units() -> None:
    note = "the worst rule against gossip in all of the plots; must be at least 1 point"
    claim = Claim(
        text="non-IID: GM only reaches 50 %",
        paper="+0.5 points",
        ours="+0.0",
        interval="± 0.1 points",
        note=note,
    )
    many = [replace(claim, text=" ".join("x" * length) + " 50 %") for length in range(9, 40)]
    lines = [line[:31].rstrip() for line in claims_table(Claims([*many, claim])).plain.splitlines()]
    assert not [line for line in lines if line.lstrip().startswith("%")]
    first = next(place for place, line in enumerate(lines) if line.startswith("  the worst"))
    under = lines[first : next(place for place in range(first, len(lines)) if "point" in lines[place]) + 1]
    assert len(under) > 2
    assert all(re.match(r" {2}\S", line) for line in under)
    assert under[-1].endswith("1 point")


@pytest.mark.parametrize(
    ("numbers", "holds", "shown"),
    [
        ([0.52, 0.54], True, "53.0 ± 12.7 %"),
        ([0.60], False, "60.0 %"),
        ([math.nan], None, "–"),
        ([math.inf], False, "∞ %"),
    ],
)
def test_a_claim_is_an_interval_for_a_mean(numbers: list[float], holds: bool | None, shown: str) -> None:
    claim = check("half", numbers, "47 to 53.1 %")
    assert claim.holds is holds
    assert claim.seen == shown
    assert claim.note.startswith("must be 47 to 53.1 %")
    assert claim.note.endswith("1 of 1 seeds diverged") == (math.inf in numbers)


@pytest.mark.parametrize(
    ("points", "holds", "shown"),
    [
        (-0.001, True, "+0.0"),
        (-0.03, True, "-0.03"),
        (-2.03, False, "-2.03"),
        (-2.0004, False, "-2.0004"),
        (-1.96, True, "-2.0"),
        (1.0, True, "+1.0"),
    ],
)
def test_a_number_never_denies_its_verdict(points: float, holds: bool, shown: str) -> None:
    claim = check("close", points / 100, "-2 to 2 points")
    assert (claim.ours, claim.holds) == (shown, holds)


def test_zero_has_no_minus() -> None:
    claim = check("the same", [-2e-5, 1e-5], "at least -1 point")
    assert claim.ours == "+0.0"
    assert claim.note == "must be at least -1 point"
    assert check("near", 0.0, "-1 to 1 points", note="all").note == "all; must be -1 to 1 points"


def test_claims_are_judged_with_the_runs_that_diverged() -> None:
    distances = np.array([1.0, math.inf, math.inf, math.nan])
    apart = check("they stay apart", ratio(distances, np.ones(4)), "at least 10 ×")
    assert (apart.holds, apart.seen) == (True, "∞ ×")
    assert apart.note.endswith("3 of 4 seeds; 2 of 3 seeds diverged")
    close = check("they come close", ratio(distances, np.ones(4)), "at most 10 ×")
    assert close.holds is False
    for must in ("at least 10 ×", "at most 10 ×"):
        both = check("no ratio", ratio(distances, distances), must)
        assert (both.holds, both.seen) == (False, "undefined")
