"""`cg.train(out=)` writes a run's folder: it resumes, it is found again, and reports read it."""

import argparse
import importlib
import linecache
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import clippedgossip as cg
from clippedgossip import decode
from clippedgossip.errors import RunError
from clippedgossip.facade.training_run import TrainingRun
from clippedgossip.network.schedule import SCHEDULE
from clippedgossip.records import RunDirectory
from clippedgossip.report.run_report import report
from clippedgossip.runs.config import load_config
from clippedgossip.runs.execute import execute
from clippedgossip.tasks.objective import Loss, cross_entropy

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.last = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.last(torch.tanh(self.inner(x)))
        return scores


def run(out: Path, *, shift: float = 0.0, **changes: Any) -> TrainingRun:
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(60) % 3
    x = torch.randn(60, 4, generator=draw) + y[:, None] + shift
    network = cg.Network(nx.cycle_graph(4))
    said = {"rounds": 12, "batch": 4, "evaluate_every": 3, "progress": False, "seed": 3} | changes
    torch.manual_seed(1)
    return cg.train(network, (x, y, x[:20], y[:20]), Net(), out=out, **said)


def test_a_run_from_python_has_a_folder_that_is_found_again(tmp_path: Path) -> None:
    first = run(tmp_path).finish()
    assert first.path is not None
    folder = RunDirectory.existing(first.path)
    assert folder.finished
    assert folder.config["model"]["name"] == "Net"
    assert set(folder.config["given"]) == {"data", "shares", "model", "code"}
    assert folder.summary is not None
    assert folder.summary["tier"] == "vmap"
    before = folder.records_path.stat().st_mtime_ns
    again = run(tmp_path)
    assert again.finished
    assert again.records == first.records
    assert torch.equal(again.models, first.models)
    assert folder.records_path.stat().st_mtime_ns == before
    assert "Net" in report([tmp_path]).html


def test_a_run_that_another_run_of_this_process_has_stopped_in_says_so(tmp_path: Path) -> None:
    """As after a break, and the same call again in a notebook."""
    first, second = run(tmp_path), run(tmp_path)
    next(iter(first))
    with pytest.raises(RunError, match=r"by a run of this one that has not ended\n.*del run"):
        second.finish()
    assert first.finish().records == second.finish().records


def test_a_run_without_its_summary_alone_gets_it(tmp_path: Path) -> None:
    """As where the disk was full, or a kill came, after the last checkpoint."""
    first = run(tmp_path).finish()
    assert first.path is not None
    (first.path / "summary.json").unlink()
    again = run(tmp_path).finish()
    assert again.records == first.records
    assert torch.equal(again.models, first.models)
    assert RunDirectory(first.path).finished


def test_a_stopped_run_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole").finish()
    stopped = run(tmp_path / "part")
    assert next(iter(stopped)).round == 3
    assert stopped.path is not None
    path = stopped.path
    del stopped
    resumed = run(tmp_path / "part")
    assert resumed.path == path
    assert resumed.finish().records == whole.records
    assert whole.path is not None
    assert (path / "records.jsonl").read_bytes() == (whole.path / "records.jsonl").read_bytes()
    assert RunDirectory(path).summary["resumed_from"] == 3  # type: ignore[index]  # it is finished


def test_a_run_that_the_programs_end_stops_has_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        """
import sys
import networkx, torch
import clippedgossip as cg

x, y = torch.ones(30, 4), torch.arange(30) % 3
said = {"rounds": 6, "evaluate_every": 2, "device": "cpu", "progress": False, "out": sys.argv[1]}
run = cg.train(cg.Network(networkx.cycle_graph(3)), (x, y, x, y), torch.nn.Linear(4, 3), **said)
for record in run:
    break
"""
    )
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Error" not in done.stderr
    assert list(tmp_path.glob("runs/*/checkpoint.safetensors"))


