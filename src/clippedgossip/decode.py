"""Rules, attacks and the like from text, or from a table of a config file, by their fields' annotations."""

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from clippedgossip.errors import UserError, unknown_name

Registries = Mapping[type, Mapping[str, type]]
"""Base class -> name -> class, for every kind that can stand as a parameter of another."""

EXAMPLES = ("median", "dissensus")

WANTED = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


@dataclasses.dataclass(frozen=True)
class Maker:
    """Makes things of one family by name; `error` is what a wrong name, parameter or value raises."""

    registries: Registries
    error: type[UserError]

    def make(self, base: type, name: str, values: Mapping[str, object], path: str = "") -> Any:
        """The thing of this name. A parameter that is itself such a thing is given by name, and takes its own
        beside it (`radius=adaptive`, `delta_max=0.2`), as `radius.delta_max`, or in a table with its name."""
        chosen = self._find(base, name)
        kind, name = base.__name__.lower(), self._name(base, chosen)
        fields = {field.name: field for field in dataclasses.fields(chosen)}
        hints = get_type_hints(chosen)
        own, deeper, loose = _sort(values, fields)
        parts = {key: part for key, value in own.items() if (part := self._part(hints[key], value))}
        takes = {key: {field.name for field in dataclasses.fields(part)} for key, (_, part) in parts.items()}
        known = set(fields).union(*takes.values())
        for key in [*loose, *deeper]:
            if key not in (known if key in loose else fields):
                raise self.error(unknown_name(f"parameter of {kind} {name!r}:", key, known))
        arguments: dict[str, Any] = {}
        for key in dict.fromkeys([*own, *deeper]):
            value, inner = own.get(key), deeper.get(key, {})
            if key in parts:
                beside = {extra: loose[extra] for extra in loose if extra in takes[key]}
                table = dict(value) if isinstance(value, Mapping) else {"name": value}
                part_name = str(table.pop("name"))
                arguments[key] = self.make(
                    parts[key][0], part_name, {**beside, **table, **inner}, f"{path}{key}."
                )
            elif inner:
                raise self.error(f"{key} of {kind} {name!r} takes no parameters; got {', '.join(inner)}")
            else:
                arguments[key] = self._convert(hints[key], value, f"{key} of {kind} {name!r}")
        missing = [key for key, field in fields.items() if key not in arguments and _required(field)]
        if missing:
            error = self.error(f"{kind} {name!r} needs a value for {', '.join(missing)}")
            error.missing = tuple(f"{path}{key}={self._example(hints[key])}" for key in missing)
            raise error
        return chosen(**arguments)

    def _find(self, base: type, name: str) -> type:
        table = self.registries[base]
        by_letters = {_letters(known): kind for known, kind in table.items()}
        by_letters |= {_letters(kind.__name__): kind for kind in table.values()}
        if _letters(name) not in by_letters:
            raise self.error(unknown_name(base.__name__.lower(), name, table))
        return by_letters[_letters(name)]

    def _name(self, base: type, chosen: type) -> str:
        return next(name for name, kind in self.registries[base].items() if kind is chosen)

    def _example(self, hint: Any) -> str:
        """A value the field may take; a rule or an attack is one that needs no parameters."""
        for member in _members(hint):
            if member in self.registries:
                table = self.registries[member]
                simple = [
                    name for name, kind in table.items() if not any(map(_required, dataclasses.fields(kind)))
                ]
                return next(name for name in (*EXAMPLES, *simple) if name in simple)
        return "1" if int in _members(hint) else "0.1"

    def _part(self, hint: Any, value: object) -> tuple[type, type] | None:
        """Which family and class a text or table names, where the field takes one."""
        members = _members(hint)
        text = value.get("name") if isinstance(value, Mapping) else value
        if not isinstance(text, str):
            return None
        base = next((member for member in members if member in self.registries), None)
        number = float in members
        if base is None or (number and _is_number(text)):
            return None
        try:
            return base, self._find(base, text)
        except self.error as error:
            raise self.error(f"{error}{', or a number' * number}") from None

    def _convert(self, hint: Any, value: object, what: str) -> Any:
        members = _members(hint)
        if types.NoneType in members and (value is None or str(value).lower() == "none"):
            return None
        for member in members:
            done, result = _as(member, value)
            if done:
                return result
        wanted = [text for member in members if (text := _wanted(member, self.registries))]
        if not wanted:
            raise self.error(f"{what} is a function; it can be given from Python only")
        raise self.error(f"{what} is {value!r}; give {' or '.join(dict.fromkeys(wanted))}")


def _sort(
    values: Mapping[str, object], fields: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, dict[str, object]], dict[str, object]]:
    """The parameters themselves, those of a parameter's own (`rule.trim`), and those nobody asked for yet."""
    own: dict[str, object] = {}
    deeper: dict[str, dict[str, object]] = {}
    loose: dict[str, object] = {}
    for raw, value in values.items():
        key, dot, rest = raw.replace("-", "_").partition(".")
        if dot:
            deeper.setdefault(key, {})[rest] = value
        else:
            (own if key in fields else loose)[key] = value
    return own, deeper, loose


def _required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _letters(name: str) -> str:
    """ClippedGossip, clipped-gossip and clipped_gossip are one."""
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _members(hint: Any) -> list[Any]:
    return list(get_args(hint)) if get_origin(hint) in (Union, types.UnionType) else [hint]


def _is_number(text: str) -> bool:
    return _as(float, text)[0]


def _as(kind: Any, value: object) -> tuple[bool, Any]:
    """Whether the value can be read as this type, and what it is then."""
    if get_origin(kind) is tuple:
        parts = value.split(",") if isinstance(value, str) else value
        if not isinstance(parts, list | tuple) or (isinstance(value, str) and len(parts) < 2):
            return False, None
        read = [_as(get_args(kind)[0], part) for part in parts]
        return all(done for done, _ in read), tuple(result for _, result in read)
    if kind not in WANTED or (isinstance(value, bool) and kind is not bool):
        return False, None
    text = str(value).strip()
    try:
        if kind is bool:
            return text.lower() in ("true", "yes", "1", "false", "no", "0"), text.lower() in (
                "true",
                "yes",
                "1",
            )
        return True, kind(value if isinstance(value, int | float) and kind is float else text)
    except ValueError:
        return False, None


def _wanted(member: Any, registries: Registries) -> str:
    if member in registries:
        return ", ".join(registries[member])
    if get_origin(member) is tuple:
        return "one for each node, such as 0,1,1,0"
    return WANTED.get(member, "")
