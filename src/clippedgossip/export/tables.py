"""Records for other tools: a CSV file, a Parquet file, or a folder for TensorBoard."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from clippedgossip.errors import NO_TEXT, RunError
from clippedgossip.export.frame import Runs, data_frame, read, rows
from clippedgossip.files import canonical, replacing, writing
from clippedgossip.report.grouping import Run


def write_tables(runs: Runs, format: str, out: Path) -> int:
    """Write the records of all runs; returns how many runs there are."""
    found = read(runs)
    with writing(out, "give another path with --out"):
        out.parent.mkdir(parents=True, exist_ok=True)
        FORMATS[format](found, out)
    return len(found)


def _csv(runs: list[Run], out: Path) -> None:
    write_csv([row for run in runs for row in rows(run)], out)


def write_csv(table: Sequence[Mapping[str, Any]], out: Path) -> None:
    """The rows under all their keys, whole or not at all."""
    names = list(dict.fromkeys(name for row in table for name in row))
    with (
        replacing(out) as temporary,
        temporary.open("w", newline="", encoding="utf-8", errors=NO_TEXT) as file,
    ):
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(table)


def _parquet(runs: list[Run], out: Path) -> None:
    frame = data_frame([row for run in runs for row in rows(run)])
    for name in frame.select_dtypes(object):  # a key may be a number in one run and text in another
        frame[name] = frame[name].map(str, na_action="ignore")
    try:
        with replacing(out) as temporary, temporary.open("wb") as file:
            frame.to_parquet(file, index=False)
    except ImportError:
        raise RunError(
            "Parquet needs pyarrow, which is not installed\ninstall it: pip install pyarrow"
        ) from None


def _tensorboard(runs: list[Run], out: Path) -> None:
    """A folder for each run: every number against the round, and the config as text."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise RunError(
            "TensorBoard's files need tensorboardX, which is not installed\n"
            "install it: pip install tensorboardX"
        ) from None
    for run in runs:
        folder = out / run.directory.path.name
        for old in folder.glob("events.out.tfevents.*"):  # what an earlier export wrote
            old.unlink()
        with SummaryWriter(str(folder), write_to_disk=True) as writer:
            writer.add_text("config", f"```\n{canonical(run.config)}\n```", 0)
            for record in run.rounds:
                for name, value in _numbers(record.to_row()).items():
                    writer.add_scalar(name, value, record.round)


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name != "round" and isinstance(value, int | float) and not isinstance(value, bool)
    }


FORMATS: Mapping[str, Callable[[list[Run], Path], None]] = {
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
}
"""What `write_tables` writes, by the names that `--to` takes."""
