"""Any `nn.Module` as a pure function of its parameters, so that one call computes all workers (`vmap`).

Nothing of the module changes in a call: parameters, the buffers that training changes, and what dropout is
drawn from go in, and the new buffers come out. What cannot be batched is found by trying it once.
"""

import copy
import re
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clippedgossip.errors import DataError
from clippedgossip.randomness import keep_mask, own_randomness
from clippedgossip.tasks.datasets import cast, leaves, mapped
from clippedgossip.tasks.models import HOOKS, ParameterLayout
from clippedgossip.tasks.objective import Loss, Metric, called

SMALL, SMALL_LINEAR = 50_000, 600_000
"""Parameters up to which models without convolutions are batched on a CPU: any, and those of linear layers
alone. One batched call and a call for each of 20 workers take, on one thread: 1.8 ms and 7 for 4,810
parameters, 680 and 510 for a transformer of 285,504; of linear layers, with two threads, 17 and 23 for
203,530, 36 and 36 for 407,050, 70 and 57 for 814,090."""
REPEATS = 4096
"""The draws of a dropout layer's k-th call in one pass are those of layer (place + k · this)."""
EVALUATED = 3 << 18
"""Bytes of a sample up to which 1000 are tested at once, and 5000 on a GPU; of larger ones fewer."""
FEW_CHANNELS = 4
WORD = 8  # numbers of bfloat16 that a GPU reads at a time
WIDTH = 16
"""Channels and filters are multiples of it in convolutions that `convolution` has kernels for."""
DTYPES = {"float32": torch.float32, "tf32": torch.float32, "bfloat16": torch.bfloat16}
"""Of the gradients' products, for each `training.precision`."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
OBSTACLES = {
    "random operation": "random numbers of its own (functional dropout, nn.AlphaDropout, randn_like, …)",
    "escaped": "what it keeps from call to call",
    "autograd.Function": "an autograd.Function without a rule for vmap",
    "does not have vmap support": "an autograd.Function without a rule for vmap",
    "data-dependent control flow": "a branch on values",
    "boolean mask": "a selection by a mask",
    "requires_grad_()": "requires_grad_() inside the model",
}
"""What PyTorch says in sentences about what `vmap` cannot batch, in a few words."""
Dict = Mapping[str, Tensor]


class Objective(nn.Module):
    """A module and its loss as one module: forward(x, y) is the loss of a batch, forward(x) the outputs."""

    def __init__(self, module: nn.Module, loss: Loss) -> None:
        super().__init__()
        self.module, self.loss, self.still = module, loss, still_parts(module)

    def train(self, mode: bool = True) -> "Objective":
        super().train(mode)
        for name in self.still:
            self.module.get_submodule(name).training = False
        return self

    def forward(self, x: Any, y: Any = None) -> Any:
        if y is None:
            return called(self.module, x)
        found = self.loss(self.module, x, y)
        return found.reshape(()) if isinstance(found, Tensor) else found  # a loss of shape (1,) is a number


def still_parts(module: nn.Module) -> tuple[str, ...]:
    """What stays in eval mode: the parts that are, of a module that is in train mode."""
    return tuple(name for name, part in module.named_modules() if module.training and not part.training)


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
        kept = keep_mask(seed, node, step, self.place + REPEATS * call, shape, self.p)
        self.key.add_(torch.arange(4, device=self.key.device) == 3)  # the next call draws anew
        return x * kept / ((1 - self.p) or 1)  # with p = 1 all are zeros


class ShiftedConv(nn.Module):
    """A convolution as a product of shifted images with the kernel: for all workers, one batched product.

    `vmap` makes grouped convolutions of `nn.Conv2d`, which a GPU computes more slowly.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.around = layer.stride, (int(layer.padding[0]), int(layer.padding[1]))
        self.train(layer.training)

    @staticmethod
    def fits(part: nn.Module) -> bool:
        """Whether it computes what this layer computes."""
        return (
            _is_plain(part, nn.Conv2d)
            and isinstance(part, nn.Conv2d)
            and part.groups == 1
            and part.dilation == (1, 1)
            and part.padding_mode == "zeros"
            and not isinstance(part.padding, str)
            and set(part._parameters) == {"weight", "bias"}
        )

    def forward(self, x: Tensor) -> Tensor:
        (up, left), (down, right) = self.around, self.stride
        h = functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, up, up))
        few = h.shape[-1] <= FEW_CHANNELS
        if few:
            # PyTorch 2.11 compiles views of few images of one channel into a kernel that reads some of them
            # from the wrong place. A copy avoids it.
            h = h.clone(memory_format=torch.contiguous_format)
        filters, channels, rows, columns = self.weight.shape
        high, wide = (h.shape[1] - rows) // down * down + 1, (h.shape[2] - columns) // right * right + 1
        shifts = [
            h[:, i : i + high : down, j : j + wide : right] for i in range(rows) for j in range(columns)
        ]
        kernel = self.weight.permute(2, 3, 1, 0).reshape(-1, filters)
        if few:
            # In one compiled kernel, where `cat` has one for each shift, and so wide that its products are
            # read by whole words.
            wider = -len(kernel) % WORD
            kernel, ends = functional.pad(kernel, (0, 0, 0, wider)), len(kernel) + wider - channels
            padded = [functional.pad(s, (i * channels, ends - i * channels)) for i, s in enumerate(shifts)]
            shifted = sum(padded[1:], padded[0])
        else:
            shifted = torch.cat(shifts, -1)
        product = shifted.flatten(0, 2) @ kernel
        product = product if self.bias is None else product + self.bias
        return product.view(*shifted.shape[:3], filters).permute(0, 3, 1, 2)


