"""The stack turned: from some workers' whole models on each rank to all workers' slices, and back."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from clippedgossip.simulate.distributed.ranks import Ranks


def shares(total: int, parts: int) -> list[slice]:
    """`total` things over `parts` ranks, in order, as evenly as they go."""
    return [slice(total * part // parts, total * (part + 1) // parts) for part in range(parts)]


class Transpose:
    """Rank r owns the workers `rows[r]` whole, and the coordinates `columns[r]` of all workers.

    Either way a rank keeps its own block and sends the others: 2·(n/ranks)·d·(ranks−1)/ranks numbers a round,
    whatever the graph.
    """

    def __init__(self, workers: int, size: int, ranks: Ranks) -> None:
        self.workers, self.size, self.ranks = workers, size, ranks
        self.rows, self.columns = shares(workers, ranks.size), shares(size, ranks.size)
        self.mine, self.here = self.rows[ranks.rank], self.columns[ranks.rank]

    @property
    def room(self) -> int:
        """Numbers that either form of this rank's part takes at most."""
        return max(length(self.mine) * self.size, self.workers * length(self.here))

    def slices_of(self, models: Tensor, out: Tensor, room: Tensor) -> Tensor:
        """(own workers, d) on each rank -> (all workers, own coordinates), written to `out`.

        What goes to others is packed in `room`; the three lie apart.
        """
        blocks = [models[:, part] for part in self.columns]
        for rank, packed in self._packed(room, len(models)):
            blocks[rank] = packed.copy_(blocks[rank])
        self.ranks.exchange(blocks, [out[rows] for rows in self.rows])
        return out

    def models_of(self, slices: Tensor, out: Tensor, room: Tensor) -> Tensor:
        """(all workers, own coordinates) on each rank -> (own workers, d), written to `out`."""
        return self.gather([slices[rows] for rows in self.rows], out, room)

    def gather(self, slices: Sequence[Tensor], out: Tensor, room: Tensor | None = None) -> Tensor:
        """Rows' slices (any number, own coordinates) for each rank -> whole rows (own number, d), written to
        `out`. What comes from others lands in `room` first; the three lie apart."""
        blocks = [out[:, part] for part in self.columns]
        arrived = dict(self._packed(torch.empty_like(out).view(-1) if room is None else room, len(out)))
        self.ranks.exchange(slices, [arrived.get(rank, block) for rank, block in enumerate(blocks)])
        for rank, packed in arrived.items():
            blocks[rank].copy_(packed)
        return out

    def everywhere(self, slices: Tensor) -> Tensor:
        """Rows' slices (m, own coordinates) -> the whole rows (m, d), on every rank."""
        return self.gather([slices] * self.ranks.size, slices.new_empty(len(slices), self.size))

    def _packed(self, room: Tensor, rows: int) -> Iterator[tuple[int, Tensor]]:
        """A place in `room` for each other rank's coordinates of so many rows."""
        start = 0
        for rank, part in enumerate(self.columns):
            if rank != self.ranks.rank:
                stop = start + rows * length(part)
                yield rank, room[start:stop].view(rows, length(part))
                start = stop

    def spread(self, own: Tensor, rows: slice, total: int) -> Tensor:
        """Numbers of this rank's `rows` of `total` -> those of all ranks, float64, on every rank."""
        numbers = torch.zeros(total, *own.shape[1:], dtype=torch.float64, device=own.device)
        numbers[rows] = own.double()
        return self.ranks.sum(numbers)


def length(part: slice) -> int:
    return int(part.stop - part.start)
