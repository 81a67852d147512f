"""Training and consensus on networks that change, and with messages that come late."""

from dataclasses import fields, replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch

from clippedgossip.attacks import Dissensus, LabelFlipping, Mimic, NoAttack
from clippedgossip.errors import NetworkError, RuleError, RunError
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout, RoundLayouts
from clippedgossip.network import Network
from clippedgossip.network.schedule import survey
from clippedgossip.rules import (
    RULES,
    Adaptive,
    ClippedGossip,
    Gossip,
    Median,
    Oracle,
    Rule,
    TrimmedMean,
    WeightedMedian,
    base,
)
from clippedgossip.runs.config import RunConfig
from clippedgossip.simulate import Setup, State, Training, consensus, train, train_together
from clippedgossip.simulate.consensus import trajectory
from clippedgossip.simulate.setup import kept_bytes, refuse_late
from clippedgossip.step import LearningRate
from clippedgossip.tasks import DataSet
from tests.rounding import assert_near, near
from tests.samples import sample_rule, sample_setup

DRAWN = {"name": "random-neighbours", "neighbours": 3}
CHURN = {"name": "churn", "leave": 0.3, "join": 0.3}


def changing(nodes: int = 8, byzantine: tuple[int, ...] = (2, 5), **more: Any) -> Network:
    return Network(nx.complete_graph(nodes), byzantine=byzantine, **({"schedule": DRAWN} | more))


def everyone(nodes: int) -> Any:
    """Complete, without a list of its links."""
    graph = nx.empty_graph(nodes)
    graph.graph["everyone"] = True
    return graph


def setup(network: Network, rule: Rule | None = None, attack: Any = None, **training: Any) -> Setup:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    inputs = torch.randn(3, 6, generator=generator)[labels] + torch.randn(120, 6, generator=generator)
    data = DataSet.of(inputs, labels, inputs[:60], labels[:60], name="tiny")
    options: dict[str, Any] = {"rounds": 6, "evaluate_every": 2, "evaluate_last": 0}
    chosen = Training(**(options | {"lr": LearningRate(initial=0.2)} | training))
    return sample_setup(data, rule or ClippedGossip(0.5), attack, chosen, network=network, seed=3)


def lines(moments: Any) -> list[str]:
    return [str(moment.record) for moment in moments if moment.record]


@pytest.mark.parametrize("delay", [None, 2, {"edges": 2}, {"nodes": 3}], ids=str)
@pytest.mark.parametrize("schedule", [None, DRAWN, "random-matching", CHURN], ids=str)
def test_gossip_is_the_product_with_the_weights_of_the_round(schedule: Any, delay: Any) -> None:
    """x_i ← W_ii x_i + Σ_j W_ij x_j(t − age), with weight back to self before the first message has come."""
    network = Network(nx.complete_graph(8), schedule=schedule, delay=delay)
    start = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    states, sent = start.numpy(), []
    for round, found in enumerate(trajectory(network, Gossip(), start, rounds=6, seed=9)):
        assert_near(found.numpy(), states)
        sent.append(states)
        now = network.at(round, 9)
        after = now.self_weights()[:, None] * states
        for i, j, weight in zip(
            np.repeat(np.arange(8), now.degrees), now.indices, now.edge_weights(), strict=True
        ):
            age = (
                0
                if network.delay is None
                else int(network.delay.ages(np.array([i]), np.array([j]), round, 9)[0])
            )
            after[i] += weight * (sent[round - age][j] if age <= round else states[i])
        states = after


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_whoever_has_no_neighbour_in_a_round_keeps_its_model(name: str, dtype: torch.dtype) -> None:
    """And the others mix as on a network without it."""
    graph = nx.complete_graph(7)
    graph.add_edge(0, 7)
    phases = [{"rounds": 1, "without": [[0, 7]]}, {"rounds": 1}]
    network = Network(graph, schedule={"name": "phases", "phases": phases})
    models = torch.randn(8, 5, dtype=dtype, generator=torch.Generator().manual_seed(2))
    rule = sample_rule(name)

    def mixed(network: Network, models: torch.Tensor) -> torch.Tensor:
        layout = Layout.of(network)
        chosen = rule
        if rule.needs_losses:
            chosen = rule.with_losses(lambda near: near.messages().double().square().sum(2))
        return chosen.mix(Inbox(layout=layout, models=models, context=Context(round=1, rounds=9, seed=4)))

    found = mixed(network.at(0), models)
    assert (found[7] == models[7]).all()
    assert_near(found[:7], mixed(Network(nx.complete_graph(7)), models[:7]))


