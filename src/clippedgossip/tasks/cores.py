"""A core for each worker: small products gain more from it than from sharing one worker among all cores."""

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


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of this process: a fork inherits the name of a pool, not its threads."""
    pool = ThreadPoolExecutor(threads, "worker", torch.set_num_threads, (1,))
    everyone = Barrier(threads)
    list(pool.map(lambda _: everyone.wait(), range(threads)))
    torch.set_num_threads(threads)  # the number is each thread's own, save for threads yet to be born
    return pool
