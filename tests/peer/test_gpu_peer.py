"""Peers whose models are on a GPU mix as peers on a CPU do. Skipped where there is none."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.identity import load
from clippedgossip.peer.local_network import read_network, write_network
from clippedgossip.peer.peer_config import Config, Deadlines, Wire
from clippedgossip.peer.session import Peer

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
PEERS, ROUNDS = 4, 5
PATIENT = Deadlines(least=120, most=120, join=120, linger=3)
CLIPPED = {"name": "clipped-gossip", "radius": 60.0}


class Odd(nn.Module):
    """Whatever a user's module may hold: shared, strided, complex and narrow parameters, and buffers."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.first = nn.Linear(40, 30)
        self.tied = nn.Linear(40, 30)
        self.tied.weight = self.first.weight
        self.strided = nn.Parameter(torch.empty(70, 50).T)
        self.narrow = nn.Parameter(torch.empty(999, dtype=torch.bfloat16))
        self.complex = nn.Parameter(torch.empty(33, dtype=torch.complex64))
        self.convolution = nn.Conv2d(8, 8, 3)
        self.convolution.weight.data = torch.empty(8, 8, 3, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        with torch.no_grad():
            for parameter in tensors.trainable(self):
                parameter.copy_(torch.randn(parameter.shape, generator=draw))
            self.norm.running_mean = torch.full((8,), float(seed))


def local_step(model: nn.Module, round: int) -> None:
    """Some work between two exchanges, the same on every device."""
    with torch.no_grad():
        for parameter in tensors.trainable(model):
            parameter.mul_(0.875).add_(0.125 * (round + 1))


@contextmanager
def ring(folder: Path, wire: Wire, rule: dict[str, object]) -> Iterator[list[Peer]]:
    edges = [(i, (i + 1) % PEERS) for i in range(PEERS)]
    template = Config(name="t", run="r", deadlines=PATIENT, rule=rule, wire=wire)
    write_network(edges, PEERS, folder, template)
    with ExitStack() as stack:
        peers = [Peer(config, load(config.folder)) for config in read_network(folder)]
        for peer in peers:
            stack.callback(peer.close, linger=False)
        yield peers


def in_threads(peers: list[Peer], models: list[Odd]) -> None:
    """Each peer in its own loop, as in a process of its own."""
    failures: list[BaseException] = []

    def live(peer: Peer, model: Odd) -> None:
        try:
            for round in range(ROUNDS):
                local_step(model, round)
                assert not peer.mix(model).missing
        except BaseException as error:
            failures.append(error)
            raise

    threads = [
        threading.Thread(target=live, args=each, daemon=True) for each in zip(peers, models, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert not failures, failures
    assert not any(thread.is_alive() for thread in threads)


def in_coroutines(peers: list[Peer], models: list[Odd]) -> None:
    """All peers in one event loop, whose work is queued on a stream of its own, behind something slow."""
    slow = torch.zeros(4000, 4000, device=DEVICE)

    async def live() -> None:
        for round in range(ROUNDS):
            for _ in range(20):
                torch.mm(slow, slow)
            for model in models:
                local_step(model, round)
            reports = await asyncio.gather(*map(Peer.amix, peers, models))
            assert not any(report.missing for report in reports)

    make: Any = torch.cuda.Stream
    stream = make(DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    with torch.cuda.stream(stream):
        asyncio.run(live())
    stream.synchronize()


def mixed(
    folder: Path,
    device: str,
    wire: Wire,
    rule: dict[str, object],
    live: Callable[[list[Peer], list[Odd]], None] = in_threads,
) -> list[Odd]:
    models = [Odd(seed).to(device) for seed in range(PEERS)]
    with ring(folder, wire, rule) as peers:
        live(peers, models)
    return models


def assert_alike(found: list[Odd], expected: list[Odd], wire: Wire) -> None:
    """Up to what the wire and each parameter round to, once a round."""
    on_the_wire = torch.finfo(tensors.DTYPES[wire.dtype]).eps
    for seed, (here, there) in enumerate(zip(found, expected, strict=True)):
        for value, other in zip(tensors.trainable(here), tensors.trainable(there), strict=True):
            rounding = max(on_the_wire, torch.finfo(value.dtype).eps)
            apart = (value.cpu().double() - other.double()).abs().max()
            assert value.device.type == DEVICE
            assert value.dtype == other.dtype
            assert apart <= 2 * ROUNDS * rounding * other.double().abs().max()
        assert here.tied.weight is here.first.weight
        assert torch.equal(here.norm.running_mean.cpu(), torch.full((8,), float(seed)))  # type: ignore[union-attr]  # a module of buffers


def spread(models: list[Odd]) -> float:
    values = torch.stack([model.strided.detach() for model in models])
    return float((values - values.mean(0)).norm())


@pytest.mark.parametrize("rule", [CLIPPED, {"name": "median"}], ids=["clipped-gossip", "median"])
@pytest.mark.parametrize(
    "wire",
    [Wire(), Wire(dtype="bfloat16"), Wire(dtype="bfloat16", zstd=True)],
    ids=["float32", "bfloat16", "bfloat16-zstd"],
)
def test_mix_gives_what_it_gives_on_a_cpu(tmp_path: Path, wire: Wire, rule: dict[str, object]) -> None:
    expected = mixed(tmp_path / "cpu", "cpu", wire, rule)
    found = mixed(tmp_path / "gpu", DEVICE, wire, rule)
    assert_alike(found, expected, wire)
    alone = [Odd(seed) for seed in range(PEERS)]
    for model in alone:
        for round in range(ROUNDS):
            local_step(model, round)
    assert 0 < spread(expected) < 0.7 * spread(alone), "they came nearer, and are not the same already"


def test_amix_takes_its_turn_on_the_callers_stream(tmp_path: Path) -> None:
    expected = mixed(tmp_path / "cpu", "cpu", Wire(), CLIPPED)
    found = mixed(tmp_path / "gpu", DEVICE, Wire(), CLIPPED, in_coroutines)
    assert_alike(found, expected, Wire())


@pytest.mark.gpu("page-locked memory")
def test_a_model_goes_to_page_locked_memory_and_comes_back() -> None:
    model = Odd(0).to(DEVICE)
    parameters = tensors.trainable(model)
    before: list[Tensor] = [parameter.clone() for parameter in parameters]
    vector = tensors.flatten(parameters)
    assert vector.is_pinned()
    assert vector.dtype == torch.float32
    assert torch.equal(vector, torch.cat([value.float().flatten().cpu() for value in before]))
    local_step(model, 0)
    tensors.unflatten(vector, parameters)
    for value, was in zip(tensors.trainable(model), before, strict=True):
        assert torch.equal(value, was)
