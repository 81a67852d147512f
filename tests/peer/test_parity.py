"""Peers and the simulator do the same mathematics: same config and seed, the same models after 25 rounds."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from clippedgossip import decode
from clippedgossip.decode import plain_of
from clippedgossip.errors import UserError
from clippedgossip.network.delay import Delay, delay_of
from clippedgossip.peer import identity
from clippedgossip.peer import peer_mixing as mixing
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.from_run import peers_of
from clippedgossip.peer.learner import TaskLearner, make_learner
from clippedgossip.peer.local_network import read_network, write_network
from clippedgossip.peer.loop import PeerRun
from clippedgossip.peer.node import Node
from clippedgossip.peer.peer_config import Config, Deadlines, Neighbour
from clippedgossip.peer.peer_mixing import Mixed, Mixing, describe_rule
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.rules import RULES
from clippedgossip.runs.config import RunConfig
from clippedgossip.settings import DataConfig, ModelConfig, TrainingConfig
from clippedgossip.simulate import train
from clippedgossip.tasks import DataSet, datasets
from clippedgossip.tasks.datasets import load_part
from tests.peer.memory_network import MemoryLink, MemoryNetwork, MemoryTransport
from tests.peer.simulated_time import SimulatedLoop
from tests.samples import sample_rule

ROUNDS = 25
EDGES = ((0, 1), (1, 2), (2, 3), (3, 0), (0, 4), (1, 4), (2, 4), (3, 4))
"""A ring of four and its hub: three or four neighbours, so weights differ."""
RING = {"name": "ring", "nodes": 3}
PATIENT = Deadlines(least=60, most=60, join=60, linger=10)
BITING: dict[str, dict[str, Any]] = {
    "clipped-gossip": {"radius": 0.03},
    "centered-clipping": {"radius": 0.02},
    "geometric-median": {"smoothing": 0.01},
    "balance": {"gamma": 0.4},
    "weighted-trimmed-mean": {"trim": [0.15, 0.2, 0.1, 0.15, 0.25]},
    "bucketing": {"rule": {"name": "mozi"}},
    "nnm": {"rule": {"name": "median"}},
}
"""Parameters at the scale of these small models, so that no rule is plain gossip here; one for each node; a
wrapped rule that compares losses, and one that works by coordinates."""
RULE_TABLES = {name: plain_of(sample_rule(name)) | BITING.get(name, {}) for name in RULES} | {
    "adaptive": {"name": "clipped-gossip", "radius": {"adaptive": 0.25}},
}


@pytest.fixture
def few_features(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Digits of six features and three classes: 21 coordinates. Rules that choose are discontinuous where
    two choices are equal; with so few choices, none comes within rounding of that."""
    draw = torch.Generator().manual_seed(1)
    centres, y = torch.randn(3, 6, generator=draw), torch.arange(150) % 3
    x = centres[y] + torch.randn(150, 6, generator=draw)
    small = DataSet.of(x[:120], y[:120], x[120:], y[120:])
    monkeypatch.setattr(datasets, "_digits", lambda: small)
    load_part.cache_clear()
    yield
    load_part.cache_clear()


@cache
def on_few_features(rule: str, **parameters: float) -> Tensor:
    with TemporaryDirectory() as folder:
        return simulated(run_config(Path(folder), {"name": rule, **parameters}))


def run_config(folder: Path, rule: object, *, rounds: int = ROUNDS, **sections: dict[str, Any]) -> RunConfig:
    """A run as a file would say it."""
    (folder / "five.csv").write_text("source,target\n" + "".join(f"{a},{b}\n" for a, b in EDGES))
    raw = {
        "network": sections.get("network", {"file": "five.csv"}),
        "data": {"name": "digits"} | sections.get("data", {}),
        "model": {"name": "linear"} | sections.get("model", {}),
        "rule": rule,
        "training": {"rounds": rounds, "batch": 4, "lr": 0.05, "lr_drops": [10], "evaluate_nodes": False}
        | sections.get("training", {}),
        "seed": 3,
    }
    return RunConfig.from_mapping(raw, folder=folder)


def simulated(config: RunConfig) -> Tensor:
    """(n, d) the models after the last round."""
    *_, last = train(config.build())
    return last.state().tensors["models"]


def network_of(config: RunConfig, folder: Path) -> list[Config]:
    """The same run as peers, as `peer network` writes them."""
    edges, nodes, template = peers_of(config, run="parity")
    write_network(edges, nodes, folder / "net", replace(template, deadlines=PATIENT))
    return read_network(folder / "net")


