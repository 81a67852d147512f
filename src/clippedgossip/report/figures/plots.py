"""The plots of a report: lines with confidence bands, bars, points, and a grid of small plots."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clippedgossip.report.figures import canvas
from clippedgossip.report.figures.canvas import INK, MARK_LOOK, Mark, Scale, to_svg
from clippedgossip.report.page import Panels
from clippedgossip.report.palette import HATCHES, Style, styles
from clippedgossip.report.statistics import Estimate, Series

if TYPE_CHECKING:
    from matplotlib.figure import Figure as MatplotlibFigure

_LEFT, _RIGHT, _ABOVE, _BELOW = 0.75, 0.15, 0.5, 0.5
"""Inches around the grid, for labels and the legend."""


@dataclass(frozen=True, kw_only=True)
class Points:
    """A cloud of a scatter plot."""

    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot of a grid."""

    title: str
    series: Sequence[Series]


@contextmanager
def curves_drawn(
    series: Sequence[Series],
    *,
    title: str = "",
    x_label: str = "round",
    y_label: str = "accuracy",
    y_scale: Scale = "linear",
    x_limits: tuple[float, float] | None = None,
    y_limits: tuple[float | None, float | None] | None = None,
    marks: Sequence[Mark] = (),
    looks: Mapping[str, Style] | None = None,
    legend: bool = True,
    size: tuple[float, float] = (4.6, 3.1),
) -> Iterator["MatplotlibFigure"]:
    """Lines with their confidence bands as a figure of matplotlib, in the house look while it is open.

    Equal lines are told apart by their dashes: the first is drawn wide, those above it narrow.
    """
    looks = looks or styles(line.name for line in series)
    with canvas.drawing(*size) as figure:
        axes = figure.add_subplot()
        for order, line in enumerate(series):
            look, below = looks[line.name], sum(_same(line, other) for other in series[order + 1 :])
            canvas.draw_line(axes, line, look, order=order, below=below, y_scale=y_scale, y_limits=y_limits)
        canvas.finish(axes, title=title, x_label=x_label, y_label=y_label, y_scale=y_scale)
        if x_limits:
            axes.set_xlim(*x_limits)
        if y_limits:
            axes.set_ylim(*y_limits)
        canvas.draw_marks(axes, marks)
        if legend:
            canvas.draw_legend(axes)
        yield figure


def curves(series: Sequence[Series], *, title: str = "", titled: bool = True, **look: Any) -> str:
    """An SVG of `curves_drawn`, e.g. accuracy in [0, 1] against the round. If not `titled`, only the
    description has the title."""
    with curves_drawn(series, title=title if titled else "", **look) as figure:
        labels = look.get("x_label", "round"), look.get("y_label", "accuracy")
        return to_svg(figure, _describe(title, *labels, series, look.get("y_scale", "linear")))


def curve_panels(
    panels: Mapping[str, Sequence[Series]],
    *,
    caption: str = "",
    y_scale: Scale = "percent",
    marks: Sequence[Mark] = (),
    marked: Collection[str] | None = None,
    names: Sequence[str] = (),
    **look: Any,
) -> Panels:
    """One plot for each title, with one legend. Given all `names` of a page, a line looks the same in every
    figure of the page. `marked` are the titles of the plots that have the marks; None is all. `look` is what
    `curves_drawn` takes besides."""
    shown = dict.fromkeys(line.name for series in panels.values() for line in series)
    chosen = styles([*names, *shown])
    looks = {name: chosen[name] for name in shown}
    svgs = [
        curves(
            series,
            title=title,
            y_scale=y_scale,
            marks=marks if marked is None or title in marked else (),
            looks=looks,
            legend=False,
            titled=False,
            size=(4.2, 2.7),
            **look,
        )
        for title, series in panels.items()
    ]
    return Panels(svgs, caption, looks | {mark.name: MARK_LOOK for mark in marks}, list(panels))


def bars(
    groups: Sequence[str],
    values: Mapping[str, Sequence[Estimate | float | None]],
    *,
    marks: Sequence[Mark] = (),
    looks: Mapping[str, Style] | None = None,
    legend: bool = True,
    size: tuple[float, float] | None = None,
    turned: bool = False,
) -> str:
    """Accuracies: one group of bars for each entry of `groups`, one bar for each name in `values`, and
    intervals."""
    looks = looks or styles(values)
    count = max(1, len(values))
    size = size or (min(9.0, max(4.6, 0.8 + 0.14 * (count + 1) * len(groups))), 3.1)
    described = []
    with canvas.drawing(*size) as figure:
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
                hatch=HATCHES[index % len(HATCHES)],
                edgecolor=INK,
                linewidth=0.4,
                label=name,
            )
            for place, point in zip(places, points, strict=True):
                if point and point.low is not None and point.high is not None:
                    axes.plot([place, place], [point.low, point.high], color=INK, linewidth=1)
            ends = [
                f"{group} {_shown(point.mean, 'percent')}"
                for group, point in zip(groups, points, strict=True)
                if point
            ]
            described.append(f"{name}: {', '.join(ends)}")
        canvas.finish(axes, title="", x_label="", y_label="accuracy", y_scale="percent")
        axes.grid(axis="x", visible=False)
        rotation, side = (40, "right") if turned else (0, "center")
        axes.set_xticks(range(len(groups)), groups, rotation=rotation, ha=side)
        axes.set_xlim(-0.55, len(groups) - 0.45)
        axes.set_ylim(0, 1)
        canvas.draw_marks(axes, marks)
        if legend:
            canvas.draw_legend(axes)
        return to_svg(figure, f"accuracy. {'; '.join(described)}")


