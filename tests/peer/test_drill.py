"""Real processes, real faults. The short form does many at once; the full form each by itself."""

import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import networkx as nx
import pytest

from clippedgossip.peer.drill.drill import DEADLINES, FROM_OUTSIDE, Drill, edges_of
from clippedgossip.peer.drill.fault import MISBEHAVIOURS, Fault, Result
from clippedgossip.peer.drill.leaks import steady_growth
from clippedgossip.peer.drill.proxy import Proxy
from clippedgossip.peer.local_network import LocalNetwork
from tests.peer.terminal import Terminal
from tests.rounding import near


def unharmed(result: Result, rounds: int) -> None:
    assert result.fired
    assert not result.ended_badly
    assert not result.fell_out
    assert not result.convicted
    assert result.rounds == rounds
    assert result.growth < 64  # a flood of connections fragments the heap by up to 70 in the long run
    assert result.peak < 2000  # a process with torch in it takes some 300; nobody believed 10 GB


def test_a_leak_is_told_from_what_fills_once() -> None:
    leak = [300_000_000 + 100_000 * i for i in range(200)]
    assert steady_growth(leak) == near(100_000 * 200)
    assert steady_growth([*leak[:100], *[leak[100]] * 100]) == 0
    step = [300_000_000] * 90 + [400_000_000] * 110
    assert steady_growth(step) == 0
    noisy = [h + 50_000_000 * (i % 2) for i, h in enumerate(leak)]
    assert steady_growth(noisy) == pytest.approx(100_000 * 200, rel=0.1)  # of the noise, a tenth is left


@pytest.mark.parametrize(("network", "degree"), [("ring", 2), ("chords", 4)])
def test_networks(network: str, degree: int) -> None:
    graph = nx.Graph(edges_of(network, 8))
    assert {d for _, d in graph.degree} == {degree}
    assert nx.is_connected(graph)
    shared = [set(graph[7]) & set(graph[j]) for j in graph[7]]
    assert any(shared) == (network == "chords")  # only there can two witnesses compare


@pytest.mark.parametrize("told", [pytest.param("to terminate", marks=pytest.mark.slow), "by Ctrl-C"])
def test_told_to_end_a_drill_leaves_nothing_behind(tmp_path: Path, told: str) -> None:
    command = [sys.executable, "-m", "clippedgossip", "peer", "drill", "full-disk", "--peers", "5"]
    with Terminal([*command, "--rounds", "100000"], TMPDIR=str(tmp_path)) as terminal:
        until = time.monotonic() + 120
        while time.monotonic() < until and len(list(tmp_path.glob("*/net/*/status.json"))) < 5:
            time.sleep(0.1)
        pids = [json.loads(p.read_text())["pid"] for p in tmp_path.glob("*/net/*/status.json")]
        assert len(pids) == 5
        assert set(pids) < set(terminal.left())
        if told == "by Ctrl-C":
            terminal.interrupt()
            terminal.interrupt_again()
            assert terminal.ended() == 128 + signal.SIGINT
        else:
            terminal.process.terminate()
            assert terminal.ended() == 128 + signal.SIGTERM
    assert "Traceback" not in terminal.said
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert not [p for p in tmp_path.iterdir() if not p.name.startswith("torchinductor")], (
        "but for PyTorch's cache"
    )


@pytest.mark.slow
def test_many_faults_at_once() -> None:
    faults = [
        Fault.KILL,
        Fault.STOP,
        Fault.GARBAGE_BYTES,
        Fault.NO_CERTIFICATE,
        Fault.FOREIGN_CERTIFICATE,
        Fault.CONNECTION_FLOOD,
        Fault.NAN,
        Fault.EQUIVOCATION,
    ]
    rounds = 200  # enough that a quick machine does every fault before the last round
    result = Drill(faults, peers=6, rounds=rounds, model="linear").run()
    unharmed(result, rounds)
    assert result.rejected
    assert result.accuracy > 0.8
    assert not multiprocessing.active_children()


@dataclass
class RandomFaults(Drill):
    """One fault after another, drawn by a seed, for a given time; then everyone is told to end."""

    seconds: float = 60.0
    seed: int = 0
    done: Counter[Fault] = field(default_factory=Counter)

    def _actions(self, net: LocalNetwork, proxies: Sequence[Proxy]) -> Iterator[float]:
        draw, until = random.Random(self.seed), time.monotonic() + self.seconds
        near = [fault for fault in Fault if fault not in (*MISBEHAVIOURS, Fault.NONE, *NOT_AGAIN)]
        while time.monotonic() < until:
            fault = draw.choice([*near, Fault.FALSE_ROUND])
            self.victim = draw.choice("123")
            self.done[fault] += 1
            print(f"{until - time.monotonic():.0f} s left: {fault} for {self.victim}", flush=True)
            if fault is Fault.FALSE_ROUND:  # the Byzantine peer, the last one, is another from now on
                name = str(self.peers - 1)
                how = draw.choice([*MISBEHAVIOURS.values()])
                net.processes[name].kill()
                net.processes[name].join(5)
                net.configs[name] = replace(net.configs[name], misbehave=how)
                net.start(name)
            elif fault in FROM_OUTSIDE:
                assert FROM_OUTSIDE[fault](net.configs[self.victim].bind)
            else:
                yield from self.act(fault, net, proxies)
            yield draw.uniform(0.0, 10.0)
            assert {*net.alive()} >= {*self.regular(net)}, "a regular peer has ended"
        then = self._rounds(net)
        for _ in range(60):  # for the last ones to come back: rounds count, whatever else the machine does
            yield 5.0
            if all(now - then[name] >= 40 for name, now in self._rounds(net).items()):
                break
        for process in net.processes.values():
            process.terminate()
        yield 10**6

    def _rounds(self, net: LocalNetwork) -> dict[str, int]:
        status = net.status()
        return {name: int(status.get(name, {}).get("round", 0)) for name in self.regular(net)}


NOT_AGAIN = (Fault.FULL_DISK, Fault.CLOCK_JUMP)
"""Faults that are there from the start on."""


@pytest.mark.slow
@pytest.mark.hours
@pytest.mark.timeout(4 * 3600)
def test_random_faults(undisturbed: Result) -> None:
    """Two hours, or CLIPPEDGOSSIP_DRILL_SECONDS; CLIPPEDGOSSIP_DRILL_SEED repeats one."""
    seconds = float(os.environ.get("CLIPPEDGOSSIP_DRILL_SECONDS", 7200))
    seed = int(os.environ.get("CLIPPEDGOSSIP_DRILL_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CLIPPEDGOSSIP_DRILL_SEED={seed} CLIPPEDGOSSIP_DRILL_SECONDS={seconds:g}", flush=True)
    through = [Fault.PARTITION, Fault.GARBAGE]  # proxies, and a Byzantine peer
    drill = RandomFaults(through, rounds=10**7, seconds=seconds, seed=seed)
    result = drill.run()
    print(dict(drill.done), result)
    assert not result.ended_badly
    assert not result.fell_out
    assert not result.convicted
    assert result.rounds > 60
    assert result.growth < 64
    assert result.peak < 2000
    assert result.accuracy > undisturbed.accuracy - 0.02


@pytest.fixture(scope="module")
def undisturbed() -> Result:
    return Drill([Fault.NONE]).run()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name.lower())
def test_each_fault(fault: Fault, undisturbed: Result) -> None:
    result = Drill([fault]).run()
    unharmed(result, 200)
    assert result.overrun < 3 * DEADLINES.most
    assert result.accuracy > undisturbed.accuracy - 0.02
