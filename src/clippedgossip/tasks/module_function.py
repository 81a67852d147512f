"""Any `nn.Module` as a pure function of its parameters, so that one call computes all workers (`vmap`).

Nothing of the module changes in a call: parameters, the buffers that training changes, and what dropout is
drawn from go in, and the new buffers come out. What cannot be batched is found by trying it once.
"""

import copy
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from clippedgossip.errors import DataError
from clippedgossip.randomness import keep_mask
from clippedgossip.tasks.datasets import cast, mapped
from clippedgossip.tasks.objective import Loss, called
from clippedgossip.tasks.task import ParameterLayout

SMALL = 50_000
"""Parameters up to which one batched call is faster on a CPU than a call for each worker: measured, one
thread, 20 workers: 3 ms and 7 for 4,810 parameters; 680 and 510 for a transformer of 285,504."""
REPEATS = 4096
"""The draws of a dropout layer's k-th call in one pass are those of layer (place + k · this)."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
Dict = Mapping[str, Tensor]


class Objective(nn.Module):
    """A module and its loss as one module: forward(x, y) is the loss of a batch, forward(x) the outputs."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, x: Any, y: Any = None) -> Any:
        return called(self.module, x) if y is None else self.loss(self.module, x, y)


class WorkerDropout(nn.Module):
    """Dropout whose draws are a worker's own: they depend on (seed, node, step) in `key` and on the layer."""

    key: Tensor

    def __init__(self, layer: nn.Module, place: int, device: torch.device) -> None:
        super().__init__()
        self.place, self.p = place, float(layer.p)  # type: ignore[arg-type]  # every dropout layer has it
        self.whole_channels = type(layer) is not nn.Dropout
        self.register_buffer("key", torch.zeros(4, dtype=torch.int64, device=device), persistent=False)
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        shape = tuple(x.shape)
        if self.whole_channels:
            shape = (*shape[:2], *[1] * (x.dim() - 2))
        seed, node, step, call = self.key.unbind()
        kept = keep_mask(seed, node, step, self.place + REPEATS * call, shape, self.p, batched=True)
        self.key.add_(torch.tensor([0, 0, 0, 1], device=self.key.device))  # the next call draws anew
        return x * kept * (1 / (1 - self.p))


