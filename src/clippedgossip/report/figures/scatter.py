"""Clouds of points, on log axes by default."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clippedgossip.report.figures.canvas import (
    Mark,
    Scale,
    draw_legend,
    draw_marks,
    drawing,
    finish,
    heading,
    to_svg,
)
from clippedgossip.report.palette import Style, styles


@dataclass(frozen=True, kw_only=True)
class Points:
    """A cloud of a scatter plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


def scatter(
    clouds: Sequence[Points],
    *,
    title: str = "",
    x_label: str,
    y_label: str,
    x_scale: Scale = "log",
    y_scale: Scale = "log",
    marks: Sequence[Mark] = (),
    looks: Mapping[str, Style] | None = None,
    legend: bool = True,
    size: tuple[float, float] = (4.6, 3.4),
) -> str:
    """Points, e.g. the consensus error against δ/γ². Values that a log axis cannot show are left out."""
    looks = looks or styles(cloud.name for cloud in clouds)
    with drawing(*size) as figure:
        axes = figure.add_subplot()
        for cloud in clouds:
            look = looks[cloud.name]
            hollow = "none" if look.dash else look.color
            axes.plot(
                *_shown(cloud.x, cloud.y, x_scale, y_scale),
                marker=look.marker,
                color=look.color,
                markerfacecolor=hollow,
                markersize=5,
                linestyle="none",
                label=cloud.name,
            )
        finish(axes, title=title, x_label=x_label, y_label=y_label, x_scale=x_scale, y_scale=y_scale)
        draw_marks(axes, marks)
        if legend:
            draw_legend(axes)
        count = sum(len(cloud.x) for cloud in clouds)
        names = ", ".join(cloud.name for cloud in clouds)
        return to_svg(figure, f"{heading(title, x_label, y_label)}: {count} points of {names}")


def _shown(
    x: Sequence[float], y: Sequence[float], x_scale: Scale, y_scale: Scale
) -> tuple[list[float], list[float]]:
    pairs = [
        (a, b)
        for a, b in zip(x, y, strict=True)
        if math.isfinite(a)
        and math.isfinite(b)
        and (a > 0 or x_scale != "log")
        and (b > 0 or y_scale != "log")
    ]
    return [a for a, _ in pairs], [b for _, b in pairs]
