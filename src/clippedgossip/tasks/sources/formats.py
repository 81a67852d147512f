"""The original file formats: idx (MNIST, Fashion-MNIST) and the CIFAR-10 batches, binary or pickled."""

import io
import pickle
import zlib
from hashlib import sha256
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from clippedgossip.errors import DataError
from clippedgossip.tasks.sources.catalog import File

CIFAR_SHAPE = (3, 32, 32)


def decode(file: File, data: bytes) -> bytes:
    """The plain form of a file that may be gzipped or pickled, checked against its pinned digest."""
    if data[:2] == b"\x1f\x8b":
        data = _gunzip(file, data)
    if file.pickled and sha256(data).hexdigest() == file.pickled:
        data = _unpickle_batch(data)
    found = sha256(data).hexdigest()
    if found != file.sha256:
        raise DataError(
            f"{file.name}: wrong digest {found[:12]}… of {len(data)} bytes, "
            f"expected {file.sha256[:12]}… of {file.size} bytes"
        )
    return data


def read_idx(data: bytes, name: str) -> NDArray[np.uint8]:
    """An array of unsigned bytes: 0, 0, 8, number of dimensions, the dimensions big-endian, the bytes."""
    rank = data[3] if len(data) > 3 else 0
    start = 4 + 4 * rank
    shape = tuple(int(size) for size in np.frombuffer(data[4:start], ">u4"))
    if data[:3] != b"\0\0\x08" or len(data) != start + prod(shape):
        raise DataError(f"{name} is not an idx file of unsigned bytes; fetch it again")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def read_cifar(data: bytes, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images (n, 3, 32, 32) and labels of a binary batch, whose rows are a label byte and three planes."""
    row = 1 + prod(CIFAR_SHAPE)
    if len(data) % row:
        raise DataError(f"{name} has {len(data)} bytes, not a multiple of {row}; fetch it again")
    rows = np.frombuffer(data, np.uint8).reshape(-1, row)
    return rows[:, 1:].reshape(-1, *CIFAR_SHAPE), rows[:, 0]


def _gunzip(file: File, data: bytes) -> bytes:
    # The bound stops a gzip bomb. The pickled form is at most a megabyte larger than the plain one.
    try:
        return zlib.decompressobj(wbits=31).decompress(data, file.size + (1 << 20))
    except zlib.error as error:
        raise DataError(f"{file.name}: damaged gzip file ({error})") from error


class _Array:
    """Replaces numpy's classes while unpickling, so that no code named in the pickle is ever called."""

    shape: tuple[int, ...] = ()
    data = b""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if len(state) == 5:
            _, self.shape, _, _, self.data = state


class _BatchUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
        }:
            return _Array
        raise DataError(f"a CIFAR-10 batch asks for {module}.{name}, which no CIFAR-10 batch needs")


def _unpickle_batch(data: bytes) -> bytes:
    """A batch of the Python edition, in the layout of the binary edition. Its digest was checked before."""
    batch = _BatchUnpickler(io.BytesIO(data), encoding="bytes").load()
    pixels = np.frombuffer(batch[b"data"].data, np.uint8).reshape(batch[b"data"].shape)
    labels = np.array(batch[b"labels"], np.uint8)
    return np.concatenate([labels[:, None], pixels], axis=1).tobytes()
