"""What names a run of `cg.train(out=)`: all that its model, loss and metric hold, and nothing else."""

import json
import linecache
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import clippedgossip as cg
from clippedgossip.errors import RunError
from clippedgossip.facade.code_digest import text_of
from tests.facade.held import HELD, Locked


def texts() -> dict[str, str]:
    torch.manual_seed(0)
    return {name: text_of(make(1.0)) for name, make in HELD.items()}


@pytest.mark.parametrize("name", HELD)
def test_what_code_holds_is_told_apart(name: str) -> None:
    torch.manual_seed(0)
    one, other, again = (text_of(HELD[name](value)) for value in (1.0, 2.0, 1.0))
    assert one == again
    assert one != other


@pytest.mark.parametrize("seed", ["1", "2"])
def test_other_processes_write_the_same(seed: str) -> None:
    """No place in memory, no order of a set, no hash of a word is in it."""
    code = "import json; from tests.facade.test_code_digest import texts; print(json.dumps(texts()))"
    env = {**os.environ, "PYTHONHASHSEED": seed}
    root = str(Path(__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, env=env, capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found == texts()


def test_code_that_exec_made_has_no_lines_of_another_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.13 keeps the text of `python -c` under the name that all code of `exec` has."""
    lines = [f"def f(x): return {x}\n" for x in "xyz"]

    def made(text: str) -> str:
        space: dict[str, Any] = {"__name__": "mine"}
        exec(text, space)
        return text_of(space["f"])

    before = made("def f(x): return x + 1")
    monkeypatch.setitem(linecache.cache, "<string>", (1, None, lines, "<string>"))
    assert made("def f(x): return x + 1") == before != made("def f(x): return x + 2")


def test_what_an_object_computed_of_itself_does_not_count() -> None:
    graph, network = nx.path_graph(3), cg.Network(nx.path_graph(3))
    before = text_of(graph), text_of(network)
    assert graph.adj
    assert graph.nodes
    assert network.remember("something", lambda: 1) == 1
    assert (text_of(graph), text_of(network)) == before


def deep() -> Any:
    made: list[Any] = []
    for _ in range(10_000):
        made = [made]
    return made


def generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize("make", [generator, deep, lambda: Locked(generator())])
def test_what_cannot_be_read_is_refused(make: Any, tmp_path: Path) -> None:
    held, x, y = make(), torch.ones(30, 4), torch.arange(30) % 3

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, y) + 0 * (held is None)

    ring = cg.Network(nx.cycle_graph(3))
    with pytest.raises(RunError, match=r"cannot be read\n.*leave out= out"):
        cg.train(ring, (x, y, x, y), torch.nn.Linear(4, 3), loss=loss, out=tmp_path, rounds=1, batch=8)
    assert not list(tmp_path.iterdir())


def test_a_metric_that_is_corrected_is_another_run(tmp_path: Path) -> None:
    def error(outputs: Tensor, y: Tensor) -> Tensor:
        return (outputs.argmax(1) != y).float().mean()

    x, y = torch.ones(30, 4), torch.arange(30) % 3

    def path(name: str, higher: bool) -> Path | None:
        metric = cg.tasks.mean_metric(name, error, higher_is_better=higher)
        ring = cg.Network(nx.cycle_graph(3))
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        return cg.train(ring, (x, y, x, y), model, metric=metric, out=tmp_path, rounds=1, batch=8).path

    assert path("error", True) == path("error", True)
    assert len({path("error", True), path("error", False), path("wrong", False)}) == 3
