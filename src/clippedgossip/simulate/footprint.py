"""How much memory a stack of workers takes, said before anything is allocated."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from clippedgossip.attacks import Attack, LinearAttack
from clippedgossip.devices import free_memory
from clippedgossip.errors import RunError
from clippedgossip.mixing.inbox import worth_a_product
from clippedgossip.network import Network
from clippedgossip.rules import LinearRule, Rule
from clippedgossip.simulate.setup import Setup
from clippedgossip.tasks import stacked_layers as layers
from clippedgossip.tasks.workers import Workers

MODEL_COPIES = 6  # models, momentum, half-step, gradients, and two on the way through them
RANK_COPIES = 7  # and one on the way between ranks


def bytes_needed(workers: Workers, copies: int = MODEL_COPIES) -> int:
    """Linear in workers × parameters, and in workers × batch × activations."""
    n, d = len(workers), workers.task.layout.size
    data = sum(t.numel() * t.element_size() for t in (workers.task.data.train_x, workers.task.data.test_x))
    at_once = n if workers.stacks else 1
    return copies * n * d * 4 + data + at_once * workers.task.batch * activation_bytes(workers)


def setup_bytes(setup: Setup) -> int:
    """What one run takes in a stack, roughly: its models, the messages, what its batches leave."""
    task, module = setup.task, setup.task.module
    written = 2 * messages(setup.network, setup.rule, setup.attack)
    kept = 0
    if isinstance(module, nn.Sequential) and layers.supported(module):
        kept = len(task.nodes) * task.batch * layers.activation_elements(module, task.data.shape)
    return ((MODEL_COPIES * len(task.nodes) + written) * task.layout.size + kept) * 4


def activation_bytes(workers: Workers) -> int:
    """What one sample's forward pass leaves for the backward pass."""
    if not (isinstance(workers.task.module, nn.Sequential) and layers.supported(workers.task.module)):
        return 0
    return layers.activation_elements(workers.task.module, workers.task.data.shape) * workers.dtype.itemsize


def messages(network: Network, rule: Rule, attack: Attack | None) -> int:
    """How many models the attackers write out in a round: none if sums of the models in flight will do."""
    liar = np.zeros(network.n, dtype=bool)
    liar[network.byzantine] = True
    receiver = np.repeat(np.arange(network.n), network.degrees)
    count = int((liar[network.indices] & ~liar[receiver]).sum())
    nodes = len(network.regular)
    slots = nodes * int(network.degrees[network.regular].max(initial=0))
    summed = isinstance(attack, LinearAttack) and isinstance(rule, LinearRule)
    return 0 if attack is None or (summed and worth_a_product(nodes, slots)) else count


def refuse_what_does_not_fit(
    workers: Workers,
    setups: Sequence[Setup],
    device: torch.device,
    *,
    copies: int = MODEL_COPIES,
    ranks: int = 1,
) -> None:
    free = free_memory(device)
    lies = sum(messages(setup.network, setup.rule, setup.attack) for setup in setups)
    needed = bytes_needed(workers, copies) + 2 * lies * workers.task.layout.size * 4 // ranks
    if needed > free:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise RunError(
            f"{len(workers)} workers with {workers.task.layout.size:,} parameters need about {needed:,} "
            f"bytes, {where} has {free:,} free\n"
            "use fewer workers, a smaller batch, or more ranks with torchrun"
        )
