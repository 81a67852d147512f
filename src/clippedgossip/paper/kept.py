"""Files of results, which people keep, edit and cut off: nothing unknown, missing or mistyped gets in."""

import dataclasses
import json
import math
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from clippedgossip.decode import from_json
from clippedgossip.errors import RunError

T = TypeVar("T")
WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a finite number",
    str: "text",
    types.NoneType: "null",
}


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file of results."""
    try:
        raw: dict[str, Any] = from_json(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict):
            raise ValueError(f"it is {_shown(raw)}; it must be a table")
        raw["format"]
        return raw
    except (OSError, ValueError, KeyError) as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> RunError:
    """The error of a file that cannot be read, or whose content cannot be right."""
    missing = f"it has no {error}" if isinstance(error, KeyError) else str(error).splitlines()[0]
    return RunError(f"cannot read results from {path}: {missing}\ngive a results.json of reproduce")


def checked(kind: type[T], raw: Any, where: str) -> T:
    """A dataclass from its table. Raises ValueError, which says what is wrong where."""
    if not isinstance(raw, Mapping):
        raise ValueError(f"{where} is {_shown(raw)}; it must be a table")
    hints = get_type_hints(kind)
    fields = {entry.name: entry for entry in dataclasses.fields(kind)}  # type: ignore[arg-type]  # T is a dataclass
    for name in raw:
        if name not in fields:
            raise ValueError(f"{where} has an unknown entry {name!r}")
    for name, entry in fields.items():
        if name not in raw and entry.default is entry.default_factory is dataclasses.MISSING:
            raise ValueError(f"{where} has no {name}")
    return kind(**{name: value(hints[name], held, f"{where}.{name}") for name, held in raw.items()})


def value(hint: Any, raw: Any, where: str) -> Any:
    """`raw`, if it has the type that `hint` asks for; whole numbers are numbers too."""
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        try:
            json.dumps(raw, allow_nan=False)
        except ValueError:
            raise ValueError(f"{where} is {_shown(raw)}; its numbers must be finite") from None
        return raw
    if dataclasses.is_dataclass(hint):
        return checked(hint, raw, where)  # type: ignore[arg-type]  # it is a class
    if origin in (list, Sequence, tuple):
        if not isinstance(raw, list):
            raise ValueError(f"{where} is {_shown(raw)}; it must be a list")
        return [value(inner[0], part, f"{where}[{i}]") for i, part in enumerate(raw)]
    if origin in (dict, Mapping):
        if not isinstance(raw, Mapping):
            raise ValueError(f"{where} is {_shown(raw)}; it must be a table")
        return {name: value(inner[1], part, f"{where}.{name}") for name, part in raw.items()}
    allowed = inner if origin in (Union, types.UnionType) else (hint,)
    if not any(_is(kind, raw) for kind in allowed):
        words = " or ".join(WORDS[kind] for kind in allowed)
        raise ValueError(f"{where} is {_shown(raw)}; it must be {words}")
    return raw


def _is(kind: Any, raw: Any) -> bool:
    if kind is float:
        try:
            return type(raw) in (int, float) and math.isfinite(raw)
        except OverflowError:
            return False
    return type(raw) is kind


def _shown(raw: Any) -> str:
    try:
        text = json.dumps(raw, ensure_ascii=False)
    except ValueError:  # a number of more digits than Python writes
        text = "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
