"""A machine without a GPU rehearses the tests for one: `make rehearse`.

As a plugin of pytest (`pytest -p tests.rehearsal -m gpu`) this gives PyTorch a device `cuda:0` whose tensors
lie in the memory of the host (`device.cpp`). Triton's interpreter runs our kernels. PyTorch's compiler only
traces, and its graphs run as they are. CUDA graphs are recorded and replayed. So all of our code for a GPU
runs, slowly. This does not show what PyTorch and Triton generate for a GPU, TF32 in PyTorch's own products,
streams, or time.
"""

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import pytest

LIBRARY = "REHEARSAL_LIBRARY"
MEMORY = 8 << 30  # bytes that this GPU says it has
_LAUNCHES: list[Callable[[], None]] = []
_INTERPRETER = Lock()  # it knows no threads


def build(into: Path) -> Path:
    """The library with the device, compiled for the PyTorch that is installed."""
    torch = Path(sysconfig.get_path("platlib")) / "torch"
    source, library = Path(__file__).with_name("device.cpp"), into / "device.so"
    folders = ["include", "include/torch/csrc/api/include"]
    command = ["g++", "-shared", "-fPIC", "-O0", "-std=c++20", "-w", str(source), "-o", str(library)]
    command += [f"-I{torch / folder}" for folder in folders]
    command += [f"-L{torch / 'lib'}", f"-Wl,-rpath,{torch / 'lib'}", "-lc10", "-ltorch_cpu", "-ltorch"]
    subprocess.run(command, check=True)
    return library


class Graph:
    """A CUDA graph: what is captured is written down, and computed when it is replayed."""

    def __init__(self) -> None:
        self.number = 0

    def replay(self) -> None:
        import torch

        place = 0
        while place >= 0:
            place, launch = torch.ops.rehearsal.replay(self.number, place)
            if launch >= 0:
                _LAUNCHES[launch]()

    def __del__(self) -> None:
        if torch := sys.modules.get("torch"):  # not while Python ends
            torch.ops.rehearsal.forget(self.number)


@contextmanager
def capture(graph: Graph, *_: object, **__: object) -> Iterator[None]:
    import torch

    graph.number = torch.ops.rehearsal.begin()
    try:
        yield
    finally:
        torch.ops.rehearsal.end()


class Event:
    def record(self, *_: object) -> None: ...
    def synchronize(self) -> None: ...
    def wait(self, *_: object) -> None: ...
    def query(self) -> bool:
        return True


class Stream:
    device_index, cuda_stream = 0, 0

    def __init__(self, *_: object, **__: object) -> None: ...
    def record_event(self, event: Event | None = None) -> Event:
        return event or Event()

    def wait_event(self, event: Event) -> None: ...
    def wait_stream(self, other: "Stream") -> None: ...
    def synchronize(self) -> None: ...


def _set_up(library: Path) -> None:
    os.environ["TRITON_INTERPRET"] = "1"
    ctypes.CDLL(str(library))  # before PyTorch is imported, which asks once what devices there are
    import torch
    from torch import cuda

    facts = SimpleNamespace(
        name="rehearsal", total_memory=MEMORY, multi_processor_count=4, major=9, minor=0, warp_size=32
    )
    seeds = torch.Generator()
    stands: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "device": lambda device: nullcontext(),
        "get_device_properties": lambda device=None: facts,
        "get_device_name": lambda device=None: facts.name,
        "get_device_capability": lambda device=None: (facts.major, facts.minor),
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_allocated": lambda device=None: 0,
        "max_memory_allocated": lambda device=None: 0,
        "reset_peak_memory_stats": lambda device=None: None,
        "empty_cache": lambda: None,
        "synchronize": lambda device=None: None,
        "current_stream": lambda device=None: Stream(),
        "default_stream": lambda device=None: Stream(),
        "stream": lambda stream: nullcontext(),
        "Stream": Stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": capture,
        "is_current_stream_capturing": lambda: torch.ops.rehearsal.capturing(),
        "manual_seed": lambda seed: None,
        "manual_seed_all": lambda seed: None,
        "get_rng_state": lambda device=None: seeds.get_state(),
        "set_rng_state": lambda state, device=None: None,
    }
    for name, stand in stands.items():
        setattr(cuda, name, stand)
    torch.UntypedStorage.clone = _cloned  # type: ignore[method-assign]  # it knows no such device
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign]  # all memory is the host's
    torch.compile = partial(_compiled, torch.compile)
    _stand_for_launches()
    for message in (".*torch.jit.script_method.* is deprecated", "invalid value encountered in "):
        warnings.filterwarnings("ignore", message)  # of PyTorch's compiler, and of NaN in the interpreter


def _cloned(storage: Any) -> Any:
    import torch

    numbers = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return numbers.clone().untyped_storage()


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
        torch.ops.rehearsal.launched(len(_LAUNCHES))
        _LAUNCHES.append(work)

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


def library() -> Path:
    """The device. Processes that share the tests take what the first of them has compiled."""
    if LIBRARY not in os.environ:
        folder = tempfile.mkdtemp(prefix="rehearsal-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[LIBRARY] = str(build(Path(folder)))
    return Path(os.environ[LIBRARY])


sys.path.append(str(Path(sys.prefix) / "triton"))  # where `make` installs it
_set_up(library())