def test_other_data_weights_or_code_are_another_run(tmp_path: Path) -> None:
    def other(outputs: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(2 * outputs, y)

    runs = [
        run(tmp_path),
        run(tmp_path, shift=1.0),
        run(tmp_path, seed=4),
        run(tmp_path, optimizer="sgd"),
        run(tmp_path, loss=other),
        run(tmp_path, rule="gossip"),
    ]
    assert len({made.path for made in runs}) == len(runs)


FACTOR: Any = 1.0


@dataclass(slots=True)
class Slots:
    factor: float


class Constant:
    factor = 1.0


class Scaled(Net):
    """What it computes depends on a plain attribute, on a function and on a tensor that is no buffer."""

    def __init__(self, scale: float = 1.0, activation: Any = torch.tanh, shift: float = 0.0) -> None:
        super().__init__()
        self.scale, self.activation = scale, activation
        self.shift = torch.full((3,), shift)
        self.register_buffer("coarse", torch.ones(2, dtype=torch.bfloat16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.scale * self.activation(super().forward(x)) + self.shift
        return scores


def weighted(factor: Any) -> Any:
    return lambda outputs, y: factor * nn.functional.cross_entropy(outputs, y)


def by_global(outputs: Tensor, y: Tensor) -> Tensor:
    return float(FACTOR) * nn.functional.cross_entropy(outputs, y)


def by_settings(outputs: Tensor, y: Tensor) -> Tensor:
    return float(FACTOR.factor) * nn.functional.cross_entropy(outputs, y)


def by_table(outputs: Tensor, y: Tensor) -> Tensor:
    return float(FACTOR["factor"]) * nn.functional.cross_entropy(outputs, y)


def constant(factor: float) -> type:
    Constant.factor = factor
    return Constant


def hooked(factor: float) -> nn.Module:
    module = Net()
    module.inner.register_forward_hook(lambda layer, inputs, outputs: factor * outputs)
    return module


def encoder(heads: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, heads, 5, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 4)), layer, nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"model": lambda: Scaled(1.0)}, {"model": lambda: Scaled(2.0)}),
        ({"model": lambda: Scaled()}, {"model": lambda: Scaled(activation=torch.relu)}),
        (
            {"model": lambda: Scaled(activation=lambda x: x)},
            {"model": lambda: Scaled(activation=lambda x: -x)},
        ),
        ({"model": lambda: Scaled()}, {"model": lambda: Scaled(shift=1.0)}),
        ({"model": lambda: hooked(1.0)}, {"model": lambda: hooked(2.0)}),
        ({"model": lambda: encoder(1)}, {"model": lambda: encoder(2)}),
        ({"loss": weighted(1.0)}, {"loss": weighted(2.0)}),
        ({"loss": nn.CrossEntropyLoss()}, {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}),
        ({"loss": by_global}, {"loss": by_global, "FACTOR": 2.0}),
        ({"metric": weighted(1.0)}, {"metric": weighted(2.0)}),
        *(
            (
                {"loss": by_settings, "FACTOR": partial(make, factor=1.0)},
                {"loss": by_settings, "FACTOR": partial(make, factor=2.0)},
            )
            for make in (argparse.Namespace, SimpleNamespace, Slots, constant)
        ),
        ({"loss": by_table, "FACTOR": {"factor": 1.0}}, {"loss": by_table, "FACTOR": {"factor": 2.0}}),
        ({"loss": weighted(np.float32(1))}, {"loss": weighted(np.float32(2))}),
    ],
)
def test_what_code_holds_is_part_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one: dict[str, Any], other: dict[str, Any]
) -> None:
    def path(said: dict[str, Any]) -> Path | None:
        said = dict[str, Any]({"model": Net, "FACTOR": 1.0, "rounds": 1, "progress": False}) | said
        factor = said.pop("FACTOR")
        monkeypatch.setattr(f"{__name__}.FACTOR", factor() if callable(factor) else factor)
        torch.manual_seed(1)
        x, y, model = torch.ones(30, 4), torch.arange(30) % 3, said.pop("model")()
        return cg.train(cg.Network(nx.cycle_graph(4)), (x, y, x, y), model, out=tmp_path, **said).path

    assert path(one) == path(one) != path(other)


USES_A_MODULE = """
import own_helpers as helpers

def attribute(outputs, y):
    return helpers.scaled(outputs).logsumexp(-1).mean()

def value(outputs, y):
    return helpers.FACTOR * outputs.logsumexp(-1).mean()

def inside(outputs, y):
    return sum(helpers.scaled(row).logsumexp(-1) for row in outputs) / len(outputs)

def imported(outputs, y):
    import own_helpers
    return own_helpers.scaled(outputs).logsumexp(-1).mean()
"""


