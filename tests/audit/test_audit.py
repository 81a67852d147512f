"""The doctor: weakest cut, worst placement, edges to add, the words, the JSON and the drawing."""

import json
import re
import sys
from itertools import combinations
from math import inf, sqrt
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Annotation

from clippedgossip import graphs
from clippedgossip.audit import Placement, audit, suggest_edges, weakest_cut, worst_placement
from clippedgossip.audit.articulation import separated_by
from clippedgossip.audit.text import nodes_text, render
from clippedgossip.audit.worst_placement import without
from clippedgossip.cli import main
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import Graph
from clippedgossip.network import Network
from clippedgossip.network.spectrum import RELATIVE, dense_gap, matrix
from clippedgossip.report.network_drawing import draw_audit, draw_network, network_svg
from tests.rounding import near

KEYS = {"nodes", "edges", "regular", "byzantine", "connected", "gamma", "gamma_full", "p"} | {
    *("delta", "delta_max", "ratio", "consensus_guaranteed", "weakest_cut", "suggested_edges")
}


@st.composite
def connected_graphs(draw: st.DrawFn, low: int = 3, high: int = 10) -> Graph:
    n = draw(st.integers(low, high))
    graph = graphs.random_tree(nodes=n, seed=draw(st.integers(0, 999)))
    pairs = st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).filter(lambda pair: pair[0] != pair[1])
    graph.add_edges_from(draw(st.lists(pairs, max_size=12)))
    return graph


@given(connected_graphs(), st.sampled_from(["metropolis-hastings", "equal", "lazy"]))
def test_the_weakest_cut_obeys_cheeger(graph: Graph, weights: str) -> None:
    network = Network(graph, weights=weights)
    cut = weakest_cut(network)
    assert cut is not None
    slow = 1 - network.gap.lambda2
    assert slow / 2 - 1e-9 <= cut.conductance <= sqrt(2 * slow) + 1e-9
    side = set(cut.side.tolist())
    assert len(side) <= len(cut.other)
    assert side | set(cut.other.tolist()) == set(range(network.n))
    across = {(min(e), max(e)) for e in graph.edges if (e[0] in side) != (e[1] in side)}
    assert set(cut.edges) == across
    assert cut.weight == near(sum(np.asarray(network.weights)[e] for e in across))


def test_the_weakest_cut_of_a_dumbbell_is_its_bridge() -> None:
    cut = weakest_cut(Network(graphs.dumbbell(clique=8)))
    assert cut is not None
    assert cut.edges == ((7, 8),)
    assert cut.side.tolist() == list(range(8))


@given(connected_graphs())
def test_articulation_counts_who_is_cut_off(graph: Graph) -> None:
    network = Network(graph)
    counted = separated_by(network.indptr, network.indices)
    for node in graph:
        left: Graph = nx.Graph(graph)
        left.remove_node(node)
        largest = max((len(part) for part in nx.connected_components(left)), default=0)
        assert counted[node] == len(left) - largest
    assert {int(i) for i in np.flatnonzero(counted)} == set(nx.articulation_points(graph))


def harm_of(graph: Graph, byzantine: tuple[int, ...]) -> tuple[int, float]:
    """What a placement does, by building the network it leaves."""
    network = Network(graph, byzantine=byzantine)
    separated = len(network.regular) - len(network.components[0])
    gamma = network.spectral_gap if network.connected else 0.0
    return separated, network.delta_max / gamma**2 if gamma > 0 else inf


@settings(max_examples=30, deadline=None)
@given(connected_graphs(4, 8), st.integers(1, 2))
def test_no_placement_is_worse_than_the_worst(graph: Graph, more_byzantine: int) -> None:
    network = Network(graph)
    worst = worst_placement(network, more_byzantine, weakest_cut(network))
    assert worst is not None
    assert worst.method == "exhaustive"
    expected = max(harm_of(graph, nodes) for nodes in combinations(range(network.n), more_byzantine))
    assert worst.harm[0] == expected[0]
    if not expected[0]:
        assert worst.ratio == near(expected[1])
    assert harm_of(graph, worst.nodes)[0] == worst.separated


def test_a_node_whose_loss_makes_another_mode_the_slowest_is_found() -> None:
    """On a large network: no solver may settle on the mode that was the slowest before."""
    found = worst_placement(Network(nx.barabasi_albert_graph(20_000, 4, seed=1)))
    assert found is not None
    assert found.nodes == (11_633,)
    assert found.gamma == pytest.approx(0.0370341745, rel=RELATIVE)  # of scipy's eigsh, to 1e-10


