"""Fig. vary_deltamax: the lower bound of optimization, as the Byzantine weight on a hub grows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import (
    PAPER_ATTACKS,
    Case,
    Scale,
    ScaleName,
    TrainingExperiment,
    clipped,
)
from clippedgossip.report.claims import Claim, Claims, check, ratio, worst
from clippedgossip.report.figures import curve_panels, curves
from clippedgossip.report.page import Figure, PagePart
from clippedgossip.report.statistics import Series
from clippedgossip.runs.config import NetworkConfig

DELTAS = {"0": 0.0, "1/16": 1 / 16, "1/8": 1 / 8, "3/16": 3 / 16, "1/4": 1 / 4}
GROUPS = {"all": "all regular nodes", "clique A": "clique A", "clique B": "clique B"}
PUBLISHED = {"all": (88.5, 77.6, 45.4, 20.4, 19.4), "clique A": (74.1, 54.3, 48.1, 47.9, 48.4)}
SETTING = "dissensus"


def network(delta: float) -> dict[str, Any]:
    hub: dict[str, Any] = {"name": "hub-dumbbell", "clique": 5}
    return {**hub, "on_hub": 1, "delta": delta} if delta else {**hub, "on_hub": 0}


class DeltaMax(TrainingExperiment):
    name = "delta-max"
    title = "Growing Byzantine weight on the cut"
    lead = (
        "Two cliques of five hold different digits and are joined through one node in the middle, the hub. "
        "A Byzantine node on the hub sends the dissensus attack. Its weight δ_max grows while the regular "
        "network W̃ stays the same. Fig. vary_deltamax of the paper."
    )
    remarks = (
        "ε = 1.5. At the paper's scale: 1500 rounds, learning rate 0.001 as in the released runs. At the "
        "quick scale: 600 rounds, learning rate 0.005, and six hidden layers of 32, because averaging "
        "models of one hidden layer costs little accuracy. Clique A holds the digits 0 to 4 and clique B "
        "holds 5 to 9. The hub is in neither clique and trains on the digits of clique A."
    )

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        rounds = scale.training["rounds"] * 5 // 3
        if name == "quick":  # averaging two models of one hidden layer costs little accuracy
            scale = replace(scale, model="deep-mlp")
        return [
            scale.case(
                SETTING,
                f"δ_max = {label}",
                clipped(scale.radius),
                network=network(delta),
                partition="clique",
                attack=PAPER_ATTACKS[SETTING] if delta else None,
                rounds=rounds,
                lr=0.001 if name == "paper" else 0.005,
            )
            for label, delta in DELTAS.items()
        ]

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        panels = {
            title: [line for rule in result.rules if (line := result.series(SETTING, rule, group))]
            for group, title in GROUPS.items()
        }
        return {
            "Accuracy over the rounds": curve_panels(
                {title: lines for title, lines in panels.items() if lines},
                caption="Test accuracy of the model averaged over all regular nodes, or over one clique.",
                y_limits=(0, 1),
            ),
            "Accuracy at the end": _ends(result),
            "Agreement": drawing.agreement(result),
        }

    def claims(self, result: Results) -> Claims:
        return Claims([*_fixed(), *_drop(result), *_torn(result)], "Lower bound of optimization")


def _ends(result: Results) -> Figure:
    lines = []
    for group, title in GROUPS.items():
        found = [result.estimate(SETTING, f"δ_max = {label}", group) for label in DELTAS]
        lines.append(
            Series(
                name=title,
                x=list(DELTAS.values()),
                y=[point.mean if point else None for point in found],
                low=[point.bounds[0] if point else None for point in found],
                high=[point.bounds[1] if point else None for point in found],
            )
        )
    svg = curves(lines, x_label="δ_max", y_scale="percent", y_limits=(0, 1))
    return Figure(svg, drawing.ends(result))


def _fixed() -> list[Claim]:
    gaps = [NetworkConfig.from_value(network(delta)).build().spectral_gap for delta in DELTAS.values()]
    return [
        check(
            "W̃, and with it γ, is the same for every δ_max",
            max(gaps) - min(gaps),
            high=1e-9,
            unit="",
            note=f"largest difference; γ = {gaps[0]:.4f}",
            digits=4,
        )
    ]


def _drop(result: Results) -> list[Claim]:
    final = {label: result.final(SETTING, f"δ_max = {label}", "all") for label in DELTAS}
    return [
        check(
            "the quality drops significantly with δ_max",
            final["0"] - final["1/4"],
            low=0.2,
            unit="points",
            paper="+69.1 points",
            note="from δ_max = 0 to 1/4, all regular nodes",
        ),
        check(
            "it drops at every step",
            worst(final[one] - final[two] for one, two in pairwise(DELTAS)),
            low=0.0,
            unit="points",
            paper="+1.0 points",
            note="the smallest drop from one δ_max to the next",
        ),
    ]


def _torn(result: Results) -> list[Claim]:
    rule = "δ_max = 1/4"
    cliques = {group: result.final(SETTING, rule, group) for group in ("clique A", "clique B")}
    distance = result.finals(DISTANCE)
    return [
        check(
            "large δ_max: the global model is worse than the cliques'",
            worst(cliques.values()) - result.final(SETTING, rule, "all"),
            low=0.01,
            unit="points",
            paper="+29.0 points",
            note="the worse clique against all, δ_max = 1/4",
        ),
        check(
            "large δ_max: the cliques are essentially disconnected",
            ratio(distance(SETTING, rule), distance(SETTING, "δ_max = 0")),
            low=10.0,
            unit="×",
            note="Ξ at δ_max = 1/4 over Ξ at 0",
        ),
    ]


EXPERIMENT = DeltaMax()
