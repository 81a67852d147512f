"""Rules and attacks from text: typed by their fields, nothing mistyped let through."""

from collections.abc import Mapping
from dataclasses import MISSING, fields

import pytest

from clippedgossip.attacks import ALIE, ATTACKS, Attack, Dissensus, NonFinite, Tuned
from clippedgossip.attacks.from_table import attack_from
from clippedgossip.errors import AttackError, RuleError
from clippedgossip.rules import (
    NNM,
    RULES,
    Adaptive,
    Bucketing,
    ClippedGossip,
    Krum,
    MultiKrum,
    Oracle,
    Rule,
    TrimmedMean,
)
from clippedgossip.rules.from_table import rule_from, table_of


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("clipped-gossip", {"radius": "0.5"}, ClippedGossip(0.5)),
        ("ClippedGossip", {"radius": 2}, ClippedGossip(2.0)),
        ("clipped_gossip", {"radius": "oracle"}, ClippedGossip(Oracle())),
        ("clipped-gossip", {"radius": "adaptive", "delta_max": "0.2"}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": "adaptive", "radius.delta-max": 0.2}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": {"name": "adaptive", "delta_max": 0.2}}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": {"adaptive": 0.2}}, ClippedGossip(Adaptive(0.2))),
        ("trimmed-mean", {"trim": "1"}, TrimmedMean(trim=1)),
        ("trimmed-mean", {"trim": "0,1,1,0"}, TrimmedMean(trim=(0, 1, 1, 0))),
        ("trimmed-mean", {"trim": [0, 1]}, TrimmedMean(trim=(0, 1))),
        ("multi-krum", {"faulty": 1, "select": "none"}, MultiKrum(faulty=1)),
        ("bucketing", {"rule": "krum", "faulty": "1", "size": "3"}, Bucketing(Krum(faulty=1), size=3)),
        ("nnm", {"rule": "krum", "faulty": 2, "rule.faulty": 1}, NNM(rule=Krum(faulty=1), faulty=2)),
    ],
)
def test_rules(name: str, values: Mapping[str, object], rule: Rule) -> None:
    assert rule_from(name, values) == rule
    table = table_of(rule)
    assert rule_from(str(table.pop("name")), table) == rule


@pytest.mark.parametrize(
    ("name", "values", "attack"),
    [
        ("dissensus", {"epsilon": "0.05"}, Dissensus(epsilon=0.05)),
        ("ALIE", {"z": "none"}, ALIE()),
        ("non-finite", {"value": "inf"}, NonFinite(value=float("inf"))),
        ("tuned", {"attack": "dissensus", "epsilon": 2, "steps": "5"}, Tuned(Dissensus(epsilon=2), steps=5)),
    ],
)
def test_attacks(name: str, values: Mapping[str, object], attack: Attack) -> None:
    assert attack_from(name, values) == attack


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_found_as_it_is_and_as_its_class(name: str) -> None:
    needed = [field.name for field in fields(RULES[name]) if field.default is MISSING]
    values: dict[str, object] = {key: "gossip" if key == "rule" else "0" for key in needed}
    for spelling in (name, RULES[name].__name__):
        assert type(rule_from(spelling, values)) is RULES[name]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_found(name: str) -> None:
    values = {"attack": "ipm"} if name == "tuned" else {}
    assert type(attack_from(name, values)) is ATTACKS[name]


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("trimed-mean", {}, "did you mean 'trimmed-mean'"),
        ("trimmed-mean", {}, "needs a value for trim"),
        ("trimmed-mean", {"trim": "1.5"}, "trim of rule 'trimmed-mean' is '1.5'; give a whole number"),
        ("trimmed-mean", {"trim": True}, "give a whole number"),
        ("trimmed-mean", {"trim": "-1"}, "trim is -1; it must be a whole number, at least 0"),
        ("trimmed-mean", {"trim": 1, "trin": 2}, "did you mean 'trim'"),
        ("clipped-gossip", {"radius": "adaptve"}, "did you mean 'adaptive'.*\n.*or a number"),
        ("clipped-gossip", {"radius": "adaptive"}, "'adaptive' needs a value for delta_max"),
        ("clipped-gossip", {"radius": "adaptive", "delta_mx": 0.2}, "did you mean 'delta_max'"),
        ("clipped-gossip", {"radius": "1", "delta_max": 0.2}, "unknown parameter .* 'delta_max'"),
        ("clipped-gossip", {"radius": "1", "radius.x": 1}, "takes no parameters"),
        ("clipped-gossip", {"radius": "nan"}, "radius is nan"),
        ("mozi", {"loss": "mse"}, "is a function; it can be given from Python only"),
    ],
)
def test_mistakes_in_rules(name: str, values: Mapping[str, object], says: str) -> None:
    with pytest.raises(RuleError, match=says):
        rule_from(name, values)


def test_mistakes_in_attacks() -> None:
    with pytest.raises(AttackError, match="did you mean 'epsilon'"):
        attack_from("dissensus", {"epsilom": 1})
    with pytest.raises(AttackError, match="epsilon of attack 'dissensus' is 'big'; give a number"):
        attack_from("dissensus", {"epsilon": "big"})
