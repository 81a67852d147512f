"""One decoder for files, the command line, peers and Python.

Nothing unknown, missing or mistyped is let through. Text that reads as the wanted type is taken as such, so
that `--rule-option trim=1`, `trim = 1` and `trim = "1"` are one. A thing that has a name (a rule, an attack,
a network, …) is decoded into its one canonical table, defaults written out, and built from it.
"""

import dataclasses
import inspect
import json
import re
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from numbers import Integral, Real
from pathlib import Path as Folder
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import clippedgossip.own as own
from clippedgossip.errors import ConfigError, UserError, article, kind_of, unknown_name

Path = tuple[str, ...]
T = TypeVar("T")

WORDS: Mapping[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
TRUE, FALSE = ("true", "yes", "1"), ("false", "no", "0")
BYZANTINE = "byzantine"
EXAMPLES = ("median", "dissensus")
DEEPEST = 100
"""How deep lists and tables of a file may be nested. Functions that walk through them call themselves."""
LONGEST = 300
"""Digits of a whole number in JSON. Those of more than 308 are larger than any float."""


class KeyProblem(ConfigError):
    """What is wrong with one key; whoever knows the file adds the line."""

    def __init__(self, path: Path, message: str, missing: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.path = path
        self.missing = missing

    @classmethod
    def of(cls, key: str, says: str) -> "KeyProblem":
        """Of a dotted key, which the message begins with."""
        return cls(tuple(key.split(".")), f"{key} {says}")


def from_json(text: str | bytes) -> Any:
    """What a file holds that others may have written. Raises ValueError, also for what is nested too deep,
    for whole numbers that are too large for a float and for text that is no Unicode (half of a pair)."""
    text = text.decode() if isinstance(text, bytes) else text
    content = _parsed(_JSON, text)
    if "\\ud" in text.lower():
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _whole(digits: str) -> int:
    if len(digits) > LONGEST:
        raise ValueError(f"a whole number has {len(digits)} digits")
    return int(digits)


_JSON = json.JSONDecoder(parse_int=_whole).decode


def from_toml(text: str) -> dict[str, Any]:
    """The same for TOML."""
    content: dict[str, Any] = _parsed(tomllib.loads, text)
    return content


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        content = parse(text)
        if parse is _JSON and text.count("[") + text.count("{") <= DEEPEST:  # as most records have
            return content
        level = [content]
        for _ in range(DEEPEST):
            tables = (each.values() if isinstance(each, dict) else each for each in level)
            level = [inner for table in tables for inner in table if isinstance(inner, dict | list)]
            if not level:
                return content
    except RecursionError:
        pass
    raise ValueError(f"lists or tables are nested more than {DEEPEST} deep")


def known_keys(raw: Mapping[str, Any], known: Iterable[str], path: Path) -> None:
    """Refuse every key that nobody reads."""
    known = list(known)
    for key in raw:
        if key not in known:
            where = f"key in [{_dotted(path)}]:" if path else "section or key"
            raise KeyProblem((*path, str(key)), unknown_name(where, str(key), known))


def table(raw: Any, path: Path, *, example: str = "") -> Mapping[str, Any]:
    """A section; text stands for one that has only a name."""
    if isinstance(raw, str):
        return {"name": raw}
    if not isinstance(raw, Mapping):
        fix = f", such as {example}" if example else ""
        raise KeyProblem(path, f"{_dotted(path)} is {_shown(raw)}; it must be a section{fix}")
    return raw


def value(hint: Any, raw: Any, path: Path) -> Any:
    """`raw` in the type that `hint` asks for."""
    try:
        found, fits = _try(hint, raw, path)
    except KeyProblem:
        raise
    except UserError as error:
        raise KeyProblem(path, f"{_dotted(path)}: {error}") from error
    if fits:
        return found
    if get_origin(hint) is Literal and isinstance(raw, str):
        raise KeyProblem(path, unknown_name(_dotted(path), raw, map(str, get_args(hint))))
    raise KeyProblem(path, f"{_dotted(path)} is {_shown(raw)}; it must be {describe(hint)}")


def section(kind: type[T], raw: Any, path: Path, **more: Any) -> T:
    """A frozen dataclass from its section; `more` are values that no file gives."""
    content = table(raw, path)
    hints = get_type_hints(kind, include_extras=True)
    entries = [entry for entry in dataclasses.fields(kind) if entry.name not in more]  # type: ignore[arg-type]  # T is a dataclass
    known_keys(content, (entry.name for entry in entries), path)
    values = {key: value(hints[key], said, (*path, key)) for key, said in content.items()}
    missing = [entry.name for entry in entries if _required(entry) and entry.name not in values]
    if missing:
        where = f"[{_dotted(path)}]" if path else "the file"
        fix = ", ".join(f"{key} = …" for key in missing)
        raise KeyProblem(path, f"{where} needs a value for {', '.join(missing)}\nadd {fix}")
    try:
        return kind(**values, **more)
    except UserError as error:
        raise within(path, error) from error


def within(path: Path, error: UserError) -> KeyProblem:
    """The error of a section that checked itself, with its name in front."""
    if isinstance(error, KeyProblem):
        return error
    return KeyProblem(path, f"[{_dotted(path)}] {error}" if path else str(error), error.missing)


def describe(hint: Any) -> str:
    """The type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return describe(arguments[0])
    if origin is Literal:
        return " or ".join(repr(choice) for choice in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(kind) for kind in arguments if kind is not types.NoneType)
    if origin in (tuple, list, Sequence):
        return f"a list, each entry {describe(arguments[0])}"
    if hint in WORDS:
        return WORDS[hint]
    return "a section" if origin is Mapping or dataclasses.is_dataclass(hint) else article(hint.__name__)


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """What a named thing takes."""

    name: str
    hint: Any
    default: Any
    help: str = ""

    @property
    def type(self) -> Any:
        """The first of the types it may have."""
        return _members(self.hint)[0]

    @property
    def required(self) -> bool:
        """Whether it has no default."""
        return self.default is inspect.Parameter.empty

    @property
    def of_python(self) -> bool:
        """Whether it is a function, which no file can say."""
        return "Callable" in str(self.hint)


@dataclass(frozen=True, eq=False, kw_only=True)
class Kind:
    """A family of things that have names; `package.module:Name` names one of the user's own."""

    word: str
    names: Mapping[str, Callable[..., Any]]
    base: type  # what one of them is; `object` where nothing is asked of it but that it can be called
    group: str  # entry points of this group are names as well
    fix: str  # what one of the user's own must be
    given: int = 0  # how many arguments the program gives, in front of all others
    offered: tuple[str, ...] = ()  # parameters that the program gives to those that take them
    reserved: tuple[str, ...] = ()
    """Other keys of the section that names it; no parameter can have such a name."""
    number: str = ""
    """The name a bare number stands for; things of such a kind are written as short as they can be."""
    bounds: tuple[str, ...] = ()
    """Parameters that may say "byzantine": what the network has of Byzantine neighbours or weight."""
    of_function: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    """What makes the thing of a function of the user's own, where such a function need not return it."""
    error: type[UserError] = ConfigError

    def __post_init__(self) -> None:
        if self.base is not object:
            _KINDS[self.base] = self


_KINDS: dict[type, Kind] = {}  # every kind that can stand as a parameter of another, by what it makes


@dataclass(frozen=True, kw_only=True)
class Thing:
    """Something by its name, with every parameter that was said or has a default."""

    kind: Kind
    name: str
    make: Callable[..., Any]
    values: Mapping[str, Any]
    takes: Mapping[str, Parameter]
    origin: own.Origin | None  # where the code of one of the user's own lies
    path: Path

    @property
    def parameters(self) -> dict[str, Any]:
        """What a file can say of it."""
        plain = {
            key: _plain(said)
            for key, said in self.values.items()
            if said is not None and not self.takes[key].of_python
        }
        known = {key: said for key, said in plain.items() if said is not None}
        return known if self.origin is None else {**known, "code": self.origin.code}

    def plain(self) -> Any:
        """Its canonical form: {name = "krum", faulty = 1}; of a radius 1.0, "oracle" or {adaptive = 0.1}."""
        parameters = self.parameters
        if not self.kind.number or self.origin is not None or len(parameters) > 1:
            return {"name": self.name, **parameters}
        if not parameters:
            return self.name
        (said,) = parameters.values()
        return said if self.name == self.kind.number else {self.name: said}

    @property
    def origins(self) -> list[own.Origin]:
        """Where it and its parameters come from, of those that are the user's own."""
        inner = [said.origins for said in self.values.values() if isinstance(said, Thing)]
        return [*([] if self.origin is None else [self.origin]), *(found for part in inner for found in part)]

    @property
    def bounded(self) -> bool:
        """Whether a parameter says "byzantine"."""
        return any(
            said.bounded if isinstance(said, Thing) else said == BYZANTINE and key in self.kind.bounds
            for key, said in self.values.items()
        )

    def build(
        self,
        bounds: tuple[int, float] | None = None,
        *,
        given: tuple[Any, ...] = (),
        offered: Mapping[str, Any] | None = None,
    ) -> Any:
        """The thing. `bounds`: the number and the weight of Byzantine neighbours, where they are known."""
        wanted = inspect.signature(self.make).parameters
        arguments = {key: said for key, said in (offered or {}).items() if key in wanted}
        for key, said in self.values.items():
            if isinstance(said, Thing):
                arguments[key] = said.build(bounds)
            elif said == BYZANTINE and key in self.kind.bounds:
                arguments[key] = self._bound(key, bounds)
            else:
                arguments[key] = said
        try:
            made = self.make(*given, **arguments)
        except UserError as error:
            raise KeyProblem(
                self.path, str(within(self.path[: -1 if self.kind.number else None], error))
            ) from error
        except Exception as error:  # the user's own class may raise anything
            if self.origin is None:
                raise
            raise KeyProblem(self.path, f"{self._called}{own.raised(error)}") from error
        if not isinstance(made, self.kind.base):
            raise KeyProblem(self.path, f"{self._called}made {kind_of(made)}\n{self.kind.fix}")
        return made

    @property
    def _called(self) -> str:
        where = "" if self.origin is None else f" of {self.origin.file}"
        return f"{self.kind.word} {self.name!r}{where} "

    def _bound(self, key: str, bounds: tuple[int, float] | None) -> int | float:
        members = _members(self.takes[key].hint)
        counted = int in members or (float not in members and key in ("trim", "faulty"))
        if bounds is None:
            where = (*self.path, key)
            raise KeyProblem(
                where,
                f'{_dotted(where)} is "byzantine", and nobody here knows which nodes are Byzantine\n'
                f"give a number, such as {1 if counted else 0.1}",
            )
        return bounds[0] if counted else bounds[1]


def decode(kind: Kind, raw: Any, path: Path, folder: Folder | None = None) -> Thing:
    """A thing from its name, or from a table with its name and parameters.

    A parameter that is itself such a thing is given by name or table as well, and may have its own beside it:
    `radius = {name = "adaptive", delta_max = 0.2}`, `{adaptive = 0.2}`, and `radius = "adaptive"` with
    `delta_max = 0.2` are one. One of the user's own is looked for in `folder` first.
    """
    content = _content(kind, raw, path, folder)
    name = value(str, content.pop("name"), (*path, "name"))
    name, make, origin = find(kind, name, path, folder)
    takes = parameters(make, kind)
    said = {_key(key): (key, what) for key, what in content.items()}
    if origin is not None:
        _check_names(kind, name, takes, origin, path)
        promised = said.pop("code", ("", None))[1]
        same_content(f"{origin.file} is not the code", origin.code, promised, (*path, "code"))
    parts: dict[str, tuple[Kind, dict[str, Any]]] = {}
    beside: dict[str, str] = {}
    for key, (raw_key, what) in said.items():
        inner = _inner(takes[key].hint) if key in takes else None
        if inner is not None and what is not None and not isinstance(what, inner.base):
            part = _content(inner, what, (*path, raw_key), folder)
            taken = parameters(find(inner, str(part["name"]), (*path, raw_key), folder)[1], inner)
            parts[key] = inner, part
            beside |= dict.fromkeys((other for other in taken if other not in takes), key)
    for key, (raw_key, _) in said.items():
        where = (*path, raw_key)
        if key not in takes and key not in beside:
            sayable = [*(other for other in takes if not takes[other].of_python), *beside, *kind.reserved]
            raise KeyProblem(where, unknown_name(f"parameter of {kind.word} {name!r}:", key, sayable))
        if key in beside and key in map(_key, parts[beside[key]][1]):
            both = f"{_dotted(where)} and {_dotted((*path, beside[key], key))}"
            raise KeyProblem(where, f"{both} say the same thing; drop one of them")
    values: dict[str, Any] = {}
    for key, (raw_key, what) in said.items():
        if key in parts:
            inner, part = parts[key]
            its = {other: said[other][1] for other, owner in beside.items() if owner == key and other in said}
            values[key] = decode(inner, {**its, **part}, (*path, raw_key), folder)
        elif key in takes:
            values[key] = _parameter(kind, takes[key], what, (*path, raw_key))
    missing = [key for key, parameter in takes.items() if parameter.required and key not in values]
    if missing:
        said_so = {key: _example(takes[key].hint) for key in missing}
        wanted = ", ".join(missing)
        fix = ", ".join(f"{key}={said}" for key, said in said_so.items() if said != "…")
        about = ", ".join(f"{key}: {takes[key].help}" for key in missing)
        how = f"give {wanted}, for example {fix}" if fix else kind.fix if origin else f"give {about}"
        raise KeyProblem(
            path,
            f"{kind.word} {name!r} needs a value for {wanted}\n{how}",
            tuple(f"{'.'.join((*path[1:], key))}={said}" for key, said in said_so.items()),
        )
    defaults = {key: p.default for key, p in takes.items() if key not in values and p.default is not None}
    ordered = {key: {**defaults, **values}[key] for key in takes if key in values or key in defaults}
    return Thing(kind=kind, name=name, make=make, values=ordered, takes=takes, origin=origin, path=path)


def _check_names(
    kind: Kind, name: str, takes: Mapping[str, Parameter], origin: own.Origin, path: Path
) -> None:
    """Refuse a parameter that no config could set, as its key means something else."""
    taken = next((key for key in takes if key in ("name", "code", *kind.reserved)), None)
    if taken is not None:
        raise KeyProblem(
            path,
            f"{kind.word} {name!r} of {origin.file} has a parameter called {taken!r}, but that key "
            "has another meaning in a config\nrename the parameter",
        )


def same_content(what: str, found: str, promised: object, path: Path) -> None:
    """Refuse a file whose digest is not the one that stands in the config, if one does."""
    if promised not in (None, found):
        raise KeyProblem(
            path, f"{what} of this config: the content differs\ndrop {_dotted(path)} to take it as it is now"
        )


def _parameter(kind: Kind, parameter: Parameter, what: Any, path: Path) -> Any:
    if parameter.of_python:
        if not callable(what):
            raise KeyProblem(path, f"{_dotted(path)} is a function; it can be given from Python only")
        return what
    inner = _inner(parameter.hint)
    bound = isinstance(what, str) and what == BYZANTINE and parameter.name in kind.bounds
    if bound or (inner is not None and isinstance(what, inner.base)):
        return what
    return value(parameter.hint, what, path)


def _inner(hint: Any) -> Kind | None:
    return next((_KINDS[member] for member in _members(hint) if member in _KINDS), None)


def made(kind: Kind, name: str, values: Mapping[str, Any]) -> Any:
    """A thing for Python, whose errors are those of its kind."""
    with errors_of(kind):
        return decode(kind, {"name": name, **values}, ()).build()


@contextmanager
def errors_of(kind: Kind) -> Iterator[None]:
    """Turn what is wrong with a key into an error of the kind, for Python."""
    try:
        yield
    except KeyProblem as problem:
        error = kind.error(str(problem))
        error.missing = problem.missing
        raise error from problem


def find(
    kind: Kind, name: str, path: Path, folder: Folder | None = None
) -> tuple[str, Callable[..., Any], own.Origin | None]:
    """The name as it is registered, what makes the thing, and for one of the user's own where it lies."""
    if (known := built_in(kind, name)) is not None:
        return known, kind.names[known], None
    registered = {} if ":" in name else own.registered(kind.group)
    reference = name if ":" in name else registered.get(name, "")
    if not reference:
        unknown = unknown_name(kind.word, name, [*kind.names, *registered])
        raise KeyProblem((*path, "name"), unknown + ", or a number" * bool(kind.number))
    try:
        make, origin = own.load(reference, folder)
    except UserError as error:
        raise KeyProblem((*path, "name"), f"{kind.word} {name!r} {error}") from error
    if kind.of_function is not None and inspect.isfunction(make):
        make = kind.of_function(make)
    if not callable(make) or (isinstance(make, type) and not issubclass(make, kind.base)):
        what = "a class" if isinstance(make, type) else kind_of(make)
        raise KeyProblem(
            (*path, "name"), f"{kind.word} {name!r} of {origin.file} is {what} and no {kind.word}\n{kind.fix}"
        )
    return name, make, origin


def built_in(kind: Kind, name: str) -> str | None:
    """The name as it is registered; None for another. ClippedGossip, clipped-gossip and clipped_gossip are
    one."""
    by_letters = {
        _letters(make.__name__): known for known, make in kind.names.items() if isinstance(make, type)
    }
    by_letters |= {_letters(known): known for known in kind.names}
    return None if ":" in name else by_letters.get(_letters(name))


@cache
def parameters(make: Callable[..., Any], kind: Kind) -> Mapping[str, Parameter]:
    """What a class or function takes beside what the program gives, in order; an object is made already."""
    if dataclasses.is_dataclass(make) and not isinstance(make, type):
        return {}
    plain = isinstance(make, type) and not dataclasses.is_dataclass(make)
    hinted: Any = make.__init__ if plain else make
    hints = get_type_hints(hinted, include_extras=True)
    found = {}
    for place, (key, parameter) in enumerate(inspect.signature(make).parameters.items()):
        unnamed = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if place < kind.given or key in kind.offered or unnamed:
            continue
        hint, text = hints.get(key, Any), ""
        if get_origin(hint) is Annotated:
            hint, text = get_args(hint)[:2]
        found[key] = Parameter(name=key, hint=hint, default=parameter.default, help=str(text))
    return found


def plain_of(thing: object) -> Any:
    """What a config says to get this thing: its name and every parameter but functions."""
    kind = next(kind for base, kind in _KINDS.items() if isinstance(thing, base))
    name = next((name for name, make in kind.names.items() if type(thing) is make), None)
    make: Any = type(thing)
    takes = parameters(make, kind)
    return Thing(
        kind=kind,
        name=name or f"{type(thing).__module__}:{type(thing).__qualname__}",
        make=make,
        values={key: getattr(thing, key, None) for key in takes},
        takes=takes,
        origin=None,
        path=(),
    ).plain()


def put(raw: dict[str, Any], key: str, said: Any) -> None:
    """Set a dotted key; sections on the way appear as needed."""
    *above, last = key.split(".")
    for name in above:
        inner = raw.get(name, {})
        if isinstance(inner, str):
            inner = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(
                f"cannot set {key}: {name} is {inner!r} and not a section\nmake it one: {name} = {{…}}"
            )
        raw[name] = inner
        raw = inner
    raw[last] = said


def place(path: Sequence[str], source: str, text: str) -> str:
    """The file and, where it can be found, the line of a key."""
    lines = dict(_lines(text))
    for length in range(len(path), 0, -1):
        if tuple(path[:length]) in lines:
            return f"{source}, line {lines[tuple(path[:length])]}"
    return source


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


def short(name: str) -> str:
    """The class of `package.module:Name`, for labels; other names are themselves."""
    return name.rpartition(":")[2]


def _content(kind: Kind, raw: Any, path: Path, folder: Folder | None) -> dict[str, Any]:
    """A table with a name in it, of whatever was written."""
    if kind.number and _try(float, raw, path)[1]:
        raw = {kind.number: raw}
    elif kind.number and not isinstance(raw, str | Mapping):
        names = ", ".join(kind.names)
        raise KeyProblem(path, f"{_dotted(path)} is {_shown(raw)}; it must be a number or one of {names}")
    content = dict(table(raw, path, example=f'name = "{next(iter(kind.names))}"'))
    if kind.number and len(content) == 1 and "name" not in content:
        ((name, said),) = content.items()
        takes = parameters(find(kind, str(name), path, folder)[1], kind)
        if not takes:
            raise KeyProblem(
                path, f'{_dotted(path)}: {kind.word} {name!r} takes no parameters\nwrite "{name}" alone'
            )
        return {"name": name, next(iter(takes)): said}
    if "name" not in content:
        where = f"[{_dotted(path)}]" if path else f"the {kind.word}"
        raise KeyProblem(path, f"{where} has no name; give one of {', '.join(kind.names)}")
    return content


def _try(hint: Any, raw: Any, path: Path, *, text: bool = True) -> tuple[Any, bool]:
    """The value, and whether it fits; `text` says whether text may be read as what is wanted."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return raw, True
    if origin is Annotated:
        reader = next((extra for extra in arguments[1:] if callable(extra)), None)
        if reader is not None:
            return (reader(raw), True) if isinstance(raw, str) else (None, False)
        return _try(arguments[0], raw, path, text=text)
    if origin is Literal:
        return raw, isinstance(raw, str | int) and raw in arguments
    if origin in (Union, types.UnionType):
        passes = (False, True) if text else (False,)
        tries = (_try(kind, raw, path, text=freely) for freely in passes for kind in arguments)
        return next((found for found in tries if found[1]), (None, False))
    if origin in (tuple, list, Sequence):
        if text and isinstance(raw, str) and "," in raw and not dataclasses.is_dataclass(arguments[0]):
            raw = [part.strip() for part in raw.split(",")]
        if not isinstance(raw, list | tuple):
            return None, False
        entries = [_try(arguments[0], said, (*path, str(i)), text=text) for i, said in enumerate(raw)]
        kind = list if origin is list else tuple
        return kind(entry for entry, _ in entries), all(fits for _, fits in entries)
    if origin is Mapping:
        if not isinstance(raw, Mapping):
            return None, False
        tried = {key: _try(arguments[1], said, (*path, str(key)), text=text) for key, said in raw.items()}
        return {key: entry for key, (entry, _) in tried.items()}, all(fits for _, fits in tried.values())
    if hasattr(hint, "parse"):
        return (hint.parse(raw), True) if isinstance(raw, str) else (raw, isinstance(raw, hint))
    if dataclasses.is_dataclass(hint):
        return (section(hint, raw, path), True) if isinstance(raw, Mapping) else (None, False)  # type: ignore[arg-type]  # a dataclass
    if text and isinstance(raw, str) and hint is not str:
        return _read(hint, raw.strip())
    if isinstance(raw, bool):
        return raw, hint is bool
    if (hint is int and isinstance(raw, Integral)) or (hint is float and isinstance(raw, Real)):
        try:
            return (int if hint is int else float)(raw), True  # type: ignore[call-overload]  # a Real
        except OverflowError:
            return None, False
    return raw, type(raw) is hint or (hint is types.NoneType and raw is None)


def _read(hint: Any, text: str) -> tuple[Any, bool]:
    """Text as a number, true or false, or nothing at all."""
    if hint is bool:
        return text.lower() in TRUE, text.lower() in (*TRUE, *FALSE)
    if hint is types.NoneType:
        return None, text.lower() == "none"
    try:
        return (hint(text), True) if hint in (int, float) else (None, False)
    except ValueError:
        return None, False


def _plain(said: Any) -> Any:
    """A value as a file says it; None for what no file can say."""
    if isinstance(said, Thing):
        return said.plain()
    if isinstance(said, tuple(_KINDS)):
        return plain_of(said)
    if isinstance(said, list | tuple):
        return [_plain(entry) for entry in said]
    if isinstance(said, Mapping):
        return {str(key): _plain(entry) for key, entry in said.items()}
    return said if isinstance(said, bool | int | float | str) else None


def _example(hint: Any) -> str:
    """A value that a parameter may take; of a kind, one that needs no parameters itself."""
    for member in _members(hint):
        if member in _KINDS:
            kind = _KINDS[member]
            simple = [
                name
                for name, make in kind.names.items()
                if not any(parameter.required for parameter in parameters(make, kind).values())
            ]
            return next(name for name in (*EXAMPLES, *simple) if name in simple)
    return "1" if int in _members(hint) else "0.1" if float in _members(hint) else "…"


def _members(hint: Any) -> list[Any]:
    """The types a value may have, None aside."""
    if get_origin(hint) not in (Union, types.UnionType):
        return [hint]
    return [member for member in get_args(hint) if member is not types.NoneType]


def _required(entry: "dataclasses.Field[Any]") -> bool:
    return entry.default is dataclasses.MISSING and entry.default_factory is dataclasses.MISSING


def _key(name: str) -> str:
    return name.replace("-", "_")


def _letters(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())


def _dotted(path: Sequence[str]) -> str:
    return ".".join(path)


def _shown(raw: Any) -> str:
    if isinstance(raw, type):
        return kind_of(raw)
    try:
        text = str(raw).lower() if isinstance(raw, bool) else repr(raw)
    except ValueError:  # a number of more digits than Python writes
        text = "a huge number"
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:57] + "..."
