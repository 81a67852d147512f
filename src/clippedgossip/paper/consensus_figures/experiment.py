"""The consensus experiment as `reproduce` sees it, with its figures.

Fig. (error against δ/γ²) and fig. (iteration-to-error curves).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clippedgossip.paper.base import Experiment, Needs, Options
from clippedgossip.paper.consensus_figures.chains import (
    BETAS,
    DELTAS,
    ROUNDS,
    SETTINGS,
    ChainErrors,
    simulate,
)
from clippedgossip.paper.consensus_figures.consensus_claims import claims
from clippedgossip.report.claims import Claims, Floats
from clippedgossip.report.figures import Panel, Points, Scale, scatter, small_multiples
from clippedgossip.report.page import Figure, PagePart, Panels, Section, Table, Text
from clippedgossip.report.palette import styles
from clippedgossip.report.statistics import Series

FLOOR = 1e-4  # smaller errors are drawn here
LISTED = (0.06, 0.05, 0.04, 0.03, 0.02, 0.01, 0.005, 0.0014, 3.7e-4, 1e-4, 1e-5)  # "p" in the text
CLASSES = {
    "ClippedGossip": "ClippedGossip",
    "TM": "TrimmedMean",
    "Median": "Median",
    "TM*": "WeightedTrimmedMean",
    "Median*": "WeightedMedian",
}


class Consensus(Experiment[ChainErrors]):
    name = "consensus"
    title = "Robust consensus under attack"
    lead = (
        "Four regular nodes in a chain hold 0, 0, 200, 200 and look for their average, 100. Each of the two "
        "nodes in the middle has a Byzantine neighbour that pushes it back. γ tells how well the chain is "
        "connected, δ is the weight of a Byzantine node. The error is the mean squared distance to 100 "
        "after 100 rounds. At the start it is 10,000."
    )

    def needs(self, options: Options) -> Needs[ChainErrors]:
        return Needs(simulate)

    def rows(self, result: ChainErrors) -> list[dict[str, Any]]:
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

    def claims(self, result: ChainErrors) -> Claims:
        return claims(result)

    def figures(self, result: ChainErrors) -> Mapping[str, PagePart]:
        return {
            "Error against δ/γ²": _error_against_ratio(result),
            "What explains the error": _explanations(result),
            "Error over the rounds": _curves(result),
        }

    def notes(self, result: ChainErrors) -> Sequence[Section]:
        gammas = {beta: gamma for (beta, _), gamma in zip(SETTINGS, result.gammas, strict=True)}
        table = Table(
            ["β", "γ", "γ²", "γ² in the text"],
            [
                [f"{beta:g}", f"{gammas[beta]:.4g}", f"{gammas[beta] ** 2:.3g}", f"{listed:g}"]
                for beta, listed in zip(BETAS, LISTED, strict=True)
            ],
        )
        words = (
            "The text lists γ² as p. Its last entry, 1e-5, must be 1e-6: with β = 0.001 we get the released "
            "errors. Combinations with δ > 1 − ⅓ − β do not fit into W; 53 remain."
        )
        return [Section("The networks", [Text(words), table])]

    def table(self, result: ChainErrors) -> Table:
        errors = dict(zip(SETTINGS, result.last("ClippedGossip"), strict=True))
        gammas = dict(zip(SETTINGS, result.gammas, strict=True))
        rows = [
            [
                f"{beta:g}",
                f"{gammas[beta, DELTAS[0]]:.4f}",
                *(_number(errors[beta, delta]) if (beta, delta) in errors else "" for delta in DELTAS),
            ]
            for beta in BETAS
        ]
        title = "ClippedGossip: squared error after 100 rounds (10,000 at the start)"
        return Table(["β", "γ", *(f"δ={delta:g}" for delta in DELTAS)], rows, title)


def _number(value: float) -> str:
    return f"{value:.0e}" if value < 0.001 else f"{value:,.3f}" if value < 1 else f"{value:,.1f}"


def _error_against_ratio(result: ChainErrors) -> Figure:
    clouds = [
        Points(name=rule, x=result.ratios.tolist(), y=np.maximum(result.last(rule), FLOOR).tolist())
        for rule in ("TM", "Median", "ClippedGossip")
    ]
    svg = scatter(clouds, x_label="δ / γ²", y_label="squared error after 100 rounds", size=(4.6, 3.3))
    return Figure(
        svg,
        "Each point is one of the 53 settings. TM and Median never move: their points coincide at 10,000. "
        f"Errors below {FLOOR:g} are drawn there.",
    )


def _explanations(result: ChainErrors) -> Panels:
    looks = styles(["ClippedGossip"])
    explanations: list[tuple[str, Floats, Scale]] = [
        ("δ / γ²", result.ratios, "log"),
        ("1 / γ²", 1 / result.gammas**2, "log"),
        ("δ", result.deltas, "linear"),
    ]
    svgs = [
        scatter(
            [Points(name="ClippedGossip", x=values.tolist(), y=result.last("ClippedGossip").tolist())],
            x_label=label,
            y_label="squared error",
            x_scale=scale,
            y_scale="linear",
            looks=looks,
            legend=False,
            size=(4.2, 2.8),
        )
        for label, values, scale in explanations
    ]
    return Panels(
        svgs,
        "The error of ClippedGossip on a linear scale. Against δ/γ² all settings are on one curve. Settings "
        "of the same 1/γ², or of the same δ, have very different errors.",
        looks,
    )


def _curves(result: ChainErrors) -> Figure:
    index = {setting: place for place, setting in enumerate(SETTINGS)}
    panels = [
        _panel(result, index[beta, delta], f"β={beta:g} δ={delta:g}") if (beta, delta) in index else None
        for beta in BETAS
        for delta in DELTAS
    ]
    svg = small_multiples(
        panels,
        columns=len(DELTAS),
        y_label="squared error",
        y_limits=(FLOOR / 3, 1e6),
        panel_size=(1.7, 1.0),
    )
    return Figure(
        svg,
        "One plot per setting. From top to bottom the connection of the chain gets worse. From left to right "
        "the Byzantine weight grows. A star marks the versions of TM and Median that use the weights.",
        wide=True,
    )


def _panel(result: ChainErrors, place: int, title: str) -> Panel:
    rounds = list(range(ROUNDS + 1))
    return Panel(
        title=title,
        series=[
            Series(name=rule, x=rounds, y=np.maximum(errors[:, place], FLOOR).tolist())
            for rule, errors in result.errors.items()
        ],
    )


EXPERIMENT = Consensus()
