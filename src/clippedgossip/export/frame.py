"""Runs on disk as rows: one for each record, with the keys of the run's config."""

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clippedgossip.errors import RunError
from clippedgossip.report.grouping import Run, find, flattened

if TYPE_CHECKING:
    import pandas

Runs = str | PathLike[str] | Sequence[str | PathLike[str]]
"""Folders of runs, or folders with runs below them."""


def results(runs: Runs = "runs") -> "pandas.DataFrame":
    """A pandas DataFrame with a row for each record of each run at or below these folders.

        frame = cg.results("runs/")
        frame.groupby("rule.name")["accuracy"].max()

    `run` is the name of the folder, `state` says whether the run is finished. Keys of the config have dots:
    `rule.name`, `training.lr`. The other columns are the fields of a record. A run that lies in two folders
    is there once.
    """
    return data_frame([row for run in read(runs) for row in rows(run)])


def read(runs: Runs) -> list[Run]:
    """Every run that has a record, each once."""
    return find([Path(runs)] if isinstance(runs, str | PathLike) else [Path(run) for run in runs])[0]


def rows(run: Run) -> Iterator[dict[str, Any]]:
    """The records of a run, each with what identifies the run."""
    told = {"run": run.directory.path.name, "state": run.directory.state, **settings(run.config)}
    for record in run.rounds:
        yield told | record.to_row()


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as one level of keys with dots. Lists become text."""
    return {key: str(value) if isinstance(value, list) else value for key, value in flattened(config).items()}


def data_frame(rows: Sequence[Mapping[str, Any]]) -> "pandas.DataFrame":
    """The rows as a pandas DataFrame."""
    try:
        import pandas
    except ImportError:
        raise RunError(
            "this gives a pandas DataFrame, but pandas is not installed\n"
            "install it (pip install pandas), or use the records themselves"
        ) from None
    return pandas.DataFrame(list(rows))
