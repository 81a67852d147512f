"""`clippedgossip demo`: the headline in under a minute."""

import json
from pathlib import Path

import typer

from clippedgossip.cli.reproduce import Json, Out, run, verdict


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(out: Out = Path("out"), as_json: Json = False) -> None:
    """Train on a dumbbell and on a ring full of liars: who learns everything, who falls."""
    from clippedgossip.paper import Options
    from clippedgossip.paper.demo import EXPERIMENT

    done = run(EXPERIMENT, Options(seeds=1, device="cpu", out=out), quiet=as_json)
    if as_json:
        print(json.dumps(EXPERIMENT.rows(done.result), indent=1))
    verdict([done])
