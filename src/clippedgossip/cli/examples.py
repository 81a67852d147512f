"""`clippedgossip examples`: the examples that come with the package, listed or copied."""

import json
import shutil
from importlib.resources import files
from pathlib import Path
from textwrap import fill
from typing import Annotated

import typer

from clippedgossip.cli.run import Json
from clippedgossip.errors import UserError, unknown_name


def examples(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Examples to copy, or all.")
    ] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Copy them to this folder.")] = Path("examples"),
    as_json: Json = False,
) -> None:
    """List the examples: configs to run and scripts to read. With names, copy them."""
    known = {path.name: path for path in sorted(_folder().iterdir()) if path.suffix or path.is_dir()}
    known = {name: path for name, path in known.items() if not name.startswith(("_", "."))}
    if not names:
        if as_json:
            print(json.dumps({name: _about(path) for name, path in known.items()}, indent=1))
            return
        for name, path in known.items():
            print(f"{name}\n{fill(_about(path), 79, initial_indent='  ', subsequent_indent='  ')}")
        print("\nTo copy one: clippedgossip examples dumbbell.toml")
        return
    chosen = list(known) if names == ["all"] else names
    for name in chosen:
        if name not in known:
            raise UserError(unknown_name("example", name, known))
        if (to / name).exists():
            raise UserError(f"{to / name} is there already\ngive another folder with --to, or delete it")
    from clippedgossip.files import writing

    copied = []
    with writing(to, "give another folder with --to"):
        to.mkdir(parents=True, exist_ok=True)
        for name in chosen:
            copy = shutil.copytree if known[name].is_dir() else shutil.copyfile
            copied.append(str(copy(known[name], to / name)))
    print(json.dumps(copied, indent=1) if as_json else "\n".join(f"wrote {path}" for path in copied))


def _folder() -> Path:
    """In the installed package, or beside its source."""
    inside = Path(str(files("clippedgossip") / "examples"))
    return inside if inside.is_dir() else Path(__file__).parents[3] / "examples"


def _about(path: Path) -> str:
    """Its first line: the comment of a config, the docstring of a script. Of a folder, its files."""
    if path.is_dir():
        return ", ".join(sorted(file.name for file in path.iterdir() if file.suffix in (".py", ".toml")))
    first = path.read_text(encoding="utf-8").split("\n", 1)[0].strip('#" ')
    return first.split(". ")[0].split("; ")[0].rstrip(".:")
