"""Checks of a module, data, loss or metric of the user's own, before a run starts."""

import copy
import math
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from itertools import islice
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from clippedgossip.errors import DataError, first_line, kind_of, warn_user
from clippedgossip.randomness import own_randomness
from clippedgossip.records import ACCURACY
from clippedgossip.tasks.datasets import IGNORED, DataSet, at, leaves, mapped, parts_of
from clippedgossip.tasks.models import OF_MODULES, trained
from clippedgossip.tasks.module_function import Objective, call_with, nearby, ties_of
from clippedgossip.tasks.objective import Loss, Metric, binary, called, cross_entropy, mse, nll
from clippedgossip.tasks.poison import Poison

RECOMPUTED = (
    "the model computes parts of itself again for the gradient (torch.utils.checkpoint), when other "
    "parameters are in place\ncall these parts without checkpoint"
)
ORIGINALS: WeakKeyDictionary[nn.Module, nn.Module] = WeakKeyDictionary()
"""What a module is a copy of: a loss or hook may refer to that one."""
OF_CLASSES = ("accuracy", "f1", "perplexity")
TESTED = 256  # samples of the test set that a metric is tried on, if a few are too few
ROUNDS_TRIED = 32  # of a poison, whose labels may depend on the round


def check_module(module: nn.Module, data: DataSet, loss: Loss, metric: Metric, batch: int) -> bool:
    """Refuse a module that could not be trained on the data by this loss, or tested by this metric. Says
    whether it keeps something when it is called, beside its buffers."""
    _check_parameters(module)
    trial = copied(module)
    before = _remembered(trial)
    with own_randomness(), torch.no_grad():
        _check_outputs(trial, data, loss, metric, batch)
    return _remembered(trial) != before


def copied(module: nn.Module) -> nn.Module:
    """A copy of a module of the user's own."""
    for name, held in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(held):
            raise DataError(
                f"the model's {name} has no shape yet\ncall the model once on a batch: model(x[:2])"
            )
        if held._backward_hooks or held._post_accumulate_grad_hooks:
            raise DataError(
                f"the model's {name} has a hook on its gradient, which copies do not keep\n"
                "freeze it (requires_grad = False), or multiply it by a mask in forward"
            )
    try:
        made = copy.deepcopy(module)
    except Exception as error:  # whatever a module holds
        raise DataError(
            f"the model cannot be copied: {first_line(error)}\n"
            "keep only what copy.deepcopy takes; use parametrizations.weight_norm instead of weight_norm, "
            "and a parametrization that multiplies by a mask instead of prune"
        ) from error
    ORIGINALS[made] = module
    return made


def _originals(module: nn.Module) -> Iterator[nn.Module]:
    """The module, what it is a copy of, and so on."""
    found: nn.Module | None = module
    while found is not None:
        yield found
        found = ORIGINALS.get(found)


def _check_parameters(module: nn.Module) -> None:
    """Trainable parameters are sent and mixed: there must be some, and all must be float32."""
    found = trained(module)
    if not found:
        raise DataError(
            "the model has no parameters that train\ngive one that can be trained: set requires_grad"
        )
    for name, part in module.named_modules():
        if getattr(part, "sparse", False):
            raise DataError(f"layer {name or 'itself'} has sparse gradients; give it sparse=False")
    for name, held in module.named_buffers():
        if held.layout != torch.strided:
            raise DataError(
                f"the model's buffer {name} is sparse, which workers cannot share\n"
                "keep its indices and its values as two buffers, and make the sparse tensor in forward"
            )
    for name, parameter in found.items():
        if parameter.dtype != torch.float32:
            raise DataError(
                f"the model's parameter {name} is {parameter.dtype}, but models are trained and mixed in "
                "float32\n"
                + (
                    "keep real numbers (…, 2), and take torch.view_as_complex(…) of them in forward"
                    if parameter.is_complex()
                    else "give module.float() and inputs to match (training.precision is for products only)"
                )
            )


