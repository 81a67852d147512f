"""What a peer serves: the messages of its current and its previous round, to neighbours, within limits."""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.peer_config import Limits
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.telemetry import bounded_logger
from clippedgossip.peer.transport.base import Send
from clippedgossip.peer.wire import Stamp

log = bounded_logger(__name__)


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
        self._most = max(rate, 1.0)
        self._tokens = self._most
        self._then: float | None = None

    def take(self, now: float) -> bool:
        since = 0.0 if self._then is None else now - self._then
        self._tokens = min(self._most, self._tokens + since * self._rate)
        self._then = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Pacer:
    """Limits the bytes of all messages together to `rate` a second; 0 is no limit."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._free = 0.0

    async def spend(self, count: int) -> None:
        if not self._rate:
            return
        now = asyncio.get_running_loop().time()
        start = max(now, self._free)
        self._free = start + count / self._rate
        if start > now:
            await asyncio.sleep(start - now)


class Caller:
    """What is known of a neighbour that calls."""

    def __init__(self, rate: float) -> None:
        self.bucket = Bucket(rate)
        self.accepted = False
        self.excluded = False
        """No longer served at all."""
        self.round = -1
        """Its own round, as it said in its last pull."""
        self.pulled = -1
        """The round of the newest message it took."""
        self.in_step = True
        """Whether that was the message of its own round."""
        self.sent = 0
        """Bytes of messages."""
        self.serving: asyncio.Task[None] | None = None


class Outbox:
    """The server side of the protocol (wire.proto)."""

    def __init__(
        self,
        names: Collection[str],
        limits: Limits,
        terms: Callable[[], wire.RunTerms],
        *,
        patience: float,
        nonce: bytes = bytes(wire.NONCE),
    ) -> None:
        self.callers: dict[str, Caller] = {}
        self._limits = limits
        self.serve(names)
        self.round = -1
        """The newest round there is a message for, or would be one."""
        self.final = False
        """Whether the newest message is the last one."""
        self.flooded = 0
        self.heard: Callable[[str, pb.Terms], None] = lambda name, terms: None
        self.headers: Callable[[int], list[pb.Header]] = lambda round: []
        self.drift = wire.DRIFT
        """How many rounds ahead neighbours may be and still wait for their own round."""
        self.taken = asyncio.Event()
        """Set whenever a neighbour has taken a message."""
        self._nonce = nonce
        self._pacer = Pacer(limits.bytes_per_second)
        self._terms = terms
        self._patience = patience
        self._messages: dict[int, Callable[[str], Message]] = {}
        self._published = asyncio.Event()

    def serve(self, names: Collection[str]) -> None:
        """Serves these from now on, in this order, and nobody else."""
        for name, caller in self.callers.items():
            if name not in names and caller.serving is not None:
                caller.serving.cancel()
        rate = self._limits.pulls_per_second
        self.callers = {name: self.callers.get(name) or Caller(rate) for name in names}

    def withdraw(self) -> None:
        """Offers nothing until the next message is published."""
        self._messages.clear()

    def publish(self, round: int, message: Callable[[str], Message], *, final: bool = False) -> None:
        """Replaces older messages, the previous one only where all neighbours have it.

        `message` may depend on the neighbour only in a Byzantine peer.
        """
        self._drop_all_but(round - 1)
        self._messages[round] = message
        self.round, self.final = round, final
        self._published.set()
        self._published = asyncio.Event()

    def forget_previous(self, past: Collection[str]) -> None:
        """Drops the message of the previous round when no neighbour needs it: each has taken the current one,
        or is `past` the previous round, because it has sent its own message of this round."""
        if all(caller.pulled >= self.round or name in past for name, caller in self.callers.items()):
            self._messages.pop(self.round - 1, None)

    async def make_room(self) -> None:
        """Before the next message is made: keeps the newest alone, and only if a neighbour lacks it."""
        self._drop_all_but(self.round)

    def skip_to(self, round: int) -> None:
        """The next message will be of this round."""
        self.round = max(self.round, round - 1)

    def all_have(self, round: int) -> bool:
        return all(caller.pulled >= round for caller in self.callers.values())

    def _drop_all_but(self, round: int) -> None:
        """Also drops that round's message where all neighbours have it."""
        self._messages = {r: m for r, m in self._messages.items() if r == round and not self.all_have(r)}

    async def hello(self, name: str, request: pb.HelloRequest) -> pb.HelloReply:
        caller = self._admit(name)
        mine = self._terms()
        misfit = mine.misfit(request.terms)
        if misfit:
            log.warning("refused neighbour", extra={"neighbour": name, "why": misfit})
        else:
            self.heard(name, request.terms)
        caller.pulled = -1  # who says hello starts anew: what an earlier start took is lost
        caller.accepted = not misfit
        version = wire.common_version(request.terms)
        return pb.HelloReply(terms=mine.encode(), refusal=misfit, version=version)

    async def witness(self, name: str, request: pb.WitnessRequest) -> pb.WitnessReply:
        self._admit(name)
        headers = self.headers(request.round) if request.run == self._terms().run else []
        return pb.WitnessReply(headers=headers)

    async def pull(self, name: str, request: pb.PullRequest, send: Send) -> None:
        caller = self._admit(name)
        if not caller.accepted or request.run != self._terms().run:
            raise Rejected(Rejection.REFUSED, "say hello first")
        if caller.serving is not None:
            caller.serving.cancel()
        caller.round = request.round
        serving = caller.serving = asyncio.ensure_future(self._serve(name, caller, request, send))
        try:
            await serving
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if serving.cancelled() and not (task is not None and task.cancelling()):
                raise Rejected(Rejection.LATE, "a newer pull took the place of this one") from None
            serving.cancel()
            raise
        finally:
            if caller.serving is serving:
                caller.serving = None
        if self.all_have(self.round - 1):
            self._messages.pop(self.round - 1, None)

    async def _serve(self, name: str, caller: Caller, request: pb.PullRequest, send: Send) -> None:
        round = await self._choose(request)
        message = self._messages[round](name)

        async def paced(part: bytes) -> None:
            await self._pacer.spend(len(part))
            await send(part)
            caller.sent += len(part)

        try:
            async with asyncio.timeout(self._patience):
                await self._stream(message, request, paced)
        except TimeoutError:
            raise Rejected(Rejection.LATE, "read too slowly") from None
        caller.pulled, caller.in_step = max(caller.pulled, round), round == request.round
        self.taken.set()

    async def _choose(self, request: pb.PullRequest) -> int:
        """The round of the message to send; holds the call while a better one may come."""
        patience = min(request.hold_ms / 1000, self._patience)
        until = asyncio.get_running_loop().time() + patience
        while True:
            found = self._new_to(request)
            coming = self.round < request.round <= self.round + self.drift and not self.final
            if found is not None and not coming:
                return found
            try:
                async with asyncio.timeout_at(until):
                    await self._published.wait()
            except TimeoutError:
                if (found := self._new_to(request)) is not None:
                    return found
                detail = f"no message after round {request.last} came in {patience:.2f} s"
                raise Rejected(Rejection.NOTHING_NEW, detail) from None

    def _new_to(self, request: pb.PullRequest) -> int | None:
        """The round asked for, else the newest one, if the caller has not used it yet."""
        used = Stamp(request.nonce, request.last) if request.nonce else None
        for round in (request.round, self.round):
            final = self.final and round == self.round
            if round in self._messages and (final or Stamp(self._nonce, round).is_new(used)):
                return round
        return None

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
        caller = self.callers.get(name)
        if caller is None:
            raise Rejected(Rejection.REFUSED, "no longer a neighbour")
        if not caller.bucket.take(asyncio.get_running_loop().time()):
            self.flooded += 1
            raise Rejected(Rejection.LATE, "too many calls")
        if caller.excluded:
            raise Rejected(Rejection.CONVICTED, "you signed two models for one round")
        return caller
