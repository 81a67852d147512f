"""W, W̃, γ, p and δ: the paper's numbers, the assumption on W, and graphs of every size."""

from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from clippedgossip import graphs
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import Graph
from clippedgossip.network import Network, spectrum
from tests.rounding import assert_near, near


def dense(network: Network) -> NDArray[np.float64]:
    assert isinstance(network.weights, np.ndarray)
    return network.weights


def regular(network: Network) -> NDArray[np.float64]:
    assert isinstance(network.regular_weights, np.ndarray)
    return network.regular_weights


def test_the_five_spectral_gaps_of_the_paper() -> None:
    """Up to half of the last digit."""
    for weights in ("equal", "metropolis-hastings"):
        assert Network(graphs.dumbbell(), weights=weights).spectral_gap == pytest.approx(0.015368, abs=5e-7)
    extra = Network(graphs.dumbbell(extra=1), weights="equal", max_degree=11)
    assert extra.spectral_gap == pytest.approx(0.028595, abs=5e-7)
    attacked = Network(graphs.add_pendants(graphs.dumbbell(clique=5), [4, 5]))
    assert attacked.spectral_gap == pytest.approx(0.042634, abs=5e-7)
    torus = Network(graphs.add_pendants(graphs.torus(), [0, 1]))
    assert torus.spectral_gap_full == pytest.approx(0.131121, abs=5e-7)
    small_world = Network(graphs.add_pendants(graphs.small_world(rewire=0), [0, 2]))
    assert small_world.spectral_gap_full == pytest.approx(0.083994, abs=5e-7)


def test_the_gammas_of_the_consensus_chain() -> None:
    betas = (0.58, 0.45, 0.35, 0.267, 0.19, 0.12, 0.08, 0.04, 0.02, 0.01, 0.001)
    gammas = (0.244, 0.223, 0.200, 0.173, 0.140, 0.099, 0.071, 0.038, 0.019, 0.0099, 0.0010)
    for beta, gamma in zip(betas, gammas, strict=True):
        digits = 4 if gamma < 0.01 else 3
        assert round(Network(graphs.consensus_chain(beta=beta, delta=0.05)).spectral_gap, digits) == gamma
    chain = Network(graphs.consensus_chain(beta=0.12, delta=0.4))
    assert chain.delta.tolist() == [0, 0.4, 0.4, 0]
    assert chain.spectral_gap == near(Network(graphs.consensus_chain(beta=0.12, delta=0)).spectral_gap)


def test_the_hub_dumbbell_keeps_its_gap_whatever_the_attackers_weigh() -> None:
    networks = [Network(graphs.hub_dumbbell(on_hub=b)) for b in range(5)]
    assert [network.delta_max for network in networks] == [0, 1 / 16, 1 / 8, 3 / 16, 1 / 4]
    for network in networks:
        assert len(network.regular) == 11
        assert_near(regular(network), regular(networks[0]))
        assert dense(network)[10, 4] == near(1 / 6)


def test_the_two_worlds_look_alike_from_clique_a() -> None:
    network = Network(graphs.two_worlds(clique=4))
    to_b, to_fake = dense(network)[3, 4], dense(network)[3, 8]
    assert to_b == to_fake
    assert set(network.groups) == {"clique A", "clique B"}
    assert network.groups["clique B"].tolist() == [4, 5, 6, 7]


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """A connected graph with some Byzantine nodes and any construction of the weights."""
    n = draw(st.integers(2, 12))
    graph = graphs.random_tree(nodes=n, seed=draw(st.integers(0, 999)))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    graph.add_edges_from(draw(st.lists(pairs, max_size=20)))
    byzantine = draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    return Network(
        graph, byzantine=byzantine, weights=draw(st.sampled_from(["metropolis-hastings", "equal", "lazy"]))
    )


@given(networks())
def test_constructed_weights_satisfy_the_assumption(network: Network) -> None:
    w = dense(network)
    graph = network.to_networkx()
    adjacency = nx.to_numpy_array(graph) + np.eye(network.n)
    assert ((w > 0) == (adjacency > 0)).all()
    assert_near(w.sum(1), 1)
    np.testing.assert_array_equal(w, w.T)
    wt = regular(network)
    assert_near(wt, wt.T)
    assert_near(wt.sum(0), 1)
    assert (wt >= 0).all()
    assert_near(network.delta, w[np.ix_(network.regular, network.byzantine)].sum(1))
    assert 0 <= network.spectral_gap <= 1
    assert 0 <= network.spectral_gap_full <= 1
    assert network.connected == nx.is_connected(graph.subgraph([network.labels[i] for i in network.regular]))
    assert (network.spectral_gap < 1e-9) == (not network.connected)


