import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from clippedgossip.errors import ConfigError, RunError
from clippedgossip.records import RunDirectory
from clippedgossip.runs import budget as plan
from clippedgossip.runs import execute as runs
from clippedgossip.runs import fill
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import Attempt, run_together
from clippedgossip.runs.fill import run_unfinished
from clippedgossip.runs.grid import load_sweep, shard
from clippedgossip.runs.status import status, status_of_folder
from clippedgossip.runs.submit import launch
from clippedgossip.simulate.engine import train_together
from clippedgossip.simulate.setup import needed_bytes
from tests.rounding import near

pytestmark = pytest.mark.usefixtures("one_thread")
EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = """
device = "cpu"
network = {name = "ring", nodes = 3}
data = {name = "digits", samples = 100, test_samples = 20}
model = "linear"
rule = "gossip"
[training]
rounds = 4
batch = 2
evaluate_every = 2
"""


def sweep(folder: Path, grid: str, base: str = TINY) -> Path:
    path = folder / "sweep.toml"
    path.write_text(base + textwrap.dedent(grid))
    return path


def three(folder: Path) -> list[RunConfig]:
    return load_sweep(sweep(folder, "[grid]\nseed = [0, 1, 2]"))


def states(configs: Sequence[RunConfig], root: Path) -> list[str]:
    return [standing.state for standing in status(configs, root)]


def test_the_grid_gives_every_combination_once(tmp_path: Path) -> None:
    grid = """
    [grid]
    seed = [0, 1, 0]
    training.lr = [0.1, 0.2]
    "rule" = ["gossip", {name = "clipped-gossip", radius = 2.0}]
    [[also]]
    rule.name = "median"
    training.rounds = 5
    [[also]]
    rule = {name = "clipped-gossip", radius = {adaptive = 0.1}}
    """
    configs = load_sweep(sweep(tmp_path, grid))
    assert len(configs) == 2 * 2 * 2 + 2
    points = {(c.seed, c.training.lr, c.rule.name) for c in configs[:-2]}
    assert points == {
        (s, lr, rule) for s in (0, 1) for lr in (0.1, 0.2) for rule in ("gossip", "clipped-gossip")
    }
    assert (configs[-2].rule.name, configs[-2].training.rounds) == ("median", 5)
    assert configs[-1].rule.parameters == {"radius": {"adaptive": 0.1}}


def test_a_sweep_may_start_from_another_config(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text(TINY)
    path = sweep(
        tmp_path, "[grid]\nseed = [3]", 'base = "base.toml"\nrule = "median"\n[training]\nrounds = 7\n'
    )
    (config,) = load_sweep(path, ["training.batch=3"])
    assert (config.rule.name, config.seed) == ("median", 3)
    assert (config.training.rounds, config.training.batch, config.training.evaluate_every) == (7, 3, 2)


def test_the_example_sweep() -> None:
    assert len(load_sweep(EXAMPLES / "sweep.toml")) == 13


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ("", "has no [grid]"),
        ("[grid]\nseed = 3", "grid.seed is 3"),
        ("[grid]\nseed = []", "it must be a list"),
        ("[grid]\nrule = ['gosip']", "did you mean 'gossip'"),
        ("[grid]\nsed = [1]", "did you mean 'seed'"),
        ("[grid]\ntraining.lr = [1, 'x']", "training.lr is 'x'"),
        ("also = 3", "[grid]"),
    ],
)
def test_what_is_wrong_with_a_sweep_is_said(tmp_path: Path, grid: str, words: str) -> None:
    base = TINY if grid != "also = 3" else "also = 3\n" + TINY
    with pytest.raises(ConfigError) as caught:
        load_sweep(sweep(tmp_path, grid if grid != "also = 3" else "", base))
    assert words in str(caught.value)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shards_are_the_whole(tmp_path: Path, count: int) -> None:
    configs = three(tmp_path)
    parts = [shard(configs, f"{part}/{count}") for part in range(1, count + 1)]
    assert sorted(config.seed for part in parts for config in part) == [0, 1, 2]


@pytest.mark.parametrize("bad", ["0/2", "3/2", "1", "a/b", "1/0", "-1/2"])
def test_a_shard_that_is_none(tmp_path: Path, bad: str) -> None:
    with pytest.raises(ConfigError, match="3/8"):
        shard(three(tmp_path), bad)


