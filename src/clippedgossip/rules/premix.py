"""Rules that first replace the messages by averages of them: bucketing, nearest-neighbour mixing."""

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from clippedgossip.mixing import kernels
from clippedgossip.mixing.inbox import Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.randomness import hash_bits
from clippedgossip.rules.base import LinearRule, Loss, Rule, ToldFaulty, whole
from clippedgossip.rules.bound import Bound, Seen, too_many
from clippedgossip.rules.sorting import nearest, uniform_over


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
        own, received = mixed[:, 0], mixed[:, 1:].flatten(0, 1)
        return self.rule.mix(Inbox(layout=layout, models=own, extra=received, context=near.context))

    def _mix_by_coordinate(self, near: Neighborhood) -> Tensor:
        premix, weights = self._through(near)
        layout = near.inbox.layout.averages(f"{self} {near.group}", weights, near.nodes)
        output = torch.empty_like(near.inbox.models[near.group])
        # `near.slots` says which messages are finite. It is a sum over all ranks, so every rank computes it
        # here, also a rank that holds no coordinates.
        for part in kernels.message_chunks(len(near.slots) * premix.shape[1], output):
            here = Neighborhood(near.inbox.part(part), near.group)
            mixed = here.averages(premix)
            averages = Inbox(layout=layout, models=mixed[:, 0], extra=mixed[:, 1:].flatten(0, 1))
            output[:, part] = self.innermost.mix(averages)
        return output

    def _through(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        """What the innermost rule sees: `premix` of this one, and of those within."""
        premix, weights = self.premix(near)
        if not isinstance(self.rule, Premix):
            return premix, weights
        inner, weights = self.rule._through(near.mapped(premix, weights))
        return inner @ premix, weights


@dataclass(frozen=True)
class Bucketing(Premix):
    """Shuffle the received models into buckets of at most s, average each, and apply the rule to the averages
    (§ techniques that improve information diffusion).

    The shuffle depends on (seed, round, node, sender): it is new in each round, and the same in every engine.

    Needs: what its rule needs.
    Fails: with few neighbours, as on a torus under dissensus: a Byzantine message spoils its whole bucket, so
    the share of spoilt averages can be s times that of Byzantine neighbours.
    Cost: O(kd), then that of its rule with k/s messages.
    Origin: Karimireddy, He and Jaggi, 2022, arXiv:2006.09365.
    """

    size: int = 2

    def __post_init__(self) -> None:
        whole("size", self.size, 1)

    def check(self, neighbors: int) -> None:
        self.rule.check(-(-neighbors // self.size))

    def caveat(self, neighbors: int) -> str | None:
        return self.rule.caveat(-(-neighbors // self.size))

    def premix(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        now = near.context
        draw = hash_bits(now.seed, "bucketing", now.round, near.nodes[:, None], near.senders)
        last = torch.iinfo(torch.int64).max
        rank = torch.where(near.present, draw, last).argsort(1).argsort(1)
        buckets = -(-near.weights.shape[1] // self.size)
        member = (rank // self.size)[:, None] == torch.arange(buckets, device=rank.device)[:, None]
        member = (member & near.present[:, None]).to(torch.float64)
        averaged = member / member.sum(2, keepdim=True).clamp(min=1)
        empty = (member.sum(2, keepdim=True) == 0).to(torch.float64)  # a row must sum to 1; its weight is 0
        whole = torch.nn.functional.pad(torch.cat([empty, averaged], 2), (0, 0, 1, 0))
        whole[:, 0, 0] = 1
        return whole, (member * near.weights[:, None]).sum(2)

    def bound(self, seen: Seen) -> Bound:
        """The bound of the rule on the averages: one with a Byzantine member is Byzantine."""
        context = seen.context
        layout = Layout.explicit(seen.weights[None], nodes=context.nodes, senders=context.senders)
        models = seen.own[None]
        (near,) = Inbox(layout=layout, models=models, extra=seen.received, context=context).neighborhoods()
        shares, weights = (table[0] for table in self.premix(near))
        members = shares[1:, 1:]
        averages = members @ seen.received.masked_fill(seen.byzantine[:, None], 0.0)
        kept = weights > 0
        return self.rule.bound(
            replace(
                seen,
                received=averages[kept],
                weights=weights[kept],
                byzantine=(members @ seen.byzantine.double() > 0)[kept],
                context=replace(context, senders=None),
            )
        )


@dataclass(frozen=True, kw_only=True)
class NNM(ToldFaulty, Premix):
    """Nearest-neighbour mixing: each of own and received becomes the mean of its n−f
    nearest, itself included, before the rule sees it.

    Needs: a bound f on the number of Byzantine neighbours, and what its rule needs.
    Fails: where its rule fails for want of information: what is far stays out of every mean.
    Cost: O(k²d), then that of its rule.
    Origin: Allouah et al., 2023, arXiv:2302.01772.
    """

    faulty: int

    def check(self, neighbors: int) -> None:
        super().check(neighbors)
        self.rule.check(neighbors)

    def premix(self, near: Neighborhood) -> tuple[Tensor, Tensor]:
        here = near.closed_present
        keys = torch.where(here[:, None], near.pairs, torch.inf)
        eye = torch.eye(here.shape[1], dtype=torch.bool, device=here.device)
        keys = torch.where(eye, -1.0, keys)
        return uniform_over(nearest(keys, here.sum(1) - self.faulty)), near.weights

    def bound(self, seen: Seen) -> Bound:
        """The n−f nearest of a regular model, and their mean, are within the regular models' diameter."""
        if seen.faulty > self.faulty:
            return too_many(seen, self.faulty)
        return self.rule.bound(replace(seen, margin=seen.margin + seen.diameter))
