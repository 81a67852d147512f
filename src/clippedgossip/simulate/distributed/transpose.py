"""The transpose of the stack: from whole models of some workers to slices of all workers, and back."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clippedgossip.simulate.distributed.ranks import Ranks


def even_parts(total: int, parts: int) -> list[slice]:
    """0 to `total` as consecutive slices whose lengths differ by one at most."""
    return [slice(total * part // parts, total * (part + 1) // parts) for part in range(parts)]


class Transpose:
    """Rank r has whole models of the workers `rows[r]`, and the coordinates `columns[r]` of all workers.

    Either way a rank keeps one block and sends the others: 2·(n/ranks)·d·(ranks−1)/ranks numbers a round, for
    any graph.
    """

    def __init__(self, workers: int, size: int, ranks: Ranks) -> None:
        self.workers, self.size, self.ranks = workers, size, ranks
        self.rows, self.columns = even_parts(workers, ranks.size), even_parts(size, ranks.size)
        self.own_rows, self.own_columns = self.rows[ranks.rank], self.columns[ranks.rank]

    @property
    def buffer_size(self) -> int:
        """Numbers that hold this rank's models, or its slices."""
        return max(length(self.own_rows) * self.size, self.workers * length(self.own_columns))

    def to_slices(self, models: Tensor, out: Tensor, buffer: Tensor) -> Tensor:
        """(own workers, d) on each rank -> (all workers, own coordinates), written to `out`. Blocks for other
        ranks are packed in `buffer`. The three tensors must not overlap."""
        blocks = [models[:, columns] for columns in self.columns]
        for rank, packed in self._packed(buffer, len(models)):
            blocks[rank] = packed.copy_(blocks[rank])
        self.ranks.exchange(blocks, [out[rows] for rows in self.rows])
        return out

    def to_models(self, slices: Tensor, out: Tensor, buffer: Tensor) -> Tensor:
        """(all workers, own coordinates) on each rank -> (own workers, d), written to `out`."""
        return self.gather([slices[rows] for rows in self.rows], out, buffer)

    def gather(self, slices: Sequence[Tensor], out: Tensor, buffer: Tensor | None = None) -> Tensor:
        """slices[r] (any number of rows, own coordinates) for each rank r -> whole rows (own number, d),
        written to `out`. Blocks of other ranks arrive in `buffer`. The tensors must not overlap."""
        blocks = [out[:, columns] for columns in self.columns]
        arrived = dict(self._packed(torch.empty_like(out).view(-1) if buffer is None else buffer, len(out)))
        self.ranks.exchange(slices, [arrived.get(rank, block) for rank, block in enumerate(blocks)])
        for rank, packed in arrived.items():
            blocks[rank].copy_(packed)
        return out

    def gather_everywhere(self, slices: Tensor) -> Tensor:
        """(m, own coordinates) on each rank -> the whole rows (m, d), on every rank."""
        return self.gather([slices] * self.ranks.size, slices.new_empty(len(slices), self.size))

    def gather_numbers(self, own: Tensor, rows: slice, total: int) -> Tensor:
        """Each rank's numbers, for its `rows` of `total` -> the numbers of all, float64, on every rank."""
        numbers = torch.zeros(total, *own.shape[1:], dtype=torch.float64, device=own.device)
        numbers[rows] = own.double()
        return self.ranks.sum(numbers)

    def _packed(self, buffer: Tensor, rows: int) -> Iterator[tuple[int, Tensor]]:
        """For each other rank, a place in `buffer` for its coordinates of so many rows."""
        start = 0
        for rank, columns in enumerate(self.columns):
            if rank != self.ranks.rank:
                stop = start + rows * length(columns)
                yield rank, buffer[start:stop].view(rows, length(columns))
                start = stop


def length(part: slice) -> int:
    return int(part.stop - part.start)
