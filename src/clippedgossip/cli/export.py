"""`clippedgossip export`: records for other tools."""

import json
from pathlib import Path
from typing import Annotated, Literal

import typer

from clippedgossip.cli.run import Json
from clippedgossip.errors import counted


def export(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUNS...", help="Run folders, or folders with runs below them.")
    ],
    to: Annotated[
        Literal["csv", "parquet", "tensorboard"],
        typer.Option(help="A CSV file, a Parquet file, or a folder for TensorBoard."),
    ] = "csv",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Where to write. The default is runs.csv, runs.parquet or tensorboard/."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write every record of runs as a row, with the keys of its config as columns.

    For TensorBoard, each run has a folder: tensorboard --logdir PATH shows them.
    """
    from clippedgossip.export import write_tables

    place = out or Path("tensorboard" if to == "tensorboard" else f"runs.{to}")
    count = write_tables(runs, to, place)
    if as_json:
        print(json.dumps({"runs": count, "to": str(place)}))
    else:
        print(f"wrote {counted(count, 'run')} to {place}")
