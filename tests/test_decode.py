"""Rules and attacks from text: typed by their fields, nothing mistyped let through."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import pytest

from clippedgossip.attacks import ALIE, ATTACK, ATTACKS, Attack, Dissensus, NonFinite, Tuned, make_attack
from clippedgossip.cli import main
from clippedgossip.decode import KeyProblem, Kind, decode, plain_of, value
from clippedgossip.errors import AttackError, ConfigError, RuleError
from clippedgossip.graphs.generators import NETWORK
from clippedgossip.network.delay import DELAY
from clippedgossip.network.schedule import SCHEDULE
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_mixing import rule_of
from clippedgossip.rules import (
    NNM,
    RADIUS,
    RULE,
    RULES,
    Adaptive,
    Bucketing,
    ClippedGossip,
    Krum,
    Local,
    MultiKrum,
    Oracle,
    Quantile,
    Rule,
    TrimmedMean,
    make_rule,
)
from clippedgossip.runs.config import RunConfig
from clippedgossip.tasks.datasets import DATASET
from clippedgossip.tasks.models import MODEL
from clippedgossip.tasks.objective import LOSS, METRIC
from clippedgossip.tasks.poison import POISON


@pytest.mark.parametrize(
    ("name", "values", "rule"),
    [
        ("clipped-gossip", {"radius": "0.5"}, ClippedGossip(0.5)),
        ("ClippedGossip", {"radius": 2}, ClippedGossip(2.0)),
        ("clipped_gossip", {"radius": "oracle"}, ClippedGossip(Oracle())),
        ("clipped-gossip", {"radius": "adaptive", "delta_max": "0.2"}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": "adaptive", "delta-max": 0.2}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": Adaptive(0.2)}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": {"fixed": 2}}, ClippedGossip(2.0)),
        ("clipped-gossip", {"radius": {"name": "adaptive", "delta_max": 0.2}}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": {"adaptive": 0.2}}, ClippedGossip(Adaptive(0.2))),
        ("clipped-gossip", {"radius": {"local": 1}}, ClippedGossip(Local(1))),
        ("clipped-gossip", {"radius": {"quantile": 0.5}}, ClippedGossip(Quantile(0.5))),
        ("clipped-gossip", {"radius": "local", "faulty": 1}, ClippedGossip(Local(1))),
        ("trimmed-mean", {"trim": "1"}, TrimmedMean(trim=1)),
        ("trimmed-mean", {"trim": "0,1,1,0"}, TrimmedMean(trim=(0, 1, 1, 0))),
        ("trimmed-mean", {"trim": [0, 1]}, TrimmedMean(trim=(0, 1))),
        ("multi-krum", {"faulty": 1, "select": "none"}, MultiKrum(faulty=1)),
        ("bucketing", {"rule": "krum", "faulty": "1", "size": "3"}, Bucketing(Krum(faulty=1), size=3)),
        ("nnm", {"rule": {"name": "krum", "faulty": 1}, "faulty": 2}, NNM(rule=Krum(faulty=1), faulty=2)),
    ],
)
def test_rules(name: str, values: Mapping[str, object], rule: Rule) -> None:
    assert make_rule(name, **values) == rule
    table = plain_of(rule)
    assert make_rule(**table) == rule


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
    assert make_attack(name, **values) == attack


@pytest.mark.parametrize("name", RULES)
def test_every_rule_is_found_as_it_is_and_as_its_class(name: str) -> None:
    needed = [field.name for field in fields(RULES[name]) if field.default is MISSING]
    values: dict[str, object] = {key: "gossip" if key == "rule" else "0" for key in needed}
    for spelling in (name, RULES[name].__name__):
        assert type(make_rule(spelling, **values)) is RULES[name]


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_is_found(name: str) -> None:
    values = {"attack": "ipm"} if name == "tuned" else {}
    assert type(make_attack(name, **values)) is ATTACKS[name]


@pytest.mark.parametrize(
    ("name", "values", "says"),
    [
        ("trimed-mean", {}, "did you mean 'trimmed-mean'"),
        ("trimmed-mean", {}, "needs a value for trim"),
        ("trimmed-mean", {"trim": "1.5"}, "trim is '1.5'; it must be a whole number"),
        ("trimmed-mean", {"trim": True}, "it must be a whole number"),
        ("trimmed-mean", {"trim": "-1"}, "trim is -1; it must be a whole number, at least 0"),
        ("trimmed-mean", {"trim": 1, "trin": 2}, "did you mean 'trim'"),
        ("clipped-gossip", {"radius": "adaptve"}, "did you mean 'adaptive'.*\n.*or a number"),
        ("clipped-gossip", {"radius": {"local": -1}}, "faulty is -1"),
        ("clipped-gossip", {"radius": "adaptive"}, "'adaptive' needs a value for delta_max"),
        ("clipped-gossip", {"radius": "adaptive", "delta_mx": 0.2}, "did you mean 'delta_max'"),
        ("clipped-gossip", {"radius": "1", "delta_max": 0.2}, "unknown parameter .* 'delta_max'"),
        ("clipped-gossip", {"radius": {"oracle": 1}}, "'oracle' takes no parameters"),
        ("clipped-gossip", {"radius": [1]}, r"radius is \[1\]; it must be a number or one of"),
        ("trimmed-mean", {"trim": "byzantine"}, "nobody here knows.*\ngive a number, such as 1"),
        ("clipped-gossip", {"radius": "nan"}, "radius is nan"),
        ("mozi", {"loss": "mse"}, "is a function; it can be given from Python only"),
    ],
)
def test_mistakes_in_rules(name: str, values: Mapping[str, object], says: str) -> None:
    with pytest.raises(RuleError, match=says):
        make_rule(name, **values)


@pytest.mark.parametrize(
    "kind",
    [ATTACK, DATASET, DELAY, LOSS, METRIC, MODEL, NETWORK, POISON, RADIUS, RULE, SCHEDULE],
    ids=lambda kind: kind.word,
)
def test_every_missing_value_is_told_with_what_to_give(kind: Kind) -> None:
    told = []
    for name in kind.names:
        try:
            decode(kind, {"name": name}, ("section",))
        except KeyProblem as problem:
            told.append(str(problem).rstrip())
    assert [text for text in told if text.endswith(":")] == []


def test_mistakes_in_attacks() -> None:
    with pytest.raises(AttackError, match="did you mean 'epsilon'"):
        make_attack("dissensus", epsilom=1)
    with pytest.raises(AttackError, match="epsilon is 'big'; it must be a number"):
        make_attack("dissensus", epsilon="big")


SAME: list[tuple[dict[str, Any], Rule]] = [
    ({"name": "clipped-gossip", "radius": 2}, ClippedGossip(2.0)),
    ({"name": "clipped-gossip", "radius": "2"}, ClippedGossip(2.0)),
    ({"name": "ClippedGossip", "radius": {"adaptive": 0.1}}, ClippedGossip(Adaptive(0.1))),
    (
        {"name": "clipped-gossip", "radius": {"name": "adaptive", "delta_max": 0.1}},
        ClippedGossip(Adaptive(0.1)),
    ),
    ({"name": "clipped-gossip", "radius": "adaptive", "delta_max": 0.1}, ClippedGossip(Adaptive(0.1))),
    ({"name": "trimmed-mean", "trim": 1}, TrimmedMean(1)),
    ({"name": "trimmed-mean", "trim": "1"}, TrimmedMean(1)),
    ({"name": "trimmed-mean", "trim": [1, 0] * 6}, TrimmedMean((1, 0) * 6)),
    ({"name": "bucketing", "rule": {"name": "krum", "faulty": 1}}, Bucketing(Krum(1))),
    ({"name": "bucketing", "rule": "krum", "faulty": 1, "size": 3}, Bucketing(Krum(1), size=3)),
]
RUN = {"network": {"name": "complete", "nodes": 12}, "data": "digits", "model": "linear"}


@pytest.mark.parametrize(("table", "rule"), SAME)
def test_one_table_means_one_rule_everywhere(table: dict[str, Any], rule: Rule, capsys: Any) -> None:
    assert make_rule(**table) == rule
    config = RunConfig.from_mapping({**RUN, "rule": table})
    assert config.rule.build(config.network.build()) == rule
    assert config.rule.to_mapping() == plain_of(rule)
    assert rule_of(Config(name="a", run="r", rule=table)) == rule
    options = [f"--rule-option={key}={said}" for key, said in _options(table)]
    with pytest.raises(SystemExit):
        main(["consensus", "complete", "--nodes=12", f"--rule={table['name']}", *options, "--json"])
    assert json.loads(capsys.readouterr().out)["rule"] == repr(rule)


def test_a_bound_by_the_network_is_for_those_who_know_it(capsys: Any) -> None:
    table = {"name": "trimmed-mean", "trim": "byzantine"}
    network = {"name": "complete", "nodes": 5, "byzantine": [0]}
    config = RunConfig.from_mapping({**RUN, "network": network, "rule": table})
    assert config.rule.build(config.network.build()) == TrimmedMean(1)
    line = (
        "consensus complete --nodes 5 --byzantine 0 --rule trimmed-mean --rule-option trim=byzantine --json"
    )
    with pytest.raises(SystemExit):
        main(line.split())
    assert json.loads(capsys.readouterr().out)["rule"] == repr(TrimmedMean(1))
    with pytest.raises(ConfigError, match=r'^rule.trim is "byzantine", .*\ngive a number, such as 1$'):
        rule_of(Config(name="a", run="r", rule=table))


@pytest.mark.parametrize(
    ("hint", "raw", "found"),
    [
        (list[int], [1, "2"], [1, 2]),
        (Sequence[float | None], [1, None], (1.0, None)),
        (Mapping[str, Sequence[int]], {"a": [1]}, {"a": (1,)}),
        (list[int], [1.5], None),
        (list[int], 1, None),
        (Mapping[str, float], {"a": []}, None),
        (Mapping[str, float], [], None),
    ],
)
def test_entries_of_lists_and_tables_have_their_type(hint: Any, raw: Any, found: Any) -> None:
    if found is None:
        with pytest.raises(KeyProblem, match=r"key is .*; it must be "):
            value(hint, raw, ("key",))
    else:
        assert value(hint, raw, ("key",)) == found


def _options(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, said in table.items():
        if isinstance(said, dict):
            name = said.get("name", next(iter(said)))
            inner = {"delta_max": said["adaptive"]} if "adaptive" in said else said
            yield f"{prefix}{key}", name
            yield from _options({k: v for k, v in inner.items() if k != "name"}, f"{prefix}{key}.")
        elif key != "name" or prefix:
            yield f"{prefix}{key}", ",".join(map(str, said)) if isinstance(said, list) else str(said)
