import json
import math
import re
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clippedgossip.attacks import ATTACKS, Dissensus, Tuned
from clippedgossip.errors import ConfigError, NetworkError, RuleError, UserError
from clippedgossip.files import canonical
from clippedgossip.paper.base import load as load_experiment
from clippedgossip.records import run_name
from clippedgossip.rules import (
    RULES,
    Adaptive,
    Bucketing,
    ClippedGossip,
    GeometricMedian,
    Krum,
    Oracle,
    TrimmedMean,
)
from clippedgossip.runs.config import PLACEMENTS, NetworkConfig, RunConfig, load_config, override
from clippedgossip.runs.execute import MEASURES
from clippedgossip.runs.grid import load_sweep
from clippedgossip.settings import DataConfig, RuleConfig, TrainingConfig
from clippedgossip.step import Averaged, HeavyBall
from clippedgossip.tasks import MODELS, SCHEMES
from clippedgossip.tasks.workers import Workers

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN_NAMES: dict[str, str] = json.loads(
    (Path(__file__).parents[1] / "assets" / "run_names.json").read_text(encoding="utf-8")
)
"""The hashes of the examples and of every run of the paper's figures. Version 0.1 gave the same ones, except
where a figure's settings changed since."""
BASE: dict[str, Any] = {
    "network": {"name": "ring", "nodes": 4},
    "data": {"name": "digits", "samples": 100, "test_samples": 20},
    "model": {"name": "linear"},
    "rule": {"name": "gossip"},
}


def config(**changes: Any) -> RunConfig:
    return RunConfig.from_mapping(BASE | changes)


def written(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["dumbbell", "ring"])
def test_examples_build(name: str) -> None:
    loaded = load_config(EXAMPLES / f"{name}.toml")
    setup = loaded.build()
    assert isinstance(setup.rule, ClippedGossip)
    assert len(setup.task.nodes) == len(setup.network.regular)


def test_the_canonical_form_is_read_back_and_stays() -> None:
    first = config(attack="dissensus", rule={"name": "bucketing", "rule": {"name": "krum", "faulty": 1}})
    again = RunConfig.from_mapping(json.loads(json.dumps(first.to_mapping())))
    assert again == first
    assert canonical(again.to_mapping()) == canonical(first.to_mapping())


@pytest.mark.parametrize("name", [name for name in RUN_NAMES if name.endswith(".toml")])
def test_examples_keep_their_run_names(name: str) -> None:
    path = EXAMPLES.parent / name
    configs = load_sweep(path) if "sweep" in name else [load_config(path)]
    assert {run_name(config.to_mapping(), config.label) for config in configs} == {*RUN_NAMES[name].split()}


@pytest.mark.parametrize("name", [name for name in RUN_NAMES if not name.endswith(".toml")])
def test_figures_keep_their_run_names(name: str) -> None:
    figure, scale = name.split()
    experiment: Any = load_experiment(figure)
    cases = experiment.cases(experiment.scales[scale])
    hashes = {run_name(case.config.to_mapping(), "")[1:] for case in cases}
    assert hashes == {*RUN_NAMES[name].split()}


def test_a_default_said_or_not_is_one_run() -> None:
    said = config(rule={"name": "clipped-gossip", "radius": 1}, training={"lr": 0.01})
    assert said.to_mapping() == config(rule="clipped-gossip").to_mapping()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"training": {"lr": 0.02}},
        {"rule": "clipped-gossip"},
        {"network": {"name": "ring", "nodes": 5}},
        {"data": {"name": "digits", "samples": 101}},
        {"attack": "none"},
    ],
)
def test_what_changes_the_result_changes_the_run(change: dict[str, Any]) -> None:
    assert run_name(config(**change).to_mapping(), "") != run_name(config().to_mapping(), "")


