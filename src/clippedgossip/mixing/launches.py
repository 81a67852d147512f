"""Launches of Triton kernels. A launch with fake tensors compiles the kernel ahead, in another process."""

import os
from concurrent.futures import Future, wait
from importlib import import_module
from threading import Thread
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from triton.compiler import make_backend
from triton.runtime import driver

CACHE = "TRITON_CACHE_DIR"  # where Triton keeps kernels
MOST_SECONDS = 60  # to wait for other processes; one kernel takes less than a second
_AHEAD: list[Future[Any]] = []
"""Kernels that other processes compile for launches to come."""


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    """Launch a kernel. If its tensors are fake, only compile it, in one of the processes that compile for
    PyTorch: a thread would take turns with PyTorch's compiler."""
    if fakes := sum(isinstance(arg, FakeTensor) for arg in args):
        assert fakes == sum(isinstance(arg, Tensor) for arg in args), "a fake tensor was kept for a launch"
        with unset_fake_temporarily():  # what is imported meanwhile keeps its tensors
            _submit(kernel, [arg.dtype if isinstance(arg, Tensor) else arg for arg in args], constants)
        return
    if _AHEAD:
        wait(_AHEAD, MOST_SECONDS)  # what failed is compiled once more, and says why
        _AHEAD.clear()
    kernel[grid](*args, **constants)


def _submit(kernel: Any, kinds: list[Any], constants: dict[str, Any]) -> None:
    # These import the compiler.
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads
    from torch._inductor.runtime.runtime_utils import triton_cache_dir
    from torch._inductor.runtime.triton_compat import triton_key

    if get_compile_threads() > 1:
        if not _AHEAD:
            Thread(target=triton_key, daemon=True).start()  # PyTorch will ask for this digest of large files
        target, function = driver.active.get_current_target(), kernel.fn
        # PyTorch sets it so with its first kernel: later launches must look where this kernel is kept.
        cache = os.environ.setdefault(CACHE, triton_cache_dir(driver.active.get_current_device()))
        tools = target, make_backend(target).hash(), driver.active.launcher_cls, cache
        named = function.__module__, function.__name__
        pool = AsyncCompile.process_pool()
        _AHEAD.append(pool.submit(compile_ahead, *named, *tools, kinds, constants))


def compile_ahead(
    module: str,
    name: str,
    target: Any,
    compiler: str,
    launcher: Any,
    cache: str,
    kinds: list[Any],
    constants: dict[str, Any],
) -> None:
    """Compile the kernel of this name for arguments of these kinds, and the C code that launches it, and keep
    both on disk. The process that launches it finds it by the compiler's name, which must be the same here:
    PyTorch changes it."""
    os.environ[CACHE] = cache
    driver.set_active(_Target(target))
    type(make_backend(target)).hash = lambda self: compiler
    kernel = getattr(import_module(module), name).warmup(*kinds, grid=(1,), **constants)
    launcher(kernel.src, kernel.metadata)


class _Target:
    """Stands for a GPU in a process that only compiles for it."""

    def __init__(self, target: Any) -> None:
        self.target = target

    def get_current_target(self) -> Any:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
