"""What every node of a network received in a round, and the geometry rules ask of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing import kernels
from clippedgossip.mixing.slots import Layout

PAIRS_BYTES = 256 << 20


def _whole(total: Tensor) -> Tensor:
    return total


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a rule may know besides the messages: the moment, the seed its draws derive from, and which slice
    of the coordinates it is looking at, where another process holds the others."""

    round: int | Tensor = 0
    rounds: int | None = None
    seed: int = 0
    byzantine: Tensor | None = None  # (*batch, k) who lies: for the oracle radius alone
    nodes: Tensor | None = None  # (*batch,) who mixes, and
    senders: Tensor | None = None  # (*batch, k) who sent: rules that draw derive their draws from them
    offset: int = 0  # the slice's first coordinate
    reduce: Callable[[Tensor], Tensor] = field(default=_whole, repr=False)  # sums over the slices


def worth_a_product(rows: int, slots: int) -> bool:
    """Whether all inner products of so many rows are cheaper than those along so many edges."""
    return rows <= 64 or (rows <= 4096 and rows * rows <= 16 * slots)


@dataclass(frozen=True, eq=False, kw_only=True)
class Inbox:
    """All models in flight, each held once: own models, messages linear in them, any other messages.

    A slot of the layout names a row of [models; linear @ models; extra].
    """

    layout: Layout
    models: Tensor  # (n, d)
    linear: Tensor | None = None  # (l, n) float64
    extra: Tensor | None = None  # (a, d)
    context: Context = field(default_factory=Context)
    whole: "Inbox | None" = field(default=None, repr=False)  # of which this is a part

    def reduce(self, partial: Tensor) -> Tensor:
        """What was summed over a slice of the coordinates, summed over all of them."""
        return self.context.reduce(partial)

    @property
    def blocks(self) -> list[Tensor]:
        return [self.models] if self.extra is None else [self.models, self.extra]

    @property
    def held_rows(self) -> int:
        return sum(len(block) for block in self.blocks)

    @cached_property
    def dense(self) -> bool:
        """Whether one product of all rows with all rows is cheaper than a walk along the edges."""
        return worth_a_product(self.held_rows, int(self.layout.slots.numel()))

    def explicit(self) -> "Inbox":
        """The same messages with the linear ones written out; walks along the edges need it."""
        if self.linear is None:
            return self
        written = self.linear.to(self.models.dtype) @ self.models
        extra = written if self.extra is None else torch.cat([written, self.extra])
        return replace(self, linear=None, extra=extra)

    def by_coordinate(self) -> "Inbox":
        """The same for rules that ask for no distances: one look at the rows tells which are finite."""
        written = replace(self.explicit())
        written.__dict__["dense"] = False
        return written

    @property
    def measured(self) -> bool:
        """Whether the inner products are known already."""
        return "_centred" in self.__dict__

    def part(self, columns: slice) -> "Inbox":
        """The same on some of the coordinates, with inner products of all; there must be no linear ones."""
        extra = None if self.extra is None else self.extra[:, columns]
        return replace(self, models=self.models[:, columns], extra=extra, whole=self)

    @cached_property
    def _centred(self) -> Tensor:
        """Inner products of all rows less a common centre c, linear ones included, and of c itself, last."""
        if self.whole is not None:
            return self.whole._centred
        held = self.reduce(kernels.gram(self.blocks))
        if self.linear is None:
            return held
        n, rows = len(self.models), self.held_rows
        fine = torch.isfinite(held.diagonal())
        clean = torch.where(fine[:, None] & fine, held, 0.0)  # a diverged model must not spread
        # Σ_j a_j x_j − c = Σ_j a_j (x_j − c) + (Σ_j a_j − 1) c
        spread = self.linear.new_zeros(len(self.linear), rows + 1)
        spread[:, :n] = self.linear
        spread[:, rows] = self.linear.sum(1) - 1
        across = spread @ clean
        among = across @ spread.T
        top = torch.cat([held[:n, :n], across[:, :n].T, held[:n, n:]], 1)
        middle = torch.cat([across[:, :n], among, across[:, n:]], 1)
        bottom = torch.cat([held[n:, :n], across[:, n:].T, held[n:, n:]], 1)
        return torch.cat([top, middle, bottom])

    @cached_property
    def inner_products(self) -> Tensor:
        """Gram matrix of all rows less a common centre: the same distances; float64."""
        return self._centred[:-1, :-1]

    @cached_property
    def own_norms(self) -> Tensor:
        """(n,) ‖x_i‖."""
        if not self.dense:
            return self.reduce(self.models.double().square().sum(1)).sqrt()
        n, products = len(self.models), self._centred
        squares = products.diagonal()[:n] + 2 * products[:n, -1] + products[-1, -1]
        return squares.clamp(min=0).sqrt()

    @cached_property
    def ok(self) -> Tensor:
        """Which rows are finite."""
        if self.whole is not None:
            return self.whole.ok
        if self.dense:
            return torch.isfinite(self.inner_products.diagonal())
        wrong = torch.cat([~kernels.finite_rows(block) for block in self.blocks])
        return self.reduce(wrong.double()) == 0

    @cached_property
    def slots(self) -> Tensor:
        """The layout's slots; a message that is not finite counts as missing, its weight goes to self."""
        return torch.where(self.ok[self.layout.slots], self.layout.slots, self.layout.own)

    @cached_property
    def closed_slots(self) -> Tensor:
        """(n, k+1) own row first, then the received ones."""
        return torch.cat([self.layout.own, self.slots], 1)

    def rows(self, index: Tensor, part: slice = slice(None)) -> Tensor:
        """The rows named by `index`, on a slice of coordinates; there must be no linear ones."""
        held = [block[:, part] for block in self.blocks]
        return (torch.cat(held) if len(held) > 1 else held[0])[index]

    def neighborhoods(self) -> Iterator["Neighborhood"]:
        """The nodes in groups small enough that the pairs of one group fit in memory."""
        n, k = self.layout.slots.shape
        size = max(1, PAIRS_BYTES // (8 * (k + 1) ** 2))
        for start in range(0, n, size):
            yield Neighborhood(self, slice(start, min(start + size, n)))

    def mixed(self, coefficients: Tensor, out: Tensor | None = None) -> Tensor:
        """(n, d) Σ_j coefficients[i, j]·(row of slot j), the sum over own model and slots."""
        output = torch.empty_like(self.models) if out is None else out
        return self._combined(coefficients, self.closed_slots, output)

    def averages(self, shares: Tensor, group: slice) -> Tensor:
        """(b, m, d) the same for a group of nodes, by m sets of coefficients each, (b, m, k+1)."""
        slots = self.closed_slots[group].repeat_interleave(shares.shape[1], 0)
        output = self.models.new_empty(len(slots), self.models.shape[1])
        return self._combined(shares.flatten(0, 1), slots, output).view(*shares.shape[:2], -1)

    def _combined(self, coefficients: Tensor, slots: Tensor, output: Tensor) -> Tensor:
        """Each row of the output by its row of coefficients and slots, own ones first."""
        if not self.dense:
            return self._mixed_along_edges(coefficients, slots, output)
        n = len(self.models)
        rows = n if self.linear is None else n + len(self.linear)
        rows += 0 if self.extra is None else len(self.extra)
        spread = coefficients.new_zeros(len(slots), rows).scatter_add_(1, slots, coefficients)
        fine = self.ok[slots[:, :1]]
        spread = torch.where(fine, spread, torch.nan)  # a diverged node stays so, whatever it hears
        parts = [spread[:, :n]]
        ok = self.ok[:n]
        if self.linear is not None:
            lied = n + len(self.linear)
            finite = torch.where(self.ok[n:lied, None], self.linear, 0.0)  # 0·NaN is NaN
            parts[0] = parts[0] + spread[:, n:lied] @ finite
        if self.extra is not None:
            parts.append(spread[:, rows - len(self.extra) :])
            ok = torch.cat([ok, self.ok[rows - len(self.extra) :]])
        return kernels.combine(parts, self.blocks, ok, output)

    def _mixed_along_edges(self, coefficients: Tensor, slots: Tensor, output: Tensor) -> Tensor:
        n, closed = slots.shape
        output[:] = torch.nn.functional.embedding_bag(  # a weighted sum of rows, none of them copied first
            slots.flatten(),
            torch.cat(self.blocks) if len(self.blocks) > 1 else self.models,
            offsets=torch.arange(0, n * closed, closed, device=self.models.device),
            per_sample_weights=coefficients.to(self.models.dtype).flatten(),
            mode="sum",
        )
        return output


@dataclass(eq=False)
class Neighborhood:
    """What a linear rule sees of a group of nodes: weights and distances, computed when asked for.

    Index 0 is the node's own model, 1..k its slots. Batch dimension: the nodes of the group.
    """

    inbox: Inbox
    group: slice

    @cached_property
    def weights(self) -> Tensor:
        """(b, k) W_ij; 0 where there is no neighbour."""
        return self.inbox.layout.weights[self.group]

    @cached_property
    def present(self) -> Tensor:
        """(b, k) which slots hold a neighbour."""
        return self.inbox.layout.present[self.group]

    @cached_property
    def closed_present(self) -> Tensor:
        """(b, k+1) the same with self in front."""
        return self.inbox.layout.closed_present[self.group]

    @cached_property
    def closed_weights(self) -> Tensor:
        """(b, k+1) W_ii, then W_ij."""
        return self.inbox.layout.closed_weights[self.group]

    @property
    def context(self) -> Context:
        return self.inbox.context

    @property
    def nodes(self) -> Tensor:
        return self.inbox.layout.nodes[self.group]

    @property
    def senders(self) -> Tensor:
        return self.inbox.layout.senders[self.group]

    @property
    def byzantine(self) -> Tensor | None:
        known = self.inbox.layout.byzantine
        return None if known is None else known[self.group]

    @cached_property
    def slots(self) -> Tensor:
        return self.inbox.closed_slots[self.group]

    @cached_property
    def squared(self) -> Tensor:
        """(b, k) ‖x_i − x_j‖²."""
        if not self.inbox.dense:
            return self.inbox.reduce(kernels.squared_along_edges(self.inbox.blocks, self.slots))
        products = self.inbox.inner_products
        norms = products.diagonal()
        own, other = self.slots[:, :1], self.slots[:, 1:]
        return torch.add(norms[own] + norms[other], products[own, other], alpha=-2).clamp(min=0)

    @cached_property
    def distances(self) -> Tensor:
        """(b, k) ‖x_i − x_j‖."""
        return self.squared.sqrt()

    @cached_property
    def pairs(self) -> Tensor:
        """(b, k+1, k+1) squared distances between any two of own and received."""
        if not self.inbox.dense:
            return self._pairs_from_differences()
        products = self.inbox.inner_products
        norms = products.diagonal()[self.slots]
        local = products[self.slots[:, :, None], self.slots[:, None, :]]
        return torch.add(norms[:, :, None] + norms[:, None, :], local, alpha=-2).clamp(min=0)

    @cached_property
    def own_norms(self) -> Tensor:
        """(b,) ‖x_i‖."""
        return self.inbox.own_norms[self.group]

    def message(self, place: int) -> Tensor:
        """(b, d) the models at one place: 0 is the nodes' own, the others are received."""
        inbox, index = self.inbox.explicit(), self.slots[:, place]
        if len(index) > 1 or index.is_cuda:
            return inbox.rows(index)
        row, n = int(index), len(inbox.models)  # a node by itself has no room for a copy of all
        return inbox.models[row : row + 1] if row < n else inbox.blocks[1][row - n : row - n + 1]

    def messages(self) -> Tensor:
        """(b, k+1, d) own and received models themselves."""
        return torch.stack([self.message(place) for place in range(self.weights.shape[1] + 1)], 1)

    def averages(self, shares: Tensor) -> Tensor:
        """(b, m, d) Σ_j shares[i, l, j]·(message at place j); shares (b, m, k+1) sum to 1."""
        return self.inbox.averages(shares, self.group)

    def squared_to(self, coefficients: Tensor) -> Tensor:
        """(b, k+1) ‖z − x_j‖² for z = Σ_j c_j x_j with Σ c = 1: (c D)_j − ½ c D cᵀ."""
        to_each = (coefficients[:, None] @ self.pairs)[:, 0]
        spread = (to_each * coefficients).sum(1, keepdim=True)
        return (to_each - spread / 2).clamp(min=0)

    def mapped(self, premix: Tensor, weights: Tensor) -> "Neighborhood":
        """The neighbourhood of premix @ messages, (b, k'+1, k+1), whose rows sum to 1."""
        across = premix @ self.pairs @ premix.transpose(1, 2)
        own = across.diagonal(dim1=1, dim2=2) / 2
        return _Mapped(self, premix, weights, (across - own[:, :, None] - own[:, None, :]).clamp(min=0))

    def _pairs_from_differences(self) -> Tensor:
        used = self.inbox
        b, closed = self.slots.shape
        total = torch.zeros(b, closed, closed, dtype=torch.float64, device=self.slots.device)
        for part in kernels.message_chunks(self.slots.numel(), used.models, 16):
            differences = (used.rows(self.slots, part) - used.rows(self.slots[:, :1], part)).double()
            total += differences @ differences.transpose(1, 2)
        total = self.inbox.reduce(total)
        norms = total.diagonal(dim1=1, dim2=2)
        return (norms[:, :, None] + norms[:, None, :] - 2 * total).clamp(min=0)


class _Mapped(Neighborhood):
    """A neighbourhood of averages of another's messages."""

    def __init__(self, base: Neighborhood, premix: Tensor, weights: Tensor, pairs: Tensor) -> None:
        super().__init__(base.inbox, base.group)
        self.base, self.premix = base, premix
        self.__dict__["weights"] = weights
        self.__dict__["pairs"] = pairs
        self.__dict__["squared"] = pairs[:, 0, 1:]
        self.__dict__["present"] = weights > 0
        self.__dict__["closed_weights"] = from_neighbors(weights)
        self.__dict__["closed_present"] = torch.cat(
            [weights.new_ones(len(weights), 1, dtype=torch.bool), weights > 0], 1
        )

    @property
    def senders(self) -> Tensor:
        """Averages that do not stand for one message each have a place for a sender."""
        if self.base.senders.shape == self.weights.shape:
            return self.base.senders
        return torch.arange(self.weights.shape[1], device=self.weights.device).expand_as(self.weights)

    @property
    def byzantine(self) -> Tensor | None:
        raise RuleError("no average of messages is Byzantine or not; the oracle radius cannot be wrapped")

    def message(self, place: int) -> Tensor:
        return self.base.averages(self.premix[:, place : place + 1])[:, 0]

    def messages(self) -> Tensor:
        return self.base.averages(self.premix)

    def averages(self, shares: Tensor) -> Tensor:
        return self.base.averages(shares @ self.premix)


def from_neighbors(coefficients: Tensor) -> Tensor:
    """(b, k+1) coefficients of self and neighbours: what the neighbours do not get goes to self."""
    return torch.cat([1 - coefficients.sum(1, keepdim=True), coefficients], 1)
