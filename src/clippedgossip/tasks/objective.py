"""What a task asks for: losses to train by and metrics to test by, by name or of the user's own."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from clippedgossip.decode import Kind, Thing, built_in, decode
from clippedgossip.errors import ConfigError, DataError, kind_of
from clippedgossip.records import refuse_metric
from clippedgossip.tasks.datasets import IGNORED, at, leaves


def called(module: Any, x: Any) -> Any:
    """The outputs of a module: `module(x)`, of a tuple `module(*x)`, of a dict `module(**x)`."""
    if isinstance(x, dict):
        return module(**x)
    return module(*x) if isinstance(x, tuple | list) else module(x)


@dataclass(frozen=True, eq=False)
class Loss:
    """The mean loss of a batch: `function(outputs, y)`; or `function(module, x, y)`, which calls the module
    itself, if `of_module`."""

    function: Callable[..., Tensor]
    name: str = "own"
    of_module: bool = False
    weights: Tensor | None = None  # of the classes; they go to the device of the data

    def __call__(self, module: Any, x: Any, y: Any) -> Tensor:
        if self.of_module:
            return self.function(module, x, y)
        return self.of_outputs(called(module, x), y)

    def of_outputs(self, outputs: Any, y: Any) -> Tensor:
        """Outputs are float32 at least: a softmax and its gradient must see outputs rounded in one way."""
        wide = tree_map_only(Tensor, widened, outputs)  # of an own class they stay as they are
        if self.weights is None:
            return self.function(wide, y)
        return self.function(wide, y, self.weights.to(wide.dtype))

    def to(self, device: torch.device | str) -> "Loss":
        """The same with its weights on a device, or with a copy of the module that it is."""
        if isinstance(self.function, nn.Module):
            return replace(self, function=copy.deepcopy(self.function).to(device))
        return self if self.weights is None else replace(self, weights=self.weights.to(device))


def widened(outputs: Tensor) -> Tensor:
    """At least float32."""
    if outputs.is_floating_point():
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))
    return outputs


def of_module(function: Callable[[Any, Any, Any], Tensor]) -> Loss:
    """A loss that calls the module itself: function(module, x, y) -> one number, the mean of the batch.

    cg.train(network, data, model, loss=cg.tasks.of_module(lambda module, x, y: …), metric="loss")
    """
    return Loss(function, getattr(function, "__name__", "own"), of_module=True)


def nll(outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Of log-probabilities (batch, …, classes)."""
    return _mean_of_labels(functional.nll_loss, outputs, y, weights)


