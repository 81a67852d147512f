"""What a rule is: own model, received models, weights in; the mixed model out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Integral
from typing import ClassVar

import torch
from torch import Tensor

import clippedgossip.devices as devices
from clippedgossip.devices import compiled, ours
from clippedgossip.errors import RuleError, counted, warn_user
from clippedgossip.mixing import kernels
from clippedgossip.mixing.inbox import Context, Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.rules.bound import Bound, Seen, Unbounded
from clippedgossip.rules.sorting import middle_network

MOST_IN_REGISTERS = 32  # values of a coordinate that a GPU sorts without memory
UNCLIPPED = 1 - 1e-9  # a message that has less of its weight in the result was clipped
Loss = Callable[[Neighborhood], Tensor]


@dataclass(frozen=True)
class Rule(ABC):
    """Pure, deterministic, and without knowledge of which nodes are Byzantine. A message that is not finite
    counts as not received. The weight of a message that is not received goes to the node's own model."""

    @devices.usual_modes()
    def __call__(
        self, own: Tensor, received: Tensor, weights: Tensor, context: Context | None = None
    ) -> Tensor:
        """own (*batch, d), received (*batch, k, d), weights (*batch, k) -> (*batch, d), without gradients.

        The self-weight is 1 − Σ weights; a slot of weight 0 holds no neighbour.
        """
        context = context or Context()
        self._check_tensors(own, received, weights)
        self._check_shapes(own, received, weights)
        self._check_weights(weights)
        own, received, weights = own.detach(), received.detach(), weights.detach()
        n, (k, d) = own.shape[:-1].numel(), received.shape[-2:]
        if not n:
            return own.clone()
        flat = weights.reshape(n, k)
        lies, senders = (
            None if known is None else known.expand(weights.shape).reshape(n, k)
            for known in (context.byzantine, context.senders)
        )
        nodes = None if context.nodes is None else context.nodes.expand(weights.shape[:-1]).reshape(-1)
        inbox = Inbox(
            layout=Layout.explicit(flat, lies, nodes, senders),
            models=own.reshape(n, d),
            extra=received.reshape(n * k, d),
            context=context,
        )
        return self.mix(inbox).reshape(own.shape)

    @property
    def capturable(self) -> bool:
        """Whether it never synchronises with the CPU, so that a CUDA graph can capture its round. A rule of
        the user's own must say so."""
        return ours(self)

    most_counts: ClassVar[int] = 1
    """On a network that changes: the most different numbers of neighbours with which a round is captured."""

    clips: ClassVar[bool] = False
    """Whether it clips messages, which are then counted."""

    @property
    def needs_losses(self) -> bool:
        """Whether the rule compares losses, as Mozi does, and was given none."""
        return False

    def with_losses(self, loss_of: Loss) -> "Rule":
        """The rule with the losses it needs: `loss_of` gives (b, k+1), own model first, for a neighbourhood
        of the k messages that the rule has to try."""
        return self

    @abstractmethod
    def mix(self, inbox: Inbox) -> Tensor:
        """(n, d) the mixed models of all nodes at once."""

    def check(self, neighbors: int) -> None:
        """Raise a RuleError if the rule cannot work with this number of neighbours."""
        return

    def caveat(self, neighbors: int) -> str | None:
        """Why the rule's theorem does not apply to a node with so many neighbours; None if it does."""
        return None

    def warn(self, neighbors: int) -> None:
        """Say once why the rule's theorem does not apply to such a node."""
        if caveat := self.caveat(neighbors):
            warn_user(caveat)

    def bound(self, seen: Seen) -> Bound:
        """Where the node's model is after mixing, whatever its Byzantine neighbours sent."""
        return Unbounded("none is stated")

    def at(self, node: int) -> "Rule":
        """The rule as this node alone runs it, where nodes differ."""
        return self

    @staticmethod
    def _check_tensors(own: Tensor, received: Tensor, weights: Tensor) -> None:
        for name, given in (("own", own), ("received", received), ("weights", weights)):
            if isinstance(given, Tensor) and given.is_floating_point() and given.dim():
                continue
            kind = f"{given.dtype}, {given.dim()}-D" if isinstance(given, Tensor) else type(given).__name__
            raise RuleError(
                f"{name} is {kind}\ngive a tensor of floating-point numbers with at least one dimension"
            )
        if received.dtype != own.dtype:
            raise RuleError(
                f"received is {received.dtype} and own is {own.dtype}; give both in the same type"
            )

    @staticmethod
    def _check_shapes(own: Tensor, received: Tensor, weights: Tensor) -> None:
        if received.shape[:-2] != own.shape[:-1] or received.shape[-1:] != own.shape[-1:]:
            raise RuleError(
                f"received has shape {tuple(received.shape)}; own of shape {tuple(own.shape)} needs "
                f"{(*own.shape[:-1], 'k', own.shape[-1])}"
            )
        if weights.shape != received.shape[:-1]:
            raise RuleError(
                f"weights have shape {tuple(weights.shape)}; "
                f"one for each received model would be {tuple(received.shape[:-1])}"
            )

    @staticmethod
    def _check_weights(weights: Tensor) -> None:
        if not weights.numel() or weights.device.type != "cpu":  # reading one would synchronise with the GPU
            return
        least, most = float(weights.min()), float(weights.double().sum(-1).max())
        if not least >= 0:
            raise RuleError(f"a weight is {least:.3g}; every weight must be at least 0")
        # k weights that were divided by their sum are each half an eps off, and so are the k additions.
        if most > 1 + (weights.shape[-1] + 1) * torch.finfo(weights.dtype).eps:
            raise RuleError(
                f"the weights of a node's neighbours sum to {most:.7g}; they must sum to at most 1, "
                "the rest is its own"
            )


