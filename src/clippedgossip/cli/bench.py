"""`clippedgossip bench`: rules on one standard suite, ranked by their worst accuracy over attacks."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from clippedgossip.cli.run import Json
from clippedgossip.errors import ConfigError


def bench(
    rules: Annotated[
        list[str],
        typer.Argument(
            metavar="RULE...",
            help="Names of rules, all, package.module:Class of your own, or a rule with its parameters: "
            "'{name=\"krum\", faulty=1}'.",
        ),
    ],
    size: Annotated[
        Literal["mini", "full"],
        typer.Option(help="mini takes about a minute a rule on two cores; full is for a GPU, on MNIST."),
    ] = "mini",
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the runs and the page.")] = Path(
        "out/bench"
    ),
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or auto. The default is cpu for mini.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; the default is one for each CPU core, one on a GPU.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Rank rules by their worst accuracy over attacks, beside that without an attack (clean).

    Networks, data, attacks and the search for parameters are the same for all, and fixed by a version.
    Built-in rules get their best parameters by that search. A rule with parameters, or your own, is taken as
    it is.
    """
    from clippedgossip.bench import SUITES, VERSION, rank
    from clippedgossip.report import write
    from clippedgossip.report.terminal import progress, table
    from clippedgossip.rules import RULES

    named = [name for rule in rules for name in (RULES if rule == "all" else [rule])]
    suite = SUITES[size]
    with progress() as tell:
        ranking = rank(
            [_parsed(name) for name in dict.fromkeys(named)],
            suite,
            out / "runs",
            device=device or ("cpu" if size == "mini" else "auto"),
            workers=workers,
            progress=tell,
        )
    command = shlex.join(["clippedgossip", "bench", *rules, "--size", size])
    path = write(out / "index.html", ranking.html(command))
    (out / f"bench-{size}-v{VERSION}.json").write_text(json.dumps(ranking.to_json(), indent=1) + "\n")
    if as_json:
        print(json.dumps(ranking.to_json(), indent=1))
        return
    print(table(ranking.table))
    for rule in ranking.rules:
        for note in rule.notes:
            print(f"{rule.label}: {note}", file=sys.stderr)
    print(f"page: {path}")


def _parsed(text: str) -> dict[str, Any]:
    """A name, or a table of TOML."""
    from clippedgossip.errors import unknown_name
    from clippedgossip.rules import RULES
    from clippedgossip.runs.config import toml_value
    from clippedgossip.settings import RuleConfig

    value = toml_value(text) if text.lstrip().startswith("{") else {"name": text}
    if len(value) > 1 or ":" in str(value.get("name")):
        RuleConfig.from_value(value, Path.cwd()).checked()
    elif value.get("name") not in RULES:
        raise ConfigError(unknown_name("rule", str(value.get("name")), RULES))
    return value