def check_poison(poison: Poison, data: DataSet) -> None:
    """Try a poison on a few samples in its first rounds: inputs keep their shape, labels stay labels."""
    name, file = type(poison).__name__, getattr(sys.modules.get(type(poison).__module__), "__file__", None)
    where = f"poison {name}" if "clippedgossip" in type(poison).__module__ else f"poison {name} of {file}"
    labels = parts_of(data.train_y) if data.classes is not None else ()
    ignored = (start + int((part == IGNORED).nonzero()[0, 0]) for start, part in labels if IGNORED in part)
    few = [*range(min(8, data.count)), *islice(ignored, 1)]
    inputs, targets = data.normalise(at(data.train_x, few)), at(data.train_y, few)
    x, y = mapped(lambda leaf: leaf.expand(2, *leaf.shape), (inputs, targets))
    for round in range(ROUNDS_TRIED):
        found = poison(mapped(torch.clone, x), mapped(torch.clone, y), round)
        pair = isinstance(found, tuple) and len(found) == 2
        wrong = next((of for of in (_shapes, _dtypes) if not pair or of(found) != of((x, y))), None)
        if wrong is not None:
            what = wrong(list(found)) if pair else kind_of(found)
            raise DataError(
                f"{where} makes {what} of inputs {wrong(x)} and labels {wrong(y)}\n"
                "it must return (x, y) of the same shapes and dtypes"
            )
        if data.classes is None:
            continue
        counted = found[1][found[1] != IGNORED]
        if bool(((counted < 0) | (counted >= data.classes)).any()):
            raise DataError(
                f"{where} makes labels from {counted.min()} to {counted.max()} of {y.dtype} "
                f"in round {round}\n"
                f"labels are whole numbers from 0 to {data.classes - 1}, or {IGNORED}, which must stay so"
            )


def _check_outputs(module: nn.Module, data: DataSet, loss: Loss, metric: Metric, batch: int) -> None:
    count = 3 if data.classes == 2 else 2  # not the number of classes, so that swapped dimensions are noticed
    rows, objective = torch.arange(count) % data.count, Objective(module, loss)
    x, y = data.normalise(at(data.train_x, rows)), at(data.train_y, rows)
    if not loss.of_module:
        _check_call(module, data, loss, x, y)
    value = _loss(module, loss, x, y, "eval")
    _check_unchanged(x)
    if not isinstance(value, Tensor) or value.numel() != 1:
        shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise DataError(f"the loss of a batch has shape {shape}; it must be one number\nreturn its mean")
    rows = torch.arange(max(2, min(batch, data.count))) % data.count
    whole = data.normalise(at(data.train_x, rows)), at(data.train_y, rows)
    objective.train()
    kept = _remembered(module)
    start = {name: held.clone() for name, held in module.named_buffers()}
    own = {name: held.detach().clone().requires_grad_() for name, held in trained(module).items()}
    past = [pair for one in _originals(module) for pair in trained(one).items()]
    with torch.enable_grad(), disable_saved_tensors_hooks(RECOMPUTED), own_randomness(0):
        with _ByData() as by_data:
            value = _loss(module, loss, *whole, "train", own)
        graded = value.requires_grad and _gradient(value, [*own.values(), *(held for _, held in past)])
    _check_unchanged(whole[0])
    _check_parameters_stay(module, own, by_data)
    if graded:
        _check_gradient([*own, *(name for name, _ in past)], graded, len(own))
    if not graded or all(gradient is None for gradient in graded):
        raise DataError(
            "the loss depends on no parameter of the model, so that nothing would be learnt\n"
            "compute it from the outputs without detach(), argmax or comparisons, which have no gradient, "
            "and keep the model's parameters in its calls"
        )
    with suppress(Exception):  # a model may be made for some parameters alone
        _loss(module, loss, *whole, "train", nearby(own))
    same = True
    with suppress(DataError):  # what fails in a later call is told when it trains
        same = _same_again(module, loss, whole, start, value)
    counting = _differing(_remembered(module), kept)
    if not counting and _differing(kept, _remembered(ORIGINALS[module])):
        others = data.count - 1 - rows
        other = data.normalise(at(data.train_x, others)), at(data.train_y, others)
        first, second = (_called_first(ORIGINALS[module], loss, one) for one in (whole, other))
        with suppress(DataError):  # masks and tables that it makes when they are needed change no loss
            if not _same_again(second, loss, whole, start, value):
                counting = _differing(_remembered(first), _remembered(second))
    if counting:
        warn_user(
            f"the model changes its attribute {counting[0]} when it is called: workers share it, and a run "
            "that is resumed starts it anew\nkeep it in a buffer, which each worker has for itself"
        )
    elif not same:
        warn_user(
            "the model or its loss gives another loss when it is called again on the same batch: workers "
            "share what it remembers, and a run that is resumed starts it anew\n"
            "keep it in a buffer, which each worker has for itself, and draw without a generator of your own"
        )
    if not bool(torch.isfinite(value)):
        raise DataError(
            f"the loss of the first {len(rows)} samples is {float(value)} before training\n"
            "look for inputs that are too large, or for samples without any label or class weight; or start "
            "from other parameters"
        )
    if loss.function in (nll, cross_entropy) or _of_classes(metric):
        _check_layout(module.eval(), data, x, y)
    if not metric.of_loss:
        _check_meaning(metric, data)
        outputs = called(module.eval(), x)
        try:
            score = float(metric(outputs, y))
            if not math.isfinite(score):  # perhaps of so few samples
                few = slice(0, TESTED)
                outputs, y = called(module, data.normalise(at(data.test_x, few))), at(data.test_y, few)
                score = float(metric(outputs, y))
        except DataError:
            raise
        except Exception as error:  # a metric of the user's own may raise anything
            raise DataError(
                f"metric {metric.name!r} cannot take outputs {_shapes(outputs)} and targets {_shapes(y)}: "
                f"{first_line(error)}\ngive another metric=, such as 'loss'"
            ) from error
        if metric.name == ACCURACY and math.isfinite(score) and not 0 <= score <= 1:
            raise DataError(
                f"metric 'accuracy' is {score:.6g} before training; a share of right answers is from 0 to 1\n"
                "divide it, or give it another name: tasks.mean_metric('own accuracy', …)"
            )
        if not math.isfinite(score):
            warn_user(
                f"metric {metric.name!r} is {score} before training: records have no number where it is not "
                "finite; if it stays so, give another metric="
            )


