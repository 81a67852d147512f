"""Models and slices in memory that all ranks of one host can write to."""

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
from clippedgossip.simulate.distributed.transpose import Transpose, length

NAME = "clippedgossip"
HEAD = 64  # bytes before the numbers; a token stands there


class SharedStack:
    """Every rank's models (own workers, d) and slices (all workers, own coordinates), in shared memory.

    Each rank writes its blocks to where their owners need them. Two transposes take turns, and the notes that
    ranks exchange in one of them also say what may be overwritten in the next: a rank that sends slices has
    read its models, and a rank that sends models has read its slices.
    """

    def __init__(self, transpose: Transpose, memory: list[Tensor]) -> None:
        self.transpose, self.rank, size = transpose, transpose.ranks.rank, transpose.size
        self._models, self._slices = [], []
        for held, rows, columns in zip(memory, transpose.rows, transpose.columns, strict=True):
            models, start = length(rows) * size, _whole_cache_lines(length(rows) * size)
            self._models.append(held[:models].view(-1, size))
            slices = held[start : start + transpose.workers * length(columns)]
            self._slices.append(slices.view(transpose.workers, length(columns)))
        self.models, self.slices = self._models[self.rank], self._slices[self.rank]

    @staticmethod
    def on_one_host(transpose: Transpose) -> "SharedStack | None":
        """A shared stack if all ranks are on one host. All ranks must call this."""
        lengths = [
            _whole_cache_lines(length(rows) * transpose.size) + transpose.workers * length(columns)
            for rows, columns in zip(transpose.rows, transpose.columns, strict=True)
        ]
        memory = shared_memory(transpose.ranks, lengths)
        return None if memory is None else SharedStack(transpose, memory)

    def to_slices(self, half: Tensor) -> None:
        """(own workers, d) on each rank -> `slices`."""
        blocks = [half[:, columns] for columns in self.transpose.columns]
        self._write(blocks, [slices[self.transpose.own_rows] for slices in self._slices])

    def to_models(self, mixed: Tensor) -> None:
        """(all workers, own coordinates) on each rank -> `models`."""
        blocks = [mixed[rows] for rows in self.transpose.rows]
        self._write(blocks, [models[:, self.transpose.own_columns] for models in self._models])

    def _write(self, blocks: list[Tensor], places: list[Tensor]) -> None:
        """Write the other ranks' blocks, then tell them; the own block is copied meanwhile."""
        for rank, (block, place) in enumerate(zip(blocks, places, strict=True)):
            if rank != self.rank:
                place.copy_(block)
        sent, received = (list(torch.zeros(len(blocks), 1, dtype=torch.uint8)) for _ in range(2))
        sent[self.rank], received[self.rank] = blocks[self.rank], places[self.rank]
        self.transpose.ranks.exchange(sent, received)
        self.transpose.ranks.exchanged += sum(block.nbytes for block in blocks) - blocks[self.rank].nbytes


def shared_memory(ranks: Ranks, lengths: Sequence[int]) -> list[Tensor] | None:
    """For each rank lengths[rank] float32 numbers, zeros at first, that all ranks can write to.

    None if the ranks are not all on one host, or the system has no such memory. Memory is taken when it is
    first used, and freed when the last process that uses it ends. All ranks must call this.
    """
    token = secrets.token_bytes(HEAD // 2)
    descriptor, own = _create(lengths[ranks.rank], token)
    try:
        texts = ranks.all_texts(f"{host()} {os.getpid()} {descriptor} {token.hex()}")
        seen = [
            own if rank == ranks.rank else _open(texts[rank].split(), length)
            for rank, length in enumerate(lengths)
        ]
        found = [memory for memory in seen if memory is not None]
        complete = len(found) == len(lengths)
        agreed = all(text == "all" for text in ranks.all_texts("all" if complete else "not all"))
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return found if agreed else None


def host() -> str:
    """A name for the running system and the process namespace; unique if the system tells neither."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
    return secrets.token_hex()


def _create(length: int, token: bytes) -> tuple[int, Tensor | None]:
    if sys.platform != "linux":
        return -1, None
    with suppress(OSError):
        descriptor = os.memfd_create(NAME)
        os.ftruncate(descriptor, HEAD + 4 * length)
        memory = mmap.mmap(descriptor, HEAD + 4 * length)
        memory[: len(token)] = token
        return descriptor, _numbers(memory)
    return -1, None


def _open(words: Sequence[str], length: int) -> Tensor | None:
    """Another process's memory, if it is on this host and holds the token that the process told."""
    where, process, descriptor, token = words
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


def _whole_cache_lines(numbers: int) -> int:
    return -(-numbers // 16) * 16
