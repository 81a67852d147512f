"""The models: linear, mlp, the paper's CNN and VGG-11, built for a data set's inputs from a seed.

A model's trainable parameters are views of one flat vector, without copying: nodes exchange and mix these
alone. Frozen parameters are constants. Buffers that change in training (such as the running statistics of
batch normalisation) are each worker's own and are never mixed.

Models share a stack or a compiled function if they are alike in all but the numbers of parameters and buffers
(`identity`); what keeps results from call to call must also have the same numbers. Values are compared by
content; what cannot be is like itself alone.
"""

import hashlib
import math
import pickle
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from clippedgossip.decode import Kind
from clippedgossip.devices import free_memory, ours
from clippedgossip.errors import DataError, RunError, unknown_name
from clippedgossip.randomness import drawn_from, generator, key

Shape = tuple[int, ...]

DEEPEST = 8  # values within values that are compared
LARGE = 1 << 22  # bytes of an array up to which its numbers are compared
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
OF_MODULES = frozenset(vars(nn.Module()))
_PLAIN = frozenset([type(None), bool, int, float, complex, str, bytes])


def linear(shape: Shape, classes: int) -> nn.Module:
    """Multinomial logistic regression."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))


def mlp(shape: Shape, classes: int, width: int = 64) -> nn.Module:
    """One hidden layer."""
    hidden = nn.Linear(math.prod(shape), width)
    return nn.Sequential(nn.Flatten(), hidden, nn.ReLU(), nn.Linear(width, classes))


def deep_mlp(shape: Shape, classes: int, width: int = 32, depth: int = 6) -> nn.Module:
    """Six narrow hidden layers: deep enough that workers without consensus end in different minima."""
    layers: list[nn.Module] = [nn.Flatten()]
    for features in (math.prod(shape), *[width] * (depth - 1)):
        layers += [nn.Linear(features, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, classes))


def cnn(shape: Shape, classes: int) -> nn.Module:
    """The paper's CNN (§ Experiments), 1,199,882 parameters on MNIST; gives log-probabilities."""
    channels, height, width = _image("cnn", shape, smallest=6)
    features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(features, 128),
        nn.ReLU(),
        nn.Dropout(0.5),
        nn.Linear(128, classes),
        nn.LogSoftmax(dim=-1),
    )


def vgg11(shape: Shape, classes: int) -> nn.Module:
    """VGG-11 for CIFAR-10 without batch normalisation: 8 convolutions, 3 linear layers of which the hidden
    ones have 512 units, 9,750,922 parameters."""
    channels, height, width = _image("vgg11", shape, smallest=32)
    layers: list[nn.Module] = []
    hidden: list[nn.Module] = []
    for filters, pool in ((64, 1), (128, 1), (256, 0), (256, 1), (512, 0), (512, 1), (512, 0), (512, 1)):
        layers += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()] + [nn.MaxPool2d(2)] * pool
        channels = filters
    for features in (512 * (height // 32) * (width // 32), 512):
        hidden += [nn.Dropout(0.5), nn.Linear(features, 512), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), *hidden, nn.Linear(512, classes))


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "deep-mlp": deep_mlp,
    "cnn": cnn,
    "vgg11": vgg11,
}
"""Models by name, each a function of the inputs' shape and the number of classes."""

MODEL = Kind(
    word="model",
    names=MODELS,
    base=nn.Module,
    group="clippedgossip.models",
    fix="make it a class or function (shape, classes) -> torch.nn.Module",
    given=2,
    error=DataError,
)

CHECKED = 4
"""The model, a copy that is tried, its parameters in that trial, and their gradient."""
HE: dict[str, tuple[type[nn.Module], ...]] = {"vgg11": (nn.Conv2d,), "deep-mlp": (nn.Linear,)}
"""Deep models without normalisation, and the layers that start from He's law."""


def build(name: str, shape: Shape, classes: int, *, seed: int) -> nn.Module:
    """A model by name, its parameters drawn from `seed` alone."""
    if name not in MODELS:
        raise DataError(unknown_name("model", name, MODELS))
    return seeded(name, partial(MODELS[name], shape, classes), seed)


