"""Liars, for tests and demonstrations: what a Byzantine neighbour can do over a real network."""

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable

import torch
from torch import Tensor

from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.node import Node, Peer
from clippedgossip.peer.outbox import Message
from clippedgossip.peer.rejection import Rejected
from clippedgossip.peer.transport.base import Send
from clippedgossip.randomness import generator

_HUGE = 10 * 2**30
_NOISE = 10.0
_ALIE = 1.5
_DISSENSUS = 1.5
_FLOOD = 64


class Liar(Node):
    """A node that lies in the way `config.misbehave` says; it listens like an honest one."""

    _replayed: Message | None = None

    async def publish(self, vector: Tensor) -> None:
        forged = await _LIES[self.config.misbehave](self, vector)
        if forged is not None:
            self.outbox.publish(self.round, forged)
        else:
            self.outbox.skip_to(self.round)

    async def start(self) -> None:
        if self.config.misbehave in _STREAMS:
            self.outbox._stream = _STREAMS[self.config.misbehave]  # type: ignore[method-assign]  # it lies
        await super().start()
        if self.config.misbehave == "flooding":
            for peer in self.peers.values():
                for _ in range(_FLOOD):
                    self._spawn(_flood(self, peer))

    async def hear(self) -> dict[str, Tensor]:
        """What the honest neighbours publish this round, before this node publishes itself."""
        patience = self.deadline.seconds / 3

        async def listen(name: str, peer: Peer) -> tuple[str, Tensor] | None:
            expected, certificate = self._expected(self.round), peer.link.certificate
            with contextlib.suppress(Rejected, TimeoutError):
                async with asyncio.timeout(patience):
                    if certificate is None or not peer.greeted:
                        return None
                    request = pb.PullRequest(
                        run=self.config.run, round=self.round, hold_ms=int(1000 * patience)
                    )
                    assembler = wire.Assembler(expected, certificate)
                    async with peer.link.pull(request) as parts:
                        async for part in parts:
                            assembler.feed(part)
                    row = torch.empty(self.length)
                    tensors.widen(assembler.finish(), self.config.wire.dtype, row)
                    return name, row
            return None

        heard = await asyncio.gather(*(listen(name, peer) for name, peer in self.peers.items()))
        return dict(item for item in heard if item is not None)


Forgery = Callable[[str], Message] | None
Lie = Callable[[Liar, Tensor], Awaitable[Forgery]]


def _same(liar: Liar, vector: Tensor) -> Forgery:
    message = liar.make_message(vector)
    return lambda name: message


async def _sign_flip(liar: Liar, vector: Tensor) -> Forgery:
    return _same(liar, -vector)


async def _noise(liar: Liar, vector: Tensor) -> Forgery:
    draw = generator(liar.config.seed, "misbehave", liar.round)
    return _same(liar, _NOISE * torch.randn(len(vector), generator=draw))


async def _alie(liar: Liar, vector: Tensor) -> Forgery:
    """μ − zσ of what it hears."""
    heard = torch.stack([vector, *(await liar.hear()).values()])
    return _same(liar, heard.mean(0) - _ALIE * heard.std(0, correction=0))


async def _dissensus(liar: Liar, vector: Tensor) -> Forgery:
    """x_i − ε(x̄ − x_i): to each neighbour, away from what the others think."""
    heard = await liar.hear()
    centre = torch.stack([vector, *heard.values()]).mean(0)
    towards = {name: heard.get(name, vector) for name in liar.peers}
    messages = {name: liar.make_message(x - _DISSENSUS * (centre - x)) for name, x in towards.items()}
    return messages.__getitem__


async def _silence(liar: Liar, vector: Tensor) -> Forgery:
    return None


async def _nan(liar: Liar, vector: Tensor) -> Forgery:
    return _same(liar, torch.full_like(vector, torch.nan))


async def _wrong_shape(liar: Liar, vector: Tensor) -> Forgery:
    expected = wire.Expected(
        run=liar.config.run, round=liar.round, dtype=liar.config.wire.dtype, length=liar.length + 1
    )
    body = tensors.to_bytes(torch.zeros(liar.length + 1), liar.config.wire.dtype)
    message = Message(wire.make_header(liar.identity, expected, body), body)
    return lambda name: message


async def _honest(liar: Liar, vector: Tensor) -> Forgery:
    return _same(liar, vector)


async def _replay(liar: Liar, vector: Tensor) -> Forgery:
    """Its first message again and again; every other round the right one, but sent twice."""
    first = liar._replayed = liar._replayed or liar.make_message(vector)
    return _same(liar, vector) if liar.round % 2 else lambda name: first


async def _equivocation(liar: Liar, vector: Tensor) -> Forgery:
    messages = {name: liar.make_message(vector * (1 + place)) for place, name in enumerate(liar.peers)}
    return messages.__getitem__


async def _oversize(liar: Liar, vector: Tensor) -> Forgery:
    expected = wire.Expected(run=liar.config.run, round=liar.round, dtype="float32", length=_HUGE // 4)
    message = Message(wire.make_header(liar.identity, expected, b""), b"")
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
    for _ in range(2):
        for part in wire.parts(message.header, message.body):
            await send(part)


async def _dripping_stream(message: Message, request: pb.PullRequest, send: Send) -> None:
    """One byte a second."""
    parts = wire.parts(message.header, message.body)
    await send(next(parts))
    for byte in bytes(message.body):
        await send(bytes([0x12, 1, byte]))
        await asyncio.sleep(1.0)


async def _flood(liar: Liar, peer: Peer) -> None:
    hello = pb.HelloRequest(terms=liar.terms().encode())
    pull = pb.PullRequest(run=liar.config.run, round=0, hold_ms=10_000)
    while True:
        with contextlib.suppress(Rejected):
            await peer.link.hello(hello)
            async with peer.link.pull(pull) as parts:
                async for _ in parts:
                    break
        await asyncio.sleep(0)


_LIES: dict[str, Lie] = {
    "sign-flip": _sign_flip,
    "noise": _noise,
    "alie": _alie,
    "dissensus": _dissensus,
    "silence": _silence,
    "nan": _nan,
    "wrong-shape": _wrong_shape,
    "garbage": _honest,
    "oversize": _oversize,
    "replay": _replay,
    "equivocation": _equivocation,
    "flooding": _honest,
    "stalling": _honest,
}
_STREAMS = {
    "garbage": _garbage_stream,
    "oversize": _endless_stream,
    "replay": _doubled_stream,
    "stalling": _dripping_stream,
}
