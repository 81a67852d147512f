"""The stack turned: from some workers' whole models on each rank to all workers' slices, and back."""

from collections.abc import Sequence

import torch
from torch import Tensor

from clippedgossip.simulate.ranks import Ranks


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
        return max(_length(self.mine) * self.size, self.workers * _length(self.here))

    def slices_of(self, models: Tensor, out: Tensor, room: Tensor) -> Tensor:
        """(own workers, d) on each rank -> (all workers, own coordinates), written to `out`.

        `out` may lie where `models` do, since these are packed in `room` first.
        """
        start = 0
        for part in self.columns:
            block = models[:, part]
            room[start : start + block.numel()].view(block.shape).copy_(block)
            start += block.numel()
        sent = [len(models) * _length(part) for part in self.columns]
        received = [_length(rows) * out.shape[1] for rows in self.rows]
        self.ranks.exchange(room[:start], sent, out.view(-1), received)
        return out

    def models_of(self, slices: Tensor, out: Tensor, room: Tensor) -> Tensor:
        """(all workers, own coordinates) on each rank -> (own workers, d), written to `out`."""
        return self.gather(slices, [_length(rows) for rows in self.rows], out, room)

    def gather(
        self, slices: Tensor, counts: Sequence[int], out: Tensor, room: Tensor | None = None
    ) -> Tensor:
        """Rows' slices (Σ counts, own coordinates), the first counts[0] of them for rank 0 and so on ->
        whole rows (counts[own rank], d), written to `out`."""
        own = counts[self.ranks.rank]
        received = [own * _length(part) for part in self.columns]
        sent = [count * slices.shape[1] for count in counts]
        flat = out.new_empty(sum(received)) if room is None else room[: sum(received)]
        self.ranks.exchange(slices.contiguous().view(-1), sent, flat, received)
        start = 0
        for part in self.columns:
            block = out[:, part]
            block.copy_(flat[start : start + block.numel()].view(block.shape))
            start += block.numel()
        return out

    def everywhere(self, slices: Tensor) -> Tensor:
        """Rows' slices (m, own coordinates) -> the whole rows (m, d), on every rank."""
        copies = slices.expand(self.ranks.size, *slices.shape).flatten(0, 1)
        return self.gather(copies, [len(slices)] * self.ranks.size, slices.new_empty(len(slices), self.size))

    def spread(self, own: Tensor, rows: slice, total: int) -> Tensor:
        """Numbers of this rank's `rows` of `total` -> those of all ranks, float64, on every rank."""
        numbers = torch.zeros(total, *own.shape[1:], dtype=torch.float64, device=own.device)
        numbers[rows] = own.double()
        return self.ranks.sum(numbers)


def _length(part: slice) -> int:
    return int(part.stop - part.start)
