"""Components: those that an audit predicts, and those that a run sees."""

import networkx as nx
import numpy as np
import pytest
import torch

from clippedgossip import graphs
from clippedgossip.audit import audit
from clippedgossip.audit.components import ALL_CUTS, blocked, expected, guaranteed
from clippedgossip.metrics import components, pair_distances
from clippedgossip.mixing.kernels import squared_distances
from clippedgossip.network import Network
from clippedgossip.report.network_drawing import PARTS, network_svg
from tests.rounding import near


def chain(beta: float, delta: float) -> Network:
    return Network(graphs.consensus_chain(beta=beta, delta=delta))


def test_a_bridge_is_lost_where_its_byzantine_neighbours_weigh_as_much() -> None:
    """√(δβ) < β iff δ < β, on the chain ⅓, β, ⅓ with δ at both ends of the middle edge."""
    held, lost = expected(chain(0.25, 0.2)), expected(chain(0.2, 0.25))
    assert [part.tolist() for part in held.parts] == [[0, 1, 2, 3]]
    assert held.lost == ()
    assert [part.tolist() for part in lost.parts] == [[0, 1], [2, 3]]
    assert lost.lost == ((1, 2),)


def test_two_worlds_fall_apart() -> None:
    found = expected(Network(graphs.two_worlds(clique=5)))
    assert [part.tolist() for part in found.groups] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert found.lost == ((4, 5),)


def test_byzantine_cut_nodes_separate() -> None:
    network = Network(nx.path_graph(7), byzantine=[3])
    for found in (expected(network), guaranteed(network)):
        assert {0, 1, 2, 4, 5, 6} == {int(i) for part in found.parts for i in part}
        assert not any({0, 4} <= set(part.tolist()) for part in found.parts)


def test_what_is_guaranteed_meets_the_theorem_and_is_expected() -> None:
    """Two cliques of 40 with one edge, one Byzantine node on one of them."""
    graph = graphs.dumbbell(clique=40)
    graph.add_edge(0, "bad")
    network = Network(graph, byzantine=["bad"])
    sure, likely = guaranteed(network), expected(network)
    assert len(sure.groups[0]) >= 38
    assert not network.audit().consensus.holds
    assert any(set(sure.groups[0].tolist()) <= set(part.tolist()) for part in likely.parts)
    assert not likely.exact


def test_the_cuts_of_a_large_network_find_a_weak_bridge() -> None:
    graph = graphs.dumbbell(clique=ALL_CUTS)
    end = ALL_CUTS - 1
    graph.add_edges_from([(end, "a"), (end, "b"), (end + 1, "a"), (end + 1, "b")])
    found = expected(Network(graph, byzantine=["a", "b"]))
    assert [len(part) for part in found.parts] == [ALL_CUTS, ALL_CUTS]


def test_no_cut_is_blocked_without_byzantine_weight() -> None:
    weights = np.asarray(nx.to_numpy_array(nx.path_graph(5)) / 3)
    assert blocked(weights, np.zeros(5)) is None


def test_the_audit_names_the_components() -> None:
    found = audit(Network(graphs.two_worlds(clique=4)))
    predicted = found.to_json()["predicted_components"]
    assert predicted["expected"]["groups"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert predicted["expected"]["lost_edges"] == [[3, 4]]
    assert "lost bridges: 3–4" in str(found)
    assert "predicted_components" not in audit(Network(nx.cycle_graph(5))).to_json()


def test_each_component_has_a_colour_of_its_own() -> None:
    network = Network(graphs.two_worlds())
    whole, apart = (
        network_svg(network, components=seen) for seen in ((), [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]])
    )
    assert PARTS[1] in apart
    assert PARTS[1] not in whole
    assert "2 components at the end" in apart


def test_models_are_clustered_at_the_largest_gap() -> None:
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(9, 5, generator=generator) * 0.05
    models[3:5] += 4
    models[8] -= 3
    pairs = pair_distances(models)
    seen = components(pairs[:, :-1], size=pairs[:, -1])
    assert seen.parts == [[0, 1, 2, 5, 6, 7], [3, 4], [8]]
    gap = torch.cdist(models[8:], models[[0, 1, 2, 5, 6, 7]]).min()
    assert seen.gap == near(float(gap), dtype=torch.float32)
    assert seen.within + seen.between == near(float(squared_distances(models).mean()), dtype=torch.float32)
    apart = models.double()
    summed = sum(float((apart[part] - apart[part].mean(0)).square().sum()) for part in seen.parts) / 9
    assert seen.within == near(summed, roundings=1, dtype=torch.float32)


@pytest.mark.parametrize("count", [1, 2, 6])
def test_without_a_gap_there_is_one_component(count: int) -> None:
    models = torch.arange(count, dtype=torch.float64)[:, None]
    seen = components(pair_distances(models)[:, :-1])
    assert (seen.parts, seen.gap, seen.between) == ([list(range(count))], None, 0)


def test_models_that_differ_by_little_are_one_component() -> None:
    models = torch.full((4, 3), 10.0)
    models[2:] += 1e-3
    pairs = pair_distances(models)
    assert len(components(pairs[:, :-1], size=pairs[:, -1]).parts) == 1
    assert len(components(pairs[:, :-1], near=1e-4).parts) == 2
