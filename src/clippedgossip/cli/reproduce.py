"""`clippedgossip reproduce`: the paper's figures, checked against what is published."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from clippedgossip.experiments import Options, Reproduction

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for pages and runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON, and nothing else.")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("reproduce")(reproduce)


def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Figures by name (consensus), or all.")],
    out: Out = Path("out"),
    scale: Annotated[
        Literal["quick", "paper"], typer.Option(help="Training figures: a miniature, or the paper's setting.")
    ] = "quick",
    seeds: Annotated[int, typer.Option(min=1, help="Training figures: runs per curve.")] = 5,
    device: Annotated[str, typer.Option(help="Training figures: cpu, cuda, or auto.")] = "auto",
    as_json: Json = False,
) -> None:
    """Draw figures of the paper and check every claim; exit code 1 if one does not hold."""
    from clippedgossip.experiments import Options, resolve

    chosen = resolve(names)
    options = Options(scale=scale, seeds=seeds, device=device, out=out)
    done = [run(name, options, quiet=as_json) for name in chosen]
    if as_json:
        rows = {name: part.experiment.rows(part.result) for name, part in zip(chosen, done, strict=True)}
        print(json.dumps(rows[chosen[0]] if len(chosen) == 1 else rows, indent=1))
    failed = sum(part.failed for part in done)
    if failed:
        print(f"{failed} of the claims {'does' if failed == 1 else 'do'} not hold", file=sys.stderr)
        raise typer.Exit(1)


def run(name: str, options: "Options", *, quiet: bool) -> "Reproduction":
    """One experiment, shown on the terminal unless quiet."""
    from rich.console import Console

    from clippedgossip.cli.progress import progress
    from clippedgossip.experiments import reproduce

    with progress() as show:
        done = reproduce(name, options, show)
    if not quiet:
        console = Console(highlight=False)
        console.print(done.experiment.table(done.result), done.claims.to_rich(), sep="\n")
        print(f"page: {done.path}")
    return done
