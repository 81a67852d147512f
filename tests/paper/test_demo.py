"""`clippedgossip demo`: what a user sees."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from clippedgossip.cli import main
from clippedgossip.paper.demo import DUMBBELL, Demo
from clippedgossip.paper.training_figure import MNIST
from clippedgossip.runs.config import RunConfig, load_config

COMMAND = [sys.executable, "-m", "clippedgossip", "demo"]
EXAMPLES = Path(__file__).parents[2] / "examples"


def accuracy(rows: list[dict[str, Any]], network: str, rule: str) -> list[float]:
    return [row["accuracy"] for row in rows if (row["network"], row["rule"]) == (network, rule)]


def gossip_and_clipped_gossip_learn_all_classes(rows: list[dict[str, Any]]) -> None:
    for rule in ("Gossip", "ClippedGossip"):
        assert min(accuracy(rows, "dumbbell", rule)) > 0.65
    for rule in ("GeometricMedian", "TrimmedMean", "Mozi"):
        # Half of the classes, those of the own clique, up to what training makes of rounding.
        assert accuracy(rows, "dumbbell", rule) == [pytest.approx(0.5, abs=0.03)]


def clipped_gossip_stands_where_the_others_fall(rows: list[dict[str, Any]]) -> None:
    assert len(accuracy(rows, "ring", "ClippedGossip")) == 2
    assert min(accuracy(rows, "ring", "ClippedGossip")) > 0.8
    for rule in ("GeometricMedian", "TrimmedMean"):
        assert max(accuracy(rows, "ring", rule)) < 0.5


def rows_say_what_was_run(rows: list[dict[str, Any]]) -> None:
    assert len(rows) == 11
    for row in rows:
        assert {"network", "data", "attack", "rule", "accuracy"} <= set(row)
        assert row["data"] == ("non-IID" if row["network"] == "dumbbell" else "IID")
        assert row["attack"] in ({"none"} if row["network"] == "dumbbell" else {"ipm", "alie"})
        assert row["group"] == ("clique A" if row["network"] == "dumbbell" else "all")


def the_page_is_whole_and_the_runs_are_found_again(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("records.jsonl")}
    with pytest.raises(SystemExit, match="0"):
        main(["demo", "--out", str(folder)])
    assert {path: path.stat().st_mtime_ns for path in before} == before
    out = capsys.readouterr().out
    assert max(len(line) for line in out.splitlines() if not line.startswith("page: ")) <= 80
    assert "11 hold" in out
    why = "a run that diverged (a loss or a model was no longer a finite number) counts as 0"
    assert why in " ".join(out.split()).lower()
    page = folder / "demo" / "index.html"
    assert str(page) in out
    text = page.read_text(encoding="utf-8")
    assert text.count("<svg") >= 6
    assert text.count('<th scope="col" class="number">Ξ</th>') == 1
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    for part in ("dumbbell", "ring", "clipped-gossip", "does not" if "does not" in text else "holds"):
        assert part in text


def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One test: each of several could be given to another process, which would run the demo again."""
    done = subprocess.run(
        [*COMMAND, "--json", "--out", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    gossip_and_clipped_gossip_learn_all_classes(rows)
    clipped_gossip_stands_where_the_others_fall(rows)
    rows_say_what_was_run(rows)
    the_page_is_whole_and_the_runs_are_found_again(tmp_path, capsys)


def test_the_example_is_the_demos_dumbbell() -> None:
    (case,) = [
        case
        for case in Demo().cases(MNIST["quick"])
        if (case.setting, case.rule) == (DUMBBELL, "ClippedGossip")
    ]
    example = load_config(EXAMPLES / "dumbbell.toml")
    assert tomllib.loads((EXAMPLES / "dumbbell.toml").read_text(encoding="utf-8"))["rule"]["radius"] == 1.0
    for section in ("network", "rule", "data", "model", "attack"):
        assert getattr(example, section) == getattr(case.config, section)
    assert _training(example) == _training(case.config)


def test_the_page_says_how_long_the_runs_are() -> None:
    cases = Demo().cases(MNIST["quick"])
    rounds = {str(case.config.network.name): case.config.training.rounds for case in cases}
    words = f"{rounds['dumbbell']} rounds on the dumbbell and {rounds['ring']} on the ring"
    assert words in Demo().scales["quick"].about


def _training(config: RunConfig) -> tuple[object, ...]:
    section = config.training
    return section.rounds, section.batch, section.lr, section.momentum, section.evaluate_last
