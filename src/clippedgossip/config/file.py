"""Configs from files, with changes from the command line; every error names the line."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from clippedgossip.config.decode import KeyProblem
from clippedgossip.config.sections import RunConfig
from clippedgossip.errors import ConfigError


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """A TOML file (or a run's config.json), with overrides such as "training.lr=0.1"."""
    path = Path(path)
    text, raw = read(path)
    return from_raw(override(raw, overrides), source=path, text=text, overrides=overrides)


def from_raw(
    raw: Mapping[str, Any],
    *,
    source: Path,
    text: str = "",
    overrides: Sequence[str] = (),
    typed: Mapping[str, str] | None = None,
) -> RunConfig:
    """The config; what is wrong with it is said with the file's line, or the override it came from.

    `typed` says how an override was typed where that was otherwise, such as `--nodes 7`.
    """
    try:
        return RunConfig.from_mapping(raw, folder=source.parent)
    except KeyProblem as problem:
        raise ConfigError(
            f"{_where(problem.path, source, text, overrides, typed or {})}: {problem}"
        ) from problem


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text and its content."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {reason}\ngive a .toml file; examples/ has some") from error
    try:
        raw = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except ValueError as error:  # both decoders' errors, with line and column
        raise ConfigError(f"{path} cannot be understood: {error}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path} should hold one JSON object")
    return text, raw


def override(raw: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """`key=value`, the value as TOML writes it; what is no TOML is text."""
    changed = deepcopy(dict(raw))
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", key.strip()):
            raise ConfigError(f"cannot read the override {text!r}; write key=value, such as training.lr=0.1")
        put(changed, key.strip(), _value(value.strip()))
    return changed


def put(raw: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key; sections on the way appear as needed."""
    *above, last = key.split(".")
    for name in above:
        inner = raw.get(name, {})
        if isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot set {key}: {name} is {inner!r} and not a section")
        raw[name] = inner
        raw = inner
    raw[last] = value


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _where(
    path: Sequence[str], source: Path, text: str, overrides: Sequence[str], typed: Mapping[str, str]
) -> str:
    for entry in overrides:
        key = entry.partition("=")[0].strip().split(".")
        if all(mine == theirs for mine, theirs in zip(key, path, strict=False)) and path:
            return typed.get(entry, f"override {entry!r}")
    lines = dict(_lines(text))
    for length in range(len(path), 0, -1):
        if tuple(path[:length]) in lines:
            return f"{source}, line {lines[tuple(path[:length])]}"
    return str(source)


_PART = r"(?:[\w-]+|\"[^\"]*\"|'[^']*')"
_KEY = rf"{_PART}(?:\s*\.\s*{_PART})*"


def _lines(text: str) -> Iterator[tuple[tuple[str, ...], int]]:
    """Every key and section with its line. Good enough for a message: multi-line text could mislead it."""
    header: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.match(rf"\s*\[\[?\s*({_KEY})\s*\]", line):
            header = _parts(found[1])
            yield header, number
        elif found := re.match(rf"\s*({_KEY})\s*=", line):
            yield (*header, *_parts(found[1])), number


def _parts(key: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in re.findall(_PART, key))
