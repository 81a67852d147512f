"""What every plot has: an empty figure in the house look, scales, marks, lines with bands, a legend, its SVG.

An SVG is small and inline: text stays text, ink takes the colour of the page, nothing is a bitmap.
"""

import base64
import html
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import as_file, files
from textwrap import fill
from typing import TYPE_CHECKING, Literal

from clippedgossip.report.palette import Style
from clippedgossip.report.statistics import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#0a0b0c"
"""Replaced by the text colour of the page, light or dark, in every drawing."""


@contextmanager
def drawing(width: float, height: float) -> Iterator["Figure"]:
    """An empty figure in the style of this package. Width and height are in inches."""
    import matplotlib
    from matplotlib.figure import Figure

    with as_file(files("clippedgossip.report") / "house.mplstyle") as look, matplotlib.rc_context(fname=look):
        yield Figure(figsize=(width, height), layout="constrained")


def to_svg(figure: "Figure", description: str) -> str:
    """The figure as an `<svg>` element that scales with the page and has a description."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    body = _small(text[text.index(">", text.index("<svg")) + 1 :], description)
    width, height = figure.get_size_inches()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width * 72:g} {height * 72:g}" '
        f'width="{width * 96:.0f}" height="{height * 96:.0f}" role="img" '
        f'aria-label="{html.escape(description)}" '
        f'font-family="system-ui, sans-serif" stroke-linejoin="round">{body}'
    )


_SHEET = (
    "<style>svg.sheet{color:#1b1f24;background:#ffffff}"
    "@media(prefers-color-scheme:dark){svg.sheet{color:#e6e8ea;background:#15181c}}</style>"
)
"""Ink and paper together: a file does not know whether the page around it is light or dark."""


def standalone(svg: str) -> str:
    """The same as a file, on paper of its own."""
    end = svg.index(">")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg[:end]} class="sheet">{_SHEET}{svg[end + 1 :]}\n'


def as_image(svg: bytes, description: str) -> str:
    """The drawing of a file, to stand in a page: whoever wrote the file, nothing in it runs."""
    content = base64.b64encode(svg).decode()
    return f'<img alt="{html.escape(description)}" src="data:image/svg+xml;base64,{content}">'


def _small(text: str, description: str) -> str:
    """Without what a page does not need: the same picture in half the size."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r"<[^>]+>", lambda tag: re.sub(r"-?\d+\.\d{3,}", _rounded, tag[0]), text)
    text = text.replace(INK, "currentColor").replace("xlink:href", "href")
    text = re.sub(r" font-family: [^;\"]+;| transform=\"rotate\(-0 [^)]*\)\"", "", text)
    text = re.sub(r'<path [^>]*style="fill: none"/>', "", text)
    text = re.sub(r"\s+", " ", text).replace("> <", "><").replace("; ", ";").replace(" z ", "z")
    text = re.sub(r"(fill|stroke|text|font)([a-z-]*): ", r"\1\2:", text)
    text = re.sub(r"([ML]) (\S+) (\S+) (?=[MLz\"])", r"\1\2 \3", text)
    return _own_names(_unwrapped(text), description).replace("<defs></defs>", "")


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _unwrapped(text: str) -> str:
    """Drop groups without attributes."""
    named = re.sub(r' id="[^"#]*_\d+"', "", text)
    kept: list[bool] = []

    def keep(tag: re.Match[str]) -> str:
        if tag[0] == "</g>":
            return tag[0] if kept.pop() else ""
        kept.append(tag[0] != "<g>")
        return tag[0] if kept[-1] else ""

    return re.sub(r"<g(?: [^>]*)?>|</g>", keep, named)


def _own_names(text: str, description: str) -> str:
    """Drop unused ids. Give the others a prefix, because a page has many drawings."""
    prefix = "g" + sha256(f"{description}{text}".encode()).hexdigest()[:8]
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    names = {first or second for first, second in used}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in names else "", text)
    return re.sub(r"(href=\"|url\()#", rf"\1#{prefix}", text)


Scale = Literal["linear", "log", "percent"]

DECADES = 2  # between the smallest and the largest value: then the axis is logarithmic
FAR = 1e3
"""A line that goes so many times further from 0 than the middle one leaves the plot: the others are seen."""


@dataclass(frozen=True)
class Axis:
    """Scale and limits; `cut` if a line leaves the plot."""

    scale: Scale
    limits: tuple[float, float | None] | None = None
    cut: bool = False


