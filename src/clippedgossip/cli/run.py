"""`clippedgossip run`: one config, trained to the end."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from clippedgossip.errors import UserError, counted

if TYPE_CHECKING:
    from clippedgossip.runs.config import RunConfig
    from clippedgossip.runs.execute import Engine
    from clippedgossip.simulate.distributed.ranks import Ranks

Config = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file; `clippedgossip examples` has some.")
]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Changes, such as training.lr=0.1.")
]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder that holds the runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else.")]
CheckpointEvery = Annotated[
    float, typer.Option(metavar="SECONDS", min=0, help="Time between two checkpoints.")
]
Device = Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1.")]


def run(
    config: Config,
    overrides: Overrides = None,
    out: Out = Path("runs"),
    as_json: Json = False,
    device: Device = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the run.")] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Print the memory and time that the run needs, and stop.")
    ] = False,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="With --plan: number of ranks. The default is torchrun's.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Delete what the run has so far and start again.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the trained models.")] = False,
    checkpoint_every: CheckpointEvery = 30,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve a live page on loopback while it trains.")
    ] = False,
    rank_timeout: Annotated[
        float, typer.Option(min=1, help="With torchrun: seconds after which a silent rank counts as failed.")
    ] = 600,
) -> None:
    """Train as a config says. Each run has a folder of its own.

    A run that was stopped resumes from its last checkpoint. A finished run is not repeated.
    To use several processes or machines: torchrun --nproc-per-node 4 -m clippedgossip run CONFIG.
    """
    from clippedgossip.runs.config import load_config

    if ranks is not None and not plan:
        raise UserError(
            f"--ranks {ranks} works only with --plan; to run on {ranks} ranks:\n"
            f"torchrun --standalone --nproc-per-node {ranks} -m clippedgossip run {config}"
        )
    given = {"seed": seed, "device": device}
    options = {f"{key}={value}": f"--{key} {value}" for key, value in given.items() if value is not None}
    changes = [*(overrides or []), *options]

    def load() -> "RunConfig":
        return load_config(config, changes, typed=options)

    if plan:
        if os.environ.get("RANK", "0") == "0":
            _plan(load(), ranks or int(os.environ.get("WORLD_SIZE", "1")), as_json)
        return
    with _joined(rank_timeout) as together:
        if together is not None and together.rank:
            _follow(load, together)
            return
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        again = again and not (together is not None and restarted)
        loaded = load()
        if loaded.attack is not None and not as_json and not len(loaded.network.build().byzantine):
            idle = f"no Byzantine nodes, so nobody makes the attack {loaded.attack.name!r}"
            print(f"note: {idle}", file=sys.stderr)
        from clippedgossip.runs.execute import Attempt, Diverged, execute

        found = not again and Attempt.of(loaded, out).run.finished
        if watch and found:
            why = "no live page, since this run was finished before; `report` draws it"
            print(f"note: {why}", file=sys.stderr)
        diverged = None
        try:
            with _page(loaded, out) if watch and not found else nullcontext(), _progress(loaded) as on_round:
                done = execute(
                    loaded,
                    out,
                    resume=not again,
                    on_round=on_round,
                    checkpoint_every=checkpoint_every,
                    keep=keep,
                    engine=_engine(together),
                )
        except Diverged as error:
            done, diverged = error.run, error
    kept = {"models": str(done.checkpoint_path)} if done.checkpoint_path.exists() else {}
    summary = {"run": str(done.path), **kept, **(done.summary or {})}
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        _show(summary, loaded, found)
    if diverged is not None:
        raise diverged
    if keep and not kept:
        raise UserError(
            f"{done.path} was finished without --keep, so its models were deleted\n"
            "add --again to train them again"
        )


def launched() -> bool:
    """Whether torchrun started this process as one of several."""
    wanted = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return all(name in os.environ for name in wanted) and int(os.environ["WORLD_SIZE"]) > 1


def _joined(timeout: float) -> AbstractContextManager["Ranks | None"]:
    """The ranks that torchrun started; None without torchrun."""
    if not launched():
        return nullcontext()
    from clippedgossip.simulate.distributed.rendezvous import join

    return join(timeout=timeout)


def _engine(together: "Ranks | None") -> "Engine | None":
    if together is None:
        return None
    from clippedgossip.simulate.distributed.shard import engine_over

    return engine_over(together)


def _follow(load: Callable[[], "RunConfig"], together: "Ranks") -> None:
    """Follow rank 0's commands; rank 0 prints the messages of all ranks."""
    from clippedgossip.simulate.distributed.shard import follow

    try:
        follow(lambda: load().build(), ranks=together)
    except UserError as error:
        raise typer.Exit(2) from error


