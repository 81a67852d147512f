"""`clippedgossip demo`: the headline in under a minute."""

from pathlib import Path

import typer

from clippedgossip.cli.reproduce import Json, Out, reproduce


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(out: Out = Path("out/demo"), as_json: Json = False) -> None:
    """Robust consensus under attack: the paper's two figures, checked against what is published."""
    reproduce(["consensus"], out=out, as_json=as_json)
