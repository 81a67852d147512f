from dataclasses import dataclass, replace

import torch
from torch import Tensor

from clippedgossip.mixing.inbox import Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.randomness import hash_bits
from clippedgossip.rules.base import whole
from clippedgossip.rules.bound import Bound, Seen
from clippedgossip.rules.premix import Premix


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
        draw = hash_bits(
            near.context.seed, "bucketing", near.context.round, near.nodes[:, None], near.senders
        )
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
