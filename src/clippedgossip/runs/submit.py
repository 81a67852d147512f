"""Submit the parts of a sweep through submitit: as processes here, or as jobs of a Slurm cluster."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from clippedgossip.errors import RunError, first_line
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.fill import run_unfinished
from clippedgossip.runs.grid import shard

Launcher = Literal["local", "slurm", "debug"]


def launch(
    configs: Sequence[RunConfig],
    root: Path,
    *,
    launcher: Launcher,
    jobs: int = 1,
    minutes: int = 24 * 60,
    parameters: Mapping[str, Any] | None = None,
) -> list[Any]:
    """Submit `jobs` parts; the jobs, each of which gives the failures of its part: {folder: why}.

    `parameters` are submitit's own, such as {"slurm_partition": "gpu", "gpus_per_node": 1}. Logs lie in
    root/jobs. A job that is killed or times out leaves no locks: launch again, and it resumes.
    """
    import submitit

    try:
        executor = submitit.AutoExecutor(folder=root / "jobs", cluster=launcher)
        executor.update_parameters(name="clippedgossip", timeout_min=minutes, **(parameters or {}))
    except (RuntimeError, ValueError, NameError, TypeError) as error:
        raise RunError(
            f"submitit cannot use the launcher {launcher!r}: {first_line(error)}\n"
            "correct the --parameter, or take --launcher local, which needs no cluster"
        ) from error
    parts = [shard(configs, f"{part}/{jobs}") for part in range(1, min(jobs, len(configs)) + 1)]
    return [executor.submit(work, part, str(root)) for part in parts]


def work(configs: Sequence[RunConfig], root: str) -> dict[str, str]:
    """What a job does."""
    return run_unfinished(configs, root).failed
