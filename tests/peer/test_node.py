"""Rounds over the fake network: agreement, and every way a message can be missing."""

import asyncio
import base64
import contextlib
import json
import logging
import resource
import shutil
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clippedgossip.errors import PeerError
from clippedgossip.peer import checkpoint, identity, wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.checkpoint import Checkpoint
from clippedgossip.peer.deadline import Deadline
from clippedgossip.peer.evidence import Evidence, verify
from clippedgossip.peer.node import Exchange, Node
from clippedgossip.peer.outbox import Message
from clippedgossip.peer.peer_config import Address, Config, Deadlines, Limits, Neighbour, Wire
from clippedgossip.peer.rejection import Rejection
from clippedgossip.peer.reputation import Reputation
from clippedgossip.peer.signed_rounds import AHEAD, SignedRounds
from clippedgossip.peer.telemetry import RateLimit
from clippedgossip.settings import TrainingConfig
from tests.peer.memory_network import MemoryNetwork, MemoryTransport

IDENTITIES = [identity.create() for _ in range(5)]
FAST = Deadlines(least=3.0, most=5.0, join=10.0, linger=3.0)  # a busy machine takes its time
LENGTH = 8


def ring(size: int) -> list[tuple[int, int]]:
    return [(i, (i + 1) % size) for i in range(size)]


def neighbours(i: int, edges: Sequence[tuple[int, int]]) -> tuple[Neighbour, ...]:
    others = sorted({a if b == i else b for a, b in edges if i in (a, b)})
    return tuple(
        Neighbour(name=f"p{j}", address=Address("memory", j), fingerprint=IDENTITIES[j].fingerprint)
        for j in others
    )


def make_node(net: MemoryNetwork, i: int, edges: Sequence[tuple[int, int]], **changes: object) -> Node:
    settings: dict[str, object] = {"deadlines": FAST, **changes}
    round, rounds = settings.pop("round", 0), settings.pop("rounds", 1000)
    assert isinstance(round, int)
    assert isinstance(rounds, int)
    settings["training"] = TrainingConfig(rounds=rounds)
    near = neighbours(i, edges)
    config = Config(name=f"p{i}", run="r", neighbours=near, **settings)  # type: ignore[arg-type]  # by name
    transport = MemoryTransport(net, IDENTITIES[i], config.neighbours)
    return Node(config, IDENTITIES[i], transport, length=LENGTH, rule="gossip", round=round)


@contextlib.asynccontextmanager
async def network(
    edges: Sequence[tuple[int, int]], size: int, **changes: object
) -> AsyncIterator[tuple[MemoryNetwork, list[Node]]]:
    net = MemoryNetwork()
    nodes = [make_node(net, i, edges, **changes) for i in range(size)]
    await asyncio.gather(*(node.start() for node in nodes))
    try:
        yield net, nodes
    finally:
        await asyncio.gather(*(node.close() for node in nodes))


def vector(i: int) -> torch.Tensor:
    return torch.full((LENGTH,), float(i))


async def run_to(node: Node, round: int) -> Exchange:
    """Runs freely; returns the last exchange."""
    while True:
        result = await node.exchange(vector(1))
        if result.round >= round:
            return result


