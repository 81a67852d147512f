"""Write the tables of README.md, and those of our own figures in the pages of docs, anew from the results
beside this file: `python docs/results/tables.py`."""

import re
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from textwrap import fill
from typing import Any

from clippedgossip.paper import page_parts
from clippedgossip.paper.base import SETS, Options, load
from clippedgossip.paper.deviations import DEVIATIONS, AsReleased
from clippedgossip.paper.many_networks import ManyNetworks
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import TrainingExperiment
from clippedgossip.report.claims import PLURALS, Claims
from clippedgossip.report.figures import bars
from clippedgossip.report.figures.canvas import standalone
from clippedgossip.report.page import Cell, Figure, Panels, Table

HERE = Path(__file__).parent
MARK = "<!-- From here on written by tables.py. -->\n"
FIGURES = (
    "dumbbell",
    "no-honest-majority",
    "weaker-topology",
    "clipping-radius",
    "delta-max",
    "more-topologies",
    "cifar",
    "precision",
    "adaptive-radius",
    "newer-rules",
)
PAGES = ("changing-networks.md", "optimal-weights.md", "average-delta.md", "components.md")
WHOSE = "of the model averaged over the nodes named, or else over all regular nodes"


def tables() -> str:
    """All figures, and how many of their claims hold."""
    judged: dict[str, Claims] = {}
    parts = ["\n".join(_consensus(judged)), *("\n".join(_figure(name, judged)) for name in FIGURES)]
    everything = Claims([claim for claims in judged.values() for claim in claims.claims])
    rows: list[list[Cell]] = [
        [f"`{name}`", *(claims.count(verdict) or "" for verdict in PLURALS)]
        for name, claims in judged.items()
    ]
    glance = _table(Table(["figure", *PLURALS.values()], rows))
    return "\n\n".join([f"\nOf the claims below {everything.tally}.", glance, *parts]) + "\n"


def _consensus(judged: dict[str, Claims]) -> Iterator[str]:
    """It trains nothing, and is computed here."""
    experiment = load("consensus")
    result = experiment.needs(Options()).read(lambda label, done, total: None)
    judged[experiment.name] = experiment.claims(result)
    table = experiment.table(result)
    yield f"## {experiment.title} (`{experiment.name}`)\n"
    yield f"{experiment.lead} It has no seeds and takes seconds: `clippedgossip reproduce consensus`.\n"
    yield f"{table.caption}:\n\n{_table(table)}"
    yield from _claims(judged[experiment.name])


def _figure(name: str, judged: dict[str, Claims]) -> Iterator[str]:
    experiment, result = load(name), Results.load(HERE / "h200" / f"{name}.json", name)
    assert isinstance(experiment, TrainingExperiment)
    judged[name] = experiment.claims(result)
    yield f"## {experiment.title} (`{name}`)\n"
    yield f"{experiment.remarks}\n"
    goes = "Where nothing else is said, claims, figures and searches go by the model averaged over"
    yield f"Accuracy in %, {WHOSE}; Ξ is the consensus distance. {goes} {experiment.whom()}.\n"
    yield from _numbers(experiment, result)
    if (released := HERE / "h200" / f"{name}-as-released.json").exists():
        compared = AsReleased(experiment, list(DEVIATIONS))
        table = compared.comparison(Results.load(released, compared.name))
        yield f"\nWith deviations of the authors' released code. {table.caption}\n"
        yield _table(table)
    yield from _claims(judged[name])
    if (small := HERE / "quick" / f"{name}.json").exists():
        yield "\n### The same at the quick scale\n"
        yield from _numbers(experiment, seen := Results.load(small, name))
        yield f"\n{_judged(experiment.claims(seen))}"


def _claims(claims: Claims) -> Iterator[str]:
    yield "\n| claim | where it is from | paper | here | verdict |\n|---|---|---|---|---|"
    for claim in claims.claims:
        verdict = f"**{claim.verdict}**" if claim.verdict == "does not hold" else claim.verdict
        text = f"{claim.text} ({claim.note})" if claim.note else claim.text
        yield f"| {text} | {claim.source} | {claim.paper or '–'} | {claim.seen} | {verdict} |"


def _numbers(experiment: TrainingExperiment, result: Results) -> Iterator[str]:
    rows: list[list[Cell]] = []
    for setting in result.settings:
        lines = [line for line in result.lines if line.setting == setting]
        measured = dict.fromkeys(name for line in lines for run in line.runs for name in run.final)
        groups = [name for name in measured if name != DISTANCE]
        for group in groups or ["all"]:
            cells = [_cell(result, setting, rule, group) for rule in result.rules]
            named = f"{setting}, {group}" if len(groups) > 1 else setting
            rows.append([named, _seeds(result, setting), *cells])
    yield _table(Table(["setting", "seeds", *result.rules], rows))
    if result.tuning:
        tuning = page_parts.tuning(result, experiment.reported)
        yield f"\n{tuning.caption}\n\n{_table(tuning)}"