@dataclass(frozen=True)
class LinearRule(Rule):
    """A rule whose output is a linear combination of the messages, with coefficients that depend on weights
    and distances only. A rule works on small matrices; the models of all nodes are read in two passes."""

    most_counts: ClassVar[int] = 1 << 30

    @abstractmethod
    def coefficients(self, near: Neighborhood) -> Tensor:
        """(b, k+1) coefficients of self and each slot, summing to 1; empty slots get 0."""

    def plan(self, inbox: Inbox) -> Tensor:
        """(n, k+1) the coefficients of all nodes."""
        counts = set(inbox.layout.counts)
        for count in counts - {0}:
            self.check(count)
        found = torch.cat([self.coefficients(near) for near in inbox.neighborhoods()])
        if 0 not in counts:
            return found
        alone = torch.zeros_like(found)
        alone[:, 0] = 1  # whoever has no neighbour in a round keeps its model
        return torch.where(inbox.layout.present.any(1, keepdim=True), found, alone)

    def mix(self, inbox: Inbox) -> Tensor:
        inbox = inbox.measurable()
        return inbox.mixed(self.plan(inbox))


@dataclass(frozen=True)
class ToldFaulty(Rule):
    """A rule that is told how many neighbours are Byzantine at most."""

    faulty: int
    others: ClassVar[int] = 0  # neighbours that it needs beside them

    def __post_init__(self) -> None:
        whole("faulty", self.faulty, 0)

    def check(self, neighbors: int) -> None:
        needed, most = self.faulty + self.others, neighbors - self.others
        if neighbors < needed:
            raise RuleError(
                f"{type(self).__name__} with {self.faulty} faulty needs at least "
                f"{counted(needed, 'neighbour')}, a node has {neighbors}; "
                + (f"lower it to at most {most} or add edges" if most >= 0 else "add edges")
            )