def mixed(own: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    there = exchange.received.nan_to_num(0.0) + exchange.received.isnan() * own
    return own + (exchange.weights.float()[:, None] * (there - own)).sum(0)


@pytest.mark.parametrize("options", [Wire(), Wire(dtype="bfloat16", zstd=True), Wire(dtype="float16")])
def test_a_ring_agrees(options: Wire) -> None:
    async def scenario() -> None:
        async with network(ring(5), 5, wire=options) as (_, nodes):
            models = [vector(i) for i in range(5)]
            for round in range(40):
                results = await asyncio.gather(
                    *(n.exchange(m.clone()) for n, m in zip(nodes, models, strict=True))
                )
                assert all(not r.missing and r.round == round for r in results)
                models = [mixed(m, r) for m, r in zip(models, results, strict=True)]
            # In each round a message of size 2 is rounded once, to the dtype of the wire.
            within = 2 * max(torch.finfo(getattr(torch, options.dtype)).eps, 1e-6)
            assert all(torch.allclose(m, vector(2), rtol=0, atol=within) for m in models)

    asyncio.run(scenario())


def test_a_dead_neighbour_costs_nothing_and_comes_back() -> None:
    async def scenario() -> None:
        async with network(ring(3), 3) as (net, nodes):
            pairs = [(IDENTITIES[2].fingerprint, IDENTITIES[j].fingerprint) for j in (0, 1)]
            with net.partition(*pairs):
                for _ in range(5):
                    a, b = await asyncio.gather(nodes[0].exchange(vector(0)), nodes[1].exchange(vector(1)))
                    assert a.missing == {"p2": Rejection.DEAD}
                    assert b.missing == {"p2": Rejection.DEAD}
                    assert torch.isnan(a.received[1]).all()
                    assert torch.equal(a.received[0], vector(1))
            assert nodes[2].round == 0
            # It takes the others' newest messages, five rounds ahead of its own; they take its first one.
            others = asyncio.gather(nodes[0].exchange(vector(0)), nodes[1].exchange(vector(1)))
            back = await nodes[2].exchange(vector(2))
            assert not back.missing
            assert set(back.rounds.values()) <= {4, 5}
            for result in await others:
                assert result.missing == {} or set(result.missing) == {"p2"}
            for _ in range(10):
                results = await asyncio.gather(*(node.exchange(vector(1)) for node in nodes))
            assert [r.missing for r in results] == [{}] * 3
            assert [r.round for r in results] == [15, 15, 10], "everyone has done its own rounds, no other"
            assert results[2].rounds == {"p0": 15, "p1": 15}

    asyncio.run(scenario())


def test_of_the_messages_sent_only_what_somebody_lacks_is_kept() -> None:
    async def scenario() -> None:
        async with network(ring(3), 3) as (net, nodes):
            await asyncio.gather(*(node.exchange(vector(1)) for node in nodes))
            outbox = nodes[0].outbox
            while not outbox.all_have(0):
                await asyncio.sleep(0)
            await outbox.make_room()
            assert not outbox._messages
            with net.partition((IDENTITIES[2].fingerprint, IDENTITIES[0].fingerprint)):
                for round in (1, 2, 3):
                    await asyncio.gather(nodes[0].exchange(vector(0)), nodes[1].exchange(vector(1)))
                    assert outbox._messages.keys() <= {round - 1, round}, "the third neighbour lacks both"
                    await outbox.make_room()
                    assert outbox._messages.keys() == {round}

    asyncio.run(scenario())


def test_a_silent_neighbour_never_delays_beyond_the_deadline() -> None:
    async def scenario() -> None:
        async with network(ring(3), 3) as (_, nodes):
            for _ in range(3):
                results = await asyncio.gather(nodes[0].exchange(vector(0)), nodes[1].exchange(vector(1)))
                for result in results:
                    assert result.missing in ({"p2": Rejection.LATE}, {"p2": Rejection.NOTHING_NEW})
                    assert result.seconds < result.deadline + 2

    asyncio.run(scenario())


class ByzantineNode(Node):
    """Serves what it likes."""

    forged: Message | None = None

    async def publish(self, vector: torch.Tensor) -> None:
        forged = self.forged or self.make_message(vector)
        self.outbox.publish(self.round, lambda name: forged)


def forge(node: Node, round: int, length: int = LENGTH, body: bytes | None = None) -> Message:
    expected = wire.Expected(run="r", dtype="float32", length=length)
    body = bytes(4 * length) if body is None else body
    return Message(wire.make_header(node.identity, expected, wire.Stamp(node.nonce, round), body), body)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("nan", Rejection.NON_FINITE),
        ("infinite", Rejection.NON_FINITE),
        ("replay", Rejection.REPLAYED),
        ("shape", Rejection.WRONG_SHAPE),
        ("garbage", Rejection.MALFORMED),
        ("short", Rejection.WRONG_SHAPE),
    ],
)
def test_rubbish_is_missing_then_backed_off_then_let_in_again(kind: str, reason: Rejection) -> None:
    async def scenario() -> None:
        edges, net, now = ring(3), MemoryNetwork(), 0.0
        limits = Limits(strikes=3, backoff_least=30)
        nodes = [make_node(net, i, edges, limits=limits) for i in range(3)]
        for node in nodes[:2]:  # by a clock of our own, however long the rounds take
            node.neighbours["p2"].reputation = Reputation(limits, clock=lambda: now)
        nodes[2].__class__ = ByzantineNode
        byzantine = nodes[2]
        assert isinstance(byzantine, ByzantineNode)
        await asyncio.gather(*(node.start() for node in nodes))
        results = await asyncio.gather(*(n.exchange(vector(1)) for n in nodes))
        assert not any(r.missing for r in results)
        for round in range(6):
            match kind:
                case "nan":
                    byzantine.forged = forge(
                        byzantine, byzantine.round, body=vector(0).fill_(torch.nan).numpy().tobytes()
                    )
                case "infinite":
                    byzantine.forged = forge(
                        byzantine, byzantine.round, body=vector(0).fill_(torch.inf).numpy().tobytes()
                    )
                case "replay":
                    byzantine.forged = forge(byzantine, 0)
                case "shape":
                    byzantine.forged = forge(byzantine, byzantine.round, length=LENGTH + 1)
                case "garbage":
                    byzantine.forged = Message(pb.Header(run="\x00"), b"\x00" * 50)
                case "short":
                    whole = forge(byzantine, byzantine.round)
                    byzantine.forged = Message(whole.header, bytes(whole.body)[:-4])
            results = await asyncio.gather(*(n.exchange(vector(1)) for n in nodes))
            expected = reason if round < 3 else Rejection.BACKED_OFF
            assert [r.missing for r in results[:2]] == [{"p2": expected}] * 2
            assert all(torch.isfinite(mixed(vector(1), r)).all() for r in results[:2])
        byzantine.forged = None
        now = 31
        results = await asyncio.gather(*(n.exchange(vector(1)) for n in nodes))
        assert not any(r.missing for r in results)
        await asyncio.gather(*(node.close() for node in nodes))

    asyncio.run(scenario())


