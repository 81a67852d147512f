"""`clippedgossip sweep`: many runs, by any number of processes and machines."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clippedgossip.cli.run import CheckpointEvery, Device, Json, Overrides
from clippedgossip.errors import UserError, counted, harmless

if TYPE_CHECKING:
    from clippedgossip.runs.config import RunConfig

File = Annotated[Path, typer.Argument(metavar="SWEEP", help="A TOML file with a section called grid.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder of the runs. The default is runs/<name of the file>."),
]


class DefaultsToRun(typer.core.TyperGroup):
    """`sweep FILE` is `sweep run FILE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ctx.help_option_names:
            args = ["run", *args]
        return super().parse_args(ctx, args)


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(
        cls=DefaultsToRun,
        no_args_is_help=True,
        help="Run the unfinished runs of a sweep, or show their status. `sweep FILE` is `sweep run FILE`.",
    )
    group.command("run")(run)
    group.command("status")(status)
    app.add_typer(group, name="sweep")


def run(
    file: File,
    overrides: Overrides = None,
    out: Out = None,
    shard: Annotated[str | None, typer.Option(metavar="3/8", help="Only this part of the runs.")] = None,
    device: Device = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until other processes are done too.")] = False,
    checkpoint_every: CheckpointEvery = 30,
    launcher: Annotated[
        Literal["local", "slurm", "debug"] | None, typer.Option(help="Submit jobs through submitit.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="With --launcher: how many jobs share the runs. The default is 1."),
    ] = None,
    minutes: Annotated[
        int | None, typer.Option(min=1, help="With --launcher: time of a job. The default is a day.")
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE", help="With --launcher: a parameter of submitit, such as slurm_partition=gpu."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train the unfinished runs. Any number of processes and machines may run this at once.

    `sweep FILE` means `sweep run FILE`. Exit code 1 if a run failed.
    """
    from clippedgossip.runs.grid import load_sweep
    from clippedgossip.runs.grid import shard as part

    if launcher is None and (idle := _said(jobs=jobs, minutes=minutes, parameter=parameter)):
        raise UserError(
            f"{idle} works only with --launcher; add --launcher local or slurm\n"
            "without it, start the command in several shells; --shard 1/2 is not needed"
        )
    changes = [*(overrides or []), *([] if device is None else [f"device={device}"])]
    configs = load_sweep(file, changes)
    if shard is not None:
        configs = part(configs, shard)
    root = _folder(file, out)
    if launcher is not None:
        done = _launch(configs, root, launcher, jobs or 1, minutes or 24 * 60, parameter or [])
    else:
        done = _run(configs, root, wait, checkpoint_every)
    if as_json:
        print(json.dumps({"folder": str(root), "runs": len(configs), **done}, indent=1))
    else:
        _say(done, len(configs), root)
    if done["failed"]:
        raise typer.Exit(1)


def status(
    what: Annotated[Path, typer.Argument(metavar="SWEEP|DIR", help="A sweep's file, or a folder of runs.")],
    overrides: Overrides = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Show which runs are done, running, stopped, new, failed or diverged, and why."""
    from clippedgossip.runs.grid import load_sweep
    from clippedgossip.runs.status import STATES, status_of_folder
    from clippedgossip.runs.status import status as status_of

    if what.is_dir():
        root, statuses = what, status_of_folder(what)
    else:
        root = _folder(what, out)
        statuses = status_of(load_sweep(what, overrides or []), root)
    if as_json:
        print(json.dumps([vars(one) | {"run": str(one.run)} for one in statuses], indent=1))
        return
    counts = {state: sum(s.state == state for s in statuses) for state in STATES}
    print(f"{root}: {counted(len(statuses), 'run')}")
    print("  " + ", ".join(f"{count} {state}" for state, count in counts.items() if count))
    for state in ("running", "stopped", "diverged", "failed"):
        for one in (s for s in statuses if s.state == state):
            at = "" if one.round is None else f", round {one.round} of {one.rounds}"
            _show(state, one.run.name + at, one.why)


def _said(**options: object) -> str:
    """The options that were given, as they were written."""
    return ", ".join(f"--{name}" for name, value in options.items() if value)


def _run(configs: Sequence["RunConfig"], root: Path, wait: bool, checkpoint_every: float) -> dict[str, Any]:
    from clippedgossip.report.terminal import progress
    from clippedgossip.runs.fill import TOGETHER, run_unfinished

    with progress() as show:  # few at a time: others may share the runs
        outcome = run_unfinished(
            configs, root, together=TOGETHER, wait=wait, checkpoint_every=checkpoint_every, progress=show
        )
    found = {"done": outcome.done, "diverged": outcome.diverged, "failed": outcome.failed}
    return found | {"elsewhere": [str(run.path) for run in outcome.elsewhere]}


def _launch(
    configs: Sequence["RunConfig"],
    root: Path,
    launcher: Literal["local", "slurm", "debug"],
    jobs: int,
    minutes: int,
    parameters: list[str],
) -> dict[str, Any]:
    from clippedgossip.runs.config import override
    from clippedgossip.runs.status import status
    from clippedgossip.runs.submit import launch

    started = launch(
        configs, root, launcher=launcher, jobs=jobs, minutes=minutes, parameters=override({}, parameters)
    )
    names = [str(job.job_id) for job in started]
    print(f"{counted(len(started), 'job')}: {', '.join(names)}; logs in {root / 'jobs'}", file=sys.stderr)
    failed: dict[str, str] = {}
    if launcher != "slurm":
        for job in started:
            try:
                failed |= job.result()
            except Exception as error:  # a job that died: the status of its runs is stopped
                failed[f"job {job.job_id}"] = str(error).strip().splitlines()[-1]
    statuses = status(configs, root)
    done = sum(one.state in ("finished", "diverged") for one in statuses)
    diverged = {str(s.run): s.why for s in statuses if s.state == "diverged"}
    return {"done": done, "diverged": diverged, "failed": failed, "elsewhere": [], "jobs": names}


def _say(done: dict[str, Any], total: int, root: Path) -> None:
    elsewhere = len(done["elsewhere"])
    more = f", {elsewhere} being run by other processes" if elsewhere else ""
    print(f"{done['done']} of {total} runs finished{more}")
    for state in ("diverged", "failed"):
        for run, why in done[state].items():
            _show(state, Path(run).name, why)
    print(f"runs: {root}")


def _show(state: str, run: str, why: str | None) -> None:

    print(f"{state}: {run}")
    if why:
        print(indent(harmless(why), "  ", lambda line: True))


def _folder(file: Path, out: Path | None) -> Path:
    return Path("runs") / file.stem if out is None else out
