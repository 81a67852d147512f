"""Lines with confidence bands."""

import math
from collections.abc import Mapping, Sequence

from clippedgossip.report.figures.canvas import (
    MARK_LOOK,
    Mark,
    Scale,
    draw_legend,
    draw_line,
    draw_marks,
    drawing,
    finish,
    heading,
    shown_value,
    to_svg,
)
from clippedgossip.report.page import Panels
from clippedgossip.report.palette import Style, styles
from clippedgossip.report.statistics import Series


def curves(
    series: Sequence[Series],
    *,
    title: str = "",
    x_label: str = "round",
    y_label: str = "accuracy",
    y_scale: Scale = "linear",
    x_limits: tuple[float, float] | None = None,
    y_limits: tuple[float, float | None] | None = None,
    marks: Sequence[Mark] = (),
    looks: Mapping[str, Style] | None = None,
    legend: bool = True,
    titled: bool = True,
    size: tuple[float, float] = (4.6, 3.1),
) -> str:
    """Lines with their confidence bands, e.g. accuracy in [0, 1] against the round. If not `titled`, only
    the description has the title."""
    looks = looks or styles(line.name for line in series)
    with drawing(*size) as figure:
        axes = figure.add_subplot()
        for order, line in enumerate(series):
            draw_line(axes, line, looks[line.name], points=120, markers=8, order=order, y_scale=y_scale)
        finish(axes, title=title if titled else "", x_label=x_label, y_label=y_label, y_scale=y_scale)
        if x_limits:
            axes.set_xlim(*x_limits)
        if y_limits:
            axes.set_ylim(*y_limits)
        draw_marks(axes, marks)
        if legend:
            draw_legend(axes)
        return to_svg(figure, _describe(title, x_label, y_label, series, y_scale))


def curve_panels(
    panels: Mapping[str, Sequence[Series]],
    *,
    caption: str = "",
    x_label: str = "round",
    y_label: str = "accuracy",
    y_scale: Scale = "percent",
    x_limits: tuple[float, float] | None = None,
    y_limits: tuple[float, float | None] | None = None,
    marks: Sequence[Mark] = (),
    names: Sequence[str] = (),
) -> Panels:
    """One plot for each title, with one legend. Given all `names` of a page, a line looks the same in every
    figure of the page."""
    shown = dict.fromkeys(line.name for series in panels.values() for line in series)
    chosen = styles([*names, *shown])
    looks = {name: chosen[name] for name in shown}
    svgs = [
        curves(
            series,
            title=title,
            x_label=x_label,
            y_label=y_label,
            y_scale=y_scale,
            x_limits=x_limits,
            y_limits=y_limits,
            marks=marks,
            looks=looks,
            legend=False,
            titled=False,
            size=(4.2, 2.7),
        )
        for title, series in panels.items()
    ]
    return Panels(svgs, caption, looks | {mark.name: MARK_LOOK for mark in marks}, list(panels))


def _describe(title: str, x_label: str, y_label: str, series: Sequence[Series], scale: Scale) -> str:
    ends = []
    for line in series:
        known = [value for value in line.y if value is not None and math.isfinite(value)]
        ends.append(
            f"{line.name} ends at {shown_value(known[-1], scale)}" if known else f"{line.name} has no values"
        )
    return f"{heading(title, x_label, y_label)}. {'; '.join(ends)}"
