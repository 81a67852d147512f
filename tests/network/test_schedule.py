"""Schedules of graphs and late messages: whom a node hears in a round, and how old what it hears is."""

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

from clippedgossip import graphs
from clippedgossip.cli.networks import build_network
from clippedgossip.errors import NetworkError, UserError
from clippedgossip.network import Network
from clippedgossip.network.delay import DELAY, EdgeDelay, FixedDelay, SlowNodes, delay_of
from clippedgossip.network.schedule import SCHEDULE, Churn, GraphSchedule, RandomNeighbours, survey
from clippedgossip.runs.config import NetworkConfig, RunConfig, load_config, toml_value
from tests.rounding import near

BRIDGE = [{"rounds": 3, "without": [[4, 5]]}, {"rounds": 1}]


def contacts(folder: Path) -> Path:
    path = folder / "contacts.csv"
    path.write_text("round,node,node\n1,0,1\n1,2,3\n2,1,2\n4,0,9\n")
    return path


def network_of(name: str, folder: Path, weights: str | None = None) -> Network:
    """Ten nodes, two of them Byzantine, with a schedule of this name."""
    said: dict[str, Any] = {"name": name}
    graph = graphs.complete(nodes=10)
    if name == "phases":
        said["phases"] = BRIDGE
        graph = graphs.dumbbell(clique=5)
    elif name == "file":
        said["file"] = str(contacts(folder))
    return Network(graph, byzantine=[2, 7], schedule=said, weights=weights)


@pytest.mark.parametrize("weights", ["metropolis-hastings", "lazy", "equal", "optimal"])
@pytest.mark.parametrize("name", SCHEDULE.names)
def test_every_round_is_a_network_of_its_own(name: str, weights: str, tmp_path: Path) -> None:
    """Some of the links; weights that are positive and leave something to the node; symmetric unless the
    schedule is directed; the same whenever it is asked for."""
    network = network_of(name, tmp_path, weights)
    assert network.schedule is not None
    seen = []
    for round in (0, 1, 2, 3, 300):
        now = network.at(round, seed=5)
        full = np.asarray(now.weights)
        assert full.sum(1) == near(np.ones(10))
        assert (np.diag(full) > 0).all()
        assert (full[np.asarray(network.weights) == 0] == 0).all()
        if not network.schedule.directed:
            assert full == near(full.T)
            assert np.asarray(now.regular_weights).sum(0) == near(np.ones(8))
        assert now.delta == near(full[:, [2, 7]].sum(1)[now.regular])
        seen.append(full)
    again = network_of(name, tmp_path, weights)
    assert (np.asarray(again.at(300, seed=5).weights) == seen[-1]).all()
    assert network.at(0).schedule is None
    assert (network.regular == network.at(3).regular).all()


def test_a_static_network_is_the_network_of_each_of_its_rounds() -> None:
    network = Network(nx.cycle_graph(4))
    assert network.at(17, seed=3) is network
    assert not network.changes


def test_random_neighbours_are_drawn_evenly_and_anew_for_each_node_round_and_seed() -> None:
    network = Network(nx.complete_graph(9), schedule=RandomNeighbours(3))
    heard = np.zeros((9, 9))
    for round in range(2000):
        now = network.at(round, seed=1)
        assert (now.degrees == 3).all()
        assert np.asarray(now.weights).max() == near(1 / 4)
        heard[np.repeat(np.arange(9), 3), now.indices] += 1
    expected = 2000 * 3 / 8
    off = heard[~np.eye(9, dtype=bool)] - expected
    assert heard.diagonal().sum() == 0
    assert np.abs(off).max() < 5 * np.sqrt(expected * 5 / 8)  # five standard deviations, of 72 counts
    assert (network.at(0, seed=2).indices != network.at(0, seed=1).indices).any()


