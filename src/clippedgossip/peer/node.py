"""One participant's rounds: publish, pull from the neighbours until a deadline, hand over what came."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clippedgossip.errors import PeerError
from clippedgossip.peer import wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer import wire_tensors as tensors
from clippedgossip.peer.deadline import Deadline
from clippedgossip.peer.evidence import Evidence
from clippedgossip.peer.identity import Identity
from clippedgossip.peer.outbox import Message, Outbox
from clippedgossip.peer.pace import Pace, meeting_round
from clippedgossip.peer.peer_config import Config, Neighbour
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.reputation import Reputation
from clippedgossip.peer.transport.base import NeighbourLink, Transport

log = logging.getLogger(__name__)
_RETRY = 0.1


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one round brought."""

    round: int
    received: Tensor
    """(k, d) one row per neighbour, in the order of the config; a missing message is a row of NaN."""
    weights: Tensor
    """(k,) Metropolis–Hastings, whether or not the message came."""
    missing: dict[str, Rejection]
    seconds: float
    deadline: float


@dataclass
class NeighbourState:
    """A neighbour, as this node sees it."""

    neighbour: Neighbour
    link: NeighbourLink
    reputation: Reputation
    degree: int = 1
    greeted: bool = False
    claim: int | None = None
    """The round it says it is in, as of the current exchange."""


@dataclass
class _Fetch:
    """One neighbour's message of one round, on its way."""

    peer: NeighbourState
    row: Tensor
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    header: pb.Header | None = None
    body: memoryview | None = None
    finite: bool | None = None
    """Whether the row is, where it was received in place; None where it is still to be unpacked."""
    reason: Rejection = Rejection.LATE
    seconds: float = 0.0


