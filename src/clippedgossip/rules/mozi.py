from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Neighborhood
from clippedgossip.rules.base import LinearRule, Loss, fraction
from clippedgossip.rules.bound import Bound, Seen, around_own, too_many
from clippedgossip.rules.sorting import nearest, uniform_over


@dataclass(frozen=True)
class Mozi(LinearRule):
    """Mozi, later UBAR: keep the ⌊ρ|N_i|⌋ nearest neighbours, of these those whose loss on the
    node's own fresh sample is at most its own (if none, the single best), x_i ← a x_i + (1−a)·their mean.

    Needs: ρ, the fraction of regular neighbours, and `loss`: models (*batch, d) -> (*batch) on the own
    sample.
    Fails: if the data of the nodes differ much: models of other data have a larger loss on the own sample and
    are dropped, so that a node learns from its like alone.
    Cost: O(kd) and ⌊ρk⌋ + 1 forward passes a round: no loss of a dropped message is computed.
    Origin: Guo et al., 2020, arXiv:2002.08569 (Mozi); 2021 (UBAR).
    """

    most_counts: ClassVar[int] = 1
    loss: Callable[[Tensor], Tensor] | None = None
    keep: float = 0.99
    self_weight: float = 0.5
    loss_of: Loss | None = None  # for an engine that evaluates its nodes' models together

    def __post_init__(self) -> None:
        fraction("keep", self.keep, below=1 + 1e-12)
        fraction("self_weight", self.self_weight, below=1 + 1e-12)

    @property
    def capturable(self) -> bool:
        return super().capturable and self.loss is None  # a function of the user's own

    @property
    def needs_losses(self) -> bool:
        return self.loss is None and self.loss_of is None

    def with_losses(self, loss_of: Loss) -> "Mozi":
        return replace(self, loss_of=loss_of)

    def kept(self, neighbors: int) -> int:
        """How many of so many neighbours are kept."""
        return min(neighbors, max(1, int(neighbors * self.keep + 1e-9)))

    def losses(self, near: Neighborhood) -> Tensor:
        """(b, k+1) the losses of own and received models."""
        if self.loss_of is not None:
            return self.loss_of(near)
        if self.loss is not None:
            return self.loss(near.messages())
        raise RuleError(
            "Mozi compares losses and has no loss function; pass loss=, a function from models to losses"
        )

    def coefficients(self, near: Neighborhood) -> Tensor:
        count = near.present.sum(1, keepdim=True).double()
        kept = (count * self.keep + 1e-9).floor().clamp(min=1).minimum(count)
        close = near.present & nearest(torch.where(near.present, near.squared, torch.inf), kept)
        losses = self._losses_of_close(near, close, kept).nan_to_num(nan=torch.inf)
        better = close & (losses[:, 1:] <= losses[:, :1])
        best = nearest(torch.where(close, losses[:, 1:], torch.inf), torch.ones_like(kept)) & close
        chosen = torch.where(better.any(1, keepdim=True), better, best)
        share = uniform_over(chosen).nan_to_num(nan=0.0) * (1 - self.self_weight)
        return torch.cat([1 - share.sum(1, keepdim=True), share], 1)

    def _losses_of_close(self, near: Neighborhood, close: Tensor, kept: Tensor) -> Tensor:
        """(b, k+1) losses, 0 where none is asked for. As many are asked for as are kept, also where NaN
        leaves fewer close: then the number depends on the network only, and a round can be captured."""
        width = near.weights.shape[1]
        order = (close.int() + near.present.int()).argsort(dim=1, descending=True, stable=True)
        order = order[:, : self.kept(width)]
        asked = torch.arange(order.shape[1], device=order.device) < kept
        weights = torch.where(asked, near.weights.gather(1, order), 0.0)
        places = torch.nn.functional.pad(order + 1, (1, 0))  # own first
        found = self.losses(near.only(places, weights))
        return found.new_zeros(len(found), width + 1).scatter(1, places, found)

    def bound(self, seen: Seen) -> Bound:
        """No model that is kept is further away than the furthest regular neighbour, if at least as many are
        dropped as are Byzantine."""
        neighbors = seen.count - 1
        dropped = neighbors - self.kept(neighbors)
        if seen.faulty > dropped:
            return too_many(seen, dropped)
        return around_own(seen, (1 - self.self_weight) * seen.spread)