def test_a_complete_network_without_a_list_of_links_draws_what_the_listed_one_does() -> None:
    graph = nx.empty_graph(30)
    graph.graph["everyone"] = True
    for said in ({"name": "random-neighbours", "neighbours": 4}, "random-matching", "one-peer-exponential"):
        listed = Network(nx.complete_graph(30), byzantine=[3], schedule=said)
        unlisted = Network(graph, byzantine=[3], schedule=said)
        for round in range(4):
            one, other = listed.at(round, seed=2), unlisted.at(round, seed=2)
            assert (one.indices == other.indices).all()
            assert (one.edge_weights() == other.edge_weights()).all()
        assert unlisted.connected
        assert unlisted.delta_max == near(listed.delta_max)
        assert unlisted.spectral_gap == near(listed.spectral_gap)
        assert unlisted.edge_count == listed.edge_count


def test_nodes_with_few_neighbours_hear_all_of_them() -> None:
    network = Network(nx.star_graph(5), schedule={"name": "random-neighbours", "neighbours": 2})
    assert network.at(4).degrees.tolist() == [2, 1, 1, 1, 1, 1]


@pytest.mark.parametrize("graph", [nx.complete_graph(11), nx.random_regular_graph(4, 40, seed=1)])
def test_a_matching_is_maximal_and_gives_each_node_one_partner(graph: Any) -> None:
    network = Network(graph, schedule="random-matching")
    for round in range(5):
        now = network.at(round)
        assert set(now.degrees.tolist()) <= {0, 1}
        assert set(now.edge_weights().tolist()) == {0.5}
        alone = {network.labels[node] for node in np.flatnonzero(now.degrees == 0)}
        assert not any(a in alone and b in alone for a, b in graph.edges)


def test_one_peer_exponential_rounds_give_the_exact_average() -> None:
    network = Network(graphs.exponential(nodes=16), schedule="one-peer-exponential")
    product = np.linalg.multi_dot([np.asarray(network.at(round).weights) for round in range(4)])
    assert product == near(np.full((16, 16), 1 / 16), roundings=1)


def test_churn_keeps_to_its_rates_and_takes_absent_nodes_off_the_network() -> None:
    churn = Churn(leave=0.1, join=0.3)
    there = np.array([churn.present(200, round, seed=4) for round in range(600)])
    assert there[0].all()
    before, after = there[:-1], there[1:]
    # Four standard deviations: of 200 nodes in 60 independent rounds, of 90,000 draws, of 30,000.
    assert there[300:].mean() == pytest.approx(0.75, abs=4 * (0.75 * 0.25 / 12_000) ** 0.5)
    assert (~after[before]).mean() == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / 90_000) ** 0.5)
    assert after[~before].mean() == pytest.approx(0.3, abs=4 * (0.3 * 0.7 / 30_000) ** 0.5)
    network = Network(nx.complete_graph(200), schedule=churn)
    assert ((network.at(400, seed=4).degrees > 0) == there[400]).all()


