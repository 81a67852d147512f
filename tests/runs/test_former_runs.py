"""What version 0.1 wrote is read: a finished run is found, an unfinished one goes on."""

import json
import shutil
from pathlib import Path

import pytest

from clippedgossip.records import RunDirectory
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import execute

FORMER = Path(__file__).parents[1] / "assets" / "v0.1" / "runs"
NAME = "ring-clipped-gossip-dissensus-03bff54efeef"


def config() -> RunConfig:
    return RunConfig.from_mapping(
        json.loads((FORMER / "finished" / NAME / "config.json").read_text()) | {"device": "cpu"}
    )


def test_a_finished_run_is_found(tmp_path: Path) -> None:
    shutil.copytree(FORMER / "finished", tmp_path / "runs")
    before = {file.name: file.read_bytes() for file in (tmp_path / "runs" / NAME).iterdir()}
    found = execute(config(), tmp_path / "runs", on_round=lambda *_: pytest.fail("it was run again"))
    assert found.path.name == NAME
    assert {file.name: file.read_bytes() for file in found.path.iterdir()} == before
    assert [r.round for r in found.rounds()] == [3, 6, 8, 10, 12]


def test_an_unfinished_run_goes_on(tmp_path: Path) -> None:
    """Its first six rounds stay as they are; the rest is that of the finished run, up to the rounding that
    another machine has: 6 rounds of 32-bit products."""
    shutil.copytree(FORMER / "unfinished", tmp_path / "runs")
    done = execute(config(), tmp_path / "runs")
    assert done.summary is not None
    assert done.summary["resumed_from"] == 6
    old = (FORMER / "finished" / NAME / "records.jsonl").read_bytes().splitlines()
    new = done.records_path.read_bytes().splitlines()
    assert new[:2] == old[:2]
    there = list(RunDirectory(FORMER / "finished" / NAME).rounds())
    for mine, theirs in zip(done.rounds(), there, strict=True):
        assert mine.round == theirs.round
        assert mine.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert mine.consensus_distance == pytest.approx(theirs.consensus_distance, rel=1e-4)


def test_new_folders_say_their_format(tmp_path: Path) -> None:
    made = RunDirectory.open(tmp_path, config().to_mapping(), "run")
    assert made.environment["format"] == "2"
