"""A Byzantine peer, for tests and demonstrations: the attacks of `attacks/` over a real network, and the
violations of the protocol that only a network has."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from dataclasses import replace

import networkx as nx
import torch
from torch import Tensor

from clippedgossip.attacks import ATTACKS, Attack, Silence, View, make_attack
from clippedgossip.attacks.base import FreeAttack
from clippedgossip.mixing.inbox import Context
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.node import NeighbourState, Node
from clippedgossip.peer.outbox import Message
from clippedgossip.peer.peer_config import FORMER_MISBEHAVIOURS
from clippedgossip.peer.peer_mixing import rule_of
from clippedgossip.peer.rejection import Rejected
from clippedgossip.peer.transport.base import Send
from clippedgossip.peer.wire import Stamp

_HUGE = 10 * 2**30
_FLOOD = 64
_GOOD_ROUNDS = 40
Messages = Callable[[str], Message] | None
"""What each neighbour is sent; None: nothing."""


class ByzantinePeer(Node):
    """A node that misbehaves as `config.misbehave` says; it listens as a regular one does."""

    _first: Message | None = None

    @property
    def how(self) -> str:
        return FORMER_MISBEHAVIOURS.get(self.config.misbehave, self.config.misbehave)

    async def publish(self, vector: Tensor) -> None:
        if self.how in ATTACKS:
            messages = await self._attack(make_attack(self.how), vector)
        else:
            messages = _VIOLATIONS[self.how](self, vector)
        if messages is not None:
            self.outbox.publish(self.round, messages)
        else:
            self.outbox.skip_to(self.round)

    async def start(self) -> None:
        if self.how in _STREAMS:
            self.outbox._stream = _STREAMS[self.how]  # type: ignore[method-assign]  # this peer breaks the protocol
        if self.how == "false-round":  # by its own count it would have nothing new after its first message
            self.outbox._new_to = lambda request: max(self.outbox._messages, default=None)  # type: ignore[method-assign]  # this peer breaks the protocol
        if self.how == "gzip-bomb":
            from clippedgossip.peer.drill.gzip_bomb import arm

            arm(self._transport)
        await super().start()
        if self.how in ("flooding", "hello-flooding"):
            for neighbour in self.neighbours.values():
                for _ in range(_FLOOD):
                    self._spawn(_flood(self, neighbour))

    async def _attack(self, attack: Attack, vector: Tensor) -> Messages:
        """The attack's messages to the neighbours that were heard; the others get this peer's own model."""
        if isinstance(attack, Silence):
            return None
        heard = await self.hear()
        sent = dict(zip(heard, self._forged(attack, vector, list(heard.values())), strict=True))
        messages = {name: self.make_message(sent.get(name, vector)) for name in self.neighbours}
        return messages.__getitem__

    def _forged(self, attack: Attack, vector: Tensor, heard: list[Tensor]) -> Tensor:
        """(k, d) one message for each of the k neighbours heard. A peer knows no links but its own: it takes
        its neighbours for neighbours of one another."""
        if not heard:
            return vector[:0, None]
        network = Network(nx.complete_graph(len(heard) + 1), byzantine=[len(heard)])
        view = View(
            network=network,
            layout=Layout.of(network, vector.device),
            models=torch.stack(heard),
            rule=rule_of(self.config),
            context=Context(round=self.round, rounds=self.config.rounds, seed=self.config.seed),
            byzantine_models=vector[None],
        )
        assert isinstance(attack, FreeAttack)
        return attack.sent(view, tensors.DTYPES[self.config.wire.dtype])

    async def hear(self) -> dict[str, Tensor]:
        """What the neighbours publish this round, before this peer publishes itself."""
        patience = self.deadline.seconds / 3

        async def listen(name: str, neighbour: NeighbourState) -> tuple[str, Tensor] | None:
            certificate = neighbour.link.certificate
            with contextlib.suppress(Rejected, TimeoutError):
                async with asyncio.timeout(patience):
                    if certificate is None or not neighbour.greeted:
                        return None
                    request = pb.PullRequest(
                        run=self.config.run, round=self.round, hold_ms=int(1000 * patience)
                    )
                    assembler = wire.Assembler(self._expected(), certificate)
                    async with neighbour.link.pull(request) as parts:
                        async for part in parts:
                            assembler.feed(part)
                    row = torch.empty(self.length)
                    tensors.widen(assembler.finish(), self.config.wire.dtype, row)
                    return name, row
            return None

        heard = await asyncio.gather(*(listen(name, each) for name, each in self.neighbours.items()))
        return dict(item for item in heard if item is not None)


def _to_all(peer: ByzantinePeer, vector: Tensor) -> Messages:
    message = peer.make_message(vector)
    return lambda name: message


def _wrong_shape(peer: ByzantinePeer, vector: Tensor) -> Messages:
    expected = replace(peer._expected(), length=peer.length + 1)
    body = tensors.to_bytes(torch.zeros(peer.length + 1), peer.config.wire.dtype)
    return _signed(peer, expected, body)


def _replay(peer: ByzantinePeer, vector: Tensor) -> Messages:
    """Its first message again and again; every other round the right one, but sent twice."""
    first = peer._first = peer._first or peer.make_message(vector)
    return _to_all(peer, vector) if peer.round % 2 else lambda name: first


def _equivocation(peer: ByzantinePeer, vector: Tensor) -> Messages:
    messages = {name: peer.make_message(vector * (1 + place)) for place, name in enumerate(peer.neighbours)}
    return messages.__getitem__


def _oversize(peer: ByzantinePeer, vector: Tensor) -> Messages:
    return _signed(peer, replace(peer._expected(), dtype="float32", length=_HUGE // 4), b"")


def _false_round(peer: ByzantinePeer, vector: Tensor) -> Messages:
    """Says that it is in the far future, a little further each round."""
    body = tensors.to_bytes(vector, peer.config.wire.dtype)
    return _signed(peer, peer._expected(), body, round=10**9 + peer.round)


def _late_stalling(peer: ByzantinePeer, vector: Tensor) -> Messages:
    """Forty rounds as a regular peer; then it says that it is far ahead, and ends no message."""
    if peer.round < _GOOD_ROUNDS:
        return _to_all(peer, vector)
    peer.outbox._stream = _silent_stream  # type: ignore[method-assign]  # this peer breaks the protocol
    return _false_round(peer, vector)


def _signed(peer: ByzantinePeer, expected: wire.Expected, body: wire.Body, round: int = -1) -> Messages:
    stamp = Stamp(peer.nonce, peer.round if round < 0 else round)
    message = Message(wire.make_header(peer.identity, expected, stamp, body), body)
    return lambda name: message


async def _garbage_stream(message: Message, request: pb.PullRequest, send: Send) -> None:
    for _ in range(8):
        await send(os.urandom(4096))


async def _endless_stream(message: Message, request: pb.PullRequest, send: Send) -> None:
    header, chunk = wire.parts(message.header, bytes(wire.CHUNK))
    await send(header)
    while True:
        await send(chunk)


async def _doubled_stream(message: Message, request: pb.PullRequest, send: Send) -> None:
    """Messages of odd rounds twice; its first one, which it replays, once."""
    for _ in range(1 + message.header.round % 2):
        for part in wire.parts(message.header, message.body):
            await send(part)


async def _dripping_stream(message: Message, request: pb.PullRequest, send: Send) -> None:
    """One byte a second."""
    parts = wire.parts(message.header, message.body)
    await send(next(parts))
    for byte in bytes(message.body):
        await send(bytes([0x12, 1, byte]))
        await asyncio.sleep(1.0)


async def _silent_stream(message: Message, request: pb.PullRequest, send: Send) -> None:
    """The header, and nothing more."""
    await send(next(wire.parts(message.header, message.body)))
    await asyncio.sleep(10**6)


async def _flood(peer: ByzantinePeer, neighbour: NeighbourState) -> None:
    """Calls again and again; or hellos that do not fit, of which each is worth a line in the log."""
    fits = peer.how == "flooding"
    terms = peer.terms() if fits else replace(peer.terms(), rule="another")
    pull = pb.PullRequest(run=peer.config.run, round=0, hold_ms=10_000)
    while True:
        with contextlib.suppress(Rejected):
            await neighbour.link.hello(pb.HelloRequest(terms=terms.encode()))
            if fits:
                async with neighbour.link.pull(pull) as parts:
                    async for _ in parts:
                        break
        await asyncio.sleep(0)


_VIOLATIONS: dict[str, Callable[[ByzantinePeer, Tensor], Messages]] = {
    "wrong-shape": _wrong_shape,
    "garbage": _to_all,
    "oversize": _oversize,
    "replay": _replay,
    "equivocation": _equivocation,
    "false-round": _false_round,
    "flooding": _to_all,
    "hello-flooding": lambda peer, vector: None,
    "stalling": _to_all,
    "late-stalling": _late_stalling,
    "gzip-bomb": _to_all,
}
_STREAMS = {
    "garbage": _garbage_stream,
    "oversize": _endless_stream,
    "replay": _doubled_stream,
    "stalling": _dripping_stream,
}
