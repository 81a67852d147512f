"""The reference, made from the program itself: public names, commands, keys of configs, fields of records."""

import ast
import dataclasses
import importlib
import inspect
import io
import sys
import textwrap
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from clippedgossip.peer.peer_config import Address

MODULES = (
    "rules",
    "attacks",
    "graphs",
    "audit",
    "theory",
    "tasks",
    "step",
    "simulate",
    "facade",
    "export",
    "peer",
    "errors",
)
"""The public modules, in the order of the reference; the package itself comes first."""


def public() -> Iterator[tuple[str, str, Any]]:
    """(module, name, thing) for every public name, each thing where it stands first."""
    seen: set[int] = set()
    for place in ("clippedgossip", *(f"clippedgossip.{name}" for name in MODULES)):
        module = importlib.import_module(place)
        for name in names_of(module):
            thing = getattr(module, name)
            if name.startswith("__") or isinstance(thing, ModuleType) or id(thing) in seen:
                continue
            seen.add(id(thing))
            yield place, name, thing


def adapters() -> Iterator[tuple[str, ast.ClassDef | ast.FunctionDef]]:
    """(module, definition) of every adapter, from its source: the library that it is for may be absent."""
    import clippedgossip.adapters

    for path in sorted(Path(clippedgossip.adapters.__path__[0]).glob("[a-z]*.py")):
        for made in ast.parse(path.read_text()).body:
            if isinstance(made, ast.ClassDef | ast.FunctionDef) and not made.name.startswith("_"):
                yield f"clippedgossip.adapters.{path.stem}", made


def names_of(module: ModuleType) -> list[str]:
    """A module's `__all__`; without one, the classes and functions that it defines."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    ]


def document_of(place: str, name: str, thing: Any) -> str:
    """The docstring that someone wrote: not a dataclass's signature, not that of a constant's type."""
    if isinstance(thing, type) or inspect.isroutine(thing):
        written = inspect.getdoc(thing) or ""
        return "" if written.startswith(f"{name}(") else written
    homes = (
        module for word, module in sys.modules.items() if module and (word + ".").startswith(place + ".")
    )
    found = (attribute_documents(home).get(name, "") for home in list(homes) if vars(home).get(name) is thing)
    return next(filter(None, found), "")


def attribute_documents(owner: ModuleType | type) -> dict[str, str]:
    """The text behind each assignment in a module or class: a string beneath it, or a comment beside it."""
    found: dict[str, str] = {}
    kinds = owner.__mro__[::-1] if isinstance(owner, type) else (owner,)
    for kind in kinds:
        if isinstance(kind, ModuleType) or dataclasses.is_dataclass(kind):
            found |= _documents_in(kind)
    return found


@cache
def _documents_in(owner: ModuleType | type) -> dict[str, str]:
    source = textwrap.dedent(inspect.getsource(owner))
    tree = ast.parse(source)
    first = tree.body[0]
    body = first.body if isinstance(owner, type) and isinstance(first, ast.ClassDef) else tree.body
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    found = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign | ast.Assign):
            target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
            text = comments.get(statement.end_lineno or 0, "")
            if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                text = inspect.cleandoc(str(following.value.value))
            found[ast.unparse(target)] = text
    return found


def write(folder: Path) -> None:
    """All pages of the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_names(folder / "python")
    (folder / "commands.md").write_text("".join(_commands()))
    (folder / "config.md").write_text("".join(_config()))
    (folder / "records.md").write_text(_records())