def _check_call(module: nn.Module, data: DataSet, loss: Loss, x: Any, y: Any) -> None:
    try:
        outputs = called(module.eval(), x)
        again = called(module, x)
    except Exception as error:  # a module of the user's own may raise anything
        kinds = mapped(lambda leaf: leaf.dtype, x)
        raise DataError(
            f"the model cannot take inputs of shape {data.shape} and dtype {kinds}: {first_line(error)}\n"
            + _fix(error, _hint(x, error))
        ) from error
    if _shapes(outputs) != _shapes(again):
        raise DataError(
            f"the model gives outputs of shape {_shapes(outputs)}, and of {_shapes(again)} when it is called "
            "again\nits outputs must keep their shape from call to call"
        )
    if loss.function in (nll, cross_entropy, mse, binary) and not isinstance(y, Tensor):
        raise DataError(
            f"loss {loss.name!r} takes one tensor of targets, not {kind_of(y)}\n"
            "give a loss of your own, (outputs, targets) -> the mean loss of the batch"
        )
    if loss.function in (nll, cross_entropy):
        _check_classes(outputs, data, y)
        _check_weights(loss.weights, data)
    if loss.function is binary or (loss.function is mse and data.classes is not None):
        _check_range(loss.name, 1 if loss.function is binary else math.inf, data)
    if loss.function is mse and (not isinstance(outputs, Tensor) or outputs.numel() != y.numel()):
        raise DataError(
            f"the model gives outputs of shape {_shapes(outputs)} for targets of shape {_shapes(y)}\n"
            "give one output for each number; if the targets are classes, give whole numbers: y.long()"
        )


def _check_weights(weights: Tensor | None, data: DataSet) -> None:
    if weights is None:
        return
    if len(weights) != data.classes:
        raise DataError(
            f"there are {len(weights)} class_weights for {data.classes} classes; give one for each"
        )
    if not any(bool((weights[part[part != IGNORED]] > 0).any()) for _, part in parts_of(data.train_y)):
        raise DataError(
            f"class_weights are {weights.tolist()}: every train label has weight 0\n"
            "give a class of the train labels a weight above 0"
        )


def _check_range(loss: str, high: float, data: DataSet) -> None:
    """Targets from 0 to `high`, also the label −100, which counts for these losses."""
    for name, y in (("train", data.train_y), ("test", data.test_y)):
        for start, part in parts_of(y):
            if len(wrong := ((part < 0) | (part > high)).nonzero()):
                raise DataError(
                    f"loss {loss!r} takes targets from 0 to {high:g}, but that of {name} sample "
                    f"{start + int(wrong[0, 0])} is {float(part[tuple(wrong[0])]):.6g}\n"
                    "give other targets; cross-entropy takes several classes, and leaves the label −100 out"
                )