@dataclass(frozen=True)
class CoordinateRule(Rule):
    """A rule that works on each coordinate alone."""

    most_counts: ClassVar[int] = 4  # each is computed for all nodes
    weighted = False  # whether the rule uses the weights, or only which nodes are neighbours

    @abstractmethod
    def combine(self, values: list[Tensor], weights: Tensor) -> Tensor:
        """Own and received values of some nodes: k+1 tensors (b, c), which may be overwritten, and weights
        (b, k+1), in the type to sum in -> (b, c)."""

    def drops(self, size: int) -> int | None:
        """Of so many values, how many go from either end, if the rule is the mean of the others."""
        return None

    def parts(self, layout: Layout) -> Iterator[tuple["CoordinateRule", int, Tensor]]:
        """(the rule, number of neighbours, nodes) for nodes with as many neighbours and the same rule."""
        for count, nodes in layout.by_count:
            yield self, count, nodes

    def mix(self, inbox: Inbox) -> Tensor:
        inbox = inbox.by_coordinate()
        varies, output = inbox.layout.any_of is not None, torch.empty_like(inbox.models)
        for rule, count, nodes in self.parts(inbox.layout):
            if not count:  # whoever has no neighbour in a round keeps its model
                found = inbox.models[nodes]
            else:
                rule.check(count)
                if not output.is_cuda and not varies:
                    rule._mix_on_cpu(inbox, count, nodes, output)
                    continue
                found = rule._mix_compiled(inbox, count, nodes)
                if len(nodes) == len(output) and not varies:
                    return found
            if varies:
                found = torch.where(inbox.layout.has_count(count, nodes), found, output[nodes])
            output[nodes] = found
        return output

    def _mix_on_cpu(self, inbox: Inbox, count: int, nodes: Tensor, output: Tensor) -> None:
        """The nodes with this many neighbours. Nodes with long messages sum in float64."""
        long = inbox.has_long_messages[nodes]
        for some, wide in ((nodes[~long], self.weighted), (nodes[long], True)):
            if len(some):
                self._mix_some(inbox, count, some, output, wide)

    def _mix_some(self, inbox: Inbox, count: int, nodes: Tensor, output: Tensor, wide: bool) -> None:
        """The nodes with this many neighbours, a few coordinates at a time; sums in float64 if `wide`."""
        rows, weights = self._members(inbox, count, nodes, wide)
        first, copies = self._alike(rows, weights)
        distinct = len(first) == len(nodes)
        kept = slice(None) if distinct else first
        columns, weights = rows[kept].unbind(1), weights[kept]

        parts = kernels.column_chunks(len(first) * (count + 2), output.shape[1], output.element_size())
        if not parts:  # a slice of no coordinates, where there are more processes than these
            return
        width = parts[0].stop
        in_a_row = int(nodes[-1] - nodes[0]) == len(nodes) - 1

        def combine(parts: Sequence[slice]) -> None:
            scratch = output.new_empty(count + 1, len(first) * width)  # fresh memory costs more than the work
            for part in parts:
                blocks = [block[:, part] for block in inbox.blocks]
                here = torch.cat(blocks) if len(blocks) > 1 else blocks[0]
                held = scratch[:, : len(first) * here.shape[1]].view(count + 1, len(first), -1)
                pairs = zip(columns, held, strict=True)
                values = [torch.index_select(here, 0, column, out=value) for column, value in pairs]
                combined = self.combine(values, weights).to(output.dtype)
                combined = combined if distinct else combined.index_select(0, copies)
                if in_a_row:
                    output[nodes[0] : nodes[-1] + 1, part] = combined
                else:
                    output[:, part].index_copy_(0, nodes, combined)

        devices.share(combine, parts)

    def _mix_compiled(self, inbox: Inbox, count: int, nodes: Tensor) -> Tensor:
        """The same, gathered and sorted in one kernel; alike nodes are not worth a stop to find them."""
        rows, weights = self._members(inbox, count, nodes, self.weighted)
        if inbox.models.is_cuda and (trim := self.drops(count + 1)) is not None:
            return _mean_of_middle(inbox.blocks, rows, trim)
        combine = compiled((repr(self), count), partial(_gather_and_combine, self), dynamic=True)
        found: Tensor = combine(inbox.blocks, rows, weights)
        return found

    @staticmethod
    def _members(inbox: Inbox, count: int, nodes: Tensor, wide: bool) -> tuple[Tensor, Tensor]:
        """(b, count+1) rows and weights of nodes with this many neighbours, self first."""
        layout = inbox.layout
        order = layout.packed[nodes, :count]
        rows = torch.cat([nodes[:, None], inbox.slots[nodes].gather(1, order)], 1)
        weights = layout.weights[nodes].gather(1, order)
        weights = torch.cat([1 - weights.sum(1, keepdim=True), weights], 1)
        return rows, weights if wide else weights.to(inbox.models.dtype)

    def _alike(self, rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Nodes that receive the same messages get the same result: (representatives, which one each node
        copies).

        On a complete graph where all nodes receive the same messages, the work is done once.
        """
        order = rows.argsort(1)
        key = rows.gather(1, order).to(torch.float64)
        if self.weighted:
            key = torch.cat([key, weights.gather(1, order).to(torch.float64)], 1)
        _, copies = torch.unique(key, dim=0, return_inverse=True)
        groups = int(copies.max()) + 1
        first = torch.full((groups,), len(rows), device=rows.device)
        first = first.scatter_reduce(0, copies, torch.arange(len(rows), device=rows.device), "amin")
        return first, copies


def _mean_of_middle(blocks: list[Tensor], rows: Tensor, trim: int) -> Tensor:
    """On a GPU, per coordinate of the rows (b, k+1): the mean without the `trim` largest and smallest."""
    size = rows.shape[1]
    if size <= MOST_IN_REGISTERS:
        from clippedgossip.mixing.kernels_cuda import middle_cuda

        comparators, places = middle_network(size, trim)
        return middle_cuda(blocks, rows, tuple(place for pair in comparators for place in pair[:2]), places)
    output = blocks[0].new_empty(len(rows), blocks[0].shape[1])
    for part in kernels.message_chunks(2 * rows.numel(), output, 8):
        values = torch.cat([block[:, part] for block in blocks])[rows]
        found = values.sort(1).values[:, trim : size - trim].mean(1, dtype=torch.float64).to(values.dtype)
        output[:, part] = torch.where(values[:, 0].isnan(), values[:, 0], found)  # a diverged node stays so
    return output


def _gather_and_combine(rule: CoordinateRule, blocks: list[Tensor], rows: Tensor, weights: Tensor) -> Tensor:
    held = blocks[0] if len(blocks) == 1 else torch.cat(blocks)
    values = [held[column] for column in rows.unbind(1)]
    own = values[0]
    found = rule.combine(values, weights).to(held.dtype)
    return torch.where(own == own, found, own)  # a diverged node stays so; a comparison may lose its NaN


def at_least(name: str, value: float, bound: float) -> None:
    if not value >= bound:
        raise RuleError(f"{name} is {value}; it must be at least {bound}")


def whole(name: str, value: int, bound: int) -> None:
    """A whole number: anything else might be rounded in different ways."""
    if not isinstance(value, Integral) or value < bound:
        raise RuleError(f"{name} is {value!r}; it must be a whole number, at least {bound}")


def fraction(name: str, value: float, *, below: float = 1.0) -> None:
    if not 0 <= value < below:
        raise RuleError(f"{name} is {value}; it must be at least 0 and below {below:g}")
