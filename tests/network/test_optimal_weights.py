"""Optimal and robust weights: the contract of all weights, known optima, and bounds that hold."""

from math import cos, pi
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clippedgossip import graphs
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import Graph
from clippedgossip.network import Network, optimal_weights
from clippedgossip.network.optimal_weights import EPSILON, Optimum, Robust, optimum
from tests.rounding import assert_near

SHARE = 2 * EPSILON  # what the barrier method may leave, and as much for the evaluation of γ


def solved(graph: Graph, robust: Robust | None = None) -> Optimum:
    plain = Network(graph)
    return optimum(plain.indptr, plain.indices, robust)


def spread(graph: Graph) -> float:
    """The largest γ of equal weights: 2 λ₂/(λ₂ + λ_n) of the Laplacian, best where edges are all alike."""
    values = np.linalg.eigvalsh(nx.laplacian_matrix(graph).toarray().astype(np.float64))
    weight = min(2 / (values[1] + values[-1]), 1 / max(dict(graph.degree).values()))
    return float(min(weight * values[1], 2 - weight * values[-1]))


@st.composite
def connected_graphs(draw: st.DrawFn) -> Graph:
    n = draw(st.integers(2, 9))
    graph = graphs.random_tree(nodes=n, seed=draw(st.integers(0, 999)))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    graph.add_edges_from(draw(st.lists(pairs, max_size=15)))
    return graph


@given(connected_graphs(), st.sampled_from(["optimal", {"robust": 1, "cap": 0.3}]))
@settings(max_examples=25, deadline=None)
def test_the_assumption_on_weights_holds(graph: Graph, weights: Any) -> None:
    network = Network(graph, weights=weights)
    w = network.weights
    assert isinstance(w, np.ndarray)
    assert ((w > 0) == (nx.to_numpy_array(graph) + np.eye(len(graph)) > 0)).all()
    np.testing.assert_array_equal(w, w.T)
    assert_near(w.sum(1), 1)
    if weights != "optimal":
        assert network.edge_weights().max() <= 0.3


@given(connected_graphs())
@settings(max_examples=25, deadline=None)
def test_no_other_weights_exceed_the_bound(graph: Graph) -> None:
    found = solved(graph)
    assert found.gap <= SHARE
    for other in ("metropolis-hastings", "equal", "lazy"):
        assert Network(graph, weights=other).spectral_gap <= found.bound * (1 + 1e-6)


@pytest.mark.parametrize(
    "graph",
    [
        graphs.complete(nodes=7),
        graphs.ring(nodes=8),
        graphs.ring(nodes=9),
        graphs.star(nodes=6),
        graphs.hypercube(dimension=3),
        graphs.torus(rows=4, columns=4),
        Graph(nx.petersen_graph()),
        Graph(nx.complete_bipartite_graph(3, 4)),
    ],
    ids=["complete", "even ring", "odd ring", "star", "hypercube", "torus", "Petersen", "bipartite"],
)
def test_edges_that_are_all_alike_get_one_weight(graph: Graph) -> None:
    found = solved(graph)
    assert found.gamma == pytest.approx(spread(graph), rel=SHARE)
    assert_near(found.values, np.full_like(found.values, found.values[0]))


def test_a_path_mixes_fastest_with_one_half_on_every_edge() -> None:
    """Boyd, Diaconis, Sun, Xiao 2006: γ = 1 − cos(π/n)."""
    assert solved(graphs.line(nodes=12)).gamma == pytest.approx(1 - cos(pi / 12), rel=SHARE)


def test_symmetric_edges_have_equal_weights() -> None:
    w = Network(graphs.dumbbell(clique=4), weights="optimal").weights
    assert isinstance(w, np.ndarray)
    # The solver's steps take over the roundings of those before them.
    assert w[0, 1] == pytest.approx(w[6, 7], rel=1e-9)
    assert w[0, 3] == pytest.approx(w[4, 7], rel=1e-9)
    assert w[3, 4] > 2 * w[0, 1]  # the bridge is the bottleneck


def test_the_order_of_the_nodes_does_not_matter() -> None:
    graph = graphs.small_world(nodes=14, neighbours=4, seed=3)
    shuffled: Graph = nx.Graph()
    order = np.random.default_rng(0).permutation(14).tolist()
    shuffled.add_nodes_from(order)
    shuffled.add_edges_from(graph.edges)
    one, two = (Network(g, weights="optimal").to_networkx() for g in (graph, shuffled))
    for u, v in one.edges:
        # The solver's steps take over the roundings of those before them.
        assert two.edges[u, v]["weight"] == pytest.approx(one.edges[u, v]["weight"], rel=1e-8)


