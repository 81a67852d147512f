"""Rules that first replace the messages by averages of them."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.mixing import kernels
from clippedgossip.mixing.inbox import Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.rules.base import CoordinateRule, LinearRule, Loss, Rule


@dataclass(frozen=True)
class Premix(LinearRule):
    """Applies another rule to averages of the messages. It is linear if that rule is."""

    rule: Rule
    most_counts: ClassVar[int] = 1

    @property
    def innermost(self) -> Rule:
        """The innermost rule, which sees the averages."""
        return self.rule.innermost if isinstance(self.rule, Premix) else self.rule

    @property
    def needs_losses(self) -> bool:
        return self.rule.needs_losses

    def with_losses(self, loss_of: Loss) -> "Premix":
        return replace(self, rule=self.rule.with_losses(loss_of))

    def at(self, node: int) -> Rule:
        return replace(self, rule=self.rule.at(node))

    @abstractmethod
    def premix(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        """(b, k'+1, k+1) rows that sum to 1, own first, and the weights (b, k') of the averages."""

    @property
    def capturable(self) -> bool:
        return super().capturable and self.rule.capturable

    def check(self, neighbors: int) -> None:
        self.rule.check(neighbors)

    def caveat(self, neighbors: int) -> str | None:
        return self.rule.caveat(neighbors)

    def coefficients(self, near: Neighborhood) -> Tensor:
        assert isinstance(self.rule, LinearRule)
        premix, weights = self.premix(near)
        inner = self.rule.coefficients(near.mapped(premix, weights))
        return (inner[:, None] @ premix)[:, 0]

    def mix(self, inbox: Inbox) -> Tensor:
        linear = isinstance(self.innermost, LinearRule)
        if linear and inbox.models.dtype != torch.float64:
            return super().mix(inbox)
        inbox = inbox.explicit().measurable()
        counts = set(inbox.layout.counts)
        for count in counts - {0}:
            self.check(count)
        mix = self._mix_averages if linear else self._mix_by_coordinate
        found = torch.cat([mix(near) for near in inbox.neighborhoods()])
        if 0 not in counts:
            return found
        return torch.where(inbox.layout.present.any(1, keepdim=True), found, inbox.models)

    def _mix_averages(self, near: Neighborhood) -> Tensor:
        """The averages themselves, for the rule to measure. In float64 the distance to a sum that nearly
        cancels cannot be told from its terms: nothing wider is at hand to take it in."""
        premix, weights = self.premix(near)
        mixed = near.averages(premix)
        seen = near.mapped(premix, weights)
        layout = Layout.explicit(weights, nodes=near.nodes, senders=seen.senders)
        averages = Inbox(
            layout=layout, models=mixed[:, 0], extra=mixed[:, 1:].flatten(0, 1), context=near.context
        )
        return self.rule.mix(averages)

    def _mix_by_coordinate(self, near: Neighborhood) -> Tensor:
        premix, weights = self._through(near)
        layout, rule = near.inbox.layout.averages(f"{self} {near.group}", weights), self.innermost
        if isinstance(rule, CoordinateRule):
            rule = rule.among(near.group, len(near.inbox.models))
        output = torch.empty_like(near.inbox.models[near.group])
        # `near.slots` says which messages are finite. It is a sum over all ranks, so every rank computes it
        # here, also a rank that holds no coordinates.
        for part in kernels.message_chunks(len(near.slots) * premix.shape[1], output):
            here = Neighborhood(near.inbox.part(part), near.group)
            mixed = here.averages(premix)
            averages = Inbox(layout=layout, models=mixed[:, 0], extra=mixed[:, 1:].flatten(0, 1))
            output[:, part] = rule.mix(averages)
        return output

    def _through(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        """What the innermost rule sees: `premix` of this one, and of those within."""
        premix, weights = self.premix(near)
        if not isinstance(self.rule, Premix):
            return premix, weights
        inner, weights = self.rule._through(near.mapped(premix, weights))
        return inner @ premix, weights
