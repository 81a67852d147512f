"""A device `cuda:0` for PyTorch on a machine without a GPU. Its tensors lie in the memory of the host
(`device.cpp`), and CUDA graphs are recorded and replayed."""

import atexit
import ctypes
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

LIBRARY = "REHEARSAL_LIBRARY"
LAUNCHES: list[Callable[[], None]] = []
"""Launches of kernels that CUDA graphs hold."""
DESTROYED: list[int] = []
"""CUDA graphs that were destroyed while another was captured; that ends the capture."""


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
                LAUNCHES[launch]()

    def __del__(self) -> None:
        if torch := sys.modules.get("torch"):  # not while Python ends
            if torch.ops.rehearsal.capturing():
                DESTROYED.append(self.number)
            torch.ops.rehearsal.forget(self.number)


@contextmanager
def capture(graph: Graph, *_: object, **__: object) -> Iterator[None]:
    import torch

    graph.number = torch.ops.rehearsal.begin()
    try:
        yield
    finally:
        torch.ops.rehearsal.end()
        destroyed = DESTROYED.copy()
        DESTROYED.clear()
    if destroyed:
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")


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


def stand_in(facts: SimpleNamespace) -> None:
    """Give PyTorch the device, before PyTorch is imported: it asks once what devices there are. `facts` are
    what PyTorch's compiler asks of a GPU."""
    sys.path.append(str(Path(sys.prefix) / "triton"))  # where `make` installs it
    ctypes.CDLL(str(library()))
    import torch
    from torch import cuda

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
        "mem_get_info": lambda device=None: (facts.total_memory, facts.total_memory),
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


def _cloned(storage: Any) -> Any:
    import torch

    numbers = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
    return numbers.clone().untyped_storage()


def library() -> Path:
    """The device. Processes that share the tests take what the first of them has compiled."""
    if LIBRARY not in os.environ:
        folder = tempfile.mkdtemp(prefix="rehearsal-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        os.environ[LIBRARY] = str(build(Path(folder)))
    return Path(os.environ[LIBRARY])
