"""Files inside a wheel, tarball or Debian package. They are read in memory; nothing is installed or run."""

import io
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from clippedgossip.errors import DataError

LARGEST = 1 << 26  # bytes of the largest member that is read


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Name (without folders) and content of every wanted file in an archive."""
    try:
        if zipfile.is_zipfile(path):
            yield from _zip(path, wanted)
        elif path.read_bytes()[:8] == b"!<arch>\n":
            yield from _tar(io.BytesIO(_debian_data(path.read_bytes())), wanted)
        else:
            with path.open("rb") as stream:
                yield from _tar(stream, wanted)
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DataError(f"{path.name} cannot be unpacked ({error})") from error


def _zip(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = PurePosixPath(entry.filename).name
            if wanted(name) and entry.file_size <= LARGEST:
                yield name, archive.read(entry)


def _tar(stream: io.BufferedIOBase, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=stream) as archive:
        for entry in archive:
            name = PurePosixPath(entry.name).name
            if entry.isfile() and wanted(name) and entry.size <= LARGEST:
                content = archive.extractfile(entry)
                assert content is not None
                yield name, content.read()


def _debian_data(data: bytes) -> bytes:
    """The `data.tar.*` of an ar archive: 60-byte headers, contents padded to even length."""
    at = 8
    while at + 60 <= len(data):
        name = data[at : at + 16].decode("ascii", "replace").strip().rstrip("/")
        size = int(data[at + 48 : at + 58])
        if name.startswith("data.tar"):
            return data[at + 60 : at + 60 + size]
        at += 60 + size + size % 2
    raise DataError("not a Debian package: it has no data.tar")