def cross_entropy(outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
    """Of (batch, …, classes) against labels (batch, …); the label −100 does not count."""
    return _mean_of_labels(functional.cross_entropy, outputs, y, weights)


def _mean_of_labels(
    function: Callable[..., Tensor], outputs: Tensor, y: Tensor, weights: Tensor | None
) -> Tensor:
    """0, as its gradient, where no label of the batch counts; the mean would be 0/0. A weight of 0 is that
    of the label −100."""
    labels = y.flatten()
    if weights is not None:
        labels = torch.where(weights[labels.clamp_min(0)] > 0, labels, IGNORED)
    mean = function(outputs.flatten(0, -2), labels, weights, ignore_index=IGNORED)
    return torch.where((labels != IGNORED).any(), mean, 0.0)


def mse(outputs: Tensor, y: Tensor) -> Tensor:
    """Mean squared error."""
    return functional.mse_loss(outputs.reshape(y.shape), y.to(outputs.dtype))


def binary(outputs: Tensor, y: Tensor) -> Tensor:
    """Binary cross-entropy of logits; targets are 0 or 1, or probabilities."""
    return functional.binary_cross_entropy_with_logits(outputs.reshape(y.shape), y.to(outputs.dtype))


def _weighted(name: str, function: Callable[..., Tensor]) -> Callable[..., Loss]:
    def make(class_weights: tuple[float, ...] | None = None) -> Loss:
        if class_weights is not None and not all(0 <= w < math.inf for w in class_weights):
            raise DataError(f"class_weights are {list(class_weights)}; each must be at least 0 and finite")
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        return Loss(function, name, weights=weights)

    return make


LOSSES: Mapping[str, Callable[..., Loss]] = {
    "nll": _weighted("nll", nll),
    "cross-entropy": _weighted("cross-entropy", cross_entropy),
    "mse": lambda: Loss(mse, "mse"),
    "binary-cross-entropy": lambda: Loss(binary, "binary-cross-entropy"),
}
"""Losses by name."""
LOSS = Kind(
    word="loss",
    names=LOSSES,
    base=object,
    group="clippedgossip.losses",
    fix="make it a function (outputs, y) -> the mean loss of a batch",
    given=2,
    error=DataError,
)
LossLike = str | Mapping[str, Any] | Loss | Callable[..., Tensor] | None


def own_thing(kind: Kind, said: object, folder: Path | None, path: tuple[str, ...] = ()) -> Thing | None:
    """The loss or metric of the user's own that words name; None for others."""
    if not isinstance(said, str | Mapping) or built_in_words(kind, said) is not None:
        return None
    return decode(kind, said, path or (kind.word,), folder)


def built_in_words(kind: Kind, said: object) -> str | dict[str, Any] | None:
    """The same words with the name as it is registered; None for what is the user's own."""
    name = said.get("name") if isinstance(said, Mapping) else said
    known = built_in(kind, name) if isinstance(name, str) else None
    if known is None:
        return None
    return {**said, "name": known} if isinstance(said, Mapping) else known


def _refuse_other_than_words_or_function(kind: Kind, said: object) -> None:
    """A class is no function; an object of it may be."""
    if isinstance(said, str | Mapping) or (callable(said) and not isinstance(said, type)):
        return
    names = ", ".join(map(repr, kind.names))
    raise ConfigError(f"{kind.word} is {kind_of(said)}\ngive a name: {names}; or {kind.fix}")


def listed(said: Any) -> Any:
    """The same words, with lists in the place of tensors and arrays."""
    if not isinstance(said, Mapping):
        return said
    return {key: value.tolist() if hasattr(value, "tolist") else value for key, value in said.items()}


def find_loss(said: LossLike, folder: Path | None = None) -> Loss:
    """The loss of a name or a table, or the user's own function of (outputs, y). What words name is looked
    for in `folder` first."""
    if isinstance(said, Loss):
        return said
    _refuse_other_than_words_or_function(LOSS, said)
    if callable(said):
        return Loss(said, getattr(said, "__name__", "own"))
    thing = own_thing(LOSS, said, folder)
    if thing is None:
        made: Loss = decode(replace(LOSS, given=0), listed(said), ("loss",)).build()
        return made
    if isinstance(thing.make, Loss):
        return thing.make
    return Loss(_of_batch(thing), thing.name)


def usual_loss(said: LossLike, classes: int | None, model: object) -> Loss:
    """The loss that was asked for, or the usual one of such targets. The `cnn` gives log-probabilities."""
    usual = "mse" if classes is None else "nll" if model == "cnn" else "cross-entropy"
    return find_loss(usual if said is None else said)


@dataclass(frozen=True)
class WithParameters:
    """A function of the user's own with the parameters that a config gave it. Equal ones share a stack."""

    function: Callable[..., Any]
    parameters: str
    thing: Thing = field(compare=False, repr=False)

    def __call__(self, outputs: Any, y: Any) -> Any:
        return self.thing.build(given=(outputs, y))


def _of_batch(thing: Thing) -> Callable[..., Any]:
    return WithParameters(thing.make, repr(thing.values), thing) if thing.values else thing.make


Predicted = Callable[[Tensor, Tensor], Tensor]  # of outputs and labels; it gives labels


@dataclass(frozen=True)
class Metric:
    """What a model is tested by. `sums(outputs, y)` gives numbers (k,) that are added over the batches of the
    test set, and over the ranks; `value` makes the metric of their sum."""

    name: str
    sums: Callable[[Any, Any], Tensor] = field(compare=False)
    value: Callable[[Tensor], Tensor] = field(compare=False)
    higher_is_better: bool = True
    of_loss: bool = False
    """Whether it comes from the task's loss: `sums` then takes that mean and the number of samples."""

    source: object = field(default=None, repr=False)  # equal for metrics that compute the same

    def __post_init__(self) -> None:
        refuse_metric(self.name, higher_is_better=self.higher_is_better)
        if self.source is None:
            object.__setattr__(self, "source", (self.sums, self.value))

    def __call__(self, outputs: Any, y: Any) -> Tensor:
        """Of one batch."""
        return self.value(self.of_batch(outputs, y))

    def of_batch(self, outputs: Any, y: Any) -> Tensor:
        """The sums over one batch."""
        return self.sums(outputs, y)


def mean_metric(
    name: str, function: Callable[[Any, Any], Tensor], *, higher_is_better: bool = True
) -> Metric:
    """A metric of the user's own: the mean over samples of `function(outputs, y)`, the mean of a batch.

    cg.train(…, metric=cg.tasks.mean_metric("top-3", top3))
    """

    def sums(outputs: Any, y: Any) -> Tensor:
        found = torch.as_tensor(function(outputs, y), device=leaves(y)[0].device)
        if found.numel() != 1:
            raise DataError(
                f"metric {name!r} of a batch has shape {tuple(found.shape)}; it must be one number\n"
                "return its mean"
            )
        return _of_loss(found.reshape(()), y)

    return Metric(name, sums, _mean, higher_is_better, source=function)


def _mean(sums: Tensor) -> Tensor:
    return sums[..., 0] / sums[..., 1]


def _largest(outputs: Tensor, y: Tensor) -> Tensor:
    """The class that is predicted, of an output for each class."""
    return outputs.argmax(-1)


def _classes(outputs: Tensor, y: Tensor) -> Tensor:
    """The same; of single logits, whether it is positive."""
    if outputs.shape == y.shape or outputs.shape[-1] == 1:
        return (outputs.reshape(y.shape) > 0).to(y.dtype)
    return _largest(outputs, y)


def _correct(outputs: Tensor, y: Tensor, predicted: Predicted = _classes) -> Tensor:
    counted = y != IGNORED
    right = (predicted(outputs, y) == y) & counted
    return torch.stack([right.sum(), counted.sum()])


def _of_loss(mean: Tensor, y: Any) -> Tensor:
    first = leaves(y)[0]
    return len(first) * torch.stack([mean.double(), first.new_ones((), dtype=torch.float64)])


def _of_labels(weights: Tensor | None, mean: Tensor, y: Tensor) -> Tensor:
    """Of a mean over labels: each counts by its weight, and one that is ignored not at all."""
    counted = y != IGNORED
    if weights is None:
        mass = counted.sum().double()
    else:
        mass = (weights.to(y.device).double()[torch.where(counted, y, 0)] * counted).sum()
    return torch.stack([torch.where(mass > 0, mass * mean.double(), 0.0), mass])


def _perplexity(outputs: Tensor, y: Tensor) -> Tensor:
    flat, labels = widened(outputs).flatten(0, -2), y.flatten()
    total = functional.cross_entropy(flat, labels, reduction="sum", ignore_index=IGNORED)
    return torch.stack([total.double(), (y != IGNORED).sum().double()])


def _moments(outputs: Tensor, y: Tensor) -> Tensor:
    wide = y.double().reshape(len(y), -1)
    apart = (outputs.reshape(wide.shape).double() - wide).square().sum()
    plain = torch.stack([wide.new_tensor(len(wide)), apart])
    return torch.cat([plain, wide.sum(0), wide.square().sum(0)])


def _r2(sums: Tensor) -> Tensor:
    """1 − Σ(ŷ−y)² / Σ(y−ȳ)², where every output has its own mean ȳ."""
    total, squares = sums[..., 2:].chunk(2, -1)
    spread = squares - total.square() / sums[..., :1]
    varies = spread > 1e-14 * squares  # less is rounding, of targets that are all the same
    return 1 - sums[..., 1] / torch.where(varies, spread, 0.0).sum(-1)


def _f1_sums(classes: int, predicted: Predicted = _classes) -> Callable[[Tensor, Tensor], Tensor]:
    def sums(outputs: Tensor, y: Tensor) -> Tensor:
        counted = (y != IGNORED).flatten()
        truth, found = y.flatten().long(), predicted(outputs, y).flatten().long()
        one = torch.arange(classes, device=y.device)[:, None]
        is_true, is_found = (truth == one) & counted, (found == one) & counted
        return torch.cat([(is_true & is_found).sum(1), is_true.sum(1) + is_found.sum(1)])

    return sums


def _f1(sums: Tensor) -> Tensor:
    """The mean of 2·tp / (2·tp + fp + fn) over the classes that occur in labels or outputs."""
    hits, both = sums.chunk(2, -1)
    return (2 * hits / both.clamp_min(1)).sum(-1) / (both > 0).sum(-1)


METRICS: Mapping[str, Callable[[int | None], Metric]] = {
    "accuracy": lambda classes: Metric("accuracy", _correct, _mean),
    "loss": lambda classes: Metric("test_loss", _of_loss, _mean, False, of_loss=True),
    "perplexity": lambda classes: Metric("perplexity", _perplexity, lambda s: _mean(s).exp(), False),
    "r2": lambda classes: Metric("r2", _moments, _r2),
    "f1": lambda classes: Metric("f1", _f1_sums(classes or 2), _f1),
}
"""Metrics by name, each made for a number of classes."""
METRIC = replace(
    LOSS,
    word="metric",
    names=METRICS,
    group="clippedgossip.metrics",
    fix="make it a function (outputs, y) -> the mean of a batch",
)
MetricLike = str | Mapping[str, Any] | Metric | Callable[[Any, Any], Any] | None


def find_metric(said: MetricLike, loss: Loss, classes: int | None) -> Metric:
    """The metric of a name; without one, accuracy of classes, R² of real numbers, else the loss."""
    if said is None:
        usual = {"nll": "accuracy", "cross-entropy": "accuracy", "mse": "r2"}.get(loss.name)
        said = usual or ("accuracy" if classes is not None and not loss.of_module else "loss")
    if isinstance(said, Metric):
        return said
    _refuse_other_than_words_or_function(METRIC, said)
    if callable(said):
        return mean_metric(getattr(said, "__name__", "own"), said)
    name = own_metric(said)
    if not isinstance(name, str):
        return name
    found = replace(METRICS[name](classes), source=(name, classes))
    if loss.function not in (nll, cross_entropy):
        return found
    by_class: dict[str, Callable[[Any, Any], Tensor]] = {  # not of single logits, also if there is one class
        "loss": partial(_of_labels, loss.weights),
        "accuracy": partial(_correct, predicted=_largest),
        "f1": _f1_sums(classes or 2, _largest),
    }
    return replace(found, sums=by_class.get(name, found.sums))


def own_metric(said: str | Mapping[str, Any], folder: Path | None = None) -> str | Metric:
    """The metric of the user's own that words name, or the name of one that is built in."""
    thing = own_thing(METRIC, said, folder)
    if thing is None:
        words = built_in_words(METRIC, said)
        return words if isinstance(words, str) else str((words or {})["name"])
    if isinstance(thing.make, Metric):
        return thing.make
    return mean_metric(thing.name.rpartition(":")[2], _of_batch(thing))


def chunks(tree: Any, size: int) -> Sequence[Any]:
    """Consecutive parts of every tensor, of at most so many rows."""
    count = len(leaves(tree)[0])
    return [at(tree, slice(i, i + size)) for i in range(0, count, size)]