def test_a_cap_that_does_not_bind_changes_nothing() -> None:
    graph = graphs.dumbbell(clique=4)
    assert solved(graph, Robust(1, 1.0)).gamma == pytest.approx(solved(graph).gamma, rel=SHARE)


def test_robust_weights_bound_delta_wherever_the_byzantine_nodes_sit() -> None:
    graph = graphs.dumbbell(clique=5)
    for pair in ((0, 1), (3, 4), (4, 5)):
        network = Network(graph, byzantine=pair, weights={"robust": 2, "cap": 0.2})
        assert network.delta_max <= 0.2
    found = solved(graph, Robust(2, 0.2))
    assert found.gap <= SHARE
    assert found.gamma < solved(graph).gamma
    each = solved(graph, Robust(1, 0.1))  # no edge above cap/b, which is stricter
    assert found.gamma > 1.05 * each.gamma
    assert found.values.max() > 0.12


@pytest.mark.parametrize("robust", [None, Robust(1, 0.06)])
def test_admm_agrees_with_the_barrier_method(monkeypatch: pytest.MonkeyPatch, robust: Robust | None) -> None:
    graph = graphs.erdos_renyi(nodes=40, probability=0.4, seed=2)
    exact = solved(graph, robust)
    optimal_weights._optimum.cache_clear()
    monkeypatch.setattr(optimal_weights, "EXACT", 0)
    found = solved(graph, robust)
    optimal_weights._optimum.cache_clear()
    assert found.gamma >= (1 - 3e-3) * exact.gamma
    assert exact.gamma <= found.bound * (1 + 1e-6)
    assert found.gap <= (3e-3 if robust is None else 3e-2)
    assert found.values.min() > 0


@pytest.mark.parametrize(
    ("graph", "weights", "message"),
    [
        (nx.empty_graph(3), "optimal", "3 parts"),
        (graphs.line(nodes=4), {"robust": 2, "cap": 0.2}, "only 1 neighbour"),
        (graphs.ring(), {"robust": 1, "cap": 0}, "cap is 0"),
        (graphs.ring(), {"robust": 1, "cap": 1.5}, "to 1"),
        (graphs.ring(), {"robust": 1, "cap": 1e-9}, "from 0.001"),
        (nx.empty_graph(1), {"robust": 1, "cap": 0.2}, "neighbours\nadd edges$"),
        (graphs.ring(), {"robust": 0, "cap": 0.5}, "at least 1"),
        (graphs.ring(), {"robust": 1}, "needs a value for cap"),
        (graphs.ring(), {"robust": 1, "cap": 0.1, "x": 1}, "known: cap, robust"),
        (graphs.ring(nodes=2001), "optimal", "at most 2000"),
        (nx.DiGraph([(0, 1)]), "optimal", "directed"),
    ],
)
def test_what_cannot_be_done_is_said(graph: Graph, weights: Any, message: str) -> None:
    with pytest.raises(NetworkError, match=message) as error:
        Network(graph, weights=weights)
    assert str(error.value).count("\n") <= 1


@pytest.mark.slow
def test_a_semidefinite_solver_finds_no_more() -> None:
    cp: Any = pytest.importorskip("cvxpy")
    rng = np.random.default_rng(0)
    for seed in range(50):
        n = int(rng.integers(5, 61))
        graph = Graph(nx.gnp_random_graph(n, float(rng.uniform(0.1, 0.5)), seed=seed))
        graph.add_edges_from(graphs.random_tree(nodes=n, seed=seed).edges)  # connected for sure
        network = Network(graph)
        w = cp.Variable((n, n), symmetric=True)
        apart = nx.to_numpy_array(graph) + np.eye(n) == 0
        size = cp.sigma_max(w - np.full((n, n), 1 / n))
        problem = cp.Problem(
            cp.Minimize(size), [w >= 0, cp.sum(w, axis=1) == 1, cp.multiply(apart.astype(float), w) == 0]
        )
        problem.solve(solver="SCS", eps=1e-6, max_iters=20_000)
        reference = 1 - float(problem.value)
        found = optimum(network.indptr, network.indices)
        assert found.gamma >= 0.999 * reference
        assert found.bound >= (1 - 1e-4) * reference  # SCS is this exact
