"""A rule from text or a config's table."""

from collections.abc import Mapping

from clippedgossip.errors import RuleError
from clippedgossip.rules.base import Rule
from clippedgossip.rules.radius import Adaptive, Fixed, Oracle, Radius
from clippedgossip.rules.registry import RULES
from clippedgossip.typed import Maker

RADII: Mapping[str, type[Radius]] = {"fixed": Fixed, "oracle": Oracle, "adaptive": Adaptive}


def rule_from(name: str, values: Mapping[str, object]) -> Rule:
    """`rule_from("clipped-gossip", {"radius": "adaptive", "delta_max": "0.2"})`; numbers may be text."""
    rule: Rule = Maker({Rule: RULES, Radius: RADII}, RuleError).make(Rule, name, values)
    return rule
