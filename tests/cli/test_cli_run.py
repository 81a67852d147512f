import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from clippedgossip import simulate, tasks
from clippedgossip.cli import main
from clippedgossip.runs import execute as runs

pytestmark = pytest.mark.usefixtures("one_thread")
TINY = """
network = {name = "dumbbell", clique = 2}
data = {name = "digits", samples = 100, test_samples = 20}
model = "linear"
rule = "clipped-gossip"
[training]
rounds = 4
batch = 2
evaluate_every = 2
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    (tmp_path / "sweep.toml").write_text('base = "tiny.toml"\n[grid]\nseed = [0, 1]\n')
    return "tiny.toml"


def cli(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    return int(caught.value.code or 0)


def read(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def test_run_prints_a_table_that_fits(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "clique A" in out
    assert "finished before" not in out
    assert "run: runs/dumbbell-clipped-gossip-" in out
    assert max(map(len, out.splitlines())) <= 80


def test_run_json_is_the_summary_alone(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "--json", "--out", "there", "--seed", "3", "--device", "cpu") == 0
    summary = read(capsys)
    assert 0 <= summary["accuracy"] <= 1
    folder = Path(summary["run"])
    assert folder.parent == Path("there")
    assert (folder / "records.jsonl").read_text().count("\n") == 2
    assert json.loads((folder / "config.json").read_text())["seed"] == 3


def test_run_finds_what_is_finished(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "--json") == 0
    first = read(capsys)
    assert cli("run", config, "--json") == 0
    assert read(capsys) == first
    records = Path(first["run"]) / "records.jsonl"
    os.utime(records, (0, 0))  # who writes it anew cannot but change that
    assert cli("run", config, "--json") == 0
    assert read(capsys) == first
    assert records.stat().st_mtime == 0
    assert cli("run", config, "--json", "--again") == 0
    again = read(capsys)
    assert records.stat().st_mtime > 0
    assert again["accuracy"] == first["accuracy"]
    assert cli("run", config) == 0
    assert "this run was finished before; --again repeats it" in capsys.readouterr().out
    assert cli("run", config, "--watch") == 0
    assert (
        capsys.readouterr().err
        == "note: no live page, since this run was finished before; `report` draws it\n"
    )


def test_models_are_kept_or_said_to_be_gone(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "--json") == 0
    assert "models" not in read(capsys)
    assert cli("run", config, "--keep") == 2
    assert "its models were deleted\nadd --again to train them again" in capsys.readouterr().err
    assert cli("run", config, "--keep", "--again", "--json") == 0
    path = read(capsys)["models"]
    assert cli("run", config, "--keep") == 0
    assert f"models: {path}\n" in capsys.readouterr().out
    build = tasks.build("linear", (1, 8, 8), 10, seed=0)
    models = simulate.State.load(path).tensors["models"]
    assert torch.equal(tasks.flatten(tasks.unflatten(models[0], build)), models[0])
    assert len(models) == 4


def test_a_run_can_be_repeated_from_its_own_config(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "--json") == 0
    first = read(capsys)
    assert cli("run", f"{first['run']}/config.json", "--json") == 0
    assert read(capsys) == first


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["training.lr=x"], "override 'training.lr=x'"),
        (["tranning.lr=1"], "did you mean 'training'"),
        (["network.byzantine=[0]"], "no [attack]"),
        (["--device", "tpu"], "error: --device tpu: device is 'tpu'"),
        (["training.lr=1", "training.lr=2"], "training.lr is given twice, as 1 and as 2\ngive it once"),
        (["seed=1", "--seed", "2"], "seed is given twice, as 1 and as 2"),
        (["--plan", "--ranks", "9"], "1 to 4 ranks"),
        (["--ranks", "2"], "torchrun --standalone --nproc-per-node 2 -m clippedgossip run tiny.toml"),
    ],
)
def test_errors_are_two_lines_and_code_2(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert cli("run", config, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err
    assert len(err.splitlines()) <= 3
    assert "Traceback" not in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command",
    [["--version"], ["audit", "ring"], pytest.param(["run", "tiny.toml"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_output_that_finds_no_room_is_an_error_of_two_lines(config: str, command: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "clippedgossip", *command], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 2
    assert done.stderr.endswith("cannot write the output: No space left on device\nsend it elsewhere\n")
    assert "Traceback" not in done.stderr


def test_an_interrupted_run_says_that_it_goes_on(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "execute", interrupted)
    assert cli("run", config) == 130
    assert capsys.readouterr().err == "interrupted; finished work is kept, the same command resumes\n"


def test_options_of_a_launcher_need_one(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("sweep", "sweep.toml", "--jobs", "2", "--parameter", "slurm_partition=gpu") == 2
    assert "--jobs, --parameter works only with --launcher" in capsys.readouterr().err
    assert not Path("runs").exists()


@pytest.mark.parametrize("attack", ["dissensus", "label-flipping"])
def test_an_attack_with_nobody_to_send_it_is_noted(
    config: str, capsys: pytest.CaptureFixture[str], attack: str
) -> None:
    assert cli("run", config, f"attack={attack}") == 0
    assert "no Byzantine nodes" in capsys.readouterr().err


def test_a_run_that_diverges_says_so_and_what_it_was_worth(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for more in ([], ["--json"]):
        assert cli("run", config, "training.lr=1e37", *more) == 2
        out, err = capsys.readouterr()
        assert "diverged by round" in err
        assert "accuracy" in out


def test_plan_runs_nothing(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "--plan") == 0
    out = capsys.readouterr().out
    assert "4 workers with 650 parameters" in out
    assert f"{6 * 4 * 650 * 4:,} bytes" in out
    assert max(map(len, out.splitlines())) <= 80
    assert cli("run", config, "--plan", "--ranks", "2", "--json") == 0
    planned = read(capsys)
    assert planned["models_bytes"] == 7 * 4 * 650 * 4 // 2
    assert planned["traffic_bytes"] > 0
    assert planned["seconds_per_round"] > 0
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        'rule={name="trimmed-mean",trim=50}',
        'rule={name="krum",faulty=3}',
        'network={name="ring",nodes=4} data.partition="clique"',
        "network.byzantine=[0]",
        'network={name="ring",nodes=5,byzantine=[0,2]} attack="none"',
        'data.poison="flip-labels"',
        'network.byzantine=[0] attack="none" data.poison={name="trigger",target=10}',
        "data.samples=3",
        'data.partition="classes" network={name="ring",nodes=11}',
        "model=cnn network.clique=0",
    ],
)
def test_the_plan_refuses_what_the_run_refuses(
    config: str, capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    assert cli("run", config, *wrong.split()) == 2
    said = capsys.readouterr().err
    assert cli("run", config, *wrong.split(), "--plan") == 2
    assert capsys.readouterr().err == said


def test_the_plan_needs_no_data_on_this_machine(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    missing = "data={name='cifar10'}"
    assert cli("run", config, missing, "--plan") == 0
    assert cli("run", config, missing, "rule={name='trimmed-mean',trim=50}", "--plan") == 2


def test_sweep_and_its_status(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    nothing: dict[str, Any] = {"diverged": {}, "failed": {}, "elsewhere": []}
    assert cli("sweep", "status", "sweep.toml") == 0
    assert "2 new" in capsys.readouterr().out
    assert cli("sweep", "sweep.toml", "--shard", "1/2", "--json") == 0
    assert read(capsys) == {"folder": "runs/sweep", "runs": 1, "done": 1, **nothing}
    assert cli("sweep", "status", "sweep.toml", "--json") == 0
    assert [row["state"] for row in read(capsys)] == ["finished", "new"]
    assert cli("sweep", "run", "sweep.toml") == 0
    assert "2 of 2 runs finished" in capsys.readouterr().out
    assert cli("sweep", "status", "runs/sweep") == 0
    assert "2 finished" in capsys.readouterr().out


def test_a_sweep_with_a_failure_says_why_and_ends_with_1(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli("sweep", "sweep.toml", "network.byzantine=[0]") == 1
    assert "no [attack]" in capsys.readouterr().out
    assert cli("sweep", "status", "sweep.toml", "network.byzantine=[0]") == 0
    out = capsys.readouterr().out
    assert "2 failed" in out
    assert "no [attack]" in out


def test_a_sweep_through_submitit(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("sweep", "sweep.toml", "--launcher", "debug", "--jobs", "2", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["done"] == 2
    assert "2 jobs" in err


def test_kill_9_and_start_again(config: str) -> None:
    """The command itself, killed as soon as it has written something."""

    def command(out: str) -> list[str]:
        rounds = ["training.rounds=200", "training.evaluate_every=1"]
        return [sys.executable, "-m", "clippedgossip", "run", config, *rounds, "--json", "--out", out]

    process = subprocess.Popen(command("cut"), stdout=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 100
        while not any(path.stat().st_size for path in Path("cut").glob("*/records.jsonl")):
            assert time.monotonic() < until
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    (records,) = Path("cut").glob("*/records.jsonl")
    assert cli(*command("cut")[3:]) == 0
    assert cli(*command("whole")[3:]) == 0
    assert records.read_bytes() == Path("whole", *records.parts[1:]).read_bytes()


def test_a_huge_network_is_refused_before_it_is_built(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would have 400 million edges, more than the memory and the time of a test hold."""
    assert cli("run", config, "network.clique=20000", "--plan") == 2
    assert "clique is 20000" in capsys.readouterr().err


