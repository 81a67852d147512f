"""What a peer trains between exchanges: its share of the data, or whatever the user's own learner does."""

import inspect
from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from clippedgossip import own, tasks
from clippedgossip.errors import ConfigError, UserError, kind_of
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.peer_mixing import Losses, ModuleLoss, module_losses
from clippedgossip.records import ACCURACY
from clippedgossip.step import LocalStep
from clippedgossip.tasks.datasets import mapped
from clippedgossip.tasks.workers import Task, Workers


@runtime_checkable
class Learner(Protocol):
    """One participant's own training.

    For a rule that compares losses (Mozi) it also has `losses(models, round)`, models (m, d) -> (m,): their
    losses on a sample of the participant's own, the same one throughout a round. It may have `tensors`: names
    and shapes of what travels; then peers with other tensors refuse each other before round one. And it may
    have `metric` and `higher_is_better`, where what it evaluates is not accuracy.
    """

    @property
    def length(self) -> int:
        """Number of coordinates of the model."""

    def step(self, round: int) -> Tensor:
        """The local step of a round; returns x½ as a fresh flat float32 vector on the CPU."""

    def load(self, mixed: Tensor) -> None:
        """Takes the mixed model."""

    def evaluate(self) -> float | None:
        """Accuracy in [0, 1], or another metric, where there is one."""

    def state(self) -> dict[str, Tensor]:
        """Everything needed to go on after a restart."""

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""


class ModuleLearner:
    """A learner out of a user's own module and step; give the optimizer so that its state is kept as well."""

    def __init__(
        self,
        model: nn.Module,
        step: Callable[[int], None],
        evaluate: Callable[[], float | None] = lambda: None,
        optimizer: torch.optim.Optimizer | None = None,
        loss: ModuleLoss | None = None,
        metric: str = ACCURACY,
        higher_is_better: bool = True,
    ) -> None:
        """`metric` names what `evaluate` returns."""
        self.model = model
        self.metric, self.higher_is_better = metric, higher_is_better
        self.losses: Losses | None = None if loss is None else module_losses(model, loss)
        self.evaluate = evaluate
        self._step = step
        self._optimizer = optimizer

    @property
    def length(self) -> int:
        """How many numbers are sent."""
        return sum(parameter.numel() for parameter in tensors.trainable(self.model))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The parameters that are sent."""
        return tensors.tensor_names(self.model)

    def step(self, round: int) -> Tensor:
        """The local step of a round."""
        self._step(round)
        return tensors.flatten(tensors.trainable(self.model))

    def load(self, mixed: Tensor) -> None:
        """Take over a mixed model."""
        tensors.unflatten(mixed, tensors.trainable(self.model))

    def state(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        found = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for place, kept in (self._optimizer.state_dict()["state"] if self._optimizer else {}).items():
            found |= {f"optimizer.{place}.{k}": v for k, v in kept.items() if isinstance(v, Tensor)}
        return found

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave."""
        self.model.load_state_dict({k[6:]: v for k, v in state.items() if k.startswith("model.")})
        if self._optimizer is not None:
            whole = self._optimizer.state_dict()
            for key, value in state.items():
                if key.startswith("optimizer."):
                    _, place, name = key.split(".", 2)
                    whole["state"].setdefault(int(place), {})[name] = value.clone()
            self._optimizer.load_state_dict(whole)


def task_of(config: Config) -> Task:
    """This peer's part of the task that a simulated run of the same seed shares out."""
    wanted, model = config.data.checked(), config.model.checked()
    data = wanted.load()
    node = config.node or 0
    shares = tasks.partition(
        data.labels,
        config.nodes,
        wanted.scheme(),
        seed=config.seed,
        groups=config.groups,
        alpha=0.5 if wanted.alpha is None else wanted.alpha,
        classes=data.classes,
    )
    return tasks.make_task(
        data,
        [shares[node]],
        model.build(data.shape, data.classes, seed=config.seed),
        seed=config.seed,
        batch=config.training.batch,
        **config.training.objective(),
        nodes=[node],
        augment=wanted.augment,
    )


