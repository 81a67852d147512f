"""Rules that first replace the messages by averages of them."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip import kernels
from clippedgossip.inbox import EDGE_BYTES, Inbox, Neighborhood
from clippedgossip.layout import Layout
from clippedgossip.rules.base import LinearRule, Rule


@dataclass(frozen=True)
class Premix(LinearRule):
    """Hands averages of the messages to another rule. Linear if that rule is."""

    rule: Rule

    @abstractmethod
    def premix(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        """(b, k'+1, k+1) rows that sum to 1, own first, and the weights (b, k') of the averages."""

    @property
    def steady(self) -> bool:
        return self.rule.steady and isinstance(self.rule, LinearRule)

    def check(self, neighbors: int) -> None:
        self.rule.check(neighbors)

    def coefficients(self, near: Neighborhood) -> Tensor:
        assert isinstance(self.rule, LinearRule)
        premix, weights = self.premix(near)
        inner = self.rule.coefficients(near.mapped(premix, weights))
        return (inner[:, None] @ premix)[:, 0]

    def mix(self, inbox: Inbox) -> Tensor:
        if isinstance(self.rule, LinearRule):
            return super().mix(inbox)
        inbox = inbox.explicit()
        for count in set(inbox.layout.counts):
            self.check(count)
        return torch.cat([self._mix_by_coordinate(near) for near in inbox.neighborhoods()])

    def _mix_by_coordinate(self, near: Neighborhood) -> Tensor:
        premix, weights = self.premix(near)
        layout = Layout.explicit(weights)
        output = torch.empty_like(near.inbox.models[near.group])
        for part in kernels.column_chunks(near.slots.numel(), output.shape[1], 4, EDGE_BYTES):
            mixed = premix.to(output.dtype) @ near.inbox.rows(near.slots, part)
            averages = Inbox(layout=layout, models=mixed[:, 0], extra=mixed[:, 1:].flatten(0, 1))
            output[:, part] = self.rule.mix(averages)
        return output