def test_phases_follow_each_other_and_begin_again() -> None:
    dumbbell = graphs.dumbbell(clique=5)
    network = Network(dumbbell, schedule={"name": "phases", "phases": BRIDGE})
    assert [len(network.at(round).components) for round in range(8)] == [2, 2, 2, 1, 2, 2, 2, 1]
    once = Network(dumbbell, schedule={"name": "phases", "phases": BRIDGE, "repeat": False})
    assert [len(once.at(round).components) for round in range(8)] == [2, 2, 2, 1, 1, 1, 1, 1]
    named = [
        {"rounds": 1, "network": "ring"},
        {"rounds": 1, "nodes": [0, 1, 2]},
        {"rounds": 1, "edges": [[0, 5]]},
    ]
    of_all = Network(nx.complete_graph(10), schedule={"name": "phases", "phases": named})
    assert [len(of_all.at(round).indices) // 2 for round in range(3)] == [10, 3, 1]


def test_a_file_has_links_by_round(tmp_path: Path) -> None:
    network = network_of("file", tmp_path)
    ends = [network.at(round).indices.tolist() for round in range(5)]
    assert ends == [[1, 0, 3, 2], [2, 1], [], [9, 0], [1, 0, 3, 2]]
    config = NetworkConfig.from_value(
        {"name": "complete", "nodes": 10, "schedule": {"name": "file", "file": "contacts.csv"}}, tmp_path
    )
    said = config.to_mapping()["schedule"]
    assert said["file"] == "contacts.csv"
    assert NetworkConfig.from_value(config.to_mapping(), tmp_path) == config
    contacts(tmp_path).write_text("1,0,1\n")
    with pytest.raises(UserError, match="not the file of this config"):
        NetworkConfig.from_value(config.to_mapping(), tmp_path)


def test_a_schedule_of_one_s_own_is_a_function_or_a_class(tmp_path: Path) -> None:
    def rotating(network: Network, round: int, seed: int) -> list[tuple[Any, Any]]:
        return [("abc"[round % 3], "abc"[(round + 1) % 3])]

    network = Network(nx.complete_graph("abc"), schedule=rotating)
    assert [network.at(round).degrees.tolist() for round in range(3)] == [[1, 1, 0], [0, 1, 1], [1, 0, 1]]
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from clippedgossip.network.schedule import GraphSchedule\n"
        "@dataclass(frozen=True)\n"
        "class Every(GraphSchedule):\n"
        "    each: int = 2\n"
        "    def pairs(self, network, round, seed):\n"
        "        return [(i, i + 1) for i in range(network.n - 1) if i % self.each == round % self.each]\n"
    )
    with open(tmp_path / "mine.py", "a") as file:
        file.write(
            "def every(round: int, each: int = 2):\n"
            "    return nx.Graph((i, i + 1) for i in range(5) if i % each == round % each)\n"
            "def made(each: int):\n"
            "    return Every(each)\n"
            "import networkx as nx\n"
        )
    for name in ("Every", "every", "made"):
        schedule = {"name": f"mine:{name}", "each": 3}
        config = NetworkConfig.from_value({"name": "line", "nodes": 6, "schedule": schedule}, tmp_path)
        assert {**config.to_mapping()["schedule"], "code": ""} == {**schedule, "code": ""}
        assert [len(config.build().at(round).indices) // 2 for round in range(3)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("weights", "optimal"),
        ("weights", "{robust = 1, cap = 0.15}"),
        ("weights", '{robust = "1", cap = "0.15"}'),
        ("schedule", "random-matching"),
        ("schedule", "{name = 'random-neighbours', neighbours = 2}"),
        ("delay", "2"),
        ("delay", "{edges = 2}"),
    ],
)
def test_the_same_words_mean_the_same_in_a_file_on_the_command_line_and_in_python(
    key: str, text: str
) -> None:
    graph, said = nx.cycle_graph(6), {key: toml_value(text)}
    typed: dict[str, Any] = {key: text}
    built = [
        NetworkConfig.from_value({"name": "ring", "nodes": 6, **said}).build(),
        Network(graph, **said),
        build_network(graph, **typed),
    ]
    assert len({repr(network) for network in built}) == 1
    assert len({network.edge_weights().tobytes() for network in built}) == 1


class WithoutPairs(GraphSchedule):
    pass


class OwnLinks(GraphSchedule):
    def links(self, network: Network, round: int, seed: int) -> Any:
        return {0: (np.zeros(5, dtype=np.int64), np.zeros(0, dtype=np.int64))}[round]