def fitting(lines: Sequence[Series], scale: Scale) -> Axis:
    """A vertical axis on which every line can be seen but those that diverge."""
    finite = [[v for v in line.y if v is not None and math.isfinite(v)] for line in lines]
    sizes = sorted(max(map(abs, values)) for values in finite if values)
    shown = [size for size in sizes if size <= FAR * sizes[(len(sizes) - 1) // 2]]
    cut = len(shown) < len(sizes)
    inside = [v for values in finite for v in values if not cut or abs(v) <= shown[-1]]
    positive = [v for v in inside if v > 0]
    if scale == "linear" and positive and min(inside) >= 0 and max(positive) > 10**DECADES * min(positive):
        scale = "log"
    if not cut:
        return Axis(scale)
    if scale == "log" and positive:
        return Axis(scale, (min(positive) / 2, max(positive) * 10), cut=True)
    return Axis(scale, (min(0.0, 1.1 * min(inside)), max(0.0, 1.1 * max(inside)) or None), cut=True)


MARK_LOOK = Style("currentColor", (1.5, 2.0), "")
"""How a mark looks in a legend."""

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A thin line across the plot with a name, such as a bound or the number of the paper."""

    value: float
    name: str


def draw_line(
    axes: "Axes",
    line: Series,
    look: Style,
    *,
    order: int,
    points: int = 120,
    markers: int = 8,
    y_scale: Scale = "linear",
    below: int = 0,
    y_limits: tuple[float | None, float | None] | None = None,
) -> None:
    """A line with its band, by so many points and with so many markers. If it lies `below` so many others, it
    is wider than they are. There is no band where the line has left the plot."""
    keep = _thinned(len(line.x), points)
    x = [line.x[i] for i in keep]
    y = [_number(line.y[i]) for i in keep]
    if line.low is not None and line.high is not None:
        low, high = ([_number(side[i]) for i in keep] for side in (line.low, line.high))
        if y_scale == "log":  # an interval may reach below zero, which a log axis cannot show
            floor = min((value for value in y if value > 0), default=1.0) / 10
            low = [max(value, floor) for value in low]
        bottom, top = y_limits or (None, None)
        inside = [(bottom is None or v >= bottom) and (top is None or v <= top) for v in y]
        axes.fill_between(x, low, high, where=inside, color=look.color, alpha=0.18, linewidth=0)
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
        linewidth=(1.8 if step else 1.2) + 1.3 * min(below, 2),
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

    axes.set_title(fill(title, int((_width(axes) - 60) // 6.3)), loc="left")  # points: beside it, of a letter
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    for axis, set_scale, scale in (
        (axes.xaxis, axes.set_xscale, x_scale),
        (axes.yaxis, axes.set_yscale, y_scale),
    ):
        if scale == "log" and _any_positive(axes, axis.axis_name):
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


def _width(axes: "Axes") -> float:
    """Of the figure, in points."""
    return axes.figure.get_window_extent().width * 72 / axes.figure.dpi


def _any_positive(axes: "Axes", name: str) -> bool:
    """Whether a log axis, which several plots may share, has anything to show."""
    plots = getattr(axes, f"get_shared_{name}_axes")().get_siblings(axes)
    return any(
        value > 0 for plot in plots for line in plot.lines for value in getattr(line, f"get_{name}data")()
    )


def draw_marks(axes: "Axes", marks: Sequence[Mark]) -> None:
    """Thin dotted lines. Their names are in the legend, where no curve crosses them."""
    for mark in marks:
        style = (0, MARK_LOOK.dash)
        axes.axhline(mark.value, color=INK, linewidth=1, linestyle=style, label=mark.name)


def draw_legend(axes: "Axes") -> None:
    """Below the plot, in as many columns as fit."""
    names = axes.get_legend_handles_labels()[1]
    if names:
        columns = int(_width(axes) // (48 + 4.7 * max(map(len, names))))
        axes.figure.legend(loc="outside lower left", ncols=min(len(names), max(1, columns)), handlelength=3)


def line_style(look: Style) -> tuple[float, Sequence[float]] | Literal["solid"]:
    return (0, look.dash) if look.dash else "solid"


def _thinned(count: int, limit: int) -> list[int]:
    """At most `limit` indices, evenly spread, with the first and the last."""
    if count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / (limit - 1)) for i in range(limit)})


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _power(value: float) -> str:
    exponent = round(math.log10(value)) if 0 < value < math.inf else 0  # an axis up to 1e308 ends beyond it
    if value > 0 and not -3 <= exponent <= 4 and math.isclose(value, 10.0**exponent):
        return "10" + str(exponent).translate(_SUPERSCRIPT)
    return f"{value:,.10g}"
