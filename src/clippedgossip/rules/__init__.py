"""Robust rules: `rule(own, received, weights)` on plain tensors, `rule.mix(inbox)` on a whole network.

A new rule is one file and one line in `RULES`; the contract tests then run on it.
"""

from collections.abc import Mapping
from typing import Any

from clippedgossip.decode import Kind, made
from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Context, Inbox, Neighborhood
from clippedgossip.rules.balance import Balance
from clippedgossip.rules.base import CoordinateRule, LinearRule, Rule
from clippedgossip.rules.centered_clipping import CenteredClipping
from clippedgossip.rules.clipped_gossip import Adaptive, ClippedGossip, Fixed, Local, Oracle, Quantile, Radius
from clippedgossip.rules.clipped_sum import CSPlus
from clippedgossip.rules.geometric_median import GeometricMedian
from clippedgossip.rules.gossip import Gossip
from clippedgossip.rules.krum import Krum, MultiKrum
from clippedgossip.rules.mean_around_median import MeaMed
from clippedgossip.rules.median import Median, WeightedMedian
from clippedgossip.rules.minimum_diameter import MDA
from clippedgossip.rules.mozi import Mozi
from clippedgossip.rules.nearest_neighbor_averaging import NNA
from clippedgossip.rules.outlier_scissor import IOS
from clippedgossip.rules.premix import NNM, Bucketing
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
    "Local",
    "MeaMed",
    "Median",
    "Mozi",
    "MultiKrum",
    "Neighborhood",
    "Oracle",
    "Quantile",
    "Radius",
    "Rule",
    "TrimmedMean",
    "WeightedMedian",
    "WeightedTrimmedMean",
    "make_rule",
]

RULES: Mapping[str, type[Rule]] = {
    "gossip": Gossip,
    "clipped-gossip": ClippedGossip,
    "geometric-median": GeometricMedian,
    "trimmed-mean": TrimmedMean,
    "weighted-trimmed-mean": WeightedTrimmedMean,
    "median": Median,
    "weighted-median": WeightedMedian,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "mozi": Mozi,
    "bucketing": Bucketing,
    "cs-plus": CSPlus,
    "gts": GTS,
    "nna": NNA,
    "ios": IOS,
    "balance": Balance,
    "meamed": MeaMed,
    "centered-clipping": CenteredClipping,
    "mda": MDA,
    "nnm": NNM,
}
"""Rules by the names that configs and commands use."""
RADII: Mapping[str, type[Radius]] = {
    "fixed": Fixed,
    "oracle": Oracle,
    "adaptive": Adaptive,
    "local": Local,
    "quantile": Quantile,
}

BOUNDS = ("trim", "faulty", "byzantine_weight", "delta_max")
RULE = Kind(
    word="rule",
    names=RULES,
    base=Rule,
    group="clippedgossip.rules",
    fix="make it a subclass of clippedgossip.rules.Rule, such as LinearRule or CoordinateRule",
    bounds=BOUNDS,
    error=RuleError,
)
RADIUS = Kind(
    word="radius",
    names=RADII,
    base=Radius,
    group="clippedgossip.radii",
    fix="make it a subclass of clippedgossip.rules.Radius",
    number="fixed",
    bounds=BOUNDS,
    error=RuleError,
)


def make_rule(name: str, **parameters: Any) -> Rule:
    """A rule from its name and parameters, as in a config. An unknown name or parameter is an error."""
    rule: Rule = made(RULE, name, parameters)
    return rule
