"""How a process becomes one of the ranks of a run, and how it leaves."""

import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from clippedgossip.errors import RunError
from clippedgossip.simulate.distributed.ranks import Ranks, rank_names

TIMEOUT = 600.0  # seconds without an answer after which a rank counts as lost
POLL = 0.01  # seconds between two looks into the store


@contextmanager
def join(*, url: str = "env://", timeout: float = TIMEOUT, share_memory: bool = True) -> Iterator[Ranks]:
    """Be one of the ranks that torchrun started, until the block ends; or one of the ranks at another address
    that torch.distributed knows, such as `file:///tmp/here?rank=0&world_size=2`.

    CPUs talk over gloo; GPUs over NCCL if each rank has its own. CPU ranks of one host exchange models
    through shared memory, unless `share_memory` is False; gloo then carries the rest.
    """
    store, rank, size = next(rendezvous(url, timeout=timedelta(seconds=timeout)))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    able = torch.cuda.is_available() and dist.is_nccl_available() and local <= torch.cuda.device_count()
    told = f"{able} {socket.gethostname()}, process {os.getpid()}"
    members = find_members(store, rank, size, told, timeout)
    nccl = all(text.startswith("True ") for text in members.texts)
    with _batch_scheduling():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=members.store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    ranks = Ranks(
        rank,
        size,
        store=members.store,
        timeout=timeout,
        processes=[text.partition(" ")[2] for text in members.texts],
        nccl=nccl,
        share_memory=share_memory,
    )
    try:
        with _signals_noted(ranks):
            yield ranks
    finally:
        ranks.close()


class Members(NamedTuple):
    """All ranks of one attempt: a part of the store that is theirs alone, by its name, and a text of each."""

    name: str
    store: Store
    texts: tuple[str, ...]


def find_members(store: Store, rank: int, size: int, text: str, timeout: float) -> Members:
    """Return when all ranks of this attempt are there. `text` is told to all of them.

    The store may still hold what an earlier attempt left: after `torchrun --max-restarts` has restarted its
    processes, they use the store of the dead ones, and the count of restarts differs from host to host. So
    each rank writes a fresh token. Rank 0 writes a list of all tokens until each rank has confirmed the list
    that has its own. A rank that finds its token in the list knows that rank 0 is alive. Rank 0 knows that a
    rank that confirms its token is alive.
    """
    token = secrets.token_hex(8)
    deadline = time.monotonic() + timeout
    store.set(f"here/{rank}", f"{token} {text}")
    if rank == 0:
        name, lines = _list_members(store, size, f"{token} {text}", deadline)
    else:
        name, lines = _confirm(store, rank, size, token, deadline)
    return Members(name, PrefixStore(name, store), tuple(line.partition(" ")[2] for line in lines))


def _list_members(store: Store, size: int, own: str, deadline: float) -> tuple[str, list[str]]:
    others, token = range(1, size), own.split(" ")[0]
    while True:
        here = [rank for rank in others if store.check([f"here/{rank}"])]
        if len(here) == len(others):
            lines = [own, *(store.get(f"here/{rank}").decode() for rank in others)]
            store.set("members", "\n".join(lines))
            if not others or store.check([f"{token}/{rank}" for rank in others]):
                return token, lines
        if time.monotonic() > deadline:
            absent = [rank for rank in others if not store.check([f"{token}/{rank}"])]
            raise RunError(f"{rank_names(absent)} of {size} did not come; look at why they did not start")
        time.sleep(POLL)


def _confirm(store: Store, rank: int, size: int, token: str, deadline: float) -> tuple[str, list[str]]:
    while True:
        if store.check(["members"]):
            lines = store.get("members").decode().split("\n")
            tokens = [line.split(" ")[0] for line in lines]
            if len(tokens) == size and tokens[rank] == token:
                store.set(f"{tokens[0]}/{rank}", "")
                return tokens[0], lines
        if time.monotonic() > deadline:
            raise RunError(f"rank 0 of {size} did not come, rank {rank} waited; look at why it did not start")
        time.sleep(POLL)


@contextmanager
def _batch_scheduling() -> Iterator[None]:
    """Threads started in this block do not interrupt others when they wake.

    While the sender of a message holds a lock, gloo's thread tries the lock again and again. On the sender's
    own core it would do so for milliseconds, until the scheduler lets the sender run again.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        yield
        return
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


@contextmanager
def _signals_noted(ranks: Ranks) -> Iterator[None]:
    """Note SIGINT and SIGTERM instead of ending at once: the run ends between two rounds and says why.

    torchrun sends SIGTERM to the other processes when one of them ends, and SIGINT twice when it is
    interrupted.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(signum: int, frame: FrameType | None) -> None:
        ranks.signal = signal.Signals(signum).name

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