def test_the_last_round_stands_beside_the_mean(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "training.evaluate_last=4") == 0
    out = capsys.readouterr().out
    assert "mean  at the end" in out
    assert "these are all rounds: training.evaluate_last is 4" in out
    summary = json.loads(next(Path("runs").glob("*/summary.json")).read_text())
    *_, end = map(json.loads, next(Path("runs").glob("*/records.jsonl")).read_text().splitlines())
    assert summary["last_round"]["accuracy"] == end["accuracy"]["all"]
    assert summary["last_round"]["loss"] == end["loss"]


def test_ctrl_c_writes_a_checkpoint_at_once(config: str) -> None:
    """The default interval is thirty seconds; nothing of these seconds is lost."""
    program = [sys.executable, "-m", "clippedgossip", "run", config, "training.rounds=1000000"]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process:
        while not any(path.stat().st_size for path in Path("runs").rglob("records.jsonl")):
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        said = process.stderr.read()
    assert process.returncode == 130
    assert "stopping after this round" in said
    assert "the same command resumes" in said
    (checkpoint,) = Path("runs").rglob("checkpoint.safetensors")
    records = [json.loads(line) for line in (checkpoint.parent / "records.jsonl").read_text().splitlines()]
    assert 0 <= simulate.State.load(checkpoint).round - records[-1]["round"] < 2
    assert not (checkpoint.parent / "failure.json").exists()


