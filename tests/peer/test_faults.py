"""Real processes, real faults. The short form does many at once; the full form each by itself."""

import multiprocessing

import pytest

from clippedgossip.peer.drill import Drill, Fault, Result
from clippedgossip.peer.memory import steady_growth


def unharmed(result: Result, rounds: int) -> None:
    assert result.fired
    assert not result.ended_badly
    assert result.rounds == rounds
    assert result.growth < 16
    assert result.peak < 2000  # a process with torch in it takes some 300; nobody believed 10 GB


def test_a_leak_is_told_from_what_fills_once() -> None:
    leak = [300_000_000 + 100_000 * i for i in range(200)]
    assert steady_growth(leak) == pytest.approx(100_000 * 200)
    assert steady_growth([*leak[:100], *[leak[100]] * 100]) == 0
    step = [300_000_000] * 90 + [400_000_000] * 110
    assert steady_growth(step) == 0
    noisy = [h + 50_000_000 * (i % 2) for i, h in enumerate(leak)]
    assert steady_growth(noisy) == pytest.approx(100_000 * 200, rel=0.1)


def test_many_faults_at_once() -> None:
    faults = [
        Fault.KILL,
        Fault.STOP,
        Fault.GARBAGE_BYTES,
        Fault.NO_CERTIFICATE,
        Fault.FOREIGN_CERTIFICATE,
        Fault.CONNECTION_FLOOD,
        Fault.NAN,
    ]
    rounds = 250  # enough that a busy machine does every fault before the last round
    result = Drill(faults, peers=5, rounds=rounds, model="linear").run()
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
    assert result.accuracy > undisturbed.accuracy - 0.02