@pytest.mark.parametrize("loss", ["attribute", "value", "inside", "imported"])
@pytest.mark.parametrize("edited", [True, False])
def test_a_module_that_code_uses_is_part_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss: str, edited: bool
) -> None:
    """Its code, and its values while the program runs."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "own_losses.py").write_text(USES_A_MODULE)

    def path(factor: float) -> Path | None:
        for name in ("own_helpers", "own_losses"):
            sys.modules.pop(name, None)
        said = factor if edited else 1.0
        helpers = f"FACTOR = {said}\ndef scaled(x):\n    return {f'{said} * x' if edited else 'FACTOR * x'}\n"
        (tmp_path / "own_helpers.py").write_text(helpers)
        linecache.clearcache()
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)
        losses = importlib.import_module("own_losses")
        sys.modules["own_helpers"].FACTOR = factor  # type: ignore[attr-defined]  # made above
        return run(tmp_path / "runs", rounds=1, metric="loss", loss=getattr(losses, loss)).path

    assert path(1.0) == path(1.0) != path(2.0)
    for name in ("own_helpers", "own_losses"):
        sys.modules.pop(name, None)


def test_runs_from_python_and_from_a_config_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(
        'network = {name = "ring", nodes = 4}\ndata = {name = "digits", samples = 80}\nmodel = "linear"\n'
        'rule = "gossip"\n[training]\nrounds = 2\nbatch = 8\nlr = 0.5\n'
        'lr_schedule = "cosine"\noptimizer = "sgd"\n'
    )
    execute(load_config(tmp_path / "mine.toml"), tmp_path / "runs")
    data = {"name": "digits", "samples": 80}
    words: dict[str, Any] = {"rounds": 2, "batch": 8, "lr": 0.5, "lr_schedule": "cosine", "optimizer": "sgd"}
    ring = cg.Network(nx.cycle_graph(4))
    cg.train(ring, data, "linear", rule="gossip", out=tmp_path / "runs", **words).finish()
    frame = cg.results(tmp_path / "runs")
    both = frame.drop(columns=[name for name in frame if name.startswith(("network.", "given.", "run"))])
    assert len(both) == 2
    assert len(both.drop_duplicates()) == 1
    assert both["training.lr"].tolist() == [0.5, 0.5]


def test_a_schedule_of_ones_own_is_part_of_the_run(tmp_path: Path) -> None:
    def ring(network: cg.Network, round: int, seed: int) -> list[tuple[int, int]]:
        return [(0, 1), (1, 2), (2, 3)]

    def path(network: cg.Network, round: int, seed: int) -> list[tuple[int, int]]:
        return [(0, 1), (1, 2), (3, 0)]

    path.__qualname__ = ring.__qualname__
    names = {scheduled(tmp_path, said).path for said in (ring, ring, path)}
    assert len(names) == 2
    assert scheduled(tmp_path, ring, augment=True).path not in names
    # fmt: off
    lambdas = [lambda round: [(0, 1), (1, 2), (2, 3)], lambda round: [(0, 1), (1, 2), (3, 0)]]  # on one line
    # fmt: on
    assert len({scheduled(tmp_path, said).path for said in (*lambdas, *lambdas)}) == 2
    (tmp_path / "some_links.py").write_text(
        "def links(round, last: int): return [(0, 1), (1, 2), (last, 3)]\n"
    )
    parts = [
        decode.decode(SCHEDULE, {"name": "some_links:links", "last": n}, (), tmp_path) for n in (0, 2, 0)
    ]
    assert len({scheduled(tmp_path, part.build()).path for part in parts}) == 2


def scheduled(out: Path, schedule: Any, **said: Any) -> TrainingRun:
    network = cg.Network(nx.cycle_graph(4), schedule=schedule)
    return cg.train(network, {"name": "digits", "samples": 80}, "linear", rounds=2, batch=8, out=out, **said)


@pytest.mark.parametrize(
    "said",
    [
        {"loss": {"name": "cross-entropy", "class_weights": [1.0, 2.0, 3.0]}},
        {"loss": {"name": "cross-entropy", "class_weights": [1.0, 2.0, 4.0]}},
        {"loss": Loss(cross_entropy, weights=torch.ones(3))},
        {"loss": Loss(cross_entropy, weights=torch.tensor([1.0, 2.0, 3.0]))},
        {"metric": "f1"},
        {"optimizer": "sgd"},
        {"lr_warmup": 3},
    ],
)
def test_whatever_is_said_makes_another_run(tmp_path: Path, said: dict[str, Any]) -> None:
    assert run(tmp_path, **said).path == run(tmp_path, **said).path
    others: list[dict[str, Any]] = [
        {},
        {"loss": {"name": "cross-entropy", "class_weights": [1.0, 1.0, 1.0]}},
        {"loss": Loss(cross_entropy, weights=torch.tensor([3.0, 2.0, 1.0]))},
    ]
    assert run(tmp_path, **said).path not in [run(tmp_path, **other).path for other in others]
