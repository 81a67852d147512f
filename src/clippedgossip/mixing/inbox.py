"""What every node of a network received in a round, and the distances and products that rules need."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing import kernels
from clippedgossip.mixing.slots import Layout

PAIRS_BYTES = 256 << 20
SLACK = 2.0**-44
"""What is added to a squared distance between sums, by the square of what was summed: more than the rounding
of the products it comes from, so that no message looks nearer than it is. 2⁻²² of a length in float32."""
MOST_IN_ONE_KERNEL = 128  # a GPU program keeps the products of so many messages at hand
TERMS = 8.0
"""A float32 sum whose terms are together this many times as long as the own model is taken in float64."""


def _whole(total: Tensor) -> Tensor:
    return total


@dataclass(frozen=True, kw_only=True)
class Context:
    """What a rule may know besides the messages: the moment, the seed its draws derive from, and which slice
    of the coordinates it is looking at, where another process holds the others."""

    round: int | Tensor = 0
    rounds: int | None = None
    seed: int = 0
    byzantine: Tensor | None = None  # (*batch, k) which senders are Byzantine, for the oracle radius
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
    by_edges: bool = False  # whether to walk along the edges, however few rows there are

    def reduce(self, partial: Tensor) -> Tensor:
        """What was summed over a slice of the coordinates, summed over all of them."""
        return self.context.reduce(partial)

    @property
    def blocks(self) -> list[Tensor]:
        """The rows of all models in flight, block by block."""
        return [self.models] if self.extra is None else [self.models, self.extra]

    @property
    def held_rows(self) -> int:
        """How many rows the blocks have."""
        return sum(len(block) for block in self.blocks)

    @cached_property
    def dense(self) -> bool:
        """Whether one product of all rows with all rows is cheaper than a walk along the edges."""
        return not self.by_edges and worth_a_product(self.held_rows, int(self.layout.slots.numel()))

    @property
    def by_products(self) -> bool:
        """Whether distances come from inner products, in an arithmetic wider than the models' own."""
        return self.dense and self.models.dtype != torch.float64

    def measurable(self) -> "Inbox":
        """The same messages, written out unless distances to them can be told from their coefficients; in
        float64 none so long that a square overflows."""
        if self.models.dtype == torch.float64:
            written = self.explicit()
            if written.extra is None:
                return written
            return replace(written, extra=kernels.shortened(written.extra))
        if self.linear is None or (self.by_products and self._linear_is_measured):
            return self
        return (self._with_copies_named() if self.by_products else self).explicit()

    @property
    def _linear_is_measured(self) -> bool:
        """Whether no distance to a linear message is much below what the message is a sum of: where 2⁻³⁰ of
        its square is left, rounding has taken 20 of 53 bits. A GPU takes such distances again instead.
        Nor may the message be beyond the models' type."""
        if self.models.is_cuda:
            return True
        assert self.linear is not None
        n = len(self.models)
        norms = torch.where(self.ok, self.norms, 0.0)
        sizes = norms.clone()
        sizes[n : n + len(self.linear)] = self.linear.abs() @ norms[:n]
        if bool((sizes > torch.finfo(self.models.dtype).max).any()):
            return False
        lies = (self.slots >= n) & (self.slots < n + len(self.linear))
        squared = torch.cat([near.squared for near in self.neighborhoods()])
        return bool((~lies | (squared >= 2.0**-30 * sizes[self.slots].square())).all())

    def _with_copies_named(self) -> "Inbox":
        """The same, where a linear message that is one of the models has that model's row: written out, it
        would be another row of the same numbers, whose inner products may round differently."""
        assert self.linear is not None
        table, layout, n = self.linear, self.layout, len(self.models)
        copies = (table == 1).any(1) & ((table != 0).sum(1) == 1)
        every = torch.arange(n + len(table) + (0 if self.extra is None else len(self.extra)))
        every[n : n + len(table)] = torch.where(copies, table.argmax(1), every[n : n + len(table)])
        named = replace(layout, slots=every[layout.slots], like=layout.like or layout)
        return replace(self, layout=named)

    def explicit(self) -> "Inbox":
        """The same messages with the linear ones written out; walks along the edges need it."""
        if self.linear is None:
            return self
        models, table = self.models, self.linear
        every = torch.arange(len(models), device=models.device).expand_as(table)
        written = kernels.linear_messages(table, models, every, lambda c: c.to(models.dtype) @ models)
        extra = written if self.extra is None else torch.cat([written, self.extra])
        return replace(self, linear=None, extra=extra)

    def with_late(self, sent: Tensor) -> "Inbox":
        """The same with messages of earlier rounds, (rounds, n, d), in place of those that are late."""
        layout = self.layout
        assert layout.late is not None
        assert layout.late_slots is not None
        late = sent.flatten(0, 1)[layout.late]
        extra = late if self.extra is None else torch.cat([self.extra, late])
        return replace(self, layout=replace(layout, slots=layout.late_slots), extra=extra)

    def by_coordinate(self) -> "Inbox":
        """The same for rules that ask for no distances: one look at the rows tells which are finite."""
        return replace(self.explicit(), by_edges=True)

    def part(self, columns: slice) -> "Inbox":
        """The same on some of the coordinates, with inner products of all; there must be no linear ones."""
        extra = None if self.extra is None else self.extra[:, columns]
        return replace(self, models=self.models[:, columns], extra=extra, whole=self)

    @cached_property
    def inner_products(self) -> Tensor:
        """Gram matrix of all rows, linear ones included; float64."""
        if self.whole is not None:
            return self.whole.inner_products
        held = self.reduce(kernels.gram(self.blocks))
        if self.linear is None:
            return held
        n = len(self.models)
        fine = torch.isfinite(held.diagonal())
        clean = torch.where(fine[:, None] & fine, held, 0.0)  # a diverged model must not spread
        across = self.linear @ clean[:n]
        among = across[:, :n] @ self.linear.T
        top = torch.cat([held[:n, :n], across[:, :n].T, held[:n, n:]], 1)
        middle = torch.cat([across[:, :n], among, across[:, n:]], 1)
        bottom = torch.cat([held[n:, :n], across[:, n:].T, held[n:, n:]], 1)
        return torch.cat([top, middle, bottom])

    @cached_property
    def _term_squares(self) -> Tensor | None:
        """Squares of what each row is a sum of; None if all are single models."""
        if self.linear is None:
            return None
        n = len(self.models)
        squares = self.inner_products.diagonal().clone()
        sizes = squares[:n].clamp(min=0).nan_to_num(nan=0.0, posinf=0.0).sqrt()
        squares[n : n + len(self.linear)] = (self.linear.abs() @ sizes).square()
        return squares

    @cached_property
    def norms(self) -> Tensor:
        """‖x‖ of each row, float64; not finite where an element is not (or a float64 square overflows)."""
        if self.whole is not None:
            return self.whole.norms
        if self.by_products:
            return self.inner_products.diagonal().clamp(min=0).sqrt()
        return self.reduce(torch.cat([kernels.row_squares(block) for block in self.blocks])).sqrt()

    @cached_property
    def lengths(self) -> Tensor:
        """About ‖x‖ of each row, from one look at them; not finite where an element is not."""
        if self.whole is not None:
            return self.whole.lengths
        if self.by_products:
            return self.norms
        return self.reduce(torch.cat([kernels.row_lengths(block) for block in self.blocks]).square()).sqrt()

    @cached_property
    def ok(self) -> Tensor:
        """Which rows are finite: every element of them, however long they are."""
        if self.whole is not None:
            return self.whole.ok
        if self.by_products:
            return torch.isfinite(self.inner_products.diagonal())
        if self.models.dtype != torch.float64:
            return torch.isfinite(self.lengths)
        wrong = torch.cat([~kernels.finite_rows(block) for block in self.blocks])
        return self.reduce(wrong.double()) == 0

    @property
    def slots(self) -> Tensor:
        """The layout's slots; a message that is not finite counts as missing, its weight goes to self."""
        return self.closed_slots[:, 1:]

    @cached_property
    def closed_slots(self) -> Tensor:
        """(n, k+1) own row first, then the received ones."""
        layout = self.layout
        if self.by_products and self.models.is_cuda:
            from clippedgossip.mixing.kernels_cuda import closed_slots_cuda

            return closed_slots_cuda(self.inner_products, layout.slots, layout.own)
        return torch.cat([layout.own, torch.where(self.ok[layout.slots], layout.slots, layout.own)], 1)

    @cached_property
    def has_long_messages(self) -> Tensor:
        """(n,) which nodes received a message so long that sums need float64: beside their own model, or
        since the sum overflows."""
        if self.models.dtype == torch.float64:
            return torch.zeros_like(self.layout.own[:, 0], dtype=torch.bool)
        norms = self.lengths[self.closed_slots]
        most = torch.finfo(self.models.dtype).max / norms.shape[1]
        return norms.amax(1) > (TERMS * norms[:, 0]).clamp(max=most)

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

    def averages(self, shares: Tensor, slots: Tensor) -> Tensor:
        """(b, m, d) the same for the slots (b, k+1) of some nodes, by m sets of coefficients each,
        (b, m, k+1)."""
        slots = slots.repeat_interleave(shares.shape[1], 0)
        output = self.models.new_empty(len(slots), self.models.shape[1])
        return self._combined(shares.flatten(0, 1), slots, output).view(*shares.shape[:2], -1)

    def _combined(self, coefficients: Tensor, slots: Tensor, output: Tensor) -> Tensor:
        """Each row of the output by its row of coefficients and slots, own ones first."""
        if not self.dense:
            return self._mixed_along_edges(coefficients, slots, output)
        if self.by_products and self.models.is_cuda:
            from clippedgossip.mixing.kernels_cuda import combine_cuda

            return combine_cuda(
                coefficients, slots, self.inner_products, self.linear, self.blocks, TERMS, output
            )
        n = len(self.models)
        rows = n if self.linear is None else n + len(self.linear)
        rows += 0 if self.extra is None else len(self.extra)
        spread = coefficients.new_zeros(len(slots), rows).scatter_add_(1, slots, coefficients)
        fine = self.ok[slots[:, :1]]
        spread = torch.where(fine, spread, torch.nan)  # a diverged node stays so, whatever it receives
        parts = [spread[:, :n]]
        ok = self.ok[:n]
        if self.linear is not None:
            lied = n + len(self.linear)
            finite = torch.where(self.ok[n:lied, None], self.linear, 0.0)  # 0·NaN is NaN
            parts[0] = parts[0] + spread[:, n:lied] @ finite
        if self.extra is not None:
            parts.append(spread[:, rows - len(self.extra) :])
            ok = torch.cat([ok, self.ok[rows - len(self.extra) :]])
        wide = None if self.models.dtype == torch.float64 else self._wide(parts, ok, slots)
        return kernels.combine(parts, self.blocks, ok, wide, output)

    def _wide(self, coefficients: list[Tensor], ok: Tensor, slots: Tensor) -> Tensor:
        """(outputs,) which sums of rows to take in float64."""
        norms = self.norms[: len(self.models)]
        if self.extra is not None:
            norms = torch.cat([norms, self.norms[len(self.norms) - len(self.extra) :]])
        held = torch.cat(coefficients, 1) if len(coefficients) > 1 else coefficients[0]
        return _wide(held, torch.where(ok, norms, 0.0), norms[slots[:, 0]])

    def _mixed_along_edges(self, coefficients: Tensor, slots: Tensor, output: Tensor) -> Tensor:
        n, closed = slots.shape
        held = torch.cat(self.blocks) if len(self.blocks) > 1 else self.models
        output[:] = torch.nn.functional.embedding_bag(  # a weighted sum of rows, none of them copied first
            slots.flatten(),
            held,
            offsets=torch.arange(0, n * closed, closed, device=self.models.device),
            per_sample_weights=coefficients.to(self.models.dtype).flatten(),
            mode="sum",
        )
        if self.models.dtype == torch.float64:
            return output
        norms = self.lengths[slots]
        again = _wide(coefficients, norms, norms[:, 0])
        return kernels.sum_wide(coefficients, held, slots, again, output)


