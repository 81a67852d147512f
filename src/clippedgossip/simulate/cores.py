"""A core for each worker: small products gain more from it than from sharing one worker among all cores."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier
from typing import TypeVar

import torch

_In, _Out = TypeVar("_In"), TypeVar("_Out")


def each(function: Callable[[_In], _Out], items: Iterable[_In]) -> Iterable[_Out]:
    """`map`, one item to a thread, with as many threads as PyTorch may use; each computes with one."""
    threads = torch.get_num_threads()
    return map(function, items) if threads == 1 else _pool(threads, os.getpid()).map(function, items)


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """The threads of this process: a fork inherits the name of a pool, not its threads."""
    pool = ThreadPoolExecutor(threads, "worker", torch.set_num_threads, (1,))
    everyone = Barrier(threads)
    list(pool.map(lambda _: everyone.wait(), range(threads)))
    torch.set_num_threads(threads)  # the number is each thread's own, save for threads yet to be born
    return pool