def test_a_misfit_is_refused_on_both_sides(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        net, edges = MemoryNetwork(), [(0, 1)]
        quick = Deadlines(least=5.0, most=5.0, join=1.0)
        a, b = (make_node(net, i, edges, deadlines=quick) for i in range(2))
        b.rule = "median"
        await asyncio.gather(a.start(), b.start())
        result = await a.exchange(vector(0))
        assert result.missing == {"p1": Rejection.REFUSED}
        await asyncio.gather(a.close(), b.close())

    asyncio.run(scenario())
    said = {record.__dict__.get("why") for record in caplog.records}
    assert {"rule 'median' instead of 'gossip'", "rule 'gossip' instead of 'median'"} <= said


def test_a_neighbour_that_does_not_fit_is_waited_for_ever_more_rarely() -> None:
    async def scenario() -> None:
        net = MemoryNetwork()
        nodes = [make_node(net, i, ring(3), deadlines=replace(FAST, join=0)) for i in range(3)]
        nodes[2].rule = "median"
        await asyncio.gather(*(node.start() for node in nodes))
        slow = 0
        for _ in range(20):
            pair = await asyncio.gather(*(node.exchange(vector(1)) for node in nodes[:2]))
            assert [r.missing for r in pair] == [{"p2": Rejection.REFUSED}] * 2
            slow += pair[0].seconds > 0.15  # three hellos take two pauses of 0.1 s
        assert 3 <= slow <= 8
        await asyncio.gather(*(node.close() for node in nodes))

    asyncio.run(scenario())


def test_a_lie_about_the_degree_gains_nothing() -> None:
    node = make_node(MemoryNetwork(), 0, ring(3))
    for degree in (1, 2, 3, 10**6):
        node.neighbours["p1"].degree = degree
        assert node.weights()[0] <= 1 / 3 + 1e-7


def test_equivocation_is_proved_by_a_witness(tmp_path: Path) -> None:
    class TwoFaced(Node):
        async def publish(self, vector: torch.Tensor) -> None:
            messages = {name: self.make_message(vector + i) for i, name in enumerate(self.neighbours)}
            self.outbox.publish(self.round, messages.__getitem__)

    async def scenario() -> None:
        async with network(ring(3), 3, witness=True, folder=tmp_path) as (_, nodes):
            nodes[2].__class__ = TwoFaced
            for _ in range(60):  # a busy machine is late with the witnesses' reports, now and then
                await asyncio.gather(*(n.exchange(vector(1)) for n in nodes))
                await asyncio.sleep(0.05)
                if nodes[0].evidence.proofs and nodes[1].evidence.proofs:
                    break
            assert nodes[0].evidence.proofs
            assert nodes[1].evidence.proofs

    asyncio.run(scenario())
    files = list((tmp_path / "evidence").iterdir())
    assert files
    assert {verify(path).fingerprint for path in files} == {IDENTITIES[2].fingerprint}


def test_evidence_holds_only_for_contradictions_within_one_start(tmp_path: Path) -> None:
    me, whole = IDENTITIES[0], wire.Expected(run="r", dtype="float32", length=1)

    def header(body: bytes, start: int = 1, round: int = 1) -> pb.Header:
        return wire.make_header(me, whole, wire.Stamp(bytes([start] * 16), round), body)

    evidence = Evidence(tmp_path, "r")
    assert evidence.see(header(b"aaaa"), me.certificate, "bea")
    assert evidence.see(header(b"aaaa"), me.certificate, "bea")
    assert evidence.see(header(b"bbbb", round=2), me.certificate, "bea")
    assert evidence.see(header(b"bbbb", start=2), me.certificate, "bea"), "a restored backup looks the same"
    assert (evidence.proofs, evidence.suspicions, evidence.convicted) == (0, 1, set())
    assert not evidence.see(header(b"cccc"), me.certificate, "bea")
    assert (evidence.proofs, evidence.convicted) == (1, {me.fingerprint})
    (path,) = tmp_path.iterdir()
    assert "signed two different models for round 1 of run 'r'" in str(verify(path))
    assert Evidence(tmp_path, "r").convicted == {me.fingerprint}, "it is known after a restart"
    assert not Evidence(tmp_path, "another run").convicted

    def proves_nothing(first: pb.Header, second: pb.Header, why: str) -> None:
        data = json.loads(path.read_text())
        data["headers"] = [base64.b64encode(h.SerializeToString()).decode() for h in (first, second)]
        (tmp_path / "forged.json").write_text(json.dumps(data))
        with pytest.raises(PeerError, match=why):
            verify(tmp_path / "forged.json")

    proves_nothing(header(b"aaaa"), header(b"bbbb", start=2), "from two starts")
    proves_nothing(header(b"aaaa"), header(b"bbbb", round=2), "do not contradict")
    proves_nothing(header(b"aaaa"), header(b"aaaa"), "do not contradict")
    forged = header(b"bbbb")
    forged.digest = bytes(32)
    proves_nothing(header(b"aaaa"), forged, "signature is wrong")


@pytest.mark.parametrize("ends", ["killed", "told to"])
def test_rounds_that_were_signed_are_not_signed_again(tmp_path: Path, ends: str) -> None:
    """A peer ends after round 6 and goes on from a checkpoint of round 3. A killed one has written down some
    rounds before they came, and is silent in these, too."""

    async def scenario() -> None:
        net, edges = MemoryNetwork(), [(0, 1)]
        quick = Deadlines(least=0.2, most=5.0, join=2.0, linger=0.0)
        a, b = (make_node(net, i, edges, deadlines=quick, folder=tmp_path / str(i)) for i in range(2))
        await asyncio.gather(a.start(), b.start())
        for _ in range(7):
            await asyncio.gather(a.exchange(vector(1)), b.exchange(vector(2)))
        shutil.copytree(tmp_path / "1", tmp_path / "killed")
        await b.close()
        folder = tmp_path / ("killed" if ends == "killed" else "1")
        again = make_node(net, 1, edges, deadlines=quick, folder=folder, round=3)
        silent = again.signed.before
        assert silent == 6 or (ends == "killed" and 6 < silent <= 6 + AHEAD)
        await again.start()
        for _ in range(6 + AHEAD):
            ours, theirs = await asyncio.gather(a.exchange(vector(1)), again.exchange(vector(3)))
            assert ours.rounds == ({"p1": theirs.round} if theirs.round > silent else {})
        assert a.evidence.proofs == a.evidence.suspicions == 0
        await asyncio.gather(a.close(), again.close())

    asyncio.run(scenario())


@pytest.mark.parametrize("torn", [b"", b"\0" * 5])
def test_the_highest_signed_round_survives_a_torn_write(tmp_path: Path, torn: bytes) -> None:
    signed = SignedRounds(tmp_path, "r")
    for round in range(6):
        signed.add(round)
    signed.close()
    (path,) = (tmp_path / "signed").iterdir()
    whole = path.read_bytes()
    assert SignedRounds(tmp_path, "r").highest == 5
    path.write_bytes(whole[:12] + (torn + whole[12 + len(torn) :] if torn else whole[12:]))
    assert SignedRounds(tmp_path, "r").highest in (4, 5)
    assert SignedRounds(tmp_path, "another run").highest == -1
    for lost in (b"x" * 24, b"\0" * 24, b"\0" * 5, b""):  # no crash leaves these
        path.write_bytes(lost)
        with pytest.raises(PeerError, match=r"damaged.*\nremove it, and start in a round .*--enter ROUND"):
            SignedRounds(tmp_path, "r")
        assert path.read_bytes() == lost
    path.unlink()
    assert SignedRounds(tmp_path, "r").highest == SignedRounds(tmp_path, "r").highest == -1


def test_what_may_be_signed_is_on_disk_before_it_is(tmp_path: Path) -> None:
    signed, writes = SignedRounds(tmp_path, "r"), set()
    for round in range(20):
        signed.add(round)
        signed.write_ahead(18)
        on_disk = SignedRounds(tmp_path, "r").before
        assert round <= on_disk <= min(max(round, 18), round + AHEAD)
        writes.add(on_disk)
    assert len(writes) == 20 // AHEAD + 1, "the disk is not waited for in every round"
    signed = SignedRounds(tmp_path, "r")
    signed.add(20)
    signed.write_ahead(100)
    signed.close()
    assert SignedRounds(tmp_path, "r").before == 20, "who ends by itself is not silent afterwards"


def test_a_convicted_neighbour_is_excluded_where_the_config_says_so(tmp_path: Path) -> None:
    async def scenario() -> None:
        net, edges = MemoryNetwork(), [(0, 1)]
        a, b = (make_node(net, i, edges, on_conviction="exclude") for i in range(2))
        await asyncio.gather(a.start(), b.start())
        first, *_ = await asyncio.gather(a.exchange(vector(1)), b.exchange(vector(2)))
        assert not first.missing
        a.evidence.convicted.add(IDENTITIES[1].fingerprint)
        a._exclude_convicted()
        ours, theirs = await asyncio.gather(a.exchange(vector(1)), b.exchange(vector(2)))
        assert ours.missing == {"p1": Rejection.CONVICTED}
        assert theirs.missing == {"p0": Rejection.CONVICTED}
        await asyncio.gather(a.close(), b.close())

    asyncio.run(scenario())


def test_a_message_is_used_again_only_where_the_config_allows_it() -> None:
    async def scenario() -> None:
        net, edges = MemoryNetwork(), [(0, 1)]
        quick = Deadlines(least=0.1, most=0.3, join=2.0, linger=0.0)
        a, b = (make_node(net, i, edges, deadlines=quick, staleness=2) for i in range(2))
        await asyncio.gather(a.start(), b.start())
        await asyncio.gather(a.exchange(vector(1)), b.exchange(vector(2)))
        found = [await a.exchange(vector(1)) for _ in range(4)]
        assert [exchange.rounds for exchange in found] == [{"p1": 0}, {"p1": 0}, {}, {}]
        assert [bool(exchange.missing) for exchange in found] == [False, False, True, True]
        await asyncio.gather(a.close(), b.close())

    asyncio.run(scenario())


def test_deadline_stays_in_bounds_whatever_neighbours_do() -> None:
    bounds = Deadlines(least=1.0, most=8.0, margin=4.0)
    deadline = Deadline(bounds)
    assert deadline.seconds == 8.0
    for name in "abc":
        deadline.came(name, 0.01)
    assert deadline.seconds == 1.0
    for _ in range(50):
        deadline.came("c", 7.9)
    assert deadline.seconds == 1.0, "one that stalls does not stretch it"
    for _ in range(50):
        deadline.late("a")
        deadline.late("b")
    assert deadline.seconds == 8.0, "a majority that is late does"
    for _ in range(80):
        deadline.came("a", 0.5)
        deadline.came("b", 0.5)
    assert 2.0 <= deadline.seconds < 2.1


def test_standing_backs_off_longer_each_time() -> None:
    now = 0.0
    reputation = Reputation(Limits(strikes=2, backoff_least=1, backoff_most=4), clock=lambda: now)
    reputation.missed(Rejection.NON_FINITE, 0)
    assert not reputation.backed_off()
    pauses = []
    for _ in range(4):
        reputation.missed(Rejection.NON_FINITE, 0)
        start = now
        while reputation.backed_off():
            now += 0.5
        pauses.append(now - start)
    assert pauses == [1, 2, 4, 4]
    for _ in range(10):
        reputation.came()
    reputation.missed(Rejection.NON_FINITE, 0)
    assert not reputation.backed_off(), "forgiven"
    for _ in range(100):
        reputation.missed(Rejection.LATE, 0)
    assert not reputation.backed_off(), "never for silence"


def test_a_full_disk_is_named_as_the_reason(tmp_path: Path) -> None:
    whole, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            checkpoint.save(Checkpoint(run="r", round=1, tensors={"x": torch.zeros(1000)}), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (whole, hard))
    assert not [*tmp_path.iterdir()]


def test_checkpoints_survive_being_torn(tmp_path: Path) -> None:
    for round in (5, 10, 15):
        state = Checkpoint(run="r", round=round, tensors={"x": torch.full((3,), round)})
        newest = checkpoint.save(state, tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    found = checkpoint.load(tmp_path, "r")
    assert found is not None
    assert found.round == 15
    whole = newest.read_bytes()
    for torn in (whole[:-1], whole[:40], b"", whole[:-4] + b"\0\0\0\1", bytes(200)):
        newest.write_bytes(torn)
        found = checkpoint.load(tmp_path, "r")
        assert found is not None
        assert found.round == 10
        assert torch.equal(found.tensors["x"], torch.full((3,), 10))
    newest.write_bytes(whole)
    assert checkpoint.load(tmp_path, "another run") is None
    for path in tmp_path.iterdir():
        path.write_bytes(b"torn")
    with pytest.raises(PeerError, match=r"2 checkpoints in .* are damaged, and none is whole"):
        checkpoint.load(tmp_path, "r")


def test_a_finished_peer_serves_its_last_message_to_late_ones() -> None:
    async def scenario() -> None:
        net, edges = MemoryNetwork(), [(0, 1)]
        quick = Deadlines(least=0.2, most=5.0, join=0.1, linger=1000.0)  # more than a test's time
        early = make_node(net, 0, edges, deadlines=quick, rounds=3)
        await early.start()
        for round in range(3):
            await early.exchange(vector(round))
        leaving = asyncio.create_task(early.leave())
        late = make_node(net, 1, edges, deadlines=quick, rounds=3)
        await late.start()
        found = []
        for _ in range(3):
            exchange = await late.exchange(vector(9))
            found.append((exchange.rounds, float(exchange.received[0, 0])))
        assert found == [({"p0": 2}, 2.0)] * 3, "the last message, again and again"
        assert late.neighbours["p0"].finished
        await asyncio.gather(late.leave(), leaving)  # neither waits for the other until `linger` is over
        assert late.evidence.proofs == 0

    asyncio.run(scenario())


def test_the_log_is_bounded_whatever_a_neighbour_says(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        net, edges = MemoryNetwork(), [(0, 1)]
        a, b = (make_node(net, i, edges, limits=Limits(pulls_per_second=10**5)) for i in range(2))
        wrong = pb.HelloRequest(terms=replace(b.terms(), rule="another").encode())
        for _ in range(3000):
            await a.outbox.hello("p1", wrong)

    for known in logging.getLogger("clippedgossip.peer.outbox").filters:
        known.__init__()  # type: ignore[misc]  # as in a new process
    asyncio.run(scenario())
    assert 1 <= len(caplog.records) <= 20


def test_what_a_rate_limit_left_out_is_said() -> None:
    limit = RateLimit(few=2, pause=0.05)

    def passes(text: str) -> bool | int:
        record = logging.makeLogRecord({"msg": text, "neighbour": "p1"})
        return limit.filter(record) and record.__dict__.get("left_out", True)

    assert [passes("a") for _ in range(5)] == [True, True, False, False, False]
    assert passes("b")
    time.sleep(0.06)
    assert passes("a") == 3


def test_a_pull_in_memory_that_is_cancelled_while_it_ends_is_cancelled() -> None:
    """Else a peer that closes waits for ever for a fetch that goes on."""

    class EndsSlowly:
        async def pull(self, name: str, request: pb.PullRequest, send: object) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.05)

    async def run() -> None:
        net = MemoryNetwork()
        here, there = (MemoryTransport(net, IDENTITIES[i], neighbours(i, [(0, 1)])) for i in range(2))
        await there.start(EndsSlowly())  # type: ignore[arg-type]  # of a service, what this test calls

        async def pull() -> None:
            async with here.link(*neighbours(0, [(0, 1)])).pull(pb.PullRequest()):
                await asyncio.sleep(0.01)

        task = asyncio.create_task(pull())
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    asyncio.run(run())
