"""A core for each piece of work: small operations gain more from it than from sharing one among all cores."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

_In = TypeVar("_In")
_Out = TypeVar("_Out")


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
