"""Write the tables of README.md anew from the results beside it: `python docs/results/tables.py`."""

from collections.abc import Iterator
from pathlib import Path

from clippedgossip.paper.base import load
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import TrainingExperiment
from clippedgossip.report.claims import Claim, Claims

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
    claims: list[Claim] = []
    parts = ["\n".join(_figure(name, claims)) for name in FIGURES]
    return "\n\n".join([f"\nOf the claims below {Claims(claims).tally}.", *parts]) + "\n"


def _figure(name: str, claims: list[Claim]) -> Iterator[str]:
    experiment, result = load(name), Results.load(HERE / "h200" / f"{name}.json", name)
    assert isinstance(experiment, TrainingExperiment)
    found = experiment.claims(result).claims
    claims += found
    yield f"## {experiment.title} (`{name}`)\n"
    whose = "the nodes named" if name in CLIQUES else experiment.whom()
    yield f"Accuracy in %, of the model averaged over {whose}; Ξ is the consensus distance.\n"
    yield "| setting | seeds | " + " | ".join(result.rules) + " |\n|---|---|" + "---|" * len(result.rules)
    for setting in result.settings:
        for group in CLIQUES.get(name, (experiment.reported(setting),)):
            cells = [_cell(result, setting, rule, group) for rule in result.rules]
            row = f"{setting}, {group}" if name in CLIQUES else setting
            yield f"| {row} | {_seeds(result, setting)} | " + " | ".join(cells) + " |"
    yield "\n| claim | paper | here | verdict |\n|---|---|---|---|"
    for claim in found:
        ours = f"{claim.ours} {claim.interval or ''}".strip() if claim.ours else "–"
        verdict = f"**{claim.verdict}**" if claim.verdict == "does not hold" else claim.verdict
        text = f"{claim.text} ({claim.note}) *{claim.source}*"
        yield f"| {text} | {claim.paper or '–'} | {ours} | {verdict} |"


def _seeds(result: Results, setting: str) -> str:
    lines = [result.line(setting, rule) for rule in result.rules]
    counts = {len(line.runs) for line in lines if line and line.runs}
    return " to ".join(map(str, sorted({min(counts), max(counts)})))


def _cell(result: Results, setting: str, rule: str, group: str) -> str:
    accuracy = result.estimate(setting, rule, group)
    if accuracy is None:
        return "not run"
    interval = "" if accuracy.high is None else f" ± {100 * (accuracy.high - accuracy.mean):.1f}"
    apart = result.estimate(setting, rule, DISTANCE)
    assert apart is not None
    return (
        f"{100 * accuracy.mean:.1f}{interval} ({apart.text() if apart.diverged else f'Ξ {apart.mean:.2g}'})"
    )


if __name__ == "__main__":
    page = HERE / "README.md"
    page.write_text(page.read_text().split(MARK)[0] + MARK + tables())
