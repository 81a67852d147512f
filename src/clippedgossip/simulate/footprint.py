"""How much memory a stack of workers takes, said before anything is allocated."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import nn

from clippedgossip.attacks import Attack, LinearAttack
from clippedgossip.errors import RunError
from clippedgossip.mixing.inbox import worth_a_product
from clippedgossip.network import Network
from clippedgossip.rules import LinearRule, Rule
from clippedgossip.simulate.setup import Setup
from clippedgossip.simulate.stack import Crew
from clippedgossip.tasks import stacked_layers as layers

MODEL_COPIES = 6  # models, momentum, half-step, gradients, and two on the way through them
RANK_COPIES = 7  # and one on the way between ranks


def bytes_needed(crew: Crew, copies: int = MODEL_COPIES) -> int:
    """Linear in workers × parameters, and in workers × batch × activations."""
    n, d = len(crew), crew.task.layout.size
    data = sum(t.numel() * t.element_size() for t in (crew.task.data.train_x, crew.task.data.test_x))
    at_once = n if crew.work.stacks else 1
    return copies * n * d * 4 + data + at_once * crew.task.batch * activation_bytes(crew)


def activation_bytes(crew: Crew) -> int:
    """What one sample's forward pass leaves for the backward pass."""
    if not (isinstance(crew.task.module, nn.Sequential) and layers.supported(crew.task.module)):
        return 0
    return layers.activation_elements(crew.task.module, crew.task.data.shape) * crew.work.dtype.itemsize


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


def free_memory(device: torch.device | str) -> int:
    """Bytes that a device has left; of a machine, those it can take back from its caches as well."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    bounds = [sys.maxsize]
    with suppress(OSError, ValueError, AttributeError):  # not on every system
        bounds.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # a container's limit, where there is one
        bounds.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    return min(bounds)


def refuse_what_does_not_fit(
    crew: Crew, setups: Sequence[Setup], device: torch.device, *, copies: int = MODEL_COPIES, ranks: int = 1
) -> None:
    free = free_memory(device)
    lies = sum(messages(setup.network, setup.rule, setup.attack) for setup in setups)
    needed = bytes_needed(crew, copies) + 2 * lies * crew.task.layout.size * 4 // ranks
    if needed > free:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise RunError(
            f"{len(crew)} workers with {crew.task.layout.size:,} parameters need about {needed:,} "
            f"bytes, {where} has {free:,} free\n"
            "use fewer workers, a smaller batch, or more ranks with torchrun"
        )