def _check_classes(outputs: Any, data: DataSet, y: Any) -> None:
    """One output for each class, at every place that has a label."""
    if data.classes is None:
        raise DataError(
            "cross-entropy needs class numbers, but the targets are real numbers\n"
            'give whole numbers, or loss="mse"'
        )
    expected = (*y.shape, data.classes)
    if not isinstance(outputs, Tensor):
        raise DataError(f"the model gives {kind_of(outputs)}; it must give a tensor of shape {expected}")
    if tuple(outputs.shape) != expected:
        raise DataError(
            f"the model gives outputs of shape {tuple(outputs.shape)}; "
            f"{data.classes} classes and labels of shape {tuple(y.shape)} need {expected}\n"
            + (
                f"the lowest label is {lowest}; classes count from 0"
                if (lowest := int(data.train_y.min())) > 0
                else "move the classes last: outputs.movedim(1, -1)"
                if outputs.dim() > 2 and tuple(outputs.movedim(1, -1).shape) == expected
                else "give labels of shape (n,): y.squeeze(1)"
                if y.shape[1:] == (1,) and outputs.shape == (len(y), data.classes)
                else "if there are more classes than the labels show, DataSet.of(…, classes=…) says so"
            )
        )


def _check_layout(module: nn.Module, data: DataSet, x: Any, y: Any) -> None:
    """Refuse classes at dimension 1, also where there are as many places as classes."""
    outputs = called(module, x)
    many = isinstance(y, Tensor) and isinstance(outputs, Tensor) and outputs.dim() == y.dim() + 1 > 2
    expected = (*y.shape, data.classes) if many else ()
    if not many or outputs.movedim(1, -1).shape != expected:
        return
    at_one = outputs.shape != expected or _places_last(module, x, outputs)
    if at_one:
        raise DataError(
            f"the model gives outputs of shape {tuple(outputs.shape)} with classes at dimension 1, but they "
            "are taken from the last\nmove the classes last: outputs.movedim(1, -1); with a loss of your own "
            "that wants them at 1, give a metric of your own"
        )
    if at_one is None:
        warn_user(
            f"outputs of shape {tuple(outputs.shape)} can have the classes at dimension 1 or at the last: "
            "they are taken from the last"
        )


def _places_last(module: nn.Module, x: Any, outputs: Tensor) -> bool | None:
    """Whether inputs with a place less change the last dimension, and not dimension 1; None: unknown."""
    for dim in (-1, -2, -3):
        with suppress(Exception):  # a model may take one size alone
            found = called(module, mapped(partial(_shorter, dim=dim), x)).shape
            moved: list[bool] = [before != after for before, after in zip(outputs.shape, found, strict=True)]
            if moved[1] != moved[-1]:
                return moved[-1]
    return None


def _shorter(leaf: Tensor, dim: int) -> Tensor:
    """Without the last entry of a dimension, if it has that beside its rows."""
    return leaf.narrow(dim, 0, leaf.shape[dim] - 1) if leaf.dim() > -dim and leaf.shape[dim] > 1 else leaf


def _of_classes(metric: Metric) -> bool:
    return isinstance(metric.source, tuple) and metric.source[0] in OF_CLASSES


def _check_meaning(metric: Metric, data: DataSet) -> None:
    """Metrics of classes are for class numbers, or for real numbers that are 0 or 1."""
    if data.classes is not None or not isinstance(data.test_y, Tensor):
        return
    if _of_classes(metric):
        other = data.test_y[(data.test_y != 0) & (data.test_y != 1)]
        if other.numel():
            raise DataError(
                f"metric {metric.name!r} is of classes, but a target is {float(other[0]):.6g}\n"
                "give whole numbers from 0, or metric='r2' or 'loss'"
            )


def _check_unchanged(x: Any) -> None:
    """These inputs were made for the trial."""
    if any(leaf._version for leaf in leaves(x)):
        raise DataError("the model changes its inputs in place, and so the data\nlet it work on x.clone()")