def test_where_it_runs_does_not() -> None:
    there = config(device="cpu", data=BASE["data"] | {"root": "/elsewhere"})
    assert there.to_mapping() == config().to_mapping()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ruel": "gossip"}, ["'ruel'", "'rule'"]),
        ({"rule": {"name": "cliped-gossip"}}, ["'cliped-gossip'", "'clipped-gossip'"]),
        ({"rule": {"name": "clipped-gossip", "radious": 1}}, ["'radious'", "'radius'"]),
        ({"rule": {"name": "clipped-gossip", "radius": "wide"}}, ["'wide'", "oracle", "adaptive"]),
        ({"rule": {"name": "clipped-gossip", "radius": -1.0}}, ["-1.0", "at least 0"]),
        ({"rule": {"name": "krum"}}, ["krum", "faulty"]),
        ({"rule": {"name": "mozi", "loss": "x"}}, ["rule.loss", "from Python only"]),
        ({"rule": {"name": "bucketing", "rule": {"name": "krum", "fault": 1}}}, ["'fault'", "'faulty'"]),
        ({"rule": 3}, ["rule is 3", "section"]),
        ({"attack": {"name": "tuned", "attack": "silence"}}, ["Silence", "strength"]),
        ({"attack": {"name": "dissensus", "epsilon": True}}, ["true", "a number"]),
        ({"network": {"name": "rign"}}, ["'rign'", "'ring'"]),
        ({"network": {"name": "ring", "node": 4}}, ["'node'", "'nodes'"]),
        ({"network": {"name": "ring", "nodes": "four"}}, ["'four'", "whole number"]),
        ({"network": {"name": "ring", "nodes": 4.5}}, ["4.5", "whole number"]),
        ({"network": {"name": "ring", "seed": 3}}, ["seed", "random"]),
        ({"network": {"name": "ring", "byzantine": 2}}, ["{random = 2}"]),
        ({"network": {"name": "ring", "byzantine": {"radnom": 2}}}, ["'radnom'", "'random'"]),
        ({"network": {"name": "ring", "weights": "equall"}}, ["'equall'", "'equal'"]),
        ({"network": {"nodes": 3}}, ["name", "file"]),
        ({"data": {"name": "minst"}}, ["'minst'", "'mnist'"]),
        ({"data": {"name": "digits", "partition": "iidd"}}, ["'iidd'", "'iid'"]),
        ({"data": {"name": "digits", "alpha": 0.1}}, ["alpha", "dirichlet"]),
        ({"data": {"name": "digits", "samples": 0}}, ["samples is 0", "at least 1"]),
        ({"model": "mpl"}, ["'mpl'", "'mlp'"]),
        ({"training": {"round": 3}}, ["'round'", "'rounds'"]),
        ({"training": {"rounds": 0}}, ["rounds is 0", "at least 1"]),
        ({"training": {"rounds": 1e3}}, ["1000.0", "whole number"]),
        ({"training": {"lr": "fast"}}, ["training.lr", "'fast'", "a number"]),
        ({"training": {"lr": 0}}, ["0", "above 0"]),
        ({"training": {"lr": math.inf}}, ["inf", "1e+38"]),
        ({"training": {"lr_drops": 5}}, ["lr_drops", "a list"]),
        ({"training": {"lr_drops": [7, -1]}}, ["-1", "count from 0"]),
        ({"training": {"lr_factor": -0.1, "lr_drops": [5]}}, ["-0.1", "above 0"]),
        ({"training": {"evaluate_last": -1}}, ["-1", "at least 0"]),
        ({"training": {"momentum_form": "torch"}}, ["'torch'", "'pytorch'"]),
        ({"training": {"evaluate_nodes": 1}}, ["evaluate_nodes", "true or false"]),
        ({"seed": -1}, ["-1", "at least 0"]),
        ({"seed": "x"}, ["'x'", "whole number"]),
        ({"device": "gpu"}, ["'gpu'", "cuda"]),
    ],
)
def test_whatever_is_wrong_is_said_with_its_fix(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**change)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 2


@pytest.mark.parametrize("section", ["network", "data", "model", "rule"])
def test_a_missing_section_is_named(section: str) -> None:
    with pytest.raises(ConfigError, match=rf"no \[{section}\]"):
        RunConfig.from_mapping({key: value for key, value in BASE.items() if key != section})