class PaddedConv(nn.Module):
    """A convolution with channels and filters of zeros, so that `convolution` has kernels for it."""

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.stride, self.padding = layer.stride, layer.padding
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        filters, channels = self.weight.shape[:2]
        more = (0, 0, 0, 0, 0, -channels % WIDTH)
        kernel = functional.pad(self.weight, (*more, 0, -filters % WIDTH))
        h = functional.conv2d(functional.pad(x, more), kernel, None, self.stride, self.padding)[:, :filters]
        return h if self.bias is None else h + self.bias.view(-1, 1, 1)


class MeanOfImage(nn.Module):
    """`nn.AdaptiveAvgPool2d(1)`, the end of most ResNets. `vmap` cannot batch what PyTorch does with images
    that lie channels last, as behind a `ShiftedConv`."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((-2, -1), keepdim=True)


def _on_gpu(part: nn.Module, precision: str) -> nn.Module | None:
    """What a GPU computes sooner than this part of a module, if it is a plain convolution or pooling."""
    if _is_plain(part, nn.AdaptiveAvgPool2d) and part.output_size in (1, (1, 1)):
        return MeanOfImage()
    if not (isinstance(part, nn.Conv2d) and ShiftedConv.fits(part)):
        return None
    if precision == "float32" or part.stride[0] != part.stride[1] or part.in_channels <= FEW_CHANNELS:
        return ShiftedConv(part)  # of few channels, the shifted images are small
    return PaddedConv(part) if part.in_channels % WIDTH or part.out_channels % WIDTH else None


class PaddedEmbedding(nn.Module):
    """An embedding whose row `padding_idx` gets no gradient. `vmap` drops that argument of PyTorch's."""

    def __init__(self, layer: nn.Embedding) -> None:
        super().__init__()
        assert layer.padding_idx is not None
        self.weight, self.padding = layer.weight, layer.padding_idx
        self.by_frequency = layer.scale_grad_by_freq
        self.train(layer.training)

    @classmethod
    def of(cls, part: nn.Module) -> "PaddedEmbedding | None":
        """For an embedding with padding that it can stand for."""
        fits = (
            _is_plain(part, nn.Embedding) and isinstance(part, nn.Embedding) and "weight" in part._parameters
        )
        return cls(part) if fits and part.padding_idx is not None and part.max_norm is None else None

    def forward(self, x: Tensor) -> Tensor:
        rows = functional.embedding(x, self.weight, scale_grad_by_freq=self.by_frequency)
        return torch.where(x.eq(self.padding).unsqueeze(-1), rows.detach(), rows)


