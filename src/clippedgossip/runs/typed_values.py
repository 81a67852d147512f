"""From what a file says to typed values; nothing unknown, missing or mistyped is let through."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from clippedgossip.errors import ConfigError, UserError, unknown_name

Path = tuple[str, ...]


class KeyProblem(ConfigError):
    """What is wrong with one key; whoever knows the file adds the line."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path


def known_keys(raw: Mapping[str, Any], known: Sequence[str], path: Path) -> None:
    """Refuse every key that nobody reads."""
    for key in raw:
        if key not in known:
            where = f"key in [{'.'.join(path)}]:" if path else "section or key"
            raise KeyProblem((*path, str(key)), unknown_name(where, str(key), known))


def table(raw: Any, path: Path, *, example: str = "") -> Mapping[str, Any]:
    """A section; text stands for one that has only a name."""
    if isinstance(raw, str):
        return {"name": raw}
    if not isinstance(raw, Mapping):
        fix = f", such as {example}" if example else ""
        raise KeyProblem(path, f"{_dotted(path)} is {raw!r}; it must be a section{fix}")
    return raw


def value(hint: Any, raw: Any, path: Path) -> Any:
    """`raw` in the type that `hint` asks for."""
    found, fits = _try(hint, raw)
    if fits:
        return found
    if get_origin(hint) is Literal and isinstance(raw, str):
        raise KeyProblem(path, unknown_name(_dotted(path), raw, map(str, get_args(hint))))
    raise KeyProblem(path, f"{_dotted(path)} is {_shown(raw)}; it must be {describe(hint)}")


def section(path: Path, error: UserError) -> KeyProblem:
    """The error of a section that checked itself, with its name in front."""
    if isinstance(error, KeyProblem):
        return error
    return KeyProblem(path, f"[{'.'.join(path)}] {error}" if path else str(error))


def describe(hint: Any) -> str:
    """The type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(kind) for kind in arguments if kind is not types.NoneType)
    if origin is tuple:
        return f"a list, each entry {describe(arguments[0])}"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[hint]


def _try(hint: Any, raw: Any) -> tuple[Any, bool]:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return raw, raw in arguments
    if origin in (Union, types.UnionType):
        tries = [_try(kind, raw) for kind in arguments]
        return next((found for found in tries if found[1]), (None, False))
    if origin is tuple:
        entries = [_try(arguments[0], entry) for entry in raw] if isinstance(raw, list | tuple) else []
        fits = isinstance(raw, list | tuple) and all(fit for _, fit in entries)
        return tuple(entry for entry, _ in entries), fits
    if hint is float and isinstance(raw, int) and not isinstance(raw, bool):
        return float(raw), True
    return raw, type(raw) is hint or (hint is types.NoneType and raw is None)


def _dotted(path: Path) -> str:
    return ".".join(path)


def _shown(raw: Any) -> str:
    text = {True: "true", False: "false"}[raw] if isinstance(raw, bool) else repr(raw)
    return text if len(text) <= 60 else text[:57] + "..."
