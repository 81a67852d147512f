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
from clippedgossip.mixing import kernels
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules.base import Rule

STRONG = 2.0**40  # an attack of more strength may send numbers beyond the models' type
DENSE = 8  # a table with at least one entry in so many is multiplied as a dense matrix


@dataclass(frozen=True, eq=False, kw_only=True)
class View:
    """What a Byzantine node sees. An edge goes from a Byzantine node (sender) to a regular one (receiver);
    edges have the order of `layout.byzantine_senders`."""

    network: Network
    layout: Layout
    models: Tensor  # (r, d) the regular nodes' models, before mixing
    rule: Rule | None = None
    context: Context = field(default_factory=Context)
    byzantine_models: Tensor | None = None  # (b, d) those that Byzantine nodes get by following the protocol
    memory: Tensor | None = None  # (m, d) what the attack keeps from round to round; None where nothing is

    @property
    def senders(self) -> Tensor:
        """(e,) the Byzantine node of each edge."""
        assert self.layout.byzantine_senders is not None
        return self.layout.byzantine_senders

    @property
    def receivers(self) -> Tensor:
        """(e,) the regular node of each edge, as a row of `models`."""
        assert self.layout.byzantine_receivers is not None
        return self.layout.byzantine_receivers

    @property
    def from_byzantine(self) -> Tensor:
        """(r, k) which slots have a message of a Byzantine node."""
        assert self.layout.byzantine is not None
        return self.layout.byzantine

    @cached_property
    def regular_weights(self) -> Tensor:
        """(e, k) W_ik of the receiver's regular neighbours k, slot by slot; 0 elsewhere."""
        return torch.where(self.from_byzantine, 0.0, self.layout.weights)[self.receivers]

    @cached_property
    def neighbors(self) -> Tensor:
        """(e, k) 1 for the receiver's regular neighbours."""
        return (self.regular_weights > 0).to(torch.float64)

    @cached_property
    def among(self) -> Tensor:
        """(e, k+1) 1 for the receiver and its regular neighbours."""
        return with_self(1.0, self.neighbors)

    @cached_property
    def byzantine_weight(self) -> Tensor:
        """(e, 1) δ_i of the receiver."""
        weight = torch.where(self.from_byzantine, self.layout.weights, 0.0).sum(1)[self.receivers][:, None]
        return weight.clamp(min=torch.finfo(weight.dtype).tiny)  # 0 only for rows that are not used

    @cached_property
    def byzantine_count(self) -> Tensor:
        """(e, 1) number of the receiver's Byzantine neighbours."""
        return self.from_byzantine.sum(1)[self.receivers][:, None].to(torch.float64).clamp(min=1)

    @cached_property
    def sender_rows(self) -> Tensor:
        """(e,) row of each edge's sender in `byzantine_models`."""
        byzantine = self.layout.remember("byzantine", self.network.byzantine.copy)
        return torch.searchsorted(byzantine, self.senders)

    @cached_property
    def places(self) -> Tensor:
        """(e, k+1) rows in `models` of the receiver and its slots; the receiver's own where a slot has no
        regular neighbour."""
        own = self.receivers[:, None]
        return torch.cat([own, torch.where(self.neighbors > 0, self.layout.slots[self.receivers], own)], 1)

    def table(self, coefficients: Tensor) -> Tensor:
        """(e, r) coefficients of all regular models, from those of the receiver and its slots, (e, k+1)."""
        empty = coefficients.new_zeros(len(coefficients), len(self.models))
        return empty.scatter_add_(1, self.places, coefficients)

    def combined(self, coefficients: Tensor, values: Tensor) -> Tensor:
        """(e, d) sums of rows of `values` (r, d), by coefficients of the receiver and its slots, (e, k+1)."""
        if len(values) <= DENSE * coefficients.shape[1]:
            return self.table(coefficients).to(values.dtype) @ values
        return torch.nn.functional.embedding_bag(  # a sparse product would synchronise with the CPU
            self.places, values, per_sample_weights=coefficients.to(values.dtype), mode="sum"
        )