@given(networks())
def test_gap_is_the_contraction_of_gossip(network: Network) -> None:
    """‖W̃x − x̄‖ ≤ (1−γ)‖x − x̄‖, and no better constant holds."""
    wt = regular(network)
    centred = wt - 1 / len(wt)
    assert np.linalg.norm(centred, 2) == near(1 - network.spectral_gap)


@given(networks())
def test_edges_and_matrix_agree(network: Network) -> None:
    rows = np.repeat(np.arange(network.n), network.degrees)
    np.testing.assert_array_equal(dense(network)[rows, network.indices], network.edge_weights())
    for i in range(network.n):
        neighbours = network.indices[network.indptr[i] : network.indptr[i + 1]]
        assert (np.diff(neighbours) > 0).all()
        assert i not in neighbours


@given(networks())
def test_own_matrix_is_taken_as_it_is(network: Network) -> None:
    for matrix in (dense(network), sparse.csr_array(dense(network))):
        again = Network(network.to_networkx(), weights=matrix)
        assert again.weighting == "own"
        np.testing.assert_array_equal(dense(again), dense(network))
    by_edges = Network(network.to_networkx())
    assert_near(dense(by_edges), dense(network))


def line_with(*weights: float) -> Graph:
    graph = graphs.line(nodes=len(weights) + 1)
    graph.add_weighted_edges_from((i, i + 1, w) for i, w in enumerate(weights))
    return graph


def test_weights_off_the_assumption_are_refused() -> None:
    graph = graphs.line(nodes=3)
    good = np.array([[0.5, 0.5, 0], [0.5, 0.25, 0.25], [0, 0.25, 0.75]])
    Network(graph, weights=good)

    def changed(*entries: tuple[int, int, float]) -> NDArray[np.float64]:
        matrix = good.copy()
        for i, j, value in entries:
            matrix[i, j] = value
        return matrix

    for matrix, message in (
        (changed((0, 1, -0.5), (1, 0, -0.5), (0, 0, 1.5), (1, 1, 1.25)), "negative"),
        (changed((0, 1, 0.4), (0, 0, 0.6)), "symmetric"),
        (changed((0, 0, 0.6)), "sums to"),
        (changed((0, 2, 0.1)), "not neighbours"),
        (changed((1, 2, 0), (2, 1, 0), (1, 1, 0.5), (2, 2, 1)), "are neighbours"),
        (changed((1, 2, 0.5), (2, 1, 0.5), (1, 1, 0), (2, 2, 0.5)), "self-weight"),
        (changed((0, 0, np.nan)), "finite"),
        (good[:2, :2], r"\(3, 3\)"),
    ):
        with pytest.raises(NetworkError, match=message) as caught:
            Network(graph, weights=matrix)
        assert len(str(caught.value).splitlines()) <= 2
    with pytest.raises(NetworkError, match="self-weight"):
        Network(line_with(0.6, 0.6), weights="own")
    with pytest.raises(NetworkError, match="own weights need one on every edge"):
        Network(graph, weights="own")


def test_byzantine_rows_of_an_own_matrix_are_free() -> None:
    matrix = np.array([[0.5, 0.25, 0.25], [0.25, 0.75, 0], [0.9, 0, 0.1]])
    network = Network(graphs.star(nodes=3), byzantine=[2], weights=matrix)
    assert network.delta.tolist() == [0.25, 0]
    assert 0 <= network.spectral_gap_full <= 1


def test_mistakes_are_named() -> None:
    ring = graphs.ring(nodes=5)
    looped: Graph = nx.Graph(ring)
    looped.add_edge(2, 2)
    directed: Graph = nx.DiGraph(ring)
    empty: Graph = nx.Graph()
    cases: list[tuple[Graph, dict[str, Any], str]] = [
        (empty, {}, "empty"),
        (looped, {}, "edge to itself"),
        (directed, {}, "undirected"),
        (ring, {"byzantine": range(5)}, "all 5 nodes are Byzantine"),
        (ring, {"byzantine": [7]}, "unknown node '7'"),
        (ring, {"byzantine": 1}, r"given as 1; give a list of them: \[1\]"),
        (ring, {"weights": "metropolis"}, "did you mean 'metropolis-hastings'"),
        (ring, {"weights": "equal", "max_degree": 1}, "at least"),
        (ring, {"weights": "lazy", "max_degree": 4}, "only equal weights"),
    ]
    for graph, options, message in cases:
        with pytest.raises(NetworkError, match=message):
            Network(graph, **options)


