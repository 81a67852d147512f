"""How a sweep stands."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from clippedgossip.errors import RunError
from clippedgossip.records import RunDirectory, run_name
from clippedgossip.runs.config import RunConfig

State = Literal["finished", "diverged", "running", "failed", "stopped", "missing"]
STATES: tuple[State, ...] = ("finished", "diverged", "running", "failed", "stopped", "missing")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """One run: `diverged` is over, `stopped` will go on, `missing` was never begun."""

    run: Path
    state: State
    why: str | None = None
    round: int | None = None
    rounds: int | None = None
    accuracy: float | None = None


def status(configs: Sequence[RunConfig], root: Path | str) -> list[Standing]:
    """The standing of each run; nothing is created."""
    return [_standing(Path(root) / run_name(config.to_mapping(), config.label)) for config in configs]


def status_of_folder(root: Path) -> list[Standing]:
    """The standing of every run in a folder."""
    found = [_standing(path) for path in _runs(root)]
    if not found:
        raise RunError(f"{root} holds no runs; give a sweep's file or its folder")
    return found


def _runs(root: Path) -> Iterator[Path]:
    yield from sorted(path.parent for path in root.glob("*/config.json"))


def _standing(path: Path) -> Standing:
    run = RunDirectory(path)
    if not run.config_path.exists():
        return Standing(run=path, state="missing")
    config: dict[str, Any] = run.config
    state: State = "missing" if run.state == "new" else run.state
    if state == "missing" and run.checkpoint_path.exists():  # stopped before its first record
        state = "stopped"
    last = None
    for record in run.records():
        last = record
    return Standing(
        run=path,
        state=state,
        why=run.failure if state == "failed" else run.diverged,
        round=None if last is None else last.get("round"),
        rounds=config.get("training", {}).get("rounds"),
        accuracy=(run.summary or {}).get("accuracy"),
    )