def test_greedy_placement_finds_the_obvious(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["clippedgossip.audit.worst_placement"], "EXHAUSTIVE", 0)

    def worst(graph: Graph, more_byzantine: int) -> Placement:
        network = Network(graph)
        found = worst_placement(network, more_byzantine, weakest_cut(network))
        assert found is not None
        assert found.method == "greedy"
        return found

    assert worst(graphs.dumbbell(clique=8), 1).nodes in {(7,), (8,)}
    assert worst(graphs.ring(nodes=20), 2).separated == 9
    assert worst(graphs.grid(rows=12, columns=12), 2).separated == 1
    surrounded = worst(graphs.random_regular(nodes=120, degree=6), 3)
    assert surrounded.delta_max == near(3 / 7)


def test_byzantine_nodes_that_leave_no_regular_node_have_no_place() -> None:
    network = Network(graphs.line(nodes=3))
    assert worst_placement(network, 3, None) is None
    assert worst_placement(network, 0, None) is None
    with pytest.raises(NetworkError, match="at least 0"):
        worst_placement(network, -1, None)


@settings(max_examples=25, deadline=None)
@given(connected_graphs(), st.sampled_from(["metropolis-hastings", "equal", "lazy"]))
def test_suggested_edges_do_what_they_say(graph: Graph, weights: str) -> None:
    network = Network(graph, weights=weights)
    suggestions = suggest_edges(network, 2)
    gamma = network.spectral_gap
    grown: Graph = nx.Graph(graph)
    for suggestion in suggestions:
        assert not grown.has_edge(*suggestion.edge)
        grown.add_edge(*suggestion.edge)
        assert suggestion.gamma_before == near(gamma)
        gamma = Network(grown, weights=weights).spectral_gap
        assert suggestion.gamma_after == near(gamma)
    if suggestions:
        assert gamma > network.spectral_gap


@settings(max_examples=15, deadline=None)
@given(connected_graphs(4, 7))
def test_the_first_suggested_edge_is_the_best_there_is(graph: Graph) -> None:
    network = Network(graph)
    rises = [network.with_edges([edge]).spectral_gap for edge in nx.non_edges(graph)]
    found = suggest_edges(network, 1)
    best = max(rises, default=0.0)
    if best > network.spectral_gap * 1.01:
        assert found[0].gamma_after == near(best)


@pytest.mark.parametrize(
    "network",
    [
        Network(graphs.line(nodes=11), byzantine=[3]),
        Network(nx.disjoint_union(nx.complete_graph(4), nx.path_graph(5)), weights="lazy"),
        Network(nx.path_graph(24)),
        Network(graphs.random_tree(nodes=40, seed=1)),
    ],
)
def test_the_edge_that_joins_two_parts_or_helps_a_tree_is_the_best_there_is(network: Network) -> None:
    pairs = [(i, j) for i, j in combinations(network.regular.tolist(), 2) if network.weights[i, j] == 0]
    (found,) = suggest_edges(network, 1)
    assert found.gamma_after == near(max(network.with_edges([pair]).spectral_gap for pair in pairs))


def test_suggestions_widen_the_bridge_of_a_dumbbell() -> None:
    suggestions = suggest_edges(Network(graphs.dumbbell()), 3)
    assert [round(suggestion.gamma_after, 4) for suggestion in suggestions] == [0.0312, 0.0475, 0.0644]
    for suggestion in suggestions:
        assert suggestion.edge[0] < 10 <= suggestion.edge[1]


def test_a_square_needs_both_diagonals_first() -> None:
    suggestions = suggest_edges(Network(graphs.grid()), 3)
    assert [suggestion.edge for suggestion in suggestions] == [(0, 15), (3, 12)]


def test_a_torn_network_is_diagnosed_and_joined() -> None:
    network = Network(graphs.line(nodes=9), byzantine=[3])
    diagnosis = audit(network)
    report = diagnosis.to_json()
    assert report["connected"] is False
    assert report["components"] == [5, 3]
    assert report["ratio"] is None
    assert report["consensus_guaranteed"] is False
    assert report["weakest_cut"]["edges"] == []
    assert report["suggested_edges"][0]["gamma_after"] > 0
    assert "CONSENSUS IS IMPOSSIBLE" in render(diagnosis, "line")


def test_gaps_held_down_by_the_lowest_eigenvalue_get_the_lazy_hint() -> None:
    bipartite = Network(nx.complete_bipartite_graph(6, 6))
    assert bipartite.spectral_gap == near(2 / 7)
    diagnosis = audit(bipartite)
    assert diagnosis.lazy_gamma == near(3 / 7)
    assert "lazy weights" in render(diagnosis, "bipartite")
    assert audit(Network(graphs.ring())).lazy_gamma is None


