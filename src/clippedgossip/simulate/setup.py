"""What a training run is made of, and the checks before it starts: nodes, connectivity, memory."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from clippedgossip.attacks import Attack, LinearAttack
from clippedgossip.devices import free_memory
from clippedgossip.errors import ConfigError, NetworkError, RunError
from clippedgossip.mixing.inbox import worth_a_product
from clippedgossip.network import Network
from clippedgossip.rules import LinearRule, Rule
from clippedgossip.settings import Training as Training
from clippedgossip.settings import must_be
from clippedgossip.tasks import Task
from clippedgossip.tasks import stacked_layers as layers
from clippedgossip.tasks.workers import Workers

MODEL_COPIES = 6  # models, momentum, half-steps, gradients, and two for their computation
RANK_COPIES = 7  # one more, for the exchange between ranks


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """A run: the network, the task, the rule and the attack.

    The task's nodes are the regular ones, followed by the Byzantine ones if the attack has them train.
    """

    network: Network
    task: Task
    rule: Rule
    attack: Attack | None = None
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        must_be("network", self.network, Network, "Network(graph)")
        must_be("task", self.task, Task, "tasks.make_task(data, shares, model, seed=0)")
        must_be("rule", self.rule, Rule, "rules.ClippedGossip()")
        if self.attack is not None:
            must_be("attack", self.attack, Attack, "attacks.Dissensus()")
        regular, byzantine = self.network.regular.tolist(), self.network.byzantine.tolist()
        nodes = self.task.nodes.tolist()
        if nodes not in (regular, [*regular, *byzantine]):
            raise ConfigError(
                f"the task is for nodes {_some(nodes)}; the network's regular nodes are {_some(regular)}\n"
                "give make_task nodes=network.regular.tolist() and a share for each (and network.byzantine "
                "behind them, where the attack trains)"
            )


def refuse_disconnected(network: Network) -> None:
    """The paper's Assumption (connectivity): without it no rule can reach consensus."""
    if not network.connected:
        parts = network.components
        sizes = ", ".join(str(len(part)) for part in parts[:5]) + (", …" if len(parts) > 5 else "")
        raise NetworkError(
            f"the regular nodes fall into {len(parts)} parts of {sizes} nodes, so they cannot agree\n"
            "add edges between the parts or remove Byzantine nodes (`clippedgossip audit` shows where)"
        )


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


def _some(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes[:12])) + (", …" if len(nodes) > 12 else "")