@dataclass(frozen=True)
class Attack(ABC):
    """One message for each edge from a Byzantine to a regular node.

    Called again for the same round, it must give the same messages: take random numbers from `randomness`.
    """

    strength: ClassVar[str | None] = None  # the parameter that `Tuned` may tune
    trains: ClassVar[bool] = False  # whether Byzantine nodes also follow the protocol: `byzantine_models`
    flips_labels: ClassVar[bool] = False  # whether they train on flipped labels
    memory: ClassVar[int] = 0  # how many vectors as long as a model it keeps from round to round

    def __post_init__(self) -> None:
        value = None if self.strength is None else getattr(self, self.strength)
        if value is not None and not isinstance(value, Tensor) and not math.isfinite(value):
            raise AttackError(f"{self.strength} is {value}; it must be a finite number")

    @property
    def capturable(self) -> bool:
        """Whether it never synchronises with the CPU, so that a CUDA graph can capture its round. An attack
        of the user's own must say so."""
        return ours(self)

    def learn(self, view: View) -> None:
        """Change `view.memory`, which is 0 at first. Called once in a round, before its messages."""
        return

    def received(self, view: View) -> Inbox:
        """What every regular node receives in this round; the attack learns from it first."""
        if not len(view.receivers):
            return Inbox(layout=view.layout, models=view.models, context=view.context)
        self.learn(view)
        return self.inbox(view)

    @abstractmethod
    def inbox(self, view: View) -> Inbox:
        """The same, where the attack has receivers."""

    def with_strength(self, value: float | Tensor) -> "Attack":
        """The same attack with another strength, a number or a tensor of one."""
        if self.strength is None:
            raise AttackError(
                f"{type(self).__name__} has no strength; tune one that has, such as IPM or dissensus"
            )
        return replace(self, **{self.strength: value})


class FreeAttack(Attack):
    """Messages of any kind.

    What is sent is a vector of finite numbers: an element beyond the range of the models' type, also an
    infinite one, is sent as the largest number of that type. A message with NaN counts as not received.
    """

    @abstractmethod
    def messages(self, view: View) -> Tensor:
        """(e, d)."""

    def sent(self, view: View, dtype: torch.dtype | None = None) -> Tensor:
        """(e, d) the messages as they are sent, in the models' type or another."""
        edges = "one row for each edge from a Byzantine to a regular node; view.models[view.receivers] has it"
        wanted = (len(view.receivers), view.models.shape[1])
        messages = self._checked(self.messages(view), "messages", wanted, edges, view)
        return kernels.saturated(messages, dtype or view.models.dtype)

    def inbox(self, view: View) -> Inbox:
        return Inbox(layout=view.layout, models=view.models, extra=self.sent(view), context=view.context)

    def _checked(self, found: object, what: str, wanted: tuple[int, int], rows: str, view: View) -> Tensor:
        """What a class of the user's own computed, on the models' device."""
        if isinstance(found, Tensor) and found.is_floating_point() and found.shape == wanted:
            return found.to(view.models.device)
        kind = type(found).__name__
        if isinstance(found, Tensor):
            kind = f"{found.dtype} of shape {tuple(found.shape)}"
        raise AttackError(
            f"the {what} of {type(self).__name__} are {kind}\n"
            f"give floating-point numbers of shape {wanted}, {rows}"
        )


class LinearAttack(FreeAttack):
    """Messages that are linear in the regular models. A round with them still reads the models only twice.

    On a large sparse graph, where rules work edge by edge, the messages are computed first. So they are where
    one is beyond the range of the models' type. A GPU does not look for that: there it is so where the
    attack's strength is above 2⁴⁰.
    """

    @abstractmethod
    def table(self, view: View) -> Tensor:
        """(e, r) each message as a combination of the regular models. Coefficients of any floating-point type
        are used in float64."""

    def inbox(self, view: View) -> Inbox:
        inbox = Inbox(layout=view.layout, models=view.models, context=view.context)
        if not inbox.dense or (view.models.is_cuda and self._strong):
            return super().inbox(view)
        wanted = (len(view.receivers), len(view.models))
        rows = "one row of coefficients for each edge from a Byzantine to a regular node"
        table = self._checked(self.table(view), "coefficients", wanted, rows, view)
        return replace(inbox, linear=table.to(torch.float64))

    @property
    def _strong(self) -> bool:
        value = None if self.strength is None else getattr(self, self.strength)
        return isinstance(value, float | int) and abs(value) > STRONG


class LocalAttack(LinearAttack):
    """Messages that are linear in the models of the receiver and its regular neighbours."""

    @abstractmethod
    def coefficients(self, view: View) -> Tensor:
        """(e, k+1) of the receiver and each of its slots; 0 for slots that hold no regular neighbour. Numbers
        of any floating-point type are used in float64."""

    def table(self, view: View) -> Tensor:
        return view.table(self._coefficients(view))

    def messages(self, view: View) -> Tensor:
        models, found = view.models, self._coefficients(view)
        return kernels.linear_messages(found, models, view.places, lambda c: view.combined(c, models))

    def _coefficients(self, view: View) -> Tensor:
        wanted = (len(view.receivers), view.layout.slots.shape[1] + 1)
        rows = "one row for each edge: the receiver and each of its slots; view.among has it"
        return self._checked(self.coefficients(view), "coefficients", wanted, rows, view).to(torch.float64)


def with_self(own: Tensor | float, neighbors: Tensor) -> Tensor:
    """(e, k+1) the receiver's own coefficient in front."""
    if isinstance(own, Tensor):
        first = own.to(neighbors.dtype).expand(len(neighbors))[:, None]
    else:
        first = neighbors.new_full((len(neighbors), 1), own)
    return torch.cat([first, neighbors], 1)
