"""Devices: a core for each piece of small work, and compiling for a GPU once for each kind of work."""

import logging
import os
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier
from typing import Any, TypeVar

import torch

from clippedgossip.randomness import purpose_word

_In = TypeVar("_In")
_Out = TypeVar("_Out")
_Function = TypeVar("_Function", bound=Callable[..., Any])
_COMPILED: dict[Hashable, Callable[..., Any]] = {}
_DISTRUST: dict[Hashable, int] = {}
"""How often a kind was found wrong."""
CAPTURE = "captured rounds"
"""The kind of all rounds that a GPU repeats as it captured them."""
_CONSTANT: list[Callable[..., Any]] = [purpose_word]
_TILE_LEAF = 0x1D
"""Where a CPU states the sizes of its AMX tiles (the number of a `cpuid` leaf)."""


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


def constant(function: _Function) -> _Function:
    """One that a compiler is not to look into: equal arguments, equal results.

    Marked when something is compiled: the compiler takes a second to import, and many never need it.
    """
    _CONSTANT.append(function)
    return function


def ours(thing: object) -> bool:
    """Whether its class is one of this package, and tested as such."""
    return type(thing).__module__.partition(".")[0] == __name__.partition(".")[0]


def distrust(kind: Hashable) -> str | None:
    """What was done of this kind is wrong: from now on it is done otherwise. What was compiled is compiled
    for each size alone, and if that is wrong too, not at all; rounds are no longer captured. Says how it is
    done now; None if there is no other way left."""
    _COMPILED.pop(kind, None)
    times = _DISTRUST[kind] = _DISTRUST.get(kind, 0) + 1
    if kind == CAPTURE:
        return "left uncaptured, right and slower" if times == 1 else None
    return {1: "compiled for each size alone", 2: "left uncompiled, right and slower"}.get(times)


def trusted(kind: Hashable) -> bool:
    return kind not in _DISTRUST


def compiled(
    kind: Hashable, function: Callable[..., Any], *, dynamic: bool | None = None
) -> Callable[..., Any]:
    """The compiled form of the first function of this kind; later ones of the kind must do the same work.

    `dynamic` takes sizes for symbolic from the start; otherwise those that change turn so the second time.
    """
    found_wrong = _DISTRUST.get(kind, 0)
    if found_wrong > 1:
        return function
    if kind not in _COMPILED:
        compiler: Any = torch.compiler
        for known in _CONSTANT:
            compiler.assume_constant_result(known)
        config = torch._dynamo.config
        config.recompile_limit = max(config.recompile_limit, 64)  # other kinds are not recompilations
        logging.getLogger("torch.utils._sympy.interp").setLevel(logging.ERROR)  # of no use to a user
        _COMPILED[kind] = torch.compile(function, dynamic=False if found_wrong else dynamic)
    return _COMPILED[kind]


def each(function: Callable[[_In], _Out], items: Sequence[_In]) -> Iterable[_Out]:
    """`map`, one item to a thread, with as many threads as PyTorch may use; each computes with one. A single
    item has all threads to itself."""
    threads = torch.get_num_threads()
    alone = threads == 1 or len(items) == 1
    return map(function, items) if alone else _pool(threads, os.getpid()).map(function, items)


def share(function: Callable[[Sequence[_In]], None], items: Sequence[_In]) -> None:
    """Give each thread a run of neighbouring items."""
    threads = max(1, min(torch.get_num_threads(), len(items)))
    runs = [items[len(items) * i // threads : len(items) * (i + 1) // threads] for i in range(threads)]
    for _ in each(function, runs):
        pass  # for what may have been raised


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of this process: a fork inherits the name of a pool, not its threads."""
    pool = ThreadPoolExecutor(threads, "core", _compute_alone)
    everyone = Barrier(threads)
    list(pool.map(lambda _: everyone.wait(), range(threads)))
    torch.set_num_threads(threads)  # the number is each thread's own, save for threads yet to be born
    return pool


def _compute_alone() -> None:
    torch.get_num_threads()  # a thread's first look takes over the process's number, over what it was told
    torch.set_num_threads(1)
