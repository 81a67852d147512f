"""Devices: find one, its free memory, threads of a CPU, compiled functions and CUDA graphs of a GPU."""

import ctypes
import gc
import logging
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Barrier, Lock
from typing import Any, TypeVar

import torch
from torch import Tensor

from clippedgossip.errors import RunError, first_line, warn_user
from clippedgossip.randomness import purpose_word

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_COMPILED: dict[Hashable, Callable[..., Any]] = {}
_DISTRUST: set[Hashable] = set()  # kinds that were found to compute wrongly
CAPTURE = "captured rounds"  # the kind of all rounds that are captured as CUDA graphs
_CONSTANT: list[Callable[..., Any]] = [purpose_word]
_CAPTURING = Lock()  # held while a CUDA graph is captured: no thread may free memory of the GPU then
MOST_KINDS = 10_000
"""Kinds that one process may compile. Beyond PyTorch's own limits (8, and 256) functions run uncompiled,
slowly and without an error."""
_OPTIONS = {"deterministic": True, "graph_partition": False}
"""Of PyTorch's compiler. It takes the forms of sums by rule: if it timed several, another process could take
another form, whose sums are rounded otherwise. And it does not split a graph into parts for CUDA graphs: the
engine captures whole rounds."""
AUTOCAST = ("cpu", "cuda")
LITTLE = 1 << 23
"""Products of a forward pass of all workers up to which one thread computes a round. 20 workers with 4,810
parameters and a batch of 32 make 3 million."""
WAIT = "about 10 to 40 s the first time, less if it was compiled before"
"""For a first round on an H200: 8 s if the process has compiled another model before, 36 s of VGG-11."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's `mallopt`
_TILE_LEAF = 0x1D  # where a CPU states the sizes of its AMX tiles (the number of a `cpuid` leaf)


def hides_tiles(cpuinfo: str) -> bool:
    """Whether this machine has AMX, but does not state the sizes of its tiles.

    Some virtual machines are like that. oneDNN then configures no tiles and uses them all the same: a product
    of bfloat16 matrices, as plain as `a @ b`, ends the process with "illegal instruction".
    """
    facts = dict(line.split("\t: ", 1) for line in cpuinfo.splitlines() if "\t: " in line)
    facts = {name.strip(): value for name, value in facts.items()}
    return "amx_tile" in facts.get("flags", "").split() and int(facts.get("cpuid level", 0)) < _TILE_LEAF


def _avoid_hidden_tiles() -> None:
    """Before the first product: oneDNN reads the variable once. What the user has set stays."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            first = "".join(iter(file.readline, "\n"))  # one processor: many machines have hundreds
    except OSError:
        return  # not Linux
    if hides_tiles(first):
        os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


_avoid_hidden_tiles()


def find_device(asked: str | torch.device) -> torch.device:
    """The device of this name; `auto` is the GPU if there is one. Refuses a GPU that is not there."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if asked == "auto":
        return torch.device("cuda" if count else "cpu")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", str(asked)):
        raise RunError(f"device is '{asked}'; choose auto, cpu, cuda or cuda:1")
    device = torch.device(asked)
    if device.type == "cuda" and not count:
        raise RunError(f"device is '{device}', but PyTorch finds no GPU here\ntake device cpu, or auto")
    if device.type == "cuda" and device.index is not None and device.index >= count:
        raise RunError(f"device is '{device}', but there are {count} GPUs; count from 0")
    return device


def free_memory(device: torch.device | str) -> int:
    """Free bytes of a device; of a CPU, what the system can free from its caches counts as free."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    bounds = [sys.maxsize]
    with suppress(OSError, ValueError, AttributeError):  # not on every system
        bounds.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with suppress(OSError, ValueError):  # a container's limit, where there is one
        bounds.append(int(Path("/sys/fs/cgroup/memory.max").read_text()))
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        bounds.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1]))
    return min(bounds)


def release(device: torch.device | str) -> None:
    """Give back what this process no longer uses of a GPU. CUDA graphs refer to the run that they hold, so
    only the search for garbage finds one that is over; and PyTorch keeps what is freed."""
    if torch.device(device).type == "cuda":
        with _CAPTURING:
            gc.collect()
            torch.cuda.empty_cache()


@cache
def keep_freed_memory() -> None:
    """Let glibc keep up to 512 MB a thread that PyTorch frees. Else it returns them, and the kernel clears
    the pages anew: a fifth of a CNN's round on a CPU. What the user has set in the environment stays."""
    if not any(name.startswith("MALLOC_") for name in os.environ):
        with suppress(AttributeError, OSError, TypeError):  # where there is no glibc
            heap = ctypes.CDLL(None)
            heap.mallopt(_M_MMAP_THRESHOLD, 1 << 25)  # the largest that it takes
            heap.mallopt(_M_TRIM_THRESHOLD, 1 << 29)


