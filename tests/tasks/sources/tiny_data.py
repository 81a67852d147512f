"""Data sets of a few images in the original formats, and a mirror that has faults."""

import enum
import gzip
import io
import struct
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from clippedgossip.tasks import DataSet
from clippedgossip.tasks.sources.catalog import Download, File, Spec

draw = np.random.default_rng(0)


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
    files = {name: File(name=name, size=len(data), sha256=digest(data)) for name, data in IDX.items()}
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


def tar(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


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
        Download(tuple(m.url for m in mirrors), f"{name}.gz", size=len(packed), sha256=digest(packed))
        for name, packed in ((name, gzip.compress(data, mtime=0)) for name, data in IDX.items())
    )
    return idx_spec(downloads=downloads)


def own_cache(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache; no variable of the environment points to data or to a proxy."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    monkeypatch.delenv("CLIPPEDGOSSIP_DATA", raising=False)
    for variable in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(variable, raising=False)
    return folder / "cache" / "clippedgossip" / "data"


@contextmanager
def two_mirrors() -> Iterator[list[Mirror]]:
    servers = [_serve() for _ in range(2)]
    yield [mirror for mirror, _ in servers]
    for _, server in servers:
        server.shutdown()
        server.server_close()