class ModuleFunction:
    """Losses, gradients and outputs of a module for given parameters and buffers."""

    def __init__(
        self, module: nn.Module, loss: Loss, *, on_gpu: bool = False, precision: str = "float32"
    ) -> None:
        """For products in this precision; the function takes numbers of any dtype all the same."""
        held = copy.deepcopy(module)
        if on_gpu:
            _replace(held, lambda part, _: _on_gpu(part, precision))
        else:
            _arrange(held)
        _replace(held, lambda part, _: PaddedEmbedding.of(part))
        self.objective = Objective(_with_own_dropout(held), loss).train()
        self.module = self.objective.module
        self.layout = ParameterLayout.of(module)
        self.keys = [
            f"module.{name}.key" for name, part in held.named_modules() if isinstance(part, WorkerDropout)
        ]
        self.ties = ties_of(self.objective)
        """Other names of a tensor that has several: tied weights."""
        self.buffers = ParameterLayout(names=(), shapes=())
        """Those that training changes; `try_once` finds them."""
        self.wide = False
        """Whether float32 cannot hold them: numbers of float64, and whole numbers of 32 or 64 bits."""
        self.looks_up = False
        """Whether it looks rows up by their numbers, which `vmap` does not check."""
        self.random = False
        """Whether a forward pass draws random numbers of its own, such as functional dropout."""
        self.random_of_host = False
        """Whether they are those of Python or NumPy, which `vmap` would draw once for all workers."""
        self.obstacle: str | None = None
        """Why `vmap` cannot batch it."""
        few = any(_has_few_channels(held) for held in module.parameters())
        self.memory_format = torch.contiguous_format if few else torch.channels_last
        """Of images and kernels on a CPU, which convolves them faster channels last."""

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
        """(B,) the changing buffers of the module, as one vector of float32, or of float64 where they need
        it."""
        named, dtype = dict(self.module.named_buffers()), torch.float64 if self.wide else torch.float32
        held = [named[name].detach().flatten().to(dtype) for name in self.buffers.names]
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

        All that is float32 in the module is computed in the dtype of the parameters.
        """
        dtype = next(iter(parameters.values())).dtype
        given = {
            name: value.to(dtype) if value.dtype == torch.float32 else value
            for name, value in constants.items()
        }
        given |= {f"module.{name}": value for name, value in parameters.items()}
        given |= {name: key.clone() for name in self.keys}
        after = self._own(buffers, dtype)
        given |= {f"module.{name}": value for name, value in after.items()}
        x = mapped(lambda leaf: cast(leaf, dtype), x)
        found = call_with(objective or self.objective, given, self.ties, x, y)
        held = [value.to(buffers.dtype).flatten() for value in after.values()]
        return found, torch.cat(held) if held else buffers

    def named_buffers(self, buffers: Tensor) -> dict[str, Tensor]:
        """Buffers (B,) by name, in the module's dtypes."""
        kinds = dict(self.module.named_buffers())
        return {name: in_dtype(view, kinds[name].dtype) for name, view in self.buffers.views(buffers).items()}

    def _own(self, buffers: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The changing buffers of a worker. Copies, each by itself: the module changes them in place, and
        `vmap` writes into no part of a whole."""
        kinds = dict(self.module.named_buffers()) if self.buffers.names else {}
        return {
            name: in_dtype(view, dtype if kinds[name].dtype == torch.float32 else kinds[name].dtype).clone(
                memory_format=torch.contiguous_format
            )
            for name, view in self.buffers.views(buffers).items()
        }

    def losses(
        self, parameters: Dict, buffers: Tensor, keys: Tensor, constants: Dict, x: Any, y: Any
    ) -> tuple[Tensor, Tensor]:
        """Losses (n,) and buffers (n, B) of all workers at once, as the module's mode says; everything has a
        leading dimension."""
        checked = self.looks_up and not buffers.is_cuda
        with batching(), _RowsExist() if checked else nullcontext():
            one = self.__call__  # the compiler leaves `vmap` of what has no name uncompiled
            found: tuple[Tensor, Tensor] = vmap(one, in_dims=(0, 0, 0, None, 0, 0))(
                parameters, buffers, keys, constants, x, y
            )
        return found

    def gradients(
        self, parameters: Dict, buffers: Tensor, keys: Tensor, constants: Dict, x: Any, y: Any
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """Gradients, losses and buffers of all workers at once. A worker's loss depends on its own parameters
        alone, so the gradient of the sum holds that of each."""
        if torch.compiler.is_compiling():  # the compiler knows this form alone as one graph
            step = vmap(grad_and_value(self, has_aux=True), in_dims=(0, 0, 0, None, 0, 0))
            with batching():
                pieces, (losses, after) = step(parameters, buffers, keys, constants, x, y)
            return [pieces[name] for name in parameters], losses, after
        leaf = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        with torch.enable_grad(), batching():  # half the calls of `grad_and_value`, so faster on a CPU
            losses, after = self.losses(leaf, buffers, keys, constants, x, y)
            found = torch.autograd.grad(losses.sum(), list(leaf.values()), materialize_grads=True)
        return list(found), losses.detach(), after.detach()

    @torch.no_grad()
    def estimated(self, parameters: Dict, start: Tensor, constants: Dict, batches: Sequence[Any]) -> Tensor:
        """(B,) buffers of one model whose batch normalisations take the mean statistics of these batches."""
        norms = {name: part for name, part in self.module.named_modules() if isinstance(part, _BatchNorm)}
        if not norms:
            return start
        momenta = [part.momentum for part in norms.values()]
        buffers, key = start.clone(), torch.zeros(4, dtype=torch.int64, device=start.device)
        for name, view in self.buffers.views(buffers).items():
            if name.endswith("num_batches_tracked"):
                view.zero_()
        with self.evaluating(batch_statistics=True):
            for part in norms.values():
                part.momentum = None  # PyTorch then takes the mean of all batches
            for x in batches:
                _, buffers = self(parameters, buffers, key, constants, x)
            for part, momentum in zip(norms.values(), momenta, strict=True):
                part.momentum = momentum
        kept = self.buffers.views(start)
        for name, view in self.buffers.views(buffers).items():
            if name.rpartition(".")[0] not in norms:
                view.copy_(kept[name])
        return buffers

    def try_once(self, parameters: Dict, x: Any, y: Any, *, batched: bool) -> None:
        """Find out, on a batch (2, …) of two workers, which buffers change and, if it is to be batched,
        whether `vmap` can."""
        first = mapped(lambda leaf: leaf[0], (x, y))
        before = {name: held.clone() for name, held in self.module.named_buffers()}
        names = [name for name in before if f"module.{name}" not in self.keys]
        with _LooksUp() as lookups:
            self._find_what_changes(before, names, first)
        self.looks_up = lookups.seen
        self.obstacle = _known_obstacle(self.module, lookups.padded, self.random_of_host)
        shared = self.objective.loss, *self.objective.parameters(), *self.objective.buffers()
        untouched = copy.deepcopy(self.objective, {id(held): held for held in shared})
        if batched and self.obstacle is None:
            self._try_batched(parameters, x, y)
        if batched and self.obstacle is None:
            return
        own = {name: value[0] for name, value in parameters.items()}
        if on_gpu := next((value.device for value in own.values() if value.is_cuda), None):
            with own_randomness(0):
                self._alone(own, self.initial_buffers().to(on_gpu), first)  # may fail in this precision
        else:
            self._find_format(own, first)
        # What it keeps from call to call may be a tensor of `vmap`, or one that no thread can copy.
        self.objective, self.module = untouched, untouched.module

    def _try_batched(self, parameters: Dict, x: Any, y: Any) -> None:
        first = mapped(lambda leaf: leaf[0], (x, y))
        keys = torch.zeros(2, 4, dtype=torch.int64, device=next(iter(parameters.values())).device)
        start = self.initial_buffers().to(keys.device).expand(2, -1)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                pieces, *found = self.gradients(parameters, start, keys, self.constants(), x, y)
                own = {name: value[0] for name, value in parameters.items()}
                alone, *right = self._alone(own, start[0], first)
            except Exception as error:  # whatever `vmap` does not know, PyTorch says in its own words
                self.obstacle = _operation(str(error))
                return
        for batched_result, one in zip(found, right, strict=True):
            if not torch.allclose(batched_result[0].float(), one.float(), rtol=0.1, atol=0.05):
                self.obstacle = "it: the result differs from that of one worker"
        if _apart([piece[0] for piece in pieces], alone):
            self.obstacle = "it: the gradient differs from that of one worker"
        slow = [str(entry.message) for entry in said if "batching rule" in str(entry.message)]
        self.obstacle = _operation(slow[0]) if slow else self.obstacle

    def _alone(self, parameters: Dict, buffers: Tensor, batch: Any) -> tuple[list[Tensor], Tensor, Tensor]:
        """Gradient, loss and buffers of one worker."""
        own = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        key = torch.zeros(4, dtype=torch.int64, device=buffers.device)
        with torch.enable_grad(), batching():
            loss, after = self(own, buffers, key, self.constants(), *batch)
            found = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
        return list(found), loss.detach(), after.detach()

    def _find_format(self, parameters: Dict, batch: Any) -> None:
        """Images stay as they are given where a model can see how they lie in memory: by `view`, `stride`."""
        if self.memory_format != torch.channels_last or not any(
            leaf.dim() == 4 for leaf in (*parameters.values(), *leaves(batch[0]))
        ):
            return
        start, found = self.initial_buffers(), []
        for held in (torch.contiguous_format, torch.channels_last):
            put = partial(in_format, memory_format=held)
            own, given = {name: put(value) for name, value in parameters.items()}, mapped(put, batch[0])
            with own_randomness(0):
                try:
                    found.append(self._alone(own, start, (given, batch[1]))[0])
                except Exception:
                    if held == torch.contiguous_format:
                        raise
        if len(found) < 2 or _apart(found[1], found[0]):
            self.memory_format = torch.contiguous_format

    @torch.no_grad()
    def _find_what_changes(self, before: Mapping[str, Tensor], names: list[str], batch: Any) -> None:
        device = next(self.module.parameters()).device
        with own_randomness(devices=[device] if device.type == "cuda" else []) as drawn:
            states, start = _random_states(device), dict(self.module.named_buffers())
            versions = {name: held._version for name, held in start.items()}
            self.objective(*batch)
            self.random_of_host = drawn()
            with suppress(Exception):  # a model may be made for some parameters alone
                call_with(self.objective, nearby(self._parameters()), self.ties, *batch)
            after = _random_states(device)
        self.random = self.random_of_host or any(
            not torch.equal(a, b) for a, b in zip(states, after, strict=True)
        )
        held = dict(self.module.named_buffers())
        for name in names:
            if held[name] is not start[name]:
                raise DataError(
                    f"the model replaces its buffer {name} in training, so that workers could not keep it\n"
                    f"change it in place: self.{name.rpartition('.')[2]}.copy_(…)"
                )
            if held[name].shape != before[name].shape:
                raise DataError(
                    f"the model's buffer {name} has shape {tuple(before[name].shape)}, and "
                    f"{tuple(held[name].shape)} when it is called\n"
                    "call the model once on a batch: model(x[:2])"
                )
        changed = [  # also those that are written to and stay the same; batch normalisation counts no version
            name
            for name in names
            if held[name]._version != versions[name] or not torch.equal(held[name], before[name])
        ]
        for name in changed:
            if held[name].is_complex():
                raise DataError(
                    f"training changes the model's buffer {name} of {held[name].dtype}, but workers keep "
                    "real numbers\nkeep torch.view_as_real(…) of it"
                )
        self.wide = any(_needs_float64(name, held[name].dtype) for name in changed)
        for name, value in before.items():
            held[name].copy_(value)
        shapes = tuple(held[name].shape for name in changed)
        self.buffers = ParameterLayout(names=tuple(changed), shapes=shapes)

    def _parameters(self) -> dict[str, Tensor]:
        return {f"module.{name}": self.module.get_parameter(name) for name in self.layout.names}

    @contextmanager
    def evaluating(self, *, batch_statistics: bool = False) -> Iterator[None]:
        """No dropout; batch normalisation by the running statistics, or by those of the batch."""
        self.objective.eval()
        if batch_statistics:
            for name, part in self.module.named_modules():
                if isinstance(part, _BatchNorm) and name not in self.objective.still:
                    part.train()
        try:
            yield
        finally:
            self.objective.train()


def call_with(objective: nn.Module, given: Dict, ties: Mapping[str, Sequence[str]], x: Any, y: Any) -> Any:
    """Call it with these tensors in the places of its own."""
    tied = {other: given[name] for name, others in ties.items() if name in given for other in others}
    # PyTorch's own way with ties leaves the given tensors in a part that has two names.
    return functional_call(objective, {**given, **tied}, (x, y), tie_weights=False)


def nearby(parameters: Dict) -> dict[str, Tensor]:
    """Parameters that differ a little."""
    return {name: value.detach() * 1.001 + 1e-6 for name, value in parameters.items()}


def in_dtype(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Whole numbers are rounded: a mean of equal ones may lie below them."""
    return (values if dtype.is_floating_point else values.round()).to(dtype)


def batched_on_cpu(module: nn.Module) -> bool:
    """Whether one call for all workers is faster on a CPU than a call for each: a rule of the model alone."""
    parts = [part for part in module.modules() if part._parameters]
    linear = all(isinstance(part, nn.Linear) for part in parts)
    return not any(isinstance(part, CONVOLUTIONS) for part in parts) and (
        ParameterLayout.of(module).size <= (SMALL_LINEAR if linear else SMALL)
    )


def batching() -> AbstractContextManager[None]:
    """Attention by its plain form: `vmap` batches no other."""
    return sdpa_kernel(SDPBackend.MATH)


@torch.no_grad()
def activation_cost(
    module: nn.Module, loss: Loss, x: Any, y: Any, *, on_gpu: bool, precision: str = "float32"
) -> int:
    """Bytes that one sample's forward pass in this precision leaves for the backward pass, by running the
    module on a batch. For a GPU, turned weights count too: stacks of runs there are as large as that lets."""
    kept: dict[int, int] = {}

    def place(one: Tensor) -> int:
        return id(one) if on_gpu else one.untyped_storage()._cdata

    def keep(saved: Tensor) -> Tensor:
        if place(saved) not in held and saved.dim():
            size = saved.numel() * saved.element_size()
            whole = size if on_gpu else saved.untyped_storage().nbytes()
            kept[place(saved)] = min(kept.get(place(saved), 0) + size, whole)
            alive.append(saved)
        return saved

    held: set[int] = set()
    alive: list[Tensor] = []

    def call(objective: Objective, x: Any, y: Any) -> int:
        held.update(map(place, [*objective.parameters(), *objective.buffers()]))
        kept.clear()
        with (
            torch.enable_grad(),
            batching(),
            torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved),
        ):
            objective(x, y)
        return sum(kept.values()) * DTYPES[precision].itemsize // 4 // len(leaves(y)[0])

    return _tried(call, module, loss, x, y, on_gpu=on_gpu, precision=precision)


