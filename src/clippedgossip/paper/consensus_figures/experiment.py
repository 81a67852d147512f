"""The experiment as `reproduce` sees it."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clippedgossip.paper.base import Experiment, Options, Progress
from clippedgossip.paper.consensus_figures.chains import BETAS, DELTAS, SETTINGS, Outcome, simulate
from clippedgossip.paper.consensus_figures.consensus_claims import claims
from clippedgossip.paper.consensus_figures.plots import figures
from clippedgossip.report.claims import Claims
from clippedgossip.report.page import Part, Section, Table, Text

if TYPE_CHECKING:
    from rich.console import RenderableType

LISTED = (0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.0014, 3.7e-4, 1e-4, 1e-5)  # "p" in the text
CLASSES = {
    "ClippedGossip": "ClippedGossip",
    "TM": "TrimmedMean",
    "Median": "Median",
    "TM*": "WeightedTrimmedMean",
    "Median*": "WeightedMedian",
}


class Consensus(Experiment[Outcome]):
    name = "consensus"
    title = "Robust consensus under attack"
    lead = (
        "Four regular nodes in a chain hold 0, 0, 200, 200 and want their average, 100. Each of the two in "
        "the middle has a Byzantine neighbour that pushes it back. γ says how well the chain is connected, δ "
        "how much weight the attackers have; the error is the mean squared distance to 100 after 100 rounds, "
        "10,000 at the start."
    )

    def run(self, options: Options, progress: Progress) -> Outcome:
        return simulate(progress)

    def rows(self, result: Outcome) -> list[dict[str, Any]]:
        return [
            {
                "rule": CLASSES[rule],
                "beta": beta,
                "delta": delta,
                "gamma": float(gamma),
                "ratio": float(ratio),
                "error": float(error),
            }
            for rule in result.errors
            for (beta, delta), gamma, ratio, error in zip(
                SETTINGS, result.gammas, result.ratios, result.last(rule), strict=True
            )
        ]

    def claims(self, result: Outcome) -> Claims:
        return claims(result)

    def figures(self, result: Outcome) -> Mapping[str, Part]:
        return figures(result)

    def notes(self, result: Outcome) -> Sequence[Section]:
        gammas = {beta: gamma for (beta, _), gamma in zip(SETTINGS, result.gammas, strict=True)}
        table = Table(
            ["β", "γ", "γ²", "γ² in the text"],
            [
                [f"{beta:g}", f"{gammas[beta]:.4g}", f"{gammas[beta] ** 2:.3g}", f"{listed:g}"]
                for beta, listed in zip(BETAS, LISTED, strict=True)
            ],
        )
        words = (
            "What the text lists as p is γ². Its last entry, 1e-5, must be 1e-6: the released errors come "
            "out with β = 0.001. Combinations with δ > 1 − ⅓ − β do not fit into W; 53 remain."
        )
        return [Section("The networks", [Text(words), table])]

    def table(self, result: Outcome) -> "RenderableType":
        from rich import box
        from rich.table import Table

        table = Table(
            title="ClippedGossip: squared error after 100 rounds (10,000 at the start)",
            title_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        for header in ("β", "γ", *(f"δ={delta:g}" for delta in DELTAS)):
            table.add_column(header, justify="right")
        errors = dict(zip(SETTINGS, result.last("ClippedGossip"), strict=True))
        gammas = dict(zip(SETTINGS, result.gammas, strict=True))
        for beta in BETAS:
            cells = (errors.get((beta, delta)) for delta in DELTAS)
            shown = ("" if cell is None else _number(cell) for cell in cells)
            table.add_row(f"{beta:g}", f"{gammas[beta, DELTAS[0]]:.4f}", *shown)
        return table


def _number(value: float) -> str:
    return f"{value:.0e}" if value < 0.001 else f"{value:,.3f}" if value < 1 else f"{value:,.1f}"


EXPERIMENT = Consensus()
