"""One run's exchange: what the attackers send, what the rule makes of it, and how the result is doing."""

from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from clippedgossip.attacks import Silence, View
from clippedgossip.mixing.inbox import Context, Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.randomness import Word
from clippedgossip.records import Round
from clippedgossip.rules import ClippedGossip, CSPlus, LinearRule, Rule
from clippedgossip.rules.losses import needs_losses, with_losses
from clippedgossip.simulate.consensus import byzantine_rows
from clippedgossip.simulate.setup import Setup, Training
from clippedgossip.simulate.trials import Trials
from clippedgossip.tasks.workers import Workers

LISTED = 10_000
"""Edges of the largest network whose records name them one by one."""


class Mixer:
    """The regular nodes of one run mix; its Byzantine nodes that train follow by plain gossip."""

    def __init__(self, setup: Setup, workers: Workers, part: slice) -> None:
        device = workers.task.device
        self.network, self.seed, self.workers = setup.network, setup.seed, workers
        self.attack = setup.attack or Silence()
        self.layout = Layout.of(setup.network, device)
        self.regular = len(setup.network.regular)
        self.part = part
        self.rule = self._bind(setup.rule)
        for count in set(self.layout.counts):
            self.rule.check(count)
        self.clips = torch.zeros_like(self.layout.weights)  # how often each edge was clipped
        self.counts_clips = isinstance(self.rule, ClippedGossip | CSPlus)
        self.groups = self._groups(device)
        self.capturable = self.attack.capturable and self.rule.capturable
        self._shadow_rows = (
            byzantine_rows(setup.network, torch.zeros((), device=device)).to_dense()
            if part.stop - part.start > self.regular
            else None
        )

    def mix(self, half: Tensor, out: Tensor, round: Word, rounds: int) -> None:
        """x ← rule(x½) for the regular rows, and gossip for the Byzantine ones that train."""
        inbox = self.inbox(half, round, rounds)
        if self.counts_clips:
            assert isinstance(self.rule, LinearRule)
            inbox = inbox if inbox.dense else inbox.explicit()
            plan = self.rule.plan(inbox)
            self.clips += plan[:, 1:] < self.layout.weights * (1 - 1e-9)
            inbox.mixed(plan, out[: self.regular])
        else:
            out[: self.regular] = self.rule.mix(inbox)
        if self._shadow_rows is not None:
            torch.mm(self._shadow_rows, half, out=out[self.regular :])

    def inbox(self, half: Tensor, round: Word, rounds: int) -> Inbox:
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
        if not len(view.victims):
            return Inbox(layout=self.layout, models=models, context=context)
        return self.attack.inbox(view)

    def context(self, round: Word, rounds: int) -> Context:
        return Context(round=round, rounds=rounds, seed=self.seed)

    def evaluate(self, models: Tensor, losses: Tensor, round: int, training: Training) -> Round:
        """Accuracy of the groups' averaged models and of single nodes, consensus distance, clipping."""
        models = models[: self.regular]
        accuracy = self.workers.accuracies(self.averages(models))
        single = self.workers.accuracies(models) if training.evaluates_nodes(round) else None
        return self.record(round, training, accuracy, single, losses[: self.regular], self.apart(models))

    def averages(self, models: Tensor) -> Tensor:
        """(groups, d) the averaged model of each group."""
        return torch.stack([models[rows].mean(0) for rows in self.groups.values()])

    def apart(self, models: Tensor) -> Tensor:
        """(n,) squared distances to the mean."""
        return (models - models.mean(0)).double().square().sum(1)

    def record(
        self,
        round: int,
        training: Training,
        accuracy: Tensor,
        single: Tensor | None,
        losses: Tensor,
        apart: Tensor,
    ) -> Round:
        edges = int((self.layout.weights > 0).sum())
        return Round(
            round=round,
            accuracy=dict(zip(self.groups, accuracy.tolist(), strict=True)),
            mean_accuracy=None if single is None else float(single.mean()),
            worst_accuracy=None if single is None else float(single.min()),
            loss=float(losses.mean()),
            consensus_distance=float(apart.mean()),
            clipped=float(self.clips.sum()) / (edges * round) if self.counts_clips and edges else None,
            clipped_edges=self.clipped_edges(round) if round == training.rounds else None,
            lr=training.lr.at(round - 1),
        )

    def clipped_edges(self, rounds: int) -> list[list[Any]] | None:
        """[sender, receiver, share of the rounds] of the edges that were clipped, the most clipped first."""
        if not self.counts_clips or self.network.indices.size > LISTED:
            return None
        nodes, senders, clips = (x.tolist() for x in (self.layout.nodes, self.layout.senders, self.clips))
        names = [label if isinstance(label, int | str) else str(label) for label in self.network.labels]
        found = [
            [names[sender], names[node], times / rounds]
            for node, row, counts in zip(nodes, senders, clips, strict=True)
            for sender, times in zip(row, counts, strict=True)
            if times
        ]
        return sorted(found, key=lambda edge: -edge[2])

    def _groups(self, device: torch.device) -> dict[str, Tensor]:
        row = {int(node): place for place, node in enumerate(self.network.regular)}
        named = {
            name: torch.tensor([row[int(node)] for node in nodes if int(node) in row], device=device)
            for name, nodes in self.network.groups.items()
        }
        everyone = torch.arange(self.regular, device=device)
        return {"all": everyone} | {name: rows for name, rows in named.items() if len(rows)}

    def _bind(self, rule: Rule) -> Rule:
        """A rule that compares losses is given each node's own fresh sample."""
        return with_losses(rule, self._losses_near) if needs_losses(rule) else rule

    @cached_property
    def _trials(self) -> Trials:
        return Trials(self.workers, slice(self.part.start, self.part.start + self.regular))

    def _losses_near(self, near: Neighborhood) -> Tensor:
        """(b, k+1) loss of own and received models on each node's sample."""
        return self._trials.losses(near)
