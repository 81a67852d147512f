"""What a peer trains between exchanges: a built-in task, or whatever the user's entry point returns."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from clippedgossip import tasks
from clippedgossip.errors import ConfigError
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.peer_config import Config, Training, from_table
from clippedgossip.peer.peer_mixing import Losses, ModuleLoss, module_losses
from clippedgossip.step import LearningRate, half_step, momentum_of
from clippedgossip.tasks.datasets import load_part
from clippedgossip.tasks.task import Task
from clippedgossip.tasks.workers import Workers


@runtime_checkable
class Learner(Protocol):
    """One participant's own training.

    For a rule that compares losses (Mozi) it also has `losses(models, round)`, models (m, d) -> (m,): their
    losses on a sample of the participant's own, the same one throughout a round.
    """

    @property
    def length(self) -> int:
        """Number of coordinates of the model."""

    def step(self, round: int) -> Tensor:
        """The local step of a round; returns x½ as a fresh flat float32 vector on the CPU."""

    def load(self, mixed: Tensor) -> None:
        """Takes the mixed model."""

    def evaluate(self) -> float | None:
        """Accuracy in [0, 1], where there is such a thing."""

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on after a restart."""

    def restore(self, state: Mapping[str, Tensor]) -> None: ...


class ModuleLearner:
    """A learner out of a user's own module and step; give the optimizer so that its state is kept as well."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[int], None],
        evaluate: Callable[[], float | None] = lambda: None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: ModuleLoss | None = None,
    ) -> None:
        self.model = model
        self.losses: Losses | None = None if loss is None else module_losses(model, loss)
        self.evaluate = evaluate
        self._step = step
        self._optimizer = optimizer

    @property
    def length(self) -> int:
        return sum(parameter.numel() for parameter in tensors.trainable(self.model))

    def step(self, round: int) -> Tensor:
        self._step(round)
        return tensors.flatten(tensors.trainable(self.model))

    def load(self, mixed: Tensor) -> None:
        tensors.unflatten(mixed, tensors.trainable(self.model))

    def state(self) -> dict[str, Tensor]:
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for place, kept in (self._optimizer.state_dict()["state"] if self._optimizer else {}).items():
            found |= {f"optimizer.{place}.{k}": v for k, v in kept.items() if isinstance(v, Tensor)}
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.model.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("model.")})
        if self._optimizer is not None:
            whole = self._optimizer.state_dict()
            for key, value in state.items():
                if key.startswith("optimizer."):
                    _, place, name = key.split(".", 2)
                    whole["state"].setdefault(int(place), {})[name] = value.clone()
            self._optimizer.load_state_dict(whole)


@dataclass(frozen=True, kw_only=True)
class BuiltIn:
    """The `[task]` table of a config: a data set, this node's share of it, and a model, in the words of a
    simulated run's `[data]` and `[model]`."""

    name: str = "digits"
    root: str | None = None
    model: str = "mlp"
    partition: str = "iid"
    alpha: float = 0.5
    groups: tuple[tuple[int, ...], ...] | None = None
    """Who is in which clique, for the partition of that name."""
    samples: int | None = None
    test_samples: int | None = None
    augment: bool = False
    nodes: int = 1
    node: int = 0

    def build(self, seed: int, batch: int) -> Task:
        """This node's part of the task that a simulated run of the same seed shares out."""
        if not 0 <= self.node < self.nodes:
            raise ConfigError(f"task.node = {self.node}; with task.nodes = {self.nodes} choose 0 to one less")
        data = load_part(self.name, self.root, self.samples, self.test_samples)
        shares = tasks.partition(
            data.train_y,
            self.nodes,
            self.partition,
            seed=seed,
            groups=self.groups,
            alpha=self.alpha,
            classes=data.classes,
        )
        share = [shares[self.node]]
        return tasks.make_task(
            data, share, self.model, seed=seed, batch=batch, nodes=[self.node], augment=self.augment
        )


class TaskLearner:
    """The local step of Algorithm 1 on one node's share: what the simulator does for all nodes at once."""

    def __init__(self, options: BuiltIn, training: Training, seed: int) -> None:
        self.task = options.build(seed, training.batch)
        self.workers = Workers([self.task])
        self.lr = LearningRate(initial=training.lr, drops=training.lr_drops, factor=training.lr_factor)
        self.momentum = momentum_of(training.momentum_form, training.momentum)
        self.x = self.task.initial().clone()
        self.m = torch.zeros_like(self.x)
        self.begun = False

    @property
    def length(self) -> int:
        return len(self.x)

    def step(self, round: int) -> Tensor:
        models, half = self.x[None], torch.empty_like(self.x)[None]
        x, y = self.workers.draw(self.workers.shares, round)
        gradients, _ = self.workers.gradients(self.workers.shares, models, x, y, round)
        keep, gain = (torch.tensor(number) for number in self.momentum.gain(not self.begun))
        half_step(models, self.m[None], half, gradients, (keep, gain), torch.tensor(self.lr.at(round)))
        self.begun = True
        return half[0]

    def losses(self, models: Tensor, round: int) -> Tensor:
        """Of models (m, d), on a sample of the round drawn apart from the step's."""
        x, y = self.workers.draw(self.workers.shares, round, purpose="mozi")
        count = len(models)
        return self.workers.losses_of(models, x.expand(count, *x.shape[1:]), y.expand(count, -1))

    def load(self, mixed: Tensor) -> None:
        self.x = mixed

    def evaluate(self) -> float | None:
        return float(self.workers.accuracies(self.x[None])[0])

    def state(self) -> dict[str, Tensor]:
        return {"x": self.x, "m": self.m, "begun": torch.tensor(self.begun)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.x, self.m, self.begun = state["x"].clone(), state["m"].clone(), bool(state.get("begun", True))


def make_learner(config: Config) -> Learner:
    """The learner a config asks for: `task.entry = "module:function"`, or a built-in task."""
    options = dict(config.task)
    entry = options.pop("entry", None)
    if entry is not None:
        return _from_entry(str(entry), config)
    return TaskLearner(_built_in(options, config.folder), config.training, config.seed)


def _built_in(options: Mapping[str, object], folder: Path) -> BuiltIn:
    for field in fields(Training):
        if field.name in options:
            raise ConfigError(f"task.{field.name} belongs to the local step; write it in [training]")
    built: BuiltIn = from_table(BuiltIn, options, "task.")
    return built if built.root is None else replace(built, root=str(folder / built.root))


def _from_entry(entry: str, config: Config) -> Learner:
    """Calls the user's function with the config; it is found beside peer.toml or on the Python path."""
    module, _, function = entry.partition(":")
    if not module or not function:
        raise ConfigError(f"task.entry = {entry!r} is not module:function")
    sys.path.insert(0, str(config.folder))
    try:
        made = getattr(importlib.import_module(module), function)(config)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"task.entry = {entry!r}: {error}") from error
    finally:
        sys.path.remove(str(config.folder))
    if not isinstance(made, Learner):
        raise ConfigError(
            f"task.entry = {entry!r} returned a {type(made).__name__}, not a Learner (ModuleLearner)"
        )
    return made
