"""What functions, classes and modules of the user's own compute, as text: their source, and all values that
they hold. Two runs whose texts differ are two runs.
"""

import copyreg
import dis
import functools
import inspect
import pickle
import re
import sys
import sysconfig
import threading
import types
import weakref
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from clippedgossip.errors import RunError, kind_of
from clippedgossip.simulate.setup import digest
from clippedgossip.tasks.models import HOOKS, OF_MODULES, bits, closure
from clippedgossip.tasks.module_function import still_parts

OURS = ("clippedgossip", "torch", "builtins")
EXACT = frozenset(
    [type(None), bool, int, float, complex, str, bytes, range, slice, Decimal, Fraction, torch.Size]
)
PLAIN = np.generic | np.dtype | PurePath | torch.dtype | torch.device | torch.layout | torch.memory_format
"""What their text tells apart, as of the types of `EXACT`."""
OF_C = (
    types.BuiltinMethodType | types.MethodWrapperType | types.WrapperDescriptorType
    | types.MethodDescriptorType | types.ClassMethodDescriptorType | types.GetSetDescriptorType
    | types.MemberDescriptorType
)  # fmt: skip
WRAPPERS = (property, classmethod, staticmethod, functools.cached_property)
WRAPPED = ("fget", "fset", "fdel", "func", "__func__")
EMPTY = type(threading.Lock()), type(threading.RLock())
"""They hold nothing."""
LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "IMPORT_NAME")
_OF_ONE_PROCESS = re.compile(r"\.___torch_mangle_\d+| at 0x[0-9a-f]+")
"""What PyTorch's text of a compiled module has anew in every process and copy."""
_INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib"))


def text_of(thing: Any) -> str:
    """A text that is the same, in every process, for things that compute the same."""
    try:
        return Description().of(thing)
    except RecursionError as error:
        raise _unreadable(thing) from error


