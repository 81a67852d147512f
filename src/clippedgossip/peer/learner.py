"""What a peer trains between exchanges: a built-in task, or whatever the user's entry point returns."""

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.peer import tensors
from clippedgossip.peer.config import Config


@runtime_checkable
class Learner(Protocol):
    """One participant's own training."""

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
    ) -> None:
        self.model = model
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
    """The `[task]` table of a config: a data set, this node's share of it, a model, and the step size."""

    name: str = "digits"
    model: str = "mlp"
    partition: str = "iid"
    alpha: float = 0.5
    nodes: int = 1
    node: int = 0
    batch: int = 32
    lr: float = 0.05
    momentum: float = 0.9


class TaskLearner:
    """Momentum SGD in the PyTorch form on one node's share: m ← βm + g, x½ ← x − ηm."""

    def __init__(self, options: BuiltIn, seed: int) -> None:
        from clippedgossip import tasks

        if not 0 <= options.node < options.nodes:
            raise ConfigError(
                f"task.node = {options.node}; with task.nodes = {options.nodes} choose 0 to one less"
            )
        data = tasks.load(options.name)
        shares = tasks.partition(
            data.train_y,
            options.nodes,
            options.partition,
            seed=seed,
            alpha=options.alpha,
            classes=data.classes,
        )
        self.task = tasks.make_task(
            data,
            [shares[options.node]],
            options.model,
            seed=seed,
            batch=options.batch,
            nodes=[options.node],
        )
        self.options = options
        self.x = self.task.initial().clone()
        self.m = torch.zeros_like(self.x)

    @property
    def length(self) -> int:
        return len(self.x)

    def step(self, round: int) -> Tensor:
        inputs, labels = self.task.draw(round)
        x = self.x.detach().requires_grad_()
        outputs = torch.func.functional_call(self.task.module, self.task.layout.views(x), (inputs[0],))
        (gradient,) = torch.autograd.grad(self.task.loss(outputs, labels[0]), x)
        self.m.mul_(self.options.momentum).add_(gradient)
        return self.x - self.options.lr * self.m

    def load(self, mixed: Tensor) -> None:
        self.x = mixed

    def evaluate(self) -> float | None:
        return float(self.task.evaluate(self.x[None]).accuracy[0])

    def state(self) -> dict[str, Tensor]:
        return {"x": self.x, "m": self.m}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.x, self.m = state["x"].clone(), state["m"].clone()


def make_learner(config: Config) -> Learner:
    """The learner a config asks for: `task.entry = "module:function"`, or a built-in task."""
    options = dict(config.task)
    entry = options.pop("entry", None)
    if entry is not None:
        return _from_entry(str(entry), config)
    known: dict[str, Any] = {field.name: field for field in fields(BuiltIn)}
    for key, value in options.items():
        if key not in known:
            raise ConfigError(unknown_name("key", f"task.{key}", (f"task.{name}" for name in known)))
        expected = type(known[key].default)
        if not isinstance(value, (expected, int) if expected is float else expected):
            raise ConfigError(f"task.{key} = {value!r} must be a {expected.__name__}")
    return TaskLearner(BuiltIn(**options), config.seed)  # type: ignore[arg-type]  # checked just above


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
