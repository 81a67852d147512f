"""What is measured of a run: groups of nodes, consensus distance, accuracies, clipped messages."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clippedgossip.mixing.kernels import wide_chunks
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.records import Round, scored
from clippedgossip.rules.base import UNCLIPPED
from clippedgossip.tasks.objective import Metric

LISTED = 10_000  # edges of the largest network whose clipped edges are listed one by one
COMPONENTS = 2000  # regular nodes of the largest network whose components a run can record
TABLED = 1_000_000
"""Pairs of nodes of the largest network with a schedule whose clipped messages are counted pair by pair."""


def pair_distances(models: Tensor) -> Tensor:
    """(n, n+1) ‖x_i − x_j‖², float64, and ‖x_i‖² in the last column."""
    total = models.new_zeros(len(models), len(models) + 1, dtype=torch.float64)
    for _, wide in wide_chunks(models):
        for place, centre in enumerate(wide):
            total[:, place] += (wide - centre).square_().sum(1)
        total[:, -1] += wide.square_().sum(1)
    return total


@dataclass(frozen=True, kw_only=True)
class SeenComponents:
    """The components into which models fall, as rows, the largest first. Ξ is within + between."""

    parts: list[list[int]]
    gap: float | None  # the smallest distance between models of two components; None if there is one
    within: float  # mean squared distance of the models to the mean of their component
    between: float


def components(squared: Tensor, *, near: float | None = None, size: Tensor | None = None) -> SeenComponents:
    """Cluster models by their squared distances, (n, n), with single linkage: a model is in a component if it
    is near to any model of it.

    `near`: distances up to this one are near. Without it, the largest gap between two successive distances of
    the linkage divides near from far, if it at least triples the distance and exceeds 1 % of the models'
    root-mean-square length (`size`: their squared lengths). If not, all models are one component.
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    n = len(squared)
    between = squared.cpu().numpy()
    parts, gap = [list(range(n))], None
    if n > 1:
        links = linkage(squareform(np.sqrt((between + between.T) / 2), checks=False), "single")
        heights = links[:, 2]
        if near is None:
            floor = 0.0 if size is None else 0.01 * float(size.mean()) ** 0.5
            k = int(np.argmax(np.diff(heights))) if n > 2 else 0
            apart = n > 2 and heights[k + 1] >= 3 * heights[k] and heights[k + 1] > floor
            near = float(heights[k]) if apart else float(heights[-1])
        labels = fcluster(links, near, "distance")
        parts = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
        parts.sort(key=lambda part: (-len(part), part[0]))
        gap = float(heights[len(heights) - len(parts) + 1]) if len(parts) > 1 else None
    within = sum(float(between[np.ix_(part, part)].sum()) / (2 * len(part)) for part in parts) / n
    whole = float(between.sum()) / (2 * n * n)
    return SeenComponents(parts=parts, gap=gap, within=within, between=max(0.0, whole - within))


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
        self._names = [label if isinstance(label, int | str) else str(label) for label in network.labels]

    def count_clips(self, plan: Tensor, layout: Layout) -> None:
        """Count the messages whose coefficient in (n, k+1), own model first, is below their weight."""
        clipped = plan[:, 1:] < layout.weights * UNCLIPPED
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
        found = models.new_empty(len(self.groups), models.shape[1])
        for part, wide in wide_chunks(models):
            for place, rows in enumerate(self.groups.values()):
                found[place, part] = wide[rows].mean(0)
        return found

    def record(
        self,
        round: int,
        metric: Metric,
        *,
        scores: Tensor,
        node_scores: Tensor | None,
        losses: Tensor,
        distances: Tensor,
        pairs: Tensor | None = None,
        lr: float,
        last: bool,
    ) -> Round:
        """The record of a round: the metric of the groups' averaged models and, if given, of single nodes;
        losses and squared distances of the regular nodes. The last record also lists the clipped edges.
        `pairs`: those of `pair_distances`, where components are asked for."""
        worst = torch.amin if metric.higher_is_better else torch.amax
        seen = None if pairs is None else components(pairs[:, :-1], near=None, size=pairs[:, -1])
        names = [self._names[node] for node in self.network.regular]
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
            components=None if seen is None else [[names[row] for row in part] for part in seen.parts],
            component_gap=None if seen is None else seen.gap,
            within_components=None if seen is None else seen.within,
            between_components=None if seen is None else seen.between,
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
        found = [
            [self._names[sender], self._names[node], times / rounds]
            for node, row, counts in zip(nodes, by_node, counted, strict=True)
            for sender, times in zip(row, counts, strict=True)
            if times
        ]
        return sorted(found, key=lambda edge: -edge[2])
