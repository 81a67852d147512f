"""Run one `nn.Sequential` for many workers, each with its own parameters, stacked or one by one.

Stacked, a convolution is a product of shifted images with the kernels, one batched product for all workers.
On a GPU this is faster than grouped and vmapped convolutions. One by one, it is PyTorch's own, channels last:
the fastest on a CPU.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Parameters = Mapping[str, Tensor]
Masks = Callable[[int, tuple[int, ...]], Tensor]
"""(place of the layer, shape of its input for one worker) -> which entries dropout keeps, for all workers."""

PLAIN = (nn.Linear, nn.Dropout, nn.ReLU, nn.Identity)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def supported(module: nn.Module, shape: tuple[int, ...] | None = None) -> bool:
    """Whether the functions below compute what the module computes, for inputs of this shape if it is given.

    They know PyTorch's own layers, without subclasses or hooks. No layer may appear twice, since a Sequential
    counts such a layer as one child.
    """
    if type(module) is not nn.Sequential:
        return False
    parts = list(module)
    return (
        all(map(_supported, parts))
        and not any(getattr(part, hooks) for part in (module, *parts) for hooks in HOOKS)
        and not any("forward" in vars(part) for part in (module, *parts))
        and len({id(part) for part in parts}) == len(parts)
        and len(list(module.parameters())) == sum(len(list(part.parameters())) for part in parts)
        and (shape is None or _fit(parts, len(shape)))
    )


def has_convolutions(module: nn.Module) -> bool:
    return any(isinstance(layer, nn.Conv2d) for layer in module.modules())


def forward_stacked(
    module: nn.Sequential, parameters: Parameters, x: Tensor, masks: Masks | None, dtype: torch.dtype
) -> Tensor:
    """Outputs (n, batch, classes), float32 at least, for parameters (n, *shape), inputs (n, batch, *shape).

    Without masks there is no dropout. The products are in `dtype`. Everything after the last product is at
    least float32: a softmax and its gradient must see outputs that are rounded in the same way.
    """
    images = x.dim() == 5
    h = (x.permute(0, 1, 3, 4, 2) if images else x).to(dtype)
    if images:
        # `_shift` concatenates views of this input. For few images of one channel PyTorch 2.11 compiles that
        # into a kernel that reads some of the views from the wrong place. A copy avoids it. A cast is none:
        # the compiler may read the input through it.
        h = h.clone(memory_format=torch.contiguous_format)
    last = [name for _, name, layer in _in_order(module) if isinstance(layer, nn.Conv2d | nn.Linear)][-1:]
    wide = torch.promote_types(dtype, torch.float32)
    for place, name, layer in _in_order(module):
        bias_dtype = wide if [name] == last else dtype
        if isinstance(layer, nn.Conv2d):
            bias = _bias(parameters, name, bias_dtype)
            h = _convolve(h, layer, parameters[f"{name}.weight"].to(dtype), bias)
        elif isinstance(layer, nn.MaxPool2d):
            h = _pool(h, _pair(layer.kernel_size)[0])
        elif isinstance(layer, nn.Linear):
            weight = parameters[f"{name}.weight"].to(dtype)
            # In this form the weight's gradient has the weight's memory layout; baddbmm would copy the bias.
            h = (weight @ h.transpose(1, 2)).transpose(1, 2) + _bias(parameters, name, bias_dtype)
        elif isinstance(layer, nn.Dropout):
            if masks is not None and layer.p > 0:
                h = _drop(h, layer.p, masks, place)
        elif isinstance(layer, nn.Flatten):
            h = (h.permute(0, 1, 4, 2, 3) if h.dim() == 5 else h).flatten(2)
        elif isinstance(layer, nn.LogSoftmax):
            h = functional.log_softmax(h.to(torch.promote_types(h.dtype, torch.float32)), dim=-1)
        elif isinstance(layer, nn.ReLU):
            h = torch.relu(h)
    return h.to(torch.promote_types(h.dtype, torch.float32))


def forward_one(module: nn.Sequential, parameters: Parameters, x: Tensor, masks: Masks | None) -> Tensor:
    """Outputs (batch, classes) of one worker; its dropout is that of its row in `forward_stacked`."""
    h = x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x
    for place, name, layer in _in_order(module):
        if isinstance(layer, nn.Conv2d):
            weight = parameters[f"{name}.weight"].contiguous(memory_format=torch.channels_last)
            h = functional.conv2d(h, weight, parameters.get(f"{name}.bias"), padding=layer.padding)
        elif isinstance(layer, nn.MaxPool2d):
            h = functional.max_pool2d(h, _pair(layer.kernel_size)[0])
            h = _channels_last_backwards(h)
        elif isinstance(layer, nn.Linear):
            h = functional.linear(h, parameters[f"{name}.weight"], parameters.get(f"{name}.bias"))
        elif isinstance(layer, nn.Dropout):
            if masks is not None and layer.p > 0:
                h = h * masks(place, tuple(h.shape)) / (1 - layer.p)
        else:
            h = layer(h)
    return h


def _in_order(module: nn.Sequential) -> list[tuple[int, str, nn.Module]]:
    """Place, name and layer. A ReLU moves behind the pooling that follows it: same result, less work."""
    found = [(place, name, layer) for place, (name, layer) in enumerate(module.named_children())]
    for i in range(len(found) - 1):
        if isinstance(found[i][2], nn.ReLU) and isinstance(found[i + 1][2], nn.MaxPool2d):
            found[i], found[i + 1] = found[i + 1], found[i]
    return found


def _channels_last_backwards(h: Tensor) -> Tensor:
    """Make the gradient channels last: pooling's backward pass takes twice as long otherwise."""
    pooled: Any = h
    if h.requires_grad:
        pooled.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))
    return h