@torch.no_grad()
def evaluation_cost(module: nn.Module, loss: Loss, metric: Metric, x: Any, y: Any) -> int:
    """Bytes that a test takes more for each sample: inputs, and results that are held at the same time."""

    def call(objective: Objective, x: Any, y: Any) -> int:
        objective.eval()
        found = []
        for batch in ((x, y), mapped(lambda leaf: torch.cat([leaf, leaf]), (x, y))):
            with _Sizes([*leaves(batch), *objective.parameters(), *objective.buffers()]) as sizes:
                outputs = objective(batch[0], batch[1] if metric.of_loss else None)
                with suppress(Exception):  # one of the user's own may need numbers
                    metric.of_batch(outputs, batch[1])
            found.append(sizes.taken)
        more = accumulate(double - single for single, double in zip(*found, strict=False))
        given = sum(leaf.numel() * leaf.element_size() for leaf in leaves((x, y)))
        return (max(more, default=0) + given) // len(leaves(y)[0])

    return _tried(call, module, loss, x, y, on_gpu=False)


def evaluated_at_once(cost: int, *, on_gpu: bool) -> int:
    """How many samples of this cost are tested at once: a rule of the model and the data alone."""
    most = 5000 if on_gpu else 1000
    return max(1, most * EVALUATED // max(cost, EVALUATED))


class _Sizes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
    """The bytes of each new result when it is made, and as a negative number when it is freed."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the same
        self.taken: list[int] = []
        self.seen = {held.untyped_storage()._cdata for held in known}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # to skip it, PyTorch imports it

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor) and (storage := leaf.untyped_storage())._cdata not in self.seen:
                self.seen.add(storage._cdata)
                self.taken.append(storage.nbytes())
                weakref.finalize(storage, self._free, storage._cdata, storage.nbytes())
        return found

    def _free(self, place: int, count: int) -> None:
        self.seen.discard(place)
        self.taken.append(-count)


@torch.no_grad()
def product_cost(module: nn.Module, loss: Loss, x: Any, y: Any, *, on_gpu: bool) -> int:
    """Multiplications and additions in the products of one sample's forward pass, on meta tensors."""
    from torch.utils.flop_counter import FlopCounterMode

    def call(objective: Objective, x: Any, y: Any) -> int:
        with FlopCounterMode(display=False) as counter:
            objective(x, y)
        return int(counter.get_total_flops()) // len(leaves(y)[0])

    return _tried(call, without_numbers(module), loss, x, y, on_gpu=on_gpu)


def _tried(
    call: Callable[[Objective, Any, Any], int], module: nn.Module, loss: Loss, x: Any, y: Any, **kind: Any
) -> int:
    """What `call` finds on meta tensors; on numbers if the module cannot take these, or is small, since they
    make PyTorch import its compiler."""
    is_meta = any(parameter.is_meta for parameter in module.parameters())
    small = not is_meta and ParameterLayout.of(module).size <= SMALL

    def on(device: str) -> int:
        given = mapped(lambda leaf: leaf.to(device), (x, y))
        on_it = without_numbers(module) if device == "meta" else module
        with own_randomness():
            return call(ModuleFunction(on_it, loss.to(device), **kind).objective.to(device), *given)

    if not small:
        with nullcontext() if is_meta else suppress(Exception):
            return on("meta")
    return on("cpu")


def without_numbers(module: nn.Module) -> nn.Module:
    """A copy on meta tensors, for which no memory is taken."""
    held = [*module.parameters(), *module.buffers()]
    return copy.deepcopy(module, {id(one): _shape_of(one) for one in held})


def _shape_of(held: Tensor) -> Tensor:
    empty = held.detach().to("meta")
    return nn.Parameter(empty, held.requires_grad) if isinstance(held, nn.Parameter) else empty


def _arrange(module: nn.Module) -> None:
    """The same results sooner on a CPU: a ReLU goes behind the pooling that follows it, and the gradient of a
    pooling is made channels last, without which its backward pass takes twice as long."""
    for part in module.modules():
        if type(part) is nn.Sequential:
            for i in range(len(part) - 1):
                first, then = part[i], part[i + 1]
                if _is_plain(first, nn.ReLU) and _is_plain(then, nn.MaxPool2d):
                    part[i], part[i + 1] = then, first
        if type(part) is nn.MaxPool2d:
            part.register_forward_hook(_channels_last_backwards)


def _is_plain(part: nn.Module, kind: type[nn.Module]) -> bool:
    """Whether it is a layer of PyTorch's own kind, without hooks and without another `forward`."""
    return (
        type(part) is kind
        and "forward" not in vars(part)
        and not any(getattr(part, hooks) for hooks in HOOKS)
    )


def _channels_last_backwards(layer: nn.Module, inputs: object, h: Any) -> None:
    if isinstance(h, Tensor) and h.requires_grad and h.dim() == 4:
        h.register_hook(in_format)  # type: ignore[no-untyped-call]  # of PyTorch


def in_format(value: Tensor, memory_format: torch.memory_format = torch.channels_last) -> Tensor:
    """Images and kernels lie so in memory; nothing else changes."""
    return value.contiguous(memory_format=memory_format) if value.dim() == 4 else value


def _has_few_channels(kernel: Tensor) -> bool:
    """Whether its gradient could be wrong with images channels last: of a strided 1×1 kernel with 2 to 7
    channels, on a CPU with AVX2 alone, oneDNN 3.12 writes past its memory (uxlfoundation/oneDNN#6035)."""
    return kernel.dim() == 4 and kernel.shape[2:] == (1, 1) and 1 < kernel.shape[1] < 8


def _with_own_dropout(module: nn.Module) -> nn.Module:
    """Replace every dropout layer; its place is that among the module's parts, from 0."""
    known = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
    device = next(module.parameters()).device
    _replace(
        module, lambda part, place: WorkerDropout(part, place - 1, device) if type(part) in known else None
    )
    return module


def _replace(module: nn.Module, other: Callable[[nn.Module, int], nn.Module | None]) -> None:
    """Put other parts into the places of some parts of a module, in all places of a part that has several."""
    parts = {id(part): (part, place) for place, part in enumerate(module.modules())}
    found = {key: other(part, place) for key, (part, place) in parts.items() if part is not module}
    for name, part in list(module.named_modules(remove_duplicate=False)):
        made = found.get(id(part))
        if made is not None:
            owner, _, own = name.rpartition(".")
            setattr(module.get_submodule(owner), own, made)


def _random_states(device: torch.device) -> list[Tensor]:
    on_gpu = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *on_gpu]


