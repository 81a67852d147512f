"""Files in every form in which people have them, found in folders."""

import gzip
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from clippedgossip.errors import DataError
from clippedgossip.tasks.datasets import load_spec
from clippedgossip.tasks.sources.catalog import Download, File
from clippedgossip.tasks.sources.fetch import fetch_spec
from clippedgossip.tasks.sources.formats import decode
from tests.rounding import assert_near
from tests.tasks.sources.tiny_data import (
    BATCHES,
    IDX,
    check_cifar,
    check_idx,
    cifar_spec,
    digest,
    idx_spec,
    kept,
    pickled_batch,
    tar,
    write,
)


@pytest.mark.parametrize("form", ["plain", "gzip", "dotted", "nested"])
def test_idx_files_are_read_in_every_form_people_have_them(tmp_path: Path, form: str) -> None:
    rename = {"gzip": "{}.gz", "plain": "{}", "dotted": "{}", "nested": "{}.gz"}[form]
    files = {
        rename.format(name.replace("-idx", ".idx") if form == "dotted" else name): (
            gzip.compress(data) if rename.endswith(".gz") else data
        )
        for name, data in IDX.items()
    }
    write(tmp_path / "mine" / ("TINY/raw" if form == "nested" else "."), files)
    check_idx(load_spec(idx_spec(), tmp_path / "mine"))
    shutil.rmtree(tmp_path / "mine")
    check_idx(load_spec(idx_spec()))  # from the cache alone


@pytest.mark.parametrize("form", ["binary", "pickled", "archive"])
def test_cifar_batches_are_read_in_every_edition(tmp_path: Path, form: str) -> None:
    spec = cifar_spec()
    if form == "binary":
        write(tmp_path / "mine", {f"{name}.bin": rows.tobytes() for name, rows in BATCHES.items()})
    elif form == "pickled":
        write(tmp_path / "mine", {name: pickled_batch(rows) for name, rows in BATCHES.items()})
    else:
        archive = tar({f"batches/{name}.bin": rows.tobytes() for name, rows in BATCHES.items()})
        write(tmp_path / "mine", {"cifar.tar.gz": archive})
        spec = replace(spec, downloads=(Download(("http://x/",), "cifar.tar.gz", size=1, sha256=""),))
    check_cifar(load_spec(spec, tmp_path / "mine"))


def test_inputs_come_normalised_per_channel(tmp_path: Path) -> None:
    write(tmp_path, {name: pickled_batch(rows) for name, rows in BATCHES.items()})
    data = load_spec(cifar_spec(), tmp_path)
    x = data.normalise(data.train_x)
    expected = (data.train_x[:, 1].double() / 255 - 0.4) / 0.2
    assert x.dtype == torch.float32
    assert_near(x[:, 1].double(), expected, roundings=4, dtype=torch.float32)


def test_the_environment_may_name_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine", IDX)
    monkeypatch.setenv("CLIPPEDGOSSIP_DATA", str(tmp_path / "mine"))
    check_idx(load_spec(idx_spec()))


def test_a_folder_of_the_environment_that_is_not_there_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLIPPEDGOSSIP_DATA", str(tmp_path / "typo"))
    with pytest.raises(DataError, match=r"CLIPPEDGOSSIP_DATA: .*typo is not a folder"):
        fetch_spec(idx_spec(), online=False)


def test_a_damaged_file_in_the_folder_is_refused_and_the_rest_is_kept(tmp_path: Path, cache: Path) -> None:
    broken = IDX | {"train-images-idx3-ubyte": IDX["train-images-idx3-ubyte"][:-1] + b"?"}
    write(tmp_path / "mine", broken)
    with pytest.raises(
        DataError, match=r"1 of 4 files are missing(.|\n)*train-images-idx3-ubyte: wrong digest"
    ):
        fetch_spec(idx_spec(), folder=tmp_path / "mine")
    assert kept(cache) == set(IDX) - {"train-images-idx3-ubyte"}


@pytest.mark.parametrize("name", ["fashion-mnist", "FashionMNIST/raw", "fashion_mnist"])
def test_files_in_another_data_sets_folder_are_let_be(tmp_path: Path, name: str) -> None:
    write(tmp_path / name, dict.fromkeys(IDX, b"the same names"))
    write(tmp_path / "mnist" / "tiny", IDX)
    assert fetch_spec(idx_spec(), folder=tmp_path).troubles == ()


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere is not a folder"):
        fetch_spec(idx_spec(), folder=tmp_path / "nowhere")


def test_nothing_but_a_batch_is_unpickled() -> None:
    class Evil:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, ("touch /tmp/never",)

    import pickle

    evil = pickle.dumps(Evil(), protocol=2)
    file = File(name="data_batch_1.bin", size=10, sha256="0" * 64)
    with pytest.raises(DataError, match="wrong digest"):
        decode(file, evil)
    with pytest.raises(DataError, match="which no CIFAR-10 batch needs"):
        decode(replace(file, pickled=digest(evil)), evil)


def test_a_gzip_bomb_is_stopped_and_a_broken_gzip_named() -> None:
    file = File(name="f", size=10, sha256="0" * 64)
    with pytest.raises(DataError, match=f"of {10 + (1 << 20)} bytes"):
        decode(file, gzip.compress(bytes(1 << 24)))
    with pytest.raises(DataError, match="damaged gzip"):
        decode(file, b"\x1f\x8b" + b"\xff" * 50)
