"""Data larger than the device: in host memory or in files, the same batches as in memory."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from clippedgossip import Network, attacks, graphs, rules, simulate
from clippedgossip.errors import ConfigError, DataError
from clippedgossip.records import Round
from clippedgossip.rules import Rule
from clippedgossip.runs.budget import plan
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.execute import execute
from clippedgossip.simulate.setup import Setup, Training, network_task
from clippedgossip.step import Batches
from clippedgossip.tasks import DataSet
from clippedgossip.tasks.datasets import leaves, load, stays_on_host
from clippedgossip.tasks.workers import Workers

CPU = torch.device("cpu")


class SpeaksSevenWords(nn.Sequential):
    """The same weights in every call."""

    def __init__(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            super().__init__(nn.Embedding(7, 5), nn.Linear(5, 7))


def setup_of(
    data: DataSet, rule: Rule | None = None, *, augment: bool = False, model: str | nn.Module = "mlp"
) -> Setup:
    network = Network(graphs.complete(nodes=5), byzantine=[4])
    attack = attacks.LabelFlipping()
    task = network_task(network, data, model, attack=attack, seed=3, batch=8, augment=augment)
    training = Training(rounds=6, evaluate_every=2, evaluate_last=0, local_steps=2, lr=0.1)
    return Setup(
        network=network, task=task, rule=rule or rules.ClippedGossip(), attack=attack, training=training
    )


def records(setup: Setup) -> list[Round]:
    return [moment.record for moment in simulate.train(setup) if moment.record is not None]


@pytest.fixture(scope="module")
def digits() -> DataSet:
    return load("digits").take(400, 100)


def saved(data: DataSet, folder: Path) -> Path:
    folder.mkdir()
    for name in ("train_x", "train_y", "test_x", "test_y"):
        held = getattr(data, name)
        np.save(folder / f"{name}.npy", (held.float() / 16 if name.endswith("x") else held).numpy())
    return folder


@pytest.mark.parametrize("rule", [None, rules.Mozi()], ids=["clipped-gossip", "mozi"])
def test_data_on_the_host_give_the_same_records(digits: DataSet, rule: Rule | None) -> None:
    """Several local steps, augmented, and with Mozi's own samples."""
    here, there = (setup_of(data, rule, augment=True) for data in (digits, replace(digits, keep="host")))
    assert records(here) == records(there)


def test_data_in_files_give_the_same_records(digits: DataSet, tmp_path: Path) -> None:
    folder = saved(digits, tmp_path / "data")
    mapped = DataSet.from_files(folder)
    assert mapped.in_files
    assert mapped.on_host(CPU)
    x, y, x_test, y_test = (
        torch.from_numpy(np.load(folder / f"{n}.npy")) for n in ("train_x", "train_y", "test_x", "test_y")
    )
    assert records(setup_of(DataSet.of(x, y, x_test, y_test))) == records(setup_of(mapped))


