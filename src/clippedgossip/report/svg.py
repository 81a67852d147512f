"""matplotlib figures as small inline SVG: text stays text, ink takes the page's colour, no pixels."""

import html
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from importlib.resources import as_file, files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#0a0b0c"
"""Stands for the page's own text colour, light or dark, in everything that is drawn."""


@contextmanager
def drawing(width: float, height: float) -> Iterator["Figure"]:
    """An empty figure, inches wide and high, in the house look."""
    import matplotlib
    from matplotlib.figure import Figure

    with as_file(files("clippedgossip.report") / "house.mplstyle") as look, matplotlib.rc_context(fname=look):
        yield Figure(figsize=(width, height), layout="constrained")


def to_svg(figure: "Figure", description: str) -> str:
    """The figure as an `<svg>` element that scales with its place and says what it shows."""
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


_LOOK = "<style>svg{color:#1b1f24}@media(prefers-color-scheme:dark){svg{color:#e6e8ea}}</style>"


def standalone(svg: str) -> str:
    """The same as a file of its own, readable on light and dark backgrounds."""
    end = svg.index(">") + 1
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{svg[:end]}{_LOOK}{svg[end:]}\n'


def inline(text: str) -> str:
    """A file's drawing for a page, which has its own look."""
    return text[text.find("<svg") :].replace(_LOOK, "").strip()


def _small(text: str, description: str) -> str:
    """Without what a page does not need: half the size, the same picture."""
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
    """Drop the groups that carry nothing."""
    named = re.sub(r' id="[^"#]*_\d+"', "", text)
    kept: list[bool] = []

    def keep(tag: re.Match[str]) -> str:
        if tag[0] == "</g>":
            return tag[0] if kept.pop() else ""
        kept.append(tag[0] != "<g>")
        return tag[0] if kept[-1] else ""

    return re.sub(r"<g(?: [^>]*)?>|</g>", keep, named)


def _own_names(text: str, description: str) -> str:
    """Drop ids nobody refers to; make the others this drawing's own, for many share one page."""
    prefix = "g" + sha256(f"{description}{text}".encode()).hexdigest()[:8]
    used = set(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text))
    names = {first or second for first, second in used}
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{prefix}{m[1]}"' if m[1] in names else "", text)
    return re.sub(r"(href=\"|url\()#", rf"\1#{prefix}", text)