class TaskLearner:
    """The local step of Algorithm 1 on one node's share: what the simulator does for all nodes at once."""

    def __init__(self, config: Config) -> None:
        self.task = task_of(config)
        self.metric, self.higher_is_better = self.task.metric.name, self.task.metric.higher_is_better
        self.training = config.training.build()
        self.workers = Workers([self.task], **self.training.drawing)
        self.local_step = LocalStep(self.workers, self.training.optimizer)
        self.x = self.task.initial().clone()
        self.done = 0  # local steps of this peer

    @property
    def length(self) -> int:
        return len(self.x)

    @property
    def tensors(self) -> tuple[str, ...]:
        layout = self.task.layout
        shapes = ("x".join(map(str, shape)) for shape in layout.shapes)
        return tuple(f"{name} {shape}" for name, shape in zip(layout.names, shapes, strict=True))

    def step(self, round: int) -> Tensor:
        models, half, losses = self.x[None], torch.empty_like(self.x)[None], torch.zeros(1)
        for h in range(self.training.local_steps):
            self.local_step.set(round, h, self.training.rate(round), self.done)
            self.local_step(models, half, losses)
            models, self.done = half, self.done + 1
        return half[0]

    def losses(self, models: Tensor, round: int) -> Tensor:
        """Of models (m, d), on a sample of the round drawn apart from the step's."""
        shares, count = self.workers.shares, len(models)
        x, y = mapped(
            lambda leaf: leaf.expand(count, *leaf.shape[1:]), self.workers.draw(shares, round, purpose="mozi")
        )
        return self.workers.losses_of(shares, models, x, y)

    def load(self, mixed: Tensor) -> None:
        self.x = mixed

    def evaluate(self) -> float | None:
        return float(self.workers.scores(self.x[None], self.local_step.buffers)[0])

    def state(self) -> dict[str, Tensor]:
        slots = {f"optimizer.{name}": slot[0] for name, slot in self.local_step.state.items()}
        return {"x": self.x, **slots, "done": torch.tensor(self.done)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        if state["x"].shape != self.x.shape:
            raise ValueError(f"it has {len(state['x'])} coordinates, the model has {len(self.x)}")
        self.x = state["x"].clone()
        former = int(state.get("begun", torch.tensor(True)))  # version 0.1 kept its momentum as "m"
        self.done = int(state["done"]) if "done" in state else former
        for name, slot in self.local_step.state.items():
            held = state.get(f"optimizer.{name}", state.get("m"))
            if held is None:
                raise ValueError(f"it was written by another optimizer: it has no {name}")
            slot.copy_(held)


def make_learner(config: Config) -> Learner:
    """The learner a config asks for: `learner = "module:function"`, which is called with the config and found
    beside peer.toml or on Python's path; or one for `[data]` and `[model]`."""
    if not config.learner:
        return TaskLearner(config)
    entry = str(config.learner.get("name"))
    try:
        make, origin = own.load(entry, config.folder)
    except ConfigError as error:
        raise ConfigError(f"learner {entry!r} {error}") from error
    try:
        inspect.signature(make).bind(config)
    except TypeError as error:
        raise ConfigError(
            f"learner {entry!r} of {origin.file} cannot be called with the peer's config alone: {error}\n"
            "it takes the Config and returns a Learner: def make(config): …"
        ) from error
    try:
        made = make(config)
    except UserError:
        raise
    except Exception as error:  # the user's own function may raise anything
        raise ConfigError(f"learner {entry!r} of {origin.file} {own.raised(error)}") from error
    if not isinstance(made, Learner):
        raise ConfigError(
            f"learner {entry!r} of {origin.file} made {kind_of(made)}\n"
            "return a Learner, such as ModuleLearner"
        )
    return made