@pytest.mark.parametrize("shape", [(60, 4), (60,)], ids=str)
@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_tokens_in_files_stay_as_they_are_and_train_as_int64(
    kind: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    tokens = np.random.default_rng(0).integers(0, 7, shape)
    for name in ("train_x", "train_y", "test_x", "test_y"):
        np.save(tmp_path / f"{name}.npy", tokens.astype(kind))
    mapped, whole = DataSet.from_files(tmp_path), DataSet.of(tokens, tokens, tokens, tokens)
    assert mapped.train_x.dtype == mapped.train_y.dtype == getattr(torch, kind)
    wanted = records(setup_of(whole, model=SpeaksSevenWords()))
    for data in (mapped, replace(mapped, keep="device")):
        assert records(setup_of(data, model=SpeaksSevenWords())) == wanted


@pytest.mark.parametrize("batches", get_args(Batches))
def test_steps_come_in_order_to_the_end_and_from_the_middle(digits: DataSet, batches: str) -> None:
    task = setup_of(digits).task
    plain = Workers([task], batches=batches)
    fed = Workers([replace(task, data=replace(digits, keep="host"))], batches=batches, ahead=True)
    assert plain.feed is None
    assert fed.feed is not None
    assert len(leaves(fed.shares.train_x)[0]) == 8 * len(fed)
    for step in (0, 1, 2, 2, 7, 8, 3, 0):
        fed.feed.go_to(step, step // 2)
        for purpose, number in ((None, step), ("mozi", step // 2)):
            expected = plain.draw(plain.shares, number, purpose)
            for found, right in zip(fed.draw(fed.shares, number, purpose), expected, strict=True):
                assert torch.equal(found, right), (step, purpose)
        some = torch.tensor([3, 1])
        (x, _), (right, _) = (w.draw(w.shares.some(some), step) for w in (fed, plain))
        assert torch.equal(x, right)


def test_what_the_thread_raises_is_raised_in_the_step(digits: DataSet) -> None:
    task = replace(setup_of(digits).task, data=replace(digits, keep="host"))
    fed = Workers([task], ahead=True)
    assert fed.feed is not None
    fed.feed.source = fed.feed.source._replace(table=fed.feed.source.table + 10_000)
    with suppress(IndexError):
        fed.feed.go_to(1, 1)  # may have been read before
    with pytest.raises(IndexError):
        fed.feed.go_to(2, 2)


def test_a_resumed_run_draws_the_same(digits: DataSet) -> None:
    setup = setup_of(replace(digits, keep="host"))
    *_, last = list(simulate.train(setup))
    half = next(moment for moment in simulate.train(setup) if moment.round == 3).state()
    *_, again = list(simulate.train(setup, state=half))
    assert torch.equal(last.state().tensors["models"], again.state().tensors["models"])


def test_a_config_names_a_folder_of_files(digits: DataSet, tmp_path: Path) -> None:
    saved(digits, tmp_path / "data")
    said: dict[str, Any] = {
        "network": {"name": "complete", "nodes": 4},
        "data": {"name": "npy", "path": "data"},
        "model": "mlp",
        "rule": "gossip",
        "training": {"rounds": 2, "batch": 4},
        "device": "cpu",
    }
    config = RunConfig.from_mapping(said, folder=tmp_path)
    mapping = config.to_mapping()
    assert len(mapping["data"]["digest"]) == 16
    assert "keep" not in mapping["data"]
    planned = plan(config)
    assert planned.data_on_host
    on_device = {**said, "data": {**said["data"], "keep": "device"}}
    assert not plan(RunConfig.from_mapping(on_device, folder=tmp_path)).data_on_host
    assert planned.data_bytes == 4 * 4 * (64 * 4 + 8)  # workers, batch, and a sample
    done = execute(config, tmp_path / "runs")
    (first,) = (tmp_path / "runs").glob("*/records.jsonl")
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    assert lines[-1]["round"] == 2, done
    changed = np.load(tmp_path / "data" / "train_x.npy")
    np.save(tmp_path / "data" / "train_x.npy", changed + 1)
    assert RunConfig.from_mapping(said, folder=tmp_path).to_mapping() != mapping
    with pytest.raises(ConfigError, match="not the data of this config"):
        RunConfig.from_mapping(mapping, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [("train_x", None, "cannot read .*train_x.npy"), ("test_x", np.zeros((9, 2)), "is not float32")],
)
def test_files_that_cannot_be_used_are_named(
    digits: DataSet, tmp_path: Path, name: str, values: np.ndarray | None, problem: str
) -> None:
    file = saved(digits, tmp_path / "data") / f"{name}.npy"
    file.unlink() if values is None else np.save(file, values)
    with pytest.raises(DataError, match=problem) as caught:
        DataSet.from_files(tmp_path / "data")
    assert len(str(caught.value).splitlines()) == 2


def test_size_decides_where_data_are() -> None:
    assert not stays_on_host(1 << 60, "auto", CPU)
    assert stays_on_host(1, "host", CPU)
    assert not stays_on_host(1 << 60, "device", torch.device("cuda"))
