"""What every plot has: scales, marks, lines with bands, a legend."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from clippedgossip.report.palette import Style
from clippedgossip.report.statistics import Series
from clippedgossip.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Scale = Literal["linear", "log", "percent"]

MARK_LOOK = Style("currentColor", (1.5, 2.0), "")
"""How a mark looks in a legend."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A thin line across the plot, with its name: a bound, a chance level, the paper's number."""

    value: float
    name: str
    axis: Literal["x", "y"] = "y"


def draw_line(
    axes: "Axes",
    line: Series,
    look: Style,
    *,
    points: int,
    markers: int,
    order: int,
    y_scale: Scale = "linear",
) -> None:
    keep = _thinned(len(line.x), points)
    x = [line.x[i] for i in keep]
    y = [_number(line.y[i]) for i in keep]
    if line.low is not None and line.high is not None:
        low, high = ([_number(side[i]) for i in keep] for side in (line.low, line.high))
        if y_scale == "log":  # an interval may reach below zero, where a log axis has no place
            floor = min((value for value in y if value > 0), default=1.0) / 10
            low = [max(value, floor) for value in low]
        axes.fill_between(x, low, high, color=look.color, alpha=0.18, linewidth=0)
    step = max(1, len(keep) // markers) if markers else None
    axes.plot(
        x,
        y,
        color=look.color,
        linestyle=line_style(look),
        marker=look.marker if step else None,
        markevery=(order % step, step) if step else None,
        markerfacecolor=look.color,
        markeredgewidth=0,
        linewidth=1.8 if step else 1.2,
        label=line.name,
    )


def finish(
    axes: "Axes",
    *,
    title: str,
    x_label: str,
    y_label: str,
    x_scale: Scale = "linear",
    y_scale: Scale = "linear",
) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator, PercentFormatter

    axes.set_title(title, loc="left")
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    for axis, set_scale, scale in (
        (axes.xaxis, axes.set_xscale, x_scale),
        (axes.yaxis, axes.set_yscale, y_scale),
    ):
        if scale == "log":
            set_scale("log", nonpositive="mask")
            low, high = axis.get_view_interval()
            steps = (1.0, 2.0, 5.0) if low > 0 and high / low < 100 else (1.0,)
            axis.set_major_locator(LogLocator(subs=steps, numticks=6))
            axis.set_major_formatter(FuncFormatter(lambda value, _: _power(value)))
            axis.set_minor_locator(NullLocator())
        elif scale == "percent":
            axis.set_major_formatter(PercentFormatter(xmax=1, decimals=0, symbol=" %"))
    if x_label == "round":
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def draw_marks(axes: "Axes", marks: Sequence[Mark]) -> None:
    """Thin dotted lines; their names stand in the legend, where no curve crosses them."""
    for mark in marks:
        draw = axes.axhline if mark.axis == "y" else axes.axvline
        draw(mark.value, color=INK, linewidth=1, linestyle=(0, MARK_LOOK.dash), label=mark.name)


def draw_legend(axes: "Axes") -> None:
    """Below the plot, in as many columns as its width takes."""
    names = axes.get_legend_handles_labels()[1]
    if names:
        width = axes.figure.get_window_extent().width * 72 / axes.figure.dpi
        columns = int(width // (48 + 4.7 * max(map(len, names))))
        axes.figure.legend(loc="outside lower left", ncols=min(len(names), max(1, columns)), handlelength=3)


def line_style(look: Style) -> tuple[float, Sequence[float]] | Literal["solid"]:
    return (0, look.dash) if look.dash else "solid"


def shown_value(value: float, scale: Scale) -> str:
    return f"{value * 100:.1f} %" if scale == "percent" else f"{value:.3g}"


def heading(title: str, x_label: str, y_label: str) -> str:
    return f"{title + '. ' if title else ''}{y_label} against {x_label}"


def _thinned(count: int, limit: int) -> list[int]:
    """At most `limit` indices, evenly spread, the first and the last among them."""
    if count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / (limit - 1)) for i in range(limit)})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _power(value: float) -> str:
    exponent = round(math.log10(value)) if value > 0 else 0
    if value > 0 and not -3 <= exponent <= 4 and math.isclose(value, 10.0**exponent):
        return "10" + str(exponent).translate(_SUPERSCRIPT)
    return f"{value:,.10g}"
