"""Generators, files and placement."""

import json
from pathlib import Path

import networkx as nx
import pytest

from clippedgossip import graphs
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import Graph


@pytest.mark.parametrize("name", sorted(graphs.GENERATORS))
def test_every_generator_gives_a_simple_graph_numbered_from_zero(name: str) -> None:
    graph = graphs.build(name)
    assert list(graph) == list(range(len(graph)))
    assert not graph.is_directed()
    assert not graph.is_multigraph()
    assert nx.number_of_selfloops(graph) == 0
    assert nx.is_connected(graph)
    assert sorted(graphs.build(name).edges) == sorted(graph.edges)


@pytest.mark.parametrize("name", sorted(graphs.GENERATORS))
def test_every_parameter_is_typed_and_explained(name: str) -> None:
    for parameter in graphs.parameters(name).values():
        assert parameter.type in (int, float, bool)
        assert parameter.help


@pytest.mark.parametrize(
    ("name", "values", "nodes", "edges"),
    [
        ("complete", {"nodes": 6}, 6, 15),
        ("ring", {"nodes": 7}, 7, 7),
        ("line", {"nodes": 7}, 7, 6),
        ("star", {"nodes": 7}, 7, 6),
        ("grid", {"rows": 2, "columns": 3}, 6, 7),
        ("torus", {"rows": 3, "columns": 4}, 12, 24),
        ("hypercube", {"dimension": 4}, 16, 32),
        ("exponential", {"nodes": 8}, 8, 20),
        ("random-regular", {"nodes": 12, "degree": 3}, 12, 18),
        ("small-world", {"nodes": 12, "neighbours": 4}, 12, 24),
        ("scale-free", {"nodes": 12, "attach": 2}, 12, 20),
        ("random-tree", {"nodes": 12}, 12, 11),
        ("dumbbell", {"clique": 4}, 8, 13),
        ("dumbbell", {"clique": 4, "clique-b": "3"}, 7, 10),
        ("dumbbell", {"clique": 4, "hub": True}, 9, 14),
        ("dumbbell", {"clique": 4, "extra": 3}, 8, 16),
        ("two-worlds", {"clique": 4}, 9, 15),
        ("hub-dumbbell", {"on_hub": 3}, 14, 25),
        ("consensus-chain", {}, 6, 5),
    ],
)
def test_sizes(name: str, values: dict[str, object], nodes: int, edges: int) -> None:
    graph = graphs.build(name, **values)
    assert (graph.number_of_nodes(), graph.number_of_edges()) == (nodes, edges)


def test_extra_edges_of_the_dumbbell_share_no_endpoint() -> None:
    graph = graphs.dumbbell(clique=6, extra=5, seed=3)
    across = [(u, v) for u, v in graph.edges if (u < 6) != (v < 6)]
    assert len(across) == 6
    assert len({node for edge in across for node in edge}) == 12


def test_random_generators_follow_their_seed() -> None:
    for name in ("random-regular", "erdos-renyi", "small-world", "scale-free", "random-tree"):
        assert set(graphs.build(name, nodes=40, seed=1).edges) != set(
            graphs.build(name, nodes=40, seed=2).edges
        )


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("dumbell", {}, "did you mean 'dumbbell'"),
        ("dumbbell", {"cliqe": 3}, "did you mean 'clique'"),
        ("dumbbell", {"clique": "ten"}, "a whole number"),
        ("dumbbell", {"clique": 2.5}, "a whole number"),
        ("dumbbell", {"hub": "perhaps"}, "true or false"),
        ("dumbbell", {"clique": 3, "extra": 3}, "0..2"),
        ("ring", {"nodes": 2}, "at least 3"),
        ("ring", {"nodes": True}, "a whole number"),
        ("random-regular", {"nodes": 5, "degree": 3}, "even"),
        ("random-regular", {"nodes": 5, "degree": 5}, "1..4"),
        ("erdos-renyi", {"probability": 1.5}, "0..1"),
        ("small-world", {"neighbours": 10}, "2..9"),
        ("consensus-chain", {"beta": 0.7}, "2/3"),
        ("consensus-chain", {"beta": 0.35, "delta": 0.4}, "0 <= delta"),
        ("hub-dumbbell", {"delta": 0.9}, "hub's self-weight"),
    ],
)
def test_mistakes_are_named(name: str, values: dict[str, object], message: str) -> None:
    with pytest.raises(NetworkError, match=message) as caught:
        graphs.build(name, **values)
    assert len(str(caught.value).splitlines()) <= 2


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_csv_with_and_without_header_and_weights(tmp_path: Path) -> None:
    plain = graphs.read_graph(write(tmp_path / "a.csv", "2,1\n0,1\n# a comment\n\n0,2\n"))
    assert list(plain) == [0, 1, 2]
    assert "weights" not in plain.graph
    weighted = graphs.read_graph(
        write(tmp_path / "b.csv", "source,target,weight\nann,bob,0.25\nbob,eve,0.5\n")
    )
    assert weighted.graph["weights"] == "own"
    assert weighted.edges["ann", "bob"]["weight"] == 0.25
    other = graphs.read_graph(write(tmp_path / "c.csv", "x,y,weight\na,b,0.25\n"))
    assert set(other) == {"a", "b"}
    bare = graphs.read_graph(write(tmp_path / "d.csv", "a,b,0.25\n"))
    assert set(bare) == {"a", "b"}


