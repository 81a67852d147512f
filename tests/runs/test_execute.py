import json
import math
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from clippedgossip.devices import free_memory
from clippedgossip.errors import DataError, RunError
from clippedgossip.records import Round, RunDirectory
from clippedgossip.runs import budget as plan
from clippedgossip.runs import execute as runs
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import Attempt, Diverged, Recorder, divergence, execute, run_together
from clippedgossip.simulate import setup as setups
from clippedgossip.simulate.state import Moment, State
from clippedgossip.tasks import load
from tests.rounding import near

pytestmark = pytest.mark.usefixtures("one_thread")
TINY: dict[str, Any] = {
    "device": "cpu",
    "network": {"name": "ring", "nodes": 4, "byzantine": {"pendants": [0]}},
    "data": {"name": "digits", "samples": 200, "test_samples": 50},
    "model": "linear",
    "rule": "clipped-gossip",
    "attack": "bit-flipping",
    "training": {"rounds": 12, "batch": 4, "evaluate_every": 3, "evaluate_last": 4, "evaluate_last_every": 1},
}


def tiny(**changes: Any) -> RunConfig:
    return RunConfig.from_mapping(TINY | changes)


class Stop(Exception):
    pass


def stop_at(round: int) -> runs.OnRound:
    def stop(config: RunConfig, moment: Moment) -> None:
        if moment.round == round:
            raise Stop

    return stop


def test_a_run_leaves_records_and_a_summary(tmp_path: Path) -> None:
    run = execute(tiny(), tmp_path)
    assert run.environment["device"] == "cpu"
    assert [record["round"] for record in run.records()] == [3, 6, 9, 10, 11, 12]
    summary = run.summary
    assert summary is not None
    last = [record for record in run.records() if record["round"] > 8]
    assert summary["accuracy"] == near(sum(r["accuracy"]["all"] for r in last) / 4)
    assert summary["consensus_distance"] == near(sum(r["consensus_distance"] for r in last) / 4)
    assert (summary["rounds"], summary["resumed_from"], summary["device"]) == (12, 0, "cpu")
    assert run.state == "finished"
    assert not run.checkpoint_path.exists()
    assert run.config == json.loads(json.dumps(tiny().to_mapping()))


def test_a_run_leaves_a_drawing_of_its_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = execute(tiny(), tmp_path / "small").drawing_path.read_text()
    assert text.startswith("<?xml")
    assert "4 regular and 1 Byzantine nodes" in text
    assert execute(tiny(seed=1), tmp_path / "small").drawing_path.read_text() == text
    monkeypatch.setattr(runs, "DRAWN", 4)
    assert not execute(tiny(), tmp_path / "large").drawing_path.exists()


def test_a_run_records_its_components_where_asked(tmp_path: Path) -> None:
    asked = tiny(training={**TINY["training"], "evaluate_components": True})
    assert "evaluate_components" not in tiny().to_mapping()["training"]
    for found, plain in zip(
        execute(asked, tmp_path).records(), execute(tiny(), tmp_path).records(), strict=True
    ):
        within, between = (found.pop(f"{where}_components") for where in ("within", "between"))
        assert within + between == near(found["consensus_distance"], roundings=1, dtype=torch.float32)
        assert sorted(node for part in found.pop("components") for node in part) == [0, 1, 2, 3]
        found.pop("component_gap", None)
        assert found == plain


def test_groups_are_summed_up(tmp_path: Path) -> None:
    config = tiny(network={"name": "dumbbell", "clique": 2}, attack="none")
    summary = execute(config, tmp_path).summary
    assert summary is not None
    assert set(summary["groups"]) == {"all", "clique A", "clique B"}


def test_the_last_record_says_which_edges_were_clipped(tmp_path: Path) -> None:
    config = tiny(rule={"name": "clipped-gossip", "radius": 0.001})
    *others, last = execute(config, tmp_path).rounds()
    assert all(record.clipped_edges is None for record in others)
    assert last.clipped_edges is not None
    assert last.clipped is not None
    edges = {(sender, receiver): share for sender, receiver, share in last.clipped_edges}
    assert edges[4, 0] == 1.0  # the Byzantine node's, in every round
    assert all(0 < share <= 1 for share in edges.values())
    assert sum(edges.values()) == near(9 * last.clipped)  # a ring of 4, and one Byzantine edge
    plain = execute(tiny(rule="gossip"), tmp_path)
    assert [record.clipped_edges for record in plain.rounds()][-1] is None


