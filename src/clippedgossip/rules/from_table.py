"""A rule from text or a config's table, and back."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from clippedgossip.decode import Maker
from clippedgossip.errors import RuleError
from clippedgossip.rules.base import Rule
from clippedgossip.rules.radius import Adaptive, Fixed, Oracle, Radius
from clippedgossip.rules.registry import RULES

RADII: Mapping[str, type[Radius]] = {"fixed": Fixed, "oracle": Oracle, "adaptive": Adaptive}


def rule_from(name: str, values: Mapping[str, object]) -> Rule:
    """`rule_from("clipped-gossip", {"radius": "adaptive", "delta_max": "0.2"})`; numbers may be text.

    `{"radius": {"adaptive": 0.2}}` is the same.
    """
    written = {key: _written_out(value) for key, value in values.items()}
    rule: Rule = Maker({Rule: RULES, Radius: RADII}, RuleError).make(Rule, name, written)
    return rule


def table_of(rule: Rule) -> dict[str, Any]:
    """What a config says to get this rule: its name and every parameter but functions."""
    name = next(name for name, kind in RULES.items() if type(rule) is kind)
    values = {field.name: _plain(getattr(rule, field.name)) for field in fields(rule)}
    return {"name": name, **{key: value for key, value in values.items() if value is not None}}


def _written_out(value: object) -> object:
    """{adaptive = 0.2} is short for {name = "adaptive", delta_max = 0.2}."""
    if not isinstance(value, Mapping):
        return value
    if list(value) == ["adaptive"]:
        return {"name": "adaptive", "delta_max": value["adaptive"]}
    return {key: _written_out(inner) for key, inner in value.items()}


def _plain(value: object) -> Any:
    match value:
        case Rule():
            return table_of(value)
        case Fixed():
            return value.value
        case Oracle():
            return "oracle"
        case Adaptive():
            return {"adaptive": value.delta_max}
        case tuple():
            return list(value)
    return None if callable(value) else value
