"""`cg.train(out=)` writes a run's folder: it resumes, it is found again, and reports read it."""

from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

import clippedgossip as cg
from clippedgossip.facade.training_run import TrainingRun
from clippedgossip.records import RunDirectory
from clippedgossip.report.run_report import report

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
