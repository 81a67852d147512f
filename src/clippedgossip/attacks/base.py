"""What an attack is: it sees everything and sends one message along every edge to a regular node."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.devices import ours
from clippedgossip.errors import AttackError
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules.base import Rule

DENSE = 8  # a table with one entry in so many is worth a dense product


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """All an attacker can see. Edges are the Byzantine ones, in the order of `layout.attackers`."""

    network: Network
    layout: Layout
    models: Tensor  # (r, d) the regular nodes' models, before mixing
    rule: Rule | None = None
    context: Context = field(default_factory=Context)
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

    @property
    def lies(self) -> Tensor:
        """(r, k) which slots a Byzantine node fills."""
        assert self.layout.byzantine is not None
        return self.layout.byzantine

    @cached_property
    def regular_weights(self) -> Tensor:
        """(e, k) W_ik of the victim's regular neighbours k, slot by slot; 0 elsewhere."""
        return torch.where(self.lies, 0.0, self.layout.weights)[self.victims]

    @cached_property
    def neighbors(self) -> Tensor:
        """(e, k) 1 for the victim's regular neighbours."""
        return (self.regular_weights > 0).to(torch.float64)

    @cached_property
    def among(self) -> Tensor:
        """(e, k+1) 1 for the victim and its regular neighbours."""
        return with_self(1.0, self.neighbors)

    @cached_property
    def byzantine_weight(self) -> Tensor:
        """(e, 1) δ_i of the victim."""
        return torch.where(self.lies, self.layout.weights, 0.0).sum(1)[self.victims][:, None]

    @cached_property
    def byzantine_count(self) -> Tensor:
        """(e, 1) number of the victim's Byzantine neighbours."""
        return self.lies.sum(1)[self.victims][:, None].to(torch.float64)

    @cached_property
    def attacker_rows(self) -> Tensor:
        """(e,) row of each edge's attacker in `byzantine_models`."""
        byzantine = self.layout.remember("byzantine", self.network.byzantine.copy)
        return torch.searchsorted(byzantine, self.attackers)

    @cached_property
    def places(self) -> Tensor:
        """(e, k+1) rows in `models` of the victim and its slots; self where there is no regular neighbour."""
        own = self.victims[:, None]
        return torch.cat([own, torch.where(self.neighbors > 0, self.layout.slots[self.victims], own)], 1)

    def table(self, coefficients: Tensor) -> Tensor:
        """(e, r) coefficients of all regular models, from those of the victim and its slots, (e, k+1)."""
        empty = coefficients.new_zeros(len(coefficients), len(self.models))
        return empty.scatter_add_(1, self.places, coefficients)

    def combined(self, coefficients: Tensor, values: Tensor) -> Tensor:
        """(e, d) sums of rows of `values` (r, d), by coefficients of the victim and its slots, (e, k+1)."""
        if len(values) <= DENSE * coefficients.shape[1]:
            return self.table(coefficients).to(values.dtype) @ values
        return torch.nn.functional.embedding_bag(  # a sparse product would stop to ask the host
            self.places, values, per_sample_weights=coefficients.to(values.dtype), mode="sum"
        )


@dataclass(frozen=True)
class Attack(ABC):
    """One message per (attacker, victim) edge; attackers may have any number of neighbours.

    Asked again in the same round, it must send the same: draws are to come from `randomness`.
    """

    strength: ClassVar[str | None] = None  # the parameter a line search may tune
    trains: ClassVar[bool] = False  # whether Byzantine nodes do honest work the attack builds on
    flips_labels: ClassVar[bool] = False  # whether they do it on flipped labels

    def __post_init__(self) -> None:
        value = None if self.strength is None else getattr(self, self.strength)
        if value is not None and not math.isfinite(value):
            raise AttackError(f"{self.strength} is {value}; it must be a finite number")

    @property
    def capturable(self) -> bool:
        """Whether it never asks the host, so that a GPU round can be captured. An attack of the user's own
        must say so."""
        return ours(self)

    @abstractmethod
    def inbox(self, view: View) -> Inbox:
        """What every regular node receives in this round."""

    def with_strength(self, value: float) -> "Attack":
        if self.strength is None:
            raise AttackError(f"{type(self).__name__} has no strength to tune")
        return replace(self, **{self.strength: value})


class FreeAttack(Attack):
    """Messages of any kind."""

    @abstractmethod
    def messages(self, view: View) -> Tensor:
        """(e, d)."""

    def inbox(self, view: View) -> Inbox:
        messages = self.messages(view).to(view.models.dtype)
        return Inbox(layout=view.layout, models=view.models, extra=messages, context=view.context)


class LinearAttack(FreeAttack):
    """Messages that are linear in the regular models: an attacked round is still two passes.

    Where the graph is so large and sparse that rules walk along its edges, the messages are written out.
    """

    @abstractmethod
    def table(self, view: View) -> Tensor:
        """(e, r) each message as a combination of the regular models."""

    def inbox(self, view: View) -> Inbox:
        inbox = Inbox(layout=view.layout, models=view.models, context=view.context)
        return replace(inbox, linear=self.table(view)) if inbox.dense else super().inbox(view)


class LocalAttack(LinearAttack):
    """Messages that are linear in the models of the victim and its regular neighbours."""

    @abstractmethod
    def coefficients(self, view: View) -> Tensor:
        """(e, k+1) of the victim and each of its slots; 0 for slots that hold no regular neighbour."""

    def table(self, view: View) -> Tensor:
        return view.table(self.coefficients(view))

    def messages(self, view: View) -> Tensor:
        return view.combined(self.coefficients(view), view.models)


def with_self(own: Tensor | float, neighbors: Tensor) -> Tensor:
    """(e, k+1) the victim's own coefficient in front."""
    if isinstance(own, Tensor):
        first = own.to(neighbors.dtype).expand(len(neighbors))[:, None]
    else:
        first = neighbors.new_full((len(neighbors), 1), own)
    return torch.cat([first, neighbors], 1)
