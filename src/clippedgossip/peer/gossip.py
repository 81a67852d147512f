"""Robust mixing inside a user's own training loop: create it, then call `mix` after `optimizer.step()`."""

import asyncio
import math
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from clippedgossip.errors import ConfigError, PeerError
from clippedgossip.inbox import Context
from clippedgossip.peer import config as configs
from clippedgossip.peer import identity as identities
from clippedgossip.peer import tensors
from clippedgossip.peer.config import Config
from clippedgossip.peer.identity import Identity
from clippedgossip.peer.node import Exchange, Node
from clippedgossip.peer.reasons import VIOLATIONS, Missing
from clippedgossip.peer.transport.base import Transport
from clippedgossip.rules import Adaptive, Rule, make_rule

_T = TypeVar("_T")
_SLICE = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """What a call of `mix` did."""

    round: int
    missing: Mapping[str, Missing]
    """Neighbours whose message did not count, and why."""
    distances: Mapping[str, float]
    """‖x_j − x_i‖ of those that did."""
    clipped: int | None
    """How many of those exceeded the radius; None for rules that have no fixed one."""
    seconds: float
    deadline: float

    @property
    def rejected(self) -> int:
        return sum(reason in VIOLATIONS for reason in self.missing.values())

    @property
    def consensus_distance(self) -> float | None:
        """Mean squared distance to what was received."""
        squares = [distance**2 for distance in self.distances.values()]
        return sum(squares) / len(squares) if squares else None


class Gossip:
    """A peer that mixes whatever model it is given.

    The exchange has a thread and an event loop of its own. `mix` blocks the caller until the round is over
    (at most the deadline), `amix` does not block the caller's event loop. Parameters travel; buffers
    (batch-norm statistics and the like) stay each peer's own.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        *,
        model: nn.Module | None = None,
        transport: Callable[[], Transport] | None = None,
        node: Callable[..., Node] = Node,
        round: int = 0,
    ) -> None:
        self.config = config
        self.identity = identity
        self.rule = rule_of(config)
        self.rule.check(config.degree)
        self.node: Node | None = None
        self._make_transport = transport or self._real_transport
        self._make_node = node
        self._first_round = round
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="gossip", daemon=True)
        self._thread.start()
        self._closed = False
        if model is not None:
            self.start(sum(p.numel() for p in tensors.trainable(model)))

    @classmethod
    def from_config(cls, path: str | Path, model: nn.Module | None = None) -> Self:
        """Reads `peer.toml` and the identity beside it. With the model given, listens at once."""
        config = configs.load(Path(path))
        return cls(config, identities.load(config.folder), model=model)

    @property
    def round(self) -> int:
        """The round the next `mix` belongs to; it can jump ahead when this peer fell behind."""
        return self._first_round if self.node is None else self.node.round

    def start(self, length: int) -> Node:
        """Listens, greets the neighbours (at most `deadlines.join` seconds), finds their round."""
        if self.node is None:

            async def begin() -> Node:
                node = self._make_node(
                    self.config,
                    self.identity,
                    self._make_transport(),
                    length=length,
                    rule=describe_rule(self.config),
                    round=self._first_round,
                )
                await node.start()
                return node

            self.node = self._run(begin())
        return self.node

    def mix(self, model: nn.Module) -> Mixed:
        """One round: sends the parameters, receives the neighbours', writes the mixture into the model."""
        parameters = tensors.trainable(model)
        mixed, report = self.mix_vector(tensors.flatten(parameters), device=parameters[0].device)
        tensors.unflatten(mixed, parameters)
        return report

    async def amix(self, model: nn.Module) -> Mixed:
        """`mix` for asyncio: the caller's event loop runs on meanwhile."""
        return await asyncio.to_thread(self.mix, model)

    def mix_vector(self, vector: Tensor, device: torch.device | None = None) -> tuple[Tensor, Mixed]:
        """`mix` for a flat float32 vector on the CPU, which is not to be changed afterwards."""
        node = self.start(len(vector))
        if len(vector) != node.length:
            raise PeerError(f"a model of {len(vector)} coordinates; this run began with {node.length}")
        exchange = self._run(node.exchange(vector))
        context = Context(round=exchange.round, rounds=self.config.rounds, seed=self.config.seed)
        device = device or vector.device
        received, weights = exchange.received.to(device), exchange.weights.to(device)
        mixed = self.rule(vector.to(device), received, weights, context) if self.config.neighbours else vector
        return mixed, self._report(vector, exchange)

    def close(self, *, linger: bool = True) -> None:
        """Lets the neighbours have the last message, then leaves."""
        if self._closed:
            return
        self._closed = True
        if self.node is not None:
            self._run(self.node.leave() if linger else self.node.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(linger=error is None)

    def _report(self, vector: Tensor, exchange: Exchange) -> Mixed:
        distances = {
            name: _distance(vector, row)
            for name, row in zip((n.name for n in self.config.neighbours), exchange.received, strict=True)
            if name not in exchange.missing
        }
        radius = getattr(getattr(self.rule, "radius", None), "value", None)
        clipped = None if radius is None else sum(d > radius for d in distances.values())
        return Mixed(
            round=exchange.round,
            missing=exchange.missing,
            distances=distances,
            clipped=clipped,
            seconds=exchange.seconds,
            deadline=exchange.deadline,
        )

    def _real_transport(self) -> Transport:
        from clippedgossip.peer.transport.pins import Pins
        from clippedgossip.peer.transport.rpc import RpcTransport

        pins = Pins(self.config.neighbours, self.config.folder / "neighbours")
        return RpcTransport(self.identity, self.config.bind, pins, self.config.limits)

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


def rule_of(config: Config) -> Rule:
    """The rule a config names."""
    return _make_rule(config.rule)


def _make_rule(table: Mapping[str, object]) -> Rule:
    """`radius = "adaptive"` takes its `delta_max` beside it; wrappers hold a `[rule.rule]` of their own."""
    parameters = dict(table)
    name = str(parameters.pop("name", "clipped-gossip"))
    if parameters.get("radius") == "adaptive":
        bound = parameters.pop("delta_max", None)
        if not isinstance(bound, int | float):
            raise ConfigError('rule.radius = "adaptive" needs rule.delta_max, a bound such as 0.25')
        parameters["radius"] = Adaptive(delta_max=bound)
    inner = parameters.get("rule")
    if isinstance(inner, Mapping):
        parameters["rule"] = _make_rule(inner)
    try:
        return make_rule(name, **parameters)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"rule {name!r}: {error}") from None


def describe_rule(config: Config) -> str:
    """The rule in words, for hello: peers of one run use the same."""
    parameters = dict(config.rule)
    name = parameters.pop("name", "clipped-gossip")
    return " ".join([str(name), *(f"{key}={parameters[key]}" for key in sorted(parameters))])[:256]


def _distance(own: Tensor, other: Tensor) -> float:
    """‖own − other‖, in slices: no copy of a model is made."""
    total = 0.0
    for start in range(0, len(own), _SLICE):
        gap = own[start : start + _SLICE] - other[start : start + _SLICE]
        total += float(torch.sum(gap * gap, dtype=torch.float64))
    return math.sqrt(total)
