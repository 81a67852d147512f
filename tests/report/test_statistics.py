"""Means and intervals over seeds."""

import math

from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from clippedgossip.report import (
    estimate,
    over_seeds,
)
from clippedgossip.report.statistics import POSITIVE, SHARE
from tests.rounding import near


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_the_interval_is_students(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert found.low is not None
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=stats.tmean(values), scale=stats.sem(values) or 1e-300
    )
    assert found.low == near(low, roundings=1e4)
    assert found.high == near(high, roundings=1e4)


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    one = estimate([0.964, None, math.nan])
    assert one is not None
    assert (one.low, one.text(scale=100)) == (None, "96.4")
    assert estimate([]) is None
    assert estimate([None]) is None


def test_a_seed_that_stopped_early_counts_while_it_lasts() -> None:
    line = over_seeds("gossip", [{0: 1.0, 5: 3.0}, {0: 2.0}])
    assert (list(line.x), list(line.y)) == ([0, 5], [1.5, 3.0])
    assert line.low is not None
    assert line.low[0] is not None
    assert line.low[0] < 1.5
    assert line.low[1] == 3.0
    assert over_seeds("gossip", [{0: 1.0}]).low is None


def test_a_seed_that_diverged_makes_no_mean_look_better() -> None:
    found = estimate([1.0, 2.0, math.inf, math.nan])
    assert found is not None
    assert (found.mean, found.count, found.diverged) == (math.inf, 3, 1)
    assert found.text(scale=100) == "1 of 3 diverged"
    line = over_seeds("gossip", [{0: 1.0, 5: 2.0, 9: 3.0}, {0: 3.0, 5: math.inf}])
    assert list(line.y) == [2.0, None, None]


def test_an_interval_stays_within_what_is_possible() -> None:
    distance = estimate([0.001, 0.002, 0.03], POSITIVE)
    assert distance is not None
    assert distance.low == 0.0
    assert distance.margin == near((distance.high or 0) - distance.mean)
    accuracy = estimate([1.0, 0.9, 1.0], SHARE)
    assert accuracy is not None
    assert accuracy.high == 1.0
    line = over_seeds("gossip", [{0: 0.001}, {0: 0.03}])
    assert line.low == [0.0]