class _ByData(TorchFunctionMode):
    """What is read or replaced by `.data`: writing to that counts no version of the tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[tuple[Tensor, Tensor]] = []
        self.replaced: dict[int, tuple[Tensor, int]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func == Tensor.data.__set__:  # type: ignore[attr-defined]  # a property of C
            self.replaced.setdefault(id(args[0]), (args[0], args[0].data_ptr()))
        found = func(*args, **(kwargs or {}))
        if func == Tensor.data.__get__:  # type: ignore[attr-defined]  # the same
            self.read.append((args[0], found))
        return found

    def written(self) -> set[int]:
        """What was written to, or has other memory than at first: what is put back has not."""
        replaced = (held for held, place in self.replaced.values() if held.data_ptr() != place)
        return {id(one) for one in (*replaced, *(held for held, data in self.read if data._version))}


def _check_parameters_stay(module: nn.Module, own: dict[str, Tensor], by_data: _ByData) -> None:
    """Refuse a model that has changed its parameters, or has made others, in the calls so far."""
    start, written = dict(ORIGINALS[module].named_parameters()), by_data.written()
    for name, held in {**dict(module.named_parameters()), **own}.items():
        if name not in start:
            raise DataError(
                f"the model makes its parameter {name} when it is called, too late to be trained\n"
                "call the model once on a batch: model(x[:2])"
            )
        same = torch.equal(held, start[name]) or bool(held.isnan().any())
        if held._version or id(held) in written or not same:
            raise DataError(
                f"the model changes its parameter {name} when it is called, as max_norm of an embedding "
                "does\nlet gradients alone change it: leave max_norm out, clamp a copy of the weights, and "
                "keep a mean of weights in buffers; if its first batch sets it, call the model once before"
            )


def _called_first(module: nn.Module, loss: Loss, batch: tuple[Any, Any]) -> nn.Module:
    """A copy whose first call was on this batch."""
    made = copied(module)
    with suppress(Exception):  # a model of the user's own may take some batches alone
        _loss(made, loss, *batch, "train")
    return made


def _differing(found: dict[str, str], before: dict[str, str]) -> list[str]:
    return [name for name, held in found.items() if held != before.get(name, "")]


def _check_gradient(names: list[str], found: tuple[Tensor | None, ...], own: int) -> None:
    """Only the first `own` are given to the model; the others are what it would read past them."""
    for place, (name, gradient) in enumerate(zip(names, found, strict=True)):
        if gradient is not None and place >= own:
            raise DataError(
                f"the model or its loss reads the parameter {name} past the copy that a worker trains\n"
                "read it as an attribute of the module, not from a list or a closure; a loss that needs the "
                "model is cg.tasks.of_module(f), of f(module, x, y)"
            )
        if gradient is not None and gradient.layout != torch.strided:
            raise DataError(f"the gradient of {name} is sparse; give its embedding sparse=False")


def _same_again(
    module: nn.Module,
    loss: Loss,
    batch: tuple[Any, Any],
    start: dict[str, Tensor],
    value: Tensor,
) -> bool:
    """Whether the loss of a batch is what it was, with the same buffers and random numbers."""
    for name, held in module.named_buffers():
        if name in start and held.shape == start[name].shape:
            held.copy_(start[name])
    with own_randomness(0):
        again = _loss(module, loss, *batch, "train")
    rounding = min(1e-3, 100 * torch.finfo(value.dtype).eps)
    return torch.allclose(again.reshape(()), value.detach(), rtol=rounding, equal_nan=True)


def _remembered(module: nn.Module) -> dict[str, str]:
    """What parts of a module hold beside parameters and buffers, and what functools.cache holds for their
    classes, in a form that shows whether it changes."""
    parts = {id(part) for part in module.modules()}
    return {
        f"{name}.{key}" if name else key: _held(held, parts)
        for name, part in module.named_modules()
        for key, held in (*vars(part).items(), *_caches(type(part)))
        if key not in NO_MEMORY
    }


def _caches(kind: type) -> Iterator[tuple[str, int]]:
    """How often each method of a class has put a new result into its cache."""
    for name, held in ((name, held) for part in kind.__mro__ for name, held in vars(part).items()):
        if isinstance(held, _CACHE):
            yield name, held.cache_info().misses


def _held(value: Any, parts: set[int], depth: int = 4) -> str:
    """The same of equal copies. `parts` are the modules that are looked at by themselves."""
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.shape} {hash(value.tobytes())}"
    if isinstance(value, Tensor):
        with suppress(RuntimeError):  # some kinds have no sum, and those of a meta tensor no numbers
            wide = value.detach().abs() if value.is_complex() else value.detach()
            return f"{tuple(value.shape)} {float(wide.sum(dtype=torch.float64))}"
        return str(tuple(value.shape))
    if isinstance(value, int | float | str | bytes | None):
        return repr(value)
    if not depth or isinstance(value, type) or id(value) in parts:
        return ""
    deeper = partial(_held, parts=parts, depth=depth - 1)
    if isinstance(value, nn.Module):  # one that is no part, such as a teacher in a list
        return deeper([*value.parameters(), *value.buffers()])
    if isinstance(value, np.ndarray):
        return f"{value.shape} {deeper(value.tolist())}"
    if isinstance(value, Mapping):
        pairs = [(deeper(key), deeper(held)) for key, held in islice(value.items(), MOST_HELD)]
        return f"{len(value)} {pairs}"
    if isinstance(value, set | frozenset):  # the order of objects is another in each copy
        return f"{len(value)} {sorted(deeper(held) for held in islice(value, MOST_HELD))}"
    if isinstance(value, list | tuple | deque):
        return f"{len(value)} {[deeper(held) for held in islice(value, MOST_HELD)]}"
    return deeper(getattr(value, "__dict__", None))


NO_MEMORY = OF_MODULES | {"forward", "_flat_weights"}
"""What is no memory; of a compiled module, and of an nn.LSTM, these lead to its parameters again."""
_CACHE = type(cache(len))
MOST_HELD = 1000  # entries of a table or list that are looked at


def _gradient(value: Tensor, given: list[Tensor]) -> tuple[Tensor | None, ...]:
    try:
        return torch.autograd.grad(value.sum(), given, allow_unused=True)
    except RuntimeError as error:
        raise DataError(
            RECOMPUTED
            if "checkpoint" in str(error)
            else f"the loss has no gradient: {first_line(error)}\n"
            "compute it from the outputs by operations that PyTorch can differentiate"
        ) from error


def _loss(
    module: nn.Module, loss: Loss, x: Any, y: Any, mode: str, own: dict[str, Tensor] | None = None
) -> Tensor:
    """Of a batch, with parameters in the place of the module's own if there are any."""
    try:
        if own is None:
            return loss(module, x, y)
        given = {f"module.{name}": value for name, value in own.items()}
        objective = Objective(module, loss)
        found: Tensor = call_with(objective, given, ties_of(objective), x, y)
        return found
    except DataError:
        raise
    except Exception as error:  # and so may a loss
        if str(error) == RECOMPUTED:
            raise DataError(RECOMPUTED) from error
        outputs = "the module" if loss.of_module else f"outputs {_shapes(called(module.eval(), x))}"
        takes = "(module, inputs, targets)" if loss.of_module else "(outputs, targets)"
        raise DataError(
            f"the loss cannot take {outputs} and targets {_shapes(y)} in {mode} mode: {first_line(error)}\n"
            + _fix(error, f"give a function {takes} -> the mean loss of the batch")
        ) from error


