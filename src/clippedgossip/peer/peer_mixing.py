"""A peer's rule: from its config, in words for its neighbours, and at work on what a round brought."""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor, nn

from clippedgossip.devices import usual_modes
from clippedgossip.errors import ConfigError
from clippedgossip.mixing.inbox import Context, Inbox, Neighborhood
from clippedgossip.mixing.slots import Layout
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.node import Exchange
from clippedgossip.peer.peer_config import Config
from clippedgossip.peer.rejection import VIOLATIONS, Rejection
from clippedgossip.peer.round_neighbours import RoundNeighbours, describe_network
from clippedgossip.randomness import purpose_word
from clippedgossip.rules import ClippedGossip, Oracle, Rule
from clippedgossip.rules.base import UNCLIPPED, LinearRule
from clippedgossip.rules.premix import Premix
from clippedgossip.settings import RuleConfig

Losses = Callable[[Tensor, int], Tensor]
"""Models (m, d) and a round -> (m,) their losses on this peer's own sample of that round."""

ModuleLoss = Callable[[nn.Module, int], Tensor | float]
"""(model, round) -> its loss on this peer's own sample of the round, the same one throughout the round."""

_BLOCK = 1 << 18
"""Coordinates a core mixes at a time."""
_SLICE = 1 << 17
_LONGEST = 256


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What a round did."""

    round: int
    missing: Mapping[str, Rejection]
    """Neighbours whose message did not count, and why."""
    rounds: Mapping[str, int]
    """Of which round each message is that counted; usually the same."""
    distances: Mapping[str, float]
    """‖x_j − x_i‖ of those that did."""
    clipped_to: Mapping[str, float] | None
    """What share of its distance each clipped message was clipped to; None for rules that clip none."""
    seconds: float
    deadline: float
    finite: bool = True
    """Whether the peer's own model was, before it was mixed."""

    @property
    def clipped(self) -> int | None:
        """How many of the messages were."""
        return None if self.clipped_to is None else len(self.clipped_to)

    @property
    def rejected(self) -> int:
        """Neighbours that sent something no regular peer sends."""
        return sum(reason in VIOLATIONS for reason in self.missing.values())

    @property
    def neighbour_distance(self) -> float | None:
        """Mean squared distance to what was received."""
        squares = [distance**2 for distance in self.distances.values()]
        return sum(squares) / len(squares) if squares else None


