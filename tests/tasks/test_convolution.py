"""Convolutions of all workers without shifted copies: on a CPU with plain bodies in place of the kernels."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.lowering  # that its decompositions need
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional
from torch.nn.grad import conv2d_input, conv2d_weight

from clippedgossip.simulate.engine import set_product_precision
from clippedgossip.tasks import convolution
from clippedgossip.tasks.module_function import ModuleFunction
from clippedgossip.tasks.objective import Loss
from clippedgossip.tasks.workers import COMPILER
from tests.ahead import Ahead

WORKERS, BATCH, SIDE = 3, 4, 12
CALLS: list[str] = []
LOSS = Loss(lambda outputs, y: outputs.float().square().mean())
"""Smooth, as all layers here: a ReLU that rounding switches changes a gradient by more than rounding."""


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.Tanh(), nn.Conv2d(16, 64, 3), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(64, 32, (3, 1), padding=(1, 0)), nn.Tanh(), nn.Conv2d(32, 32, 3, 2, padding=1), nn.Tanh(),
        nn.Conv2d(32, 48, 1, 2), nn.Tanh(), nn.Conv2d(48, 16, 5, padding=2), nn.Tanh(), nn.Conv2d(16, 8, 1),
        nn.Flatten(),
    )  # fmt: skip


def each(one: Callable[..., Tensor], *stacks: Tensor) -> Tensor:
    """Of every worker, with channels first and back."""
    assert all(stack.is_contiguous() for stack in stacks)
    found = [one(*(part.permute(0, 3, 1, 2) for part in parts)) for parts in zip(*stacks, strict=True)]
    return torch.stack([part.permute(0, 2, 3, 1) for part in found]).contiguous()


@convolution.convolve.register_kernel("cpu")
def _(x: Tensor, w: Tensor, up: int, left: int, step: int) -> Tensor:
    CALLS.append("forward")
    return each(lambda x, w: functional.conv2d(x, w, None, step, (up, left)), x, w)


@convolution.turn.register_kernel("cpu")
def _(w: Tensor) -> Tensor:
    return w.flip(3, 4).permute(0, 2, 3, 4, 1).contiguous()


@convolution.convolve_back.register_kernel("cpu")
def _(w: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    CALLS.append("images")
    if w.dtype == torch.float32:
        w = w.permute(0, 4, 2, 3, 1).flip(2, 3).contiguous()
    x = y.new_zeros(*y.shape[:2], *size)
    return each(lambda x, w, y: conv2d_input(x.shape, w, y, step, (up, left)), x, w, y)


@convolution.convolve_weights.register_kernel("cpu")
def _(x: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    CALLS.append("kernels")
    parts = torch.ops.clippedgossip.convolve_weights(x.to("meta"), y.to("meta"), size, up, left, step)
    out, w = torch.zeros(parts.shape, dtype=parts.dtype), x.new_zeros(parts.shape[1:])
    out[0] = each(lambda x, w, y: conv2d_weight(x, w.shape, y, step, (up, left)), x, w, y)
    return out


@convolution.weights_by_image.register_kernel("cpu")
def _(x: Tensor, y: Tensor, size: Sequence[int], up: int, left: int, step: int) -> Tensor:
    CALLS.append("kernels")
    shape = *x.shape[:1], y.shape[3], *size, x.shape[3]
    parts = torch.ops.clippedgossip.weights_by_image(x.to("meta"), y.to("meta"), size, up, left, step)
    assert parts.shape[1:] == shape
    assert x.is_contiguous()
    assert y.is_contiguous()
    x, y = (t.permute(0, 4, 1, 2, 3).contiguous() for t in (x, y))
    out, w = torch.zeros(parts.shape), x.new_zeros(shape)
    out[0] = each(lambda x, w, y: conv2d_weight(x, w.shape, y, step, (up, left)), x, w, y)
    return out


PRECISIONS = {"bfloat16": torch.bfloat16, "tf32": torch.float32}
KERNELS = {"bfloat16": {"_convolve_kernel", "_weights_kernel"}, "tf32": {"_weights_by_image_kernel"}}
every_precision = pytest.mark.parametrize("precision", PRECISIONS)


def compiled(precision: str, module: nn.Module) -> tuple[ModuleFunction, Callable[..., Any]]:
    function = ModuleFunction(module, LOSS, on_gpu=True, precision=precision)
    options: dict[str, Any] = {
        "post_grad_custom_pre_pass": convolution.GroupedConvolutions(precision),
        **COMPILER,
    }
    return function, torch.compile(function.gradients, dynamic=False, options=options)


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


def assert_right(found: list[Tensor], right: list[Tensor], precision: str) -> None:
    """Seven layers round to bfloat16, whose unit is 2⁻⁸, or to TF32, whose unit is 2⁻¹⁰, forth and back."""
    unit = 2**-8 if precision == "bfloat16" else 2**-10
    for mine, exact in zip(found, right, strict=True):
        assert float((mine.double() - exact).norm() / exact.norm()) < 16 * unit


@every_precision
def test_the_pass_replaces_what_it_knows_and_keeps_the_gradients(precision: str) -> None:
    function = ModuleFunction(net(), LOSS, on_gpu=True, precision=precision)
    left: list[str] = []

    def compiler(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        convolution.GroupedConvolutions(precision)(graph.graph)
        graph.recompile()
        left.extend(str(node.target) for node in graph.graph.nodes if "convolution" in str(node.target))
        run: Callable[..., Any] = graph.forward
        return run

    call = torch.compile(function.gradients, dynamic=False, backend=aot_autograd(fw_compiler=compiler))
    found = gradients(function, call, PRECISIONS[precision])
    # not the first: one channel
    assert CALLS == ["forward"] * 6 + ["images", "kernels"] * 6
    assert not left
    assert_right(found, gradients(function, function.gradients, torch.float64), precision)


def test_products_of_float32_stay_so() -> None:
    """A convolution that is a function of the user's own is grouped in every precision."""

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.randn(32, 32, 3, 3))

        def forward(self, x: Tensor) -> Tensor:
            return functional.conv2d(x.expand(-1, 32, -1, -1), self.kernel)

    for precision, calls in (("float32", 0), ("tf32", 2), ("bfloat16", 2)):
        CALLS.clear()
        torch._dynamo.reset()
        function = ModuleFunction(Own(), LOSS, on_gpu=True, precision=precision)
        rewrite = convolution.GroupedConvolutions(precision)

        def compiler(graph: fx.GraphModule, inputs: object, rewrite: Any = rewrite) -> Callable[..., Any]:
            rewrite(graph.graph)
            graph.recompile()
            run: Callable[..., Any] = graph.forward
            return run

        call = torch.compile(function.gradients, dynamic=False, backend=aot_autograd(fw_compiler=compiler))
        gradients(function, call, torch.float32)
        assert len(CALLS) == calls, precision


