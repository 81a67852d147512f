"""One run's exchange: what the Byzantine nodes send, and what the rule makes of it."""

import warnings
from collections.abc import Callable, Iterator

import torch
from scipy import sparse
from torch import Tensor

from clippedgossip.attacks import Silence, View
from clippedgossip.metrics import RunMetrics
from clippedgossip.mixing.inbox import Context, Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.randomness import Word
from clippedgossip.rules import ClippedGossip, CSPlus, LinearRule
from clippedgossip.simulate.setup import Setup
from clippedgossip.tasks.workers import Workers, WorkerShares

PASS_BYTES = 64 << 20
"""Models and activations of one pass on a CPU; larger passes gain nothing."""
GPU_SHARE = 32
"""On a GPU a pass may take this part of its memory: large passes keep it busy."""


class Mixer:
    """Mixes the models of one run: regular nodes by the rule, Byzantine nodes that train by plain gossip."""

    def __init__(self, setup: Setup, workers: Workers, part: slice) -> None:
        device = workers.task.device
        self.network, self.seed, self.workers, self.part = setup.network, setup.seed, workers, part
        self.attack = setup.attack or Silence()
        self.layout = Layout.of(setup.network, device)
        self.regular = len(setup.network.regular)
        self.rule = setup.rule
        if self.rule.needs_losses:
            self.message_losses = self.make_message_losses()
            self.rule = self.rule.with_losses(self.message_losses)
        for count in set(self.layout.counts):
            self.rule.check(count)
        if caveat := self.rule.caveat(min(self.layout.counts, default=0)):
            warnings.warn(caveat, RuntimeWarning, stacklevel=2)
        self.metrics = RunMetrics(
            setup.network, self.layout, counts_clips=isinstance(self.rule, ClippedGossip | CSPlus)
        )
        self.capturable = self.attack.capturable and self.rule.capturable
        self._byzantine_rows = (
            byzantine_rows(setup.network, torch.zeros((), device=device)).to_dense()
            if part.stop - part.start > self.regular
            else None
        )

    def mix(self, half: Tensor, out: Tensor, round: Word, rounds: int) -> None:
        """x ← rule(x½) for the regular rows, and gossip for the Byzantine nodes that train."""
        inbox = self.inbox(half, round, rounds)
        if self.metrics.counts_clips:
            assert isinstance(self.rule, LinearRule)
            inbox = inbox.measurable()
            plan = self.rule.plan(inbox)
            self.metrics.count_clips(plan)
            inbox.mixed(plan, out[: self.regular])
        else:
            out[: self.regular] = self.rule.mix(inbox)
        if self._byzantine_rows is not None:
            torch.mm(self._byzantine_rows, half, out=out[self.regular :])

    def inbox(self, half: Tensor, round: Word, rounds: int) -> Inbox:
        """The messages that every regular node receives: half-steps, and what the attack sends."""
        models = half[: self.regular]
        context = self.context(round, rounds)
        view = View(
            network=self.network,
            layout=self.layout,
            models=models,
            rule=self.rule,
            context=context,
            byzantine_models=half[self.regular :] if len(half) > self.regular else None,
        )
        if not len(view.receivers):
            return Inbox(layout=self.layout, models=models, context=context)
        return self.attack.inbox(view)

    def context(self, round: Word, rounds: int) -> Context:
        return Context(round=round, rounds=rounds, seed=self.seed)

    def make_message_losses(self) -> Callable[[Neighborhood], Tensor]:
        """What gives (b, k+1) losses of own and received models on each node's own fresh sample, for Mozi."""
        return MessageLosses(self.workers, slice(self.part.start, self.part.start + self.regular))


class MessageLosses:
    """Losses of one run's messages. Shapes depend on the network only, so a round can be captured."""

    def __init__(self, workers: Workers, rows: slice) -> None:
        self.workers, self.rows = workers, rows
        device = workers.task.device
        total = (
            torch.cuda.get_device_properties(device).total_memory // GPU_SHARE if device.type == "cuda" else 0
        )
        each = 4 * workers.task.layout.size + workers.task.batch * workers.activation_bytes
        self.size = max(1, max(total, PASS_BYTES) // each)  # models in a pass
        self._losses_of = workers.compiled("losses_of")
        self._shares: dict[int, WorkerShares] = {}

    def __call__(self, near: Neighborhood) -> Tensor:
        """(b, k+1) of own and received models on each node's sample; 0 where there is no neighbour."""
        x, y = self.workers.draw(self._shares_of(near.group), near.context.round, "mozi")
        closed = near.weights.shape[1] + 1
        found = torch.zeros(len(x) * closed, dtype=torch.float64, device=x.device)
        for models, places in self._passes(near, closed):
            node = places // closed
            found[places] = self._losses_of(models, x[node], y[node]).double()
        return found.view(-1, closed)

    def _passes(self, near: Neighborhood, closed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Models, and the place of each in the flattened (b, k+1)."""
        if type(near) is not Neighborhood:  # averages of messages, each made for one node
            yield from self._averages(near, closed)
            return
        inbox, group = near.inbox.explicit(), near.group
        held = torch.cat(inbox.blocks) if len(inbox.blocks) > 1 else inbox.models
        real = inbox.layout.remember(
            f"message losses {group.start}", lambda: near.closed_present.flatten().nonzero()[:, 0]
        )
        slots = near.slots.flatten()
        passes = -(-len(real) // self.size)
        for places in torch.split(real, -(-len(real) // max(1, passes))):  # of one size: compiled once
            yield held.index_select(0, slots[places]), places

    def _averages(self, near: Neighborhood, closed: int) -> Iterator[tuple[Tensor, Tensor]]:
        nodes = torch.arange(len(near.weights), device=near.weights.device)
        together = max(1, self.size // max(1, len(nodes)))
        for start in range(0, closed, together):
            chosen = range(start, min(start + together, closed))
            models = torch.cat([near.message(place) for place in chosen])
            yield models, torch.cat([nodes * closed + place for place in chosen])

    def _shares_of(self, group: slice) -> WorkerShares:
        """The shares of this group's nodes: their samples do not depend on the other workers."""
        if group.start not in self._shares:
            rows = slice(self.rows.start + group.start, self.rows.start + group.stop)
            self._shares[group.start] = self.workers.shares.some(rows)
        return self._shares[group.start]


def byzantine_rows(network: Network, like: Tensor) -> Tensor:
    """(b, r+b) the Byzantine nodes' rows of W, regular columns first: they mix by plain gossip."""
    order = [*network.regular.tolist(), *network.byzantine.tolist()]
    rows = sparse.coo_array(network.weights[network.byzantine][:, order])
    index = torch.tensor([rows.row.tolist(), rows.col.tolist()], dtype=torch.int64)
    entries = torch.tensor(rows.data, dtype=like.dtype)
    return torch.sparse_coo_tensor(index, entries, rows.shape, check_invariants=True).to(like.device)