def test_only_what_is_unfinished_is_run(tmp_path: Path) -> None:
    configs, root = three(tmp_path), tmp_path / "runs"
    assert states(configs, root) == ["new"] * 3
    assert not root.exists()
    first = run_unfinished(configs[:1], root)
    assert [path.name for path in root.iterdir()] == [first.runs[0].path.name]
    assert (first.done, first.failed, first.elsewhere) == (1, {}, [])
    stamp = first.runs[0].records_path.stat().st_mtime_ns
    seen: list[tuple[str, int, int]] = []
    outcome = run_unfinished(configs, root, progress=lambda *said: seen.append(said))
    assert outcome.done == 3
    assert first.runs[0].records_path.stat().st_mtime_ns == stamp
    assert seen[0] == ("rounds, 1/3 runs, ring-gossip", 5, 12)
    assert seen[-1][1:] == (12, 12)
    assert states(configs, root) == ["finished"] * 3
    assert [s.score for s in status(configs, root)] == [(r.summary or {})["accuracy"] for r in outcome.runs]


def test_a_failure_does_not_stop_the_rest(tmp_path: Path) -> None:
    bad = load_sweep(sweep(tmp_path, "[grid]\nseed = [7]\nnetwork.byzantine = [[0]]"))
    configs, root = [*bad, *three(tmp_path)], tmp_path / "runs"
    outcome = run_unfinished(configs, root)
    assert outcome.done == 3
    ((folder, why),) = outcome.failed.items()
    assert "no [attack]" in why
    assert states(configs, root) == ["failed", "finished", "finished", "finished"]
    standing = next(s for s in status_of_folder(root) if s.state == "failed")
    assert (str(standing.run), standing.why) == (folder, why)


def test_divergence_is_an_end_like_another(tmp_path: Path) -> None:
    configs, root = load_sweep(sweep(tmp_path, "[grid]\ntraining.lr = [0.1, 1e37]")), tmp_path / "runs"
    outcome = run_unfinished(configs, root)
    assert (outcome.done, outcome.failed) == (2, {})
    ((folder, why),) = outcome.diverged.items()
    assert folder == str(outcome.runs[1].path)
    assert states(configs, root) == ["finished", "diverged"]
    assert status(configs, root)[1].why == why


def test_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="holds no runs"):
        status_of_folder(tmp_path)


def test_what_another_process_runs_is_left_to_it(tmp_path: Path) -> None:
    configs, root = three(tmp_path), tmp_path / "runs"
    held = Attempt.open(configs[1], root).run
    with held.lock():
        assert states(configs, root) == ["new", "running", "new"]
        outcome = run_unfinished(configs, root)
        assert outcome.done == 2
        assert [run.path for run in outcome.elsewhere] == [held.path]
    assert run_unfinished(configs, root).done == 3


WORK = """
import sys
import torch
from clippedgossip.runs import fill
from clippedgossip.runs.fill import run_unfinished
from clippedgossip.runs.grid import load_sweep
torch.set_num_threads(1)
run_together = fill.run_together
def logged(attempts, **rest):
    with open(sys.argv[3], "a") as file:
        file.writelines(attempt.run.path.name + "\\n" for attempt in attempts)
    run_together(attempts, **rest)
fill.run_together = logged
assert run_unfinished(load_sweep(sys.argv[1]), sys.argv[2], wait=True).done == 6
"""