def _wide(coefficients: Tensor, norms: Tensor, own: Tensor) -> Tensor:
    """(outputs,) which sums of float32 rows need float64: their terms may cancel to less than float32's
    rounding of them, or a row is so long that its coefficient is below float32's smallest."""
    terms = (coefficients.abs() * norms).sum(1)
    far = ((norms > kernels.HUGE) & (coefficients != 0)).any(1)
    return far | (terms > TERMS * own)


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
        """The moment, and the seed that draws derive from."""
        return self.inbox.context

    @property
    def nodes(self) -> Tensor:
        """(b,) who mixes."""
        return self.inbox.layout.nodes[self.group]

    @property
    def senders(self) -> Tensor:
        """(b, k) who sent."""
        return self.inbox.layout.senders[self.group]

    @property
    def byzantine(self) -> Tensor | None:
        """(b, k) which senders are Byzantine, where it is known: for the oracle radius alone."""
        known = self.inbox.layout.byzantine
        return None if known is None else known[self.group]

    @cached_property
    def slots(self) -> Tensor:
        return self.inbox.closed_slots[self.group]

    @cached_property
    def squared(self) -> Tensor:
        """(b, k) ‖x_i − x_j‖²."""
        inbox = self.inbox
        if not inbox.by_products:
            return inbox.reduce(kernels.squared_along_edges(inbox.blocks, self.slots))
        if inbox.models.is_cuda:
            return self._measured[0]
        products = inbox.inner_products
        norms = products.diagonal()
        own, other = self.slots[:, :1], self.slots[:, 1:]
        return torch.add(norms[own] + norms[other], products[own, other], alpha=-2).clamp(min=0)

    @cached_property
    def distances(self) -> Tensor:
        """(b, k) ‖x_i − x_j‖."""
        return self.squared.sqrt()

    @cached_property
    def products(self) -> Tensor:
        """(b, k+1, k+1) ⟨x_j − x_i, x_l − x_i⟩ between any two of own and received; symmetric."""
        inbox = self.inbox
        if not inbox.by_products:
            return self._products_of_differences()
        whole, own = inbox.inner_products, self.slots[:, :1]
        if inbox.models.is_cuda:
            return self._products_on_gpu(whole)
        local = whole[self.slots[:, :, None], self.slots[:, None, :]]
        to_own = whole[self.slots, own]
        found = (local + to_own[:, :1, None]) - (to_own[:, :, None] + to_own[:, None, :])
        return kernels.symmetric(found)

    def _products_on_gpu(self, whole: Tensor) -> Tensor:
        from clippedgossip.mixing.kernels_cuda import local_products, products_again

        inbox, found = self.inbox, local_products(whole, self.slots)
        if inbox.linear is None:
            return found
        unclear = self._measured[1].any(1)
        again = products_again(inbox.blocks, self.slots, unclear.to(torch.int8), inbox.linear)
        return kernels.symmetric(torch.where(unclear[:, None, None], inbox.reduce(again), found))

    @cached_property
    def _measured(self) -> tuple[Tensor, Tensor]:
        """On a GPU: (b, k) ‖x_i − x_j‖², and which of them the products do not tell. These are taken again:
        distances to linear messages."""
        from clippedgossip.mixing.kernels_cuda import squared_along_edges_cuda, squared_from_products

        inbox = self.inbox
        found, unclear = squared_from_products(inbox.inner_products, inbox._term_squares, self.slots)
        if inbox.linear is None:
            return found, unclear
        again = squared_along_edges_cuda(inbox.blocks, self.slots, unclear, inbox.linear)
        return torch.where(unclear != 0, inbox.reduce(again), found), unclear

    @cached_property
    def pairs(self) -> Tensor:
        """(b, k+1, k+1) squared distances between any two of own and received; symmetric."""
        if self.inbox.models.dtype == torch.float64:
            return self._pairs_by_differences()
        norms = self.products.diagonal(dim1=1, dim2=2)
        return torch.add(norms[:, :, None] + norms[:, None, :], self.products, alpha=-2).clamp(min=0)

    def centered(self, iterations: int, radius: float, clip: bool) -> Tensor | None:
        """(b, k+1) the coefficients of a centre after so many iterations of `CenteredClipping` (`clip`) or
        `GeometricMedian`, where a GPU does them in one kernel, which holds all products of a node."""
        narrow = self.inbox.models.dtype != torch.float64
        if not (self.weights.is_cuda and narrow and self.closed_present.shape[1] <= MOST_IN_ONE_KERNEL):
            return None
        from clippedgossip.mixing.kernels_cuda import center_cuda

        return center_cuda(self.products, self.reach, self.closed_present, iterations, radius, SLACK, clip)

    @cached_property
    def reach(self) -> Tensor:
        """(b, k+1) so long that rounding takes no more than SLACK·(Σ_j |u_j| reach_j)² from u P uᵀ, P =
        `products`: the distance, for a message."""
        return self.products.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()

    @cached_property
    def own_norms(self) -> Tensor:
        """(b,) ‖x_i‖."""
        return self.inbox.norms[self.group]

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
        return self.inbox.averages(shares, self.slots)

    def squared_to(self, coefficients: Tensor) -> Tensor:
        """(b, k+1) ‖z − x_j‖² for z = Σ_j c_j x_j with Σ c = 1: (c − 1_j) P (c − 1_j)ᵀ, P = `products`."""
        if self.inbox.models.dtype == torch.float64:
            return self._squared_to_sum(coefficients)
        return self._squared_by_products(coefficients)

    def _squared_by_products(self, coefficients: Tensor) -> Tensor:
        across = (self.products * coefficients[:, None]).sum(2)
        spread = (across * coefficients).sum(1, keepdim=True)
        found = self.products.diagonal(dim1=1, dim2=2) - 2 * across + spread
        terms = (coefficients.abs() * self.reach).sum(1, keepdim=True) + self.reach
        return found.clamp(min=0) + SLACK * terms.square()

    def mapped(self, premix: Tensor, weights: Tensor) -> "Neighborhood":
        """The neighbourhood of premix @ messages, (b, k'+1, k+1), whose rows sum to 1."""
        return Averages(self, premix, weights)

    def only(self, places: Tensor, weights: Tensor) -> "Neighborhood":
        """The neighbourhood of the messages at some places (b, m+1), own first, with weights (b, m)."""
        return _Some(self, places, weights)

    def _products_of_differences(self) -> Tensor:
        used = self.inbox
        b, closed = self.slots.shape
        total = torch.zeros(b, closed, closed, dtype=torch.float64, device=self.slots.device)
        for part in kernels.message_chunks(self.slots.numel(), used.models, 16):
            differences = used.rows(self.slots, part).double() - used.rows(self.slots[:, :1], part).double()
            total += differences @ differences.mT
        return kernels.symmetric(used.reduce(total))

    def _pairs_by_differences(self) -> Tensor:
        """One difference for each pair: nothing is lost where two messages are close, and far from self."""
        used, closed = self.inbox, self.slots.shape[1]
        total = torch.zeros(*self.slots.shape, closed, dtype=torch.float64, device=self.slots.device)
        for part in kernels.message_chunks(self.slots.numel(), used.models, 16):
            rows = used.rows(self.slots, part)
            for place in range(closed - 1):
                total[:, place + 1 :, place] += (rows[:, place + 1 :] - rows[:, place, None]).square().sum(2)
        return kernels.symmetric(used.reduce(total))

    def _squared_to_sum(self, coefficients: Tensor) -> Tensor:
        """The same from z itself, as it is rounded."""
        used, (b, closed) = self.inbox, self.slots.shape
        total = torch.zeros(b, closed, dtype=torch.float64, device=self.slots.device)
        for part in kernels.message_chunks(self.slots.numel(), used.models, 16):
            average = used.part(part).averages(coefficients[:, None], self.slots)
            total += (used.rows(self.slots, part) - average).square().sum(2)
        return used.reduce(total)


