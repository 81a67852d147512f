"""Runs that differ only in their seed are one group. What else differs between runs names the groups."""

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from clippedgossip.decode import short
from clippedgossip.errors import RunError
from clippedgossip.files import canonical
from clippedgossip.records import Round, RunDirectory
from clippedgossip.report.palette import RULE_STYLES, rule_of

Flat = dict[str, Any]

_ALWAYS = ("network", "attack")
"""Named in every title. Other entries are named only where these are the same for several settings."""
_NAMES = ("name", "kind", "type", "file")


@dataclass(frozen=True)
class Run:
    """A run read from disk."""

    directory: RunDirectory
    config: Mapping[str, Any]

    @cached_property
    def rounds(self) -> list[Round]:
        """Sorted by round. If a restarted peer wrote a round twice, the later record counts."""
        return [r for _, r in sorted({r.round: r for r in self.directory.rounds()}.items())]

    @cached_property
    def diverged(self) -> bool:
        """Whether its models became NaN or infinite, so that it ended before its last round."""
        return self.directory.diverged is not None

    @property
    def peer(self) -> str | None:
        """The peer that wrote these records. None for a simulated run."""
        return self.rounds[0].peer


@dataclass(frozen=True)
class Group:
    """One setting, over its seeds."""

    setting: str
    rule: str
    runs: Sequence[Run]
    network: str = ""


def find(paths: Sequence[Path]) -> tuple[list[Run], list[Path]]:
    """All runs at or below `paths`, each once, and the folders of runs without records.

    A run of the simulator may lie in two folders, such as that of `run` and that of `sweep`. Its longest
    copy counts.
    """
    runs: dict[Hashable, Run] = {}
    empty: list[Path] = []
    for path in paths:
        below = sorted(file.parent for file in path.rglob("config.json")) if path.is_dir() else []
        inside = [folder for folder in below if folder != path]
        if path in below:
            found = [RunDirectory(path)]
        else:
            found = [RunDirectory(folder) for folder in inside] or [RunDirectory.existing(path)]
        for run in found:
            if next(run.records(), None) is None:
                empty.append(run.path)
                continue
            read = Run(run, run.config)
            key = (canonical(read.config), run.path.resolve() if read.peer is not None else None)
            if key not in runs or read.rounds[-1].round > runs[key].rounds[-1].round:
                runs[key] = read
    if not runs:
        failed = [(folder, why) for folder in empty if (why := RunDirectory(folder).failure)]
        if failed:
            raise RunError(f"{failed[0][0]} failed before its first record\n{failed[0][1]}")
        raise RunError(f"no records yet in {', '.join(map(str, paths))}\nwait for a first round to end")
    return list(runs.values()), empty


def group(runs: Sequence[Run]) -> list[Group]:
    """Sorted by setting, then in the order of the palette: the rules of the paper first."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(canonical(_seedless(run.config)), []).append(run)
    configs = [_seedless(members[0].config) for members in found.values()]
    others = sorted({key for config in configs for key in config} - {"rule", *_ALWAYS})
    groups: list[Group] = []
    firsts = [[_label(key, config, configs, always=True) for key in _ALWAYS] for config in configs]
    for config, first, members in zip(configs, firsts, found.values(), strict=True):
        alike = [other for other, its in zip(configs, firsts, strict=True) if its == first]
        parts = [*first, *(_label(key, config, alike, always=False) for key in others)]
        setting = ", ".join(part for part in parts if part) or "all runs"
        rule = _label("rule", config, configs, always=True) or "run"
        if any((entry.setting, entry.rule) == (setting, rule) for entry in groups):
            rule += f" ({members[0].directory.path.name})"
        groups.append(Group(setting, rule, members, _label("network", config, configs, always=True)))
    return sorted(groups, key=lambda entry: (entry.setting, _rule_order(entry.rule), entry.rule))


def differences(groups: Sequence[Group]) -> dict[str, dict[str, str]]:
    """{setting: {field: value}} of what differs between settings, except rule, network and attack."""
    flats = {
        entry.setting: {
            field: _text(value)
            for field, value in flattened(_seedless(entry.runs[0].config)).items()
            if field.partition(".")[0] not in ("rule", *_ALWAYS)
        }
        for entry in groups
    }
    fields = sorted({field for flat in flats.values() for field in flat})
    varying = [field for field in fields if len({flat.get(field) for flat in flats.values()}) > 1]
    return {setting: {field: flat.get(field, "–") for field in varying} for setting, flat in flats.items()}


def labels(key: str, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The words for one entry of each config, such as its rule: the name, and the parameters that differ."""
    return [_label(key, config, configs, always=True) for config in configs]


def seed_of(config: Mapping[str, Any]) -> str:
    """The seed of a config, as text, and other seeds if they have another value."""
    seeds = {key: _text(value) for key, value in flattened(config).items() if _is_seed(key)}
    first = seeds.pop("seed", "–")
    return " with ".join([first, *(f"{key} {value}" for key, value in seeds.items() if value != first)])


def _label(key: str, config: Mapping[str, Any], configs: Sequence[Mapping[str, Any]], *, always: bool) -> str:
    """The text for one entry of a config: its name, and the parameters in which those of this name differ."""
    values = [flattened({key: other[key]}) if key in other else {} for other in configs]
    mine = flattened({key: config[key]}) if key in config else {}
    name = _name(key, mine)
    namesakes = [value for value in values if _name(key, value) == name]
    varying = [
        field
        for field in dict.fromkeys(field for value in namesakes for field in value)
        if len({_text(value.get(field)) for value in namesakes}) > 1
    ]
    parameters = [
        f"{_short(field)}={_text(mine[field])}"
        for field in varying
        if field in mine
        and field.rpartition(".")[2] != "code"  # a digest tells a reader nothing
        and not (_is_name(field, key) and isinstance(mine[field], str))
    ]
    names_differ = len({_name(key, value) for value in values}) > 1
    if name in (None, "none") and key in _ALWAYS and (mine or names_differ):
        name = f"no {key}"
    shown = [name] if name is not None and (always or names_differ or parameters) else []
    return " ".join([*shown, *parameters])


def _name(key: str, flat: Flat) -> str | None:
    """`gossip` of {"rule": "gossip"} and of {"rule": {"name": "gossip"}}; `bucketing(median)` of a rule of a
    rule; the class of a user's own, `Mine` of "my_module:Mine"."""
    fields = [key, *(f"{key}.{name}" for name in _NAMES)]
    own = next((flat[field] for field in fields if isinstance(flat.get(field), str)), None)
    if own is None:
        return None
    inner = _name(f"{key}.{key.rpartition('.')[2]}", flat)
    own = short(str(own))
    return own if inner is None else f"{own}({inner})"


def _is_name(field: str, key: str) -> bool:
    """Whether a field holds the name of an entry, or of an entry of the same kind inside it."""
    parts = field.split(".")
    return set(parts[:-1] if parts[-1] in _NAMES else parts) == {key}


def _short(field: str) -> str:
    """`radius` of rule.radius."""
    return next(part for part in reversed(field.split(".")) if part not in _NAMES)


def _seedless(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _seedless(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if not _is_seed(key)
    }


def _is_seed(key: str) -> bool:
    return key.rpartition(".")[2] == "seed"


def flattened(config: Mapping[str, Any], prefix: str = "") -> Flat:
    """A config as one level of keys with dots."""
    flat: Flat = {}
    for key, value in config.items():
        if isinstance(value, Mapping):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _rule_order(label: str) -> int:
    rule = rule_of(label)
    return len(RULE_STYLES) if rule is None else list(RULE_STYLES).index(rule)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
