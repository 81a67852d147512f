"""Everything a training run is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from clippedgossip.attacks import Attack
from clippedgossip.errors import ConfigError, NetworkError
from clippedgossip.network import Network
from clippedgossip.rules import Rule
from clippedgossip.settings import Training as Training
from clippedgossip.settings import must_be
from clippedgossip.tasks import Task


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


def _some(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes[:12])) + (", …" if len(nodes) > 12 else "")
