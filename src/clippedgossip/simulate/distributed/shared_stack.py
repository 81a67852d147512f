"""The stack turned within one host: each block is written to where its owner needs it."""

import torch
from torch import Tensor

from clippedgossip.simulate.distributed.shared_memory import common_memory
from clippedgossip.simulate.distributed.transpose import Transpose, length


class Window:
    """Models (own workers, d) and slices (all workers, own coordinates) of every rank, for all to write to.

    A rank's note in one turn says that it is done with what the others write in the next: with its models
    when the slices go out, with its slices when the models come home.
    """

    def __init__(self, turn: Transpose, memory: list[Tensor]) -> None:
        self.turn, self.rank, size = turn, turn.ranks.rank, turn.size
        self._models, self._slices = [], []
        for held, rows, part in zip(memory, turn.rows, turn.columns, strict=True):
            models, start = length(rows) * size, _whole_lines(length(rows) * size)
            self._models.append(held[:models].view(-1, size))
            slices = held[start : start + turn.workers * length(part)]
            self._slices.append(slices.view(turn.workers, length(part)))
        self.models, self.slices = self._models[self.rank], self._slices[self.rank]

    @staticmethod
    def opened(turn: Transpose) -> "Window | None":
        """One, if all ranks are on one host. All must ask."""
        lengths = [
            _whole_lines(length(rows) * turn.size) + turn.workers * length(part)
            for rows, part in zip(turn.rows, turn.columns, strict=True)
        ]
        memory = common_memory(turn.ranks, lengths)
        return None if memory is None else Window(turn, memory)

    def slices_of(self, half: Tensor) -> None:
        """(own workers, d) on each rank -> `slices`."""
        self._pass(
            [half[:, part] for part in self.turn.columns], [one[self.turn.mine] for one in self._slices]
        )

    def models_of(self, mixed: Tensor) -> None:
        """(all workers, own coordinates) on each rank -> `models`."""
        self._pass([mixed[rows] for rows in self.turn.rows], [one[:, self.turn.here] for one in self._models])

    def _pass(self, blocks: list[Tensor], places: list[Tensor]) -> None:
        """What is for others first; the own is copied while notes of it go around."""
        for rank, (block, place) in enumerate(zip(blocks, places, strict=True)):
            if rank != self.rank:
                place.copy_(block)
        sent, heard = (list(torch.zeros(len(blocks), 1, dtype=torch.uint8)) for _ in range(2))
        sent[self.rank], heard[self.rank] = blocks[self.rank], places[self.rank]
        self.turn.ranks.exchange(sent, heard)
        self.turn.ranks.exchanged += sum(block.nbytes for block in blocks) - blocks[self.rank].nbytes


def _whole_lines(numbers: int) -> int:
    return -(-numbers // 16) * 16
