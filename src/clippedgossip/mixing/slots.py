"""Which node receives messages from which: the constant part of a round, as index tables."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clippedgossip.network import Network


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout:
    """For each of n receiving nodes, k slots: the row of each slot's message, and its weight.

    Rows 0..n-1 are the receivers' own models; all other messages follow. A slot of weight 0 has no
    neighbour (the paper's assumption on W: W_ij > 0 iff j is a neighbour).
    """

    slots: Tensor  # (n, k) row of each message
    weights: Tensor  # (n, k) float64
    nodes: Tensor  # (n,) the receivers' identities
    senders: Tensor  # (n, k) the senders' identities
    byzantine: Tensor | None = None  # (n, k) which senders are Byzantine, for the oracle radius alone
    byzantine_senders: Tensor | None = None  # (e,) sender of each Byzantine message, in the order of its row
    byzantine_receivers: Tensor | None = None  # (e,) row of its receiver
    memo: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    like: "Layout | None" = field(default=None, repr=False)  # an earlier layout with the same empty slots

    def remember(self, name: str, compute: Callable[[], Any]) -> Tensor:
        """A constant of the network, copied to this device once: a captured round cannot copy."""
        if name not in self.memo:
            self.memo[name] = torch.as_tensor(compute(), device=self.slots.device)
        kept: Tensor = self.memo[name]
        return kept

    @staticmethod
    def of(network: Network, device: torch.device | str = "cpu") -> "Layout":
        """The regular nodes of a network. Every edge from a Byzantine node has a row of its own, after
        theirs."""
        regular = network.regular
        row_of = np.full(network.n, -1, dtype=np.int64)
        row_of[regular] = np.arange(len(regular))
        degrees = network.degrees[regular]
        width = int(degrees.max(initial=0))
        column = np.arange(width)
        real = column < degrees[:, None]
        edge = np.where(real, network.indptr[regular][:, None] + column, 0)
        senders = np.where(real, network.indices[edge] if width else 0, -1)
        weights = np.where(real, network.edge_weights()[edge] if width else 0.0, 0.0)
        byzantine = real & np.isin(senders, network.byzantine)
        slots = np.where(real, row_of[senders], np.arange(len(regular))[:, None])
        slots[byzantine] = len(regular) + np.arange(byzantine.sum())

        def on_device(array: np.ndarray) -> Tensor:
            return torch.tensor(array, device=device)

        return Layout(
            slots=on_device(slots),
            weights=on_device(weights),
            nodes=on_device(regular),
            senders=on_device(senders),
            byzantine=on_device(byzantine),
            byzantine_senders=on_device(senders[byzantine]),
            byzantine_receivers=on_device(np.nonzero(byzantine)[0]),
        )

    @staticmethod
    def explicit(
        weights: Tensor,
        byzantine: Tensor | None = None,
        nodes: Tensor | None = None,
        senders: Tensor | None = None,
    ) -> "Layout":
        """Every message in a row of its own, for weights of shape (n, k). By default nodes and senders are
        numbered."""
        n, k = weights.shape
        index = torch.arange(n * k, device=weights.device).view(n, k)
        return Layout(
            slots=n + index,
            weights=weights.double(),
            nodes=torch.arange(n, device=weights.device) if nodes is None else nodes,
            senders=torch.arange(k, device=weights.device).expand(n, k) if senders is None else senders,
            byzantine=byzantine,
        )

    @cached_property
    def own(self) -> Tensor:
        """(n, 1) row of each node's own model."""
        return torch.arange(len(self.slots), device=self.slots.device)[:, None]

    @cached_property
    def present(self) -> Tensor:
        """(n, k) which slots hold a neighbour."""
        return self.weights > 0 if self.like is None else self.like.present

    @cached_property
    def closed_present(self) -> Tensor:
        """(n, k+1) the same with self in front."""
        return torch.cat([torch.ones_like(self.own, dtype=torch.bool), self.present], 1)

    @cached_property
    def closed_weights(self) -> Tensor:
        """(n, k+1) W_ii, then W_ij."""
        return torch.cat([1 - self.weights.sum(1, keepdim=True), self.weights], 1)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of neighbours of each node."""
        return tuple((self.weights > 0).sum(1).tolist()) if self.like is None else self.like.counts

    @cached_property
    def by_count(self) -> tuple[tuple[int, Tensor], ...]:
        """(number of neighbours, the nodes that have it), so that rules need not handle empty slots."""
        return tuple((count, nodes) for count, _, nodes in self.by_count_and((0,) * len(self.counts)))

    def by_count_and(self, kinds: tuple[float, ...]) -> tuple[tuple[int, float, Tensor], ...]:
        """(number of neighbours, kind, the nodes that have both), for a kind of each node."""
        if kinds not in self.memo:
            alike: dict[tuple[int, float], list[int]] = {}
            for node, both in enumerate(zip(self.counts, kinds, strict=False)):
                alike.setdefault(both, []).append(node)
            self.memo[kinds] = tuple(
                (count, kind, torch.tensor(nodes, device=self.slots.device))
                for (count, kind), nodes in sorted(alike.items())
            )
        groups: tuple[tuple[int, float, Tensor], ...] = self.memo[kinds]
        return groups

    def averages(self, who: str, weights: Tensor) -> "Layout":
        """A layout in which every message has a row of its own, with weights (n, k'). For the same `who`, the
        same weights must always be 0: they are read once, since a captured round cannot read them."""
        found = Layout.explicit(weights)
        first: Layout = self.memo.setdefault(("averages", who), found)
        return found if first is found else replace(first, weights=found.weights, like=first)

    @cached_property
    def packed(self) -> Tensor:
        """(n, k) slot order with the empty slots last."""
        if self.like is not None:
            return self.like.packed
        return (self.weights > 0).to(torch.int8).argsort(dim=1, descending=True, stable=True)
