"""A sweep: one config, and lists of values for some of its keys."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from clippedgossip.errors import ConfigError
from clippedgossip.files import canonical
from clippedgossip.runs.config import RunConfig, check_effects, from_raw, override, read, read_overrides


def load_sweep(path: Path | str, overrides: Sequence[str] = ()) -> list[RunConfig]:
    """The runs of a sweep file, each once, in order.

    The file is a config with a [grid]: a list of values for every key to vary, all combinations of which are
    run. `base` names another config to start from. Each [[also]] is one more run: the config with these keys.
    """
    path = Path(path)
    text, raw = read(path)
    grid, also = raw.pop("grid", {}), raw.pop("also", [])
    raw = _on_base(raw, path)
    given = read_overrides(overrides)  # what cannot be read is not an error of one run
    if not isinstance(grid, dict) or not isinstance(also, list):
        raise ConfigError(
            f"{path}: [grid] is no section, or [[also]] no list of sections\n"
            "write [grid] with seed = [0, 1, 2], and [[also]] with seed = 3"
        )
    axes = dict(_leaves(grid))
    for key, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ConfigError(f"{path}: grid.{key} is {values!r}; it must be a list of values to try")
    points = [dict(zip(axes, point, strict=True)) for point in product(*axes.values())] if axes else []
    points += [dict(_leaves(extra)) for extra in also]
    if not points:
        raise ConfigError(f'{path} has no [grid]; add one, such as seed = [0, 1, 2], or use "run"')
    check_effects(given, [override(raw, overrides, point) for point in points], f"the grid of {path}")
    configs: dict[str, RunConfig] = {}
    for point in points:
        try:
            config = from_raw(raw, source=path, text=text, overrides=overrides, point=point)
        except ConfigError as error:
            said = ", ".join(f"{key} = {value!r}" for key, value in point.items())
            first, *rest = str(error).split("\n")
            raise ConfigError("\n".join([f"{first} (in the run with {said})", *rest])) from error
        configs.setdefault(canonical(config.to_mapping()), config)
    return list(configs.values())


def shard(configs: Sequence[RunConfig], part: str) -> list[RunConfig]:
    """The runs of part "3/8", counted from 1; all parts together are all runs."""
    number, slash, count = part.partition("/")
    if not (slash and number.isdigit() and count.isdigit() and 1 <= int(number) <= int(count)):
        raise ConfigError(f"shard is {part!r}; write 3/8 for the third of eight parts")
    return list(configs[int(number) - 1 :: int(count)])


def _on_base(raw: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The keys of this file over those of the config it starts from."""
    own = dict(raw)
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise ConfigError(f"{path}: base is {base!r}; it must name a config file")
    _, merged = read(path.parent / base)
    for key, value in own.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict) and "name" not in value
        merged[key] = {**merged[key], **value} if both else value
    return merged


def _leaves(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys; a section that has a name is a value."""
    for key, value in table.items():
        if isinstance(value, dict) and "name" not in value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