def test_json_nodes_and_links_may_be_plain(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text('{"nodes": [0, 1, 2], "edges": [[0, 1], [1, 2]]}')
    assert {*graphs.read_graph(path).edges} == {(0, 1), (1, 2)}
    path.write_text('{"nodes": ["a", "b"], "links": [["a", "b", 0.3]]}')
    assert graphs.read_graph(path).edges["a", "b"] == {"weight": 0.3}


def test_graphml_and_json_round_trip(tmp_path: Path) -> None:
    graph = graphs.dumbbell(clique=3)
    nx.set_edge_attributes(graph, dict.fromkeys(graph.edges, 0.2), "weight")
    graph.nodes[1]["byzantine"] = True
    plain: Graph = nx.Graph(graph)
    del plain.graph["groups"]
    nx.write_graphml(plain, tmp_path / "g.graphml")
    (tmp_path / "g.json").write_text(json.dumps(nx.node_link_data(graph, edges="links")))
    for name in ("g.graphml", "g.json"):
        back = graphs.read_graph(tmp_path / name)
        assert sorted(map(sorted, back.edges)) == sorted(map(sorted, graph.edges))
        assert graphs.byzantine_nodes(back) == (1,)
        assert back.graph["weights"] == "own"


def test_directed_files_are_welcome_when_they_go_both_ways(tmp_path: Path) -> None:
    nx.write_graphml(nx.DiGraph([(0, 1), (1, 0)]), tmp_path / "both.graphml")
    assert graphs.read_graph(tmp_path / "both.graphml").number_of_edges() == 1
    nx.write_graphml(nx.DiGraph([(0, 1)]), tmp_path / "one.graphml")
    with pytest.raises(NetworkError, match="undirected"):
        graphs.read_graph(tmp_path / "one.graphml")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "", "holds no node"),
        ("a.csv", "0\n", "line 1"),
        ("a.csv", "0,1,2,3\n", "line 1"),
        ("a.csv", "0,1\n1,2,heavy\n", "line 2"),
        ("a.csv", "0,1,nan\n", "finite"),
        ("a.csv", "0,1,0.2\n1,0,0.3\n", "symmetric"),
        ("a.graphml", "", "cannot read"),
        ("a.graphml", "<graphml", "cannot read"),
        ("a.graphml", "<html></html>", "not a valid"),
        ("a.json", "{", "cannot read"),
        ("a.json", "[1, 2]", "node-link"),
        ("a.json", '{"nodes": []}', "links"),
        ("a.json", '{"nodes": [{"id": 1}], "links": [{"source": 1, "target": 2}]}', "'nodes' does not list"),
        ("a.json", '{"nodes": [{"id": 1}], "links": [{"source": 1}]}', "not a valid"),
        ("a.json", '{"nodes": 5, "links": 5}', "not a valid"),
        ("a.json", '{"nodes": [0, 1], "links": [7]}', "not a valid"),
        ("a.json", '{"nodes": [0, null], "links": []}', "not a valid"),
        ("a.json", '{"nodes": [0, 1], "links": [[0, 1]], "graph": 5}', "not a valid"),
        ("a.graphml", "<graphml/>", "not a valid"),
        ("a.json", '{"nodes": [], "links": []}', "holds no node"),
        ("a.yaml", "0,1", "unknown graph file type"),
    ],
)
def test_malformed_files_are_explained(tmp_path: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message) as caught:
        graphs.read_graph(write(tmp_path / name, text))
    assert len(str(caught.value).splitlines()) <= 2


def test_binary_and_missing_files_are_explained(tmp_path: Path) -> None:
    with pytest.raises(NetworkError, match="no such graph file"):
        graphs.read_graph(tmp_path / "absent.csv")
    (tmp_path / "b.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(NetworkError, match="cannot read"):
        graphs.read_graph(tmp_path / "b.csv")


def test_placement() -> None:
    ring = graphs.ring(nodes=6)
    assert graphs.find_nodes(ring, ["3", 1]) == (3, 1)
    with pytest.raises(NetworkError, match="unknown node '9'"):
        graphs.find_nodes(ring, [9])
    chosen = graphs.random_nodes(ring, 2, seed=1)
    assert len(set(chosen)) == 2
    assert chosen == graphs.random_nodes(ring, 2, seed=1)
    with pytest.raises(NetworkError, match=r"0 to 6"):
        graphs.random_nodes(ring, 7)
    hung = graphs.add_pendants(ring, [0, 0, 3])
    assert graphs.byzantine_nodes(hung) == (6, 7, 8)
    assert sorted(hung.neighbors(0)) == [1, 5, 6, 7]
    assert len(ring) == 6
    named = graphs.add_pendants(nx.relabel_nodes(ring, str), ["2"])
    assert graphs.byzantine_nodes(named) == ("byzantine 1",)
