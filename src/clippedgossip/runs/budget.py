"""What a run needs: memory, traffic between ranks, time. Computed without allocating anything."""

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from clippedgossip.attacks import Attack, Tuned
from clippedgossip.errors import DataError, RunError
from clippedgossip.network import Network
from clippedgossip.randomness import drawn_from
from clippedgossip.rules import Mozi, Rule
from clippedgossip.rules.premix import Premix
from clippedgossip.runs.config import RunConfig
from clippedgossip.simulate.setup import (
    at_once,
    checked_counts,
    evaluation_memory,
    kept_bytes,
    messages,
    models_bytes,
    refuse_disconnected,
)
from clippedgossip.tasks import DataSet
from clippedgossip.tasks.datasets import FILES, at, leaves, stays_on_host
from clippedgossip.tasks.models import ParameterLayout
from clippedgossip.tasks.module_function import activation_cost, evaluation_cost, product_cost
from clippedgossip.tasks.objective import find_metric, usual_loss

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
    """The limits of a device."""

    flops: float  # floating-point operations a second, in large products
    bandwidth: float  # bytes a second, read and written


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one rank needs: bytes, and operations in a round."""

    workers: int
    parameters: int
    ranks: int
    models_bytes: int
    activations_bytes: int
    data_bytes: int  # of all samples; of a step's, if the samples stay in host memory
    data_on_host: bool  # whether samples stay in host memory or in files, and are drawn ahead of each step
    traffic_bytes: int
    """Sent by the rank in a round: two transposes, inner products, and what Mozi and tuned attacks add."""
    gathered_bytes: int  # CPU memory of rank 0 while it writes a checkpoint
    operations: float  # operations of the rank's gradients and mixing in a round
    touched_bytes: float  # bytes read and written in a round, without those of the gradients

    @property
    def memory_bytes(self) -> int:
        return self.models_bytes + self.activations_bytes + self.data_bytes

    def seconds(self, ceilings: Ceilings) -> float:
        """The time of a round at the device's limits: no round is faster, and most are close to it."""
        computing = self.operations / ceilings.flops + self.touched_bytes / ceilings.bandwidth
        return computing + self.traffic_bytes / LINK


def _module(config: RunConfig, shape: tuple[int, ...], classes: int | None) -> nn.Module:
    """The model without its numbers. A user's own whose constructor reads a number is made with numbers."""
    build: Callable[[], nn.Module] = partial(config.model.thing.build, given=(shape, classes))
    with suppress(Exception), torch.device("meta"):
        return build()
    with drawn_from(0):
        return build().to("meta")