class Mixing:
    """The rule of one peer, which knows its own number and its neighbours'."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.names = [neighbour.name for neighbour in config.neighbours]
        self.number = number_of(config.name) if config.node is None else config.node
        self.senders = torch.tensor([number_of(name) for name in self.names], dtype=torch.int64)
        self.rule = rule_of(config).at(self.number)
        counts = {config.degree}
        if config.network:
            counts = RoundNeighbours(config).counts(config.rounds)
        for count in counts:
            self.rule.check(count)
        self.rule.warn(min(counts, default=0))

    @usual_modes()
    def __call__(
        self, vector: Tensor, exchange: Exchange, into: Sequence[Tensor], *, losses: Losses | None = None
    ) -> Mixed:
        """Writes the rule's result for the own vector and the received ones into `into`: parameters, or one
        vector, on any device. The rule runs on that device, in parts where memory is short."""
        if not self.names:
            tensors.unflatten(vector, into)
            return self._report(vector, exchange, [], [])
        device = into[0].device
        rule = self.rule if losses is None or not self.rule.needs_losses else self._judging(losses)
        with _current(device):
            inbox = self._inbox(vector, exchange, device)
            in_parts = inbox.dense and device.type == "cpu"
            most = _BLOCK * torch.get_num_threads() if in_parts else len(vector)
            start, plan = 0, _plan(rule, inbox)
            for block in tensors.blocks(into, most):
                stop = start + sum(piece.numel() for piece in block)
                part = inbox.part(slice(start, stop))
                mixed = rule.mix(part) if plan is None else part.mixed(plan)
                tensors.unflatten(mixed[0], block)
                start = stop
            one = torch.ones(1, len(self.names))
            shares = (one if plan is None else plan[:, 1:] / inbox.layout.weights)[0].tolist()
            return self._report(vector, exchange, _distances(inbox, measured=plan is not None), shares)

    def _inbox(self, vector: Tensor, exchange: Exchange, device: torch.device) -> Inbox:
        weights, senders = exchange.weights.to(device)[None], self.senders.to(device)[None]
        nodes = torch.tensor([self.number], device=device)
        context = Context(round=exchange.round, rounds=self.config.rounds, seed=self.config.seed)
        return Inbox(
            layout=Layout.explicit(weights, nodes=nodes, senders=senders),
            models=vector.to(device)[None],
            extra=exchange.received.to(device),
            context=context,
        )

    def _judging(self, losses: Losses) -> Rule:
        def loss_of(near: Neighborhood) -> Tensor:
            places = range(near.weights.shape[1] + 1)
            found = [losses(near.message(place), int(near.context.round)) for place in places]
            return torch.stack(found, 1).double()

        return self.rule.with_losses(loss_of)

    def _report(
        self, vector: Tensor, exchange: Exchange, distances: list[float], shares: list[float]
    ) -> Mixed:
        """`shares` of their weights that the messages have in the result."""
        used = [name in exchange.rounds for name in self.names]
        found = dict(compress(zip(self.names, shares, strict=True), used))
        return Mixed(
            round=exchange.round,
            missing=exchange.missing,
            rounds=exchange.rounds,
            distances=dict(compress(zip(self.names, distances, strict=True), used)),
            clipped_to={n: s for n, s in found.items() if s < UNCLIPPED} if self.rule.clips else None,
            seconds=exchange.seconds,
            deadline=exchange.deadline,
            finite=tensors.is_finite(vector),
        )


def rule_of(config: Config) -> Rule:
    """The rule a config names."""
    rule: Rule = _asked(config).build()
    inner = _innermost(rule)
    if isinstance(inner, ClippedGossip) and isinstance(inner.radius, Oracle):
        raise ConfigError(
            'rule.radius = "oracle" must be told who is Byzantine, and no peer can be; '
            "give a number, or {adaptive = 0.25} with a bound on the Byzantine weight"
        )
    return rule


def describe_rule(config: Config) -> str:
    """The rule in words, for hello: every parameter, so that equal rules read alike however written."""
    words = _words(_asked(config).checked().to_mapping()) + describe_network(config)
    if len(words) <= _LONGEST:
        return words
    digest = hashlib.sha256(words.encode()).hexdigest()[:32]
    return f"{words[: _LONGEST - 40]}... {digest}"


def _asked(config: Config) -> RuleConfig:
    return RuleConfig.from_value({"name": "clipped-gossip", **config.rule}, config.folder)


def number_of(name: str) -> int:
    """Which node a peer is when a rule draws: a peer named 3 is node 3, as in a simulated run."""
    return int(name) if name.isdecimal() and len(name) < 19 else purpose_word(name)


def without_losses(config: Config) -> str:
    """What is missing where a rule compares losses."""
    return (
        f"rule {config.rule.get('name')!r} compares losses on this peer's own samples; give it some: "
        "Peer(…, loss=…) or ModuleLearner(…, loss=…), a function (model, round) -> loss"
    )


def module_losses(model: nn.Module, loss: ModuleLoss) -> Losses:
    """Losses of vectors, each written into the module in turn, in evaluation mode; afterwards the module has
    its own parameters again."""

    @torch.no_grad()
    def losses(models: Tensor, round: int) -> Tensor:
        parameters, was_training = tensors.trainable(model), model.training
        own = [parameter.detach().clone() for parameter in parameters]
        model.eval()
        try:
            found = []
            for vector in models:
                tensors.unflatten(vector, parameters)
                found.append(float(loss(model, round)))
        finally:
            model.train(was_training)
            for parameter, before in zip(parameters, own, strict=True):
                parameter.copy_(before)
        return torch.tensor(found, dtype=torch.float64, device=models.device)

    return losses


def _plan(rule: Rule, inbox: Inbox) -> Tensor | None:
    """(1, k+1) the coefficients of own model and messages, computed once from distances or losses; None for a
    rule that has none."""
    if not isinstance(_innermost(rule), LinearRule):
        return None
    assert isinstance(rule, LinearRule)
    return rule.plan(inbox)


def _innermost(rule: Rule) -> Rule:
    return rule.innermost if isinstance(rule, Premix) else rule


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Makes the GPU the current device: kernels start there, wherever their tensors are."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _words(table: Mapping[str, object]) -> str:
    return " ".join([str(table["name"]), *(f"{k}={_word(table[k])}" for k in sorted(table) if k != "name")])


def _word(value: object) -> str:
    if not isinstance(value, Mapping):
        return str(value).replace(" ", "")
    if "name" in value:
        return f"({_words(value)})"
    return ",".join(f"{key}:{_word(value[key])}" for key in sorted(value))


def _distances(inbox: Inbox, *, measured: bool) -> list[float]:
    """‖x_j − x_i‖ of each message: from the inner products, where they are known or a GPU makes them."""
    if inbox.models.is_cuda or measured:
        (near,) = inbox.neighborhoods()
        return near.distances[0].tolist()
    assert inbox.extra is not None
    return [_distance(inbox.models[0], row) for row in inbox.extra]


def _distance(own: Tensor, other: Tensor) -> float:
    """‖own − other‖, in slices: no copy of a model is made."""
    total = 0.0
    for start in range(0, len(own), _SLICE):
        gap = own[start : start + _SLICE].double() - other[start : start + _SLICE].double()
        total += float(gap @ gap)
    return math.sqrt(total)
