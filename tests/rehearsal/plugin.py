"""A machine without a GPU rehearses the tests for one: `make rehearse`.

As a plugin of pytest (`pytest -p tests.rehearsal.plugin -m gpu`) this gives PyTorch a device `cuda:0` in the
memory of the host. Triton's interpreter runs our kernels. PyTorch's compiler only traces, and its graphs run
as they are. So all of our code for a GPU runs, slowly. This does not show what PyTorch and Triton generate
(for that there is `hopper`), TF32 in PyTorch's own products, streams, or time.
"""

import os
import warnings
from collections.abc import Sequence
from functools import partial
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

from tests.rehearsal.gpu import LAUNCHES, stand_in

MEMORY = 8 << 30  # bytes that this GPU says it has
_INTERPRETER = Lock()  # it knows no threads


def _set_up() -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    stand_in(
        SimpleNamespace(
            name="rehearsal", total_memory=MEMORY, multi_processor_count=4, major=9, minor=0, warp_size=32
        )
    )
    import torch

    torch.compile = partial(_compiled, torch.compile)
    _stand_for_launches()
    for message in (".*torch.jit.script_method.* is deprecated", "invalid value encountered in "):
        warnings.filterwarnings("ignore", message)  # of PyTorch's compiler, and of NaN in the interpreter


def _compiled(compiler: Any, function: Any, *, options: dict[str, Any] | None = None, **more: Any) -> Any:
    """What PyTorch's compiler traces, after our pass over the graph, but without generated code."""
    import torch
    import torch._inductor.lowering  # some decompositions ask for it
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor.decomposition import select_decomp_table

    ours = (options or {}).get("post_grad_custom_pre_pass", lambda graph: None)

    def whole(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Any:
        ours(graph.graph)
        for node in graph.graph.nodes:  # our pass changes how tensors lie, which generated code need not mind
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default
        graph.recompile()
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=whole, decompositions=select_decomp_table)
    return compiler(function, backend=backend, **more)


def _is_real(argument: object) -> bool:
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    if not isinstance(argument, torch.Tensor) or isinstance(argument, FakeTensor):
        return False
    assert argument.is_cuda, "a kernel got a tensor of the CPU"
    return True


def _stand_for_launches() -> None:
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.interpreter import InterpretedFunction, InterpreterBuilder

    from clippedgossip.mixing import launches

    # The interpreter replaces Triton's language anew in every call of a function: once is enough.
    patch, every = interpreter._patch_lang, SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang = lambda function: patch(every)
    InterpretedFunction.__call__ = lambda self, *args, **named: self.rewrite()(*args, **named)
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

    def masked_load(self: Any, places: Any, mask: Any, *more: Any) -> Any:
        mask.data = mask.data.astype(bool)  # of loops and flags it makes whole numbers
        return load(self, places, mask, *more)

    def masked_store(self: Any, places: Any, value: Any, mask: Any, *more: Any) -> Any:
        mask.data = mask.data.astype(bool)
        return store(self, places, value, mask, *more)

    def dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        wide = [self.cast_impl(one, tl.float32) if one.dtype.scalar == tl.bfloat16 else one for one in (a, b)]
        return product(self, *wide, *more)  # else of bfloat16 numbers' bits

    InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = masked_load, masked_store
    product, InterpreterBuilder.create_dot = InterpreterBuilder.create_dot, dot

    launch = launches.launch

    def interpreted(*work: Any, **constants: Any) -> None:
        with _INTERPRETER:
            launch(*work, **constants)

    def recorded(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
        import torch

        same = [torch.ops.rehearsal.host(arg) if _is_real(arg) else arg for arg in args]
        work = partial(interpreted, kernel, grid, *same, **constants)
        if not torch.ops.rehearsal.capturing():
            work()
            return
        torch.ops.rehearsal.launched(len(LAUNCHES))
        LAUNCHES.append(work)

    launches.launch = recorded
    from clippedgossip.mixing import kernels_cuda

    # The interpreter takes as long for many coordinates as for few.
    kernels_cuda.GRAM_BLOCK *= 16
    for rows, (some, times, stages, warps) in kernels_cuda.COMBINE.items():
        kernels_cuda.COMBINE[rows] = (16 * some, times, stages, warps)
    launches._submit = lambda kernel, kinds, constants: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if (marked := item.get_closest_marker("gpu")) and marked.args:
            item.add_marker(pytest.mark.skip(reason=f"a rehearsal has no {marked.args[0]}"))


_set_up()
