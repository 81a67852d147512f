"""Real processes, real faults. The short form does many at once; the full form each by itself."""

import json
import multiprocessing
import signal
import sys
import time
from pathlib import Path

import networkx as nx
import pytest

from clippedgossip.peer.drill.drill import DEADLINES, Drill, edges_of
from clippedgossip.peer.drill.fault import Fault, Result
from clippedgossip.peer.drill.leaks import steady_growth
from tests.peer.terminal import Terminal


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
    assert steady_growth(leak) == pytest.approx(100_000 * 200)
    assert steady_growth([*leak[:100], *[leak[100]] * 100]) == 0
    step = [300_000_000] * 90 + [400_000_000] * 110
    assert steady_growth(step) == 0
    noisy = [h + 50_000_000 * (i % 2) for i, h in enumerate(leak)]
    assert steady_growth(noisy) == pytest.approx(100_000 * 200, rel=0.1)


@pytest.mark.parametrize(("network", "degree"), [("ring", 2), ("torus", 3), ("chords", 4)])
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