def plan(config: RunConfig, *, ranks: int = 1, device: str = "cpu") -> Plan:
    """Models take 6·n·d·4 bytes. Over ranks 7·n·d·4; a rank sends 2·(n/ranks)·d·4·(ranks−1)/ranks a round."""
    network = config.network.build()
    attack = None if config.attack is None else config.attack.build()
    n = len(network.regular) + (len(network.byzantine) if attack is not None and attack.trains else 0)
    if not 1 <= ranks <= n:
        raise RunError(f"{ranks} ranks for {n} workers; use 1 to {n} ranks")
    shape: tuple[int, ...]
    classes: int | None
    if config.data.name in SAMPLES:
        (train, test, shape), classes = SAMPLES[config.data.name], CLASSES
        x, y = torch.empty(2, *shape, device="meta"), torch.zeros(2, dtype=torch.long)
        each = math.prod(shape) + 8
    else:
        data = config.data.load()
        train, test, shape, classes = data.count, data.tests, data.shape, data.classes
        x, y = data.normalise(at(data.train_x, slice(0, 2))), at(data.train_y, slice(0, 2))
        each = sum(leaf[0].numel() * leaf.element_size() for leaf in leaves((data.train_x, data.train_y)))
    train, test = config.data.samples or train, config.data.test_samples or test
    held, in_files = (train + test) * each, config.data.name == FILES
    place = torch.device(device)
    on_host = stays_on_host(held, config.data.keep, place, in_files=in_files)
    module = _module(config, shape, classes)
    on_gpu = place.type == "cuda"
    objective = config.training.objective()
    loss = usual_loss(objective["loss"], classes, config.model.name)
    try:
        kept = activation_cost(module, loss, x, y, on_gpu=on_gpu, precision=config.training.precision)
        products = product_cost(module, loss, x, y, on_gpu=on_gpu)
        tested = evaluation_cost(module, loss, find_metric(objective["metric"], loss, classes), x, y)
    except Exception as error:  # a module of the user's own may do anything with its inputs
        raise RunError(
            f"model {config.model.name!r} cannot be tried without computing: {error}\n"
            "its memory is not known; run this model without --plan"
        ) from error
    d = ParameterLayout.of(module).size
    mine, batch = math.ceil(n / ranks), config.training.batch
    gradient = 3.0 * batch * products  # forward once, backward twice
    rule = config.rule.build(network, rounds=config.training.rounds, seed=config.seed)
    rows = n + messages(network, rule, attack)
    slots, steps = len(config.training.build().optimizer.slots), config.training.local_steps
    copies = models_bytes(n, d, rows - n, over_ranks=ranks > 1, slots=slots) + kept_bytes(network, d)
    return Plan(
        workers=n,
        parameters=d,
        ranks=ranks,
        models_bytes=math.ceil(copies / ranks),
        activations_bytes=at_once(mine, module, place) * batch * kept
        + evaluation_memory(tested, test, place),
        data_bytes=mine * batch * each if on_host else held,
        data_on_host=on_host,
        traffic_bytes=_traffic(rule, attack, network, rows, mine * d * 4, ranks),
        gathered_bytes=(1 + slots) * n * d * 4 if ranks > 1 else 0,
        operations=steps * mine * gradient + 2 * 2 * rows * n * d / ranks,
        touched_bytes=2 * copies / ranks,
    )


def check(config: RunConfig) -> None:
    """Refuse what the run would refuse before its first round. Samples of the same shape stand for data that
    are not on this machine."""
    wanted = config.data
    try:
        data = wanted.load()
    except DataError:
        if wanted.name not in SAMPLES:
            raise
        train, test, shape = SAMPLES[wanted.name]
        (x, y), (test_x, test_y) = (
            (torch.zeros(1, *shape).expand(count, *shape), torch.arange(count) % CLASSES)
            for count in (train, test)
        )
        data = DataSet.of(x, y, test_x, test_y, wanted.name).part(wanted.samples, wanted.test_samples)
    setup = config.build(data)
    refuse_disconnected(setup.network, setup.training.rounds, setup.seed)
    checked_counts(setup.network, setup.rule, setup.training.rounds, setup.seed)


def measure(device: str = "cpu") -> Ceilings:
    """Measure this device's limits; takes about half a second."""
    size = 8192 if device.startswith("cuda") else 1024
    a = torch.ones(size, size, device=device)
    b, c = torch.ones(2, 16 << 20, device=device)
    product = _fastest(lambda: a @ a, device)
    copied = _fastest(lambda: b.copy_(c), device)
    return Ceilings(flops=2 * size**3 / product, bandwidth=2 * b.numel() * 4 / copied)


def _traffic(rule: Rule, attack: Attack | None, network: Network, rows: int, stack: int, ranks: int) -> int:
    """`stack` are the bytes of the rank's own models; a transpose sends all of them but 1/ranks."""
    while isinstance(rule, Premix):
        rule = rule.rule
    mixings = 2 + 2 * (attack.steps + attack.refinements) if isinstance(attack, Tuned) else 1
    messages = rule.kept(int(network.degrees.max(initial=0))) + 1 if isinstance(rule, Mozi) else 0
    inner_products = 2 * 8 * (rows + 1) ** 2
    return ((2 + mixings * messages) * stack + mixings * inner_products) * (ranks - 1) // ranks


def _fastest(work: Callable[[], object], device: str) -> float:
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        work()
        if device.startswith("cuda"):
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best
