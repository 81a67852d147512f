"""What functions, classes and modules of the user's own compute, as text: their source, and all values that
they hold. Two runs whose texts differ are two runs.
"""

import argparse
import functools
import inspect
import sys
import sysconfig
from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clippedgossip.simulate.setup import digest

OURS = ("clippedgossip", "torch", "builtins")
PLAIN = slice | Decimal | Fraction | PurePath
"""Values of Python's own that their text tells apart."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))
_OF_MODULES = frozenset(vars(nn.Module()))


class Description:
    """Writes things down, each once."""

    def __init__(self) -> None:
        self.seen: dict[int, object] = {}  # holds them, so that no other gets the place in memory of one
        self.inside: set[int] = set()  # modules that are being written down

    def of(self, thing: Any) -> str:
        """A text that is the same for things that compute the same; empty for what is not the user's own."""
        if thing is None or isinstance(thing, bool | int | float | complex | str | bytes):
            return repr(thing)
        if isinstance(thing, torch.dtype | torch.device | torch.Size | range | np.generic | PLAIN):
            return repr(thing)
        if isinstance(thing, Tensor | np.ndarray):
            odd = isinstance(thing, Tensor) and thing.dtype == torch.bfloat16  # which NumPy has not
            known = torch.as_tensor(thing).float() if odd else thing
            return f"{tuple(thing.shape)} {thing.dtype} {digest(known)}"
        if id(thing) in self.seen:
            return ""
        self.seen[id(thing)] = thing
        return " ".join(filter(None, self._parts(thing)))

    def _parts(self, thing: Any) -> Iterator[str]:
        if isinstance(thing, Mapping):
            yield from (f"{self.of(name)}: {self.of(value)}" for name, value in thing.items())
        elif isinstance(thing, list | tuple):
            yield from map(self.of, thing)
        elif isinstance(thing, set | frozenset):
            yield from sorted(map(self.of, thing))
        elif isinstance(thing, functools.partial):
            yield from map(self.of, (thing.func, thing.args, thing.keywords))
        elif isinstance(thing, MethodType):
            yield from map(self.of, (thing.__func__, thing.__self__))
        elif isinstance(thing, nn.Module):
            yield from self._module(thing)
        elif isinstance(thing, FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, type):
            yield from self._class(thing)
        elif callable(thing) and hasattr(thing, "__qualname__"):  # of C: torch.tanh
            yield f"{thing.__module__}.{thing.__qualname__}"
        elif _top(type(thing)) != "clippedgossip":
            yield type(thing).__qualname__
            if isinstance(thing, argparse.Namespace | SimpleNamespace):
                yield self.of(vars(thing))
            elif _is_own(type(thing)):
                yield from map(self.of, (type(thing), _values(thing)))

    def _function(self, function: FunctionType) -> Iterator[str]:
        yield _code(function)
        if _is_own(function):
            yield from map(self.of, (function.__defaults__, function.__kwdefaults__))
            names = _names_in(function.__code__)
            scope = ChainMap(_closure(function), function.__globals__, sys.modules)
            yield from self._named({name: scope[name] for name in sorted(names) if name in scope}, names)
        elif _top(function) in OURS:
            yield f"{function.__module__}.{function.__qualname__}"

    def _named(self, found: Mapping[str, Any], names: set[str]) -> Iterator[str]:
        """What names stand for; of a module of the user's own, what code with these names may take of it."""
        for name, value in found.items():
            if isinstance(value, ModuleType):
                if id(value) not in self.inside and _is_own_module(value):
                    self.inside.add(id(value))
                    held = {key: vars(value)[key] for key in sorted(names) if key in vars(value)}
                    yield from (f"{name}.{text}" for text in self._named(held, names))
                    self.inside.remove(id(value))
            elif _tells(value) and (text := self.of(value)):
                yield f"{name}: {text}"

    def _class(self, kind: type) -> Iterator[str]:
        for part in kind.__mro__:
            if text := _code(part):
                yield text
            if _is_own(part):
                held = {name: getattr(value, "__func__", value) for name, value in vars(part).items()}
                yield from (self.of(value) for value in held.values() if isinstance(value, FunctionType))
                yield from (
                    f"{name}: {self.of(value)}"
                    for name, value in held.items()
                    if not name.startswith("__") and _is_value(value)
                )

    def _module(self, module: nn.Module) -> Iterator[str]:
        """Its classes, the tensors and values that its parts hold, and their hooks; without `training`."""
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        yield from (f"{name} {value.requires_grad} {self.of(value.detach())}" for name, value in held.items())
        for name, part in module.named_modules():
            yield f"{name} {type(part).__qualname__}"
            yield self.of(type(part))
            values = {key: value for key, value in vars(part).items() if key not in _OF_MODULES}
            yield self.of(values)
            yield from (self.of(hook) for hooks in HOOKS for hook in getattr(part, hooks).values())


def _top(thing: Any) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


def _is_own(thing: Any) -> bool:
    """Whether it is the user's, and not of an installed package."""
    if _top(thing) in OURS or _top(thing) in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(str(thing.__module__)), "__file__", None)
    return file is None or not file.startswith(_INSTALLED)


def _is_own_module(module: ModuleType) -> bool:
    top = module.__name__.partition(".")[0]
    file = getattr(module, "__file__", None) or ""
    return top not in (*OURS, *sys.stdlib_module_names) and not file.startswith(_INSTALLED)


def _names_in(code: CodeType) -> set[str]:
    """Names of globals, closures, imports and attributes in a function and in those that it defines."""
    inner = (_names_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _closure(function: FunctionType) -> dict[str, Any]:
    """What a function takes from those around it; a cell is empty before its name has a value."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _values(thing: Any) -> dict[str, Any]:
    """What an object holds, in its dictionary and in its slots."""
    slots = [name for kind in type(thing).__mro__ for name in _names(vars(kind).get("__slots__", ()))]
    held = {name: getattr(thing, name) for name in slots if hasattr(thing, name)}
    return {**held, **getattr(thing, "__dict__", {})}


def _names(slots: Any) -> list[str]:
    found = [slots] if isinstance(slots, str) else list(slots)
    return [name for name in found if name not in ("__dict__", "__weakref__")]


def _is_value(value: Any) -> bool:
    return isinstance(
        value,
        bool | int | float | complex | str | bytes | tuple | list | set | frozenset | Mapping | Tensor
        | np.ndarray | np.generic | functools.partial | argparse.Namespace | SimpleNamespace | PLAIN,
    )  # fmt: skip


def _tells(value: Any) -> bool:
    """Whether a global name can change what is computed: values, and what is of the user's own."""
    if _is_value(value):
        return True
    return _is_own(value if isinstance(value, FunctionType | type) else type(value))


def _code(thing: Any) -> str:
    """The source of a function or class of the user's own."""
    if _top(thing) in OURS:
        return ""
    name, compiled = getattr(thing, "__qualname__", thing), getattr(thing, "__code__", None)
    try:
        source = inspect.getsource(thing)
    except (OSError, TypeError):  # typed at a prompt
        source = f"{thing.__module__}.{name}"
    else:
        if "<lambda>" not in str(name):  # the lines of one may hold others
            return source
    return f"{source} {'' if compiled is None else _compiled(compiled)}"


def _compiled(code: CodeType) -> str:
    inner = [_compiled(part) if isinstance(part, CodeType) else repr(part) for part in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"
