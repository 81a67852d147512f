"""What the audit says of a schedule."""

from typing import Any

import networkx as nx
import numpy as np
import pytest

from clippedgossip import graphs, theory
from clippedgossip.audit import audit
from clippedgossip.audit.rounds import _expected, _mean, rounds_audit
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import Graph
from clippedgossip.network import Network
from clippedgossip.network.schedule import RandomNeighbours
from tests.rounding import near


@pytest.mark.parametrize("graph", [nx.complete_graph(8), nx.random_regular_graph(4, 10, seed=2)])
def test_the_expectation_of_random_neighbours_is_what_their_rounds_tend_to(graph: Graph) -> None:
    schedule = RandomNeighbours(3)
    network = Network(graph, byzantine=[1, 4], schedule=schedule)
    drawn = _mean(network, 1000, seed=2)  # weights within ±1/4: four standard deviations of their means
    assert _expected(network, schedule) == pytest.approx(drawn, abs=4 * 0.25 / np.sqrt(1000))


def test_the_contraction_of_a_matching_is_that_of_its_formula() -> None:
    """A matched pair is averaged: W is a projection, so E[WᵀW] = E[W], with λ₂ = ½ − 1/(2(n−1))."""
    network = Network(nx.complete_graph(10), schedule="random-matching")
    found = rounds_audit(network, rounds=1000)
    assert found is not None
    # The entries of a mean of 1,000 rounds err by 0.008; a 10 × 10 matrix of them has the norm 2·√10·0.008.
    assert found.p == pytest.approx(1 / 2 + 1 / 18, abs=0.05)
    assert not found.expected
    still = rounds_audit(Network(nx.complete_graph(10)))
    assert still is None


def test_a_bridge_in_every_fourth_round_connects_after_four_rounds() -> None:
    phases = [{"rounds": 3, "without": [[4, 5]]}, {"rounds": 1}]
    network = Network(graphs.dumbbell(clique=5), schedule={"name": "phases", "phases": phases})
    found = rounds_audit(network)
    assert found is not None
    assert (found.rounds, found.connected_after, found.delta_max) == (4, 4, 0)
    assert found.connected_mean == near((4 + 3 + 2 + 1) / 4)
    product = np.linalg.multi_dot([np.asarray(network.at(round).weights) for round in (3, 2, 1, 0)])
    assert found.window_factor is not None
    assert found.window_factor >= np.linalg.svd(product - 1 / 10)[1][0] - 1e-12
    assert "bridge" not in str(audit(network))
    assert "until the links together connect" in str(audit(network))
    never = [{"rounds": 3, "without": [[4, 5]]}]
    cut = Network(graphs.dumbbell(clique=5), schedule={"name": "phases", "phases": never})
    found = rounds_audit(cut)
    assert found is not None
    assert (found.connected_after, found.unconnected_for) == (None, None)
    assert "IMPOSSIBLE\n" in str(audit(cut))


@pytest.mark.parametrize(
    "schedule",
    [
        "random-matching",
        {"name": "churn", "leave": 0.3, "join": 0.3},
        lambda round: [[(0, 1), (2, 3), (4, 5)], [(1, 2)], [(3, 4), (5, 0)], [(0, 3)], []][round % 5],
    ],
)
def test_waits_and_windows_are_those_from_every_round_looked_at(schedule: Any) -> None:
    network = Network(nx.complete_graph(6), schedule=schedule)
    found = rounds_audit(network)
    assert found is not None
    weights = [np.asarray(network.at(round).weights) for round in range(400)]

    def wait(start: int) -> int:
        used, end = nx.empty_graph(6), start
        while not nx.is_connected(used):
            used.add_edges_from(zip(*np.nonzero(weights[end]), strict=True))
            end += 1
        return end - start

    waits = [wait(start) for start in range(300)]
    assert found.connected_after == max(waits)
    assert found.connected_mean == near(np.mean(waits))
    windows = [
        np.linalg.multi_dot([np.eye(6), *reversed(weights[start : start + max(waits)])]) - 1 / 6
        for start in range(300)
    ]
    assert found.window_factor == near(max(np.linalg.norm(window, 2) for window in windows))


