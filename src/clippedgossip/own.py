"""Things of the user's own by `package.module:Name`: from beside a config, or from Python's path.

Their code has a digest. Code that was edited is other code, and never finds the result of the old one.
"""

import ast
import importlib
import importlib.util
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import FunctionType
from typing import Any

from clippedgossip.errors import ConfigError, UserError, unknown_name


@dataclass(frozen=True)
class Origin:
    """Where something of the user's own comes from."""

    file: Path
    code: str  # digest of the module's source and of the modules beside it that it imports
    modules: tuple[str, ...]  # those that the digest covers
    folder: Path | None  # the folder beside a config that they lie in; None for installed ones


HOLDERS = ("clippedgossip.rules.", "clippedgossip.attacks.", "clippedgossip.tasks.workers")
"""Modules whose objects hold things that may be the user's own."""

_LOADED: dict[str, Origin] = {}  # by module, the code that was imported
_READING: ContextVar[bool] = ContextVar("_READING", default=False)


@contextmanager
def only_reading() -> Iterator[None]:
    """Nothing of a user's own is loaded: a folder of results may be somebody else's, and names what it
    likes, such as `os:system`."""
    before = _READING.set(True)
    try:
        yield
    finally:
        _READING.reset(before)


def load(reference: str, folder: Path | None = None) -> tuple[Callable[..., Any], Origin]:
    """The object that `package.module:Name` names; the module lies in `folder` (the current one, if not said)
    or on Python's path. A module that was edited since it was imported is imported anew."""
    if _READING.get():
        raise ConfigError("is code of one's own; reading results runs none")
    module_name, _, name = reference.partition(":")
    if not module_name or not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError("cannot be found; write package.module:Name, such as mine:MyRule")
    folder = (Path() if folder is None else folder).resolve()
    top = module_name.partition(".")[0]
    beside = (folder / f"{top}.py").is_file() or (folder / top).is_dir()
    if beside and _taken(top):
        raise ConfigError(
            f"cannot be imported: {top!r} is also a module of Python or of an installed package\n"
            f"rename the one in {folder}"
        )
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        origin = _origin(module_name, folder if beside else None, wanted_in=folder)
        old = _LOADED.get(module_name)
        if old != origin:
            _forget(origin, old, folder if beside else None)
        module = importlib.import_module(module_name)
        _LOADED[module_name] = origin
    except ConfigError:
        raise
    except Exception as error:  # whatever the module does when it is imported
        raise ConfigError(f"cannot be imported: it {raised(error)}") from error
    finally:
        sys.path.remove(str(folder))
        if beside and str(folder) not in sys.path:
            sys.path.append(str(folder))  # for what it imports later
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            own = {key: value for key, value in vars(found).items() if callable(value) and key[0] != "_"}
            made = {key for key, value in own.items() if not hasattr(value, "__qualname__")}  # objects
            known = [key for key in own if key in made or own[key].__module__ == module_name]
            raise ConfigError(f"is not in {origin.file}: {unknown_name('name', part, known)}")
        found = getattr(found, part)
    return found, origin


def copy(origin: Origin, to: Path) -> None:
    """Copy the modules that lie beside a config to another folder, for a config there."""
    files = [] if origin.folder is None else [_file(origin.folder, name) for name in origin.modules]
    for file in filter(None, files):
        target = to / file.relative_to(str(origin.folder))
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())


def registered(group: str) -> dict[str, str]:
    """Names that installed packages registered, with what they name."""
    from importlib.metadata import entry_points  # a third of what --help would take

    return {entry.name: entry.value.replace(" ", "") for entry in entry_points(group=group)}


def raised(error: BaseException) -> str:
    """What an exception says, and the line of the user's own code it comes from."""
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        where = own_line(traceback.extract_tb(error.__traceback__)) or "its arguments"
    said = " ".join(str(error).split())
    return f"raised {type(error).__name__}: {said}\nsee {where}"


def blamed(error: BaseException) -> str | None:
    """Two lines about an error that the user's own code raised or caused by what it returned; else None."""
    if isinstance(error, UserError):
        return None
    files = {str(origin.file) for origin in _LOADED.values()}
    frames = list(traceback.walk_tb(error.__traceback__))[::-1]
    said = f"{type(error).__name__}: {' '.join(str(error).split())}"
    for frame, line in frames:
        if frame.f_code.co_filename in files:
            return f"{said}\nraised by {frame.f_code.co_filename}, line {line}"
    for depth, (frame, _) in enumerate(frames):
        used = _used(frame.f_locals, everything=depth == 0)
        if used is not None:
            name, file = used
            return f"{said}\nraised where {name} of {file} is used: see what it takes and what it returns"
    return None


