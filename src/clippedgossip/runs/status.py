"""The status of the runs of a sweep."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clippedgossip.errors import RunError
from clippedgossip.records import ACCURACY, RunDirectory, State
from clippedgossip.runs.config import RunConfig

STATES: tuple[State, ...] = ("finished", "diverged", "running", "failed", "stopped", "new")


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """One run. A `diverged` run is over, a `stopped` run can be resumed, a `new` run was never started."""

    run: Path
    state: State
    why: str | None = None
    round: int | None = None
    rounds: int | None = None
    metric: str = ACCURACY
    score: float | None = None


def status(configs: Sequence[RunConfig], root: Path | str) -> list[RunStatus]:
    """The status of each config's run; makes no folder."""
    return [_status(config.run(root)) for config in configs]


def status_of_folder(root: Path) -> list[RunStatus]:
    """The status of every run in a folder."""
    found = [_status(RunDirectory(path.parent)) for path in sorted(root.glob("*/config.json"))]
    if not found:
        raise RunError(f"{root} holds no runs; give a sweep's file or its folder")
    return found


def _status(run: RunDirectory) -> RunStatus:
    if not run.config_path.exists():
        return RunStatus(run=run.path, state="new")
    state = run.state
    if state == "new" and run.checkpoint_path.exists():  # stopped before its first record
        state = "stopped"
    summary = run.summary or {}
    metric = str(summary.get("metric", ACCURACY))
    last = deque(run.records(), maxlen=1)
    return RunStatus(
        run=run.path,
        state=state,
        why=run.failure if state == "failed" else run.diverged,
        round=last[0].get("round") if last else None,
        rounds=run.config.get("training", {}).get("rounds"),
        metric=metric,
        score=summary.get(metric),
    )