def _judged(claims: Claims) -> str:
    rows: list[list[Cell]] = [
        [f"{claim.text}; {claim.note}" if claim.note else claim.text, claim.seen, claim.verdict]
        for claim in claims.claims
    ]
    return _table(Table(["claim", "here", "verdict"], rows))


def _table(table: Table) -> str:
    def line(cells: Sequence[Cell]) -> str:
        return "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"

    return "\n".join([line(table.header), "|---" * len(table.header) + "|", *map(line, table.rows)])


def _seeds(result: Results, setting: str) -> str:
    lines = [result.line(setting, rule) for rule in result.rules]
    counts = {len(line.runs) for line in lines if line and line.runs} or {0}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _cell(result: Results, setting: str, rule: str, group: str) -> str:
    accuracy, apart = (result.estimate(setting, rule, measure) for measure in (group, DISTANCE))
    if apart is None:
        return "–" if result.line(setting, rule) is None else "not run"
    shown = "–" if accuracy is None else accuracy.text(scale=100)
    return shown + ("" if apart.diverged else f" (Ξ {apart.mean:.2g})")


def ours(name: str) -> tuple[str, dict[str, str]]:
    """Numbers, figures and claims of one of our own figures at the quick scale, and the figures' files."""
    experiment, path = load(name), HERE / "quick" / f"{name}.json"
    result: Any
    if isinstance(experiment, ManyNetworks):
        result = experiment.read(path)
        numbers = _table(experiment.table(result))
        parts = [part for part in experiment.figures(result).values() if isinstance(part, Figure | Panels)]
        svgs = [svg for part in parts for svg in (part.svgs if isinstance(part, Panels) else [part.svg])]
        shown = [f"{experiment.title}, figure {number}" for number in range(1, len(svgs) + 1)]
    else:
        assert isinstance(experiment, TrainingExperiment)
        result = Results.load(path, name)
        numbers = "\n".join(_numbers(experiment, result))
        each = ceil(len(result.settings) / ceil(len(result.settings) / 6))
        groups = [result.settings[first : first + each] for first in range(0, len(result.settings), each)]
        svgs = [_bars(experiment, result, group) for group in groups]
        shown = ["Accuracy: " + "; ".join(group) for group in groups]
    files = {f"{name}-{number}.svg": standalone(svg) for number, svg in enumerate(svgs, 1)}
    numbered = isinstance(experiment, ManyNetworks) and len(svgs) > 1  # the page speaks of them by number
    pictures = "\n".join(
        f"\nFigure {number}:\n\n![{text}]({place})" if numbered else f"![{text}]({place})"
        for number, (text, place) in enumerate(zip(shown, files, strict=True), 1)
    ).lstrip()
    judged = _judged(experiment.claims(result))
    return f"{numbers}\n\n{pictures}\n\n{judged}\n", files


def _bars(experiment: TrainingExperiment, result: Results, settings: Sequence[str]) -> str:
    whose = {setting: experiment.reported(setting) for setting in settings}
    ran = [rule for rule in result.rules if any(result.line(setting, rule) for setting in settings)]
    values = {rule: [result.estimate(setting, rule, whose[setting]) for setting in settings] for rule in ran}
    named = [fill(s if whose[s] == "all" else f"{s}, {whose[s]}", 16) for s in settings]
    return bars(named, values, size=(8.4, 3.2))


def blocks(page: Path) -> str:
    """The page with the results of its figures, as far as they are here."""
    text = page.read_text()
    for name in re.findall(r"<!-- results of (\S+) -->", text):
        if (HERE / "quick" / f"{name}.json").exists():
            first, last = f"<!-- results of {name} -->", f"<!-- end of {name} -->"
            head, _, rest = text.partition(first)
            text = f"{head}{first}\n\n{ours(name)[0]}\n{last}{rest.partition(last)[2]}"
    return text


if __name__ == "__main__":
    page = HERE / "README.md"
    page.write_text(page.read_text().split(MARK)[0] + MARK + tables())
    for page in map(HERE.parent.joinpath, PAGES):
        page.write_text(blocks(page))
    for name in set(SETS["ours"]) - set(FIGURES):
        for place, svg in ours(name)[1].items():
            (HERE.parent / place).write_text(svg)
