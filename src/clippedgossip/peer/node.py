"""One participant's rounds: publish, pull from the neighbours until a deadline, hand over what came."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
from clippedgossip.peer.peer_config import Config, Neighbour
from clippedgossip.peer.rejection import VIOLATIONS, Rejected, Rejection
from clippedgossip.peer.reputation import Reputation
from clippedgossip.peer.round_neighbours import RoundNeighbours
from clippedgossip.peer.signed_rounds import SignedRounds
from clippedgossip.peer.telemetry import bounded_logger
from clippedgossip.peer.transport.base import NeighbourLink, Transport
from clippedgossip.peer.wire import Stamp, stamp_of

log = bounded_logger(__name__)
_RETRY = 0.1
_DRIFT = 16
"""How many rounds apart peers may be that hear each other rarely, and still wait for each other."""
_LATE_PULLS = 3
"""So many pulls without an answer, and the connection is made anew."""


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one round brought."""

    round: int
    received: Tensor
    """(k, d) one row per neighbour, in the order of the config; a missing message is a row of NaN."""
    weights: Tensor
    """(k,) Metropolis–Hastings, whether or not the message came."""
    rounds: dict[str, int]
    """Of which round each message is, by neighbour."""
    missing: dict[str, Rejection]
    seconds: float
    deadline: float


@dataclass
class NeighbourState:
    """A neighbour, as this node sees it."""

    neighbour: Neighbour
    link: NeighbourLink
    reputation: Reputation
    row: Tensor
    """(d,) where its messages are received."""
    kept: Tensor | None = None
    """(d,) its newest message that was used, where that may be used again."""
    degree: int = 1
    greeted: bool = False
    used: Stamp | None = None
    """The newest of its messages that was used."""
    used_in: int = -1
    """The own round in which that was used for the first time."""
    exchanged: float | None = None
    """When a message of it was used last (Unix time)."""
    messages: int = 0
    """How many of its messages were used."""
    received: int = 0
    """Bytes of its messages, whole or not."""
    backoff: float = 0.0
    """For how many seconds it is still ignored, as of the last round."""
    finished: bool = False
    late_pulls: int = 0
    fetch: "_Fetch | None" = None

    @property
    def name(self) -> str:
        return self.neighbour.name


@dataclass
class _Fetch:
    """The next message of one neighbour, on its way. It may outlive the round in which it was asked for."""

    peer: NeighbourState
    until: float
    """The deadline of the current round."""
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    """Nothing more is expected of it in this round."""
    header: pb.Header | None = None
    body: memoryview | None = None
    finite: bool | None = None
    """Whether the row is, where it was received in place; None where it is still to be unpacked."""
    writing: bool = False
    """Whether it has begun to write into the row."""
    reason: Rejection = Rejection.LATE
    detail: str = ""
    seconds: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()


