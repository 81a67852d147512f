"""A model, a loss and a metric of one's own from a config."""

from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from torch import nn

import clippedgossip as cg
from clippedgossip import tasks
from clippedgossip.cli import main
from clippedgossip.errors import DataError, RunError, UserError
from clippedgossip.runs.budget import plan
from clippedgossip.runs.config import RunConfig, load_config
from clippedgossip.runs.execute import execute
from clippedgossip.simulate import train_together

CODE = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.inner, self.norm, self.last = nn.Linear(64, 9), nn.LayerNorm(9), nn.Linear(9, classes)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.inner(x.flatten(1)))))

def wide(shape, classes, width=10**9):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, classes))

class Held(Net):
    # A test of a sample holds two results of a million numbers, and leaves none of them for a gradient.

    def forward(self, x):
        wide = self.last(self.inner(x.flatten(1)))[..., None].expand(-1, -1, 100_000) + 1
        return (wide * 1).mean(-1)

def smooth(outputs, y, by: float = 0.1):
    return nn.functional.cross_entropy(outputs, y, label_smoothing=by)

def top2(outputs, y):
    return (outputs.topk(2).indices == y[:, None]).any(1).double().mean()
"""
CONFIG = """
network = {name = "ring", nodes = 4}
data = {name = "digits", samples = 200, test_samples = 50}
model = "of_this_test:Net"
rule = "gossip"
device = "cpu"
[training]
rounds = 4
batch = 4
evaluate_every = 2
loss = {name = "of_this_test:smooth", by = 0.2}
metric = "of_this_test:top2"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "of_this_test.py").write_text(CODE)
    path = tmp_path / "own.toml"
    path.write_text(CONFIG)
    return path


def test_a_config_names_a_model_a_loss_and_a_metric_of_ones_own(config: Path) -> None:
    loaded = load_config(config)
    assert plan(loaded).parameters == 64 * 9 + 9 + 2 * 9 + 10 * 9 + 10
    run = execute(loaded, config.parent / "runs")
    assert run.summary is not None
    assert 0 <= run.summary["top2"] <= 1
    assert run.summary["tier"] == "vmap"


def test_runs_with_equal_parameters_of_an_own_loss_share_a_stack(config: Path) -> None:
    setups = [load_config(config, [f"seed={seed}"]).build() for seed in (0, 1)]
    moments = list(train_together(setups, device="cpu"))
    assert [now.record is not None for now in moments[-1]] == [True, True]
    other = load_config(config, ["training.loss.by=0.3"]).build()
    with pytest.raises(UserError, match="must have the same data, model, frozen"):
        next(train_together([setups[0], other], device="cpu"))


@pytest.mark.parametrize("was", ["label_smoothing=by", "topk(2)"], ids=["loss", "metric"])
def test_another_loss_or_metric_is_another_run(config: Path, was: str) -> None:
    before = load_config(config)
    said = before.to_mapping()["training"]
    assert len(said["loss"]["code"]) == len(said["metric"]["code"]) == 16
    again = RunConfig.from_mapping(before.to_mapping(), folder=config.parent)
    assert again.to_mapping() == before.to_mapping()
    code = config.parent / "of_this_test.py"
    code.write_text(CODE.replace(was, was.replace("by", "by / 2").replace("2)", "3)")))
    after = load_config(config)
    assert after.run("runs").path != before.run("runs").path
    with pytest.raises(UserError, match="is not the code of this config"):
        RunConfig.from_mapping(before.to_mapping(), folder=config.parent)


def test_a_model_that_does_not_fit_is_refused_before_memory_is_taken(config: Path) -> None:
    large = load_config(config, ["model=of_this_test:wide"])
    assert plan(large).memory_bytes > 7 * 75e9 * 4
    with pytest.raises(RunError, match=r"75,000,000,010 parameters.* 4 copies, 1,200,000,000,160 bytes.*\n"):
        large.build()


def test_what_cannot_be_checked_or_does_not_fit_is_not_made(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copies = 4 * 4 * plan(load_config(config)).parameters
    for free, refused in ((copies - 1, True), (copies, False)):
        monkeypatch.setattr("clippedgossip.tasks.models.free_memory", lambda device, free=free: free)
        told: Any = pytest.raises(RunError, match="4 copies") if refused else nullcontext()
        with told:
            load_config(config).build()
    linear = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    small = cg.Network(nx.cycle_graph(3)), tasks.load("digits"), linear
    monkeypatch.setattr("clippedgossip.tasks.models.free_memory", lambda device: 3 * 4 * 650 - 1)
    with pytest.raises(RunError, match=r"'Sequential' has 650 parameters.* 3 copies"):
        cg.train(*small, device="cpu")
    monkeypatch.setattr("clippedgossip.devices.free_memory", lambda device: copies)
    with suppress(SystemExit):
        main(["run", str(config), "--plan"])
    assert "it does not fit" in capsys.readouterr().out


def test_a_test_is_part_of_what_is_planned(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    large = load_config(config, ["model=of_this_test:Held"])
    needed = plan(large).memory_bytes
    assert needed > 50 * 2 * 4 * 10 * 100_000  # the test set has 50 samples
    monkeypatch.setattr("clippedgossip.simulate.setup.free_memory", lambda device: needed // 2)
    with pytest.raises(RunError, match=r"need about [\d,]+ bytes"):
        next(train_together([large.build()], device="cpu"))


def test_a_config_names_a_metric_with_a_direction_and_a_loss_that_calls_the_module(config: Path) -> None:
    more = """
from clippedgossip.tasks import mean_metric, of_module
WRONG = mean_metric("wrong", lambda outputs, y: 1 - top2(outputs, y), higher_is_better=False)
WHOLE = of_module(lambda module, x, y: smooth(module(x), y))
"""
    (config.parent / "of_this_test.py").write_text(CODE + more)
    said = load_config(config, ["training.loss=of_this_test:WHOLE", "training.metric=of_this_test:WRONG"])
    task = said.build().task
    assert (task.metric.name, task.metric.higher_is_better, task.loss.of_module) == ("wrong", False, True)


def test_a_metric_that_cannot_take_the_outputs_is_refused_before_a_run(config: Path) -> None:
    config.write_text("".join(line for line in CONFIG.splitlines(True) if not line.startswith("loss")))
    said = load_config(config, ["model=linear", "training.metric=r2"])
    with pytest.raises(DataError, match="metric 'r2' cannot take outputs"):
        said.build()
