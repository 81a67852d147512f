"""The exchange as one rank sees it: all workers, a slice of the coordinates."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from clippedgossip.attacks import SpectralHeterogeneity, Tuned
from clippedgossip.metrics import RunMetrics, pair_distances
from clippedgossip.mixing.inbox import Context, Neighborhood
from clippedgossip.mixing.kernels import squared_distances
from clippedgossip.randomness import Word
from clippedgossip.records import Round
from clippedgossip.simulate.distributed.transpose import Transpose, even_parts, length
from clippedgossip.simulate.engine import Mixer
from clippedgossip.simulate.setup import Setup, Training
from clippedgossip.tasks.datasets import at
from clippedgossip.tasks.workers import Workers


class SliceMixer(Mixer):
    """Applies the same rules and attacks as one process does, to this rank's coordinates.

    Sums over coordinates are also summed over the ranks, so all ranks compute the same coefficients.
    Mozi needs more: its losses need whole models, so each message goes to the rank that has its receiver.
    """

    def __init__(self, setup: Setup, workers: Workers, transpose: Transpose) -> None:
        mine = length(transpose.own_columns)
        super().__init__(setup, workers, slice(0, transpose.workers), coordinates=mine)
        self.transpose = transpose
        self._losses_of = partial(workers.compiled("losses_of"), workers.shares)

    def context(self, round: Word, rounds: int) -> Context:
        offset, reduce = self.transpose.own_columns.start, self.transpose.ranks.sum
        return replace(super().context(round, rounds), offset=offset, reduce=reduce)

    def share_constants(self) -> None:
        """Take rank 0's eigenvector. It is not unique where eigenvalues coincide."""
        attack = self.attack.attack if isinstance(self.attack, Tuned) else self.attack
        mode = self.network.gap.fiedler if isinstance(attack, SpectralHeterogeneity) else None
        if mode is not None:
            held = self.layout.remember("fiedler", lambda: mode)
            held.copy_(self.transpose.ranks.broadcast(held))

    def make_message_losses(self) -> Callable[[Neighborhood], Tensor]:
        return self._losses_of_messages

    def _losses_of_messages(self, near: Neighborhood) -> Tensor:
        """(b, k+1) losses, on every rank. Each message goes to the rank that has its receiver."""
        transpose = self.transpose
        owned = [_overlap(rows, near.group) for rows in transpose.rows]
        counts = [length(rows) for rows in owned]
        own = owned[transpose.ranks.rank]
        local = slice(own.start - transpose.own_rows.start, own.stop - transpose.own_rows.start)
        x, y = at(self.workers.draw(self.workers.shares, near.context.round, "mozi"), local)
        count = length(own)
        losses = []
        for place in range(near.weights.shape[1] + 1):
            message = near.message(place)
            whole = transpose.gather(torch.split(message, counts), message.new_empty(count, transpose.size))
            losses.append(self._losses_of(whole, x, y) if count else whole.new_zeros(0))
        mine = slice(own.start - near.group.start, own.stop - near.group.start)
        return transpose.gather_numbers(torch.stack(losses, 1), mine, length(near.group))


class SliceEvaluation:
    """Records of a run, from the slices of all workers and this rank's whole models and losses.

    All ranks test the averaged models, each on its part of the test set. A node's own model is tested by the
    rank that has it.
    """

    def __init__(self, metrics: RunMetrics, workers: Workers, transpose: Transpose) -> None:
        self.metrics, self.workers, self.transpose = metrics, workers, transpose
        self.own = _overlap(transpose.own_rows, slice(0, metrics.regular))
        data = workers.data
        part = even_parts(data.tests, transpose.ranks.size)[transpose.ranks.rank]
        self._test_part: Workers | None = None  # if there are more ranks than samples
        if length(part):
            tested = replace(data, test_x=at(data.test_x, part), test_y=at(data.test_y, part))
            self._test_part = Workers([replace(workers.task, data=tested)], workers.precision)

    def record(
        self, slices: Tensor, models: Tensor, buffers: Tensor, losses: Tensor, round: int, training: Training
    ) -> Round:
        """The record of a round; all ranks must call this."""
        regular, count = self.metrics.regular, length(self.own)
        slices, gather_numbers = slices[:regular], self.transpose.gather_numbers
        of_nodes = None
        if training.evaluates_nodes(round):
            found = self.workers.scores(models[:count], buffers[:count]) if count else losses[:0]
            of_nodes = gather_numbers(found, self.own, regular)
        self.workers.refuse_changed_constants()
        averages = self.transpose.gather_everywhere(self.metrics.averages(slices))
        held = buffers.new_zeros(regular, 0)
        if buffers.shape[1]:
            held = gather_numbers(buffers[:count], self.own, regular).to(buffers.dtype)
        scores = self._scores(averages, self.metrics.averages(held))
        of_all = gather_numbers(losses[:count], self.own, regular).to(losses.dtype)
        distances = self.transpose.ranks.sum(squared_distances(slices))
        pairs = self.transpose.ranks.sum(pair_distances(slices)) if training.evaluate_components else None
        self.transpose.ranks.wait_for_nccl(losses.device)  # reading a number would wait without a limit
        return self.metrics.record(
            round,
            self.workers.task.metric,
            scores=scores,
            node_scores=of_nodes,
            losses=of_all,
            distances=distances,
            pairs=pairs,
            lr=training.rate(round - 1),
            last=round == training.rounds,
        )

    def _scores(self, models: Tensor, means: Tensor) -> Tensor:
        """Of whole models; each rank tests a part of the samples."""
        whole = self._test_part or self.workers
        sums = whole.measures(models, whole.estimated(models, means))
        if self._test_part is None:
            sums = torch.zeros_like(sums)
        return self.workers.task.metric.value(self.transpose.ranks.sum(sums))


def _overlap(one: slice, other: slice) -> slice:
    """What is in both; if nothing is, an empty slice within `one`."""
    start = min(max(one.start, other.start), one.stop)
    return slice(start, max(start, min(one.stop, other.stop)))
