"""The examples run as a user would run them."""

import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from clippedgossip.cli import main
from clippedgossip.errors import RuleError
from clippedgossip.rules import ClippedGossip
from tests.rounding import assert_near

EXAMPLES = Path(__file__).parents[1] / "examples"


def test_ones_own_model_trains_and_leaves_its_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    run = runpy.run_path(str(EXAMPLES / "own_model.py"))["run"]
    *rounds, alone = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in rounds] == [f"round {10 * k}" for k in range(1, 10)]
    assert rounds[-1] == f"round 90: accuracy {run.accuracy:.1%}"
    assert alone.startswith("node 0 alone: accuracy ")
    assert run.accuracy > 0.8
    assert (tmp_path / "accuracy.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("name", "metric", "least"),
    [
        ("regression", "r2", 0.45),
        ("transformer", "perplexity", 1),
        ("lora", "accuracy", 0.8),
        ("batch_norm", "accuracy", 0.9),
    ],
)
def test_every_task_trains(name: str, metric: str, least: float, capsys: pytest.CaptureFixture[str]) -> None:
    run = runpy.run_path(str(EXAMPLES / "tasks" / f"{name}.py"))["run"]
    assert run.setup.task.metric.name == metric
    assert run.score > least if run.records[-1].higher_is_better else run.score < 3
    assert f"round {run.records[-1].round}: " in capsys.readouterr().out


def test_ones_own_loop_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["own_loop.py"])
    with pytest.raises(SystemExit, match="usage: "):
        runpy.run_path(str(EXAMPLES / "own_loop.py"))


def test_ones_own_loop_mixes_with_real_peers(tmp_path: Path) -> None:
    write = ["peer", "network", "ring", "--nodes", "3", "--rounds", "40", "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="0"):
        main(write)
    peers = [
        subprocess.Popen(
            [sys.executable, EXAMPLES / "own_loop.py", tmp_path / str(node) / "peer.toml"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for node in range(3)
    ]
    accuracies = [float(peer.communicate(timeout=120)[0].split()[1]) for peer in peers]
    assert min(accuracies) > 0.5


def test_consensus_is_lost_by_gossip_and_kept_by_clipped_gossip(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "consensus.py"))
    errors = [float(line.split("error")[1].split(",")[0]) for line in capsys.readouterr().out.splitlines()]
    gossip, trimmed, clipped = errors
    assert clipped < 1 < min(gossip, trimmed)


def test_no_rule_tells_two_worlds_apart() -> None:
    example = SimpleNamespace(**runpy.run_path(str(EXAMPLES / "two_worlds.py")))
    example.world.__globals__["ROUNDS"] = 40
    for rule in example.RULES:
        first, received_first = example.world(rule, real=0.0, pretended=1.0)
        second, received_second = example.world(rule, real=1.0, pretended=0.0)
        assert_near(received_first, received_second)
        assert_near(first, second)


def test_a_rule_on_each_layer_clips_each_alone() -> None:
    per_layer = runpy.run_path(str(EXAMPLES / "own" / "per_layer.py"))["PerLayer"]
    own, received = torch.zeros(3), torch.tensor([[[3.0, 4.0, 0.1]]])
    rule = per_layer(ClippedGossip(1.0), (2, 1))
    mixed = rule(own[None], received, torch.tensor([[0.5]]))
    assert_near(mixed, torch.tensor([[0.3, 0.4, 0.05]]))
    with pytest.raises(RuleError, match="the layers have 3 parameters and the models 2"):
        rule(own[None, :2], received[..., :2], torch.tensor([[0.5]]))