class Description:
    """Writes things down, each once; where one comes again stands its number."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[int, object]] = {}  # holds them: no other gets the place in memory of one
        self.inside: set[int] = set()  # modules that are being written down

    def of(self, thing: Any) -> str:
        kind = type(thing)
        if kind in EXACT or isinstance(thing, PLAIN):
            return repr(thing)
        if kind is not tuple and id(thing) in self.seen:
            return f"#{self.seen[id(thing)][0]}"
        self.seen[id(thing)] = len(self.seen), thing
        return f"{kind.__qualname__}({', '.join(filter(None, self._parts(thing)))})"

    def _parts(self, thing: Any) -> Iterator[str]:
        kind = type(thing)
        if kind in (dict, types.MappingProxyType):
            yield from (f"{self.of(name)}: {self.of(value)}" for name, value in thing.items())
        elif kind in (list, tuple):
            yield from map(self.of, thing)
        elif isinstance(thing, set | frozenset):
            yield from self._sorted(thing)
        elif isinstance(thing, Tensor) and thing.layout == torch.strided and not thing.is_quantized:
            yield f"{tuple(thing.shape)} {thing.dtype} {'' if thing.is_meta else digest(bits(thing))}"
        elif kind in (np.ndarray, np.memmap):
            yield from self._array(thing)
        elif isinstance(thing, MethodType):
            yield from map(self.of, (thing.__func__, thing.__self__))
        elif isinstance(thing, WRAPPERS):
            yield from (self.of(getattr(thing, key)) for key in WRAPPED if hasattr(thing, key))
        elif isinstance(thing, nn.Module):
            yield from self._module(thing)
        elif isinstance(thing, FunctionType):
            yield from self._function(thing)
        elif isinstance(thing, type):
            yield from self._class(thing)
        elif isinstance(thing, ModuleType):
            yield thing.__name__
            yield from self._named({"": thing}, {name for name in vars(thing) if name[:2] != "__"})
        elif isinstance(thing, weakref.ref):
            yield self.of(thing())
        elif isinstance(thing, OF_C):
            yield _name(thing)
            owner = getattr(thing, "__self__", None)  # of a function its module
            yield "" if isinstance(owner, ModuleType | None) else self.of(owner)
        elif isinstance(thing, torch.jit.ScriptFunction):
            yield str(thing.code)
        elif _top(kind) == "torch" and hasattr(thing, "__qualname__"):  # torch.ops.aten.relu
            yield str(thing)
        elif _top(kind) == "clippedgossip" and is_dataclass(thing):
            yield _name(kind)
            yield self.of({part.name: getattr(thing, part.name) for part in fields(thing) if part.compare})
        elif kind not in EMPTY:
            yield self.of(kind)
            yield from self._state(thing)

    def _sorted(self, things: Iterable[Any]) -> list[str]:
        """Without an order of their own: each as if it were the first."""
        texts, seen = [], self.seen
        for thing in things:
            self.seen = dict(seen)
            texts.append(self.of(thing))
        self.seen = seen
        return sorted(texts)

    def _array(self, array: np.ndarray) -> Iterator[str]:
        yield f"{array.shape} {array.dtype}"
        if array.dtype.names or array.dtype.hasobject:  # there may be anything between the fields
            yield self.of(array.tolist())
        else:
            yield digest(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def _state(self, thing: Any) -> Iterator[str]:
        """Of what an object is made, as a pickle would have it; without what it computed for later."""
        kind = type(thing)
        found: Any
        known: Any = copyreg.dispatch_table.get(kind)
        try:
            found = known(thing) if known else thing.__reduce_ex__(4)
        except Exception as error:  # objects of others may raise anything
            raise _unreadable(thing) from error
        if isinstance(found, tuple):
            make, args, *rest = found
            state = rest[0] if rest else None
            if isinstance(state, dict):
                state = {name: value for name, value in state.items() if not _is_cache(kind, name)}
            yield from map(self.of, (make, args, state, *map(list, filter(None, rest[1:3]))))
        elif hasattr(thing, "__wrapped__"):  # functools.cache
            yield self.of(thing.__wrapped__)
        elif _is_global(thing, found):
            yield f"{_home(thing)}.{getattr(thing, '__qualname__', found)}"
        else:
            raise _unreadable(thing)

    def _function(self, function: FunctionType) -> Iterator[str]:
        if compiled := vars(function).get("_torchdynamo_orig_callable"):
            yield self.of(compiled)
            return
        yield _code(function) or _name(function)
        own, names = _is_own(function), _names_in(function.__code__)
        if own:
            yield from map(self.of, (function.__defaults__, function.__kwdefaults__, vars(function)))
        scope = ChainMap(closure(function), *([function.__globals__, sys.modules] if own else []))
        loaded = _loaded_in(function.__code__)
        yield from self._named({name: scope[name] for name in sorted(loaded) if name in scope}, names)

    def _named(self, found: Mapping[str, Any], names: set[str]) -> Iterator[str]:
        """What names stand for; of a module of the user's own, what code with these names may take of it."""
        for name, value in found.items():
            if isinstance(value, ModuleType):
                if id(value) not in self.inside and _is_own(value):
                    self.inside.add(id(value))
                    held = {key: vars(value)[key] for key in sorted(names) if key in vars(value)}
                    yield from (f"{name}.{text}" for text in self._named(held, names))
                    self.inside.remove(id(value))
            else:
                yield f"{name}: {self.of(value)}"

    def _class(self, kind: type) -> Iterator[str]:
        for part in kind.__mro__:
            own = _is_own(part)
            yield (_code(part) if own or issubclass(part, nn.Module) else "") or _name(part)
            if own:
                held = {name: value for name, value in vars(part).items() if name != "_abc_impl"}
                yield from (
                    f"{name}: {self.of(value)}"
                    for name, value in held.items()
                    if not name.startswith("__") or isinstance(value, (FunctionType, *WRAPPERS))
                )

    def _module(self, module: nn.Module) -> Iterator[str]:
        """Its classes, what its parts hold, their hooks, and which of them stay in eval mode."""
        held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        yield from (f"{name} {value.requires_grad} {self.of(value.detach())}" for name, value in held.items())
        for name, part in module.named_modules():
            yield f"{name} {type(part).__qualname__}"
            yield self.of(type(part))
            if isinstance(part, torch.jit.ScriptModule):
                yield _OF_ONE_PROCESS.sub("", part._c.dump_to_str(True, True, False))
            else:
                yield self.of({key: value for key, value in vars(part).items() if key not in OF_MODULES})
            yield from (self.of(hook) for hooks in HOOKS for hook in getattr(part, hooks).values())
        yield from still_parts(module)