def seeded(name: str, make: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model with parameters drawn from `seed` alone: of one that is built in as in `build`, of a user's own
    as its constructor draws them."""
    with drawn_from(0):
        _refuse_too_large(name, make)
    with drawn_from(key(seed, "init")):
        module = make()
    return initialise(module, seed, he=HE.get(name, ())) if name in MODELS else module


def _refuse_too_large(name: str, make: Callable[[], nn.Module]) -> None:
    """Before memory is taken. A user's own that cannot be made without its numbers is not refused here."""
    module = None
    with suppress(Exception), torch.device("meta"):
        module = make()
    if module is not None:
        refuse_copies(name, module, CHECKED)


def refuse_copies(name: str, module: nn.Module, copies: int) -> None:
    """Raise if so many copies of a module are more than there is memory for."""
    free, held = free_memory("cpu"), [*module.parameters(), *module.buffers()]
    needed = copies * sum(one.numel() * one.element_size() for one in held if not is_lazy(one))
    if needed > free:
        count = sum(one.numel() for one in module.parameters())
        raise RunError(
            f"{name!r} has {count:,} parameters; the checks before a run need {copies} copies, {needed:,} "
            f"bytes, and this machine has {free:,} free\ntake a smaller model"
        )


@torch.no_grad()
def initialise(module: nn.Module, seed: int, *, he: tuple[type[nn.Module], ...] = ()) -> nn.Module:
    """Draw the parameters of every linear and convolutional layer, in place, without the global generator.

    The law is PyTorch's own, U(-1/√fan_in, 1/√fan_in). Layers of the types in `he` take the usual law of
    VGG instead, N(0, 2/fan_out) and biases 0: with the first the signal vanishes in a deep net without
    normalisation, and N(0, 2/fan_in) diverges at the paper's step size.
    """
    for place, layer in enumerate(module.modules()):
        if isinstance(layer, nn.Linear | nn.Conv2d):
            draw = generator(seed, "init", place)
            bound = 1 / math.sqrt(layer.weight[0].numel())
            for parameter in layer.parameters(recurse=False):
                if not isinstance(layer, he):
                    parameter.uniform_(-bound, bound, generator=draw)
                elif parameter is layer.weight:
                    fan_out = layer.weight[:, 0].numel()
                    parameter.normal_(0.0, math.sqrt(2 / fan_out), generator=draw)
                else:
                    parameter.zero_()
    return module


def trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, each once."""
    return {name: held for name, held in module.named_parameters() if held.requires_grad}


@dataclass(frozen=True, kw_only=True)
class ParameterLayout:
    """Names and shapes of a module's trainable parameters, in the order they lie in the vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> "ParameterLayout":
        """The layout of a module's trainable parameters."""
        items = trained(module)
        return cls(names=tuple(items), shapes=tuple(item.shape for item in items.values()))

    @property
    def size(self) -> int:
        """Number of parameters, the paper's d."""
        return sum(map(math.prod, self.shapes))

    def views(self, vectors: Tensor) -> dict[str, Tensor]:
        """Views into vectors (*lead, d): {name: (*lead, *shape)}; writing to them writes there."""
        parts = torch.split(vectors, [math.prod(shape) for shape in self.shapes], dim=-1)
        lead = vectors.shape[:-1]
        return {
            name: part.view((*lead, *shape))
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, tensors: Mapping[str, Tensor], lead: int = 0) -> Tensor:
        """One vector (*lead, d) from tensors of shape (*lead, *shape), such as stacked gradients."""
        return torch.cat([tensors[name].unsqueeze(-1).flatten(lead) for name in self.names], dim=-1)


def flatten(module: nn.Module) -> Tensor:
    """A copy of the trainable parameters as one vector (d,)."""
    return torch.cat([held.detach().flatten() for held in trained(module).values()])


@torch.no_grad()
def unflatten(vector: Tensor, module: nn.Module) -> nn.Module:
    """Copy a vector (d,) into a module's trainable parameters."""
    values = ParameterLayout.of(module).views(vector)
    for name, parameter in trained(module).items():
        parameter.copy_(values[name])
    return module


def _image(name: str, shape: Shape, smallest: int) -> tuple[int, int, int]:
    if len(shape) != 3 or min(shape[1:]) < smallest:
        raise DataError(
            f"model {name!r} needs images of at least {smallest}×{smallest} pixels, "
            f"the data has inputs of shape {'×'.join(map(str, shape))}; use 'mlp' or other data"
        )
    return shape[0], shape[1], shape[2]


class Itself:
    """Equal to itself alone. It keeps its thing, so that no other gets the place in memory."""

    def __init__(self, thing: object) -> None:
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)


