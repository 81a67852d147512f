"""Peer in a user's own loop, over real sockets."""

import asyncio
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from clippedgossip.errors import UserError
from clippedgossip.peer import checkpoint, identity
from clippedgossip.peer import peer_config as config
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.checkpoint import Checkpoint
from clippedgossip.peer.learner import ModuleLearner, make_learner
from clippedgossip.peer.local_network import read_network, write_network
from clippedgossip.peer.loop import PeerRun, run_peer
from clippedgossip.peer.peer_config import Config, Deadlines, Wire
from clippedgossip.peer.session import Peer
from clippedgossip.peer.telemetry import read_status
from clippedgossip.records import RunDirectory
from clippedgossip.settings import TrainingConfig
from tests.rounding import near

PATIENT = Deadlines(least=20, most=20, join=20, linger=3)
RING = [(i, (i + 1) % 4) for i in range(4)]


@contextmanager
def ring(tmp_path: Path, **changes: object) -> Iterator[list[Peer]]:
    settings: dict[str, object] = {"deadlines": PATIENT, "rule": {"name": "gossip"}, **changes}
    template = Config(name="t", run="r", **settings)  # type: ignore[arg-type]  # settings by name
    write_network(RING, 4, tmp_path / "net", template)
    with ExitStack() as stack:
        peers = [Peer(c, identity.load(c.folder)) for c in read_network(tmp_path / "net")]
        for peer in peers:
            stack.callback(peer.close, linger=False)
        yield peers


