"""What a run will take, said before anything is allocated: memory, traffic between ranks, time."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from clippedgossip.attacks import Attack, Tuned
from clippedgossip.errors import RunError
from clippedgossip.network import Network
from clippedgossip.rules import Mozi, Rule
from clippedgossip.rules.premix import Premix
from clippedgossip.runs.config import RunConfig
from clippedgossip.simulate.footprint import messages, models_bytes
from clippedgossip.tasks import MODELS
from clippedgossip.tasks import stacked_layers as layers

SAMPLES = {  # data set: samples to train on and to test on, shape of one, in bytes
    "digits": (1442, 355, (1, 8, 8)),
    "mnist": (60_000, 10_000, (1, 28, 28)),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28)),
    "cifar10": (50_000, 10_000, (3, 32, 32)),
}
CLASSES = 10
LINK = 1.25e9  # bytes a second between ranks: 10 Gbit/s, a common network


@dataclass(frozen=True, kw_only=True)
class Ceilings:
    """What a device can do at best."""

    flops: float
    """Floating-point operations a second, in large products."""
    bandwidth: float
    """Bytes a second, read and written."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Of one rank; bytes, and operations in a round."""

    workers: int
    parameters: int
    ranks: int
    models_bytes: int
    activations_bytes: int
    data_bytes: int
    traffic_bytes: int
    """Sent by the rank in a round: two transposes and the inner products; what Mozi and tuned attacks add."""
    gathered_bytes: int
    """Of the host's memory on rank 0, while it writes a checkpoint."""
    operations: float
    """Of the rank's gradients and mixing in a round."""
    touched_bytes: float
    """Read and written in a round beside the gradients."""

    @property
    def memory_bytes(self) -> int:
        return self.models_bytes + self.activations_bytes + self.data_bytes

    def seconds(self, ceilings: Ceilings) -> float:
        """A round at the ceilings: no round is faster, most are not far from it."""
        computing = self.operations / ceilings.flops + self.touched_bytes / ceilings.bandwidth
        return computing + self.traffic_bytes / LINK


def plan(config: RunConfig, *, ranks: int = 1, device: str = "cpu") -> Plan:
    """6·n·d·4 bytes of models; over ranks 7·n·d·4, and each sends 2·(n/ranks)·d·4·(ranks−1)/ranks a round."""
    network = config.network.build()
    attack = None if config.attack is None else config.attack.build()
    n = len(network.regular) + (len(network.byzantine) if attack is not None and attack.trains else 0)
    if not 1 <= ranks <= n:
        raise RunError(f"{ranks} ranks for {n} workers; use 1 to {n} ranks")
    train, test, shape = SAMPLES[config.data.name]
    train, test = config.data.samples or train, config.data.test_samples or test
    with torch.device("meta"):
        module = MODELS[config.model.name](shape, CLASSES)
    assert isinstance(module, nn.Sequential)
    d = sum(parameter.numel() for parameter in module.parameters())
    mine, batch = math.ceil(n / ranks), config.training.batch
    at_once = mine if device.startswith("cuda") or not layers.has_convolutions(module) else 1
    itemsize = 2 if config.training.precision == "bfloat16" else 4
    gradient = 6.0 * batch * products(module, shape)  # 2 operations each, forward once and backward twice
    rule = config.rule.build(network)
    rows = n + messages(network, rule, attack)
    copies = models_bytes(n, d, rows - n, over_ranks=ranks > 1)
    return Plan(
        workers=n,
        parameters=d,
        ranks=ranks,
        models_bytes=math.ceil(copies / ranks),
        activations_bytes=at_once * batch * layers.activation_elements(module, shape) * itemsize,
        data_bytes=(train + test) * (math.prod(shape) + 8),
        traffic_bytes=_traffic(rule, attack, network, rows, mine * d * 4, ranks),
        gathered_bytes=2 * n * d * 4 if ranks > 1 else 0,
        operations=mine * gradient + 2 * 2 * rows * n * d / ranks,
        touched_bytes=2 * copies / ranks,
    )


def products(module: nn.Sequential, shape: tuple[int, ...]) -> int:
    """Multiplications of one sample's forward pass."""
    total, current = 0, shape
    for layer in module:
        if isinstance(layer, nn.Conv2d):
            (rows, columns), padding = layer.kernel_size, layer.padding
            pad = padding if isinstance(padding, tuple) else (0, 0)
            high, wide = current[1] + 2 * pad[0] - rows + 1, current[2] + 2 * pad[1] - columns + 1
            total += high * wide * layer.weight.numel()
            current = (layer.out_channels, high, wide)
        elif isinstance(layer, nn.MaxPool2d):
            size = layer.kernel_size if isinstance(layer.kernel_size, int) else layer.kernel_size[0]
            current = (current[0], current[1] // size, current[2] // size)
        elif isinstance(layer, nn.Linear):
            total += layer.weight.numel()
    return total


def measure(device: str = "cpu") -> Ceilings:
    """This machine's ceilings, in about half a second."""
    size = 8192 if device.startswith("cuda") else 1024
    a = torch.ones(size, size, device=device)
    b, c = torch.ones(2, 16 << 20, device=device)
    product = _fastest(lambda: a @ a, device)
    copied = _fastest(lambda: b.copy_(c), device)
    return Ceilings(flops=2 * size**3 / product, bandwidth=2 * b.numel() * 4 / copied)


def _traffic(rule: Rule, attack: Attack | None, network: Network, rows: int, stack: int, ranks: int) -> int:
    """`stack` are the bytes of the rank's own models; each time they are turned, 1/ranks of them stays."""
    while isinstance(rule, Premix):
        rule = rule.rule
    mixings = 2 + 2 * (attack.steps + attack.refinements) if isinstance(attack, Tuned) else 1
    messages = int(network.degrees.max(initial=0)) + 1 if isinstance(rule, Mozi) else 0
    inner_products = 2 * 8 * (rows + 1) ** 2
    return ((2 + mixings * messages) * stack + mixings * inner_products) * (ranks - 1) // ranks


def _fastest(work: Callable[[], object], device: str, times: int = 5) -> float:
    best = math.inf
    for _ in range(times):
        start = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best
