"""Checks of a module, data or loss of the user's own, before a run starts."""

import copy
import sys

import torch
from torch import Tensor, nn

from clippedgossip.errors import DataError, kind_of
from clippedgossip.tasks.datasets import DataSet
from clippedgossip.tasks.poison import Poison
from clippedgossip.tasks.task import Loss

ROUNDS_TRIED = 32
"""Of a poison, whose labels may depend on the round."""


def check_module(module: nn.Module, data: DataSet, loss: Loss) -> None:
    """Refuse a module that could not be trained on the data by this loss."""
    _check_parameters(module)
    _check_outputs(module, data, loss)
    _check_buffers(module, data)


def _check_parameters(module: nn.Module) -> None:
    """All parameters are trained, sent and mixed: there must be some, and none may be frozen."""
    found = dict(module.named_parameters())
    if not found:
        raise DataError("the model has no parameters; give one that can be trained")
    for name, part in module.named_modules():
        if getattr(part, "sparse", False):
            raise DataError(f"layer {name or 'itself'} has sparse gradients; give it sparse=False")
    for name, parameter in found.items():
        if not parameter.requires_grad:
            raise DataError(
                f"the model's parameter {name} is frozen, but all are trained and mixed\n"
                "leave frozen layers out, and give their outputs as the data"
            )
        if parameter.dtype != torch.float32:
            raise DataError(
                f"the model's parameter {name} is {parameter.dtype}, but models are trained and mixed in "
                "float32\ngive module.float() and inputs to match (training.precision is for products only)"
            )


def check_poison(poison: Poison, data: DataSet) -> None:
    """Try a poison on a few samples in its first rounds: inputs keep their shape, labels stay labels."""
    name, file = type(poison).__name__, getattr(sys.modules.get(type(poison).__module__), "__file__", None)
    where = f"poison {name}" if "clippedgossip" in type(poison).__module__ else f"poison {name} of {file}"
    count = min(8, len(data.train_y))
    x, y = (t.expand(2, *t.shape) for t in (data.normalise(data.train_x[:count]), data.train_y[:count]))
    for round in range(ROUNDS_TRIED):
        found = poison(x.clone(), y.clone(), round)
        pair = isinstance(found, tuple) and len(found) == 2 and all(isinstance(t, Tensor) for t in found)
        if not pair or found[0].shape != x.shape or found[1].shape != y.shape:
            what = [tuple(t.shape) for t in found] if pair else kind_of(found)
            raise DataError(
                f"{where} makes {what} of inputs {tuple(x.shape)} and labels {tuple(y.shape)}\n"
                "it must return (x, y) of the same shapes"
            )
        low, high = int(found[1].min()), int(found[1].max())
        if found[1].dtype != y.dtype or low < 0 or high >= data.classes:
            raise DataError(
                f"{where} makes labels from {low} to {high} of {found[1].dtype} in round {round}\n"
                f"labels are whole numbers from 0 to {data.classes - 1}"
            )


@torch.no_grad()
def _check_outputs(module: nn.Module, data: DataSet, loss: Loss) -> None:
    was_training = module.training
    module.eval()
    count = 3 if data.classes == 2 else 2  # not the number of classes, so that swapped dimensions are noticed
    x, y = data.normalise(data.train_x[:count]), data.train_y[:count]
    try:
        outputs = module(x)
    except Exception as error:  # a module of the user's own may raise anything
        raise DataError(
            f"the model cannot take inputs of shape {data.shape} and dtype {x.dtype}: {_first_line(error)}"
            + _hint(x)
        ) from error
    finally:
        module.train(was_training)
    expected = (len(x), data.classes)
    if not isinstance(outputs, Tensor):
        raise DataError(f"the model gives {kind_of(outputs)}; it must give a tensor of shape {expected}")
    if tuple(outputs.shape) != expected:
        raise DataError(
            f"the model gives outputs of shape {tuple(outputs.shape)}; "
            f"{data.classes} classes need {expected}\n"
            + (
                f"the lowest label is {lowest}; classes count from 0"
                if (lowest := int(data.train_y.min()))
                else "if there are more classes than the labels show, DataSet.of(…, classes=…) says so"
            )
        )
    try:
        value = loss(outputs, y)
    except Exception as error:  # and so may a loss
        raise DataError(
            f"the loss cannot take outputs {expected} and labels {tuple(y.shape)}: {_first_line(error)}\n"
            "give a function (outputs, labels) -> the mean loss of the batch"
        ) from error
    if value.numel() != 1:
        raise DataError(
            f"the loss of a batch has shape {tuple(value.shape)}; it must be one number, the mean"
        )


@torch.no_grad()
def _check_buffers(module: nn.Module, data: DataSet) -> None:
    """Refuse running statistics: all workers would share them, and no checkpoint would hold them."""
    trial = copy.deepcopy(module).train()
    before = {name: buffer.clone() for name, buffer in trial.named_buffers()}
    if not before:
        return
    with torch.random.fork_rng(devices=[]):
        x = data.train_x[:1].repeat_interleave(2, 0)  # a layer needs two samples for a variance
        trial(data.normalise(x))
    for name, buffer in trial.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise DataError(
                f"the model changes its buffer {name} as it trains, but workers exchange parameters alone\n"
                "take layers without running statistics, such as GroupNorm, or track_running_stats=False"
            )


def _hint(x: Tensor) -> str:
    """What is usually wrong with such inputs."""
    if x.ndim == 1:
        return "\neach input is a single number; give x[:, None] if the model takes rows of features"
    if x.dtype != torch.float32:
        return '\nif the model takes float32, give x.float(), or x.astype("float32") of an array'
    return (
        f"\ngive a model for inputs of shape {tuple(x.shape[1:])}; nn.Flatten() makes them rows of features"
    )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