def apart(models: Tensor, others: Tensor | None = None) -> float:
    """The largest difference in any coordinate; of models among themselves if no others are given."""
    return float((models - (models.mean(0) if others is None else others)).abs().max())


def rounding(models: Tensor, rounds: int) -> float:
    """A unit in the last place each round: sums have another order here than there, and nothing multiplies
    the difference."""
    return rounds * torch.finfo(models.dtype).eps * float(models.abs().max())


async def in_memory(
    configs: list[Config],
    made: Callable[..., MemoryTransport] | None = None,
    *,
    may_miss: bool = False,
    first: tuple[int, ...] = (),
    seen: list[Mixed] | None = None,
) -> list[Tensor]:
    """Peers in one event loop, each living at its own pace, from its `first` round on. `seen` gets what each
    round did."""
    net = MemoryNetwork()
    nodes: list[Node] = []
    learners = [make_learner(config) for config in configs]

    async def live(config: Config, node: Node, learner: Any) -> None:
        mix = Mixing(config)
        while node.round < config.rounds:
            half = learner.step(node.round)
            exchange = await node.exchange(half)
            assert may_miss or not exchange.missing
            mixed = torch.empty_like(half)
            report = mix(half, exchange, [mixed], losses=learner.losses)
            learner.load(mixed)
            if seen is not None:
                seen.append(report)

    for config, learner in zip(configs, learners, strict=True):
        me = identity.load(config.folder)
        given = {} if made is None else {"config": config}
        transport = (made or MemoryTransport)(net, me, config.neighbours, **given)
        rule = describe_rule(config)
        own = replace(config, folder=Path())
        round = first[len(nodes)] if first else 0
        nodes.append(Node(own, me, transport, length=learner.length, rule=rule, round=round))
    try:
        await asyncio.gather(*(node.start() for node in nodes))
        await asyncio.gather(*(live(*each) for each in zip(configs, nodes, learners, strict=True)))
    finally:
        await asyncio.gather(*(node.close() for node in nodes))
    return [model_of(learner) for learner in learners]


def model_of(learner: object) -> Tensor:
    assert isinstance(learner, TaskLearner)
    return learner.x


async def at_once(function: Callable[..., Any], /, *arguments: Any) -> Any:
    """`asyncio.to_thread` without the thread, for messages of a hundred bytes."""
    return function(*arguments)


KINDS = {
    "gossip",
    "adaptive",
    "balance",
    "bucketing",
    "centered-clipping",
    "clipped-gossip",
    "geometric-median",
}
KINDS |= {"krum", "mozi", "nnm", "trimmed-mean", "weighted-trimmed-mean"}
"""A rule of each kind: by coordinates, by distances, by losses, by the round; with a parameter for each node,
with a rule inside. The others are of one of these kinds, and slow."""


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize(
    "rule",
    [
        *(
            {"name": "clipped-gossip", "radius": r}
            for r in (0.03, {"adaptive": 0.25}, {"quantile": 0.5}, {"local": 1})
        ),
        {"name": "cs-plus", "byzantine_weight": 0.1},
        {"name": "median"},
    ],
    ids=str,
)
def test_clipped_messages_are_counted_as_in_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any]
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    config = run_config(tmp_path, rule, rounds=10)
    *_, last = train(config.build())
    assert last.record is not None
    share = last.record.clipped
    seen: list[Mixed] = []
    asyncio.run(in_memory(network_of(config, tmp_path), seen=seen))
    if rule["name"] == "median":
        assert share is None
        assert {report.clipped for report in seen} == {None}
        return
    assert share
    assert sum(report.clipped or 0 for report in seen) == round(share * 10 * 2 * len(EDGES))
    for report in seen:
        kept = {name: share * report.distances[name] for name, share in (report.clipped_to or {}).items()}
        assert len({f"{radius:.6g}" for radius in kept.values()}) <= 1, "all are clipped to one radius"


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS else pytest.mark.slow) for name in RULE_TABLES]
)
def test_every_rule_gives_the_models_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    monkeypatch.setattr(mixing, "_BLOCK", 5)  # of 21 coordinates
    config = run_config(tmp_path, RULE_TABLES[name])
    expected = simulated(config)
    models = torch.stack(asyncio.run(in_memory(network_of(config, tmp_path))))
    tolerance = rounding(expected, ROUNDS)
    assert apart(models, expected) <= tolerance
    plain, alone = on_few_features("gossip"), on_few_features("clipped-gossip", radius=0.0)
    assert name == "gossip" or apart(expected, plain) > 100 * tolerance, "the rule is not plain gossip"
    assert apart(expected) < 0.8 * apart(alone), "and it mixes"


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_local_steps_give_the_models_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, optimizer: str
) -> None:
    """Three steps between exchanges."""
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    training = {"local_steps": 3, "batches": "epochs", "optimizer": optimizer}
    config = run_config(tmp_path, RULE_TABLES["clipped-gossip"], training=training)
    expected = simulated(config)
    models = torch.stack(asyncio.run(in_memory(network_of(config, tmp_path))))
    assert apart(models, expected) <= rounding(expected, 3 * ROUNDS)
    assert apart(expected, on_few_features("clipped-gossip", radius=0.03)) > 100 * rounding(expected, ROUNDS)