def test_a_network_is_frozen() -> None:
    network = Network(graphs.ring(nodes=5))
    with pytest.raises(AttributeError):
        network.n = 3
    for array in (network.indices, network.delta, network.degrees, network.edge_weights(), dense(network)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


def test_disconnected_regular_part() -> None:
    network = Network(graphs.star(nodes=6), byzantine=[0])
    assert not network.connected
    assert network.spectral_gap == 0
    assert [part.tolist() for part in network.components] == [[1], [2], [3], [4], [5]]


def test_a_single_regular_node_agrees_with_itself() -> None:
    network = Network(graphs.line(nodes=2), byzantine=[1])
    assert network.spectral_gap == 1
    assert network.connected


@pytest.mark.parametrize(
    ("name", "values", "gamma", "method"),
    [
        ("ring", {"nodes": 4001}, 2 / 3 * (1 - np.cos(2 * np.pi / 4001)), "inverse"),
        ("line", {"nodes": 4001}, 2 / 3 * (1 - np.cos(np.pi / 4001)), "inverse"),
        ("torus", {"rows": 60, "columns": 61}, 2 / 5 * (1 - np.cos(2 * np.pi / 61)), "inverse"),
        ("star", {"nodes": 3001}, 1 / 3001, "inverse"),
        ("hypercube", {"dimension": 12}, 2 / 13, "lanczos"),
        ("dumbbell", {"clique": 301}, None, "inverse"),
        ("random-regular", {"nodes": 1000, "degree": 8}, None, "inverse"),
        ("scale-free", {"nodes": 1000}, None, "inverse"),
    ],
)
def test_large_gaps_agree_with_theory_or_a_dense_solve(
    name: str, values: dict[str, int], gamma: float | None, method: str
) -> None:
    network = Network(graphs.build(name, **values))
    assert network.gap.exact
    assert spectrum.narrow(spectrum.matrix(*network.regular_csr)) is (method == "inverse")
    if network.n > 2000:
        assert isinstance(network.weights, sparse.csr_array)
    if gamma is None:
        w = network.weights
        gamma = spectrum.dense_gap(w if isinstance(w, np.ndarray) else w.toarray()).value
    assert network.spectral_gap == pytest.approx(gamma, rel=spectrum.RELATIVE)  # what it stops at


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(20, 90), st.sampled_from(["lanczos", "inverse"]))
def test_the_iterative_solvers_agree_with_the_dense_one(seed: int, n: int, method: str) -> None:
    network = Network(graphs.small_world(nodes=n, neighbours=4, rewire=0.3, seed=seed), weights="lazy")
    w = sparse.csr_array(dense(network))
    start = np.random.default_rng(seed).standard_normal(n)
    solve = spectrum._lanczos if method == "lanczos" else spectrum._inverse
    expected = spectrum.dense_gap(dense(network)).value
    assert solve(w, start).value == pytest.approx(expected, rel=spectrum.RELATIVE)  # what it stops at


def test_what_does_not_converge_is_called_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(graphs.small_world(nodes=3000, neighbours=4, rewire=0.01))
    monkeypatch.setattr(spectrum, "BUDGET", 1.0)
    monkeypatch.setattr(spectrum, "BAND", 0)
    bound = network.gap
    monkeypatch.undo()
    assert not bound.exact
    assert bound.value >= spectrum.spectral_gap(spectrum.matrix(*network.regular_csr)).value


@given(networks(), st.randoms(use_true_random=False))
def test_adding_edges_is_building_anew(network: Network, random: Any) -> None:
    missing = [(i, j) for i in range(network.n) for j in range(i) if dense(network)[i, j] == 0]
    added = random.sample(missing, min(2, len(missing)))
    graph = network.to_networkx()
    graph.add_edges_from(added)
    anew = Network(graph, weights=network.weighting)
    assert_near(dense(network.with_edges(added)), dense(anew))
    own = Network(network.to_networkx(), weights="own").with_edges(added)
    Network(graph, weights=dense(own))
    for edge in [(0, 0), *list(graph.edges)[:1]]:
        with pytest.raises(NetworkError, match="must be new"):
            network.with_edges([*added, edge])


def test_weights_that_are_not_used_are_said_to_be() -> None:
    graph: Graph = nx.Graph()
    graph.add_weighted_edges_from([(0, 1, 0.3), (1, 2, 0.3)])
    with pytest.warns(RuntimeWarning, match='not used, metropolis-hastings weights are\ngive weights="own"'):
        Network(graph)
    assert Network(graph, weights="own").weighting == "own"
