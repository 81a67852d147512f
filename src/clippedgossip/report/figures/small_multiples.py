"""A grid of small plots with the same axes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from clippedgossip.report.figures.canvas import Scale, draw_line, drawing, finish, line_style, to_svg
from clippedgossip.report.palette import Style, styles
from clippedgossip.report.statistics import Series

_LEFT, _RIGHT, _ABOVE, _BELOW = 0.75, 0.15, 0.5, 0.5
"""Inches around the grid, for labels and the legend."""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One small plot of a grid."""

    title: str
    series: Sequence[Series]


def small_multiples(
    panels: Sequence[Panel | None],
    *,
    columns: int,
    x_label: str = "round",
    y_label: str = "error",
    y_scale: Scale = "log",
    y_limits: tuple[float, float] | None = None,
    looks: Mapping[str, Style] | None = None,
    panel_size: tuple[float, float] = (0.98, 0.95),
) -> str:
    """A grid of small plots with the same axes and one legend. None leaves a place empty."""
    from matplotlib.lines import Line2D

    names = list(dict.fromkeys(line.name for panel in panels if panel for line in panel.series))
    looks = looks or styles(names)
    rows = max(1, math.ceil(len(panels) / columns))
    width, height = panel_size[0] * columns + _LEFT + _RIGHT, panel_size[1] * rows + _ABOVE + _BELOW
    with drawing(width, height) as figure:
        figure.set_layout_engine("none")
        edges = {
            "left": _LEFT / width,
            "right": 1 - _RIGHT / width,
            "bottom": _BELOW / height,
            "top": 1 - _ABOVE / height,
        }
        grid = figure.subplots(
            rows,
            columns,
            sharex=True,
            sharey=True,
            squeeze=False,
            gridspec_kw=edges | {"wspace": 0.15, "hspace": 0.45},
        )
        for index, panel in enumerate([*panels, *[None] * (rows * columns - len(panels))]):
            axes = grid[index // columns][index % columns]
            if panel is None:
                axes.set_visible(False)
                continue
            for order, line in enumerate(panel.series):
                draw_line(axes, line, looks[line.name], points=34, markers=0, order=order, y_scale=y_scale)
            finish(axes, title="", x_label="", y_label="", y_scale=y_scale)
            axes.grid(visible=False)
            axes.set_title(panel.title, loc="center", fontsize=7, pad=2, fontweight="normal")
            axes.tick_params(labelsize=7, length=2, pad=2)
            axes.locator_params(axis="x", nbins=2)
            if y_scale == "log":
                axes.locator_params(axis="y", numticks=4)
            lowest = index + columns >= len(panels) or panels[index + columns] is None
            leftmost = index % columns == 0 or panels[index - 1] is None
            axes.tick_params(bottom=lowest, labelbottom=lowest, left=leftmost, labelleft=leftmost)
        if y_limits:
            grid[0][0].set_ylim(*y_limits)
        figure.supxlabel(x_label, fontsize=9, y=0.06 / height, va="bottom")
        figure.supylabel(y_label, fontsize=9, x=0.05 / width, ha="left")
        lines = [
            Line2D([], [], color=look.color, linestyle=line_style(look), linewidth=1.8)
            for look in (looks[name] for name in names)
        ]
        figure.legend(lines, names, loc="upper left", ncols=max(1, int(width / 1.3)), handlelength=3)
        count = sum(panel is not None for panel in panels)
        heading = (
            f"{count} small plots of {y_label} against {x_label}, one line for each of {', '.join(names)}"
        )
        return to_svg(figure, heading)