@pytest.mark.parametrize("rule", ["clipped-gossip", "bucketing"])
def test_peers_over_tls_do_too(tmp_path: Path, rule: str) -> None:
    """Whole peers, on digits, with the paper's momentum."""
    training = {"momentum_form": "paper", "momentum": 0.8}
    config = run_config(tmp_path, RULE_TABLES[rule], training=training, network=RING)
    peers = [PeerRun(mine) for mine in network_of(config, tmp_path)]
    threads = [threading.Thread(target=peer.run) for peer in peers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    expected = simulated(config)
    assert [peer.journal.missing for peer in peers] == [0] * len(peers)
    models = torch.stack([model_of(peer.learner) for peer in peers])
    assert apart(models, expected) <= rounding(expected, ROUNDS)


def test_dropout_and_augmentation_are_drawn_alike(tmp_path: Path) -> None:
    config = run_config(
        tmp_path, "gossip", rounds=2, model={"name": "cnn"}, data={"augment": True}, network=RING
    )
    expected = simulated(config)
    models = torch.stack(asyncio.run(in_memory(network_of(config, tmp_path))))
    assert apart(models, expected) <= rounding(expected, ROUNDS)  # other masks would be a thousand times that


BY_GROUP = """
def shares(labels, nodes, groups):
    assert groups == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    place = {node: group for group, members in enumerate(groups) for node in members}
    return [range(place[node] * 100 + node, 300, nodes) for node in range(nodes)]
"""


@pytest.mark.parametrize("partition", ["iid", "sorted", "clique", "dirichlet", "classes", "by_group:shares"])
def test_shares_and_initial_model_are_those_of_the_simulator(tmp_path: Path, partition: str) -> None:
    (tmp_path / "by_group.py").write_text(BY_GROUP)
    network = {"name": "dumbbell", "clique": 5}
    data = {"partition": partition, "samples": 300, "test_samples": 20}
    config = run_config(tmp_path, "gossip", data=data, network=network)
    task = config.build().task
    for row, mine in enumerate(network_of(config, tmp_path)):
        learner = make_learner(mine)
        assert isinstance(learner, TaskLearner)
        size = int(task.sizes[row])
        assert torch.equal(learner.task.table[0], task.table[row, :size])
        assert torch.equal(learner.task.data.test_y, task.data.test_y)
        assert torch.equal(learner.x, task.initial())


def test_data_beside_the_config_are_where_peers_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers looked for relative paths in their own folders."""
    monkeypatch.chdir(tmp_path)
    Path("files").mkdir()
    for part, rows in (("train", 30), ("test", 6)):
        np.save(f"files/{part}_x.npy", np.arange(2 * rows, dtype=np.float32).reshape(rows, 2))
        np.save(f"files/{part}_y.npy", np.arange(rows) % 3)
    config = run_config(Path(), "gossip", data={"name": "npy", "path": "files"}, network=RING)
    table = config.build().task.table
    for row, mine in enumerate(network_of(config, tmp_path)):
        learner = make_learner(mine)
        assert isinstance(learner, TaskLearner)
        assert torch.equal(learner.task.table[0], table[row])
    config = run_config(Path(), "gossip", data={"name": "mnist", "root": "files"}, network=RING)
    assert {mine.data.root for mine in network_of(config, tmp_path / "other")} == {str(tmp_path / "files")}


@pytest.mark.parametrize("form", ["pytorch", "paper"])
def test_a_restart_changes_nothing(form: str) -> None:
    def learner() -> TaskLearner:
        training = decode.section(TrainingConfig, {"momentum_form": form, "lr_drops": [2]}, ())
        data, model = DataConfig(samples=50), ModelConfig("linear")
        return TaskLearner(Config(name="a", run="r", data=data, model=model, training=training))

    through, before = learner(), learner()
    for round in range(5):
        through.load(through.step(round))
        if round < 3:
            before.load(before.step(round))
    after = learner()
    after.restore(before.state())
    for round in range(3, 5):
        after.load(after.step(round))
    assert torch.equal(after.x, through.x)


@pytest.mark.parametrize(
    ("network", "rule", "message"),
    [
        ({"name": "ring", "nodes": 4, "byzantine": [1]}, "gossip", "--misbehave"),
        ({"name": "ring", "nodes": 4, "delay": 2}, "gossip", "late by themselves"),
        ({"name": "ring", "nodes": 4}, {"name": "clipped-gossip", "radius": "oracle"}, "no peer can be"),
        ({"name": "ring", "nodes": 4}, {"name": "krum", "faulty": 1}, "needs at least 3 neighbours"),
        (
            {
                "name": "ring",
                "nodes": 4,
                "schedule": {"name": "phases", "phases": [{"rounds": 1, "edges": [[0, 1]]}]},
            },
            "gossip",
            "do not connect",
        ),
    ],
)
def test_what_peers_lack_is_said(tmp_path: Path, network: dict[str, Any], rule: object, message: str) -> None:
    with pytest.raises(UserError, match=message):
        peers_of(run_config(tmp_path, rule, network=network), run="r")


def test_equal_rules_read_alike_and_others_do_not() -> None:
    def words(**rule: object) -> str:
        return describe_rule(Config(name="a", run="r", rule=rule))

    nested = {"name": "bucketing", "rule": {"name": "krum", "faulty": 1}}
    assert words(name="clipped-gossip") == words(name="clipped-gossip", radius=1)
    assert words(name="clipped-gossip", radius={"adaptive": 0.2}) == words(
        name="clipped-gossip", radius="adaptive", delta_max=0.2
    )
    assert words(**nested) == "bucketing rule=(krum faulty=1) size=2"
    assert words(**nested) == words(size=2, rule={"faulty": 1, "name": "krum"}, name="bucketing")
    long = [words(name="trimmed-mean", trim=[1] * 300 + [last]) for last in (1, 2)]
    assert long[0] != long[1]
    assert max(map(len, long)) <= 256


CHANGING: dict[str, dict[str, Any]] = {
    "random neighbours": {
        "name": "complete",
        "nodes": 6,
        "schedule": {"name": "random-neighbours", "neighbours": 2},
    },
    "random matching": {"name": "complete", "nodes": 6, "schedule": "random-matching"},
    "one peer": {"name": "exponential", "nodes": 6, "schedule": "one-peer-exponential"},
    "churn": {"name": "ring", "nodes": 5, "schedule": {"name": "churn", "leave": 0.3, "join": 0.4}},
    "bridge": {
        "name": "dumbbell",
        "clique": 3,
        "weights": "lazy",
        "schedule": {"name": "phases", "phases": [{"rounds": 2, "without": [[2, 3]]}, {"rounds": 1}]},
    },
    "file": {"file": "five.csv", "schedule": {"name": "file", "file": "rounds.csv"}},
    "own function": {"name": "ring", "nodes": 6, "schedule": {"name": "every_round:links", "each": 2}},
    "optimal weights": {"file": "five.csv", "weights": "optimal"},
    "robust weights": {"file": "five.csv", "weights": {"robust": 1, "cap": 0.2}},
    "optimal weights, matching": {"file": "five.csv", "weights": "optimal", "schedule": "random-matching"},
}
FEW = 12


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize("rule", ["clipped-gossip", pytest.param("median", marks=pytest.mark.slow)])
@pytest.mark.parametrize("network", CHANGING.values(), ids=CHANGING)
def test_networks_that_change_give_the_models_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: dict[str, Any], rule: str
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    (tmp_path / "rounds.csv").write_text("1,0,1\n1,2,3\n2,1,2\n2,0,4\n3,3,4\n")
    (tmp_path / "every_round.py").write_text(
        "def links(round, each: int): return [(i, (i + 1) % 6) for i in range(round % each, 6, each)]\n"
    )
    config = run_config(tmp_path, RULE_TABLES[rule], rounds=FEW, network=network)
    expected = simulated(config)
    models = torch.stack(asyncio.run(in_memory(network_of(config, tmp_path))))
    assert apart(models, expected) <= rounding(expected, FEW)


class LateTransport(MemoryTransport):
    """Its links hand over what was sent so many rounds ago, or only what was sent in some of the rounds."""

    def __init__(self, *arguments: Any, config: Config, delay: Delay) -> None:
        super().__init__(*arguments)
        self.delay, self.me, self.seed = delay, int(config.name), config.seed

    def link(self, neighbour: Neighbour) -> MemoryLink:
        return LateLink(self, neighbour)


class LateLink(MemoryLink):
    """Takes each round's message in its round, and keeps it until it is due."""

    def __init__(self, here: LateTransport, neighbour: Neighbour) -> None:
        super().__init__(here, neighbour)
        self.late, self.held, self.given = here, dict[int, list[bytes]](), -1

    @contextlib.asynccontextmanager
    async def pull(self, request: pb.PullRequest) -> AsyncIterator[Any]:
        now = request.round
        if now not in self.held:
            async with super().pull(request) as parts:
                self.held[now] = [part async for part in parts]
        who = np.array([self.late.me]), np.array([int(self.neighbour.name)])
        due = now - int(self.late.delay.ages(*who, now, self.late.seed)[0])
        if due < 0 or due <= self.given:
            raise Rejected(Rejection.NOTHING_NEW, "it is not due yet")
        self.given = due

        async def parts_of(held: list[bytes]) -> AsyncIterator[bytes]:
            for part in held:
                yield part

        yield parts_of(self.held[due])


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize("delay", [1, 3, {"edges": 2}, {"nodes": 3}], ids=str)
@pytest.mark.parametrize("rule", ["clipped-gossip", pytest.param("median", marks=pytest.mark.slow)])
def test_late_messages_are_those_of_the_simulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, delay: Any, rule: str
) -> None:
    """With `staleness`, a message is used again while no newer one has come."""
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    config = run_config(tmp_path, RULE_TABLES[rule], rounds=FEW)
    late = replace(config, network=replace(config.network, delay=delay))
    expected = simulated(late)
    staleness = 2 if isinstance(delay, dict) else 0
    peers = [replace(peer, staleness=staleness) for peer in network_of(config, tmp_path)]
    made = partial(LateTransport, delay=delay_of(delay))
    loop = SimulatedLoop()
    try:
        models = torch.stack(loop.run_until_complete(in_memory(peers, made, may_miss=True)))
    finally:
        loop.close()
    assert apart(models, expected) <= rounding(expected, FEW)
    assert apart(simulated(config), expected) > 100 * rounding(expected, FEW)