def test_two_processes_never_run_the_same_run(tmp_path: Path) -> None:
    path, log = sweep(tmp_path, "[grid]\nseed = [0, 1, 2, 3, 4, 5]"), tmp_path / "log"
    command = [sys.executable, "-c", WORK, str(path), str(tmp_path / "runs"), str(log)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    names = log.read_text().split()
    assert len(names) == len(set(names)) == 6
    assert states(load_sweep(path), tmp_path / "runs") == ["finished"] * 6


def test_one_that_was_killed_leaves_nothing_locked(tmp_path: Path) -> None:
    path, root = sweep(tmp_path, "[grid]\nseed = [0, 1]\ntraining.rounds = [100000]"), tmp_path / "runs"
    command = [sys.executable, "-m", "clippedgossip", "sweep", str(path), "--out", str(root)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        configs = load_sweep(path)
        until = time.monotonic() + 100
        while states(configs, root)[0] != "running" or not status(configs, root)[0].round:
            assert time.monotonic() < until
            assert process.poll() is None
            time.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert states(configs, root) == ["stopped", "new"]
    lock = RunDirectory(status(configs, root)[0].run).try_lock()
    assert lock is not None
    lock.close()


def watched(
    monkeypatch: pytest.MonkeyPatch, free: int, engine: runs.Engine = train_together
) -> list[list[int]]:
    """The seeds of the runs of each stack, where so many bytes are free."""
    batches: list[list[int]] = []

    def noted(attempts: Sequence[Attempt], **rest: Any) -> None:
        batches.append([attempt.config.seed for attempt in attempts])
        run_together(attempts, engine=engine, **rest)

    monkeypatch.setattr(fill, "run_together", noted)
    monkeypatch.setattr(fill, "free_memory", lambda device: free)
    return batches


def test_runs_of_one_shape_go_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = watched(monkeypatch, 1 << 40)
    other = load_sweep(sweep(tmp_path, "[grid]\nseed = [9]\ntraining.batch = [3]"))
    mixed = load_sweep(sweep(tmp_path, "[grid]\nseed = [4]\nrule = ['median']\nnetwork = ['complete']"))
    configs = [*three(tmp_path), *other, *mixed]
    assert run_unfinished(configs, tmp_path / "runs").done == 5
    assert batches == [[0, 1, 2, 4], [9]]
    assert run_unfinished(configs, tmp_path / "alone", together=1).done == 5
    for config in configs:
        one, two = (RunDirectory(status([config], tmp_path / r)[0].run) for r in ("runs", "alone"))
        for mine, theirs in zip(one.rounds(), two.rounds(), strict=True):
            assert mine.loss == near(theirs.loss, dtype=torch.float32)


def test_only_as_many_go_together_as_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = three(tmp_path)[0].build()
    need = needed_bytes([setup.task], [setup], torch.device("cpu"))
    batches = watched(monkeypatch, int(2.5 * need / fill.MEMORY_SHARE))
    assert run_unfinished(three(tmp_path), tmp_path / "runs").done == 3
    assert batches == [[0, 1], [2]]


def test_a_run_is_built_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it was asked what it needs: a hundred runs take seconds to build."""
    seeds: list[int] = []
    build = RunConfig.build

    def noted(self: RunConfig) -> Any:
        seeds.append(self.seed)
        return build(self)

    monkeypatch.setattr(RunConfig, "build", noted)
    batches = watched(monkeypatch, 1 << 40)
    assert run_unfinished(three(tmp_path), tmp_path / "runs").done == 3
    assert batches == [[0, 1, 2]]
    assert sorted(seeds) == [0, 1, 2]


@pytest.mark.parametrize(
    ("device", "parameters", "runs"), [("cpu", 10, 16), ("cpu", 10**6, 1), ("cuda:1", 10**6, 128)]
)
def test_a_gpu_trains_many_runs_together(device: str, parameters: int, runs: int) -> None:
    assert fill.most_together(device, parameters) == runs


@pytest.mark.parametrize(("unfinished", "taken"), [(0, 1), (2, 1), (5, 3), (8, 4), (24, 6), (400, 100)])
def test_a_process_takes_a_part_of_what_two_share(unfinished: int, taken: int) -> None:
    assert fill._share(unfinished, 2) == taken


def test_runs_that_others_finish_meanwhile_are_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looked for a run to take for ever."""
    configs = [*three(tmp_path), *load_sweep(sweep(tmp_path, "[grid]\nseed = [9]\ntraining.batch = [3]"))]

    def others_too(attempts: Sequence[Attempt], **rest: Any) -> None:
        run_together(attempts, **rest)
        runs.execute(configs[-1], tmp_path / "runs")

    monkeypatch.setattr(fill, "run_together", others_too)
    assert run_unfinished(configs, tmp_path / "runs").done == 4


def test_a_stack_is_filled_with_runs_that_no_other_process_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "TOGETHER", 2)
    batches = watched(monkeypatch, 1 << 40)
    configs, root = load_sweep(sweep(tmp_path, "[grid]\nseed = [0, 1, 2, 3]")), tmp_path / "runs"
    with Attempt.open(configs[1], root).run.lock():
        assert run_unfinished(configs, root).done == 3
    assert batches == [[0, 2], [3]]


def test_large_models_go_one_by_one_on_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "SMALL", plan.plan(three(tmp_path)[0]).parameters - 1)
    batches = watched(monkeypatch, 1 << 40)
    assert run_unfinished(three(tmp_path), tmp_path / "runs").done == 3
    assert batches == [[0], [1], [2]]


