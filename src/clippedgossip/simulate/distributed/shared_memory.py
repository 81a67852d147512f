"""Memory that all ranks see, where they are on one host."""

import mmap
import os
import secrets
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from clippedgossip.simulate.distributed.ranks import Ranks

NAME = "clippedgossip"
HEAD = 64  # bytes before the numbers, for a token


def common_memory(ranks: Ranks, lengths: Sequence[int]) -> list[Tensor] | None:
    """For each rank lengths[rank] numbers of its own, zeros at first, that all others may write to as well.

    None if they do not all share a host, or it cannot. Memory is taken as it is used, and is gone with the
    last process that sees it. All ranks must ask.
    """
    token = secrets.token_bytes(HEAD // 2)
    descriptor, own = _make(lengths[ranks.rank], token)
    try:
        said = [word.split() for word in ranks.texts(f"{host()} {os.getpid()} {descriptor} {token.hex()}")]
        seen = [
            own if rank == ranks.rank else _look(said[rank], length) for rank, length in enumerate(lengths)
        ]
        found = [memory for memory in seen if memory is not None]
        everyone = len(found) == len(lengths)
        agreed = all(word == "all" for word in ranks.texts("all" if everyone else "not all"))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return found if agreed else None


def host() -> str:
    """The running system, and the part of it in which processes see each other, by a name no other has."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return secrets.token_hex()


def _make(length: int, token: bytes) -> tuple[int, Tensor | None]:
    if sys.platform != "linux":
        return -1, None
    with suppress(OSError):
        descriptor = os.memfd_create(NAME)
        os.ftruncate(descriptor, HEAD + 4 * length)
        memory = mmap.mmap(descriptor, HEAD + 4 * length)
        memory[: len(token)] = token
        return descriptor, _numbers(memory)
    return -1, None


def _look(said: Sequence[str], length: int) -> Tensor | None:
    """Another process's memory, if it is there and what that process says."""
    where, process, descriptor, token = said
    path = Path(f"/proc/{process}/fd/{descriptor}")
    with suppress(OSError, ValueError):
        if where == host() and os.readlink(path).startswith(f"/memfd:{NAME}"):
            with path.open("r+b") as file:
                memory = mmap.mmap(file.fileno(), HEAD + 4 * length)
            if memory[: HEAD // 2].hex() == token:
                return _numbers(memory)
    return None


def _numbers(memory: mmap.mmap) -> Tensor:
    return torch.frombuffer(memory, dtype=torch.float32, offset=HEAD)
