"""Records and configs as JSON text, the same bytes for the same values."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from clippedgossip.errors import RunError
from clippedgossip.records.round import Round


def to_line(record: Mapping[str, Any] | Round) -> str:
    """One record on one line: floats in their shortest exact form, what is not finite as null."""
    content = record.to_json() if isinstance(record, Round) else record
    return json.dumps(_plain(content, _null), ensure_ascii=False, allow_nan=False) + "\n"


def to_text(content: Mapping[str, Any]) -> str:
    """The same for a whole file, indented."""
    return json.dumps(_plain(content, _null), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def canonical(config: Mapping[str, Any]) -> str:
    """The one text of a config: keys sorted; inf and nan by name, so that they differ from none."""
    return (
        json.dumps(_plain(config, str), sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    )


def _null(value: float) -> None:
    return None


def _plain(value: Any, non_finite: Callable[[float], str | None]) -> Any:
    """Only what JSON knows: tuples become lists, keys strings, tensors and arrays numbers."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return float(value) if math.isfinite(value) else non_finite(float(value))
        case Path():
            return value.as_posix()
        case Mapping():
            return {str(key): _plain(item, non_finite) for key, item in value.items()}
        case list() | tuple():
            return [_plain(item, non_finite) for item in value]
        case set() | frozenset():
            return [_plain(item, non_finite) for item in sorted(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            entry.name: _plain(getattr(value, entry.name), non_finite) for entry in dataclasses.fields(value)
        }
    if hasattr(value, "tolist"):  # numpy and torch, scalars too
        return _plain(value.tolist(), non_finite)
    raise RunError(f"{value!r} of type {type(value).__name__} cannot be written as JSON")
