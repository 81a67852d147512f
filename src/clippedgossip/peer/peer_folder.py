"""A peer's folder belongs to one process at a time, and nothing in it is deleted to start anew."""

import time
from collections.abc import Iterable
from pathlib import Path

from clippedgossip.errors import PeerError
from clippedgossip.files import Lock
from clippedgossip.peer.peer_config import CONFIG_FILE

_LOCK = "lock"
LAST_START = "last-start"
"""In the folder of a network: what the last `peer up` added to the name of the run."""


def peer_folders(folder: Path) -> list[Path]:
    """The peer's own folder, or those of a network's peers, by name."""
    if (folder / CONFIG_FILE).exists():
        return [folder]
    found = [path.parent for path in folder.glob(f"*/{CONFIG_FILE}")]
    if not found:
        what = f"no {CONFIG_FILE} in {folder} or its folders" if folder.is_dir() else f"{folder} is no folder"
        raise PeerError(f"{what}\n`clippedgossip peer init` makes a peer, `peer network` a whole network")
    return sorted(found, key=lambda path: (len(path.name), path.name))


def mark_of_last_start(net: Path) -> str | None:
    """What `peer up` added to the run's name when it started this network last; None if it never did."""
    try:
        return (net / LAST_START).read_text()
    except (OSError, UnicodeDecodeError):
        return None


def take(folder: Path) -> Lock:
    """The lock of the folder, held until it is closed or the process ends."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = Lock.take(folder / _LOCK)
    except OSError as error:
        raise PeerError(
            f"cannot write {error.filename or folder}: {error.strerror}\n{remedy(error)}"
        ) from None
    if lock is None:
        raise PeerError(
            f"a peer is running in {folder} already; nothing was changed\n"
            "stop that one first, or give this one a folder of its own"
        )
    return lock


def remedy(error: OSError) -> str:
    """What to do where a file of a peer cannot be written."""
    if isinstance(error, IsADirectoryError):
        return "remove that folder: a file belongs there"
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "remove the file that is where a folder belongs"
    return "make room on the disk, or make the folder writable"


def in_use(folder: Path) -> bool:
    return Lock.is_held(folder / _LOCK)


def set_aside(folder: Path, paths: Iterable[Path]) -> Path | None:
    """Moves what is there of `paths`, all inside `folder`, to `set-aside/TIME`. None: there was nothing."""
    found = [path for path in paths if path.exists()]
    if not found:
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    aside = folder / "set-aside" / f"{stamp}-{time.monotonic_ns() % 10**6:06d}"
    for path in found:
        there = aside / path.relative_to(folder)
        there.parent.mkdir(parents=True, exist_ok=True)
        path.rename(there)
    return aside
