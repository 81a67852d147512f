"""Schedules that Hypothesis invents, in simulated time over the fake network: peers of any speed are killed,
restarted and parted for any time, calls take long, neighbours are removed and added again, by each end at a
time of its own, and one peer lies about its round.

Every regular peer does all its rounds, one after the other. Peers that can reach each other exchange again
within 20 rounds. No weight is lost, and nobody regular is convicted.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.node import Exchange, Node
from clippedgossip.peer.outbox import Message
from clippedgossip.peer.peer_config import Deadlines
from clippedgossip.peer.rejection import VIOLATIONS
from clippedgossip.peer.transport.base import Send
from clippedgossip.peer.wire import Stamp, make_header
from tests.peer.memory_network import MemoryNetwork
from tests.peer.simulated_time import SimulatedLoop, at_once
from tests.peer.test_node import IDENTITIES, LENGTH, make_node, neighbours

ROUNDS = 60
CHECKPOINT = 7
PATIENCE = 20
GRAPHS = {
    "pair": [(0, 1)],
    "ring": [(0, 1), (1, 2), (2, 3), (3, 0)],
    "complete": list(itertools.combinations(range(4), 2)),
    "star": [(0, 1), (0, 2), (0, 3), (0, 4)],
}
TRIANGLE = [(0, 1), (1, 2), (2, 0)]
DEADLINES = Deadlines(least=1.0, most=4.0, join=5.0, linger=20.0)


class FalseRounds(Node):
    """Signs its messages for whatever rounds it likes, or lets nobody finish a pull."""

    claims = "future"

    async def publish(self, vector: torch.Tensor) -> None:
        if self.claims == "stall later" and self.round == 20:
            self.outbox._stream = self._stall  # type: ignore[method-assign]  # it lies
        claimed = {"future": 10**9 + self.round, "past": 0, "both": self.round % 2 * 10**9 + self.round}
        round = claimed.get(self.claims, self.round)
        made = self.make_message(vector)
        header = make_header(self.identity, self._expected(), Stamp(self.nonce, round), made.body)
        message = Message(header, made.body)
        self.outbox.publish(self.round, lambda name: message)

    async def start(self) -> None:
        if self.claims == "stall":
            self.outbox._stream = self._stall  # type: ignore[method-assign]  # it lies
        else:  # whatever its neighbours have used
            self.outbox._new_to = lambda request: max(self.outbox._messages, default=None)  # type: ignore[method-assign]  # replaced for this test
        await super().start()

    @staticmethod
    async def _stall(message: Message, request: pb.PullRequest, send: Send) -> None:
        await asyncio.sleep(10**6)


@dataclass
class Member:
    """One participant, over all its starts."""

    number: int
    step: float
    """Seconds that its local step takes."""
    node: Node | None = None
    task: asyncio.Task[None] | None = None
    done: list[int] = field(default_factory=list)
    """Its rounds, in the order in which it did them."""
    checkpoint: int = 0
    signed: int = -1
    near: list[int] = field(default_factory=list)
    """Its neighbours, as its config names them; a running peer follows before its next round."""
    total: int = 0
    """How many rounds it has done, those that were done twice counted twice."""


class Schedules(RuleBasedStateMachine):
    @initialize(
        graph=st.sampled_from(sorted(GRAPHS)),
        steps=st.lists(st.sampled_from([0.02, 0.1, 0.1, 0.1, 0.5, 3.0]), min_size=5, max_size=5),
        lies=st.sampled_from(["none", "future", "past", "both", "stall", "stall later"]),
    )
    def begin(self, graph: str, steps: list[float], lies: str) -> None:
        self.loop = SimulatedLoop()
        self.threads = mock.patch.object(asyncio, "to_thread", at_once)
        self.threads.start()
        self.net = MemoryNetwork()
        self.edges = GRAPHS[graph]
        size = 1 + max(b for _, b in self.edges)
        self.byzantine = size - 1 if lies != "none" and size > 2 else -1
        self.lies = lies
        self.members = [Member(i, steps[i]) for i in range(size)]
        self.apart_until: dict[tuple[int, int], tuple[int, int]] = {}
        """For each edge: rounds its ends had done when they last could not exchange, or last did."""
        for member in self.members:
            member.near = [a + b - member.number for a, b in self.edges if member.number in (a, b)]
            self.launch(member)
        self.watch_edges()

    def launch(self, member: Member) -> None:
        node = make_node(
            self.net,
            member.number,
            self.links_of(member),
            deadlines=DEADLINES,
            rounds=ROUNDS,
            round=member.checkpoint,
            witness=True,
        )
        if member.number == self.byzantine:
            node.__class__ = FalseRounds
            node.claims = self.lies  # type: ignore[attr-defined]  # set for this test
        node.signed.highest = node.signed.before = member.signed
        member.node = node
        member.task = self.loop.create_task(self.live(member, node))

    @staticmethod
    def links_of(member: Member) -> list[tuple[int, int]]:
        return [(member.number, other) for other in member.near]

    async def live(self, member: Member, node: Node) -> None:
        await node.start()
        while node.round < ROUNDS:
            await asyncio.sleep(member.step)
            near = neighbours(member.number, self.links_of(member))
            if near != node.config.neighbours:
                await node.change(near, IDENTITIES[member.number])
            round, member.total = node.round, member.total + 1
            vector = torch.full((LENGTH,), float(member.number))
            vector[1] = round
            exchange = await node.exchange(vector)
            member.signed = max(member.signed, node.signed.highest)
            if member.number != self.byzantine:
                self.judge(member, node, exchange, round)
            member.done.append(round)
            if node.round % CHECKPOINT == 0:
                member.checkpoint = node.round
        await node.leave()
        member.node = None

    def judge(self, member: Member, node: Node, exchange: Exchange, round: int) -> None:
        names = list(node.neighbours)
        assert exchange.round == round
        assert node.round == round + 1, "nobody jumps"
        assert set(exchange.rounds) | set(exchange.missing) == set(names), "each has a message or a reason"
        assert not set(exchange.rounds) & set(exchange.missing)
        assert float(exchange.weights.sum()) < 1, "what is left is the weight of self"
        for name, row in zip(names, exchange.received, strict=True):
            other = int(name[1:])
            if name in exchange.missing:
                assert other == self.byzantine or exchange.missing[name] not in VIOLATIONS, exchange.missing
                assert torch.isnan(row).all(), "its weight goes to self"
                continue
            assert row[0] == other
            if other != self.byzantine:
                assert row[1] == exchange.rounds[name], "the message is of the round that is recorded"
            self.exchanged(member.number, other)
        assert exchange.seconds <= exchange.deadline + 1e-6
        lies = {IDENTITIES[self.byzantine].fingerprint} if self.byzantine >= 0 else set()
        assert node.evidence.convicted <= lies, "nobody regular is convicted"
        assert node.evidence.suspicions == 0 or lies
        self.check_edges()

    def reachable(self, a: int, b: int) -> bool:
        """Both live, serve messages, and the link is whole."""
        for member, other in ((self.members[a], b), (self.members[b], a)):
            if (
                member.node is None
                or f"p{other}" not in member.node.neighbours
                or member.node.outbox.round <= member.node.signed.before
                or not member.node.outbox._messages
            ):
                return False
        pair = frozenset((IDENTITIES[a].fingerprint, IDENTITIES[b].fingerprint))
        return pair not in self.net.cut

    def counts(self, a: int, b: int) -> tuple[int, int]:
        return self.members[a].total, self.members[b].total

    def exchanged(self, a: int, b: int) -> None:
        self.apart_until[a, b] = self.counts(a, b)

    def watch_edges(self) -> None:
        for a, b in itertools.chain(self.edges, ((b, a) for a, b in self.edges)):
            self.apart_until[a, b] = self.counts(a, b)

    def check_edges(self) -> None:
        for (a, b), then in self.apart_until.items():
            if self.byzantine in (a, b):
                continue
            now = self.counts(a, b)
            if not self.reachable(a, b):
                self.apart_until[a, b] = now
            else:
                waited = min(now[0] - then[0], now[1] - then[1])
                assert waited <= PATIENCE, f"{a} has not heard {b} for {waited} rounds of either"

    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(asyncio.sleep(seconds))
        for member in self.members:
            if member.task is not None and member.task.done():
                member.task.result()

    @rule(seconds=st.sampled_from([0.3, 2.0, 5.0, 30.0]))
    def advance(self, seconds: float) -> None:
        self.pass_time(seconds)

    @rule(number=st.integers(0, 4))
    def kill(self, number: int) -> None:
        member = self.members[number % len(self.members)]
        if member.task is None or member.node is None:
            return
        member.task.cancel()
        self.loop.run_until_complete(asyncio.gather(member.task, return_exceptions=True))
        member.signed = max(member.signed, member.node.signed.highest)
        self.loop.run_until_complete(member.node.close())
        member.node = member.task = None
        self.check_edges()

    @rule()
    def restart(self) -> None:
        for member in self.members:
            if member.task is None:
                self.launch(member)

    @rule(split=st.integers(1, 15))
    def part(self, split: int) -> None:
        """Cuts every link between two groups."""
        for a, b in self.edges:
            if (split >> a & 1) != (split >> b & 1):
                self.net.cut.add(frozenset((IDENTITIES[a].fingerprint, IDENTITIES[b].fingerprint)))
        self.check_edges()

    @rule(number=st.integers(0, 4), other=st.integers(0, 3))
    def remove(self, number: int, other: int) -> None:
        """One end forgets the other, which goes on asking it."""
        member = self.members[number % len(self.members)]
        if len(member.near) > 1:
            member.near.pop(other % len(member.near))
        self.check_edges()

    @rule()
    def add(self) -> None:
        """Everyone has all its neighbours again; in another order, as who comes last is last."""
        for member in self.members:
            ends = (a + b - member.number for a, b in self.edges if member.number in (a, b))
            member.near += [end for end in ends if end not in member.near]

    @precondition(lambda self: self.net.cut)
    @rule()
    def heal(self) -> None:
        self.check_edges()
        self.net.cut.clear()

    @rule(longest=st.sampled_from([0.0, 0.05, 0.4]))
    def slow_down(self, longest: float) -> None:
        ticks = itertools.cycle([0.1, 0.9, 0.4, 0.7, 0.2, 1.0])
        self.net.delay = lambda: longest * next(ticks)

    async def end_all(self) -> None:
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        try:
            self.heal()
            self.add()
            self.restart()
            for _ in range(ROUNDS * 20):
                if all(member.node is None for member in self.members):
                    break
                self.pass_time(10.0)
            for member in self.members:
                if member.number == self.byzantine:
                    continue
                assert member.done[-1] == ROUNDS - 1, "it does all its rounds"
                assert set(member.done) == set(range(ROUNDS))
                for before, after in itertools.pairwise(member.done):
                    assert after <= before + 1, "one after the other"
        finally:
            self.threads.stop()
            self.loop.run_until_complete(self.end_all())
            self.loop.close()


def explore(schedules: int) -> None:
    run_state_machine_as_test(
        Schedules,
        settings=settings(
            max_examples=schedules,
            stateful_step_count=12,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
            phases=[Phase.generate],  # shrinking takes many times longer, and the steps are printed
        ),
    )


# --- peers that are a few rounds apart -------------------------------------------------------------------

STEP = 0.02
KITE = [(0, 1), (1, 2), (0, 3), (1, 3)]


async def free_run(node: Node, seconds: float) -> list[tuple[float, Exchange]]:
    """Each exchange, and when it ended."""
    now, done = asyncio.get_running_loop().time, []
    while now() < seconds:
        await asyncio.sleep(STEP)
        done.append((now(), await node.exchange(torch.zeros(LENGTH))))
    return done


@pytest.mark.parametrize(
    ("edges", "rounds"),
    [
        (GRAPHS["pair"], (0, 2)),
        (TRIANGLE, (0, 0, 1)),
        (TRIANGLE, (0, 1, 2)),
        (TRIANGLE, (0, 2, 2)),
        (GRAPHS["ring"], (0, 2, 1, 2)),
        (KITE, (100, 102, 102, 0)),  # as after a new key of 1: it has missed 0, and 3 came late
    ],
)
def test_peers_a_few_rounds_apart_come_to_the_same_round(
    edges: list[tuple[int, int]], rounds: tuple[int, ...]
) -> None:
    async def scenario() -> list[list[tuple[float, Exchange]]]:
        net = MemoryNetwork()
        nodes = [make_node(net, i, edges, deadlines=DEADLINES, round=at) for i, at in enumerate(rounds)]
        await asyncio.gather(*(node.start() for node in nodes))
        done = await asyncio.gather(*(free_run(node, 3.0) for node in nodes))
        await asyncio.gather(*(node.close() for node in nodes))
        return done

    threads = mock.patch.object(asyncio, "to_thread", at_once)
    with threads, asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        done = runner.run(scenario())
    settled = [[exchange for when, exchange in each if 1 < when < 2.5] for each in done]
    assert not any(exchange.missing for each in settled for exchange in each), "nobody waits in vain"
    near = [each for each, at in zip(settled, rounds, strict=True) if max(rounds) - at <= 2]
    assert max(each[-1].round for each in near) - min(each[-1].round for each in near) <= 1
    share = 0.7 if near == settled else 0.3  # those that are far apart wait for each other in turn
    assert min(map(len, settled)) > share * 1.5 / STEP


def test_some_schedules() -> None:
    explore(8)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_thousands_of_schedules() -> None:
    explore(3000)
