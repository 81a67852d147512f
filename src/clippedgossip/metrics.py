"""What is measured of a run: groups of nodes, consensus distance, accuracies, clipped messages."""

from typing import Any

import torch
from torch import Tensor

from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.records import Round

LISTED = 10_000
"""Edges of the largest network whose clipped edges are listed one by one."""


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
    """The metrics of one run. `clips` counts how often the message of each edge was clipped, (n, k)."""

    def __init__(self, network: Network, layout: Layout, *, counts_clips: bool) -> None:
        self.network, self.layout, self.counts_clips = network, layout, counts_clips
        self.regular = len(network.regular)
        self.groups = group_rows(network, layout.weights.device)
        self.clips = torch.zeros_like(layout.weights)
        self._edges = int((layout.weights > 0).sum())

    def count_clips(self, plan: Tensor) -> None:
        """Count the messages whose coefficient in (n, k+1), own model first, is below their weight."""
        self.clips += plan[:, 1:] < self.layout.weights * (1 - 1e-9)

    def averages(self, models: Tensor) -> Tensor:
        """(groups, d) the averaged model of each group."""
        return torch.stack([models[rows].mean(0) for rows in self.groups.values()])

    def record(
        self,
        round: int,
        *,
        accuracies: Tensor,
        node_accuracies: Tensor | None,
        losses: Tensor,
        distances: Tensor,
        lr: float,
        last: bool,
    ) -> Round:
        """The record of a round: accuracies of the groups' averaged models and, if given, of single nodes;
        losses and squared distances of the regular nodes. The last record also lists the clipped edges."""
        clipped = (
            float(self.clips.sum()) / (self._edges * round) if self.counts_clips and self._edges else None
        )
        return Round(
            round=round,
            accuracy=dict(zip(self.groups, accuracies.tolist(), strict=True)),
            mean_accuracy=None if node_accuracies is None else float(node_accuracies.mean()),
            worst_accuracy=None if node_accuracies is None else float(node_accuracies.min()),
            loss=float(losses.mean()),
            consensus_distance=float(distances.mean()),
            clipped=clipped,
            clipped_edges=self.clipped_edges(round) if last else None,
            lr=lr,
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
