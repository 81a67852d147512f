"""Networks by name: which there are, what they take, and how to build one from text."""

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import get_args, get_type_hints

from clippedgossip.errors import NetworkError, unknown_name
from clippedgossip.graphs.generators import GENERATORS
from clippedgossip.graphs.types import Graph

Value = int | float | bool | None


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One parameter of a generator."""

    name: str
    type: type[int] | type[float] | type[bool]
    optional: bool
    default: Value
    help: str


def parameters(name: str) -> Mapping[str, Parameter]:
    """What the generator of this name takes, in order."""
    if name not in GENERATORS:
        raise NetworkError(unknown_name("network", name, GENERATORS))
    function = GENERATORS[name]
    hints = get_type_hints(function, include_extras=True)
    found = {}
    for key, parameter in inspect.signature(function).parameters.items():
        annotated, text = get_args(hints[key])
        kinds = [kind for kind in get_args(annotated) or (annotated,) if kind is not NoneType]
        found[key] = Parameter(
            name=key,
            type=kinds[0],
            optional=NoneType in get_args(annotated),
            default=parameter.default,
            help=text,
        )
    return found


def build(name: str, **values: object) -> Graph:
    """Build a network by name; values may be text. Unknown names and parameters get their nearest match."""
    known = parameters(name)
    arguments: dict[str, Value] = {}
    for raw, value in values.items():
        key = raw.replace("-", "_")
        if key not in known:
            raise NetworkError(unknown_name(f"parameter of {name!r}", raw, known))
        arguments[key] = convert(name, known[key], value)
    return GENERATORS[name](**arguments)


def convert(network: str, parameter: Parameter, value: object) -> Value:
    """The value in the parameter's type, or an error that names both."""
    if value is None and parameter.optional:
        return None
    kind = parameter.type
    text = str(value).strip().lower()
    if kind is bool and text in {"true", "yes", "1", "false", "no", "0"}:
        return text in {"true", "yes", "1"}
    try:
        if kind is not bool and not isinstance(value, bool):
            number = float(text)
            if kind is float and not math.isnan(number):
                return number
            if kind is int and number.is_integer():
                return int(number)
    except ValueError:
        pass
    wanted = {int: "a whole number", float: "a number", bool: "true or false"}[kind]
    raise NetworkError(f"{parameter.name} of {network!r} is {str(value)!r}; give {wanted} ({parameter.help})")
