"""The yardstick: one suite of networks and attacks for every rule, fixed by a version."""

from clippedgossip.bench.ranking import Ranked, Ranking, rank
from clippedgossip.bench.suite import SUITES, VERSION, Suite

__all__ = ["SUITES", "VERSION", "Ranked", "Ranking", "Suite", "rank"]