def identity(module: nn.Module) -> Hashable:
    """Of a model: its parts, what they hold but for the numbers of its tensors, what has several names, the
    code of its classes, and its hooks."""
    numbers: dict[int, int] = {}
    found: list[Hashable] = []
    for name, part in module.named_modules(remove_duplicate=False):
        new = id(part) not in numbers
        found.append((name, numbers.setdefault(id(part), len(numbers))))
        if new:
            held = [
                *part.named_parameters(recurse=False, remove_duplicate=False),
                *part.named_buffers(recurse=False, remove_duplicate=False),
            ]
            tensors = tuple(
                (key, numbers.setdefault(id(one), len(numbers)), one.dtype, one.shape, one.requires_grad)
                for key, one in held
            )
            own = {key: value for key, value in vars(part).items() if key not in OF_MODULES}
            hooks = [list(getattr(part, hooks, {}).values()) for hooks in HOOKS]
            found.append((_class(type(part)), part.training, tensors, content(own), content(hooks)))
    return tuple(found)


def numbers(module: nn.Module) -> Hashable:
    """A digest of its parameters and buffers."""
    held = (*module.parameters(), *module.buffers())
    return tuple(hashlib.sha256(bits(one).data).digest() for one in held)


def bits(tensor: Tensor) -> np.ndarray:
    """The numbers of any dtype, as bytes."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().flatten()
    return plain.view(torch.uint8).numpy()


def content(value: Any, depth: int = 0) -> Hashable:
    """Equal only for values that are alike."""
    kind: type = type(value)
    if value is None or kind in (bool, int, str, bytes):
        return kind, value
    if kind in (float, complex):
        return kind, repr(value)
    if isinstance(value, type | torch.dtype | torch.device | BuiltinFunctionType | CodeType):
        return value
    if depth > DEEPEST or isinstance(value, nn.Module) or _bytes(value) > LARGE:
        return Itself(value)
    if (parts := _parts(value)) is not None:
        if kind in (list, tuple, dict) and _PLAIN.issuperset(map(type, parts)):  # many numbers, in one go
            return kind, repr(value)
        return kind, tuple(content(part, depth + 1) for part in parts)
    try:
        return kind, pickle.dumps(value)
    except Exception:  # objects of others may raise anything
        return Itself(value)


def _parts(value: Any) -> list[Any] | None:
    """What a value is made of."""
    kind = type(value)
    if kind in (list, tuple, torch.Size):
        return list(value)
    if kind is dict:
        return [*value, *value.values()]
    if isinstance(value, FunctionType):
        cells = closure(value).values()
        return [value.__code__, id(value.__globals__), value.__defaults__, value.__kwdefaults__, *cells]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, Tensor) and value.layout == torch.strided and not value.is_meta | value.is_quantized:
        return [value.dtype, value.shape, bits(value).tobytes()]
    if is_dataclass(value) and ours(value):
        return [getattr(value, part.name) for part in fields(value) if part.compare]
    return None


def closure(function: FunctionType) -> dict[str, Any]:
    """What a function takes from those around it; a cell is empty before its name has a value."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _bytes(value: Any) -> int:
    """Of an array."""
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return value.nbytes if isinstance(value, np.ndarray) else 0


def _class(kind: type) -> Hashable:
    """The class, and the code of its methods, which may be written anew in a notebook."""
    own = [part for part in kind.__mro__ if part.__module__.partition(".")[0] not in ("torch", "builtins")]
    methods = [value for part in own for value in vars(part).values() if isinstance(value, FunctionType)]
    return kind, content(methods)
