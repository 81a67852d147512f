"""How much memory a run takes, and refusing one that does not fit before anything is allocated."""

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

MODEL_COPIES = 6  # models, momentum, half-steps, gradients, and two for their computation
RANK_COPIES = 7  # one more, for the exchange between ranks


def models_bytes(workers: int, parameters: int, messages: int = 0, *, over_ranks: bool = False) -> int:
    """Of the workers' models in all their copies, and of messages that are written out."""
    return ((RANK_COPIES if over_ranks else MODEL_COPIES) * workers + 2 * messages) * parameters * 4


def setup_bytes(setup: Setup) -> int:
    """What one run takes in a stack, roughly: its models, the messages, what its batches leave."""
    task, module = setup.task, setup.task.module
    kept = 0
    if isinstance(module, nn.Sequential) and layers.supported(module):
        kept = len(task.nodes) * task.batch * layers.activation_elements(module, task.data.shape) * 4
    written = messages(setup.network, setup.rule, setup.attack)
    return models_bytes(len(task.nodes), task.layout.size, written) + kept


def messages(network: Network, rule: Rule, attack: Attack | None) -> int:
    """How many messages of Byzantine nodes are written out in a round; none if coefficients are enough."""
    byzantine = np.zeros(network.n, dtype=bool)
    byzantine[network.byzantine] = True
    receiver = np.repeat(np.arange(network.n), network.degrees)
    count = int((byzantine[network.indices] & ~byzantine[receiver]).sum())
    nodes = len(network.regular)
    slots = nodes * int(network.degrees[network.regular].max(initial=0))
    linear = isinstance(attack, LinearAttack) and isinstance(rule, LinearRule)
    return 0 if attack is None or (linear and worth_a_product(nodes, slots)) else count


def refuse_what_does_not_fit(
    workers: Workers, setups: Sequence[Setup], device: torch.device, *, ranks: int | None = None
) -> None:
    """Raise if the workers of this process need more memory than is free. `ranks` is None on one device."""
    task, size = workers.task, workers.task.layout.size
    written = sum(messages(setup.network, setup.rule, setup.attack) for setup in setups)
    needed = (
        models_bytes(len(workers), size, over_ranks=ranks is not None)
        + models_bytes(0, size, written) // (ranks or 1)
        + sum(x.numel() * x.element_size() for x in (task.data.train_x, task.data.test_x))
        + (len(workers) if workers.stacks else 1) * task.batch * workers.activation_bytes
    )
    free = free_memory(device)
    if needed > free:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise RunError(
            f"{len(workers)} workers with {size:,} parameters need about {needed:,} bytes, "
            f"{where} has {free:,} free\n"
            "use fewer workers, a smaller batch, or more ranks with torchrun"
        )
