"""One run over several processes: the stacked engine's numbers, few bytes, and no rank lost in silence."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from clippedgossip.errors import RunError
from clippedgossip.records import RunDirectory
from clippedgossip.rules import Mozi
from clippedgossip.runs.config import load_config
from clippedgossip.runs.execute import Recorder, execute
from clippedgossip.simulate import State, Training, train
from clippedgossip.simulate.distributed.rendezvous import find_members
from clippedgossip.simulate.distributed.same_run import difference
from clippedgossip.simulate.distributed.transpose import even_parts, length

ROOT = str(Path(__file__).parents[3])
if ROOT not in sys.path:  # the processes of the ranks import what they run from there
    sys.path.insert(0, ROOT)

from tests.rounding import assert_near, trained  # noqa: E402 - needs the path
from tests.simulate.distributed import distributed_cases as cases  # noqa: E402 - needs the path


def same(got: Any, want: Any) -> list[str]:
    """Where two outcomes differ by more than float32 rounding."""
    (records, models, clips), (expected, expected_models, expected_clips) = got, want
    trouble = [] if np.array_equal(clips, expected_clips) else ["clips"]
    scale = max(1.0, float(np.abs(expected_models).max()))
    if not np.abs(models - expected_models).max() <= 3e-6 * scale:
        trouble.append(f"models by {np.abs(models - expected_models).max():.1e}")
    for record, other in zip(records, expected, strict=True):
        trouble += [name for name in other.keys() | record.keys() if not near(record.get(name), other[name])]
    return trouble


def near(value: Any, other: Any) -> bool:
    if isinstance(other, dict):
        return all(near(value[name], other[name]) for name in other)
    if isinstance(other, list):
        return len(value) == len(other) and all(map(near, value, other))
    # Ranks sum in another order: the roundings of a few rounds.
    return bool(value == pytest.approx(other, rel=100 * torch.finfo(torch.float32).eps, abs=1e-9))


@pytest.mark.parametrize(("size", "share_memory"), [(2, True), (3, False)])
def test_rules_and_attacks_give_the_stacked_engine_s_numbers(
    size: int, share_memory: bool, tmp_path: Path
) -> None:
    """Every other rule over two ranks, the rest over three."""
    check(size, cases.pairs(size)[size - 2 :: 2], tmp_path, share_memory=share_memory)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "share_memory"), [(1, True), (2, True), (3, False), (4, True)])
def test_every_rule_and_attack_gives_the_stacked_engine_s_numbers(
    size: int, share_memory: bool, tmp_path: Path
) -> None:
    check(size, cases.pairs(size), tmp_path, share_memory=share_memory)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_rule_under_every_attack(tmp_path: Path) -> None:
    check(3, cases.ALL_PAIRS, tmp_path)


@pytest.mark.gpu("other processes")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_on_gpus_give_the_stacked_engine_s_models(size: int, tmp_path: Path) -> None:
    """One rank goes over NCCL, and more where each has a GPU of its own; else they share one, over gloo."""
    chosen = cases.pairs(size)[:4]  # each is compiled, for minutes in all
    got, *_ = cases.together(
        size, cases.run_cases, chosen, "cuda", folder=tmp_path, timeout=300, patience=600
    )
    assert isinstance(got, dict), got
    for name, case in cases.cases(chosen):
        _, models, _ = cases.outcome(list(train(case, device="cuda")))
        assert_near(got[name][1], models, roundings=trained(2, of=cases.LONGEST), told=name)


def check(size: int, chosen: list[tuple[str, str]], folder: Path, *, share_memory: bool = True) -> None:
    got, *_ = cases.together(size, cases.run_cases, chosen, folder=folder, share_memory=share_memory)
    assert isinstance(got, dict), got
    wrong = {}
    for name, case in cases.cases(chosen):
        if trouble := same(got[name], cases.outcome(list(train(case)))):
            wrong[name] = trouble
    assert not wrong


def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    whole = [moment.record.to_json() for moment in train(cases.long_run()) if moment.record]
    first, second, third = (str(tmp_path / name) for name in ("first", "second", "third"))
    parts = [
        *cases.together(2, cases.run_from, None, first, 2, folder=tmp_path)[0],
        *cases.together(3, cases.run_from, first, second, 4, folder=tmp_path)[0],
    ]
    for moment in train(cases.long_run(), state=State.load(second)):
        assert moment.record is not None
        parts.append(moment.record.to_json())
        if moment.round == 5:
            moment.state().save(third)
            break
    parts += cases.together(4, cases.run_from, third, str(tmp_path / "end"), 6, folder=tmp_path)[0]
    assert len(parts) == 6
    assert all(near(part, record) for part, record in zip(parts, whole, strict=True))
    steps = State.load(tmp_path / "end").tensors["buffers"] - 2**40
    assert steps.flatten().tolist() == [6] * 7


@pytest.mark.parametrize(
    ("graph", "share_memory", "hosts"),
    [
        pytest.param("sparse", False, 1, marks=pytest.mark.slow),
        ("dense", False, 1),
        ("dense", True, 1),
        ("dense", True, 2),
    ],
)
def test_bytes_sent_are_two_transposes_and_the_inner_products(
    graph: str, share_memory: bool, hosts: int, tmp_path: Path
) -> None:
    ranks = 3
    counts = cases.together(
        ranks, cases.count_bytes, graph, hosts, folder=tmp_path, share_memory=share_memory
    )
    for count in counts:
        n, d = count["workers"], count["parameters"]
        assert count["exchanged"] == count["expected"] + count["notes"]
        assert (count["notes"] > 0) == (share_memory and hosts == 1 and sys.platform == "linux")
        # Ranks hold as many coordinates, up to one, and those that share memory also send notes.
        assert count["exchanged"] == pytest.approx(2 * n / ranks * d * 4 * (ranks - 1) / ranks, rel=0.02)
        assert count["reduced"] <= 8 * (n + 2) ** 2
    total = sum(count["exchanged"] for count in counts)
    assert total == pytest.approx(2 * n * d * 4 * (ranks - 1) / ranks, rel=0.02)


@pytest.mark.parametrize(("keep", "each"), [(0.5, 3), (0.8, 4)])
def test_mozi_sends_and_tries_own_and_kept_models_alone(keep: float, each: int, tmp_path: Path) -> None:
    """Of four neighbours; nodes 0 to 2 are on one rank, 3 to 6 on the other."""
    assert cases.together(2, cases.count_tried, Mozi(keep=keep), folder=tmp_path) == [3 * each, 4 * each]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ({"rule": "gossip"}, r"differs from rank 0 in rule: Gossip\(\) and not ClippedGossip\("),
        pytest.param({"seed": 1}, "differs from rank 0 in seed: 1 and not 0", marks=pytest.mark.slow),
        pytest.param({"rounds": 3}, "differs from rank 0 in training", marks=pytest.mark.slow),
        ({"model": "mlp"}, "differs from rank 0 in model"),
    ],
    ids=["rule", "seed", "training", "model"],
)
def test_ranks_that_disagree_say_so_before_round_one(what: dict[str, Any], says: str, tmp_path: Path) -> None:
    first, *others = cases.together(3, cases.disagree, what, folder=tmp_path)
    with pytest.raises(AssertionError, match=f"RunError: rank 1 {says}"):
        raise AssertionError(first)
    assert others == [None, None]


def test_of_a_long_section_what_differs_is_shown() -> None:
    mine, other = (str(Training(rounds=9, evaluate_nodes=False, evaluate_every=n)) for n in (10, 25))
    said = difference(1, "training", {"training": other}, {"training": mine})
    assert "evaluate_every=25" in said
    assert "evaluate_every=10" in said
    assert len(said) < 300


def test_a_rank_that_cannot_start_is_heard_on_rank_0(tmp_path: Path) -> None:
    first, *others = cases.together(3, cases.without_data, folder=tmp_path)
    assert first == "RunError: rank 1 cannot start: no digits on this host"
    assert others == [None, None]


def test_more_ranks_than_workers(tmp_path: Path) -> None:
    first, *others = cases.together(8, cases.disagree, {}, folder=tmp_path)
    assert first.startswith("RunError: 8 ranks for 7 workers")
    assert "--nproc-per-node 7" in first
    assert others == [None] * 7


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("kill", "LostRanks: rank 1 of 3 ended without a word"),
        ("raise", "LostRanks: rank 1 (HOST) stopped: no room for another model"),
        pytest.param("stop", "LostRanks: rank 1 of 3 did not answer for 20 s", marks=pytest.mark.slow),
    ],
)
def test_a_lost_rank_ends_the_run_within_the_timeout(how: str, says: str, tmp_path: Path) -> None:
    """Long before it, if the rank died or said that it stopped: 1000 s are more than a test's time. 20 s are
    more than a rank of a busy machine keeps the others waiting."""
    first, _, third = cases.together(
        3, cases.lose_rank_1, how, folder=tmp_path, timeout=20 if how == "stop" else 1000
    )
    head, _, tail = says.partition("HOST")
    assert first.startswith(head)
    assert tail in first
    assert "start the same command again" in first
    assert third.startswith("LostRanks: rank 2 lost the others")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signals_end_all_ranks_between_rounds(number: signal.Signals, tmp_path: Path) -> None:
    first, *others = cases.together(2, cases.stop_by_signal, number, folder=tmp_path)
    assert first.startswith(f"RunError: stopped by {number.name}")
    assert others == [0]


def test_the_others_stop_when_rank_0_fails(tmp_path: Path) -> None:
    first, *others = cases.together(3, cases.leave_early, folder=tmp_path)
    assert first == "OSError: disk full"
    assert others == ["stopped", "stopped"]


def test_ranks_of_an_attempt_find_each_other_in_a_used_store(tmp_path: Path) -> None:
    """What a killed attempt left behind is never taken for a live rank, whoever comes first."""
    for attempt in range(3):
        found = find_in_threads(tmp_path / "store", 3, late=attempt)
        assert len({name for name, _ in found}) == 1, "all of one attempt share a part of the store"
        assert {texts for _, texts in found} == {tuple(f"attempt {attempt}, rank {r}" for r in range(3))}


def find_in_threads(path: Path, size: int, late: int) -> list[tuple[str, tuple[str, ...]]]:
    found: dict[int, tuple[str, tuple[str, ...]]] = {}

    def come(rank: int) -> None:
        store: Store = next(rendezvous(f"file://{path}?rank={rank}&world_size={size}"))[0]
        time.sleep(0.2 if rank == late else 0.0)
        members = find_members(store, rank, size, f"attempt {late}, rank {rank}", timeout=20)
        assert isinstance(members.store, PrefixStore)
        found[rank] = (members.name, members.texts)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    return [found[rank] for rank in range(size)]


def test_a_rank_that_does_not_come(tmp_path: Path) -> None:
    store: Store = next(rendezvous(f"file://{tmp_path}/store?rank=0&world_size=3"))[0]
    with pytest.raises(RunError, match="ranks 1, 2 of 3 did not come"):
        find_members(store, 0, 3, "", timeout=0.1)


@pytest.mark.parametrize(("total", "parts"), [(7, 1), (7, 3), (8, 4), (3, 3)])
def test_even_parts_cover_everything_evenly(total: int, parts: int) -> None:
    found = even_parts(total, parts)
    assert [place for part in found for place in range(part.start, part.stop)] == list(range(total))
    sizes = [length(part) for part in found]
    assert max(sizes) - min(sizes) <= 1


CONFIG = """
network = { name = "ring", nodes = 5, byzantine = { pendants = [0, 2] } }
data = { name = "digits", samples = 200, test_samples = 50 }
model = { name = "linear" }
rule = { name = "clipped-gossip", radius = 0.1 }
attack = { name = "ipm" }
device = "cpu"
[training]
rounds = 600
evaluate_every = 25
evaluate_last = 100
evaluate_last_every = 50
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


