"""`clippedgossip reproduce`: the figures of the paper, checked against the published numbers."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from clippedgossip.cli import networks
from clippedgossip.errors import UserError

if TYPE_CHECKING:
    from clippedgossip.paper.base import Experiment, Options, Reproduction

Out = Annotated[Path, typer.Option(metavar="DIR", help="Folder for pages and runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the rows as JSON, and nothing else.")]


def _known() -> str:
    names = ", ".join([*networks.catalogue("figures"), "all (those of the paper)", "ours (the others)"])
    return fill(f"Figures: {names}", 80, subsequent_indent="  ", break_on_hyphens=False)


SETTINGS = {"cls": networks.help_with(_known)}


def reproduce(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Figures by name, listed below, or all, or ours.")
    ],
    out: Out = Path("out"),
    scale: Annotated[
        Literal["quick", "paper"] | None,
        typer.Option(
            help="Training figures: quick, the default, is small enough for two CPU cores, paper is the "
            "paper's own."
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Training figures: runs per curve; quick 3, paper 5.")
    ] = None,
    device: Annotated[str, typer.Option(help="Training figures: cpu, cuda, or auto.")] = "auto",
    precision: Annotated[
        Literal["float32", "tf32", "bfloat16"] | None,
        typer.Option(help="Precision of the products in the gradients; all else is float32."),
    ] = None,
    length: Annotated[
        float, typer.Option(min=0.001, max=1, help="Training figures: the fraction of the rounds to run.")
    ] = 1.0,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; the default is one for each CPU core, one on a GPU.")
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="PATH", help="Draw from a results.json, or a folder of them. Run nothing."
        ),
    ] = None,
    known: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Training figures: do not repeat the runs in a results.json, or a folder of them.",
        ),
    ] = None,
    as_released: Annotated[
        bool,
        typer.Option(
            "--as-released", help="Compare with all these deviations of the authors' released code."
        ),
    ] = False,
    deviation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Compare with one: bucketing, bit-flipping, few-images, one-mask, cnn, adaptive-radius.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw figures of the paper and check every claim. Exit code 1 if a claim does not hold (not with
    --length below 1), 2 if a figure has no results.

    A claim holds, does not hold or is undecided by the 95 % confidence interval
    over the seeds. One seed decides nothing.

    Finished runs are not run again. Stopped runs resume. Each figure has a
    folder with a page (index.html), its claims (claims.json) and its numbers
    (results.json). From these numbers --from draws the page again, and --known
    adds what is missing; consensus keeps none and is computed each time, in
    seconds. Several figures also have a page in common.
    """
    from clippedgossip.paper.base import Options, resolve

    chosen = resolve(names)
    for option, path in (("--from", source), ("--known", known)):
        if path is not None and not path.exists():
            raise UserError(f"{option} {path} does not exist\ngive a results.json, or a folder of them")
    if source is not None and known is not None:
        raise UserError("--known adds runs, and --from runs nothing\ngive one of them")
    if as_released and deviation:
        raise UserError("--as-released has all deviations, --deviation has one\ngive one of them")
    given = {"--seeds": seeds is not None, "--precision": precision is not None, "--length": length < 1}
    if source is not None and (idle := [option for option, is_given in given.items() if is_given]):
        raise UserError(
            f"--from draws what is in {source}, whatever {' and '.join(idle)} may be\n"
            f"leave {' and '.join(idle)} out, or give --known in place of --from"
        )
    options = Options(
        scale=scale or "quick",
        seeds=seeds,
        device=device,
        precision=precision,
        length=length,
        workers=workers,
        out=out,
        source=source,
        source_scale=scale,
        known=known,
        lenient=len(chosen) > 1,
    )
    experiments: Sequence[str | Experiment[Any]] = chosen
    if as_released or deviation:
        from clippedgossip.paper.deviations import with_deviations

        experiments = with_deviations(chosen, () if as_released else deviation or ())
    run(experiments, options, as_json=as_json)


def run(experiments: "Sequence[str | Experiment[Any]]", options: "Options", *, as_json: bool) -> None:
    """Do all runs, then judge and show each experiment. Exit code 1 if a claim does not hold, 2 if there
    are no results of a figure."""
    from clippedgossip.paper.base import prepare
    from clippedgossip.report.terminal import claims_table, progress, readers_may_leave, show, table

    with progress() as tell:
        prepared = prepare(experiments, options, tell)
    done: list[Reproduction] = []
    for entry in prepared:
        with progress() as tell:
            part = entry.judge(tell)
        done.append(part)
        with readers_may_leave():
            if not as_json:
                if not part.experiment.empty(part.result):
                    print(f"{table(part.experiment.table(part.result))}\n")
                if part.claims.claims:
                    show(claims_table(part.claims))
                print(f"page: {part.path}\n" if len(prepared) > 1 else f"page: {part.path}")
    if as_json:
        rows = {part.experiment.name: part.experiment.rows(part.result) for part in done}
        with readers_may_leave():
            print(json.dumps(rows if len(rows) > 1 else next(iter(rows.values())), indent=1))
    if len(done) > 1:
        from clippedgossip.paper.overview import write_overview

        page = write_overview(done, options)
        if not as_json:
            print(f"all figures: {page}")
    say_missing(done, options.source)
    verdict(done)


def say_missing(done: "Sequence[Reproduction]", source: Path | None) -> None:
    """Say which results are missing and why. A figure without any is an error: its claims have no verdict."""
    without = {}
    for part in done:
        troubles = getattr(part.result, "troubles", ())
        if part.experiment.empty(part.result):
            without[part.experiment.name] = (*troubles, "its results are empty")[0]
            continue
        for trouble in troubles:
            print(f"{part.experiment.name}: {trouble}", file=sys.stderr)
    if without:
        why = "; ".join(dict.fromkeys(without.values()))
        data = "run `clippedgossip data fetch` for missing data"
        raise UserError(
            f"{', '.join(without)} could not be judged: {why}\n"
            f"{'give --from what has them' if source else data}, or leave out these figures"
        )


def verdict(done: "Sequence[Reproduction]") -> None:
    """End with exit code 1 if a claim does not hold. Runs that were cut short give no verdict."""
    for part in done:
        if part.failed and part.length < 1:
            about = "the claims are about all rounds, not the fraction of --length"
            print(f"{part.experiment.name}: {about}", file=sys.stderr)
    failed = sum(part.failed for part in done if part.length == 1)
    if failed:
        if any(getattr(part.result, "scale", None) == "quick" for part in done):
            print("the quick scale is a miniature: the paper's can give other verdicts", file=sys.stderr)
        print(f"{failed} of the claims {'does' if failed == 1 else 'do'} not hold", file=sys.stderr)
        raise typer.Exit(1)