class ModuleFunction:
    """Losses, gradients and outputs of a module for given parameters and buffers."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        held = copy.deepcopy(module)
        self.objective = Objective(_with_own_dropout(held), loss).train()
        self.module = self.objective.module
        self.layout = ParameterLayout.of(module)
        self.keys = [
            f"module.{name}.key" for name, part in held.named_modules() if isinstance(part, WorkerDropout)
        ]
        self.buffers = ParameterLayout(names=(), shapes=())
        """Those that training changes; `try_once` finds them."""
        self.random = False
        """Whether a forward pass draws random numbers of its own, such as functional dropout."""
        self.obstacle: str | None = None
        """Why `vmap` cannot batch it."""

    def constants(self) -> dict[str, Tensor]:
        """Frozen parameters and buffers that never change."""
        trained = {f"module.{name}" for name in (*self.layout.names, *self.buffers.names)}
        held = {**dict(self.objective.named_parameters()), **dict(self.objective.named_buffers())}
        return {
            name: value.detach()
            for name, value in held.items()
            if name not in trained and name not in self.keys
        }

    def initial_buffers(self) -> Tensor:
        """(B,) the changing buffers of the module, as one vector of float32."""
        named = dict(self.module.named_buffers())
        held = [named[name].detach().flatten().float() for name in self.buffers.names]
        return torch.cat(held) if held else torch.zeros(0)

    def __call__(
        self,
        parameters: Dict,
        buffers: Tensor,
        key: Tensor,
        constants: Dict,
        x: Any,
        y: Any = None,
        *,
        objective: nn.Module | None = None,
    ) -> tuple[Any, Tensor]:
        """Of one worker: the loss of its batch (its outputs, without y), and its buffers afterwards.

        All is computed in the dtype of the parameters.
        """
        dtype = next(iter(parameters.values())).dtype
        kinds = dict(self.module.named_buffers())
        # Copies, each by itself: the module changes them in place, and `vmap` writes into no part of a whole.
        changing = {
            name: view.to(dtype if kinds[name].is_floating_point() else kinds[name].dtype).clone(
                memory_format=torch.contiguous_format
            )
            for name, view in self.buffers.views(buffers).items()
        }
        given = {name: cast(value, dtype) for name, value in constants.items()}
        given |= {f"module.{name}": value for name, value in (*parameters.items(), *changing.items())}
        given |= {name: key.clone() for name in self.keys}
        x = mapped(lambda leaf: cast(leaf, dtype), x)
        found = functional_call(objective or self.objective, given, (x, y))
        after = [value.to(buffers.dtype).flatten() for value in changing.values()]
        return found, torch.cat(after) if after else buffers

    def gradients(
        self, parameters: Dict, buffers: Tensor, keys: Tensor, constants: Dict, x: Any, y: Any
    ) -> tuple[dict[str, Tensor], tuple[Tensor, Tensor]]:
        """Gradients, losses and buffers of all workers at once: everything has a leading dimension."""
        step = vmap(grad_and_value(self, has_aux=True), in_dims=(0, 0, 0, None, 0, 0))
        with batching():
            found: tuple[dict[str, Tensor], tuple[Tensor, Tensor]] = step(
                parameters, buffers, keys, constants, x, y
            )
        return found

    def losses(
        self, parameters: Dict, buffers: Tensor, keys: Tensor, constants: Dict, x: Any, y: Any
    ) -> Tensor:
        """Losses of all models at once, as the module's mode says."""
        with batching():
            found: Tensor = vmap(self, in_dims=(0, 0, 0, None, 0, 0))(
                parameters, buffers, keys, constants, x, y
            )[0]
        return found

    @torch.no_grad()
    def estimated(self, parameters: Dict, start: Tensor, constants: Dict, batches: Sequence[Any]) -> Tensor:
        """(B,) buffers of one model whose batch normalisations take the mean statistics of these batches."""
        norms = [part for part in self.module.modules() if isinstance(part, _BatchNorm)]
        momenta = [part.momentum for part in norms]
        buffers, key = start.clone(), torch.zeros(4, dtype=torch.int64, device=start.device)
        for name, view in self.buffers.views(buffers).items():
            if name.endswith("num_batches_tracked"):
                view.zero_()
        with self.evaluating(batch_statistics=True):
            for part in norms:
                part.momentum = None  # PyTorch then takes the mean of all batches
            for x in batches:
                _, buffers = self(parameters, buffers, key, constants, x)
            for part, momentum in zip(norms, momenta, strict=True):
                part.momentum = momentum
        return buffers

    def try_once(self, parameters: Dict, x: Any, y: Any, *, batched: bool) -> None:
        """Find out, on a batch (2, …) of two workers, which buffers change and, if it is to be batched,
        whether `vmap` can."""
        first = mapped(lambda leaf: leaf[0], (x, y))
        before = {name: held.clone() for name, held in self.module.named_buffers()}
        names = [name for name in before if f"module.{name}" not in self.keys]
        self._find_what_changes(before, names, first)
        if not batched:
            return
        keys = torch.zeros(2, 4, dtype=torch.int64, device=next(iter(parameters.values())).device)
        start = self.initial_buffers().to(keys.device).expand(2, -1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                _, found = self.gradients(parameters, start, keys, self.constants(), x, y)
            except Exception as error:  # whatever `vmap` does not know, PyTorch says in its own words
                self.obstacle = _operation(str(error))
                return
        with torch.no_grad():
            own = {name: value[0] for name, value in parameters.items()}
            alone = self(own, start[0], keys[0], self.constants(), *first)
        for batched_result, right in zip(found, alone, strict=True):
            if not torch.allclose(batched_result[0].float(), right.float(), rtol=0.1, atol=0.05):
                self.obstacle = "it: the result differs from that of one worker"
        slow = [str(entry.message) for entry in said if "batching rule" in str(entry.message)]
        self.obstacle = _operation(slow[0]) if slow else self.obstacle

    @torch.no_grad()
    def _find_what_changes(self, before: Mapping[str, Tensor], names: list[str], batch: Any) -> None:
        device = next(self.module.parameters()).device
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            states, start = _random_states(device), dict(self.module.named_buffers())
            self.objective(*batch)
            after = _random_states(device)
        self.random = any(not torch.equal(a, b) for a, b in zip(states, after, strict=True))
        held = dict(self.module.named_buffers())
        for name in names:
            if held[name] is not start[name]:
                raise DataError(
                    f"the model replaces its buffer {name} in training, so that workers could not keep it\n"
                    f"change it in place: self.{name.rpartition('.')[2]}.copy_(…)"
                )
        changed = [name for name in names if not torch.equal(held[name], before[name])]
        for name, value in before.items():
            held[name].copy_(value)
        shapes = tuple(held[name].shape for name in changed)
        self.buffers = ParameterLayout(names=tuple(changed), shapes=shapes)

    @contextmanager
    def evaluating(self, *, batch_statistics: bool = False) -> Iterator[None]:
        """No dropout; batch normalisation by the running statistics, or by those of the batch."""
        self.objective.eval()
        if batch_statistics:
            for part in self.module.modules():
                if isinstance(part, _BatchNorm):
                    part.train()
        try:
            yield
        finally:
            self.objective.train()

    def identity(self) -> tuple[object, ...]:
        """What two modules must have in common to compute the same: classes and plain attributes. A compiled
        function serves all modules of one identity."""
        return tuple((type(part), *map(_plain, _attributes(part))) for part in self.objective.modules())


def batching() -> AbstractContextManager[None]:
    """Attention by its plain form: `vmap` batches no other."""
    return sdpa_kernel(SDPBackend.MATH)


def _with_own_dropout(module: nn.Module) -> nn.Module:
    """Replace every dropout layer; its place is that among the module's parts, from 0."""
    device = next(module.parameters()).device
    for place, (name, part) in enumerate(list(module.named_modules())):
        if type(part) in (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d) and name:
            owner, _, own = name.rpartition(".")
            setattr(module.get_submodule(owner), own, WorkerDropout(part, place - 1, device))
    return module


def _random_states(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


def _operation(message: str) -> str:
    """The operation that an error or warning of `vmap` is about."""
    if "random operation" in message:
        return "a random operation of its own (functional dropout)"
    named = re.search(r"aten::\w+(\.\w+)?|\.item\(\)", message)
    return named.group() if named else (message.splitlines() or ["an operation"])[0]


_OF_MODULES = frozenset(vars(nn.Module()))


def _attributes(part: nn.Module) -> list[object]:
    return [value for name, value in sorted(vars(part).items()) if name not in _OF_MODULES] + [part.training]


def _plain(value: object) -> object:
    """Something that is equal only for equal values: plain values themselves, others by identity."""
    if isinstance(value, bool | int | float | str | bytes | type | None | torch.dtype):
        return value
    if isinstance(value, tuple | list):
        return tuple(map(_plain, value))
    if isinstance(value, Loss):
        return value.identity
    return value if callable(value) and not isinstance(value, nn.Module) else id(value)
