"""Messages tried on their receivers' own fresh samples, for rules that compare losses (Mozi)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.simulate.footprint import activation_bytes
from clippedgossip.tasks.workers import Workers, WorkerShares

PASS_BYTES = 64 << 20
"""Of models and activations that one pass may hold on a CPU, where larger ones gain nothing."""
GPU_SHARE = 32
"""On a GPU, this part of its memory: large passes keep it busy."""


class Trials:
    """The losses of one run's messages. Shapes depend on the network alone: a round can be captured."""

    def __init__(self, workers: Workers, rows: slice) -> None:
        self.workers, self.rows = workers, rows
        device = workers.task.device
        total = (
            torch.cuda.get_device_properties(device).total_memory // GPU_SHARE if device.type == "cuda" else 0
        )
        each = 4 * workers.task.layout.size + workers.task.batch * activation_bytes(workers)
        self.size = max(1, max(total, PASS_BYTES) // each)  # models to a pass
        self._losses_of = workers.compiled("losses_of")
        self._samples: dict[int, WorkerShares] = {}

    def losses(self, near: Neighborhood) -> Tensor:
        """(b, k+1) of own and received models on each node's sample; 0 where there is no neighbour."""
        x, y = self.workers.draw(self._drawing(near.group), near.context.round, purpose="mozi")
        closed = near.weights.shape[1] + 1
        found = torch.zeros(len(x) * closed, dtype=torch.float64, device=x.device)
        for models, places in self._passes(near, closed):
            node = places // closed
            found[places] = self._losses_of(models, x[node], y[node]).double()
        return found.view(-1, closed)

    def _passes(self, near: Neighborhood, closed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Models, and where each stands in the flattened (b, k+1)."""
        if type(near) is not Neighborhood:  # averages of messages, each made for one node
            yield from self._averages(near, closed)
            return
        inbox, group = near.inbox.explicit(), near.group
        held = torch.cat(inbox.blocks) if len(inbox.blocks) > 1 else inbox.models
        real = inbox.layout.remember(
            f"trials {group.start}", lambda: near.closed_present.flatten().nonzero()[:, 0]
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

    def _drawing(self, group: slice) -> WorkerShares:
        """The workers whose samples are drawn: those of this group alone, whoever else is in the workers."""
        if group.start not in self._samples:
            rows = slice(self.rows.start + group.start, self.rows.start + group.stop)
            self._samples[group.start] = self.workers.shares.some(rows)
        return self._samples[group.start]