def _write_names(folder: Path) -> None:
    folder.mkdir()
    places: dict[str, list[str]] = {}
    for place, name, thing in public():
        kind = "class" if isinstance(thing, type) else "function"
        if isinstance(thing, type) and issubclass(thing, Exception):
            kind = "exception"
        if not callable(thing):
            entry = f".. py:data:: {place}.{name}\n\n   {document_of(place, name, thing)}\n"
        else:
            entry = f".. auto{kind}:: {place}.{name}\n"
        places.setdefault(place, []).append(entry)
    for place, made in adapters():
        kind = "class" if isinstance(made, ast.ClassDef) else "function"
        places.setdefault(place, []).append(f".. auto{kind}:: {place}.{made.name}\n")
    for place, entries in places.items():
        spec = find_spec(place)
        about = ast.get_docstring(ast.parse(Path(str(spec and spec.origin)).read_text())) or ""
        body = "\n".join(entries)
        (folder / f"{place}.md").write_text(f"# {place}\n\n{about}\n\n```{{eval-rst}}\n{body}```\n")
    listed = "\n".join(places)
    (folder / "index.md").write_text(
        "# Public names\n\n`import clippedgossip as cg` gives the names of the first page, and the modules "
        f"of the others as `cg.rules` and so on.\n\n```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    )


def _commands() -> Iterator[str]:
    from typer.main import get_command

    from clippedgossip.cli.app import app
    from clippedgossip.cli.networks import listing

    yield "# Commands\n\n`--help` says the same in a terminal.\n"
    yield from _command(get_command(app), "clippedgossip")
    yield f"\n## Networks\n\nNames of networks, their options and defaults:\n\n```\n{listing()}\n```\n"


def _command(command: Any, path: str) -> Iterator[str]:
    inner = getattr(command, "commands", None)
    about = inspect.cleandoc(command.help or "").replace("\b", "")
    if path != "clippedgossip":
        yield f"\n## `{path}`\n\n{about}\n"
    shown = [entry for entry in command.params if not getattr(entry, "hidden", False)]
    rows = [_option(entry) for entry in shown if entry.name != "help"]
    if rows and not inner:
        yield "\n| | | |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    for name, below in (inner or {}).items():
        if not below.hidden:
            yield from _command(below, f"{path} {name}")


VALUES = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


def _option(entry: Any) -> str:
    if entry.param_type_name == "argument":
        said = (entry.metavar or entry.name.upper()) + ("" if entry.required else " (optional)")
    else:
        said = ", ".join([*entry.opts, *entry.secondary_opts])
        if not entry.is_flag:
            said += f" {entry.metavar or VALUES.get(type(entry.default), 'VALUE')}"
    default = entry.default
    plain = default is not None and not callable(default) and default not in (False, (), [], "")
    text = " ".join((getattr(entry, "help", None) or "").split())
    return f"| `{said}` | {_cell(text)} | {f'`{default}`' if plain else ''} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _config() -> Iterator[str]:
    from clippedgossip.attacks import ATTACKS
    from clippedgossip.peer import Config as PeerConfig
    from clippedgossip.peer.peer_config import Deadlines, Limits, Neighbour, Wire
    from clippedgossip.rules import RADII, RULES
    from clippedgossip.runs.config import NetworkConfig, RunConfig
    from clippedgossip.settings import DataConfig, TrainingConfig
    from clippedgossip.step import OPTIMIZER
    from clippedgossip.tasks.models import MODEL

    yield (
        "# Keys of a config\n\nA config is a TOML file. [Training](../training.md) shows one and explains the "
        "keys in context. `clippedgossip run FILE section.key=value` changes a key on the command line.\n"
    )
    yield "\n## A run\n" + _keys(RunConfig)
    yield "\n### `[network]`\n" + _keys(NetworkConfig)
    yield "\nThe other keys are the parameters of the network: [they are listed with the commands](commands.md#networks).\n"
    yield "\n### `[data]`\n" + _keys(DataConfig)
    yield "\n### `[training]`\n" + _keys(TrainingConfig)
    for title, names in (
        ("`[rule]`", RULES),
        ("`rule.radius`", RADII),
        ("`[attack]`", ATTACKS),
        ("`[model]`", MODEL.names),
        ("`training.optimizer`", OPTIMIZER.names),
    ):
        yield f"\n### {title}\n\n| name | keys |\n|---|---|\n"
        for name, thing in names.items():
            yield f"| `{name}` | {_parameters(thing)} |\n"
    yield "\n## A peer\n\n`peer.toml`; [Peers](../peers.md#the-config) shows one.\n" + _keys(PeerConfig)
    for title, kind in (
        ("deadlines", Deadlines),
        ("limits", Limits),
        ("wire", Wire),
        ("[neighbours]", Neighbour),
    ):
        yield f"\n### `[{title}]`\n" + _keys(kind)


def _parameters(thing: Any) -> str:
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return ""
    said = [
        entry.name if entry.default is entry.empty else f"{entry.name} = {entry.default}"
        for entry in signature.parameters.values()
        if entry.name not in NOT_IN_A_FILE
    ]
    return ", ".join(f"`{word}`" for word in said)


NOT_IN_A_FILE = {"folder", "parameters", "loss", "loss_of", "shape", "classes"}
"""Fields and parameters that a program sets, not a file."""


def keys_of(kind: type) -> Mapping[str, dataclasses.Field[Any]]:
    """The keys of a section of a config."""
    return {entry.name: entry for entry in dataclasses.fields(kind) if entry.name not in NOT_IN_A_FILE}


def _keys(kind: type) -> str:
    documents, hints = attribute_documents(kind), get_type_hints(kind, include_extras=True)
    about = inspect.getdoc(kind) or ""
    rows = [
        f"| `{name}` | {_cell(kind_of(hints[name]))} | {default_of(entry)} | {_cell(documents.get(name, ''))} |"
        for name, entry in keys_of(kind).items()
    ]
    return f"\n{about}\n\n| key | kind | default | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


KINDS: Mapping[Any, str] = {
    str: "text",
    bytes: "text",
    int: "whole number",
    float: "number",
    bool: "true or false",
    NoneType: "",
    Path: "path",
    Address: "host:port",
    Mapping: "table",
    tuple: "list",
}


def kind_of(hint: Any) -> str:
    """A type in words."""
    kind, parts = get_origin(hint) or hint, get_args(hint)
    if kind is Literal:
        return " or ".join(f"`{word}`" for word in parts)
    if kind is Annotated:
        return kind_of(parts[0])
    if kind in (Union, UnionType):
        return " or ".join(dict.fromkeys(word for part in parts if (word := kind_of(part))))
    return KINDS.get(kind, "table")


def default_of(entry: dataclasses.Field[Any]) -> str:
    """As a config has it. Tables are described by their own keys."""
    value = entry.default
    table = dataclasses.is_dataclass(value) and not isinstance(value, Address)
    if table or value in (dataclasses.MISSING, None, "", b"", ()):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _records() -> str:
    from clippedgossip.records import Round

    documents = attribute_documents(Round)
    rows = [
        f"| `{entry.name}` | {_cell(documents.get(entry.name, ''))} |"
        for entry in dataclasses.fields(Round)
        if entry.name != "extra"
    ]
    return (
        "# Fields of a record\n\n`records.jsonl` has a line of JSON for each evaluated round, of a simulated run "
        "or of a peer. A field that was not measured is left out. [Training](../training.md#the-folder-of-a-run) "
        "describes the other files of a run.\n\n| field | |\n|---|---|\n" + "\n".join(rows) + "\n"
    )
