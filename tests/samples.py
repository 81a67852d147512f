"""One of every rule, for tests that run on all of them: parameters are known by their names."""

from dataclasses import fields
from typing import Any

from torch import Tensor

from clippedgossip.rules import RULES, GeometricMedian, Rule, make_rule


def loss(models: Tensor) -> Tensor:
    """Any function of the models: here, how far they are from a point that turns with no basis."""
    return models.double().square().sum(-1)


BY_NAME: dict[str, Any] = {
    "faulty": 1,
    "trim": 1,
    "byzantine_weight": 0.12,
    "rule": GeometricMedian(),
    "loss": loss,
}
EXCEPT: dict[str, dict[str, Any]] = {"weighted-trimmed-mean": {"trim": 0.15}}


def sample_rule(name: str) -> Rule:
    """The rule of this name, on nodes with six neighbours or so."""
    asked = {field.name for field in fields(RULES[name])}
    return make_rule(
        name, **{key: value for key, value in BY_NAME.items() if key in asked} | EXCEPT.get(name, {})
    )
