"""Data larger than the device: files that are mapped into memory, and batches drawn ahead of each step."""

from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from clippedgossip.errors import DataError
from clippedgossip.tasks.datasets import leaves, mapped

if TYPE_CHECKING:
    from clippedgossip.tasks.workers import WorkerShares

FILES = ("train_x", "train_y", "test_x", "test_y")
SAMPLED = 64
"""Rows of each file that its digest covers, from all over it. Reading all of a large file takes minutes."""


class Feed:
    """The batches of workers whose training data stay in host memory or in files.

    `shares` has the samples of one step in place of all data: row i·batch + j is the j-th of worker i. A
    thread reads the next step's samples while this step computes. It makes no call of CUDA, so a CUDA graph
    may be captured meanwhile; there are two buffers, so that it never writes into one that is being copied.
    """

    def __init__(self, shares: "WorkerShares", batch: int, batches: str = "random") -> None:
        device, count = shares.nodes.device, len(shares.nodes)
        self.batch, self.batches, self.on_gpu = batch, batches, device.type == "cuda"
        self.source = shares._replace(
            **{name: getattr(shares, name).cpu() for name in ("seeds", "nodes", "table", "sizes")}
        )
        self.held = (shares.train_x, shares.train_y)
        """All training data."""
        self.windows: dict[str | None, Any] = {}
        self._buffers: dict[str | None, list[Any]] = {}
        self._copied: dict[str | None, Any] = {}
        self._ahead: dict[str | None, tuple[int, Future[Any]]] = {}
        self._pool = ThreadPoolExecutor(1, "feed")
        self._device, self._now = device, (0, 0)
        x, y = self.window(None)
        places = torch.arange(count * batch, device=device).view(count, batch)
        self.shares = shares._replace(table=places, train_x=x, train_y=y)

    def window(self, purpose: str | None) -> Any:
        """The samples of the present step that are drawn for a purpose."""
        if purpose not in self.windows:
            rows = len(self.source.nodes) * self.batch

            def empty(leaf: Tensor, **where: Any) -> Tensor:
                return torch.empty(rows, *leaf.shape[1:], dtype=leaf.dtype, **where)

            self.windows[purpose] = mapped(lambda leaf: empty(leaf, device=self._device), self.held)
            self._buffers[purpose] = [
                mapped(lambda leaf: empty(leaf, pin_memory=self.on_gpu), self.held) for _ in range(2)
            ]
            self._fill(purpose, self._now[purpose is not None])
        return self.windows[purpose]

    def go_to(self, step: int, round: int) -> None:
        """The samples of a step. Those that rules draw for other purposes are numbered by the round."""
        self._now = step, round
        for purpose in self.windows:
            self._fill(purpose, self._now[purpose is not None])

    def _fill(self, purpose: str | None, number: int) -> None:
        found, ahead = self._ahead.get(purpose, (-1, None))
        if found == number + 1:
            return  # it is there
        if ahead is not None:
            read = ahead.result()
        if purpose in self._copied:
            self._copied[purpose].synchronize()  # from the buffer that is written next
        if ahead is None or found != number:  # the start, or a run that resumes
            read = self._pool.submit(self._read, purpose, number).result()
        for window, buffer in zip(leaves(self.windows[purpose]), leaves(read), strict=True):
            window.copy_(buffer, non_blocking=True)
        if self.on_gpu:
            self._copied[purpose] = torch.cuda.current_stream(self._device).record_event()
        self._ahead[purpose] = number + 1, self._pool.submit(self._read, purpose, number + 1)

    def _read(self, purpose: str | None, number: int) -> Any:
        buffer = self._buffers[purpose][number % 2]
        rows = self.source.rows(number, purpose, self.batch, self.batches).flatten()
        for leaf, into in zip(leaves(self.held), leaves(buffer), strict=True):
            # Of a vector of unsigned numbers PyTorch selects nothing; of one with a dimension more it does.
            torch.index_select(leaf.unsqueeze(-1), 0, rows, out=into.unsqueeze(-1))
        return buffer


def open_files(folder: Path) -> tuple[np.ndarray, ...]:
    """train_x, train_y, test_x and test_y of a folder, mapped into memory: read when they are used."""
    found = []
    for name in FILES:
        file = folder / f"{name}.npy"
        try:
            found.append(np.load(file, mmap_mode="r"))
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            raise DataError(
                f"cannot read {file}: {said}\nthe folder must have {', '.join(f'{n}.npy' for n in FILES)}"
            ) from error
    dtypes = {name: array.dtype for name, array in zip(FILES, found, strict=True)}
    wide = next((name for name, kind in dtypes.items() if kind.kind == "f" and kind != np.float32), "")
    if wide:
        raise DataError(
            f"{folder / wide}.npy is not float32, so it would be copied into memory\n"
            f'save it as float32: np.save("{wide}.npy", values.astype("float32"))'
        )
    return tuple(found)


def files_digest(folder: Path) -> str:
    """Of shapes, types and some rows from all over each file."""
    total = sha256()
    for array in open_files(folder):
        rows = np.unique(np.linspace(0, max(0, len(array) - 1), SAMPLED).astype(int))[: len(array)]
        total.update(f"{array.shape} {array.dtype}".encode() + np.ascontiguousarray(array[rows]).tobytes())
    return total.hexdigest()[:16]
