"""Files on disk: atomic writes, locks between processes, and JSON that has one text for one value."""

import dataclasses
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from clippedgossip.errors import NO_TEXT, FormatError, RunError, UserError

if TYPE_CHECKING:
    from torch import Tensor

try:
    import fcntl
except ModuleNotFoundError:
    raise UserError(
        "Windows is not supported: runs and data are locked with fcntl, which it does not have\n"
        "use Linux, macOS or the Windows Subsystem for Linux"
    ) from None


# --- atomic writes ---------------------------------------------------------------------------------------


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`: fsynced and renamed over it, or, on any error, removed. What a link
    names is replaced, not the link. A device or a pipe is written to as it is."""
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
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def leftovers(path: Path) -> Iterator[Path]:
    """Temporary files of `path` whose writer was killed (or is still writing)."""
    return path.parent.glob(f".{path.name}.*.tmp")


def refuse_newer(found: object, known: str, path: Path) -> None:
    """Refuse a file whose format this version does not know. A file that names none has the first."""
    if str(found) not in map(str, range(1, int(known) + 1)):
        raise FormatError(
            f"{path} has format {found}; this version reads 1 to {known}\nupgrade clippedgossip"
        )


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write the whole of `content` or nothing."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode(errors=NO_TEXT) if isinstance(content, str) else content)


@contextmanager
def writing(path: Path, fix: str) -> Iterator[None]:
    """Turn an error of the disk into one for the user, with the path and the fix."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}\n{fix}") from error


def write(path: Path | str, content: str) -> Path:
    """Write what a user asked for, whole or not at all, in a folder that need not exist."""
    path = Path(path)
    if path.is_dir():
        raise RunError(f"{path} is a folder; give a file in it with --out, such as {path / 'report.html'}")
    with writing(path, "give another path with --out, or make room"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content)
    return path


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """As safetensors, into this very file, with the metadata in order. That library's `save_file` writes
    another one and renames it: a killed process leaves one behind, and only its owner may read it."""
    from safetensors.torch import save  # imports PyTorch
    from torch import uint8

    empty = save({name: tensor.new_empty(0) for name, tensor in tensors.items()}, dict(metadata))
    header = json.loads(empty[8 : 8 + int.from_bytes(empty[:8], "little")])  # the names of dtypes, the order
    header.pop("__metadata__", None)
    end = 0
    for name, entry in header.items():
        start, end = end, end + tensors[name].nbytes
        entry |= {"shape": list(tensors[name].shape), "data_offsets": [start, end]}
    known = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    text = json.dumps(known | header, ensure_ascii=False, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // 8) * 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in header:
            file.write(tensors[name].reshape(-1).view(uint8).numpy().data)


def sync_folder(folder: Path) -> None:
    """Make a rename in `folder` outlive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- locks -----------------------------------------------------------------------------------------------


class Lock:
    """A lock on a file, held until it is closed. The operating system frees it when its process ends. The
    file stays. If it were removed, two processes could lock two files of one name."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    @classmethod
    def take(cls, path: Path) -> Self | None:
        """The lock on `path`, or None while another holds it."""
        for _ in range(5):  # `is_held` takes a shared lock for an instant: try again
            with suppress(BlockingIOError):
                return cls.wait(path, fcntl.LOCK_NB)
            time.sleep(0.02)
        return None

    @classmethod
    def wait(cls, path: Path, how: int = 0) -> Self:
        """The lock on `path`, as soon as no other process holds it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | how)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(descriptor)

    @staticmethod
    def is_held(path: Path) -> bool:
        """Whether some process holds the lock on `path` now."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# --- JSON ------------------------------------------------------------------------------------------------


def to_line(content: Mapping[str, Any]) -> str:
    """JSON on one line. Floats have their shortest exact form; inf and nan become null."""
    return _json(content, lambda value: None)


def to_text(content: Mapping[str, Any]) -> str:
    """JSON for a whole file, indented, with the same numbers as `to_line`."""
    return _json(content, lambda value: None, indent=1)


def canonical(config: Mapping[str, Any]) -> str:
    """The one text of a config: keys are sorted; inf and nan are strings, so that they differ from null."""
    return _json(config, str, sort_keys=True, indent=1)


def _json(content: Any, non_finite: Callable[[float], str | None], **layout: Any) -> str:
    return json.dumps(_plain(content, non_finite), ensure_ascii=False, allow_nan=False, **layout) + "\n"


def _plain(value: Any, non_finite: Callable[[float], str | None]) -> Any:
    """The same value in JSON's types: tuples become lists, keys strings, tensors and arrays numbers."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return value.encode(errors=NO_TEXT).decode()
        case float():
            return float(value) if math.isfinite(value) else non_finite(float(value))
        case Path():
            return _plain(value.as_posix(), non_finite)
        case Mapping():
            return {_plain(str(key), non_finite): _plain(item, non_finite) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, non_finite) for item in value]
        case set() | frozenset():
            return [_plain(item, non_finite) for item in sorted(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [entry.name for entry in dataclasses.fields(value)]
        return {name: _plain(getattr(value, name), non_finite) for name in names}
    if hasattr(value, "tolist"):  # numpy and torch, scalars too
        return _plain(value.tolist(), non_finite)
    raise RunError(
        f"{value!r} of type {type(value).__name__} cannot be written as JSON\n"
        "give numbers, text, lists and mappings of these"
    )