def _unreadable(thing: object) -> RunError:
    return RunError(
        f"out= names a run by all that its model, loss and metric hold, but {kind_of(thing)} cannot be read\n"
        "let them hold the numbers that they take from it, or leave out= out"
    )


def _is_cache(kind: type, name: str) -> bool:
    """What an object has computed of itself; `_memo` is that of a `Network`."""
    cached = isinstance(inspect.getattr_static(kind, name, None), functools.cached_property)
    return cached or (name == "_memo" and _top(kind) == "clippedgossip")


def _is_global(thing: object, name: str) -> bool:
    """Whether this name is that of the object itself in its module."""
    name = getattr(thing, "__qualname__", name)
    found = sys.modules.get(pickle.whichmodule(thing, name))  # type: ignore[attr-defined]  # not in the stubs
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is thing


def _name(thing: Any) -> str:
    if isinstance(thing, FunctionType):
        return f"{_home(thing)}.{thing.__code__.co_qualname}"
    return f"{_home(thing)}.{thing.__qualname__}"


def _home(thing: Any) -> str:
    """The module that a thing is from; functools.wraps gives a function the `__module__` of another one."""
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__"))
    if isinstance(thing, ModuleType):
        return thing.__name__
    return str(getattr(thing, "__module__", None))


def _top(thing: Any) -> str:
    return _home(thing).partition(".")[0]


def _is_own(thing: Any) -> bool:
    """Whether it is the user's, and not of an installed package."""
    if _top(thing) in OURS or _top(thing) in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(_home(thing)), "__file__", None)
    return file is None or not file.startswith(_INSTALLED)


def _names_in(code: CodeType) -> set[str]:
    """Names of globals, closures, imports and attributes in a function and in those that it defines."""
    inner = (_names_in(part) for part in code.co_consts if isinstance(part, CodeType))
    return {*code.co_names, *code.co_freevars}.union(*inner)


def _loaded_in(code: CodeType) -> set[str]:
    """The same without attributes, which may be called as a global is that nobody uses."""
    inner = (_loaded_in(part) for part in code.co_consts if isinstance(part, CodeType))
    loads = (step.argval for step in dis.get_instructions(code) if step.opname in LOADS)
    return {*loads, *code.co_freevars}.union(*inner)


def _code(thing: Any) -> str:
    """The source of a function or class of the user's own."""
    if _top(thing) in OURS:
        return ""
    compiled = thing.__code__ if isinstance(thing, FunctionType) else None  # not of what it wraps
    source = _name(thing)
    if compiled is None or compiled.co_filename != "<string>":  # of `exec`, or `python -c`
        with suppress(OSError, TypeError):  # typed at a prompt
            source = inspect.getsource(compiled or thing)
            if compiled is None or compiled.co_name != "<lambda>":  # the lines of one may hold others
                return source
    return f"{source} {'' if compiled is None else _compiled(compiled)}"


def _compiled(code: CodeType) -> str:
    inner = [_compiled(part) if isinstance(part, CodeType) else text_of(part) for part in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {inner}"
