"""Configs from files, with changes from the command line; every error names the line."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from clippedgossip.decode import KeyProblem, place, put
from clippedgossip.errors import ConfigError, UserError
from clippedgossip.runs.config import RunConfig


def load_config(
    path: Path | str, overrides: Sequence[str] = (), *, typed: Mapping[str, str] | None = None
) -> RunConfig:
    """A TOML file (or a run's config.json), with overrides such as "training.lr=0.1"."""
    path = Path(path)
    text, raw = read(path)
    return from_raw(raw, source=path, text=text, overrides=overrides, typed=typed)


def from_raw(
    raw: Mapping[str, Any],
    *,
    source: Path,
    text: str = "",
    overrides: Sequence[str] = (),
    typed: Mapping[str, str] | None = None,
    point: Mapping[str, Any] | None = None,
) -> RunConfig:
    """The config after its overrides, and after those the dotted keys of `point`.

    What is wrong with it is said with the file's line, or the override that brought it about.

    `typed` says how an override was typed where that was otherwise, such as `--nodes 7`.
    """

    def after(count: int) -> RunConfig:
        changed = override(raw, overrides[:count])
        for key, value in (point or {}).items():
            put(changed, key, deepcopy(value))
        return RunConfig.from_mapping(changed, folder=source.parent)

    try:
        return after(len(overrides))
    except KeyProblem as problem:
        guilty = next(count for count in range(len(overrides) + 1) if _says(after, count) == str(problem))
        where = place(problem.path, str(source), text)
        if guilty:
            entry = overrides[guilty - 1]
            where = (typed or {}).get(entry, f"override {entry!r}") + _keeps_others(entry, problem)
        raise ConfigError(f"{where}: {problem}") from problem


def _keeps_others(entry: str, problem: KeyProblem) -> str:
    """What one who names another network, rule, … may not have thought of."""
    section, dot, value = entry.partition(".name=")
    if not dot or "unknown parameter of network" not in str(problem):
        return ""
    other = f'{section}={{name="{_value(value)}"}}'
    return f" keeps the other keys of [{section}], {other} does not"


def _says(after: Callable[[int], RunConfig], count: int) -> str | None:
    """What is wrong after so many overrides."""
    try:
        after(count)
    except UserError as error:
        return str(error)
    return None


def read(path: Path) -> tuple[str, dict[str, Any]]:
    """The text and its content."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark in front
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


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
