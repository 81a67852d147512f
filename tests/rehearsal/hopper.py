"""Machine code for an H200 on a machine without a GPU: `pytest -p tests.rehearsal.hopper -m hopper`.

PyTorch's compiler generates its kernels, Triton compiles them and ours, and NVIDIA's assembler, which Triton
brings, makes machine code of them. Kernels are not run, so all numbers are wrong. The rehearsal shows the
numbers; this shows that a GPU gets code, and that each kernel fits into its shared memory.
"""

import os
from collections.abc import Iterable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

from tests.rehearsal.gpu import stand_in

SHARED = 232_448  # bytes of shared memory that a kernel may take
H200 = SimpleNamespace(
    name="NVIDIA H200",
    type="cuda",
    index=0,
    total_memory=139 << 30,
    L2_cache_size=50 << 20,
    major=9,
    minor=0,
    warp_size=32,
    multi_processor_count=132,
    regs_per_multiprocessor=1 << 16,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=SHARED,
    shared_memory_per_multiprocessor=SHARED + 1024,
)
KERNELS: dict[str, int] = {}
"""Kernels that have machine code, with the bytes of their shared memory."""


class Driver:
    """Of Triton: compiles for an H200 and launches nothing."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def _keep(name: str, binary: Any) -> None:
    assert "cubin" in binary.asm, f"no machine code for {name}"
    assert binary.metadata.shared <= SHARED, f"{name} takes {binary.metadata.shared} bytes of shared memory"
    KERNELS[name] = binary.metadata.shared


def _empty(size: Any, stride: Any, dtype: Any) -> Any:
    import torch

    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _launch(kernel: Any, grid: tuple[int, ...], *args: Any, **constants: Any) -> None:
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    with unset_fake_temporarily():
        kinds = [arg.dtype if isinstance(arg, torch.Tensor) else arg for arg in args]
        _keep(kernel.fn.__name__, kernel.warmup(*kinds, grid=(1,), **constants))


def _compile_all(kernel: Any, *_: object, **__: object) -> None:
    """Of a kernel that PyTorch generated, all forms among which it would choose."""
    for config in kernel.configs:
        _keep(kernel.inductor_meta["kernel_name"], kernel._precompile_config(config).kernel)


def _classes(of: type[Any]) -> Iterable[type[Any]]:
    yield of
    for more in of.__subclasses__():
        yield from _classes(more)


def _set_up() -> None:
    stand_in(H200)
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # this process: others have no such device
    import torch
    from torch._inductor.runtime import triton_helpers, triton_heuristics
    from triton.runtime import driver

    torch.ops.rehearsal.make_zeros()
    driver.set_active(Driver())
    triton_helpers.set_driver_to_gpu = lambda: None
    torch.version.cuda = "13.0"
    torch._inductor.config.use_static_triton_launcher = False
    stands = {"_cuda_getCurrentRawStream": lambda index: 0, "_cuda_getDevice": lambda: 0}
    for name, stand in stands.items():
        setattr(torch._C, name, stand)
    setattr(torch._C._dynamo.guards, "_empty_strided_cuda", _empty)  # noqa: B010  # PyTorch's stubs lack it
    torch.cuda._exchange_device = lambda device: 0
    torch.cuda._maybe_exchange_device = lambda device: 0  # PyTorch wants two functions, not one
    for autotuner in _classes(triton_heuristics.CachingAutotuner):
        for name, stand in (("precompile", _compile_all), ("run", lambda *_, **__: None)):
            if name in vars(autotuner):
                setattr(autotuner, name, stand)
    from clippedgossip.mixing import launches
    from clippedgossip.simulate import engine

    launches.launch = _launch
    unchecked = {"check_compiled": lambda *_: None, "SelfCheck": lambda _: SimpleNamespace(round=nullcontext)}
    for name, stand in unchecked.items():  # numbers are wrong
        setattr(engine, name, stand)


_set_up()