@pytest.mark.usefixtures("few_features")
@pytest.mark.parametrize("behind", [0, 40])
def test_a_peer_far_behind_does_not_hold_up_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, behind: int
) -> None:
    """It was killed and resumed: then it hears others by the links of another round."""
    monkeypatch.setattr(asyncio, "to_thread", at_once)
    config = run_config(tmp_path, "gossip", rounds=60, network=CHANGING["random neighbours"])
    short = Deadlines(least=2, most=2, join=2, linger=1)  # it asks again and again until its deadline
    peers = [replace(peer, deadlines=short) for peer in network_of(config, tmp_path)]
    loop, began, exchange = SimulatedLoop(), dict[int, float](), Node.exchange

    async def timed(node: Node, vector: Tensor) -> Any:
        if node.config.name != "0":
            began[node.round] = loop.time()
        return await exchange(node, vector)

    monkeypatch.setattr(Node, "exchange", timed)
    try:
        loop.run_until_complete(in_memory(peers, may_miss=True, first=(40 - behind, 40, 40, 40, 40, 40)))
    finally:
        loop.close()
    assert began[59] - began[40] < short.least


def test_peers_with_other_schedules_refuse_each_other(tmp_path: Path) -> None:
    drawn = {"name": "random-neighbours", "neighbours": 2}
    config = run_config(tmp_path, "gossip", network=RING | {"nodes": 4, "schedule": drawn})
    peer = network_of(config, tmp_path)[0]
    assert set(peer.network) == {"edges", "weights", "schedule"}
    other = replace(peer, network={**peer.network, "schedule": "random-matching"})
    fewer = replace(peer, network={**peer.network, "edges": peer.network["edges"][1:]})
    words = {describe_rule(one) for one in (peer, other, replace(peer, network={}))}
    assert len(words) == 3
    assert describe_rule(fewer) == describe_rule(peer), "members come and go"
    with pytest.raises(UserError, match="late in the simulator"):
        peers_of(replace(config, network=replace(config.network, delay=2)), run="late")
    for wrong, says in (
        ({"edges": [[0, 9]]}, "names other nodes than 0 to 3"),
        ({"edges": 3}, "is not a list of links"),
        ({"schedule": "nothing"}, "unknown schedule"),
        ({"edge": []}, "edges"),
    ):
        with pytest.raises(UserError, match=says):
            Mixing(replace(peer, network={**peer.network, **wrong}))