def aligned_zeros(rows: int, columns: int, device: torch.device) -> Tensor:
    """Zeros (rows, columns). Each row starts at a multiple of 64 numbers, so a GPU reads it in wide words."""
    return torch.zeros(rows, -(-columns // 64) * 64, device=device)[:, :columns]


def constant(function: _Function) -> _Function:
    """Mark a function that the compiler need not look into: equal arguments give equal results. PyTorch
    learns of it when something is compiled: importing its compiler takes a second."""
    _CONSTANT.append(function)
    return function


def ours(thing: object) -> bool:
    """Whether its class belongs to this package."""
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]


def distrust(kind: Hashable) -> str | None:
    """Note that this kind was computed wrongly: from now on it is not compiled, or rounds are not captured.
    Returns that in words; None means that there is no other way left."""
    _COMPILED.pop(kind, None)
    if kind in _DISTRUST:
        return None
    _DISTRUST.add(kind)
    return f"not {'captured' if kind == CAPTURE else 'compiled'}: correct, but slower"


def trusted(kind: Hashable) -> bool:
    """Whether this kind was never found to compute wrongly."""
    return kind not in _DISTRUST


def is_compiled(kind: Hashable) -> bool:
    """Whether this process has compiled this kind."""
    return kind in _COMPILED


def compiled(
    kind: Hashable,
    function: Callable[..., Any],
    *,
    dynamic: bool | None = None,
    whole: bool = False,
    told: str = "",
    options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """The compiled form of the first function of this kind; all functions of a kind must do the same.

    With `dynamic`, sizes are symbolic from the start; if it is None, a size becomes symbolic when it changes.
    A part that the compiler does not know stays as it is, and slow; if `whole`, that is PyTorch's error.
    PyTorch keeps compiled code in a folder, for other runs and processes. A user who waits for what is
    compiled anew is `told` its name. `options` are those of PyTorch's compiler.
    """
    if kind in _DISTRUST:
        return function
    if kind not in _COMPILED:
        if told and os.environ.get("RANK", "0") == "0":
            print(f"compiling {told} for the GPU: {WAIT}", file=sys.stderr, flush=True)
        compiler: Any = torch.compiler
        for known in _CONSTANT:
            compiler.assume_constant_result(known)
        config = torch._dynamo.config  # PyTorch counts other kinds as recompilations
        config.recompile_limit = max(config.recompile_limit, MOST_KINDS)
        config.accumulated_recompile_limit = max(config.accumulated_recompile_limit, MOST_KINDS)
        logging.getLogger("torch.utils._sympy.interp").setLevel(logging.ERROR)  # of no use to a user
        usual = {name: value for name, value in _OPTIONS.items() if hasattr(torch._inductor.config, name)}
        given = {**usual, **(options or {})}
        _COMPILED[kind] = torch.compile(function, dynamic=dynamic, fullgraph=whole, options=given)
    return _COMPILED[kind]


@contextmanager
def usual_modes() -> Iterator[None]:
    """PyTorch as it is at its start, whatever the caller has set: no autocast, no inference mode, and new
    tensors in float32. The caller's modes hold for one thread alone, and would change what is computed."""
    dtype, casts = torch.get_default_dtype(), {kind: torch.is_autocast_enabled(kind) for kind in AUTOCAST}
    try:
        torch.set_default_dtype(torch.float32)
        for kind in casts:
            torch.set_autocast_enabled(kind, False)
        with torch.inference_mode(False):
            yield
    finally:
        torch.set_default_dtype(dtype)
        for kind, enabled in casts.items():
            torch.set_autocast_enabled(kind, enabled)


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's search for garbage. It takes a twentieth of the compiler's time. It ends the capture
    of a CUDA graph if it finds another one to destroy."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def capturing() -> bool:
    """Whether a CUDA graph is being captured now: kernels are written down and not run."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class CapturedWork:
    """Work on a GPU. The first call does it and captures it as a CUDA graph; later calls replay the graph.

    `changed` lists the tensors that the work changes: capturing must leave them as they are. Work that cannot
    be captured is done anew in each call, and a warning says so.
    """

    def __init__(self, work: Callable[[], None], changed: Callable[[], Sequence[Tensor]]) -> None:
        self.work, self.changed = work, changed
        self._graph: torch.cuda.CUDAGraph | None = None
        self._refused = False

    @property
    def replays(self) -> bool:
        """Whether the next call replays."""
        return self._graph is not None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        self.work()  # compiles and allocates what must exist before the capture
        if self._refused:
            return
        saved = [tensor.clone() for tensor in self.changed()]
        graph = torch.cuda.CUDAGraph()
        try:
            stream = torch.cuda.stream(torch.cuda.current_stream())
            with _CAPTURING, uncollected(), stream, torch.cuda.graph(graph):
                self.work()
            self._graph = graph
        except RuntimeError as error:
            self._refused = True
            why = f"so they are slower, but correct: {first_line(error)}"
            warn_user(f"a CUDA graph cannot hold these rounds, {why}")
        for tensor, value in zip(self.changed(), saved, strict=True):
            tensor.copy_(value)


def usable_cores() -> int:
    """How many CPU cores this process may use. macOS tells only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads_for(products: int) -> Iterator[None]:
    """One thread for little work: others would wait longer for their part than they compute."""
    threads = torch.get_num_threads()
    if products > LITTLE or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def each(function: Callable[[_In], _Out], items: Sequence[_In]) -> Iterable[_Out]:
    """`map` with as many threads as PyTorch may use, each on one core; a single item may use all cores."""
    threads = torch.get_num_threads()
    alone = threads == 1 or len(items) == 1
    return map(function, items) if alone else _pool(threads, os.getpid()).map(function, items)


def share(function: Callable[[Sequence[_In]], None], items: Sequence[_In]) -> None:
    """Split the items into consecutive parts, one for each thread."""
    threads = max(1, min(torch.get_num_threads(), len(items)))
    runs = [items[len(items) * i // threads : len(items) * (i + 1) // threads] for i in range(threads)]
    for _ in each(function, runs):
        pass  # raises what a thread raised


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of this process. `process` is its id: after a fork the parent's threads are gone."""
    pool = ThreadPoolExecutor(threads, "core", _compute_alone)
    everyone = Barrier(threads)
    list(pool.map(lambda _: everyone.wait(), range(threads)))
    torch.set_num_threads(threads)  # each thread has its own number, but new threads take the last one set
    return pool


def _compute_alone() -> None:
    torch.get_num_threads()  # a thread's first call sets the process's number; only then can it be changed
    torch.set_num_threads(1)
