"""Every rule by name. A new rule is one file and one line here; the contract tests then run on it."""

from typing import Any

from clippedgossip.errors import RuleError
from clippedgossip.named import make
from clippedgossip.rules.balance import Balance
from clippedgossip.rules.base import Rule
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
from clippedgossip.rules.trimmed_mean import TrimmedMean, WeightedTrimmedMean
from clippedgossip.rules.trimmed_sum import GTS

RULES: dict[str, type[Rule]] = {
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


def make_rule(name: str, **parameters: Any) -> Rule:
    """A rule from its name and parameters; nothing mistyped is let through."""
    return make("rule", RULES, name, parameters, RuleError)
