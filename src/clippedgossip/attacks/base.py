"""What an attack is: it sees everything and sends one message along every edge to a regular node."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.errors import AttackError
from clippedgossip.inbox import Context, Inbox
from clippedgossip.layout import Layout
from clippedgossip.network import Network
from clippedgossip.rules.base import Rule


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """All an attacker can see. Edges are the Byzantine ones, in the order of `layout.attackers`."""

    network: Network
    layout: Layout
    models: Tensor  # (r, d) the regular nodes' models, before mixing
    rule: Rule | None = None
    context: Context = Context()
    byzantine_models: Tensor | None = None  # (b, d) what the Byzantine nodes' own honest work gave

    @property
    def attackers(self) -> Tensor:
        """(e,) node of each edge's attacker."""
        assert self.layout.attackers is not None
        return self.layout.attackers

    @property
    def victims(self) -> Tensor:
        """(e,) row of each edge's victim among the regular nodes."""
        assert self.layout.victims is not None
        return self.layout.victims

    @cached_property
    def regular_weights(self) -> Tensor:
        """(e, r) W_ik of the victim's regular neighbours k; 0 elsewhere."""
        layout, r = self.layout, len(self.models)
        slots, weights = layout.slots[self.victims], layout.weights[self.victims]
        honest = (slots < r) & (weights > 0)
        table = weights.new_zeros(len(slots), r)
        return table.scatter_add_(1, torch.where(honest, slots, 0), torch.where(honest, weights, 0.0))

    @cached_property
    def neighbors(self) -> Tensor:
        """(e, r) 1 for the victim's regular neighbours."""
        return (self.regular_weights > 0).to(torch.float64)

    @cached_property
    def themselves(self) -> Tensor:
        """(e, r) 1 for the victim."""
        return torch.nn.functional.one_hot(self.victims, len(self.models)).to(torch.float64)

    @cached_property
    def byzantine_weight(self) -> Tensor:
        """(e, 1) δ_i of the victim."""
        assert self.layout.byzantine is not None
        delta = torch.where(self.layout.byzantine, self.layout.weights, 0.0).sum(1)
        return delta[self.victims][:, None]

    @cached_property
    def byzantine_count(self) -> Tensor:
        """(e, 1) number of the victim's Byzantine neighbours."""
        assert self.layout.byzantine is not None
        return self.layout.byzantine.sum(1)[self.victims][:, None].to(torch.float64)

    @cached_property
    def attacker_rows(self) -> Tensor:
        """(e,) row of each edge's attacker in `byzantine_models`."""
        byzantine = torch.tensor(self.network.byzantine, device=self.attackers.device)
        return torch.searchsorted(byzantine, self.attackers)


@dataclass(frozen=True)
class Attack(ABC):
    """One message per (attacker, victim) edge; attackers may have any number of neighbours."""

    strength: ClassVar[str | None] = None  # the parameter a line search may tune
    trains: ClassVar[bool] = False  # whether Byzantine nodes do honest work the attack builds on
    flips_labels: ClassVar[bool] = False  # whether they do it on flipped labels

    @abstractmethod
    def inbox(self, view: View) -> Inbox:
        """What every regular node receives in this round."""

    def with_strength(self, value: float) -> "Attack":
        if self.strength is None:
            raise AttackError(f"{type(self).__name__} has no strength to tune")
        return replace(self, **{self.strength: value})


class LinearAttack(Attack):
    """Messages that are linear in the regular models: an attacked round is still two passes."""

    @abstractmethod
    def coefficients(self, view: View) -> Tensor:
        """(e, r) each message as a combination of the regular models."""

    def inbox(self, view: View) -> Inbox:
        return Inbox(
            layout=view.layout, models=view.models, linear=self.coefficients(view), context=view.context
        )


class FreeAttack(Attack):
    """Messages of any other kind."""

    @abstractmethod
    def messages(self, view: View) -> Tensor:
        """(e, d)."""

    def inbox(self, view: View) -> Inbox:
        messages = self.messages(view).to(view.models.dtype)
        return Inbox(layout=view.layout, models=view.models, extra=messages, context=view.context)