def together(peers: list[Peer], models: list[nn.Module]) -> None:
    threads = [threading.Thread(target=g.mix, args=(m,)) for g, m in zip(peers, models, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def constant(value: float) -> nn.Module:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    for parameter in model.parameters():
        nn.init.constant_(parameter, value)
    return model


@pytest.mark.parametrize("wire", [Wire(), Wire(dtype="bfloat16", zstd=True)])
def test_mix_brings_models_together(tmp_path: Path, wire: Wire) -> None:
    models = [constant(float(i)) for i in range(4)]
    buffers = models[0].state_dict()["1.running_mean"].clone()
    with ring(tmp_path, wire=wire) as peers:
        for _ in range(12):
            together(peers, models)
        assert [peer.round for peer in peers] == [12] * 4
    # Twelve rounds leave (1/3)¹² of what models differ by; bfloat16 rounds 1.5 by 0.004, in several rounds.
    within = 1e-5 if wire == Wire() else 0.02
    for model in models:
        for parameter in model.parameters():
            assert torch.allclose(parameter, torch.full_like(parameter, 1.5), rtol=0, atol=within)
    assert torch.equal(models[0].state_dict()["1.running_mean"], buffers)


class Odd(nn.Module):
    """Shared, strided, complex and narrow parameters, and whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tied = nn.Linear(4, 3), nn.Linear(4, 3)
        self.tied.weight = self.first.weight
        self.strided = nn.Parameter(torch.randn(4, 5).T)
        self.narrow = nn.Parameter(torch.randn(7).bfloat16())
        self.complex = nn.Parameter(torch.randn(2, dtype=torch.complex64))
        self.whole = nn.Parameter(torch.arange(3), requires_grad=False)


def test_any_parameters_travel_and_come_back() -> None:
    model = Odd()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.set_default_dtype(torch.float64)
    try:
        vector = tensors.flatten(tensors.trainable(model))
    finally:
        torch.set_default_dtype(torch.float32)
    assert vector.dtype == torch.float32
    assert len(vector) == 4 * 3 + 3 + 3 + 20 + 7 + 2 * 2, "shared ones once, whole numbers not at all"
    with torch.no_grad():
        for parameter in tensors.trainable(model):
            parameter.zero_()
    tensors.unflatten(vector, tensors.trainable(model))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize("most", [1, 6, 1000])
def test_parameters_are_written_a_block_at_a_time(most: int) -> None:
    parameters = tensors.trainable(Odd())
    before = tensors.flatten(parameters)
    start = 0
    for block in tensors.blocks(parameters, most):
        size = sum(piece.numel() for piece in block)
        assert size <= max(most, 4), "a row of what is strided is not cut"
        tensors.unflatten(before[start : start + size] + 1, block)
        start += size
    assert start == len(before)
    # bfloat16 rounds numbers of up to 4 by up to 1/128.
    assert torch.allclose(tensors.flatten(parameters), before + 1, rtol=0, atol=1 / 128)


def test_a_module_without_parameters_is_refused(tmp_path: Path) -> None:
    with ring(tmp_path) as peers, pytest.raises(UserError, match="no parameters"):
        peers[0].mix(nn.ReLU())


def test_ones_own_loop_tells_of_itself(tmp_path: Path) -> None:
    with ring(tmp_path) as peers:
        together(peers, [constant(float(i)) for i in range(4)])
        folder = peers[0].config.folder
        status = read_status(folder)
        assert status is not None
        assert status["running"]
        assert (status["round"], status["score"], status["missing"]) == (1, None, 0)
        assert status["links"] == {"1": True, "3": True}
        assert status["neighbour_distance"] > 0
        with urllib.request.urlopen(f"http://{status['metrics']}/metrics", timeout=20) as answer:
            assert "clippedgossip_round 1.0" in answer.read().decode()
    status = read_status(folder)
    assert status is not None
    assert not status["running"], "this process lives, its peer does not"
    (run,) = (folder / "runs").iterdir()
    assert [record.round for record in RunDirectory(run).rounds()] == [0]


def test_amix_leaves_the_event_loop_free(tmp_path: Path) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    async def scenario(peers: list[Peer]) -> None:
        ticking = asyncio.create_task(tick())
        late = constant(3.0)
        first = [asyncio.create_task(g.amix(constant(1.0))) for g in peers[:3]]
        await asyncio.sleep(0.3)
        before = ticks
        await asyncio.sleep(0.3)
        assert ticks > before + 5, "waiting for a neighbour does not block this loop"
        await asyncio.gather(peers[3].amix(late), *first)
        ticking.cancel()

    with ring(tmp_path) as peers:
        asyncio.run(scenario(peers))


def test_a_rule_that_compares_losses_takes_them_from_ones_own_samples(tmp_path: Path) -> None:
    asked: list[tuple[float, int, bool]] = []

    def loss(model: nn.Module, round: int) -> Tensor:
        value = next(model.parameters()).mean()
        asked.append((float(value), round, model.training))
        return (value - 3.0).abs()

    rule = {"name": "mozi", "keep": 1.0, "self_weight": 0.25}
    models = [constant(float(i)) for i in range(4)]
    with ring(tmp_path, rule=rule) as peers:
        for peer in peers:
            peer.loss = loss
        together(peers, models)
    # Of its two neighbours each takes those that are no further from 3; node 3 has none and takes the best.
    found = [float(next(model.parameters()).detach().mean()) for model in models]
    assert found == near([0.75 * (1 + 3) / 2, 0.25 + 0.75 * 2, 0.5 + 0.75 * 3, 0.75 + 0.75 * 2])
    assert all(model.training for model in models)
    assert {(round, training) for _, round, training in asked} == {(0, False)}


def test_of_the_messages_that_mozi_drops_no_loss_is_asked_for(tmp_path: Path) -> None:
    asked: list[float] = []

    def loss(model: nn.Module, round: int) -> Tensor:
        asked.append(float(next(model.parameters()).mean()))
        return next(model.parameters()).mean()

    with ring(tmp_path, rule={"name": "mozi", "keep": 0.5}) as peers:
        for peer in peers:
            peer.loss = loss
        together(peers, [constant(value) for value in (0.0, 1.0, 3.0, 7.0)])
    # Each tries its own model, and that of its nearest neighbour: those of 0, 1, 3 and 7 are 1, 0, 1 and 3.
    assert sorted(asked) == [0, 0, 1, 1, 1, 3, 3, 7]


def test_a_rule_that_compares_losses_says_what_it_lacks(tmp_path: Path) -> None:
    config = Config(name="a", run="r", rule={"name": "bucketing", "rule": {"name": "mozi"}}, folder=tmp_path)
    identity.save(identity.create(), tmp_path)
    learner = ModuleLearner(nn.Linear(2, 1), lambda round: None)
    with pytest.raises(UserError, match="loss="):
        Peer(config, identity.load(tmp_path), model=nn.Linear(2, 1))
    with pytest.raises(UserError, match="loss="):
        PeerRun(config, learner=learner)
    peer = Peer(config, identity.load(tmp_path))
    with pytest.raises(UserError, match="loss="):
        peer.mix(nn.Linear(2, 1))
    peer.close()


def test_a_learner_of_ones_own_is_kept_with_its_optimizer() -> None:
    def build() -> tuple[ModuleLearner, torch.optim.Optimizer]:
        model = nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def step(round: int) -> None:
            optimizer.zero_grad()
            model(torch.ones(4, 2)).square().mean().backward()
            optimizer.step()

        return ModuleLearner(model, step, optimizer=optimizer), optimizer

    first, _ = build()
    first.step(0)
    second, _ = build()
    second.restore(first.state())
    assert torch.equal(first.step(1), second.step(1))
    assert first.length == 3


def test_tied_weights_are_kept(tmp_path: Path) -> None:
    first, second = (ModuleLearner(Odd(), lambda round: None) for _ in range(2))
    checkpoint.save(Checkpoint(run="r", round=1, tensors=first.state()), tmp_path)
    found = checkpoint.load(tmp_path, "r")
    assert found is not None
    second.restore(found.tensors)
    assert torch.equal(first.step(1), second.step(1))


def test_an_entry_point_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "my_task_for_test.py").write_text(
        "from torch import nn\n"
        "from clippedgossip.peer.learner import ModuleLearner\n"
        "def make(config):\n"
        "    return ModuleLearner(nn.Linear(2, config.seed), lambda round: None)\n"
    )
    made = make_learner(
        Config(name="a", run="r", seed=5, folder=tmp_path, learner={"name": "my_task_for_test:make"})
    )
    assert made.length == 15


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(): pass", "cannot be called with the peer's config alone"),
        ("def make(config): raise RuntimeError('boom')", "my_wrong_task.*py.*boom"),
        ("def make(config): return 7", "made an int"),
        ("import no_such_module", "no_such_module"),
    ],
)
def test_an_entry_point_that_fails_is_named(tmp_path: Path, code: str, message: str) -> None:
    name = f"my_wrong_task{abs(hash(code))}"
    (tmp_path / f"{name}.py").write_text(code)
    with pytest.raises(UserError, match=message):
        make_learner(Config(name="a", run="r", folder=tmp_path, learner={"name": f"{name}:make"}))


def test_frozen_parameters_stay_home(tmp_path: Path) -> None:
    """Of an adapted layer only the adapter travels; and whoever freezes something else is told."""

    def adapted(frozen: str = "base") -> nn.Module:
        model = nn.ModuleDict({"base": nn.Linear(100, 100), "adapter": nn.Linear(100, 2)})
        model[frozen].requires_grad_(False)
        return model

    model = adapted()
    assert sum(p.numel() for p in tensors.trainable(model)) == 202
    assert tensors.tensor_names(model) == ("adapter.weight 2x100", "adapter.bias 2")
    assert tensors.tensor_names(torch.nn.DataParallel(model)) == tensors.tensor_names(model)
    models = [adapted() for _ in range(4)]
    bases = [m["base"].weight.clone() for m in models]  # type: ignore[index]  # a ModuleDict
    with ring(tmp_path) as peers:
        for _ in range(8):  # leave (1/3)⁸ of the differences, which are below 0.2
            together(peers, models)
        assert peers[0].node is not None
        assert peers[0].node.length == 202
    for model, base in zip(models, bases, strict=True):
        assert torch.equal(model["base"].weight, base)  # type: ignore[index]  # a Module, to the type checker
        assert torch.allclose(model["adapter"].weight, models[0]["adapter"].weight, rtol=0, atol=1e-4)  # type: ignore[index]  # a Module, to the type checker


def test_a_folder_is_for_one_peer_at_a_time(tmp_path: Path) -> None:
    identity.save(identity.create(), tmp_path)
    (tmp_path / config.CONFIG_FILE).write_text(config.dump(Config(name="a", run="r")))
    with Peer.from_config(tmp_path / config.CONFIG_FILE):
        with pytest.raises(UserError, match=r"is running in .* already; nothing was changed"):
            Peer.from_config(tmp_path / config.CONFIG_FILE)
        with pytest.raises(UserError, match="already"):
            run_peer(config.load(tmp_path))
    Peer.from_config(tmp_path / config.CONFIG_FILE).close()


def test_from_config_reads_a_folder(tmp_path: Path) -> None:
    identity.save(identity.create(), tmp_path)
    (tmp_path / config.CONFIG_FILE).write_text(config.dump(Config(name="a", run="r")))
    peer = Peer.from_config(tmp_path / config.CONFIG_FILE)
    assert peer.round == 0
    peer.close()


def test_a_loop_that_is_run_again_is_told_to_name_a_new_run(tmp_path: Path) -> None:
    alone = Deadlines(least=0.01, most=0.01, join=0, linger=0)
    identity.save(identity.create(), tmp_path)
    mine = Config(name="a", run="r", deadlines=alone, folder=tmp_path, training=TrainingConfig(rounds=2))
    model = nn.Linear(2, 1)
    for first in (0, 1):  # stopped after its first round, it goes on
        with Peer(mine, identity.load(tmp_path), model=model, round=first) as peer:
            peer.mix(model)
    with pytest.raises(UserError, match="choose a new run"):
        Peer(mine, identity.load(tmp_path), model=model)
    Peer(replace(mine, run="another"), identity.load(tmp_path), model=model).close()