@pytest.mark.slow
def test_torchrun_goes_on_after_a_rank_was_killed(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG)
    folder = begin(config, tmp_path / "ranks")
    command = [*TORCHRUN, "--max-restarts", "1", "-m", "clippedgossip", "run", str(config)]
    command += ["--out", str(tmp_path / "ranks")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        os.kill(process_of(running.pid, rank=1, folder=folder), signal.SIGKILL)
        out, errors = running.communicate(timeout=200)
    assert running.returncode == 0, errors
    assert "error: rank 1 of 2 ended without a word" in errors
    assert out.count("accuracy") == 2, "rank 0 alone prints"
    assert folder.summary is not None
    assert folder.summary["resumed_from"] == 60
    stacked = execute(load_config(config), tmp_path / "stacked")
    assert len(list(folder.records())) == len(list(stacked.records()))
    for record, other in zip(folder.records(), stacked.records(), strict=True):
        # A hundred rounds and more of float32, each of which takes over the roundings of those before it.
        assert record["loss"] == pytest.approx(other["loss"], rel=1e-3)


def begin(config: Path, out: Path) -> RunDirectory:
    """The run, stopped by one process after some sixty rounds, its checkpoint at the sixtieth."""

    class Enough(Exception):
        pass

    def stop(_: object, moment: Any) -> None:
        if moment.round == 70:
            raise Enough

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recorder, "_checkpoint_due", lambda _, round: round % 60 == 0)
        with pytest.raises(Enough):
            execute(load_config(config), out, on_round=stop)
    return RunDirectory(next(out.iterdir()))


def process_of(launcher: int, rank: int, folder: RunDirectory) -> int:
    """The process of a rank that has begun to train."""
    before = len(list(folder.records()))
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split():
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables and len(list(folder.records())) > before:
                return int(child)
        time.sleep(0.02)
    raise AssertionError("torchrun did not start the ranks")


@pytest.mark.slow
def test_a_config_that_fails_is_said_once(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(CONFIG.replace("ring", "rang"))
    command = [*TORCHRUN, "-m", "clippedgossip", "run", str(config), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=tmp_path, check=False)
    assert done.stdout == ""
    assert done.stderr.count("did you mean 'ring'") == 1
    assert done.returncode == 1