class Node:
    """The asynchronous part of a peer: it exchanges vectors. The model and the rule are elsewhere.

    It counts its own rounds and does all of them; what neighbours say of theirs changes nothing.
    """

    def __init__(
        self,
        config: Config,
        identity: Identity,
        transport: Transport,
        *,
        length: int,
        rule: str,
        round: int = 0,
        tensors: Sequence[str] = (),
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
        self.round = self._began = round
        self.tensors = tuple(tensors)
        self.nonce = secrets.token_bytes(wire.NONCE)
        self.deadline = Deadline(config.deadlines)
        folder = config.folder if config.folder != Path() else None
        self.evidence = Evidence(folder and folder / "evidence", config.run)
        self.signed = SignedRounds(folder, config.run)
        self._transport = transport
        self._received = self._rows()
        self.neighbours = {
            n.name: self._meet(n, row) for n, row in zip(config.neighbours, self._received, strict=True)
        }
        patience = config.deadlines.most
        self.outbox = Outbox(self.neighbours, config.limits, self.terms, patience=patience, nonce=self.nonce)
        self.outbox.skip_to(round)
        self.rounds: RoundNeighbours | None = None
        """Whom it hears in which round, where that is not always everyone."""
        self._know_network()
        self.outbox.heard = self._heard
        self.outbox.headers = self.evidence.of_round
        self.hurry = asyncio.Event()
        """Once set, `start` waits for nobody."""
        self._rows_free = asyncio.Event()
        """Set during an exchange; between two of them the rows belong to the rule."""
        self._last: Tensor | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._exclude_convicted()

    def _rows(self) -> Tensor:
        """(k, d) where messages are received."""
        return torch.full((self.config.degree, self.length), torch.nan, dtype=torch.float32, device="cpu")

    def _meet(self, neighbour: Neighbour, row: Tensor) -> NeighbourState:
        return NeighbourState(
            neighbour=neighbour,
            link=self._transport.link(neighbour),
            reputation=Reputation(self.config.limits, clock=_now),
            row=row,
            kept=torch.full_like(row, torch.nan) if self.config.staleness else None,
        )

    def _know_network(self) -> None:
        self.rounds = RoundNeighbours(self.config) if self.config.network else None
        if self.rounds is not None:
            self.outbox.drift = _DRIFT

    async def change(
        self,
        neighbours: tuple[Neighbour, ...],
        identity: Identity,
        network: Mapping[str, Any] | None = None,
    ) -> None:
        """Has these neighbours, this key and this network from now on; not during an exchange.

        Whoever stays keeps its reputation and its messages. Everyone is greeted anew, since this node's
        degree, and so its weight, may be another.
        """
        network = self.config.network if network is None else network
        config = self.config = replace(self.config, neighbours=neighbours, network=network)
        self._know_network()
        before, found, self._received = dict(self.neighbours), {}, self._rows()
        for n, row in zip(neighbours, self._received, strict=True):
            old = before.pop(n.name, None)
            if old is None or not {*n.fingerprints} & {*old.neighbour.fingerprints}:
                if old is not None:
                    await self._part(old)
                found[n.name] = self._meet(n, row)
                continue
            await self._move(old, row)
            if old.neighbour != n:
                await self._transport.unlink(n.name)
                old.neighbour, old.link = n, self._transport.link(n)
                old.reputation, old.fetch = Reputation(config.limits, clock=_now), None
            old.greeted = False
            found[n.name] = old
        self.neighbours = found
        for old in before.values():
            await self._part(old)
        self.outbox.serve(self.neighbours)
        if identity.fingerprint != self.identity.fingerprint:
            self.outbox.withdraw()  # what the old key has signed
            self.identity = identity
            await self._transport.change_identity(identity)
        self._exclude_convicted()

    async def _part(self, old: NeighbourState) -> None:
        if old.fetch is not None and old.fetch.task is not None:
            await _cancel([old.fetch.task])
        self.deadline.forget(old.name)
        self.outbox.callers.pop(old.name, None)
        await self._transport.unlink(old.name)

    async def _move(self, peer: NeighbourState, row: Tensor) -> None:
        """Gives a neighbour another row. What is half received is asked for again."""
        if peer.fetch is not None and not peer.fetch.over:
            assert peer.fetch.task is not None
            await _cancel([peer.fetch.task])
            peer.fetch = None
        row.copy_(peer.row)
        peer.row = row

    def terms(self) -> wire.RunTerms:
        """What this node says in a hello."""
        return wire.RunTerms(
            run=self.config.run,
            degree=max(self.config.degree, 1),
            length=self.length,
            dtype=self.config.wire.dtype,
            rule=self.rule,
            tensors=self.tensors,
        )

    async def start(self) -> None:
        """Listens and greets the neighbours."""
        await self._transport.start(self.outbox)
        log.info("listening", extra={"address": str(self.config.bind)})
        if self.round <= self.signed.before:
            extra = {"round": self.round, "silent_through": self.signed.before}
            log.warning("rounds that were signed before are done again without being served", extra=extra)
        # A peer that resumes does not wait for neighbours that are gone: the others are training already.
        patience = self.config.deadlines
        seconds = min(patience.most, patience.join) if self.round else patience.join
        await self._unless_hurried(map(self._greet_until_known, self.neighbours.values()), seconds)

    async def close(self) -> None:
        """Stops at once."""
        fetches = [n.fetch.task for n in self.neighbours.values() if n.fetch and n.fetch.task]
        await _cancel([*self._background, *fetches])
        await self._transport.close()
        self.signed.close()

    async def leave(self) -> None:
        """Serves its last message, now as final, until the neighbours are in their last round and have it, or
        `linger` is over; then closes."""
        last = self.outbox.round
        if self._last is not None:
            message = await asyncio.to_thread(self._sign, self._last, last, final=True)
            self.outbox.publish(last, lambda name: message, final=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.config.deadlines.linger):
                while not all(
                    n.finished or (caller.round >= last and caller.pulled >= last)
                    for n, caller in zip(self.neighbours.values(), self.outbox.callers.values(), strict=True)
                    if self.rounds is None or n.name in self.rounds.listeners(last)
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
        await self.publish(vector)
        self._rows_free.set()
        fetches = [self._go_on(n, started + patience) for n in self._heard_in(round)]
        await self._wait(fetches, started, patience)
        if self.rounds is not None and round > self._began:
            await self._let_listeners_take(round - 1, started + patience)
        self._rows_free.clear()
        result = await self._collect(fetches, started, patience)
        past = {name for name, theirs in result.rounds.items() if theirs >= round}
        self.outbox.forget_previous(past)
        self.round = round + 1
        if self.config.witness:
            self._spawn(self._ask_witnesses({*result.rounds.values()}))
        return result

    async def receive_first(self) -> Exchange:
        """For a newcomer: one message of each neighbour, before it has offered any; waits for `join`."""
        started, patience = asyncio.get_running_loop().time(), self.config.deadlines.join
        self._rows_free.set()
        fetches = [self._go_on(n, started + patience) for n in self.neighbours.values()]
        # Not until they are settled: whoever is not there yet may still come.
        await self._unless_hurried((asyncio.shield(f.task) for f in fetches if f.task), patience)
        self._rows_free.clear()
        return await self._collect(fetches, started, patience)

    async def _unless_hurried(self, work: Iterable[Awaitable[object]], seconds: float) -> None:
        """Waits until all of it is done, for so many seconds at most, or until `hurry` is set."""
        all_done: asyncio.Future[Any] = asyncio.gather(*work, return_exceptions=True)
        waits = [all_done, asyncio.ensure_future(self.hurry.wait())]
        try:
            await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel(waits)

    async def publish(self, vector: Tensor) -> None:
        """Signs the vector and offers it to the neighbours as this round's message; unless an earlier start
        may have signed that round already."""
        round = self.round
        if round <= self.signed.before:
            self.outbox.skip_to(round + 1)
            return

        def sign() -> Message:
            self.signed.add(round)
            return self.make_message(vector)

        try:
            message = await asyncio.to_thread(sign)
        except OSError as error:
            log.error("round is not served", extra={"round": round, "why": str(error)})
            self.outbox.skip_to(round + 1)
            return
        if round == self.config.rounds - 1:
            self._last = vector
        self.outbox.publish(round, lambda name: message)
        if round == self.signed.highest:  # while the neighbours' messages come
            self._spawn(asyncio.to_thread(self.signed.write_ahead, self.config.rounds - 2))

    def make_message(self, vector: Tensor) -> Message:
        """The signed message for this round."""
        return self._sign(vector, self.round)

    def _sign(self, vector: Tensor, round: int, *, final: bool = False) -> Message:
        body = tensors.to_bytes(vector, self.config.wire.dtype)
        frame = wire.compress(body) if self.config.wire.zstd else None
        if frame is not None and len(frame) >= len(body):
            frame = None
        stamp = Stamp(self.nonce, round)
        header = wire.make_header(self.identity, self._expected(), stamp, body, final=final)
        return Message(header, body, frame)

    def _heard_in(self, round: int) -> list[NeighbourState]:
        if self.rounds is None:
            return list(self.neighbours.values())
        heard = self.rounds.weights(round)
        return [n for name, n in self.neighbours.items() if name in heard]

    async def _let_listeners_take(self, round: int, until: float) -> None:
        """Waits until those that hear this peer in a round have its message: a peer that hears others than
        those that hear it would else be rounds ahead of them. Whoever let it wait in vain, or is in another
        round, is not waited for again before it takes the message of its own round."""
        assert self.rounds is not None
        hear = self.rounds.listeners(round)
        listeners = [caller for name, caller in self.outbox.callers.items() if name in hear]
        while late := [caller for caller in listeners if caller.pulled < round and caller.in_step]:
            self.outbox.taken.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self.outbox.taken.wait()
            except TimeoutError:
                for caller in late:
                    caller.in_step = False
                return

    def weights(self) -> Tensor:
        """Metropolis–Hastings from exchanged degrees: whatever degree is claimed, at most 1/(d_i+1). Where
        the network is known, its weights of the round; 0 for whoever is not heard in it."""
        if self.rounds is not None:
            heard = self.rounds.weights(self.round)
            return torch.tensor([heard.get(name, 0.0) for name in self.neighbours], dtype=torch.float64)
        own = self.config.degree
        weights = [1.0 / (max(own, peer.degree) + 1) for peer in self.neighbours.values()]
        return torch.tensor(weights, dtype=torch.float64)

    def _go_on(self, peer: NeighbourState, until: float) -> _Fetch:
        """This round's fetch: the one that is still under way from the round before, or a new one."""
        if peer.fetch is None:
            fetch = peer.fetch = _Fetch(peer, until)
            fetch.task = asyncio.create_task(self._fetch(fetch))
            return fetch
        fetch = peer.fetch
        fetch.until, fetch.settled = until, asyncio.Event()
        if fetch.over:
            fetch.settled.set()
        return fetch

    async def _wait(self, fetches: list[_Fetch], started: float, patience: float) -> None:
        """Waits until all neighbours that are waited for have answered, or until the deadline. A round in
        which nobody can answer takes `least` seconds."""
        loop = asyncio.get_running_loop()
        floor = started + min(self.config.deadlines.least, patience)
        waits = {
            asyncio.create_task(fetch.settled.wait()): fetch.peer.reputation.patience
            for fetch in fetches
            if fetch.peer.reputation.worth_waiting(self.round)
        }
        try:
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
        finally:  # also where the exchange is cancelled
            for task in waits:
                task.cancel()
        while not any(fetch.header is not None for fetch in fetches) and loop.time() < floor:
            running = [fetch.task for fetch in fetches if fetch.task is not None and not fetch.over]
            if not running:  # nothing can come in this round: all have been refused
                break
            await asyncio.wait(running, timeout=floor - loop.time(), return_when=asyncio.FIRST_COMPLETED)

    async def _fetch(self, fetch: _Fetch) -> None:
        """Pulls one message, trying again while that can help."""
        peer, loop = fetch.peer, asyncio.get_running_loop()
        started = loop.time()
        refusals = 0
        while True:
            if peer.reputation.backed_off() or self.outbox.callers[peer.name].excluded:
                excluded = self.outbox.callers[peer.name].excluded
                fetch.reason = Rejection.CONVICTED if excluded else Rejection.BACKED_OFF
                break
            try:
                if not peer.greeted:
                    await self._greet(peer)
                if fetch.reason is Rejection.REFUSED:  # no longer
                    fetch.reason = Rejection.LATE
                await self._pull(fetch)
                fetch.seconds = loop.time() - started
                peer.late_pulls = 0
                break
            except Rejected as rejected:
                fetch.reason, fetch.detail = rejected.reason, str(rejected)[:200]
                if rejected.reason is not Rejection.LATE:
                    peer.late_pulls = 0
                if rejected.reason is Rejection.REFUSED:
                    peer.greeted = False
                    refusals += 1
                    if refusals > 2:
                        break
                elif rejected.reason is Rejection.DEAD:
                    if peer.neighbour.former:  # it may have changed its key: look which one it has now
                        await peer.link.renew()
                    # One that was heard of lately may be back in a moment.
                    grace = min(0.5, (fetch.until - started) / 4) if peer.reputation.alive else 0.0
                    if loop.time() - started >= grace:
                        fetch.settled.set()
                elif rejected.reason is Rejection.NOTHING_NEW:
                    if self._is_near_behind(peer):
                        break
                    fetch.settled.set()
                elif rejected.reason is not Rejection.LATE:
                    break
            except TimeoutError:
                fetch.reason = Rejection.LATE
                peer.late_pulls += 1
                if peer.late_pulls >= _LATE_PULLS:
                    peer.late_pulls = 0
                    log.info("connection is made anew", extra={"neighbour": peer.name})
                    await peer.link.renew()
            except Exception:  # no neighbour may end a round by an error that nobody expected
                log.exception("unexpected", extra={"neighbour": peer.name})
                fetch.reason = Rejection.MALFORMED
                break
            fetch.writing = False
            await asyncio.sleep(_RETRY)
        fetch.settled.set()

    def _is_near_behind(self, peer: NeighbourState) -> bool:
        """Whether a neighbour is so few rounds ahead that it waits for this node to be in its round. If this
        node waited for its next message in turn, neither would go on before the deadline."""
        return peer.used is not None and 0 <= peer.used.round - self.round <= self.outbox.drift

    async def _pull(self, fetch: _Fetch) -> None:
        peer = fetch.peer
        certificate = peer.link.certificate
        if certificate is None:
            raise Rejected(Rejection.DEAD, "its certificate is not known yet")
        hold = 0.0 if self._is_near_behind(peer) else max(fetch.until - _now(), 0.0)
        zstd, dtype, used = self.config.wire.zstd, self.config.wire.dtype, peer.used
        request = pb.PullRequest(
            run=self.config.run,
            round=self.round,
            hold_ms=int(hold * 1000),
            zstd=zstd,
            nonce=used.nonce if used else b"",
            last=used.round if used else 0,
        )
        # Only the plain wire is received in place: unpacking goes on in a thread that cannot be cancelled.
        into = None if zstd else tensors.row_memory(peer.row, dtype)
        keys = peer.neighbour.fingerprints
        assembler = wire.Assembler(self._expected(), certificate, used=used, zstd=zstd, into=into, keys=keys)
        bounds, loop = self.config.deadlines, asyncio.get_running_loop()
        async with (
            asyncio.timeout(hold + bounds.least) as patience,
            peer.link.pull(request) as parts,
        ):
            async for part in parts:
                if assembler.header is None:
                    patience.reschedule(None)
                    await self._rows_free.wait()
                    fetch.writing = into is not None
                    patience.reschedule(loop.time() + bounds.most)
                peer.received += len(part)
                assembler.feed(part)
                del part  # or it would be held until the next has come

        def check() -> tuple[memoryview, bool | None]:
            return assembler.finish(), None if into is None else tensors.is_finite(peer.row)

        # Here, while others are still on their way, and not after all have come.
        fetch.body, fetch.finite = await asyncio.to_thread(check)
        fetch.header = assembler.header

    async def _collect(self, fetches: list[_Fetch], started: float, patience: float) -> Exchange:
        """Checks what came, fills the other rows with NaN, and updates what is known of each neighbour."""
        round = self.round
        rounds: dict[str, int] = {}
        missing: dict[str, Rejection] = {}
        # A message that is half received goes on into its row: the rule then gets a copy of the others.
        # The same where not all are heard: a message that comes too late is used when its sender is next.
        busy = self.rounds is not None or any(not fetch.over and fetch.writing for fetch in fetches)
        received = torch.full_like(self._received, torch.nan) if busy else self._received
        rows = dict(zip(self.neighbours, received, strict=True))
        for fetch in fetches:
            peer, name, kept = fetch.peer, fetch.peer.name, fetch.peer.kept
            row = rows[name]
            if fetch.over:
                peer.fetch = None
            if fetch.over and fetch.body is not None and fetch.finite is None:
                await asyncio.to_thread(tensors.widen, fetch.body, self.config.wire.dtype, peer.row)
                fetch.finite = await asyncio.to_thread(tensors.is_finite, peer.row)
            reason = self._judge(fetch)
            if reason is None:
                assert fetch.header is not None
                self._use(peer, fetch, round)
                rounds[name] = fetch.header.round
                if busy:
                    row.copy_(peer.row)
                if kept is not None:
                    kept.copy_(peer.row)
                continue
            peer.reputation.missed(reason, round)
            peer.backoff = peer.reputation.backoff_left
            if reason is Rejection.LATE:
                self.deadline.late(name)
            elif reason in VIOLATIONS or reason in (Rejection.REFUSED, Rejection.DEAD):
                extra = {"neighbour": name, "round": round, "why": reason.value, "detail": fetch.detail}
                log.info("no connection" if reason is Rejection.DEAD else "rejected", extra=extra)
            if kept is not None and peer.used and round - peer.used_in <= self.config.staleness:
                row.copy_(kept)
                rounds[name] = peer.used.round
                continue
            if not busy:
                row.fill_(torch.nan)
            missing[name] = reason
        return Exchange(
            round=round,
            received=received,
            weights=self.weights(),
            rounds=rounds,
            missing=missing,
            seconds=_now() - started,
            deadline=patience,
        )

    def _use(self, peer: NeighbourState, fetch: _Fetch, round: int) -> None:
        assert fetch.header is not None
        peer.used, peer.used_in = stamp_of(fetch.header), round
        peer.exchanged = time.time()
        peer.messages += 1
        peer.finished = fetch.header.final
        peer.reputation.came()
        peer.backoff = 0.0
        self.deadline.came(peer.name, fetch.seconds)

    def _judge(self, fetch: _Fetch) -> Rejection | None:
        if not fetch.over or fetch.header is None or fetch.peer.link.certificate is None:
            return fetch.reason
        fits = self.evidence.see(fetch.header, fetch.peer.link.certificate, fetch.peer.name)
        self._exclude_convicted()
        if not fits:
            return Rejection.EQUIVOCATION
        return None if fetch.finite else Rejection.NON_FINITE

    @property
    def convicted(self) -> list[str]:
        """Neighbours against whom there is a proof, under whichever of their keys."""
        marks = self.evidence.convicted
        return [name for name, peer in self.neighbours.items() if marks & {*peer.neighbour.fingerprints}]

    def _exclude_convicted(self) -> None:
        if self.config.on_conviction == "exclude":
            for name in self.convicted:
                self.outbox.callers[name].excluded = True

    async def _greet_until_known(self, peer: NeighbourState) -> None:
        while not peer.greeted:
            try:
                await self._greet(peer)
            except Rejected as rejected:
                if rejected.reason in (Rejection.REFUSED, Rejection.CONVICTED):
                    return
                await asyncio.sleep(_RETRY)
            except TimeoutError:
                await peer.link.renew()

    async def _greet(self, peer: NeighbourState) -> None:
        """Says hello; both sides check that they fit."""
        async with asyncio.timeout(self.config.deadlines.most):
            reply = await peer.link.hello(pb.HelloRequest(terms=self.terms().encode()))
        misfit = reply.refusal[:300] or self.terms().misfit(reply.terms)
        if misfit:
            extra = {"neighbour": peer.name, "why": misfit}
            log.warning("refused by neighbour" if reply.refusal else "refused neighbour", extra=extra)
            raise Rejected(Rejection.REFUSED, misfit)
        self._heard(peer.name, reply.terms)
        peer.greeted = True

    def _heard(self, name: str, terms: pb.Terms) -> None:
        if name in self.neighbours:
            self.neighbours[name].degree = terms.degree

    async def _ask_witnesses(self, rounds: Iterable[int]) -> None:
        """Compares the headers the neighbours received with our own."""
        known = ((name, peer.link.certificate) for name, peer in self.neighbours.items())
        by_mark = {shown.fingerprint: (name, shown) for name, shown in known if shown}
        for peer in tuple(self.neighbours.values()):
            for round in rounds:
                request = pb.WitnessRequest(run=self.config.run, round=round)
                with contextlib.suppress(Rejected, TimeoutError):
                    async with asyncio.timeout(self.config.deadlines.least):
                        reply = await peer.link.witness(request)
                    for header in reply.headers[: 4 * len(by_mark)]:
                        name, certificate = by_mark.get(header.sender, ("", None))
                        fits = header.run == self.config.run and header.round == round
                        if fits and certificate is not None and wire.verify_header(header, certificate):
                            self.evidence.see(header, certificate, name)
        self._exclude_convicted()

    def _expected(self) -> wire.Expected:
        return wire.Expected(run=self.config.run, dtype=self.config.wire.dtype, length=self.length)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _now() -> float:
    return asyncio.get_running_loop().time()


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