def raises(network: Network, round: int, seed: int) -> list[tuple[Any, Any]]:
    return {0: [(0, 1)], 1: [(1, 2)]}[round]


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        (WithoutPairs(), r"WithoutPairs has no method pairs\(network, round, seed\)"),
        (raises, r"round 3 of the schedule raises raised KeyError: 2\nsee .*test_schedule.py, line"),
        (lambda network, round, seed: 7, r"round 1 of the schedule .* is 7\nreturn the links"),
        (OwnLinks(), r"round 2 of the schedule OwnLinks raised KeyError: 1\nsee .*test_schedule.py, line"),
        (lambda network: [], r"is a function of \(network\): .*\nmake it one of \(round\)"),
        (lambda round, step: [], r"is a function of \(round, step\): .*'step'\nmake it one of \(round\)"),
        (lambda network, round, seed: [(0, 1, 2)], r"round 1 of the schedule .* has the link \(0, 1, 2\)"),
    ],
)
def test_what_ones_own_schedule_does_wrong_is_said_with_its_name_and_round(schedule: Any, says: str) -> None:
    with pytest.raises(NetworkError, match=says) as caught:
        survey(Network(nx.complete_graph(4), schedule=schedule), 5, 0)
    assert len(str(caught.value).splitlines()) == 2 or "has the link" in says


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ({"schedule": {"name": "random-neighbours", "neighbours": 30}}, "has more than 9 neighbours"),
        ({"schedule": {"name": "random-neighbours", "neighbours": 0}}, "at least 1"),
        ({"schedule": {"name": "churn", "leave": 0.5, "join": 0}}, "nobody would be left"),
        ({"schedule": {"name": "churn", "leave": 2}}, "a probability lies in 0..1"),
        ({"schedule": {"name": "churn", "leave": 1.0, "join": 0.1}}, "it takes two"),
        ({"schedule": {"name": "phases", "phases": []}}, "give at least one"),
        ({"schedule": {"name": "phases", "phases": [{"rounds": 0}]}}, "at least 1"),
        ({"schedule": {"name": "phases", "phases": [{"rounds": 1, "nodes": [0, 77]}]}}, "names node 77"),
        ({"schedule": {"name": "phases", "phases": [{"rounds": 1, "edges": [[0]]}]}}, "a pair of nodes"),
        ({"schedule": {"name": "phases", "phases": [{"rounds": 1, "edge": [[0, 1]]}]}}, "edges"),
        ({"schedule": {"name": "file", "file": "nowhere.csv"}}, "cannot read"),
        ({"schedule": "matching"}, "random-matching"),
        ({"schedule": {"name": "one-peer-exponential"}, "name": "ring"}, "needs a link from every node"),
        (
            {"name": "ring", "schedule": {"name": "phases", "phases": [{"rounds": 1, "edges": [[0, 5]]}]}},
            "0–5",
        ),
        ({"delay": -1}, "at least 0"),
        ({"delay": {"nodes": 0}}, "at least 1"),
        ({"delay": {"edge": 2}}, "edges"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_two_lines(said: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        NetworkConfig.from_value({"name": "complete", "nodes": 10} | said).build()
    assert len(str(caught.value).splitlines()) <= 2


def test_a_survey_says_the_most_that_a_round_has_and_whether_all_rounds_connect() -> None:
    network = network_of("random-neighbours", Path())
    found = survey(network, 50, 3)
    rounds = [network.at(round, 3) for round in range(50)]
    assert found.delta_max == max(now.delta_max for now in rounds)
    assert found.faulty == max(int(now.byzantine_neighbours.max()) for now in rounds)
    assert found.byzantine_links == max(int(now.byzantine_neighbours.sum()) for now in rounds)
    assert (found.width, found.counts, found.connected, found.whole) == (3, (3,), True, True)
    never = [{"rounds": 3, "without": [[4, 5]]}]
    cut = Network(graphs.dumbbell(clique=5), schedule={"name": "phases", "phases": never})
    assert not survey(cut, 50, 3).connected


def test_delays_are_of_all_messages_of_a_link_or_of_a_node() -> None:
    receivers, senders = np.repeat(np.arange(30), 30), np.tile(np.arange(30), 30)
    assert (FixedDelay(2).ages(receivers, senders, 9, 0) == 2).all()
    drawn = EdgeDelay(3).ages(receivers, senders, 9, 1)
    assert (drawn == EdgeDelay(3).ages(receivers, senders, 4, 1)).all()
    within = 4 * (0.25 * 0.75 / 900) ** 0.5  # standard deviations
    assert np.bincount(drawn) / 900 == pytest.approx(np.full(4, 0.25), abs=within)
    ages = np.array([SlowNodes(3).ages(receivers, senders, round, 1) for round in range(12)])
    assert (ages.reshape(12, 30, 30) == ages.reshape(12, 30, 30)[:, :1]).all()
    assert {int(age) for age in ages.max(0)} == {0, 1, 2}
    assert (ages[0] == 0).all()
    assert set(DELAY.names) == {"fixed", "edges", "nodes"}
    assert delay_of({"edges": 3}) == EdgeDelay(3)
    with pytest.raises(NetworkError, match="give a number of rounds"):
        delay_of(1.5)


def test_schedules_come_from_files_overrides_and_sweeps(tmp_path: Path) -> None:
    """And a run without one has the config that it had."""
    path = tmp_path / "run.toml"
    path.write_text(
        '[network]\nname = "complete"\nnodes = 8\nschedule = "random-neighbours"\n'
        '[data]\nname = "digits"\n[model]\nname = "linear"\n[rule]\nname = "gossip"\n'
    )
    said = load_config(path).to_mapping()["network"]
    assert said["schedule"] == {"name": "random-neighbours", "neighbours": 3}
    two = load_config(path, ["network.schedule.neighbours=2", "network.delay={edges=2}"])
    assert two.to_mapping()["network"] == {
        "name": "complete",
        "nodes": 8,
        "schedule": {"name": "random-neighbours", "neighbours": 2},
        "delay": {"edges": 2},
    }
    assert RunConfig.from_mapping(two.to_mapping()) == two
    assert str(two.network.build().delay) == "EdgeDelay(rounds=2)"
    with pytest.raises(UserError, match=r"override 'network.schedule.neighbors=2'.*unknown parameter"):
        load_config(path, ["network.schedule.neighbors=2"])
    plain = RunConfig.from_mapping({**two.to_mapping(), "network": {"name": "complete", "nodes": 8}})
    assert set(plain.to_mapping()["network"]) == {"name", "nodes"}


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"\xff\xfe\x00", "cannot read"),
        (b"1000000000000,0,1\n", "at most 1,000,000"),
        (b"9" * 5000 + b",0,1\n", "at most 1,000,000"),
        ("²,0,1\n".encode(), "counted from 1"),
        (b"1,0," + b"1" * 200_000 + b"\n", "cannot read"),
    ],
    ids=["not text", "huge", "5000 digits", "no decimal", "long"],
)
def test_a_file_that_is_no_list_of_links_is_refused(content: bytes, match: str, tmp_path: Path) -> None:
    path = tmp_path / "links.csv"
    path.write_bytes(content)
    with pytest.raises(NetworkError, match=match) as refused:
        Network(graphs.complete(nodes=5), schedule={"name": "file", "file": str(path)})
    assert len(str(refused.value).splitlines()) == 2
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize("round", [-1, 1.5, float("nan"), "a"], ids=str)
def test_a_round_is_counted_from_0(round: Any) -> None:
    network = Network(graphs.complete(nodes=5), schedule="random-matching")
    with pytest.raises(NetworkError, match="round is"):
        network.at(round)


def test_what_lacks_is_told_by_its_meaning(tmp_path: Path) -> None:
    (tmp_path / "plain_links.py").write_text("def links(network, seed): return []\n")
    for name, fix in (
        ("phases", "give phases: tables with rounds"),
        ("file", r"give file: a \.csv file"),
        ("plain_links:links", "make it a function of the round"),
    ):
        said = {"name": "complete", "schedule": {"name": name}}
        with pytest.raises(UserError, match=rf"needs a value for .*\n{fix}"):
            NetworkConfig.from_value(said, tmp_path)