class Node:
    """The asynchronous heart of a peer. It knows vectors, not models, and never runs a rule itself."""

    def __init__(
        self,
        config: Config,
        identity: Identity,
        transport: Transport,
        *,
        length: int,
        rule: str,
        round: int = 0,
    ) -> None:
        size = length * 4
        if size > config.limits.model_bytes:
            raise PeerError(
                f"the model takes {size} bytes, limits.model_bytes is {config.limits.model_bytes}; raise it"
            )
        self.config = config
        self.identity = identity
        self.length = length
        self.rule = rule
        self.round = round
        self.deadline = Deadline(config.deadlines)
        self.pace = Pace()
        self.evidence = Evidence(config.folder / "evidence" if config.folder != Path() else None)
        self.neighbours = {
            n.name: NeighbourState(neighbour=n, link=transport.link(n), reputation=Reputation(config.limits))
            for n in config.neighbours
        }
        self.outbox = Outbox(self.neighbours, config.limits, self.terms, patience=config.deadlines.most)
        self.outbox.skip_to(round)
        self.outbox.heard = self._heard
        self.outbox.headers = self.evidence.of_round
        self.hurry = asyncio.Event()
        """Once set, `start` waits for nobody."""
        self._transport = transport
        self._received = torch.full(
            (len(self.neighbours), length), torch.nan, dtype=torch.float32, device="cpu"
        )
        self._background: set[asyncio.Task[None]] = set()

    def terms(self) -> wire.RunTerms:
        """What this node says in a hello."""
        return wire.RunTerms(
            run=self.config.run,
            degree=max(self.config.degree, 1),
            length=self.length,
            dtype=self.config.wire.dtype,
            rule=self.rule,
            round=self.round,
        )

    async def start(self) -> None:
        """Listens, greets the neighbours, and finds the round they are in."""
        await self._transport.start(self.outbox)
        log.info("listening", extra={"address": str(self.config.bind)})
        # Whoever comes back must not keep waiting for the dead: its neighbours are in the midst of it.
        patience = self.config.deadlines
        waits = [asyncio.create_task(self._greet_everyone()), asyncio.create_task(self.hurry.wait())]
        await asyncio.wait(
            waits,
            timeout=min(patience.most, patience.join) if self.round else patience.join,
            return_when=asyncio.FIRST_COMPLETED,
        )
        await _cancel(waits)
        self._catch_up()

    async def close(self) -> None:
        """Stops at once."""
        await _cancel(self._background)
        await self._transport.close()

    async def leave(self) -> None:
        """Stays until the living neighbours have the last message, or `linger` is over; then closes."""
        last = self.outbox.round
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.deadlines.linger):
                while any(
                    self.outbox.callers[name].pulled < last and peer.reputation.alive
                    for name, peer in self.neighbours.items()
                ):
                    await asyncio.sleep(0.02)
        await self.close()

    async def exchange(self, vector: Tensor) -> Exchange:
        """One round: offers `vector`, brings the neighbours' vectors. Never later than the deadline.

        `vector` belongs to the node from now on: it is served without a copy. `received` is reused by the
        next exchange.
        """
        loop = asyncio.get_running_loop()
        started, round, patience = loop.time(), self.round, self.deadline.seconds
        fetches = [
            _Fetch(peer, row) for peer, row in zip(self.neighbours.values(), self._received, strict=True)
        ]
        for fetch in fetches:
            fetch.peer.claim = None
        await self.publish(vector)
        tasks = [asyncio.create_task(self._fetch(f, round, started + patience)) for f in fetches]
        await self._wait(fetches, tasks, started, patience)
        await _cancel(tasks)
        missing = await self._collect(fetches, round)
        self.outbox.forget_previous(self.neighbours.keys() - missing.keys())
        self.pace.finished(round)
        self.round = round + 1
        self._catch_up()
        if self.config.witness:
            self._spawn(self._ask_witnesses(round))
        return Exchange(
            round=round,
            received=self._received,
            weights=self.weights(),
            missing=missing,
            seconds=loop.time() - started,
            deadline=patience,
        )

    async def publish(self, vector: Tensor) -> None:
        """Signs the vector and offers it to the neighbours as this round's message."""
        message = await asyncio.to_thread(self.make_message, vector)
        self.outbox.publish(self.round, lambda name: message)

    def make_message(self, vector: Tensor) -> Message:
        """The signed message for this round."""
        body = tensors.to_bytes(vector, self.config.wire.dtype)
        frame = wire.compress(body) if self.config.wire.zstd else None
        if frame is not None and len(frame) >= len(body):
            frame = None
        return Message(wire.make_header(self.identity, self._expected(self.round), body), body, frame)

    def weights(self) -> Tensor:
        """Metropolis–Hastings from exchanged degrees: whatever degree is claimed, at most 1/(d_i+1)."""
        own = self.config.degree
        weights = [1.0 / (max(own, peer.degree) + 1) for peer in self.neighbours.values()]
        return torch.tensor(weights, dtype=torch.float64)

    async def _wait(
        self, fetches: list[_Fetch], tasks: list[asyncio.Task[None]], started: float, patience: float
    ) -> None:
        """Until everyone worth waiting for has settled, or the deadline. Alone, not faster than `least`."""
        loop = asyncio.get_running_loop()
        waits = {
            asyncio.create_task(fetch.settled.wait()): fetch.peer.reputation.patience
            for fetch in fetches
            if fetch.peer.reputation.worth_waiting(self.round)
        }
        while waits:
            until = started + patience * max(waits.values())
            done, _ = await asyncio.wait(
                waits, timeout=until - loop.time(), return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            for task in done:
                del waits[task]
            came = sum(fetch.header is not None for fetch in fetches)
            if 2 * came >= len(fetches):
                patience = min(patience, self.deadline.within(loop.time() - started))
        await _cancel(waits)
        if tasks and not any(fetch.header or fetch.peer.claim is not None for fetch in fetches):
            floor = min(self.config.deadlines.least, patience)
            until = started + floor - loop.time()
            if until > 0:
                await asyncio.wait(tasks, timeout=until, return_when=asyncio.FIRST_COMPLETED)

    async def _fetch(self, fetch: _Fetch, round: int, until: float) -> None:
        """Pulls one message, trying again while that can help."""
        peer, loop = fetch.peer, asyncio.get_running_loop()
        started = loop.time()
        grace = min(0.5, (until - started) / 4) if peer.reputation.alive else 0.0
        refusals = 0
        if peer.reputation.backed_off():
            fetch.reason = Rejection.BACKED_OFF
            fetch.settled.set()
            return
        while True:
            try:
                if not peer.greeted:
                    await self._greet(peer)
                await self._pull(fetch, round, until)
                fetch.seconds = loop.time() - started
                peer.claim = round
                break
            except Rejected as rejected:
                fetch.reason = rejected.reason
                if rejected.round is not None:
                    peer.claim = rejected.round
                if rejected.reason is Rejection.REFUSED:
                    peer.greeted = False
                    refusals += 1
                    if refusals > 2:
                        break
                elif rejected.reason is Rejection.DEAD:
                    if loop.time() - started >= grace:
                        fetch.settled.set()
                elif rejected.reason is Rejection.BEHIND and (peer.claim or 0) >= round - wire.DRIFT:
                    fetch.reason = Rejection.LATE
                elif rejected.reason is not Rejection.LATE:
                    break
            except Exception:  # a neighbour must not be able to end a round with a surprise
                log.exception("unexpected", extra={"neighbour": peer.neighbour.name})
                fetch.reason = Rejection.MALFORMED
                break
            await asyncio.sleep(_RETRY)
        fetch.settled.set()

    async def _pull(self, fetch: _Fetch, round: int, until: float) -> None:
        certificate = fetch.peer.link.certificate
        if certificate is None:
            raise Rejected(Rejection.DEAD, "its certificate is not known yet")
        hold = max(until - asyncio.get_running_loop().time(), 0.0)
        zstd, dtype = self.config.wire.zstd, self.config.wire.dtype
        request = pb.PullRequest(run=self.config.run, round=round, hold_ms=int(hold * 1000), zstd=zstd)
        # Only the plain wire is received in place: unpacking goes on in a thread that cannot be cancelled.
        into = None if zstd else tensors.row_memory(fetch.row, dtype)
        assembler = wire.Assembler(self._expected(round), certificate, zstd=zstd, into=into)
        async with fetch.peer.link.pull(request) as parts:
            async for part in parts:
                assembler.feed(part)
                del part  # or it would be held until the next has come

        def check() -> tuple[memoryview, bool | None]:
            return assembler.finish(), None if into is None else tensors.is_finite(fetch.row)

        # Here, while others are still on their way, and not after all have come.
        fetch.body, fetch.finite = await asyncio.to_thread(check)
        fetch.header = assembler.header

    async def _collect(self, fetches: list[_Fetch], round: int) -> dict[str, Rejection]:
        """Checks what came, fills rows of what did not with NaN, and keeps the books."""
        missing = {}
        for fetch in fetches:
            peer, name = fetch.peer, fetch.peer.neighbour.name
            if fetch.body is not None and fetch.finite is None:
                fetch.finite = await asyncio.to_thread(self._unpack, fetch.body, fetch.row)
            reason = self._judge(fetch)
            if reason is None:
                peer.reputation.came()
                self.deadline.came(name, fetch.seconds)
                continue
            fetch.row.fill_(torch.nan)
            missing[name] = reason
            peer.reputation.missed(reason, round)
            if reason is Rejection.LATE:
                self.deadline.late(name)
            elif reason is not Rejection.DEAD:
                log.info("missing", extra={"neighbour": name, "round": round, "why": reason.value})
        return missing

    def _judge(self, fetch: _Fetch) -> Rejection | None:
        if fetch.header is None or fetch.body is None or fetch.peer.link.certificate is None:
            return fetch.reason
        if not self.evidence.see(fetch.header, fetch.peer.link.certificate):
            return Rejection.EQUIVOCATION
        return None if fetch.finite else Rejection.NON_FINITE

    def _unpack(self, body: memoryview, row: Tensor) -> bool:
        tensors.widen(body, self.config.wire.dtype, row)
        return tensors.is_finite(row)

    async def _greet_everyone(self) -> None:
        greetings = (self._greet_until_known(peer) for peer in self.neighbours.values())
        await asyncio.gather(*greetings, return_exceptions=True)

    async def _greet_until_known(self, peer: NeighbourState) -> None:
        while not peer.greeted:
            try:
                await self._greet(peer)
            except Rejected as rejected:
                if rejected.reason is Rejection.REFUSED:
                    return
                await asyncio.sleep(_RETRY)

    async def _greet(self, peer: NeighbourState) -> None:
        """Says hello; both sides check that they fit."""
        reply = await peer.link.hello(pb.HelloRequest(terms=self.terms().encode()))
        misfit = reply.refusal[:300] or self.terms().misfit(reply.terms)
        if misfit:
            extra = {"neighbour": peer.neighbour.name, "why": misfit}
            log.warning("refused by neighbour" if reply.refusal else "refused neighbour", extra=extra)
            raise Rejected(Rejection.REFUSED, misfit)
        self._heard(peer.neighbour.name, reply.terms)
        peer.greeted = True

    def _heard(self, name: str, terms: pb.Terms) -> None:
        self.neighbours[name].degree = terms.degree
        self.neighbours[name].claim = terms.round

    def _catch_up(self) -> None:
        claims = [peer.claim for peer in self.neighbours.values() if peer.claim is not None]
        target = min(meeting_round(self.round, claims, self.pace.plausible()), self.config.rounds)
        # One round ahead is how neighbours in step look to each other.
        if target > self.round + 1 or (target > self.round and self.outbox.round < 0):
            log.info("catching up", extra={"round": self.round, "to": target})
            self.pace.jumped()
            self.round = target
            self.outbox.skip_to(target)

    async def _ask_witnesses(self, round: int) -> None:
        """Compares the headers the neighbours received with our own."""
        by_mark = {p.neighbour.fingerprint: p.link.certificate for p in self.neighbours.values()}
        request = pb.WitnessRequest(run=self.config.run, round=round)
        for peer in self.neighbours.values():
            with contextlib.suppress(Rejected, TimeoutError):
                async with asyncio.timeout(self.config.deadlines.least):
                    reply = await peer.link.witness(request)
                for header in reply.headers[: 4 * len(by_mark)]:
                    certificate = by_mark.get(header.sender)
                    fits = header.run == self.config.run and header.round == round
                    if fits and certificate is not None and wire.verify_header(header, certificate):
                        self.evidence.see(header, certificate)

    def _expected(self, round: int) -> wire.Expected:
        dtype = self.config.wire.dtype
        return wire.Expected(run=self.config.run, round=round, dtype=dtype, length=self.length)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
