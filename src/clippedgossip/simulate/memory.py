"""How much memory a stack of workers takes, said before anything is allocated."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from clippedgossip.attacks import Attack, LinearAttack
from clippedgossip.errors import RunError
from clippedgossip.inbox import worth_a_product
from clippedgossip.network import Network
from clippedgossip.rules import LinearRule, Rule
from clippedgossip.simulate.crew import Crew
from clippedgossip.simulate.setup import Setup
from clippedgossip.tasks import layers

MODEL_COPIES = 6  # models, momentum, half-step, gradients, and two on the way through them
RANK_COPIES = 7  # and one on the way between ranks


def bytes_needed(crew: Crew, copies: int = MODEL_COPIES) -> int:
    """Linear in workers × parameters, and in workers × batch × activations."""
    n, d = len(crew), crew.task.layout.size
    data = sum(t.numel() * t.element_size() for t in (crew.task.data.train_x, crew.task.data.test_x))
    return copies * n * d * 4 + data + n * crew.task.batch * activation_bytes(crew)


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


def refuse_what_does_not_fit(
    crew: Crew, setups: Sequence[Setup], device: torch.device, *, copies: int = MODEL_COPIES, ranks: int = 1
) -> None:
    if device.type != "cuda":
        return
    free, _ = torch.cuda.mem_get_info(device)
    lies = sum(messages(setup.network, setup.rule, setup.attack) for setup in setups)
    needed = bytes_needed(crew, copies) + 2 * lies * crew.task.layout.size * 4 // ranks
    if needed > free:
        raise RunError(
            f"{len(crew)} workers with {crew.task.layout.size:,} parameters need about {needed:,} "
            f"bytes, the GPU has {free:,} free\n"
            "use fewer workers, a smaller batch, or more ranks with torchrun"
        )
