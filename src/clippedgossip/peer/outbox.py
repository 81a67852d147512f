"""What a peer serves: the messages of its current and its previous round, to neighbours, within limits."""

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.peer_config import Limits
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.transport.base import Send

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Message:
    """A signed header and the bytes it speaks of, with their zstd frame where that is shorter."""

    header: pb.Header
    body: wire.Body
    frame: bytes | None = None


class Bucket:
    """A token bucket: `rate` calls a second, a burst of one second's worth."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._tokens = max(rate, 1.0)
        self._then = time.monotonic()

    def take(self) -> bool:
        now = time.monotonic()
        self._tokens = min(max(self._rate, 1.0), self._tokens + (now - self._then) * self._rate)
        self._then = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Caller:
    """What is known of a neighbour that calls."""

    def __init__(self, rate: float) -> None:
        self.bucket = Bucket(rate)
        self.accepted = False
        self.pulling = False
        self.pulled = -1


class Outbox:
    """The server side of the protocol (wire.proto)."""

    def __init__(
        self, names: Collection[str], limits: Limits, terms: Callable[[], wire.RunTerms], *, patience: float
    ) -> None:
        self.callers = {name: Caller(limits.pulls_per_second) for name in names}
        self.round = -1
        """The newest round there is a message for."""
        self.flooded = 0
        self.heard: Callable[[str, pb.Terms], None] = lambda name, terms: None
        self.headers: Callable[[int], list[pb.Header]] = lambda round: []
        self._terms = terms
        self._patience = patience
        self._messages: dict[int, Callable[[str], Message]] = {}
        self._published = asyncio.Event()
        self._streams: dict[str, tuple[int, asyncio.Task[None]]] = {}

    def publish(self, round: int, message: Callable[[str], Message]) -> None:
        """Replaces older messages, the previous one only where all neighbours have it.

        `message` may depend on the neighbour only in a liar.
        """
        self._drop_all_but(round - 1)
        self._messages[round] = message
        self.round = round
        self._published.set()
        self._published = asyncio.Event()

    def forget_previous(self, past: Collection[str]) -> None:
        """Drops the previous round's message once nobody needs it any more: every neighbour has taken the
        current one, or is `past` the previous round, as whoever sent a message of its own for this one is."""
        if all(caller.pulled >= self.round or name in past for name, caller in self.callers.items()):
            self._messages.pop(self.round - 1, None)

    async def make_room(self) -> None:
        """Before the next message is made: keeps the newest alone, and that only where somebody lacks it."""
        self._drop_all_but(self.round)

    def skip_to(self, round: int) -> None:
        """The next message will be of this round."""
        self.round = max(self.round, round - 1)

    def all_have(self, round: int) -> bool:
        return all(caller.pulled >= round for caller in self.callers.values())

    def _drop_all_but(self, round: int) -> None:
        """Also drops that round's message where all neighbours have it."""
        self._messages = {r: m for r, m in self._messages.items() if r == round and not self.all_have(r)}
        # Whoever still reads a round that is no longer served would keep its memory alive.
        for stale, task in list(self._streams.values()):
            if stale not in self._messages:
                task.cancel()

    async def hello(self, name: str, request: pb.HelloRequest) -> pb.HelloReply:
        caller = self._admit(name)
        mine = self._terms()
        misfit = mine.misfit(request.terms)
        if misfit:
            log.warning("refused neighbour", extra={"neighbour": name, "why": misfit})
        else:
            self.heard(name, request.terms)
        caller.accepted = not misfit
        return pb.HelloReply(terms=mine.encode(), refusal=misfit)

    async def witness(self, name: str, request: pb.WitnessRequest) -> pb.WitnessReply:
        self._admit(name)
        headers = self.headers(request.round) if request.run == self._terms().run else []
        return pb.WitnessReply(headers=headers)

    async def pull(self, name: str, request: pb.PullRequest, send: Send) -> None:
        caller = self._admit(name)
        if not caller.accepted or request.run != self._terms().run:
            raise Rejected(Rejection.REFUSED, "say hello first")
        if caller.pulling:
            raise Rejected(Rejection.LATE, "one pull at a time")
        caller.pulling = True
        try:
            message = await self._wait_for(name, request)
            sending = asyncio.ensure_future(self._stream(message, request, send))
            self._streams[name] = (request.round, sending)
            try:
                async with asyncio.timeout(self._patience):
                    await sending
            except TimeoutError:
                raise Rejected(Rejection.LATE, "read too slowly") from None
            except asyncio.CancelledError:
                if not sending.cancelled():
                    sending.cancel()
                    raise
                raise Rejected(Rejection.AHEAD, "read too slowly", round=max(self.round, 0)) from None
            caller.pulled = max(caller.pulled, request.round)
        finally:
            caller.pulling = False
            self._streams.pop(name, None)
        if self.all_have(self.round - 1):
            self._messages.pop(self.round - 1, None)

    async def _wait_for(self, name: str, request: pb.PullRequest) -> Message:
        """The message asked for; holds the call while the round is near."""
        patience = min(request.hold_ms / 1000, self._patience)
        until = asyncio.get_running_loop().time() + patience
        while request.round not in self._messages:
            if request.round <= self.round:
                raise Rejected(Rejection.AHEAD, f"round {request.round} is gone", round=max(self.round, 0))
            if request.round > self.round + wire.DRIFT:
                raise Rejected(
                    Rejection.BEHIND, f"round {request.round} is far ahead", round=max(self.round, 0)
                )
            try:
                async with asyncio.timeout_at(until):
                    await self._published.wait()
            except TimeoutError:
                detail = f"round {request.round} did not come in {patience:.2f} s"
                raise Rejected(Rejection.BEHIND, detail, round=max(self.round, 0)) from None
        return self._messages[request.round](name)

    @staticmethod
    async def _stream(message: Message, request: pb.PullRequest, send: Send) -> None:
        header, body = message.header, message.body
        if request.zstd and message.frame is not None:
            header = pb.Header()
            header.CopyFrom(message.header)
            header.zstd, body = True, message.frame
        for part in wire.parts(header, body):
            await send(part)

    def _admit(self, name: str) -> Caller:
        caller = self.callers[name]
        if not caller.bucket.take():
            self.flooded += 1
            raise Rejected(Rejection.LATE, "too many calls")
        return caller