def _fit(parts: list[nn.Module], dims: int) -> bool:
    """Whether convolutions and pools get images, and linear layers and softmax rows of features."""
    wanted: dict[type, int] = {nn.Conv2d: 3, nn.MaxPool2d: 3, nn.Linear: 1, nn.LogSoftmax: 1}
    for part in parts:
        if isinstance(part, nn.Flatten):
            dims = 1
        elif wanted.get(type(part), dims) != dims:
            return False
    return True


def _supported(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return (
            layer.stride == (1, 1)
            and layer.dilation == (1, 1)
            and layer.groups == 1
            and layer.padding_mode == "zeros"
            and not isinstance(layer.padding, str)
        )
    if type(layer) is nn.MaxPool2d:
        simple = isinstance(layer.kernel_size, int) and layer.stride == layer.kernel_size
        return simple and layer.padding == 0 and layer.dilation == 1 and not layer.ceil_mode
    if type(layer) is nn.Flatten:
        return layer.start_dim == 1 and layer.end_dim == -1
    if type(layer) is nn.LogSoftmax:
        return layer.dim in (1, -1)
    return type(layer) in PLAIN


def _convolve(h: Tensor, layer: nn.Conv2d, weight: Tensor, bias: Tensor) -> Tensor:
    (pad_rows, pad_columns), (rows, columns) = _pair(layer.padding), layer.kernel_size
    if pad_rows or pad_columns:
        h = functional.pad(h, (0, 0, pad_columns, pad_columns, pad_rows, pad_rows))
    n, batch, height, width, _ = h.shape
    high, wide = height - rows + 1, width - columns + 1
    shifted = _shift(h, rows, columns)
    kernel = weight.permute(0, 3, 4, 2, 1).reshape(n, -1, layer.out_channels)
    product = shifted.view(n, batch * high * wide, -1) @ kernel + bias
    return product.view(n, batch, high, wide, layer.out_channels)


class _Shifted(torch.autograd.Function):
    """(n, batch, H, W, C) -> (n, batch, H', W', rows·columns·C): for each place, the entries under a kernel.

    PyTorch's own backward pass would write out each of the shifts.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, rows: int, columns: int) -> Tensor:
        ctx.kernel, ctx.image = (rows, columns), h.shape
        high, wide = h.shape[2] - rows + 1, h.shape[3] - columns + 1
        shifts = [h[:, :, i : i + high, j : j + wide] for i in range(rows) for j in range(columns)]
        return torch.cat(
            shifts, -1
        )  # without gradients, the result of a gather would be transposed in memory

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (rows, columns), (n, batch, height, width, channels) = ctx.kernel, ctx.image
        high, wide = height - rows + 1, width - columns + 1
        parts = gradients[0].view(n, batch, high, wide, rows, columns, channels)
        total = gradients[0].new_zeros(())
        for i in range(rows):
            for j in range(columns):
                around = (0, 0, j, width - wide - j, i, height - high - i)
                total = total + functional.pad(parts[..., i, j, :], around)
        return total, None, None


_shift: Callable[[Tensor, int, int], Tensor] = _Shifted.apply


def _pair(value: object) -> tuple[int, int]:
    return (value[0], value[1]) if isinstance(value, tuple) else (int(str(value)), int(str(value)))


class _Pooled(torch.autograd.Function):
    """Maxima of squares, and their places: the first of equals, as in `max_pool2d`.

    `amax` compares again in the backward pass. A compiler may have rounded these values differently, so that
    none equals the maximum; then the gradient is divided by zero.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, size: int) -> Tensor:
        n, batch, height, width, channels = ctx.image = h.shape
        ctx.size = size
        high, wide = height // size, width // size
        squares = h[:, :, : high * size, : wide * size].reshape(n, batch, high, size, wide, size, channels)
        best = squares[:, :, :, 0, :, 0]
        where = torch.zeros_like(best, dtype=torch.uint8)
        for place in range(1, size * size):
            other = squares[:, :, :, place // size, :, place % size]
            better = (other > best) | other.isnan()
            best, where = torch.where(better, other, best), torch.where(better, place, where)
        ctx.save_for_backward(where)
        return best

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (where,), size = ctx.saved_tensors, ctx.size
        n, batch, height, width, channels = ctx.image
        high, wide = where.shape[2:4]
        place = torch.arange(size * size, device=where.device, dtype=torch.uint8).view(size, 1, size, 1)
        here = where[:, :, :, None, :, None] == place
        spread = torch.where(here, gradients[0][:, :, :, None, :, None], 0)
        spread = spread.reshape(n, batch, high * size, wide * size, channels)
        return functional.pad(spread, (0, 0, 0, width - wide * size, 0, height - high * size)), None


_pool: Callable[[Tensor, int], Tensor] = _Pooled.apply


def _drop(h: Tensor, rate: float, masks: Masks, place: int) -> Tensor:
    if h.dim() == 5:
        _, batch, height, width, channels = h.shape
        kept = masks(place, (batch, channels, height, width)).permute(0, 1, 3, 4, 2)
    else:
        kept = masks(place, tuple(h.shape[1:]))
    return h * kept * (1 / (1 - rate))


def _bias(parameters: Parameters, name: str, dtype: torch.dtype) -> Tensor:
    weight = parameters[f"{name}.weight"]
    if f"{name}.bias" not in parameters:
        return weight.new_zeros(len(weight), 1, weight.shape[1], dtype=dtype)
    return parameters[f"{name}.bias"].to(dtype)[:, None]


def activation_elements(module: nn.Sequential, shape: tuple[int, ...]) -> int:
    """Entries that one sample's forward pass leaves for the backward pass, shifted images included."""
    total = 0
    for layer, before, after in _shapes(module, shape):
        if isinstance(layer, nn.Conv2d):
            total += math.prod(after[1:]) * (math.prod(layer.kernel_size) * before[0] + 2 * after[0])
        elif isinstance(layer, nn.MaxPool2d | nn.Linear):
            total += math.prod(after) * (2 if isinstance(layer, nn.Linear) else 1)
    return total


def multiplications(module: nn.Sequential, shape: tuple[int, ...]) -> int:
    """Multiplications of one sample's forward pass."""
    total = 0
    for layer, _, after in _shapes(module, shape):
        if isinstance(layer, nn.Conv2d | nn.Linear):
            total += layer.weight.numel() * (math.prod(after[1:]) if isinstance(layer, nn.Conv2d) else 1)
    return total


def _shapes(
    module: nn.Sequential, shape: tuple[int, ...]
) -> Iterator[tuple[nn.Module, tuple[int, ...], tuple[int, ...]]]:
    """Each layer with the shapes of one sample before and after it."""
    for layer in module:
        before = shape
        if isinstance(layer, nn.Conv2d):
            (rows, columns), (pad_rows, pad_columns) = layer.kernel_size, _pair(layer.padding)
            high, wide = before[1] + 2 * pad_rows - rows + 1, before[2] + 2 * pad_columns - columns + 1
            shape = (layer.out_channels, high, wide)
        elif isinstance(layer, nn.MaxPool2d):
            size = _pair(layer.kernel_size)[0]
            shape = (before[0], before[1] // size, before[2] // size)
        elif isinstance(layer, nn.Flatten):
            shape = (math.prod(before),)
        elif isinstance(layer, nn.Linear):
            shape = (layer.out_features,)
        yield layer, before, shape