TOML = """seed = 1

[network]
name = "ring"

[data]
name = "digits"
[model]
name = "linear"

[rule]
name = "bucketing"
[rule.rule]
name = "clipped-gossip"
radius = 1.0
[training]
"lr" = 0.1
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"lr" = 0.1', "learning_rate = 0.1", 17),
        ('"lr" = 0.1', 'lr = "x"', 17),
        ("radius = 1.0", "radios = 1.0", 15),
        ("radius = 1.0", "radius = -1", 15),
        ('name = "bucketing"', 'name = "buckets"', 12),
        ("[training]", "[trainig]", 16),
        ("seed = 1", "seed = 1.5", 1),
        ('"linear"', '"liner"', 9),
    ],
)
def test_errors_name_the_line(tmp_path: Path, old: str, new: str, line: int) -> None:
    path = written(tmp_path, TOML.replace(old, new))
    with pytest.raises(ConfigError, match=rf"run\.toml, line {line}: "):
        load_config(path)


def test_a_file_that_is_no_toml_says_where(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.toml is not valid: .*line 2"):
        load_config(written(tmp_path, "seed = 1\nrule = gossip\n"))
    with pytest.raises(ConfigError, match="cannot read"):
        load_config(tmp_path / "none.toml")


def test_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, TOML)
    changes = [
        "training.lr=0.5",
        "rule=median",
        "network.byzantine={random = 1}",
        "attack.name=ipm",
        "seed=7",
    ]
    changed = load_config(path, changes)
    assert (changed.training.lr, changed.rule.name, changed.seed) == (0.5, "median", 7)
    assert changed.network.byzantine == {"random": 1}
    assert changed.attack is not None
    assert load_config(path).seed == 1


@pytest.mark.parametrize("bad", ["training.lr", "=3", "training..lr=1", "a b=1"])
def test_an_override_that_cannot_be_read(bad: str) -> None:
    with pytest.raises(ConfigError, match="key=value"):
        override({}, [bad])


@pytest.mark.parametrize("bad", ["training.lr=fast", "trainin.lr=1", "rule.radius=1", "training.seed.x=1"])
def test_errors_name_the_override(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(written(tmp_path, TOML), [bad])
    assert f"override '{bad}'" in str(caught.value)


def test_the_override_that_brought_it_about_is_named_and_no_other(tmp_path: Path) -> None:
    path = written(tmp_path, TOML)
    with pytest.raises(ConfigError, match=r"^override 'training.rounds=0': .*rounds is 0"):
        load_config(path, ["training.batch=2", "training.rounds=0", "training.lr=1"])
    broken = written(tmp_path, TOML.replace("= 0.1", "= -0.1"))
    with pytest.raises(ConfigError, match=r"run\.toml, line \d+: .*learning rate is -0.1"):
        load_config(broken, ["training.batch=9"])


def test_overrides_of_a_section_and_of_its_keys_work_in_any_order(tmp_path: Path) -> None:
    path = written(tmp_path, TOML)
    for changes in (["rule=krum", "rule.faulty=1"], ["rule.faulty=1", "rule=krum"]):
        assert load_config(path, changes).rule.to_mapping() == {"name": "krum", "faulty": 1}


def test_an_override_that_another_one_undoes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rule=median has no effect: another override sets rule as well"):
        load_config(written(tmp_path, TOML), ["rule=median", "rule.name=gossip"])


def test_another_name_drops_the_parameters_of_the_old_one(tmp_path: Path) -> None:
    text = TOML.replace('name = "ring"', 'name = "ring"\nnodes = 9\nweights = "equal"')
    path = written(tmp_path, text)
    changed = load_config(path, ["network.name=complete", "rule.faulty=1", "rule.name=krum"])
    assert changed.network.to_mapping()["weights"] == "equal"  # of every network
    assert changed.network.to_mapping()["nodes"] == 10  # the default: nine were the ring's
    assert changed.rule.to_mapping() == {"name": "krum", "faulty": 1}
    assert load_config(path, ["network.name=ring"]).network.to_mapping()["nodes"] == 9


def test_a_mark_in_front_of_the_text_does_not_matter(tmp_path: Path) -> None:
    assert load_config(written(tmp_path, "\ufeff" + TOML)) == load_config(written(tmp_path, TOML))


@given(st.dictionaries(st.text(max_size=8), st.integers() | st.text(max_size=5) | st.lists(st.integers())))
def test_no_mapping_raises_anything_but_a_user_error(raw: dict[str, Any]) -> None:
    for mapping in (raw, BASE | raw, BASE | {"rule": raw}, BASE | {"network": raw}, BASE | {"training": raw}):
        with suppress(UserError):
            RunConfig.from_mapping(mapping)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_can_be_configured(name: str) -> None:
    needed: dict[str, Any] = {"rule": {"rule": "gossip"}, "faulty": {"faulty": 1}, "trim": {"trim": 0}}
    needed |= {"byzantine_weight": {"byzantine_weight": 0.1}}
    parameters: dict[str, Any] = {}
    for _ in needed:
        try:
            made = config(rule={"name": name, **parameters})
        except ConfigError as error:
            parameters |= next(v for key, v in needed.items() if f"for {key}" in str(error))
        else:
            assert type(made.rule.build(made.network.build())) is RULES[name]
            return
    pytest.fail(f"{name} cannot be configured")


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_can_be_configured(name: str) -> None:
    made = config(attack={"name": name} | ({"attack": "dissensus"} if name == "tuned" else {}))
    assert made.attack is not None
    assert type(made.attack.build()) is ATTACKS[name]


def test_parameters_reach_rules_and_attacks() -> None:
    network = config().network.build()
    bucketing = RuleConfig("bucketing", {"rule": {"name": "geometric-median", "iterations": 3}, "size": 4})
    assert bucketing.build(network) == Bucketing(rule=GeometricMedian(iterations=3), size=4)
    assert RuleConfig("clipped-gossip", {"radius": "oracle"}).build(network) == ClippedGossip(Oracle())
    adaptive = RuleConfig("clipped-gossip", {"radius": {"adaptive": 0.25}})
    assert adaptive.build(network) == ClippedGossip(Adaptive(0.25))
    tuned = config(attack={"name": "tuned", "attack": {"name": "dissensus", "epsilon": 2}, "steps": 3}).attack
    assert tuned is not None
    assert tuned.build() == Tuned(attack=Dissensus(epsilon=2.0), steps=3)


def test_byzantine_bounds_come_from_the_network() -> None:
    pendants = {"pendants": [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0]}
    network = config(network={"name": "ring", "nodes": 5, "byzantine": pendants}).network.build()
    trimmed = RuleConfig("trimmed-mean", {"trim": "byzantine"})
    assert trimmed.build(network) == TrimmedMean(trim=2)  # 3 around node 0, but 4 neighbours bear only 2
    assert RuleConfig("krum", {"faulty": "byzantine"}).build(network) == Krum(faulty=2)
    weighted = RuleConfig("clipped-gossip", {"radius": {"adaptive": "byzantine"}}).build(network)
    assert weighted == ClippedGossip(Adaptive(network.delta_max))
    inner = RuleConfig("bucketing", {"rule": {"name": "trimmed-mean", "trim": "byzantine"}}).build(network)
    assert inner == Bucketing(rule=TrimmedMean(trim=1))
    with pytest.raises(RuleError, match="only 4 neighbours"):
        RuleConfig("trimmed-mean", {"trim": 3}).build(network).check(4)


@pytest.mark.parametrize(
    ("byzantine", "nodes", "lie"),
    [
        ([1, 2], 6, [1, 2]),
        ({"pendants": [0, 3, 3]}, 9, [6, 7, 8]),
        ({"random": 2}, 6, None),
        ({"pendants_random": 2}, 8, [6, 7]),
        ({"worst": 1}, 6, None),
    ],
)
def test_placements(byzantine: Any, nodes: int, lie: list[int] | None) -> None:
    built = config(network={"name": "dumbbell", "clique": 3, "byzantine": byzantine}).network.build()
    assert built.n == nodes
    if lie is not None:
        assert built.byzantine.tolist() == lie
    elif "worst" in byzantine:
        assert built.byzantine.tolist()[0] in (2, 3)  # an end of the bridge
    else:
        assert len(built.byzantine) == 2


def test_the_seed_draws_the_network_unless_the_network_has_its_own() -> None:
    def byzantine(run: int, **own: int) -> list[int]:
        section = {"name": "complete", "nodes": 30, "byzantine": {"random": 5}, **own}
        return list(config(network=section, seed=run).network.build().byzantine)

    assert byzantine(0) == byzantine(0, seed=0) == byzantine(1, seed=0)
    assert byzantine(1) == byzantine(1, seed=1) != byzantine(0)
    drawn = config(network={"name": "erdos-renyi"}, seed=7)
    assert drawn.to_mapping()["network"]["seed"] == 7
    assert drawn == RunConfig.from_mapping(drawn.to_mapping())
    certain = config(network={"name": "dumbbell"}, seed=7)  # no seed changes it, so its runs keep their names
    assert certain.to_mapping()["network"]["seed"] == 0


def test_a_file_is_known_by_its_content(tmp_path: Path) -> None:
    graph = nx.cycle_graph(4)
    nx.write_graphml(graph, tmp_path / "net.graphml")
    text = TOML.replace('name = "ring"', 'file = "net.graphml"')
    first = load_config(written(tmp_path, text))
    assert first.network.build().n == 4
    before = first.to_mapping()
    assert str(tmp_path) not in canonical(before)
    graph.add_edge(0, 2)
    nx.write_graphml(graph, tmp_path / "net.graphml")
    assert first.to_mapping() != before
    (tmp_path / "net.graphml").unlink()
    with pytest.raises(NetworkError, match=r"net\.graphml"):
        first.to_mapping()


def test_both_momentum_forms() -> None:
    assert config(training={"momentum": 0.8}).training.build().optimizer == HeavyBall(0.8)
    paper = config(training={"momentum": 0.8, "momentum_form": "paper"})
    assert paper.training.build().optimizer == Averaged(0.2)


def test_byzantine_nodes_need_an_attack() -> None:
    with pytest.raises(ConfigError, match=r"1 Byzantine node, but there is no \[attack\]"):
        config(network={"name": "ring", "byzantine": [0]}).build()


RING = {"name": "ring", "nodes": 4, "byzantine": {"pendants": [0, 1]}}


def test_who_trains_shares_the_data() -> None:
    quiet = config(network=RING, attack="dissensus").build().task
    assert quiet.nodes.tolist() == [0, 1, 2, 3]
    assert int(quiet.sizes.sum()) == 100
    working = config(network=RING, attack="bit-flipping").build().task
    assert working.nodes.tolist() == [0, 1, 2, 3, 4, 5]
    assert int(working.sizes.sum()) == 100
    fair = config(network=RING, attack="dissensus", data=BASE["data"] | {"byzantine_share": True})
    held = fair.build().task
    assert held.nodes.tolist() == [0, 1, 2, 3]
    assert torch.equal(held.table[:, : held.sizes.min()], working.table[:4, : held.sizes.min()])


def test_copies_take_nothing_away() -> None:
    data = BASE["data"] | {"byzantine_copies": True, "partition": "sorted"}
    task = config(network=RING, attack="label-flipping", data=data).build().task
    assert int(task.sizes[:4].sum()) == 100
    assert torch.equal(task.table[4:], task.table[:2])
    with pytest.raises(ConfigError, match="exclude each other"):
        config(data=data | {"byzantine_share": True})


def test_label_flipping_flips_labels_of_byzantine_nodes_only() -> None:
    setups = [config(network=RING, attack=attack).build() for attack in ("label-flipping", "none")]
    (_, flipped), (_, plain) = (w.draw(w.shares, 0) for w in (Workers([run.task]) for run in setups))
    assert torch.equal(flipped[:4], plain[:4])
    assert torch.equal(flipped[4:], 9 - plain[4:])


def test_the_clique_partition_takes_everyone_along() -> None:
    network = {"name": "hub-dumbbell", "clique": 3, "on_hub": 1}
    setup = config(network=network, attack="none", data={"name": "digits", "partition": "clique"}).build()
    labels = [
        set(setup.task.data.train_y[setup.task.table[row, : setup.task.sizes[row]]].tolist())
        for row in range(len(setup.task.nodes))
    ]
    assert all(low <= {0, 1, 2, 3, 4} for low in labels[:3])
    assert all(high <= {5, 6, 7, 8, 9} for high in labels[3:6])
    with pytest.raises(ConfigError, match="groups"):
        config(data={"name": "digits", "partition": "clique"}).build()


def test_the_seed_decides_and_the_subset_does_not_depend_on_it() -> None:
    one, two = config(seed=1).build(), config(seed=2).build()
    assert one.task.data is two.task.data
    assert not torch.equal(one.task.initial(), two.task.initial())
    assert torch.equal(one.task.initial(), config(seed=1).build().task.initial())


def test_the_document_on_training_names_every_key_record_and_partition() -> None:
    text = (EXAMPLES.parent / "docs" / "training.md").read_text(encoding="utf-8")
    for section, kind in (("data", DataConfig), ("training", TrainingConfig)):
        for entry in (entry for entry in fields(kind) if not entry.metadata):
            assert f"`{section}.{entry.name}`" in text
    for name in (*SCHEMES, *MODELS, *MEASURES, *PLACEMENTS, "clipped_edges"):
        assert re.search(rf"`{{?{name}\b", text), name


def test_optimal_and_robust_weights_from_a_config() -> None:
    for weights, name in (("optimal", "optimal"), ({"robust": 1, "cap": 0.2}, "robust")):
        config = NetworkConfig.from_value({"name": "ring", "nodes": 5, "weights": weights})
        assert config.to_mapping()["weights"] == weights
        assert config.build().weighting == name
    wrong: Any
    for wrong, message in (("optimum", "optimal"), ({"robust": 1}, "value for cap"), ({"rob": 1}, "robust")):
        with pytest.raises(ConfigError, match=message):
            NetworkConfig.from_value({"name": "ring", "weights": wrong})
