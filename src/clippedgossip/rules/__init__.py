"""Robust rules: `rule(own, received, weights)` on plain tensors, `rule.mix(inbox)` on a whole network."""

from clippedgossip.mixing.inbox import Context, Inbox, Neighborhood
from clippedgossip.rules.balance import Balance
from clippedgossip.rules.base import CoordinateRule, LinearRule, Rule
from clippedgossip.rules.bucketing import Bucketing
from clippedgossip.rules.centered_clipping import CenteredClipping
from clippedgossip.rules.clipped_gossip import ClippedGossip
from clippedgossip.rules.clipped_sum import CSPlus
from clippedgossip.rules.geometric_median import GeometricMedian
from clippedgossip.rules.gossip import Gossip
from clippedgossip.rules.krum import Krum, MultiKrum
from clippedgossip.rules.mean_around_median import MeaMed
from clippedgossip.rules.median import Median, WeightedMedian
from clippedgossip.rules.minimum_diameter import MDA
from clippedgossip.rules.mozi import Mozi
from clippedgossip.rules.nearest_neighbor_averaging import NNA
from clippedgossip.rules.nearest_neighbor_mixing import NNM
from clippedgossip.rules.outlier_scissor import IOS
from clippedgossip.rules.radius import Adaptive, Fixed, Oracle, Radius
from clippedgossip.rules.registry import RULES, make_rule
from clippedgossip.rules.trimmed_mean import TrimmedMean, WeightedTrimmedMean
from clippedgossip.rules.trimmed_sum import GTS

__all__ = [
    "GTS",
    "IOS",
    "MDA",
    "NNA",
    "NNM",
    "RULES",
    "Adaptive",
    "Balance",
    "Bucketing",
    "CSPlus",
    "CenteredClipping",
    "ClippedGossip",
    "Context",
    "CoordinateRule",
    "Fixed",
    "GeometricMedian",
    "Gossip",
    "Inbox",
    "Krum",
    "LinearRule",
    "MeaMed",
    "Median",
    "Mozi",
    "MultiKrum",
    "Neighborhood",
    "Oracle",
    "Radius",
    "Rule",
    "TrimmedMean",
    "WeightedMedian",
    "WeightedTrimmedMean",
    "make_rule",
]
