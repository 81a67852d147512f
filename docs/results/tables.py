"""Write the tables of README.md anew from the results beside it: `python docs/results/tables.py`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from clippedgossip.paper import page_parts
from clippedgossip.paper.as_released import DEVIATIONS, AsReleased
from clippedgossip.paper.base import load
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import TrainingExperiment
from clippedgossip.report.claims import PLURALS, Claims
from clippedgossip.report.page import Cell, Table

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
CLIQUES = {"cifar": ("all", "clique A", "clique B"), "delta-max": ("all", "clique A", "clique B")}
"""Figures that compare the model of all with those of the cliques."""


def tables() -> str:
    """All figures, and how many of their claims hold."""
    judged: dict[str, Claims] = {}
    parts = ["\n".join(_figure(name, judged)) for name in FIGURES]
    everything = Claims([claim for claims in judged.values() for claim in claims.claims])
    rows: list[list[Cell]] = [
        [f"`{name}`", *(claims.count(verdict) or "" for verdict in PLURALS)]
        for name, claims in judged.items()
    ]
    glance = _table(Table(["figure", *PLURALS.values()], rows))
    return "\n\n".join([f"\nOf the claims below {everything.tally}.", glance, *parts]) + "\n"


def _figure(name: str, judged: dict[str, Claims]) -> Iterator[str]:
    experiment, result = load(name), Results.load(HERE / "h200" / f"{name}.json", name)
    assert isinstance(experiment, TrainingExperiment)
    judged[name] = experiment.claims(result)
    yield f"## {experiment.title} (`{name}`)\n"
    whose = "the nodes named" if name in CLIQUES else experiment.whom()
    yield f"Accuracy in %, of the model averaged over {whose}; Ξ is the consensus distance.\n"
    rows: list[list[Cell]] = []
    for setting in result.settings:
        for group in CLIQUES.get(name, (experiment.reported(setting),)):
            cells = [_cell(result, setting, rule, group) for rule in result.rules]
            rows.append(
                [f"{setting}, {group}" if name in CLIQUES else setting, _seeds(result, setting), *cells]
            )
    yield _table(Table(["setting", "seeds", *result.rules], rows))
    if result.tuning:
        tuning = page_parts.tuning(result, experiment.reported)
        yield f"\n{tuning.caption}\n\n{_table(tuning)}"
    released = HERE / "quick" / f"{name}-as-released.json"
    if released.exists():
        compared = AsReleased(experiment, list(DEVIATIONS))
        yield "\nAccuracy in % with deviations of the authors' released code, at the quick scale:\n"
        yield _table(compared.comparison(Results.load(released, compared.name)))
    yield "\n| claim | where it is from | paper | here | verdict |\n|---|---|---|---|---|"
    for claim in judged[name].claims:
        verdict = f"**{claim.verdict}**" if claim.verdict == "does not hold" else claim.verdict
        yield (
            f"| {claim.text} ({claim.note}) | {claim.source} | {claim.paper or '–'} | {claim.seen} "
            f"| {verdict} |"
        )


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
    if accuracy is None or apart is None:
        return "–" if result.line(setting, rule) is None else "not run"
    return accuracy.text(scale=100) + ("" if apart.diverged else f" (Ξ {apart.mean:.2g})")


if __name__ == "__main__":
    page = HERE / "README.md"
    page.write_text(page.read_text().split(MARK)[0] + MARK + tables())
