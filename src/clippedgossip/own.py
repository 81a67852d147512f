"""Things of the user's own by `package.module:Name`: from beside a config, or from Python's path.

Their code has a digest. Code that was edited is other code, and never finds the result of the old one.
"""

import ast
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from clippedgossip.errors import ConfigError, UserError, unknown_name


@dataclass(frozen=True)
class Origin:
    """Where something of the user's own comes from."""

    file: Path
    code: str
    """Digest of the module's source and of the modules beside it that it imports."""
    modules: tuple[str, ...]
    """Those that the digest covers."""
    folder: Path | None
    """The folder beside a config that they lie in; None for installed ones."""


_LOADED: dict[str, Origin] = {}
"""By module, the code that was imported."""


def load(reference: str, folder: Path | None = None) -> tuple[Callable[..., Any], Origin]:
    """The object that `package.module:Name` names; the module lies in `folder` (the current one, if not said)
    or on Python's path. A module that was edited since it was imported is imported anew."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name or not all(part.isidentifier() for part in module_name.split(".")):
        raise ConfigError("cannot be found: write package.module:Name, such as mine:MyRule")
    folder = (Path() if folder is None else folder).resolve()
    beside = _beside(folder, module_name.partition(".")[0])
    sys.path.insert(0, str(folder))
    try:
        importlib.invalidate_caches()
        origin = _origin(module_name, folder if beside else None)
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
            known = [key for key, value in vars(found).items() if callable(value) and key[0] != "_"]
            raise ConfigError(f"is not in {origin.file}: {unknown_name('name', part, known)}")
        found = getattr(found, part)
    return found, origin


def copy(origin: Origin, to: Path) -> None:
    """Copy the modules that lie beside a config to another folder, for a config there."""
    for name in origin.modules if origin.folder is not None else ():
        file = _file(origin.folder, name) if origin.folder is not None else None
        if file is not None and origin.folder is not None:
            target = to / file.relative_to(origin.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())


def registered(group: str) -> dict[str, str]:
    """Names that installed packages registered, with what they name."""
    return {entry.name: entry.value.replace(" ", "") for entry in entry_points(group=group)}


def raised(error: BaseException) -> str:
    """What an exception says, and the line of the user's own code it comes from."""
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame.filename)]
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}, line {error.lineno}"
    else:
        where = f"{places[-1].filename}, line {places[-1].lineno}" if places else "its arguments"
    said = " ".join(str(error).split())
    return f"raised {type(error).__name__}: {said}\nsee {where}"


def blamed(error: BaseException) -> str | None:
    """Two lines about an error that came from the user's own code; None if it did not."""
    if isinstance(error, UserError):
        return None
    files = {str(origin.file) for origin in _LOADED.values()}
    frames = traceback.extract_tb(error.__traceback__)
    mine = next((frame for frame in reversed(frames) if frame.filename in files), None)
    if mine is None:
        return None
    said = " ".join(str(error).split())
    return f"{type(error).__name__}: {said}\nraised by {mine.filename}, line {mine.lineno}"


def _is_own(file: str) -> bool:
    package = Path(__file__).parent
    return not file.startswith("<") and package not in Path(file).parents


def _beside(folder: Path, top: str) -> bool:
    return (folder / f"{top}.py").is_file() or (folder / top).is_dir()


def _forget(origin: Origin, old: Origin | None, folder: Path | None) -> None:
    """Drop what was imported before it was edited, or from another folder."""
    for name in {*origin.modules, *(old.modules if old is not None else ())}:
        module = sys.modules.get(name)
        file = None if folder is None else _file(folder, name)
        elsewhere = file is not None and getattr(module, "__file__", None) != str(file)
        if module is not None and (old is not None or elsewhere):
            del sys.modules[name]


def _origin(module_name: str, folder: Path | None) -> Origin:
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
        where = Path().resolve() if folder is None else folder
        raise ConfigError(
            f"cannot be imported: there is no module {module_name!r}\n"
            f"put {module_name.replace('.', '/')}.py beside the config ({where}), or install it"
        )
    root = folder if folder is not None else file.parents[module_name.count(".") + (file.stem == "__init__")]
    sources = dict(_sources(root, module_name, everything=folder is not None))
    text = b"".join(f"{name} {len(code)}\n".encode() + code for name, code in sorted(sources.items()))
    code = sha256(text).hexdigest()[:16]
    return Origin(file=file, code=code, modules=tuple(sorted(sources)), folder=folder)


def _sources(root: Path, module_name: str, *, everything: bool) -> Iterator[tuple[str, bytes]]:
    """A module and all it imports from its package, with their source; or also from beside it."""
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