@contextmanager
def _progress(config: "RunConfig") -> Iterator[Callable[["RunConfig", Any], None]]:
    """A progress bar with the latest accuracy; where there is no terminal, a line now and then."""
    from clippedgossip.report.terminal import progress, score_text

    show: Callable[[str, int, int], None] | None = None
    label, began = config.label, time.monotonic()
    with ExitStack() as stack:

        def on_round(config: "RunConfig", moment: Any) -> None:
            nonlocal label, show
            if moment.record is not None and moment.record.score:
                metric, score = moment.record.metric, moment.record.score["all"]
                label = f"{config.label}: {metric} {score_text(metric, score)}"
            if show is None and (sys.stderr.isatty() or time.monotonic() - began > 5):
                show = stack.enter_context(progress())
            if show is not None:
                show(label, moment.round, config.training.rounds)

        yield on_round


def _page(config: "RunConfig", out: Path) -> AbstractContextManager[None]:
    """A live page while the run trains."""
    from clippedgossip.watch.live_page import Server
    from clippedgossip.watch.watched_run import WatchedRun

    return Server(WatchedRun(config.run(out), config.to_mapping(), config.network.build())).beside()


def _show(summary: dict[str, Any], config: "RunConfig", found: bool) -> None:
    training = config.training
    last = 1 if "diverged" in summary else min(training.evaluate_last, summary["rounds"])
    columns = [_column(summary)]
    end = _column(summary["last_round"]) if "last_round" in summary else columns[0]  # 0.1 did not write it
    if end != columns[0]:
        columns.append(end)
    metric = summary.get("metric", "accuracy")
    rounds = counted(summary["rounds"], "round")
    print(f"{config.label}: {rounds}, {summary['seconds']:.1f} s on {summary['device']}")
    if found:
        print("this run was finished before; --again repeats it")
    if len(columns) > 1:
        print(f"  {'':<20} {'mean':>8} {'at the end':>11}")
    for name in columns[0]:
        print(f"  {name:<20} {columns[0][name]:>8}" + "".join(f" {more[name]:>11}" for more in columns[1:]))
    means = f"means over the last {last} rounds" if last > 1 else "at the last record"
    print(f"{means}; {metric} is that of the averaged model")
    if training.evaluate_last >= summary["rounds"] > 1:
        print(f"these are all rounds: training.evaluate_last is {training.evaluate_last}")
    print(f"run: {summary['run']}")
    if "models" in summary:
        print(f"models: {summary['models']}")


def _column(measured: dict[str, Any]) -> dict[str, str]:
    """What the table shows, by the name of its row."""
    from clippedgossip.report.terminal import percent, score_text

    distance = measured["consensus_distance"]
    metric, groups = measured.get("metric", "accuracy"), measured["groups"]
    rows = {
        metric: score_text(metric, measured[metric]),
        **{f"  {name}": score_text(metric, value) for name, value in groups.items() if name != "all"},
        "single nodes": score_text(metric, measured[f"mean_{metric}"]),
        "worst node": score_text(metric, measured[f"worst_{metric}"]),
        "consensus distance": "–" if distance is None else f"{distance:.3g}",
    }
    clipped = measured["clipped"]
    return rows if clipped is None else rows | {"messages clipped": percent(clipped)}


def _plan(config: "RunConfig", ranks: int, as_json: bool) -> None:
    from dataclasses import asdict

    from clippedgossip.devices import find_device, free_memory
    from clippedgossip.runs.budget import LINK, check, measure, plan

    device = str(find_device(config.device))
    planned, free = plan(config, ranks=ranks, device=device), free_memory(device)
    if planned.memory_bytes <= free:  # the checks make the model
        check(config)
    ceilings = measure(device)
    seconds = planned.seconds(ceilings)
    if as_json:
        more = {"memory_bytes": planned.memory_bytes, "free_bytes": free, "seconds_per_round": seconds}
        print(json.dumps(asdict(planned) | more | {"device": device}, indent=1))
        return
    rank, ranked = ("rank", "ranks") if ranks > 1 else ("run", "rank")
    print(f"{planned.workers} workers with {planned.parameters:,} parameters, {ranks} {ranked} on {device}")
    rows = [
        ("models, momentum, buffers", planned.models_bytes),
        ("activations", planned.activations_bytes),
        ("a step's data (rest on host)" if planned.data_on_host else "data", planned.data_bytes),
        (f"memory per {rank}", planned.memory_bytes),
        ("free here now", free),
    ]
    if ranks > 1:
        rows.append(("sent per rank and round", planned.traffic_bytes))
        rows.append(("checkpoints, CPU of rank 0", planned.gathered_bytes))
    for name, count in rows:
        print(f"  {name:<28} {count:>20,} bytes")
    least = f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
    print(f"a round takes at least {least}. Speeds of this machine, measured now:")
    print(f"  {ceilings.flops / 1e9:,.0f} Gflop/s in products")
    print(f"  {ceilings.bandwidth / 1e9:,.1f} GB/s of memory")
    if ranks > 1:
        print(f"  {LINK * 8 / 1e9:.0f} Gbit/s between ranks (assumed, not measured)")
    if planned.memory_bytes > free:
        print(f"it does not fit: {planned.memory_bytes:,} bytes needed, {free:,} free")
        print("spread it over more ranks with torchrun")
