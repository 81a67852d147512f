"""How a process becomes one of the ranks of a run, and how it leaves."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from clippedgossip.simulate.distributed.ranks import Ranks
from clippedgossip.simulate.distributed.roll_call import meet

TIMEOUT = 600.0  # seconds without a word after which a rank counts as lost


@contextmanager
def join(*, url: str = "env://", timeout: float = TIMEOUT, by_hand: bool = True) -> Iterator[Ranks]:
    """Be one of the ranks that torchrun started, until the block ends; or of those that meet at another of
    torch's addresses, such as `file:///tmp/here?rank=0&world_size=2`.

    gloo between CPUs; NCCL between GPUs if each rank has one of its own. CPU ranks that are all on one host
    write models to each other's memory, if they may do so `by_hand`; gloo then carries the rest.
    """
    store, rank, size = next(rendezvous(url, timeout=timedelta(seconds=timeout)))
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    able = torch.cuda.is_available() and dist.is_nccl_available() and local <= torch.cuda.device_count()
    meeting = meet(store, rank, size, f"{able} {socket.gethostname()}, process {os.getpid()}", timeout)
    nccl = all(word.startswith("True ") for word in meeting.words)
    with _threads_that_give_way():
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if nccl else "gloo",
            store=meeting.store,
            rank=rank,
            world_size=size,
            timeout=timedelta(seconds=timeout),
        )
    who = [word.partition(" ")[2] for word in meeting.words]
    ranks = Ranks(rank, size, store=meeting.store, timeout=timeout, who=who, nccl=nccl, by_hand=by_hand)
    try:
        with _hearing_signals(ranks):
            yield ranks
    finally:
        ranks.part()


@contextmanager
def _threads_that_give_way() -> Iterator[None]:
    """Threads born meanwhile do not push others off a core when they wake.

    gloo's thread tries a lock again and again while the sender of a message holds it. On the sender's own
    core it would do so for milliseconds, until the scheduler gives the sender its next turn.
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
def _hearing_signals(ranks: Ranks) -> Iterator[None]:
    """torchrun sends SIGTERM to the others when one of its processes ends, and SIGINT twice when it is
    interrupted; no message would come out."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def note(signum: int, frame: FrameType | None) -> None:
        ranks.told_to_stop = signal.Signals(signum).name

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
