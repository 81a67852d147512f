"""What is measured of a run: groups of nodes, consensus distance, accuracies, clipped messages."""

from typing import Any

import torch
from torch import Tensor

from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.records import Round, scored
from clippedgossip.tasks.objective import Metric

LISTED = 10_000
"""Edges of the largest network whose clipped edges are listed one by one."""
TABLED = 1_000_000
"""Pairs of nodes of the largest network with a schedule whose clipped messages are counted pair by pair."""


def squared_distances(models: Tensor, centre: Tensor | None = None) -> Tensor:
    """(n,) ‖x_i − centre‖², float64. The mean of those to the models' own mean, the default, is Ξ."""
    return (models - (models.mean(0) if centre is None else centre)).double().square().sum(1)


def group_rows(network: Network, device: torch.device) -> dict[str, Tensor]:
    """The rows of all regular nodes (`all`) and of the regular nodes of each group of the network."""
    row = {int(node): place for place, node in enumerate(network.regular)}
    named = {
        name: torch.tensor([row[int(node)] for node in nodes if int(node) in row], device=device)
        for name, nodes in network.groups.items()
    }
    everyone = torch.arange(len(network.regular), device=device)
    return {"all": everyone} | {name: rows for name, rows in named.items() if len(rows)}


class RunMetrics:
    """The metrics of one run. `clips` counts how often the message of each edge was clipped, (n, k).

    Where the network has a schedule, a slot has other senders in other rounds. Then a column counts one
    sender (on a large network all senders), and the last column counts all messages.
    """

    def __init__(self, network: Network, layout: Layout, *, counts_clips: bool) -> None:
        self.network, self.layout, self.counts_clips = network, layout, counts_clips
        self.regular = len(network.regular)
        self.groups = group_rows(network, layout.weights.device)
        self.clips = torch.zeros_like(layout.weights)
        if network.schedule is not None:
            tabled = self.regular * network.n <= TABLED
            self.clips = self.clips.new_zeros(self.regular, 1 + (network.n if tabled else 1))
        self._edges = int((layout.weights > 0).sum())

    def count_clips(self, plan: Tensor, layout: Layout) -> None:
        """Count the messages whose coefficient in (n, k+1), own model first, is below their weight."""
        clipped = plan[:, 1:] < layout.weights * (1 - 1e-9)
        if self.network.schedule is None:
            self.clips += clipped
            return
        column = layout.senders.clamp(0, self.clips.shape[1] - 2)
        self.clips.scatter_add_(1, column, clipped.to(self.clips.dtype))
        self.clips[:, -1] += layout.present.sum(1)

    def _clipped(self, rounds: int) -> float | None:
        """The share of all messages that were clipped."""
        if self.network.schedule is None:
            clipped, messages = float(self.clips.sum()), float(self._edges * rounds)
        else:
            messages = float(self.clips[:, -1].sum())
            clipped = float(self.clips[:, :-1].sum())
        return clipped / messages if self.counts_clips and messages else None

    def averages(self, models: Tensor) -> Tensor:
        """(groups, d) the averaged model of each group."""
        return torch.stack([models[rows].mean(0) for rows in self.groups.values()])

    def record(
        self,
        round: int,
        metric: Metric,
        *,
        scores: Tensor,
        node_scores: Tensor | None,
        losses: Tensor,
        distances: Tensor,
        lr: float,
        last: bool,
    ) -> Round:
        """The record of a round: the metric of the groups' averaged models and, if given, of single nodes;
        losses and squared distances of the regular nodes. The last record also lists the clipped edges."""
        worst = torch.amin if metric.higher_is_better else torch.amax
        return Round(
            round=round,
            **scored(
                metric.name,
                dict(zip(self.groups, scores.tolist(), strict=True)),
                mean=None if node_scores is None else float(node_scores.mean()),
                worst=None if node_scores is None else float(worst(node_scores)),
                higher_is_better=metric.higher_is_better,
            ),
            loss=float(losses.mean()),
            consensus_distance=float(distances.mean()),
            clipped=self._clipped(round),
            clipped_edges=self.clipped_edges(round) if last else None,
            lr=lr,
        )

    def clipped_edges(self, rounds: int) -> list[list[Any]] | None:
        """[sender, receiver, share of the rounds] of the edges that were clipped, the most clipped first."""
        if not self.counts_clips or self.network.indices.size > LISTED:
            return None
        clips, senders = self.clips, self.layout.senders
        if self.network.schedule is not None:
            if clips.shape[1] <= self.network.n:
                return None
            clips = clips[:, :-1]
            senders = torch.arange(self.network.n, device=clips.device).expand_as(clips)
        nodes, by_node, counted = (x.tolist() for x in (self.layout.nodes, senders, clips))
        names = [label if isinstance(label, int | str) else str(label) for label in self.network.labels]
        found = [
            [names[sender], names[node], times / rounds]
            for node, row, counts in zip(nodes, by_node, counted, strict=True)
            for sender, times in zip(row, counts, strict=True)
            if times
        ]
        return sorted(found, key=lambda edge: -edge[2])
