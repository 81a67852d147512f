"""The exchange as one rank sees it: all workers, a slice of the coordinates."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from clippedgossip.attacks import SpectralHeterogeneity, Tuned
from clippedgossip.mixing.inbox import Context, Neighborhood
from clippedgossip.randomness import Word
from clippedgossip.records import Round
from clippedgossip.simulate.distributed.transpose import Transpose, length, shares
from clippedgossip.simulate.exchange import Mixer
from clippedgossip.simulate.setup import Setup, Training
from clippedgossip.tasks.workers import Workers


class SliceMixer(Mixer):
    """Rules and attacks as they are, on this rank's coordinates. What they sum over coordinates is summed
    over the ranks as well, so that all come to the same coefficients; no more need be told.

    Mozi is the exception: its losses need whole models, so each message goes to where its receiver lives.
    """

    def __init__(self, setup: Setup, workers: Workers, turn: Transpose) -> None:
        super().__init__(setup, workers, slice(0, turn.workers))
        self.turn = turn
        self.own = _overlap(turn.mine, slice(0, self.regular))
        self._losses_of = workers.compiled("losses_of")
        self._examiner = _examiner(workers, turn)

    def context(self, round: Word, rounds: int) -> Context:
        offset, reduce = self.turn.here.start, self.turn.ranks.sum
        return replace(super().context(round, rounds), offset=offset, reduce=reduce)

    def share_constants(self) -> None:
        """Take rank 0's eigenvector: where eigenvalues coincide, another machine may find another."""
        attack = self.attack.attack if isinstance(self.attack, Tuned) else self.attack
        mode = self.network.gap.fiedler if isinstance(attack, SpectralHeterogeneity) else None
        if mode is not None:
            held = self.layout.remember("fiedler", lambda: mode)
            held.copy_(self.turn.ranks.share(held))

    def evaluate_slices(
        self, slices: Tensor, models: Tensor, losses: Tensor, round: int, training: Training
    ) -> Round:
        """`evaluate`, from the slices of all workers and this rank's whole models and losses.

        Averages are tested by all ranks, each on its part of the test set; a node's own model by its owner.
        """
        slices, count = slices[: self.regular], length(self.own)
        single = None
        if training.evaluates_nodes(round):
            found = self.workers.accuracies(models[:count]) if count else losses[:0]
            single = self.turn.spread(found, self.own, self.regular)
        return self.record(
            round,
            training,
            self._accuracy(self.turn.everywhere(self.averages(slices))),
            single,
            self.turn.spread(losses[:count], self.own, self.regular).to(losses.dtype),
            self.turn.ranks.sum(self.apart(slices)),
        )

    def record(self, *measured: Any) -> Round:
        self.turn.ranks.settle(self.clips.device)  # reading a number waits for ranks that may be lost
        return super().record(*measured)

    def _accuracy(self, models: Tensor) -> Tensor:
        right = torch.zeros(len(models), dtype=torch.float64, device=models.device)
        if self._examiner is not None:
            right = (self._examiner.accuracies(models) * len(self._examiner.data.test_y)).round()
        return self.turn.ranks.sum(right) / len(self.workers.task.data.test_y)

    def _losses_near(self, near: Neighborhood) -> Tensor:
        """(b, k+1), on every rank; one message of each node at a time is brought to the node's owner."""
        turn = self.turn
        owned = [_overlap(rows, near.group) for rows in turn.rows]
        counts = [length(rows) for rows in owned]
        own = owned[turn.ranks.rank]
        local = slice(own.start - turn.mine.start, own.stop - turn.mine.start)
        x, y = (part[local] for part in self.workers.draw(self.workers.shares, near.context.round, "mozi"))
        losses = []
        for place in range(near.weights.shape[1] + 1):
            message = near.message(place)
            whole = turn.gather(torch.split(message, counts), message.new_empty(len(x), turn.size))
            losses.append(self._losses_of(whole, x, y) if len(x) else whole.new_zeros(0))
        start = near.group.start
        return turn.spread(
            torch.stack(losses, 1), slice(own.start - start, own.stop - start), length(near.group)
        )


def _overlap(one: slice, other: slice) -> slice:
    """What both have; where that is nothing, an empty slice within `one`."""
    start = min(max(one.start, other.start), one.stop)
    return slice(start, max(start, min(one.stop, other.stop)))


def _examiner(workers: Workers, turn: Transpose) -> Workers | None:
    """This rank's part of the test set; none if there are more ranks than samples."""
    data = workers.task.data
    part = shares(len(data.test_y), turn.ranks.size)[turn.ranks.rank]
    if not length(part):
        return None
    tested = replace(data, test_x=data.test_x[part], test_y=data.test_y[part])
    return Workers([replace(workers.task, data=tested)], workers.precision)