def test_two_runs_of_one_config_have_the_same_bytes(tmp_path: Path) -> None:
    one, two = execute(tiny(), tmp_path / "a"), execute(tiny(), tmp_path / "b")
    assert one.path.name == two.path.name
    assert one.records_path.read_bytes() == two.records_path.read_bytes()
    other = execute(tiny(seed=1), tmp_path / "a")
    assert other.records_path.read_bytes() != one.records_path.read_bytes()


def test_a_finished_run_is_found_and_not_repeated(tmp_path: Path) -> None:
    run = execute(tiny(), tmp_path)
    before = run.summary_path.stat().st_mtime_ns
    assert execute(tiny(), tmp_path, on_round=stop_at(1)).path == run.path
    assert run.summary_path.stat().st_mtime_ns == before
    with pytest.raises(Stop):
        execute(tiny(), tmp_path, resume=False, on_round=stop_at(1))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return execute(tiny(), tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("stopped", [1, 6, 11])
@pytest.mark.parametrize("every", [1, 4, None])
def test_a_stopped_run_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: RunDirectory, stopped: int, every: int | None
) -> None:
    monkeypatch.setattr(Recorder, "_checkpoint_due", lambda _, round: every and round % every == 0)
    with pytest.raises(Stop):
        execute(tiny(), tmp_path / "cut", on_round=stop_at(stopped))
    seen: list[int] = []
    run = execute(tiny(), tmp_path / "cut", on_round=lambda _, m: seen.append(m.round))
    assert run.records_path.read_bytes() == whole.records_path.read_bytes()
    assert run.failure is None
    saved = 0 if every is None else (stopped - 1) // every * every
    assert seen == list(range(saved + 1, 13))
    assert run.summary is not None
    assert run.summary["resumed_from"] == saved


@pytest.mark.parametrize(("bytes_a_second", "written"), [(1e9, True), (1.0, False)])
def test_the_first_checkpoint_too_waits_until_it_costs_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_a_second: float, written: bool
) -> None:
    monkeypatch.setattr(runs, "DISK", bytes_a_second)
    seen: list[int] = []
    save = State.save

    def noted(self: State, path: Path) -> None:
        seen.append(self.round)
        save(self, path)

    monkeypatch.setattr(State, "save", noted)
    execute(tiny(), tmp_path, checkpoint_every=0)
    assert bool(seen) == written


@pytest.mark.parametrize("damage", ["garbage", "empty", "records", "both"])
def test_whatever_the_disk_spoilt_the_end_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: RunDirectory, damage: str
) -> None:
    monkeypatch.setattr(Recorder, "_checkpoint_due", lambda _, round: True)
    with pytest.raises(Stop):
        execute(tiny(), tmp_path / "cut", on_round=stop_at(8))
    run = RunDirectory(next((tmp_path / "cut").iterdir()))
    if damage in ("garbage", "both"):
        run.checkpoint_path.write_bytes(os.urandom(1000))
    if damage == "empty":
        run.checkpoint_path.write_bytes(b"")
    if damage in ("records", "both"):
        run.records_path.write_bytes(run.records_path.read_bytes()[:20])
    execute(tiny(), tmp_path / "cut")
    assert run.records_path.read_bytes() == whole.records_path.read_bytes()


KILLED = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import Recorder, execute
Recorder._checkpoint_due = lambda _, round: round % 2 == 0
config = RunConfig.from_mapping(CONFIG)
config.build()  # what takes long is done once, before the children fork
draw, kills = random.Random(), 0
while True:
    child = os.fork()
    if child == 0:
        execute(config, sys.argv[1])
        os._exit(0)
    if kills < 8:
        time.sleep(draw.uniform(0.0, 0.12))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
