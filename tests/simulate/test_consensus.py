"""Robust consensus: the simulation, and the examples."""

from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from clippedgossip import graphs
from clippedgossip.attacks import Dissensus, Gaussian, LabelFlipping
from clippedgossip.errors import ConfigError, NetworkError, RuleError, RunError
from clippedgossip.network import Network
from clippedgossip.paper.consensus_chains import START
from clippedgossip.rules import ClippedGossip, Gossip, TrimmedMean
from clippedgossip.simulate import consensus
from tests.rounding import assert_near, near

EXAMPLES = Path(__file__).parents[2] / "examples"


def start_of(network: Network, d: int = 3) -> torch.Tensor:
    return torch.randn(network.n, d, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_labels_cannot_be_flipped_where_nothing_is_trained() -> None:
    network = Network(nx.petersen_graph(), byzantine=[3])
    with pytest.raises(RunError, match="the attack needs labels"):
        consensus(network, Gossip(), start_of(network), attack=LabelFlipping())


def test_gossip_alone_finds_the_average() -> None:
    network = Network(nx.petersen_graph())
    states = list(consensus(network, Gossip(), start_of(network), rounds=60))
    assert [state.round for state in states] == list(range(61))
    assert states[-1].error < 1e-12 < states[0].error
    assert_near(states[-1].models[0], start_of(network).mean(0))


def test_error_is_to_the_start_and_spread_to_now() -> None:
    network = Network(graphs.consensus_chain(beta=0.35, delta=0.2))
    start = torch.tensor(START, dtype=torch.float64)[:, None]
    states = list(consensus(network, Gossip(), start, attack=Dissensus(epsilon=1.0), rounds=1))
    assert states[0].error == 10_000
    models = states[1].models
    assert states[1].error == near(float((models - 100).square().mean()))
    assert states[1].consensus_distance == near(float((models - models.mean()).square().mean()))


def test_same_seed_same_trajectory_and_another_seed_another() -> None:
    network = Network(nx.complete_graph(6), byzantine=[2])
    run = [
        [
            state.error
            for state in consensus(network, Gossip(), start_of(network), attack=Gaussian(), seed=seed)
        ]
        for seed in (1, 1, 2)
    ]
    assert run[0] == run[1] != run[2]


def test_float32_stays_float32() -> None:
    network = Network(nx.cycle_graph(5), byzantine=[0])
    *_, last = consensus(network, ClippedGossip(1.0), start_of(network).float(), attack=Dissensus(), rounds=3)
    assert last.models.dtype == torch.float32
    assert len(last.models) == 4


@pytest.mark.parametrize(
    ("run", "kind", "says"),
    [
        (
            lambda: consensus(Network(nx.path_graph(7), byzantine=[3]), Gossip(), torch.zeros(7, 1)),
            NetworkError,
            "2 parts of 3, 3 nodes.*\n.*add edges",
        ),
        (
            lambda: consensus(Network(nx.cycle_graph(4)), TrimmedMean(trim=2), torch.zeros(4, 1)),
            RuleError,
            "trim is 2 per side.*at most 1",
        ),
        (lambda: consensus(Network(nx.cycle_graph(4)), Gossip(), torch.zeros(3, 1)), RunError, "4 nodes"),
        (
            lambda: consensus(Network(nx.cycle_graph(4)), Gossip(), torch.zeros(4, 1, dtype=torch.int64)),
            RunError,
            "floating-point",
        ),
        (
            lambda: consensus(Network(nx.cycle_graph(4)), Gossip(), torch.full((4, 1), torch.nan)),
            RunError,
            "initial has NaN or infinite numbers",
        ),
        (
            lambda: consensus(Network(nx.cycle_graph(4)), Gossip(), np.zeros((4, 1))),  # type: ignore[arg-type]  # the wrong type is what is tested
            ConfigError,
            "initial is",
        ),
        (
            lambda: consensus(Network(nx.cycle_graph(4)), Gossip(), torch.zeros(4, 1), rounds=-1),
            RuleError,
            "rounds is -1; it must be a whole number, at least 0",
        ),
    ],
)
def test_what_cannot_run_is_refused_before_round_one(
    run: Callable[[], object], kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        run()


def test_rule_and_attack_go_by_the_words_of_a_config() -> None:
    network = Network(nx.petersen_graph(), byzantine=[3])
    words = consensus(
        network,
        {"name": "trimmed-mean", "trim": "byzantine"},
        start_of(network),
        attack="dissensus",
        rounds=3,
    )
    objects = consensus(network, TrimmedMean(trim=1), start_of(network), attack=Dissensus(), rounds=3)
    assert [now.error for now in words] == [now.error for now in objects]
    with pytest.raises(ConfigError, match="did you mean 'gossip'"):
        consensus(network, "gosip", start_of(network))
    with pytest.raises(ConfigError, match="rule is an int"):
        consensus(network, 3, start_of(network))  # type: ignore[arg-type]  # the wrong type is what is tested