@pytest.mark.parametrize(
    "changes", [{"delay": 2}, {"schedule": "random-matching"}, {"delay": 1, "schedule": "random-matching"}]
)
def test_a_network_that_changes_is_guaranteed_nothing(changes: dict[str, Any]) -> None:
    """With two rounds of delay, gossip on this network increases the distance to the mean in some rounds."""
    network = Network(nx.complete_graph(40), byzantine=[0], **changes)
    assert theory.consensus_guarantee(Network(nx.complete_graph(40), byzantine=[0])).holds
    said = audit(network, suggestions=0)
    assert "CONSENSUS IS NOT GUARANTEED" in str(said)
    assert "guaranteed by the theorem" not in str(said)
    assert not said.to_json()["consensus_guaranteed"]
    assert not said.to_json()["training_guaranteed"]


def test_how_many_byzantine_nodes_are_heard_is_hypergeometric() -> None:
    network = Network(nx.complete_graph(9), byzantine=[0, 1, 2], schedule=RandomNeighbours(4))
    rounds, more_than = 2, 2
    found = theory.byzantine_heard(network, neighbours=4, more_than=more_than, rounds=rounds)
    one = 5 / 70  # the three of them and one of five others, of all four of eight
    assert found == near(1 - (1 - one) ** (6 * rounds))
    seen = [
        any((network.at(rounds * run + now).byzantine_neighbours > more_than).any() for now in range(rounds))
        for run in range(400)
    ]
    assert np.mean(seen) == pytest.approx(found, abs=0.1)  # four standard deviations of 400 runs
    assert theory.fewest_neighbours(network, rounds=rounds, risk=1e-9) == 7  # three are less than half of 7
    assert theory.fewest_neighbours(network, rounds=rounds, risk=1.0) == 1


def test_a_network_that_lists_no_links_is_not_diagnosed() -> None:
    graph = nx.empty_graph(3000)
    graph.graph["everyone"] = True
    with pytest.raises(NetworkError, match="lists no links"):
        Network(graph, schedule=RandomNeighbours(4)).audit()


def test_a_node_with_few_neighbours_is_outvoted_by_fewer() -> None:
    graph = nx.complete_graph(8)
    graph.add_edges_from([(8, 0), (8, 1), (8, 2)])  # node 8 always hears 0 and 1, which are Byzantine
    network = Network(graph, byzantine=[0, 1], schedule=RandomNeighbours(5))
    assert theory.outvoted(network, neighbours=5, rounds=1) == 1
    assert theory.fewest_neighbours(network, rounds=1) is None
    found = rounds_audit(network)
    assert found is not None
    assert found.heard is not None
    assert (found.heard.outvoted, found.heard.fewest) == (1, None)
    alone = nx.complete_graph(3)
    alone.add_node(3)
    nobody = Network(alone, schedule=RandomNeighbours(1))
    assert theory.outvoted(nobody, neighbours=1, rounds=5) == 0
    assert "outvoted    0 " in str(nobody.audit())


@pytest.mark.parametrize(
    "said",
    [{"neighbours": 0}, {"neighbours": 2.5}, {"rounds": -5}, {"rounds": float("nan")}, {"share": 0}],
    ids=str,
)
def test_a_probability_of_nonsense_is_refused(said: dict[str, Any]) -> None:
    network = Network(nx.complete_graph(5), byzantine=[0], schedule=RandomNeighbours(2))
    with pytest.raises(NetworkError, match=f"{next(iter(said))} is "):
        theory.outvoted(network, **{"neighbours": 2, "rounds": 3, **said})
    with pytest.raises(NetworkError, match="risk is nan"):
        theory.fewest_neighbours(network, rounds=3, risk=float("nan"))


def test_a_phase_of_a_million_million_rounds_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("clippedgossip.audit.rounds.LONGEST", 100)
    phases = [{"rounds": 10**12, "edges": [[0, 1]]}, {"rounds": 1}]
    network = Network(nx.complete_graph(4), schedule={"name": "phases", "phases": phases})
    found = rounds_audit(network, rounds=10)
    assert found is not None
    assert (found.connected_after, found.unconnected_for) == (None, 100)
    assert found.p == 0  # and no number that is only rounding
    assert "CONSENSUS IS IMPOSSIBLE IN 100 ROUNDS" in str(audit(network))
