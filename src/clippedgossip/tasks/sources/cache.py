"""The folder for fetched data, with its lock, its atomic writes and their errors."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clippedgossip.errors import DataError
from clippedgossip.files import Lock, write_atomic


def cache_dir() -> Path:
    """The folder for data sets: in XDG_CACHE_HOME if that is set, else in the system's cache folder."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        base = Path(chosen)
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path.home() / ".cache"
    return base / "clippedgossip" / "data"


def is_disk_full(error: BaseException | None) -> bool:
    return isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT}


def write_error(error: OSError, folder: Path, size: int) -> DataError:
    """The error for a user when a write fails."""
    if is_disk_full(error):
        return DataError(
            f"disk full: {size} bytes do not fit in {folder}; what was fetched so far is kept\n"
            "free some space, or set XDG_CACHE_HOME to a folder on another disk, and fetch again"
        )
    return DataError(f"cannot write to {folder}: {error.strerror}; set XDG_CACHE_HOME to a folder you own")


def check_space(folder: Path, size: int) -> None:
    """Refuse a file that does not fit before its first byte is written."""
    if shutil.disk_usage(folder).free < size:
        raise write_error(OSError(errno.ENOSPC, "disk full"), folder, size) from OSError(errno.ENOSPC, "")


def make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(error, folder, 0) from error
    return folder


def write_whole(path: Path, data: bytes) -> None:
    """Write the whole file or nothing. If it fails, the error tells the user what to do."""
    try:
        write_atomic(path, data)
    except OSError as error:
        raise write_error(error, path.parent, len(data)) from error


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One process at a time fetches into a folder. Files that a killed one left half written are removed."""
    try:
        lock = Lock.wait(folder / ".lock")
    except OSError as error:
        raise write_error(error, folder, 0) from error
    with lock:
        for leftover in filter(Path.is_file, folder.glob(".*.tmp")):
            leftover.unlink()
        yield
