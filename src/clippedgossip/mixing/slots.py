"""Which node receives messages from which, as index tables: of a network, and of each round of one that
changes."""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from clippedgossip.network import Network
from clippedgossip.network.schedule import RandomNeighbours, Survey

AHEAD = 4  # rounds whose layouts are made before a GPU needs them
COPIES = 8  # rounds whose layouts may be on their way to a GPU
DRAWN = 16  # rounds that a GPU draws at once,
DRAWN_LINKS = 4_000_000  # and their links


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
    known_counts: tuple[int, ...] | None = None  # numbers of neighbours, where they need not be looked up
    any_of: tuple[int, ...] | None = None  # numbers of neighbours of all rounds, where a CUDA graph holds all
    late_slots: Tensor | None = None  # (n, k) the slots, where some messages were sent in earlier rounds
    late: Tensor | None = None  # (p,) rows among all that was sent lately, which follow all other rows

    def remember(self, name: str, compute: Callable[[], Any]) -> Tensor:
        """A constant of the network, copied to this device once: a captured round cannot copy."""
        if name not in self.memo:
            self.memo[name] = torch.as_tensor(compute(), device=self.slots.device)
        kept: Tensor = self.memo[name]
        return kept

    @staticmethod
    def of(
        network: Network,
        device: torch.device | str = "cpu",
        *,
        width: int | None = None,
        byzantine_links: int = 0,
    ) -> "Layout":
        """The regular nodes of a network. Every edge from a Byzantine node has a row of its own, after
        theirs. Where a CUDA graph needs the same shapes in all rounds, there are `width` slots, and as many
        rows of Byzantine messages as are asked for; those without an edge are not used."""
        regular = network.regular
        row_of = np.full(network.n, -1, dtype=np.int64)
        row_of[regular] = np.arange(len(regular))
        degrees = network.degrees[regular]
        width = int(degrees.max(initial=0)) if width is None else width
        column = np.arange(width)
        real = column < degrees[:, None]
        edge = np.where(real, network.indptr[regular][:, None] + column, 0)
        some = len(network.indices) > 0
        senders = np.where(real, network.indices[edge] if some else 0, -1)
        weights = np.where(real, network.edge_weights()[edge] if some else 0.0, 0.0)
        byzantine = real & network.is_byzantine[senders]
        slots = np.where(real, row_of[senders], np.arange(len(regular))[:, None])
        slots[byzantine] = len(regular) + np.arange(byzantine.sum())

        byzantine_senders, byzantine_receivers = senders[byzantine], np.nonzero(byzantine)[0]
        unused = max(0, byzantine_links - len(byzantine_senders))
        if unused:
            byzantine_senders = np.append(byzantine_senders, np.repeat(network.byzantine[:1], unused))
            byzantine_receivers = np.append(byzantine_receivers, np.zeros(unused, dtype=np.int64))

        def on_device(array: np.ndarray) -> Tensor:
            return torch.tensor(array, device=device)

        return Layout(
            slots=on_device(slots),
            weights=on_device(weights),
            nodes=on_device(regular),
            senders=on_device(senders),
            byzantine=on_device(byzantine),
            byzantine_senders=on_device(byzantine_senders),
            byzantine_receivers=on_device(byzantine_receivers),
        )

    def to(self, device: torch.device | str, *, counts: tuple[int, ...]) -> "Layout":
        """The same on a device, where numbers of neighbours are not to be looked up."""
        held = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        moved: dict[str, Any] = {
            name: part.to(device) for name, part in held.items() if isinstance(part, Tensor)
        }
        return replace(self, **moved, known_counts=counts, memo={})

    def views(self, *times: int, **where: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Memory for all its tensors in one piece, and the part of each: they are copied at once. With
        `times`, memory for so many layouts."""
        held = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        tensors = {name: part for name, part in held.items() if isinstance(part, Tensor)}
        ends = np.cumsum([-(-part.nbytes // 16) * 16 for part in tensors.values()])
        whole = torch.zeros(*times, int(ends[-1]), dtype=torch.uint8, **where)
        parts = {
            name: whole[..., end - -(-part.nbytes // 16) * 16 :][..., : part.nbytes]
            .view(part.dtype)
            .view(*times, *part.shape)
            for (name, part), end in zip(tensors.items(), ends.tolist(), strict=True)
        }
        return whole, parts

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
        """Number of neighbours of each node, or those that occur."""
        if self.any_of is not None or self.known_counts is not None:
            return self.any_of or self.known_counts or ()
        return tuple((self.weights > 0).sum(1).tolist()) if self.like is None else self.like.counts

    @property
    def numbers(self) -> tuple[int, ...]:
        """The receivers' identities, which no round changes. Read once: a captured round cannot read them."""
        if self.like is not None:
            return self.like.numbers
        if "numbers" not in self.memo:
            self.memo["numbers"] = tuple(self.nodes.tolist())
        found: tuple[int, ...] = self.memo["numbers"]
        return found

    @cached_property
    def by_count(self) -> tuple[tuple[int, Tensor], ...]:
        """(number of neighbours, the nodes that have it), so that rules need not handle empty slots."""
        return tuple((count, nodes) for count, _, nodes in self.by_count_and((0,) * len(self.slots)))

    def by_count_and(self, kinds: tuple[float, ...]) -> tuple[tuple[int, float, Tensor], ...]:
        """(number of neighbours, kind, the nodes that have both), for a kind of each node. With `any_of`,
        those that have the kind: `has_count` says which of them have so many neighbours in the round."""
        if kinds not in self.memo:
            alike: dict[tuple[int, float], list[int]] = {}
            for node, kind in enumerate(kinds[: len(self.slots)]):
                for count in self.any_of or self.counts[node : node + 1]:
                    alike.setdefault((count, kind), []).append(node)
            self.memo[kinds] = tuple(
                (count, kind, torch.tensor(nodes, device=self.slots.device))
                for (count, kind), nodes in sorted(alike.items())
            )
        groups: tuple[tuple[int, float, Tensor], ...] = self.memo[kinds]
        return groups

    def has_count(self, count: int, nodes: Tensor) -> Tensor:
        """(b, 1) which of these nodes have so many neighbours."""
        return self.present[nodes].sum(1, keepdim=True) == count

    def averages(self, who: str, weights: Tensor, nodes: Tensor) -> "Layout":
        """A layout in which every message has a row of its own, with weights (n, k'). For the same `who`, the
        same weights must always be 0: they are read once, since a captured round cannot read them."""
        found = Layout.explicit(weights, nodes=nodes)
        first: Layout = self.memo.setdefault(("averages", who), found)
        return found if first is found else replace(first, weights=found.weights, like=first)

    @cached_property
    def packed(self) -> Tensor:
        """(n, k) slot order with the empty slots last."""
        if self.like is not None:
            return self.like.packed
        return (self.weights > 0).to(torch.int8).argsort(dim=1, descending=True, stable=True)


class RoundLayouts:
    """`at` gives the layout of a round.

    With `fixed`, all rounds have the same shapes and the same memory on the device, so that a CUDA graph
    captured in one round can be replayed in all. Random neighbours are then drawn on the device, for some
    rounds at once; of other schedules two threads make the layouts of the next rounds while the GPU works.
    """

    def __init__(
        self, network: Network, seed: int, device: torch.device | str, fixed: Survey | None = None
    ) -> None:
        self.network, self.seed, self.device, self.fixed = network, seed, torch.device(device), fixed
        self._held: Layout | None = None
        self._place = torch.empty(0)
        self._draws = fixed is not None and isinstance(network.schedule, RandomNeighbours) and not self.kept
        threads = fixed is not None and not self._draws and self.device.type == "cuda"
        self._thread = ThreadPoolExecutor(2, "rounds") if threads else None
        self._coming: dict[int, Future[int]] = {}
        self._staged: list[tuple[Tensor, dict[str, Tensor], torch.cuda.Event | None]] = []
        self._drawn = 0, torch.empty(0)

    @property
    def kept(self) -> int:
        """Of how many rounds the sent models are kept: those that are used, and the one that is sent now."""
        late = 0 if self.network.delay is None else self.network.delay.most
        return late + 1 if late else 0

    def at(self, round: int) -> Layout:
        """The layout of a round, counted from 0."""
        if not self.network.changes:
            if self._held is None:
                self._held = Layout.of(self.network, self.device)
            return self._held
        if self.fixed is None:
            found = self._made(round)
            return found.to(self.device, counts=found.counts)
        if self._held is None:
            self._held = self._reserve(self._made(round))
        if self._draws:
            first, whole = self._drawn
            if not first <= round < first + len(whole):
                first, whole = self._drawn = round, self._draw(round)
            self._place.copy_(whole[round - first])
            return self._held
        coming = self._coming.pop(round, None)
        if coming is None:
            self._coming.clear()
        whole, _, copied = self._staged[self._stage(round) if coming is None else coming.result()]
        self._place.copy_(whole, non_blocking=True)
        if copied is not None and self._thread is not None:
            copied.record()
            for later in range(round + 1, round + 1 + AHEAD):
                if later not in self._coming:
                    self._coming[later] = self._thread.submit(self._stage, later)
        return self._held

    def _made(self, round: int) -> Layout:
        """On the CPU."""
        now = self.network.at(round, self.seed)
        if self.fixed is None:
            found = Layout.of(now)
        else:
            found = Layout.of(now, width=self.fixed.width, byzantine_links=self.fixed.byzantine_links)
        return self._with_late(found, round) if self.kept else found

    def _reserve(self, first: Layout) -> Layout:
        """The memory that a CUDA graph reads, and that from which it is filled."""
        assert self.fixed is not None
        counts = self.fixed.counts
        known = counts * len(first.slots) if len(counts) == 1 else None
        if self.network.schedule is None:
            known = first.counts
        self._place, views = first.views(device=self.device)
        parts: dict[str, Any] = dict(views)
        for _ in range(0 if self._draws else COPIES if self._thread else 1):
            event = torch.cuda.Event() if self._thread else None  # type: ignore[no-untyped-call]  # PyTorch leaves it untyped
            self._staged.append((*first.views(pin_memory=event is not None), event))
        return replace(first, **parts, known_counts=known, any_of=None if known else counts, memo={})

    def _draw(self, first: int) -> Tensor:
        """(rounds, bytes) layouts of random neighbours from this round on, as `Layout.of` makes them."""
        network, schedule, fixed, held = self.network, self.network.schedule, self.fixed, self._held
        assert isinstance(schedule, RandomNeighbours)
        assert fixed is not None
        assert held is not None
        nodes, regular = held.remember("regular", network.regular.copy), len(network.regular)
        row_of = np.full(network.n, -1)
        row_of[network.regular] = np.arange(regular)
        rows = held.remember("rows", lambda: row_of)
        is_byzantine = held.remember("is Byzantine", network.is_byzantine.copy)
        degrees = held.remember("degrees", lambda: network.degrees[network.regular])
        rounds = max(1, min(DRAWN, DRAWN_LINKS // (regular * schedule.neighbours)))
        drawn = schedule.places(
            nodes, degrees, torch.arange(first, first + rounds, device=self.device), self.seed
        )
        places = drawn.movedim(0, -1).sort(-1).values[..., : fixed.width]
        real = places < degrees[:, None]
        weights = (0.5 if network.weighting == "lazy" else 1.0) / (real.sum(-1, keepdim=True) + 1.0).double()
        if network.everyone:
            senders = places + (places >= nodes[:, None])
        else:
            starts = held.remember("starts", lambda: network.indptr[network.regular])
            entries = torch.where(real, starts[:, None] + places, 0)
            senders = held.remember("indices", network.indices.copy)[entries]
            if network.fixed_weights:
                weights = held.remember("values", network.edge_weights().copy)[entries]
        byzantine = real & is_byzantine[senders]
        message = byzantine.flatten(1).cumsum(1) - 1
        whole, parts = held.views(rounds, device=self.device)
        parts["nodes"][:] = nodes
        parts["senders"][:] = torch.where(real, senders, -1)
        parts["weights"][:] = torch.where(real, weights, 0.0)
        parts["byzantine"][:] = byzantine
        own = torch.where(real, rows[senders], held.own)
        parts["slots"][:] = torch.where(byzantine, regular + message.view_as(own), own)
        links = fixed.byzantine_links
        # One more for all that is no such message; rounds after the run's last one may have too many.
        place = torch.where(byzantine.flatten(1), message, links).clamp(max=links)
        unused = int(network.byzantine[0]) if links else 0
        for name, blank, said in (
            ("byzantine_senders", unused, senders),
            ("byzantine_receivers", 0, held.own.expand_as(senders)),
        ):
            filled = nodes.new_full((rounds, links + 1), blank)
            parts[name][:] = filled.scatter_(1, place, said.flatten(1))[:, :links]
        return whole

    def _stage(self, round: int) -> int:
        """Write the layout of a round where it can be copied from. Returns the place."""
        place = round % len(self._staged)
        _, parts, copied = self._staged[place]
        found = self._made(round)
        if copied is not None:
            copied.synchronize()  # an earlier round may not have been copied yet
        for name, part in parts.items():
            part.copy_(getattr(found, name))
        return place

    def _with_late(self, layout: Layout, round: int) -> Layout:
        """Row a of the models sent b rounds ago is row (round − b) mod kept, a of all that is kept."""
        delay, slots = self.network.delay, layout.slots.numpy().copy()
        assert delay is not None
        assert layout.byzantine is not None
        assert layout.byzantine_senders is not None
        regular, first = len(slots), len(slots) + len(layout.byzantine_senders)
        real = ((layout.weights > 0) & ~layout.byzantine).numpy()
        rows, _ = np.nonzero(real)
        ages = delay.ages(layout.nodes.numpy()[rows], layout.senders.numpy()[real], round, self.seed)
        kept = (round - ages) % self.kept * regular + slots[real]
        late = (ages > 0) & (ages <= round)
        found, places = np.unique(kept[late], return_inverse=True)
        chosen = np.where(ages > round, rows, slots[real])
        chosen[late] = first + places.reshape(-1)
        slots[real] = chosen
        if self.fixed is not None:
            found = np.append(
                found, np.zeros(regular * min(self.kept, self.fixed.width) - len(found), dtype=np.int64)
            )
        return replace(layout, late_slots=torch.from_numpy(slots), late=torch.from_numpy(found))
