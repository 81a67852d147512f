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
from clippedgossip.report.claims import UNDEFINED, check, ratio
from clippedgossip.report.terminal import claims_table, show
from tests.report.pages import CLAIMS, Outline

VERDICTS = ["holds", "does not hold", "not run", "undecided", "by construction"]


def test_claims_say_in_words_what_holds() -> None:
    assert CLAIMS.tally == "1 holds, 1 does not hold, 1 undecided, 1 by construction, 1 not run"
    text = claims_table(CLAIMS).plain
    assert max(map(len, text.splitlines())) <= 80
    words = Outline(CLAIMS.to_html()).text
    assert "The caption." in words
    for verdict in VERDICTS:
        assert verdict in text
        assert verdict in words
    assert [row["verdict"] for row in CLAIMS.to_json()] == VERDICTS
    json.dumps(CLAIMS.to_json(), allow_nan=False)


def test_claims_by_construction_are_apart() -> None:
    built = Claim(text="structure", verdict="by construction")
    assert Claims([built, Claim(text="measured")]).claims[-1] == built


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
    ("numbers", "verdict", "shown"),
    [
        ([0.50, 0.51], "undecided", "50.5 ± 6.4 %"),
        ([0.505, 0.506], "holds", "50.6 ± 0.6 %"),
        ([0.60, 0.61], "does not hold", "60.5 ± 6.4 %"),
        ([0.60, 0.66], "undecided", "63.0 ± 38.1 %"),
        ([0.50], "undecided", "50.0 %"),
        (0.50, "holds", "50.0 %"),
        (0.60, "does not hold", "60.0 %"),
        ([math.nan], "not run", "–"),
        ([math.inf, math.inf], "does not hold", "∞ %"),
        ([math.inf, 0.5], "undecided", "∞ %"),
    ],
)
def test_a_claim_goes_by_its_interval(numbers: list[float] | float, verdict: str, shown: str) -> None:
    claim = check("half", numbers, "47 to 53.1 %", source="the caption")
    assert claim.verdict == verdict
    assert claim.seen == shown
    assert claim.source == "the caption"
    assert claim.note.startswith("must be 47 to 53.1 %")
    assert claim.note.endswith("seeds diverged") == (shown == "∞ %")


def test_what_is_built_so_cannot_hold_but_can_fail() -> None:
    assert check("γ", 0.0154, "0.015 to 0.016", construction=True).verdict == "by construction"
    assert check("γ", 0.0254, "0.015 to 0.016", construction=True).verdict == "does not hold"


@pytest.mark.parametrize(
    ("points", "verdict", "shown"),
    [
        (-0.001, "holds", "+0.0"),
        (-0.03, "holds", "-0.03"),
        (-2.03, "does not hold", "-2.03"),
        (-2.0004, "does not hold", "-2.0004"),
        (-1.96, "holds", "-2.0"),
        (1.0, "holds", "+1.0"),
    ],
)
def test_a_number_never_denies_its_verdict(points: float, verdict: str, shown: str) -> None:
    claim = check("close", points / 100, "-2 to 2 points")
    assert (claim.ours, claim.verdict) == (shown, verdict)


def test_an_interval_never_denies_its_verdict() -> None:
    claim = check("close", [0.01, 0.0109], "at least 0.5 points")  # 1.045 ± 0.5718: from 0.4732
    assert (claim.verdict, claim.seen) == ("undecided", "+1.0 ± 0.6 points")
    claim = check("close", [0.0100, 0.0109], "at least 0.4735 points")
    assert claim.verdict == "undecided"
    mean, margin = (float(word.strip("+")) for word in claim.seen.split()[::2][:2])
    assert mean - margin < 0.4735


def test_zero_has_no_minus() -> None:
    claim = check("the same", [-2e-5, 1e-5], "at least -1 point")
    assert claim.ours == "+0.0"
    assert claim.note == "must be at least -1 point"
    assert check("near", 0.0, "-1 to 1 points", note="all").note == "all; must be -1 to 1 points"


def test_claims_are_judged_with_the_runs_that_diverged() -> None:
    distances = np.array([20.0, math.inf, math.inf, math.nan])
    apart = check("they stay apart", ratio(distances, np.ones(4)), "at least 10 ×")
    assert (apart.verdict, apart.seen) == ("holds", "∞ ×")
    assert apart.note.endswith("3 of 4 seeds; 2 of 3 seeds diverged")
    close = check("they come close", ratio(distances, np.ones(4)), "at most 10 ×")
    assert close.verdict == "does not hold"
    mixed = check("they come close", np.array([2.0, math.inf]), "at most 10 ×")
    assert mixed.verdict == "undecided"
    for must in ("at least 10 ×", "at most 10 ×"):
        both = check("no ratio", ratio(distances, distances), must)
        assert (both.verdict, both.seen) == ("does not hold", "undefined")


@pytest.mark.parametrize("number", [0.5, 5.0, 50.0, math.inf, UNDEFINED])
@pytest.mark.parametrize("must", ["at least 10 ×", "at most 10 ×", "1 to 10 ×"])
@pytest.mark.parametrize("missing", [0, 4])
def test_one_seed_decides_nothing(number: float, must: str, missing: int) -> None:
    claim = check("far apart", np.array([number] + [math.nan] * missing), must)
    assert claim.verdict == "undecided"
