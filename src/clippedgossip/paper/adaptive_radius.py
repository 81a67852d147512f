"""Not in the paper: the adaptive radius against fixed radii, under every attack of this package."""

from collections.abc import Iterator, Mapping
from typing import Any

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper import training_figure as figure
from clippedgossip.paper.more_topologies import NETWORKS
from clippedgossip.paper.results import Results
from clippedgossip.report.claims import Claim, best, check
from clippedgossip.report.page import PagePart

FIXED = figure.by_radius(0.1, 1.0, 10.0)
ADAPTIVE = "adaptive"
ATTACKS: Mapping[str, Any] = {
    **figure.PAPER_ATTACKS,
    "zero-sum": "zero-sum",
    "spectral": "spectral",
    "mimic": "mimic",
    "Gaussian": "gaussian",
    "NaN": "non-finite",
    "silence": "silence",
}


class AdaptiveRadius(figure.TrainingExperiment):
    name = "adaptive-radius"
    title = "The adaptive radius under every attack"
    lead = """The paper tries the adaptive radius on three attacks and then recommends it in general. This
    figure shows all attacks of this package, on the torus of the paper. Each worker holds its own digits."""
    section = "The adaptive choice of τ is recommended in general"
    scales = figure.LONGER
    remarks = """The torus of fig. more_topologies: nine workers, two Byzantine nodes, data sorted by label.
    The adaptive radius is given the true δ_max. ALIE is shown twice: the z of the text's formula is negative
    here, which is no attack; the released runs have z = 10."""

    def cases(self, scale: figure.Scale) -> Iterator[figure.Case]:
        rules = {**FIXED, ADAPTIVE: figure.adaptive()}
        for attack, how in ATTACKS.items():
            yield from scale.cases(attack, rules, network=NETWORKS["torus"], partition="sorted", attack=how)

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        return {
            "Accuracy at the end": drawing.end_bars(result, self.reported),
            "Accuracy over the rounds": self.curves(result),
        }

    def findings(self, result: Results) -> Iterator[Claim]:
        final = result.finals("all")
        for attack in ATTACKS:
            yield check(
                f"{attack}: the adaptive radius is a good choice",
                final(attack, ADAPTIVE) - best(final(attack, rule) for rule in FIXED),
                "at least -5 points",
                note="against the best of τ = 0.1, 1, 10",
            )
