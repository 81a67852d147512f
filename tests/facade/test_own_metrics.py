"""A metric of the user's own: its name, and what it gives before the first round."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

import clippedgossip as cg
from clippedgossip.cli import main
from clippedgossip.errors import ClippedGossipError, ConfigError, DataError
from clippedgossip.facade.training_run import TrainingRun
from clippedgossip.peer import Config, ModuleLearner
from clippedgossip.peer.loop import PeerRun
from clippedgossip.records import Round, RunDirectory
from clippedgossip.runs.config import RunConfig

pytestmark = pytest.mark.usefixtures("one_thread")


def run(metric: Any, y: Tensor | None = None, **said: Any) -> TrainingRun:
    torch.manual_seed(0)
    x = torch.randn(40, 4)
    y = x.sum(1, keepdim=True) if y is None else y
    said = dict[str, Any](rounds=2, batch=8, device="cpu", progress=False) | said
    return cg.train(cg.Network(nx.cycle_graph(4)), (x, y, x, y), nn.Linear(4, 1), metric=metric, **said)


def distance(outputs: Tensor, y: Tensor) -> Tensor:
    return (outputs - y).abs().mean()


def keys(found: Any) -> set[str]:
    inner = [part for part in found.values() if isinstance(part, Mapping)]
    return {*found}.union(*map(keys, inner))


def test_a_name_that_stands_elsewhere_is_refused(tmp_path: Path) -> None:
    """In a record, a summary, a table, or a config, whatever the fields are."""
    done = run(distance, out=tmp_path, evaluate_components=True).finish()
    assert done.path is not None
    summary = RunDirectory(done.path).summary
    assert summary is not None
    columns = {column.partition(".")[0] for column in cg.results(tmp_path)}
    used = {*columns, *keys(summary), *keys(done.records[-1].to_json()), "lower_is_better", "diverged"}
    used |= {part.name for part in (*fields(Round), *fields(RunConfig))} - {"extra", "accuracy"}
    own = {"distance", "mean_distance", "worst_distance", "all"}
    for name in used - own:
        with pytest.raises(DataError, match=f"has the name '{name}', by .*\ngive it another"):
            cg.tasks.mean_metric(name, distance)
    for name in ("Loss", "consensus distance", "training.lr"):
        with pytest.raises(DataError, match=name):
            cg.tasks.mean_metric(name, distance)
    for name in ("", " ", 3, None):
        with pytest.raises(DataError, match="name of a metric is"):
            cg.tasks.mean_metric(name, distance)  # type: ignore[arg-type]  # as a user would


def test_it_is_refused_however_the_metric_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return distance(outputs, y)

    with pytest.raises(DataError, match=r"'loss', by which.*\n.*metric='loss' is the task's own"):
        run(loss)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("def loss(outputs, y):\n    return outputs.mean()\n")
    (tmp_path / "run.toml").write_text(
        'network = {name = "ring", nodes = 4}\ndata = {name = "digits", samples = 80}\nmodel = "linear"\n'
        'rule = "gossip"\ntraining = {rounds = 2, batch = 8, metric = "mine:loss"}\n'
    )
    with pytest.raises(SystemExit):
        main(["run", "run.toml"])
    said = capsys.readouterr().err
    assert "a metric has the name 'loss'" in said
    assert "Traceback" not in said
    learner = ModuleLearner(nn.Linear(2, 1), lambda round: None, metric="lr")
    with pytest.raises(ClippedGossipError, match="a metric has the name 'lr'"):
        PeerRun(Config(name="a", run="r", folder=tmp_path), learner=learner)


def test_an_accuracy_is_a_share_of_which_more_is_better() -> None:
    def accuracy(outputs: Tensor, y: Tensor) -> Tensor:
        return 1000 * distance(outputs, y)

    with pytest.raises(DataError, match="'accuracy' is said to be better if it is lower"):
        cg.tasks.mean_metric("accuracy", distance, higher_is_better=False)
    with pytest.raises(DataError, match=r"'accuracy' is \d+.* before training; .* from 0 to 1\n"):
        run(accuracy)


@pytest.mark.parametrize(
    ("metric", "y", "warns"),
    [
        (lambda outputs, y: outputs.mean() * float("nan"), None, True),
        (lambda outputs, y: outputs.mean() / 0, None, True),
        ("r2", torch.ones(40, 1), True),
        (lambda outputs, y: outputs.std() if len(y) > 10 else torch.tensor(float("nan")), None, False),
        (distance, None, False),
    ],
)
def test_a_metric_that_is_not_finite_is_told(
    metric: str | Callable[[Any, Any], Tensor], y: Tensor | None, warns: bool
) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run(metric, y)
    assert any("before training" in str(warning.message) for warning in seen) == warns


def test_a_page_of_models_that_agree_warns_of_nothing(tmp_path: Path) -> None:
    """The consensus distance is 0 in every round: a log axis has nothing to show."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = run_on_one_share().report(tmp_path / "page.html")
    assert "consensus distance" in page.read_text()


def run_on_one_share() -> TrainingRun:
    x, y = torch.ones(40, 4), torch.arange(40) % 2
    shares = [torch.arange(40)] * 3
    said: dict[str, Any] = {"rounds": 2, "batch": 8, "lr": 1e-30, "device": "cpu", "progress": False}
    network = cg.Network(nx.complete_graph(3))
    return cg.train(network, (x, y, x, y), nn.Linear(4, 2), rule="gossip", partition=shares, **said).finish()


def test_a_comparison_has_no_folder() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown argument 'out'; here it is out= of cg.train.*found.report"
    ):
        cg.compare(cg.Network(nx.cycle_graph(3)), rules=["gossip"], out="runs")
