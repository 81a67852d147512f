"""Convolutions of all workers without shifted copies: on a CPU with plain bodies in place of the kernels."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from clippedgossip.tasks import convolution
from clippedgossip.tasks.module_function import ModuleFunction
from clippedgossip.tasks.objective import Loss

WORKERS, BATCH, SIDE = 3, 4, 12
CALLS: list[str] = []
LOSS = Loss(lambda outputs, y: outputs.float().square().mean())
"""Smooth, as all layers here: a ReLU that rounding switches changes a gradient by more than rounding."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.Tanh(), nn.Conv2d(32, 64, 3), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(64, 32, (3, 1), padding=(1, 0)), nn.Tanh(), nn.Conv2d(32, 8, 3), nn.Flatten(),
    )  # fmt: skip


def each(one: Callable[..., Tensor], *stacks: Tensor) -> Tensor:
    """Of every worker, with channels first and back."""
    assert all(stack.is_contiguous() for stack in stacks)
    found = [one(*(part.permute(0, 3, 1, 2) for part in parts)) for parts in zip(*stacks, strict=True)]
    return torch.stack([part.permute(0, 2, 3, 1) for part in found]).contiguous()


@convolution.convolve.register_kernel("cpu")
def _(x: Tensor, w: Tensor, up: int, left: int) -> Tensor:
    CALLS.append("forward")
    return each(lambda x, w: functional.conv2d(x, w, padding=(up, left)), x, w)


@convolution.convolve_back.register_kernel("cpu")
def _(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    CALLS.append("images")
    return each(lambda x, w, y: conv2d_input(x.shape, w, y, padding=(up, left)), x, w, y)


@convolution.convolve_weights.register_kernel("cpu")
def _(x: Tensor, w: Tensor, y: Tensor, up: int, left: int) -> Tensor:
    CALLS.append("kernels")
    parts = torch.ops.clippedgossip.convolve_weights(*(t.to("meta") for t in (x, w, y)), up, left)
    out = torch.zeros(parts.shape)
    out[0] = each(lambda x, w, y: conv2d_weight(x, w.shape, y, padding=(up, left)), x, w, y)
    return out


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    CALLS.clear()
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def gradients(function: ModuleFunction, call: Callable[..., Any], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    device = next(function.module.parameters()).device
    held = {
        name: (0.2 * torch.randn(WORKERS, *value.shape, generator=generator)).to(device, dtype)
        for name, value in function.module.named_parameters()
    }
    x = torch.randn(WORKERS, BATCH, 1, SIDE, SIDE, generator=generator).to(device, dtype)
    keys, none = torch.zeros(WORKERS, 4, dtype=torch.int64, device=device), x.new_zeros(WORKERS, 0)
    return list(call(held, none, keys, {}, x, x)[0])


def assert_right(found: list[Tensor], right: list[Tensor]) -> None:
    """Four layers round to bfloat16, whose unit is 0.004, forth and back: a CPU is off by 0.01."""
    for mine, exact in zip(found, right, strict=True):
        assert float((mine.double() - exact).norm() / exact.norm()) < 0.05


def test_the_pass_replaces_what_it_knows_and_keeps_the_gradients() -> None:
    function = ModuleFunction(net(), LOSS, on_gpu=True, dtype=torch.bfloat16)
    left: list[str] = []

    def compiler(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        convolution.GroupedConvolutions()(graph.graph)
        graph.recompile()
        left.extend(str(node.target) for node in graph.graph.nodes if "convolution" in str(node.target))
        run: Callable[..., Any] = graph.forward
        return run

    call = torch.compile(function.gradients, dynamic=False, backend=aot_autograd(fw_compiler=compiler))
    found = gradients(function, call, torch.bfloat16)
    assert (
        CALLS == ["forward"] * 2 + ["images", "kernels"] * 2
    )  # not the first and the last: 1 and 8 channels
    assert not left
    assert_right(found, gradients(function, function.gradients, torch.float64))


@pytest.mark.slow
def test_the_compiler_lays_images_out_as_the_kernels_read_them() -> None:
    function = ModuleFunction(net(), LOSS, on_gpu=True, dtype=torch.bfloat16)
    options: dict[str, Any] = {"post_grad_custom_pre_pass": convolution.GroupedConvolutions()}
    found = gradients(
        function, torch.compile(function.gradients, dynamic=False, options=options), torch.bfloat16
    )
    assert len(CALLS) == 6
    assert_right(found, gradients(function, function.gradients, torch.float64))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use")
def test_the_kernels_agree_with_float64_and_give_the_same_bytes() -> None:
    function = ModuleFunction(net().cuda(), LOSS, on_gpu=True, dtype=torch.bfloat16)
    options: dict[str, Any] = {"post_grad_custom_pre_pass": convolution.GroupedConvolutions()}
    call = torch.compile(function.gradients, dynamic=False, options=options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        found = gradients(function, call, torch.bfloat16)
    ran = {event.key for event in seen.key_averages()}
    assert {"_convolve_kernel", "_weights_kernel"} <= ran
    again = gradients(function, call, torch.bfloat16)
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert_right(found, gradients(function, function.gradients, torch.float64))


def test_other_precisions_keep_products_of_shifted_images() -> None:
    kinds = {
        dtype: [
            type(part).__name__
            for part in ModuleFunction(net(), LOSS, on_gpu=True, dtype=dtype).module.children()
        ]
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert kinds[torch.float32].count("ShiftedConv") == 4
    assert kinds[torch.bfloat16].count("ShiftedConv") == 2