def _used(variables: Mapping[str, object], *, everything: bool) -> tuple[str, Path] | None:
    """Name and file of an own thing whose method runs, or that a rule, an attack or the workers hold; where
    the error was raised, any variable counts."""
    files = {name: origin.file for origin in _LOADED.values() for name in origin.modules}
    this = variables.get("self")
    held = everything or type(this).__module__.startswith(HOLDERS)
    candidates = [this, *(variables.values() if everything else ())]
    for value in getattr(this, "__dict__", {}).values() if held else ():
        candidates += value if isinstance(value, tuple) else [value]
    for candidate in candidates:
        kind = candidate if isinstance(candidate, FunctionType) else type(candidate)
        if kind.__module__ in files:
            return kind.__name__, files[kind.__module__]
    return None


def own_line(frames: Iterable[traceback.FrameSummary]) -> str | None:
    """The innermost line that is neither of this package nor of PyTorch nor of Python itself."""
    places = [f"{frame.filename}, line {frame.lineno}" for frame in frames if _is_own(frame.filename)]
    return places[-1] if places else None


def _is_own(file: str) -> bool:
    others = [Path(__file__).parent]
    if torch := sys.modules.get("torch"):
        others += [Path(place) for place in torch.__path__]
    of_python = file.startswith(sysconfig.get_path("stdlib")) and "-packages" not in file  # may lie within
    return not file.startswith("<") and not of_python and not {*others} & {*Path(file).parents}


def _taken(top: str) -> bool:
    """Whether others import a module of this name, so that it must not be replaced by one beside a config."""
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    ours = any(top == name.partition(".")[0] for origin in _LOADED.values() for name in origin.modules)
    return top in sys.stdlib_module_names or (not ours and any(file.startswith(place) for place in installed))


def _forget(origin: Origin, old: Origin | None, folder: Path | None) -> None:
    """Drop what was imported before it was edited, or from another folder."""
    for name in {*origin.modules, *(old.modules if old is not None else ())}:
        module = sys.modules.get(name)
        file = None if folder is None else _file(folder, name)
        elsewhere = file is not None and getattr(module, "__file__", None) != str(file)
        if module is not None and (old is not None or elsewhere):
            del sys.modules[name]


def _origin(module_name: str, folder: Path | None, wanted_in: Path) -> Origin:
    """Without importing it: its file, and the digest of what it is made of."""
    try:
        spec = importlib.util.find_spec(module_name) if folder is None else None
    except ImportError:
        spec = None
    if folder is not None:
        file = _file(folder, module_name)
    else:
        file = None if spec is None or spec.origin is None else Path(spec.origin)
    if file is None or file.suffix != ".py":
        raise ConfigError(
            f"cannot be imported: there is no module {module_name!r}\n"
            f"put {module_name.replace('.', '/')}.py beside the config ({wanted_in}), or install it"
        )
    root = folder if folder is not None else file.parents[module_name.count(".") + (file.stem == "__init__")]
    if folder is None and not _is_own(str(file)):  # of this package: the rest of it has no digest either
        sources = {module_name: file.read_bytes()}
    else:
        sources = dict(_sources(root, module_name, everything=folder is not None))
    text = b"".join(f"{name} {len(code)}\n".encode() + code for name, code in sorted(sources.items()))
    code = sha256(text).hexdigest()[:16]
    return Origin(file=file, code=code, modules=tuple(sorted(sources)), folder=folder)


def _sources(root: Path, module_name: str, *, everything: bool) -> Iterator[tuple[str, bytes]]:
    """The source of a module and of the modules of its package that it imports; with `everything`, of those
    beside it as well."""
    top = module_name.partition(".")[0]
    waiting, seen = [module_name], set[str]()
    while waiting:
        name = waiting.pop()
        file = _file(root, name)
        if name in seen or file is None:
            continue
        seen.add(name)
        code = file.read_bytes()
        yield name, code
        parents = name.split(".")[:-1]
        waiting += [".".join(parents[: i + 1]) for i in range(len(parents))]
        package = name if file.stem == "__init__" else ".".join(parents)
        for found in _imports(code, package):
            if everything or found.partition(".")[0] == top:
                waiting.append(found)


def _imports(code: bytes, package: str) -> Iterator[str]:
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError):  # importing it says what is wrong
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            above = parts[: len(parts) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _file(root: Path, module_name: str) -> Path | None:
    path = root.joinpath(*module_name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)