def test_runs_that_stand_at_different_rounds_go_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs, root = three(tmp_path), tmp_path / "runs"

    def stop(config: RunConfig, moment: Any) -> None:
        if moment.round == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(runs.Recorder, "_checkpoint_due", lambda _, round: True)
    with pytest.raises(KeyboardInterrupt):
        runs.execute(configs[1], root, on_round=stop)
    assert states(configs, root)[1] == "stopped"
    batches = watched(monkeypatch, 1 << 40)
    assert run_unfinished(configs, root).done == 3
    assert batches == [[0, 2], [1]]


def test_if_together_will_not_do_they_go_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def narrow(setups: Sequence[Any], **rest: Any) -> Any:
        if len(setups) > 1:
            raise torch.OutOfMemoryError("too many")
        return train_together(setups, **rest)

    batches = watched(monkeypatch, 1 << 40, narrow)
    outcome = run_unfinished(three(tmp_path), tmp_path / "runs")
    assert (outcome.done, outcome.failed) == (3, {})
    assert batches == [[0, 1, 2], [0], [1], [2]]


@pytest.mark.parametrize(
    ("launcher", "count"), [("debug", 2), pytest.param("local", 1, marks=pytest.mark.slow)]
)
def test_submitit_runs_the_parts(tmp_path: Path, launcher: Any, count: int) -> None:
    configs, root = three(tmp_path), tmp_path / "runs"
    jobs = launch(configs, root, launcher=launcher, jobs=count)
    assert [job.result() for job in jobs] == [{}] * count
    assert states(configs, root) == ["finished"] * 3


def test_slurm_up_to_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, says in (("sbatch", f"cat $1 >> {tmp_path}/script; echo Submitted batch job 12"), ("srun", "")):
        (tools / name).write_text(f"#!/bin/sh\n{says}\n")
        (tools / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    more = {"slurm_partition": "gpu", "gpus_per_node": 1}
    jobs = launch(three(tmp_path), tmp_path / "runs", launcher="slurm", jobs=2, minutes=90, parameters=more)
    assert [job.job_id for job in jobs] == ["12", "12"]
    script = (tmp_path / "script").read_text()
    for line in (
        "#SBATCH --partition=gpu",
        "#SBATCH --time=90",
        "#SBATCH --gpus-per-node=1",
        "submitit.core._submit",
    ):
        assert script.count(line) >= 2
    assert sorted((tmp_path / "runs" / "jobs").glob("*.pkl"))


def test_a_launcher_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RunError, match="cannot use the launcher 'slurm'"):
        launch(three(tmp_path), tmp_path / "runs", launcher="slurm")
    with pytest.raises(RunError, match="colour"):
        launch(three(tmp_path), tmp_path / "runs", launcher="local", parameters={"colour": 1})


def test_a_mistake_in_a_grid_is_told_in_two_lines(tmp_path: Path) -> None:
    """Also where the message of the run itself has two."""
    (tmp_path / "sweep.toml").write_text(f'{TINY}\n[grid]\nrule = ["gosip"]\n')
    with pytest.raises(ConfigError) as error:
        load_sweep(tmp_path / "sweep.toml")
    first, second = str(error.value).split("\n")
    assert "did you mean 'gossip'? (in the run with rule = 'gosip')" in first
    assert second.startswith("known: ")


@pytest.mark.parametrize("override", ["rule=broken", "rule.radius=2", "seed=7"])
def test_an_override_of_what_the_grid_sets_is_refused(tmp_path: Path, override: str) -> None:
    path = sweep(tmp_path, "[grid]\nseed = [0, 1]\nrule = ['gossip', 'median']")
    with pytest.raises(ConfigError, match=r"has no effect: the grid of .* sets (rule|seed) as well"):
        load_sweep(path, [override])
    path = sweep(tmp_path, "[grid]\nseed = [0, 1]\n[[also]]\nrule = 'median'")
    assert load_sweep(path, ["rule=krum", "rule.faulty=0"])[0].rule.name == "krum"
