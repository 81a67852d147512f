"""Everything a training run is made of."""

from dataclasses import dataclass, field
from typing import Literal

from clippedgossip.attacks import Attack
from clippedgossip.errors import ConfigError
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
        for name in ("rounds", "evaluate_every", "evaluate_last_every"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.evaluate_last < 0:
            raise ConfigError(f"evaluate_last is {self.evaluate_last}; it must be at least 0")

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