@pytest.mark.parametrize("attack", [Dissensus(), LabelFlipping(), NoAttack(), Mimic(warmup=4)], ids=repr)
def test_a_run_goes_on_from_its_checkpoint_to_the_same_records(attack: Any, tmp_path: Any) -> None:
    run = setup(changing(delay={"edges": 2}), attack=attack)
    moments = list(train(run))
    half = next(moment for moment in train(run) if moment.round == 3)
    half.state().save(tmp_path / "state")
    resumed = list(train(run, state=State.load(tmp_path / "state")))
    assert lines(resumed) == lines(moments)[1:]
    first, last = moments[-1].state().tensors, resumed[-1].state().tensors
    assert all(torch.equal(first[name], last[name]) for name in first)
    assert ("memory" in first) == isinstance(attack, Mimic)


def test_runs_in_one_stack_have_the_records_they_have_alone() -> None:
    runs = [
        setup(changing(), attack=Dissensus()),
        setup(changing(schedule=CHURN, delay=1), attack=Dissensus()),
    ]
    together = [list(moments) for moments in zip(*train_together(runs), strict=True)]
    for run, moments in zip(runs, together, strict=True):
        *_, last = train(run)
        assert last.record is not None
        assert moments[-1].record is not None
        assert moments[-1].record.loss == near(last.record.loss, dtype=torch.float32)
        assert moments[-1].record.clipped == last.record.clipped


def test_clipped_messages_are_counted_by_sender() -> None:
    run = setup(changing(), rule=ClippedGossip(1e-9), attack=Dissensus())
    *_, last = train(run)
    assert last.record is not None
    assert last.record.clipped == near(1)  # all of them
    edges = last.record.clipped_edges
    assert edges is not None
    assert sum(share for _, _, share in edges) == near(6 * 3)  # six regular nodes hear three each
    heard = {(j, i) for round in range(6) for i, j in _links(run.network.at(round, 3))}
    assert {(a, b) for a, b, _ in edges} == heard


def _links(network: Network) -> list[tuple[int, int]]:
    """Who hears whom, of the regular nodes."""
    rows = np.repeat(np.arange(network.n), network.degrees).tolist()
    regular = set(network.regular.tolist())
    return [(i, j) for i, j in zip(rows, network.indices.tolist(), strict=True) if i in regular]


def test_an_oracle_radius_is_that_of_the_round_and_a_bound_that_of_all_rounds() -> None:
    network = changing()
    config = {"name": "clipped-gossip", "radius": "adaptive", "delta_max": "byzantine"}
    rule = RunConfig.from_mapping(
        {
            "network": {"name": "complete", "nodes": 8, "byzantine": [2, 5], "schedule": DRAWN},
            "data": "digits",
            "model": "linear",
            "rule": config,
            "attack": "dissensus",
            "training": {"rounds": 40},
            "seed": 3,
        }
    ).build().rule  # fmt: skip
    assert rule == ClippedGossip(Adaptive(delta_max=survey(network, 40, 3).delta_max))
    found = [
        state.error for state in consensus(network, ClippedGossip(Oracle()), torch.eye(8), attack=Dissensus())
    ]
    assert found[-1] < 0.5 * found[0]


