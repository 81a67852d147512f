"""Making a rule, an attack or anything else that is a frozen dataclass from its name and parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

from clippedgossip.errors import UserError, unknown_name

T = TypeVar("T")


def make(
    kind: str, table: Mapping[str, type[T]], name: str, parameters: Mapping[str, Any], error: type[UserError]
) -> T:
    """An instance of table[name]; nothing unknown, missing or mistyped is let through."""
    if name not in table:
        raise error(unknown_name(kind, name, table))
    chosen: Any = table[name]
    fields = {field.name: field for field in dataclasses.fields(chosen)}
    for parameter in parameters:
        if parameter not in fields:
            raise error(unknown_name(f"parameter of {kind} {name!r}:", parameter, fields))
    missing = [
        field.name
        for field in fields.values()
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in parameters
    ]
    if missing:
        raise error(f"{kind} {name!r} needs a value for {', '.join(missing)}")
    made: T = chosen(**parameters)
    return made
