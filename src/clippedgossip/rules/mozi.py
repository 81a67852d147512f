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
    Cost: O(kd) and k + 1 forward passes a round.
    Origin: Guo et al., 2020, arXiv:2002.08569 (Mozi); 2021 (UBAR).
    """

    most_counts: ClassVar[int] = 1
    loss: Callable[[Tensor], Tensor] | None = None
    keep: float = 0.99
    self_weight: float = 0.5
    loss_of: Loss | None = None  # for an engine that evaluates its nodes' models together: (b, k+1)

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
        kept = (near.present.sum(1) * self.keep + 1e-9).floor().clamp(min=1)
        close = near.present & nearest(torch.where(near.present, near.squared, torch.inf), kept)
        losses = self.losses(near).nan_to_num(nan=torch.inf)
        better = close & (losses[:, 1:] <= losses[:, :1])
        best = nearest(torch.where(close, losses[:, 1:], torch.inf), torch.ones_like(kept)) & near.present
        chosen = torch.where(better.any(1, keepdim=True), better, best)
        share = uniform_over(chosen).nan_to_num(nan=0.0) * (1 - self.self_weight)
        return torch.cat([1 - share.sum(1, keepdim=True), share], 1)

    def bound(self, seen: Seen) -> Bound:
        """No model that is kept is further away than the furthest regular neighbour, if at least as many are
        dropped as are Byzantine."""
        neighbors = seen.count - 1
        dropped = neighbors - max(1, int(neighbors * self.keep + 1e-9))
        if seen.faulty > dropped:
            return too_many(seen, dropped)
        return around_own(seen, (1 - self.self_weight) * seen.spread)