def _shapes(tree: Any) -> Any:
    return tree_map(lambda leaf: tuple(leaf.shape) if isinstance(leaf, Tensor) else kind_of(leaf), tree)


def _dtypes(tree: Any) -> Any:
    return mapped(lambda leaf: leaf.dtype, tree)


def _fix(error: Exception, usual: str) -> str:
    if "does not require grad" in str(error):  # of a force, or a penalty on a gradient
        return "tests take no gradients: differentiate within torch.enable_grad(), or by torch.func.grad"
    if "is not an nn.Parameter" in str(error):  # of get_parameter: in its place is what the worker trains
        return "read a parameter as an attribute of the module, self.layer.weight"
    return usual


def _hint(x: Any, error: Exception) -> str:
    """What is usually wrong with such inputs."""
    if isinstance(error, TypeError) and isinstance(x, dict | tuple):
        given = [f"{name}=…" for name in x] if isinstance(x, dict) else ["…"] * len(x)
        return f"the model is called as model({', '.join(given)}): give the inputs that its forward takes"
    first = leaves(x)[0]
    if first.ndim == 1:
        return "each input is a single number; give x[:, None] if the model takes rows of features"
    if first.dtype != torch.float32:
        return 'if the model takes float32, give x.float(), or x.astype("float32") of an array'
    shape = tuple(first.shape[1:])
    return f"give a model for inputs of shape {shape}; nn.Flatten() makes them rows of features"