def test_a_batch_larger_than_a_share_is_said(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", config, "training.batch=30") == 0
    assert "note: a batch of 30 is larger than the smallest share, 25 samples" in capsys.readouterr().err


def test_the_checkpoint_interval_can_be_set(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[int] = []
    monkeypatch.setattr(simulate.State, "save", lambda state, path: saved.append(state.round))
    assert cli("run", config, "--checkpoint-every", "0", "--again") == 0
    assert saved[0] == 1


def test_examples_are_listed_and_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli("examples") == 0
    out = capsys.readouterr().out
    assert "dumbbell.toml\n  Two cliques" in out
    assert max(map(len, out.splitlines())) <= 80
    assert cli("examples", "--json") == 0
    assert {"dumbbell.toml", "own", "own_model.py", "ring.toml", "sweep.toml"} <= set(read(capsys))
    assert cli("examples", "dumbbell.toml", "sweep.toml", "own", "--to", "here") == 0
    assert {path.name for path in Path("here").iterdir()} == {"dumbbell.toml", "sweep.toml", "own"}
    assert cli("examples", "dumbbell.toml", "--to", "here") == 2
    assert "is there already" in capsys.readouterr().err


def test_completion_knows_the_commands() -> None:
    """As a shell asks for it."""
    asked = {"_CLIPPEDGOSSIP_COMPLETE": "complete_bash", "COMP_WORDS": "clippedgossip re", "COMP_CWORD": "1"}
    program = [
        sys.executable,
        "-c",
        "import sys; sys.argv[0] = 'clippedgossip'\nfrom clippedgossip.cli import main; main()",
    ]
    done = subprocess.run(program, env={**os.environ, **asked}, capture_output=True, text=True)
    assert set(done.stdout.split()) == {"report", "reproduce"}


def test_flags_have_no_type_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli("run", "--help") == 0
    out = capsys.readouterr().out
    assert "--json" in out
    assert "bool" not in out
