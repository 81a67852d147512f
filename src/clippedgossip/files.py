"""Files that are either the old one or the new one, whole, at every moment."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: fsynced and renamed over it, or, on any error, removed.

    What a link names is replaced, not the link. A device or a pipe is written to as it is.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        if path.exists():
            temporary.chmod(path.stat().st_mode & 0o777)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def leftovers(path: Path) -> Iterator[Path]:
    """Temporary files of `path` whose writer was killed (or is still writing)."""
    return path.parent.glob(f".{path.name}.*.tmp")


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write the whole of `content` or nothing."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