class _LooksUp(TorchFunctionMode):
    """Whether rows are looked up by their numbers; `vmap` does not check these, and would give the row of an
    embedding's padding a gradient."""

    seen = padded = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        none = {functional.embedding: None, torch.embedding: -1}
        if func in none and given.get("padding_idx", [*args, *[none[func]] * 3][2]) != none[func]:
            self.padded = True
        self.seen = self.seen or func in none or func is functional.one_hot
        return func(*args, **given)


class _RowsExist(TorchFunctionMode):
    """An error as PyTorch's for a number that no row has: `vmap` would take a row of the next worker."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func is functional.embedding:
            named = dict(zip(("input", "weight"), args, strict=False)) | given
            _check_rows(named["input"], named["weight"].shape[0])
        elif func is functional.one_hot:
            named = dict(zip(("input", "num_classes"), args, strict=False)) | given
            _check_rows(named["input"], named.get("num_classes", -1))
        return func(*args, **given)


class _InRange(torch.autograd.Function):
    """Reads the numbers of all workers, which `vmap` hides from what it batches."""

    @staticmethod
    def forward(ids: Tensor, bound: int) -> Tensor:
        low, high = (int(ids.min()), int(ids.max())) if ids.numel() else (0, 0)
        if low < 0 or high >= bound > 0:
            raise IndexError(
                f"index {low if low < 0 else high} is out of range: rows go from 0 to {bound - 1}"
            )
        return ids.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, ids: Tensor, bound: int) -> tuple[Any, None]:
        return _check_rows(ids, bound), None


def _check_rows(ids: Tensor, bound: int) -> Any:
    return _InRange.apply(ids, bound)  # type: ignore[no-untyped-call]  # of PyTorch


def _known_obstacle(module: nn.Module, padded: bool, random_of_host: bool) -> str | None:
    """What `vmap` takes without an error and computes otherwise."""
    if random_of_host:
        return "random numbers of Python or NumPy"
    if any(part._backward_hooks or part._backward_pre_hooks for part in module.modules()):
        return "backward hooks"
    return "padding_idx of functional.embedding" if padded else None


def _needs_float64(name: str, dtype: torch.dtype) -> bool:
    """Whether float32 is too short for a buffer. It counts the batches of 16 million steps."""
    whole = dtype in (torch.int32, torch.int64) and not name.endswith("num_batches_tracked")
    return whole or dtype == torch.float64


def ties_of(module: nn.Module) -> dict[str, list[str]]:
    """The other names of tensors that several parts hold, by the first. A part with two names counts once."""
    first: dict[int, tuple[str, Tensor]] = {}
    others: dict[str, list[str]] = {}
    for prefix, part in module.named_modules():
        held_by_part = (
            *part.named_parameters(prefix, recurse=False, remove_duplicate=False),
            *part.named_buffers(prefix, recurse=False, remove_duplicate=False),
        )
        for name, held in held_by_part:
            known, _ = first.setdefault(id(held), (name, held))
            if known != name:
                others.setdefault(known, []).append(name)
    return others


def _apart(found: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Whether gradients differ by more than rounding can explain, for a parameter that matters."""
    wide = [(a.float(), b.float()) for a, b in zip(found, right, strict=True)]
    whole = torch.cat([b.flatten() for _, b in wide]).norm()
    share = 0.1 if right[0].dtype == torch.float32 else 0.5
    return any(bool((a - b).norm() > share * b.norm() + 0.01 * whole) for a, b in wide)


def _operation(message: str) -> str:
    """The operation that an error or warning of `vmap` is about."""
    for word, what in OBSTACLES.items():
        if word in message:
            return what
    named = re.search(r"aten::\w+(\.\w+)?|\.item\(\)", message)
    return named.group() if named else (message.splitlines() or ["an operation"])[0]