def test_behind_a_convolution_a_pooling_reads_what_it_needs_channels_last() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Conv2d(16, 32, 3), nn.MaxPool2d(2), nn.Flatten())
    function = ModuleFunction(module, LOSS, on_gpu=True, precision="tf32")
    laid: list[Any] = []

    def compiler(graph: fx.GraphModule, inputs: object) -> Callable[..., Any]:
        convolution.GroupedConvolutions("tf32")(graph.graph)
        graph.recompile()
        laid.extend(node.args[1] for node in graph.graph.nodes if "force_stride" in str(node.target))
        run: Callable[..., Any] = graph.forward
        return run

    torch.use_deterministic_algorithms(True)  # PyTorch 2.13 has another backward pass otherwise
    try:
        call = torch.compile(
            function.gradients,
            dynamic=False,
            backend=aot_autograd(fw_compiler=compiler, decompositions=select_decomp_table()),
        )
        found = gradients(function, call, torch.float32)
    finally:
        torch.use_deterministic_algorithms(False)
    assert laid.count([32 * 4 * 4, 1, 4 * 32, 32]) == 2
    assert_right(found, gradients(function, function.gradients, torch.float64), "tf32")


@pytest.mark.slow
@every_precision
def test_the_compiler_lays_images_out_as_the_kernels_read_them(precision: str) -> None:
    function, call = compiled(precision, net())
    found = gradients(function, call, PRECISIONS[precision])
    assert len(CALLS) == 18
    assert_right(found, gradients(function, function.gradients, torch.float64), precision)


@pytest.mark.gpu("compiler of kernels")
@every_precision
def test_the_kernels_agree_with_float64_and_give_the_same_bytes(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = Ahead(tmp_path, monkeypatch)
    set_product_precision(precision)
    function, call = compiled(precision, net().cuda())
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        found = gradients(function, call, PRECISIONS[precision])
    ran = {event.key for event in seen.key_averages()}
    assert ran >= KERNELS[precision]
    ahead.assert_found()
    again = gradients(function, call, PRECISIONS[precision])
    assert all(torch.equal(one, other) for one, other in zip(found, again, strict=True))
    assert_right(found, gradients(function, function.gradients, torch.float64), precision)


def test_each_precision_has_its_convolutions() -> None:
    found = {}
    for precision in ("float32", "tf32", "bfloat16"):
        module = ModuleFunction(net(), LOSS, on_gpu=True, precision=precision).module
        kinds = [type(part).__name__ for part in module.children()]
        found[precision] = {kind: kinds.count(kind) for kind in ("ShiftedConv", "PaddedConv", "Conv2d")}
    wide = {"ShiftedConv": 1, "PaddedConv": 1, "Conv2d": 5}
    assert found == {
        "float32": {"ShiftedConv": 7, "PaddedConv": 0, "Conv2d": 0},
        "tf32": wide,
        "bfloat16": wide,
    }