class _Derived(Neighborhood):
    """A neighbourhood made from another, with weights of its own."""

    def __init__(self, base: Neighborhood, weights: Tensor) -> None:
        super().__init__(base.inbox, base.group)
        self.base, self.given_weights = base, weights

    @cached_property
    def weights(self) -> Tensor:
        return self.given_weights

    @cached_property
    def present(self) -> Tensor:
        return self.weights > 0

    @cached_property
    def closed_weights(self) -> Tensor:
        return from_neighbors(self.weights)

    @cached_property
    def closed_present(self) -> Tensor:
        return torch.cat([self.present.new_ones(len(self.present), 1), self.present], 1)


class _Some(_Derived):
    """A neighbourhood of some of another's messages."""

    def __init__(self, base: Neighborhood, places: Tensor, weights: Tensor) -> None:
        super().__init__(base, weights)
        self.places = places

    @cached_property
    def slots(self) -> Tensor:
        return self.base.slots.gather(1, self.places)

    @property
    def senders(self) -> Tensor:
        return self.base.senders.gather(1, self.places[:, 1:] - 1)

    @property
    def byzantine(self) -> Tensor | None:
        known = self.base.byzantine
        return None if known is None else known.gather(1, self.places[:, 1:] - 1)


class Averages(_Derived):
    """A neighbourhood of averages of another's messages."""

    def __init__(self, base: Neighborhood, premix: Tensor, weights: Tensor) -> None:
        super().__init__(base, weights)
        self.premix, self.from_own = premix, premix - premix[:, :1]

    @cached_property
    def products(self) -> Tensor:
        return kernels.symmetric(self.from_own @ self.base.products @ self.from_own.mT)

    @cached_property
    def reach(self) -> Tensor:
        return (self.from_own.abs() @ self.base.reach[:, :, None])[:, :, 0]

    @cached_property
    def pairs(self) -> Tensor:
        """An upper bound on each squared distance: where terms cancel, the error of rounding is added."""
        norms = self.products.diagonal(dim1=1, dim2=2)
        found = torch.add(norms[:, :, None] + norms[:, None, :], self.products, alpha=-2).clamp(min=0)
        found = found + SLACK * (self.reach[:, :, None] + self.reach[:, None, :]).square()
        return found.masked_fill(torch.eye(found.shape[1], dtype=torch.bool, device=found.device), 0.0)

    @cached_property
    def squared(self) -> Tensor:
        return self.pairs[:, 0, 1:]

    @property
    def senders(self) -> Tensor:
        """The sender of each message. An average of several has none; its place stands for one."""
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

    def only(self, places: Tensor, weights: Tensor) -> Neighborhood:
        return self.base.mapped(self.premix.take_along_dim(places[:, :, None], 1), weights)

    def squared_to(self, coefficients: Tensor) -> Tensor:
        return self._squared_by_products(coefficients)


def from_neighbors(coefficients: Tensor) -> Tensor:
    """(b, k+1) coefficients of self and neighbours: what the neighbours do not get goes to self."""
    return torch.cat([1 - coefficients.sum(1, keepdim=True), coefficients], 1)
