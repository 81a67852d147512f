"""Everything a training run is made of."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from clippedgossip.attacks import Attack
from clippedgossip.errors import ConfigError, NetworkError, unknown_name
from clippedgossip.network import Network
from clippedgossip.rules import Rule
from clippedgossip.step import HeavyBall, LearningRate, Momentum
from clippedgossip.tasks import Task

Precision = Literal["float32", "tf32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class Training:
    """Algorithm 1's numbers, and when to look."""

    rounds: int = 900
    lr: LearningRate = field(default_factory=LearningRate)
    momentum: Momentum = field(default_factory=HeavyBall)
    evaluate_every: int = 30
    evaluate_last: int = 150  # the reported accuracy is the mean over this many last rounds ...
    evaluate_last_every: int = 10  # ... looked at this often
    evaluate_nodes: bool = True  # single nodes' accuracies (mean, worst) as well as the groups' averages
    precision: Precision = "float32"  # of the gradients' products; models, momentum and mixing are float32

    def __post_init__(self) -> None:
        for name, least in (
            ("rounds", 1),
            ("evaluate_every", 1),
            ("evaluate_last", 0),
            ("evaluate_last_every", 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise ConfigError(f"{name} is {value!r}; it must be a whole number, at least {least}")
        _must_be("lr", self.lr, LearningRate, "LearningRate(initial=0.01)")
        _must_be("momentum", self.momentum, Momentum, "HeavyBall(0.9)")
        if self.precision not in get_args(Precision):
            raise ConfigError(unknown_name("precision", str(self.precision), get_args(Precision)))

    def evaluates_nodes(self, round: int) -> bool:
        """Whether single nodes are evaluated as well: not in between, in the last rounds."""
        return self.evaluate_nodes and (round == self.rounds or round % self.evaluate_every == 0)

    def evaluates(self, round: int) -> bool:
        """Whether to evaluate after this many rounds."""
        last = round > self.rounds - self.evaluate_last
        every = min(self.evaluate_every, self.evaluate_last_every) if last else self.evaluate_every
        return round == self.rounds or round % every == 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """A run: who talks to whom, what they learn, how they mix, who lies.

    The task's nodes are the regular ones, followed by the Byzantine ones if the attack has them train.
    """

    network: Network
    task: Task
    rule: Rule
    attack: Attack | None = None
    training: Training = field(default_factory=Training)
    seed: int = 0

    def __post_init__(self) -> None:
        _must_be("network", self.network, Network, "Network(graph)")
        _must_be("task", self.task, Task, "tasks.make_task(data, shares, model, seed=0)")
        _must_be("rule", self.rule, Rule, "rules.ClippedGossip()")
        if self.attack is not None:
            _must_be("attack", self.attack, Attack, "attacks.Dissensus()")
        regular, liars = self.network.regular.tolist(), self.network.byzantine.tolist()
        nodes = self.task.nodes.tolist()
        if nodes not in (regular, [*regular, *liars]):
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


def _must_be(name: str, value: object, kind: type[Any], example: str) -> None:
    if not isinstance(value, kind):
        given = value.__name__ + " itself" if isinstance(value, type) else type(value).__name__
        raise ConfigError(f"{name} is a {given}; give a {kind.__name__}: {name}={example}")


def _some(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes[:12])) + (", …" if len(nodes) > 12 else "")
