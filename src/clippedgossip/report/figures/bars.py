"""Groups of bars with intervals."""

import math
from collections.abc import Mapping, Sequence

from clippedgossip.report.figures.canvas import (
    INK,
    Mark,
    Scale,
    draw_legend,
    draw_marks,
    drawing,
    finish,
    shown_value,
    to_svg,
)
from clippedgossip.report.palette import Style, styles
from clippedgossip.report.statistics import Estimate

_HATCHES = ("", "//", "\\\\", "xx", "--", "||", "++", "/", "\\")


def bars(
    groups: Sequence[str],
    values: Mapping[str, Sequence[Estimate | float | None]],
    *,
    title: str = "",
    y_label: str = "accuracy",
    y_scale: Scale = "linear",
    y_limits: tuple[float, float] | None = None,
    marks: Sequence[Mark] = (),
    looks: Mapping[str, Style] | None = None,
    legend: bool = True,
    size: tuple[float, float] | None = None,
) -> str:
    """One group of bars for each entry of `groups`, with one bar for each name in `values`, and intervals."""
    looks = looks or styles(values)
    count = max(1, len(values))
    size = size or (min(9.0, max(4.6, 0.8 + 0.14 * (count + 1) * len(groups))), 3.1)
    described = []
    with drawing(*size) as figure:
        axes = figure.add_subplot()
        width = 0.84 / count
        for index, (name, row) in enumerate(values.items()):
            points = [Estimate(mean=value) if isinstance(value, int | float) else value for value in row]
            places = [group + (index - (count - 1) / 2) * width for group in range(len(points))]
            heights = [point.mean if point else math.nan for point in points]
            axes.bar(
                places,
                heights,
                width * 0.9,
                color=looks[name].color,
                hatch=_HATCHES[index % len(_HATCHES)],
                edgecolor=INK,
                linewidth=0.4,
                label=name,
            )
            for place, point in zip(places, points, strict=True):
                if point and point.low is not None and point.high is not None:
                    axes.plot([place, place], [point.low, point.high], color=INK, linewidth=1)
            shown = ", ".join(
                f"{group} {shown_value(point.mean, y_scale)}"
                for group, point in zip(groups, points, strict=True)
                if point
            )
            described.append(f"{name}: {shown}")
        finish(axes, title=title, x_label="", y_label=y_label, y_scale=y_scale)
        axes.grid(axis="x", visible=False)
        axes.set_xticks(range(len(groups)), groups)
        axes.set_xlim(-0.55, len(groups) - 0.45)
        if y_limits:
            axes.set_ylim(*y_limits)
        draw_marks(axes, marks)
        if legend:
            draw_legend(axes)
        return to_svg(figure, f"{title or y_label}. {'; '.join(described)}")
