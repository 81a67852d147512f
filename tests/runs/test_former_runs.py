"""What version 0.1 wrote is read: a finished run is found, an unfinished one goes on."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from clippedgossip.errors import FormatError
from clippedgossip.peer import checkpoint
from clippedgossip.records import RunDirectory
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import execute
from tests.rounding import near

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
        assert mine.loss == near(theirs.loss, dtype=torch.float32)
        assert mine.consensus_distance == near(theirs.consensus_distance, dtype=torch.float32)


def test_new_folders_say_their_format(tmp_path: Path) -> None:
    made = RunDirectory.open(tmp_path, config().to_mapping(), "run")
    assert made.environment["format"] == "2"


def test_what_a_newer_version_wrote_is_refused(tmp_path: Path) -> None:
    shutil.copytree(FORMER / "unfinished", tmp_path / "runs")
    run = RunDirectory(tmp_path / "runs" / NAME)
    kept = run.checkpoint_path.read_bytes()
    with safe_open(str(run.checkpoint_path), framework="pt") as old:
        tensors, said = {name: old.get_tensor(name) for name in old.keys()}, old.metadata()  # noqa: SIM118
    save_file(tensors, run.checkpoint_path, {**said, "format": "3"})
    newer = run.checkpoint_path.read_bytes()
    with pytest.raises(FormatError, match=r"checkpoint.safetensors has format 3.*1 to 2\nupgrade"):
        execute(config(), tmp_path / "runs")
    assert run.checkpoint_path.read_bytes() == newer  # and its work is not thrown away
    run.checkpoint_path.write_bytes(kept)
    run.environment_path.write_text(json.dumps(run.environment | {"format": "3"}))
    refused = pytest.raises(FormatError, match=r"has format 3; this version reads 1 to 2\nupgrade")
    with refused:
        execute(config(), tmp_path / "runs")
    with refused:
        RunDirectory.existing(run.path)


def test_a_peers_checkpoint_of_a_newer_version_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = checkpoint.Checkpoint(run="r", round=3, tensors={"x": torch.zeros(2)})
    checkpoint.save(made, tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint, "FORMAT", "3")
        checkpoint.save(dataclasses.replace(made, round=4), tmp_path)
    with pytest.raises(FormatError, match=r"has format 3; this version reads 1 to 2\nupgrade"):
        checkpoint.load(tmp_path, "r")
