"""Fig. (error against δ/γ²) and fig. (iteration-to-error curves)."""

from collections.abc import Mapping

import numpy as np

from clippedgossip.paper.consensus_figures.chains import BETAS, DELTAS, ROUNDS, SETTINGS, Floats, Outcome
from clippedgossip.report.figures import Panel, Points, Scale, scatter, small_multiples
from clippedgossip.report.page import Figure, Panels, Part
from clippedgossip.report.palette import styles
from clippedgossip.report.statistics import Series

FLOOR = 1e-4  # smaller errors are drawn here


def figures(result: Outcome) -> Mapping[str, Part]:
    """By title."""
    return {
        "Error against δ/γ²": _error_against_ratio(result),
        "What explains the error": _explanations(result),
        "Error over the rounds": _curves(result),
    }


def _error_against_ratio(result: Outcome) -> Figure:
    clouds = [
        Points(name=rule, x=result.ratios.tolist(), y=np.maximum(result.last(rule), FLOOR).tolist())
        for rule in ("TM", "Median", "ClippedGossip")
    ]
    svg = scatter(clouds, x_label="δ / γ²", y_label="squared error after 100 rounds", size=(4.6, 3.3))
    return Figure(
        svg,
        "Each point is one of the 53 settings. TM and Median never move: they lie on one another at 10,000. "
        f"Errors below {FLOOR:g} are drawn there.",
    )


def _explanations(result: Outcome) -> Panels:
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
        "ClippedGossip's error on a linear scale. Against δ/γ² the settings fall on one curve; at one 1/γ², "
        "or at one δ, errors differ widely.",
        looks,
    )


def _curves(result: Outcome) -> Figure:
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
        "One plot per setting: from top to bottom the chain gets worse connected, from left to right the "
        "attackers heavier. Stars mark the versions of TM and Median that honour the weights.",
        wide=True,
    )


def _panel(result: Outcome, place: int, title: str) -> Panel:
    rounds = list(range(ROUNDS + 1))
    return Panel(
        title=title,
        series=[
            Series(name=rule, x=rounds, y=np.maximum(errors[:, place], FLOOR).tolist())
            for rule, errors in result.errors.items()
        ],
    )