@pytest.mark.parametrize("name", sorted(graphs.GENERATORS))
def test_every_network_gets_a_diagnosis_in_words_json_and_lines(name: str, tmp_path: Path) -> None:
    diagnosis = audit(Network(graphs.build(name)), more_byzantine=2)
    report = json.loads(json.dumps(diagnosis.to_json(), allow_nan=False))
    assert set(report) >= KEYS
    assert report["nodes"] == report["regular"] + report["byzantine"]
    assert len(report["delta"]) == report["regular"]
    text = render(diagnosis, name)
    assert all(len(line.replace("\u0303", "")) <= 80 for line in text.splitlines())
    assert "Weakest cut" in text
    draw_audit(diagnosis, tmp_path / "n.svg", title=name)
    assert (tmp_path / "n.svg").read_text().startswith("<?xml")


def test_words_for_the_three_verdicts() -> None:
    safe = render(audit(Network(graphs.complete(nodes=100), byzantine=[1])), "complete")
    assert "CONSENSUS IS GUARANTEED" in safe
    assert "consensus theorem" in safe
    unsafe = render(audit(Network(graphs.two_worlds())), "two-worlds")
    assert "CONSENSUS IS NOT GUARANTEED" in unsafe
    assert "vacuous" in unsafe
    fragile = render(audit(Network(graphs.dumbbell())), "dumbbell")
    assert "would undo that" in fragile


def test_node_lists_are_short() -> None:
    network = Network(graphs.ring(nodes=40))
    assert nodes_text(network, [0, 1, 2, 5, 7, 8]) == "0–2, 5, 7, 8"
    assert nodes_text(network, range(0, 40, 2), 20) == "0, 2, 4, 6, 8, 10, …"
    named = Network(nx.relabel_nodes(graphs.ring(nodes=4), dict(enumerate("abcd"))))
    assert nodes_text(named, [0, 2]) == "a, c"
    odd = Network(nx.Graph([(1.5, True), (True, 3)]))  # as JSON may name nodes
    assert nodes_text(odd, [1, 2]) == "True, 3"


def test_the_words_agree_with_the_numbers() -> None:
    torn = audit(Network(nx.disjoint_union_all([nx.complete_graph(3)] * 12)))
    assert "12 parts (nodes: 3, 3, 3, 3, 3, 3, 3, 3, 3, 3 and 2 more)" in " ".join(str(torn).split())
    still = nx.Graph([("a", "b", {"weight": 1e-300}), ("b", "c", {"weight": 0.3})])
    nothing = audit(Network(still, weights="own"))  # γ is 0: the theorem guarantees no progress
    assert not nothing.to_json()["consensus_guaranteed"]
    assert "CONSENSUS IS NOT GUARANTEED" in str(nothing)


def test_large_networks_are_audited_and_drawn_without_dense_arrays(tmp_path: Path) -> None:
    diagnosis = audit(Network(graphs.random_regular(nodes=2500, degree=4), byzantine=[5]))
    assert diagnosis.network.gap.exact
    draw_audit(diagnosis, tmp_path / "large.png")
    assert (tmp_path / "large.png").stat().st_size > 1000
    torn = audit(Network(graphs.line(nodes=1500), byzantine=[700]))
    draw_audit(torn, tmp_path / "torn.pdf")


def test_the_smallest_networks_have_a_diagnosis_too(tmp_path: Path) -> None:
    for network in (Network(graphs.complete(nodes=1)), Network(graphs.line(nodes=2), byzantine=[0])):
        diagnosis = audit(network)
        json.dumps(diagnosis.to_json(), allow_nan=False)
        assert "CONSENSUS IS" in render(diagnosis, "tiny")
        draw_audit(diagnosis, tmp_path / "tiny.svg")


def test_long_names_stand_beside_their_nodes_dark_and_whole() -> None:
    names = ["Genf", "Lausanne", "Bern", "Zürich", "St. Gallen", "La Chaux-de-Fonds sur Doubs"]
    network = Network(nx.cycle_graph(names), byzantine=["Genf"])
    figure = draw_network(network, worst=[2], title="cities")
    figure.canvas.draw()
    texts = {text.get_text(): text for text in figure.axes[0].texts if isinstance(text, Annotation)}
    assert set(texts) == {*names[:-1], "La Chaux-de-Fonds s…"}
    for text in texts.values():
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1, text
        assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1, text
        assert text.get_color() != "white"
        assert not box.contains(*figure.axes[0].transData.transform(text.xy)), text