def scatter(
    clouds: Sequence[Points],
    *,
    x_label: str,
    y_label: str,
    x_scale: Scale = "log",
    y_scale: Scale = "log",
    looks: Mapping[str, Style] | None = None,
    legend: bool = True,
    size: tuple[float, float] = (4.6, 3.4),
) -> str:
    """Points, e.g. the consensus error against δ/γ². Values that a log axis cannot show are left out."""
    looks = looks or styles(cloud.name for cloud in clouds)
    with canvas.drawing(*size) as figure:
        axes = figure.add_subplot()
        for cloud in clouds:
            look = looks[cloud.name]
            hollow = "none" if look.dash else look.color
            points = zip(cloud.x, cloud.y, strict=True)
            inside = [(x, y) for x, y in points if _on_axis(x, x_scale) and _on_axis(y, y_scale)]
            axes.plot(
                [x for x, _ in inside],
                [y for _, y in inside],
                marker=look.marker,
                color=look.color,
                markerfacecolor=hollow,
                markersize=5,
                linestyle="none",
                label=cloud.name,
            )
        canvas.finish(axes, title="", x_label=x_label, y_label=y_label, x_scale=x_scale, y_scale=y_scale)
        if legend:
            canvas.draw_legend(axes)
        count = sum(len(cloud.x) for cloud in clouds)
        names = ", ".join(cloud.name for cloud in clouds)
        return to_svg(figure, f"{y_label} against {x_label}: {count} points of {names}")


def small_multiples(
    panels: Sequence[Panel | None],
    *,
    columns: int,
    y_label: str = "error",
    y_limits: tuple[float, float] | None = None,
    panel_size: tuple[float, float] = (0.98, 0.95),
) -> str:
    """A grid of small plots against the round, with the same logarithmic axes and one legend. None leaves a
    place empty."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(line.name for panel in panels if panel for line in panel.series))
    looks = styles(names)
    rows = max(1, math.ceil(len(panels) / columns))
    width, height = panel_size[0] * columns + _LEFT + _RIGHT, panel_size[1] * rows + _ABOVE + _BELOW
    with canvas.drawing(width, height) as figure:
        figure.set_layout_engine("none")
        edges = {"left": _LEFT / width, "right": 1 - _RIGHT / width, "wspace": 0.15}
        edges |= {"bottom": _BELOW / height, "top": 1 - _ABOVE / height, "hspace": 0.45}
        grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, gridspec_kw=edges)
        places = list(enumerate([*panels, *[None] * (rows * columns - len(panels))]))
        for index, panel in places:
            for order, line in enumerate(panel.series if panel else ()):
                look, axes = looks[line.name], grid.flat[index]
                canvas.draw_line(axes, line, look, points=34, markers=0, order=order, y_scale="log")
        shared = grid.flat[0]  # its scales and ticks are those of all plots
        canvas.finish(shared, title="", x_label="", y_label="", y_scale="log")
        shared.locator_params(axis="x", nbins=2)
        shared.locator_params(axis="y", numticks=4)
        if y_limits:
            shared.set_ylim(*y_limits)
        for index, panel in places:
            axes = grid.flat[index]
            if panel is None:
                axes.set_visible(False)
                continue
            axes.grid(visible=False)
            axes.set_title(panel.title, loc="center", fontsize=7, pad=2, fontweight="normal")
            axes.tick_params(labelsize=7, length=2, pad=2)
            lowest = index + columns >= len(panels) or panels[index + columns] is None
            leftmost = index % columns == 0 or panels[index - 1] is None
            axes.tick_params(bottom=lowest, labelbottom=lowest, left=leftmost, labelleft=leftmost)
        figure.supxlabel("round", fontsize=9, y=0.06 / height, va="bottom")
        figure.supylabel(y_label, fontsize=9, x=0.05 / width, ha="left")
        lines = [
            Line2D([], [], color=looks[name].color, linestyle=canvas.line_style(looks[name]), linewidth=1.8)
            for name in names
        ]
        figure.legend(lines, names, loc="upper left", ncols=max(1, int(width / 1.3)), handlelength=3)
        count = sum(panel is not None for panel in panels)
        description = f"{count} small plots of {y_label} against round, one line for each of"
        return to_svg(figure, f"{description} {', '.join(names)}")


def _same(one: Series, other: Series) -> bool:
    """Whether two lines lie on each other for half of their length or more."""
    there = dict(zip(other.x, other.y, strict=True))
    pairs = [(y, there[x]) for x, y in zip(one.x, one.y, strict=True) if y is not None and there.get(x)]
    close = sum(math.isclose(y, y2, rel_tol=0.01, abs_tol=1e-3) for y, y2 in pairs if y2 is not None)
    return bool(pairs) and 2 * close >= len(pairs)


def _describe(title: str, x_label: str, y_label: str, series: Sequence[Series], scale: Scale) -> str:
    ends = []
    for line in series:
        known = [value for value in line.y if value is not None and math.isfinite(value)]
        end = f"ends at {_shown(known[-1], scale)}" if known else "has no values"
        ends.append(f"{line.name} {end}")
    return f"{title + '. ' if title else ''}{y_label} against {x_label}. {'; '.join(ends)}"


def _on_axis(value: float, scale: Scale) -> bool:
    return math.isfinite(value) and (value > 0 or scale != "log")


def _shown(value: float, scale: Scale) -> str:
    return f"{value * 100:.1f} %" if scale == "percent" else f"{value:.3g}"