print(kills)
"""


def test_kill_9_at_random_moments(tmp_path: Path) -> None:
    changes = {"training": TINY["training"] | {"rounds": 40, "evaluate_every": 1}}
    whole = execute(tiny(**changes), tmp_path / "whole")
    script = textwrap.dedent(KILLED).replace("CONFIG", repr(TINY | changes))
    command = [sys.executable, "-c", script, str(tmp_path / "cut")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
    run = RunDirectory(tmp_path / "cut" / whole.path.name)
    assert run.records_path.read_bytes() == whole.records_path.read_bytes()
    left = {path.name for path in run.path.iterdir() if not path.name.startswith((".config", ".environment"))}
    assert left == {path.name for path in whole.path.iterdir()}


def test_a_run_in_other_hands_is_left_alone(tmp_path: Path) -> None:
    run = Attempt.open(tiny(), tmp_path).run
    with run.lock(), pytest.raises(RunError, match="another process"):
        execute(tiny(), tmp_path)
    execute(tiny(), tmp_path)


def test_divergence_names_round_and_node_and_keeps_the_records(tmp_path: Path) -> None:
    config = tiny(rule="gossip", training=TINY["training"] | {"lr": 1e37})
    with pytest.raises(Diverged, match=r"by round 3: node \d has the largest model, .* NaN") as caught:
        execute(config, tmp_path)
    run = caught.value.run
    assert run.summary is not None
    assert (run.summary["diverged"], run.summary["rounds"]) == (str(caught.value), 3)
    assert run.summary["accuracy"] == next(run.records())["accuracy"]["all"]
    stamp = run.summary_path.stat().st_mtime_ns
    with pytest.raises(Diverged, match="by round 3"):
        execute(config, tmp_path)
    assert run.summary_path.stat().st_mtime_ns == stamp


def test_a_broken_model_is_blamed(tmp_path: Path) -> None:
    models = torch.ones(5, 3)
    models[2, 1] = torch.nan
    moment = Moment(7, Round(round=7, loss=math.nan), lambda: State(7, {"models": models}))
    attempt = Attempt.open(tiny(), tmp_path)
    attempt.write(moment, tiny().build())
    assert str(attempt.diverged).startswith("diverged by round 7: node 2 holds NaN")


@pytest.mark.parametrize(
    ("loss", "distance", "what"),
    [
        (math.inf, 1.0, "the loss is"),
        (1.0, math.inf, "the consensus distance is"),
        (math.nan, math.inf, "the loss and the consensus distance are"),
    ],
)
def test_a_divergence_names_what_is_not_finite(loss: float, distance: float, what: str) -> None:
    record = Round(round=7, loss=loss, consensus_distance=distance)
    models = torch.ones(5, 3)
    models[3] = 2
    found = divergence(Moment(7, record, lambda: State(7, {"models": models})), tiny().build())
    assert str(found).startswith(f"diverged by round 7: node 3 has the largest model, and {what} NaN")


def test_a_failure_is_kept_and_then_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_data(config: RunConfig) -> None:
        raise DataError("no mnist here")

    with monkeypatch.context() as broken:
        broken.setattr(RunConfig, "build", no_data)
        with pytest.raises(DataError, match="no mnist"):
            execute(tiny(), tmp_path)
    run = RunDirectory(next(tmp_path.iterdir()))
    assert (run.state, run.failure) == ("failed", "no mnist here")
    assert execute(tiny(), tmp_path).failure is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_asked_for_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no GPU here"):
        execute(tiny(device="cuda"), tmp_path)
    assert not list(tmp_path.iterdir())


def test_running_out_of_memory_says_what_to_do(tmp_path: Path) -> None:
    def full(*_: Any, **__: Any) -> Iterator[list[Moment]]:
        raise torch.OutOfMemoryError("tried to allocate 20 GiB\nlong story")

    with pytest.raises(RunError, match=r"allocate 20 GiB\n.*--plan"):
        execute(tiny(), tmp_path, engine=full)


def test_what_does_not_fit_in_memory_is_refused_with_the_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert 1 << 20 < free_memory("cpu") < 1 << 50
    monkeypatch.setattr(setups, "free_memory", lambda device: 1000)
    with pytest.raises(
        RunError, match=r"workers with [\d,]+ parameters need about [\d,]+ bytes, .* 1,000 free"
    ):
        execute(tiny(), tmp_path)


def test_a_cpu_that_refuses_memory_is_no_crash(tmp_path: Path) -> None:
    def full(*_: Any, **__: Any) -> Iterator[list[Moment]]:
        torch.empty(1 << 55)
        yield []

    def broken(*_: Any, **__: Any) -> Iterator[list[Moment]]:
        raise RuntimeError("shapes do not match")

    with pytest.raises(RunError, match=r"tried to allocate \d+ bytes.*\n.*--plan"):
        execute(tiny(), tmp_path, engine=full)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        execute(tiny(), tmp_path, engine=broken)


def test_keep_leaves_the_models(tmp_path: Path) -> None:
    run = execute(tiny(), tmp_path, keep=True)
    state = State.load(run.checkpoint_path)
    assert state.round == 12
    for _ in range(20):  # safetensors has an order of its own each time
        state.save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == run.checkpoint_path.read_bytes()


def test_runs_that_go_together_end_like_runs_alone(tmp_path: Path) -> None:
    configs = [tiny(), tiny(seed=5), tiny(rule="gossip", attack="dissensus")]
    attempts = [Attempt.open(config, tmp_path / "together") for config in configs]
    run_together(attempts)
    for config, attempt in zip(configs, attempts, strict=True):
        alone = execute(config, tmp_path / "alone")
        for mine, theirs in zip(attempt.run.rounds(), alone.rounds(), strict=True):
            assert mine.round == theirs.round
            assert mine.loss == near(theirs.loss, dtype=torch.float32)
            assert mine.accuracy == pytest.approx(theirs.accuracy, abs=1 / 50)  # one test sample on the verge


def test_one_that_diverges_among_others_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = Attempt.write

    def spoilt(self: Attempt, moment: Moment, setup: Any) -> None:
        if self.config.seed == 1 and moment.round == 3:
            self.diverged = "gone"
        write(self, moment, setup)

    monkeypatch.setattr(Attempt, "write", spoilt)
    attempts = [Attempt.open(tiny(seed=seed), tmp_path) for seed in range(2)]
    run_together(attempts)
    assert [attempt.run.diverged for attempt in attempts] == [None, "gone"]
    assert [len(list(attempt.run.records())) for attempt in attempts] == [6, 1]


def test_the_plan_knows_the_data_and_the_formulas() -> None:
    data = load("digits")
    assert plan.SAMPLES["digits"] == (len(data.train_y), len(data.test_y), data.shape)
    config = tiny(network={"name": "dumbbell", "clique": 10}, model="cnn", data="mnist", attack="none")
    one = plan.plan(config)
    d, n = 1_199_882, 20
    assert (one.workers, one.parameters, one.models_bytes, one.traffic_bytes) == (n, d, 6 * n * d * 4, 0)
    four = plan.plan(config, ranks=4)
    assert four.models_bytes == 7 * n * d
    assert four.traffic_bytes == (2 * 5 * d * 4 + 2 * 21 * 21 * 8) * 3 // 4
    changes = {"rule": {"name": "mozi", "keep": 0.4}}  # 4 of 10 neighbours, and the own model
    mozi = plan.plan(RunConfig.from_mapping(config.to_mapping() | changes), ranks=4)
    assert mozi.traffic_bytes == ((2 + 4 + 1) * 5 * d * 4 + 2 * 21 * 21 * 8) * 3 // 4
    with pytest.raises(RunError, match="1 to 20 ranks"):
        plan.plan(config, ranks=21)


def test_a_plan_allocates_nothing_and_scales() -> None:
    big = tiny(
        network={"name": "random-regular", "nodes": 256, "degree": 8},
        data="cifar10",
        model="vgg11",
        attack="none",
        training={"batch": 64},
    )
    one, eight = plan.plan(big, device="cuda"), plan.plan(big, ranks=8, device="cuda")
    assert one.memory_bytes > 56e9
    assert eight.models_bytes * 8 == one.models_bytes * 7 // 6
    assert eight.seconds(plan.Ceilings(flops=1e15, bandwidth=4e12)) > 0
    assert replace(big, seed=1) != big