def test_numbers_stand_on_their_discs() -> None:
    axes = draw_network(Network(graphs.ring(nodes=12))).axes[0]
    names = [text for text in axes.texts if isinstance(text, Annotation)]
    assert len(names) == 12
    assert all(tuple(text.get_position()) == tuple(text.xy) for text in names)
    assert {text.get_color() for text in names} == {"white"}


def test_a_drawing_has_its_edges_in_one_order() -> None:
    def bends(*suggested: tuple[int, int]) -> list[str]:
        figure = draw_network(Network(graphs.ring(nodes=8)), suggested=suggested)
        return [str(patch.get_path()) for patch in figure.axes[0].patches]

    assert len(bends((0, 4), (1, 5))) == 2
    assert bends((0, 4), (1, 5)) == bends((1, 5), (0, 4))


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["audit", *arguments])
    out = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return end.value.code, out.out, out.err


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """γ up to half of its last digit."""
    code, out, _ = run(capsys, "dumbbell", "--clique", "10", "--json")
    assert code == 0
    assert json.loads(out)["gamma"] == pytest.approx(0.015368, abs=5e-7)
    nx.write_graphml(graphs.torus(), tmp_path / "mynet.graphml")
    code, out, _ = run(capsys, str(tmp_path / "mynet.graphml"), "--byzantine", "3,7", "--json")
    assert json.loads(out)["byzantine_nodes"] == [3, 7]
    code, out, _ = run(capsys, "torus", "--pendants", "0,1", "--json")
    assert json.loads(out)["gamma_full"] == pytest.approx(0.131121, abs=5e-7)
    code, out, _ = run(capsys, "dumbbell", "--extra=1", "--weights", "equal", "--max-degree", "11", "--json")
    assert json.loads(out)["gamma"] == pytest.approx(0.028595, abs=5e-7)
    code, out, _ = run(capsys, "ring", "--random-byzantine", "1", "--random-pendants", "2", "--json")
    assert json.loads(out)["byzantine"] == 3
    code, out, _ = run(capsys, "ring", "--worst-byzantine", "2", "--json")
    assert json.loads(out)["components"] == [4, 4]
    code, out, _ = run(capsys, "dumbbell", "--hub", "--clique", "4", "--draw", str(tmp_path / "d.svg"))
    assert (tmp_path / "d.svg").exists()
    assert "Worst place" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dumbell"], "did you mean 'dumbbell'"),
        (["dumbbell", "--cliqe", "3"], "did you mean '--clique'"),
        (["dumbbell", "--jsn"], "did you mean '--json'"),
        (["ring", "--clique", "3"], "unknown option"),
        (["dumbbell", "--clique"], "needs a value"),
        (["dumbbell", "--clique", "three"], "a whole number"),
        (["dumbbell", "10"], "unexpected argument"),
        (["ring", "--byzantine", "99"], "unknown node '99'"),
        (["ring", "--weights", "eqal"], "did you mean 'equal'"),
        (["ring", "--draw", "net.bmp"], "cannot draw"),
        (["ring", "--draw", "/nowhere/net.svg"], "no folder"),
        (["ring", "--more-byzantine", "-1"], "at least 0"),
        (["ring", "--attackers", "20"], "--more-byzantine is 20"),
        (["ring", "--more-byzantine", "20"], "--more-byzantine is 20\nwith 10 regular nodes it is at most 9"),
        (["ring", "--suggestions", "-1"], "suggestions is -1\nit must be at least 0"),
        (["ring", "--worst-byzantine", "10"], "no worst place"),
        (["absent.csv"], "no such graph file"),
    ],
)
def test_mistakes_end_with_code_two(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert len(err.splitlines()) <= 2


def test_help_lists_every_network(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in graphs.GENERATORS:
        assert name in out


def test_own_weights_of_a_file_are_used_or_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "w.csv"
    path.write_text("a,b,0.3\nb,c,0.4\nc,a,0.2\n")
    report: dict[str, Any] = json.loads(run(capsys, str(path), "--json")[1])
    assert report["weights"] == "own"
    path.write_text("a,b,3\nb,c,4\n")
    code, _, err = run(capsys, str(path))
    assert code == 2
    assert "metropolis-hastings" in err
    assert json.loads(run(capsys, str(path), "--weights", "metropolis-hastings", "--json")[1])["connected"]


def narrowest(network: Network) -> float:
    """The least conductance of all cuts, by trying each."""
    w = matrix(*network.regular_csr).toarray()
    m, best = len(w), np.inf
    for size in range(1, m // 2 + 1):
        for side in combinations(range(m), size):
            rest = [i for i in range(m) if i not in side]
            best = min(best, w[np.ix_(side, rest)].sum() / size)
    return float(best)


@pytest.mark.parametrize("seed", range(12))
def test_the_weakest_cut_of_a_small_network_is_the_weakest(seed: int) -> None:
    shape = nx.gnp_random_graph(9, 0.45, seed=seed)
    if not nx.is_connected(shape):
        shape = nx.compose(shape, nx.path_graph(9))
    network = Network(shape)
    cut = weakest_cut(network)
    assert cut is not None
    assert cut.exact
    assert cut.conductance == near(narrowest(network))


def test_the_weakest_cut_of_a_torus_does_not_depend_on_a_basis() -> None:
    """λ₂ is fourfold there, and sweeps along one of its eigenvectors gave 0.2 or 0.286."""
    cut = weakest_cut(Network(nx.grid_2d_graph(4, 4, periodic=True)))
    assert cut is not None
    assert cut.conductance == near(0.2)


@pytest.mark.parametrize("size", [5, 6])
def test_the_weakest_cut_found_on_a_larger_torus_turns_with_it(size: int) -> None:
    """Another numbering gives the solver another basis, and the same cut."""
    shape = nx.grid_2d_graph(size, size, periodic=True)
    turned = nx.relabel_nodes(shape, {(a, b): (b, (a + 2) % size) for a, b in shape})
    cuts = [
        weakest_cut(Network(nx.convert_node_labels_to_integers(g, ordering="sorted")))
        for g in (shape, turned)
    ]
    assert all(cut is not None and not cut.exact for cut in cuts)
    assert len({f"{cut.conductance:.9g}" for cut in cuts if cut is not None}) == 1


def test_a_cut_of_a_large_network_is_called_the_weakest_found_with_what_may_be_missed() -> None:
    small, large = (render(audit(Network(graphs.torus(rows=n, columns=4))), "") for n in (4, 8))
    assert "Weakest cut: " in small
    assert "Cheeger" not in small
    assert "Weakest cut found: " in large
    said = re.search(r"weight by size is ([\d.]+); none has less than ([\d.]+) \(Cheeger\)", large)
    assert said is not None
    gap = Network(graphs.torus(rows=8, columns=4)).gap
    half = 0.5 * 10 ** -len(said[2].partition(".")[2])  # of the last digit
    assert float(said[2]) == pytest.approx((1 - gap.lambda2) / 2, abs=half)
    assert float(said[2]) <= float(said[1])


def test_the_worst_place_is_found_where_gamma_is_tiny() -> None:
    """Two cliques joined by a chain of weight 1e-5 and one of 3e-5: turning the end of the stronger chain
    leaves the smaller γ, though δ_max/γ² is 1e10 for all of them."""
    weights = np.full((12, 12), 0.0)
    for clique in (range(5), range(5, 10)):
        for i, j in combinations(clique, 2):
            weights[i, j] = 0.1
    for a, b, w in ((0, 10, 3e-5), (10, 5, 3e-5), (1, 11, 1e-5), (11, 6, 1e-5)):
        weights[min(a, b), max(a, b)] = w
    weights += weights.T
    shape = nx.from_numpy_array(weights)
    np.fill_diagonal(weights, 1 - weights.sum(1))
    network = Network(shape, weights=weights)
    found = worst_placement(network, 1)
    assert found is not None
    tried = [turned(network, node) for node in range(12)]
    # γ is 1e-5, a difference of numbers near 1: it has lost five digits, and 1/γ² as many again.
    assert found.ratio == pytest.approx(max(placement for placement in tried), rel=1e-9)


def turned(network: Network, node: int) -> float:
    """δ_max/γ² when this node is Byzantine."""
    left, _, delta = without(network, np.array([node]))
    return delta / dense_gap(left.toarray()).value ** 2


@pytest.mark.parametrize(
    ("name", "shown"), [("$x$", "$x$"), ("<&>", "<&>"), ("\x01\n", "··"), ("$\\frac$", None), ("", None)]
)
def test_a_node_of_any_name_is_drawn_by_that_name(tmp_path: Path, name: str, shown: str | None) -> None:
    network = Network(nx.relabel_nodes(graphs.complete(nodes=3), {0: name}))
    draw_audit(audit(network), tmp_path / "odd.svg")
    for svg in ((tmp_path / "odd.svg").read_text(), network_svg(network)):
        texts = [text.text for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]
        assert shown is None or shown in texts