@pytest.mark.parametrize("schedule", [DRAWN, {"name": "churn", "leave": 0.2, "join": 0.5}], ids=str)
def test_fixed_shapes_hold_every_round(schedule: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """What a CUDA graph reads: the same memory in each round, and the same messages as without."""
    monkeypatch.setattr(base, "compiled", lambda name, work, dynamic: work)
    network = changing(schedule=schedule, delay={"edges": 2})
    exact = RoundLayouts(network, 3, "cpu")
    fixed = RoundLayouts(network, 3, "cpu", survey(network, 20, 3))
    models = torch.randn(6, 4, generator=torch.Generator().manual_seed(5))
    sent = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(6))
    places = set()
    for round in range(20):
        found = []
        for layouts in (exact, fixed):
            layout = replace(layouts.at(round))
            assert layout.byzantine_senders is not None
            messages = torch.full((len(layout.byzantine_senders), 4), 7.0)
            inbox = Inbox(layout=layout, models=models, extra=messages).with_late(sent)
            found.append(
                torch.cat([rule.mix(inbox) for rule in (ClippedGossip(0.7), Median(), WeightedMedian())])
            )
        assert_near(*found)
        places.add(fixed.at(round).slots.data_ptr())
    assert len(places) == 1


@pytest.mark.parametrize(
    "network",
    [
        changing(),
        Network(nx.star_graph(6), byzantine=[6], schedule=DRAWN),
        Network(nx.lollipop_graph(5, 3), byzantine=[1, 7], schedule=DRAWN, weights="lazy"),
        Network(nx.wheel_graph(9), byzantine=[0], schedule=DRAWN, weights="optimal"),
        Network(nx.complete_graph(8), schedule=DRAWN),
        Network(everyone(40), byzantine=[3, 9], schedule=DRAWN),
    ],
    ids=lambda network: f"{network.n}-{network.weighting}",
)
def test_a_device_draws_what_the_network_of_the_round_says(network: Network) -> None:
    """Random neighbours are drawn on the GPU, for several rounds at once; resuming starts in any round."""
    found = survey(network, 60, 3)
    drawn = RoundLayouts(network, 3, "cpu", found)
    for round in (*range(5), *range(40, 60), 2):
        here = drawn.at(round)
        there = Layout.of(network.at(round, 3), width=found.width, byzantine_links=found.byzantine_links)
        for entry in fields(Layout):
            if isinstance(table := getattr(there, entry.name), torch.Tensor):
                torch.testing.assert_close(getattr(here, entry.name), table, rtol=0, atol=0)


def test_rounds_that_never_connect_or_that_a_rule_cannot_use_are_refused_before_round_one() -> None:
    phases = {
        "name": "phases",
        "phases": [{"rounds": 1, "nodes": [0, 1, 3]}, {"rounds": 2, "nodes": [4, 6, 7]}],
    }
    with pytest.raises(NetworkError, match="do not connect the regular nodes") as caught:
        next(train(setup(changing(schedule=phases), attack=Dissensus())))
    assert len(str(caught.value).splitlines()) == 2
    with pytest.raises(RuleError, match="only 1 neighbour"):
        next(train(setup(changing(schedule="random-matching"), TrimmedMean(trim=1), attack=Dissensus())))


def test_late_messages_take_half_of_the_free_memory_at_most() -> None:
    network = changing(delay=3)
    needed = kept_bytes(network, 10)
    refuse_late(network, 10, 2 * needed)
    with pytest.raises(RunError, match=rf"{2 * needed - 1:,} are free\nlower network.delay"):
        refuse_late(network, 10, 2 * needed - 1)


def test_a_coordinate_rule_takes_the_neighbours_of_the_round() -> None:
    network = Network(nx.complete_graph(6), schedule=DRAWN)
    start = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    _, found = trajectory(network, Median(), start, rounds=1, seed=2)
    now = network.at(0, 2)
    for i in range(6):
        around = [i, *now.indices[now.indptr[i] : now.indptr[i + 1]]]
        expected = start[around].sort(0).values[1:3].mean(0)
        assert_near(found[i], expected)
