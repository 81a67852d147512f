"""One self-contained HTML page from small parts. It fetches nothing. All text is escaped."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Protocol

import clippedgossip
from clippedgossip.report.palette import Style, swatch

Cell = str | int | float | None

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""With this policy the browser itself makes sure that the page fetches and runs nothing."""

_NUMBER = re.compile(r"^[−+-]?\d[\d.,e+−-]*( ± [\d.,e+−-]+)?( ?%| of \d+ diverged)?$|^–$")


class PagePart(Protocol):
    """Anything that a section can contain."""

    def to_html(self) -> str: ...


@dataclass(frozen=True)
class Text:
    """Paragraphs, separated by an empty line."""

    text: str

    def to_html(self) -> str:
        return "".join(f"<p>{html.escape(part)}</p>" for part in self.text.strip().split("\n\n"))


@dataclass(frozen=True)
class Code:
    """Preformatted text: a config, a command."""

    text: str

    def to_html(self) -> str:
        return f'<pre tabindex="0"><code>{html.escape(self.text)}</code></pre>'


@dataclass(frozen=True)
class Figure:
    """A drawing and its caption. A wide one keeps its size and scrolls on a narrow screen."""

    svg: str
    caption: str = ""
    wide: bool = False

    def to_html(self) -> str:
        svg = _scroll(self.svg, self.caption or "figure") if self.wide else self.svg
        return f"<figure>{svg}{_caption(self.caption)}</figure>"


@dataclass(frozen=True)
class Panels:
    """Drawings side by side (one below the other on a narrow screen), with one legend."""

    svgs: Sequence[str]
    caption: str = ""
    legend: Mapping[str, Style] = field(default_factory=dict)
    titles: Sequence[str] = ()
    """One above each drawing."""

    def to_html(self) -> str:
        entries = "".join(f"<li>{swatch(look)}{html.escape(name)}</li>" for name, look in self.legend.items())
        legend = f'<ul class="legend">{entries}</ul>' if entries else ""
        titles = [f"<h3>{html.escape(title)}</h3>" for title in self.titles] or [""] * len(self.svgs)
        panels = "".join(f"<div>{title}{svg}</div>" for title, svg in zip(titles, self.svgs, strict=True))
        return f'<figure>{legend}<div class="panels">{panels}</div>{_caption(self.caption)}</figure>'


@dataclass(frozen=True)
class Table:
    """Rows under a header. Columns of numbers are aligned right. A table that is too wide scrolls."""

    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    headings: Mapping[int, str] = field(default_factory=dict)
    """Row -> a heading above it, for this row and those that follow."""
    keys: int = 1
    """Columns that name a row. A terminal repeats them where the others need a further table."""

    @property
    def texts(self) -> list[list[str]]:
        """The rows as they are shown."""
        return [[_cell(cell) for cell in row] for row in self.rows]

    def to_html(self) -> str:
        rows = self.texts
        kinds = [
            ' class="number"' if rows and all(_NUMBER.match(row[column]) for row in rows) else ""
            for column in range(len(self.header))
        ]
        head = "".join(
            f'<th scope="col"{kind}>{html.escape(name)}</th>'
            for name, kind in zip(self.header, kinds, strict=True)
        )
        body = "".join(
            self._heading(number)
            + "<tr>"
            + "".join(f"<td{kind}>{html.escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
            + "</tr>"
            for number, row in enumerate(rows)
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"<figure>{_caption(self.caption)}{_scroll(table, self.caption or 'table')}</figure>"

    def _heading(self, row: int) -> str:
        text = self.headings.get(row)
        if not text:
            return ""
        span = f'class="heading" scope="rowgroup" colspan="{len(self.header)}"'
        return f"<tr><th {span}><span>{html.escape(text)}</span></th></tr>"


@dataclass(frozen=True)
class Details:
    """Parts that are folded until a reader opens them."""

    summary: str
    parts: Sequence[PagePart]

    def to_html(self) -> str:
        inside = "".join(part.to_html() for part in self.parts)
        return f"<details><summary>{html.escape(self.summary)}</summary>{inside}</details>"


@dataclass(frozen=True)
class Section:
    """A heading and the parts below it."""

    title: str
    parts: Sequence[PagePart]


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """The whole page."""
    anchors = [f"part-{number}" for number in range(1, len(sections) + 1)]
    links = "".join(
        f'<li><a href="#{anchor}">{html.escape(section.title)}</a></li>'
        for anchor, section in zip(anchors, sections, strict=True)
    )
    contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>' if len(sections) > 2 else ""
    body = "".join(
        f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{html.escape(section.title)}</h2>'
        + "".join(part.to_html() for part in section.parts)
        + "</section>\n"
        for anchor, section in zip(anchors, sections, strict=True)
    )
    name = html.escape(title)
    css = files("clippedgossip.report").joinpath("page.css").read_text(encoding="utf-8")
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<link rel="icon" href="data:,">\n<title>{name}</title>\n<style>\n{css}</style>\n</head>\n'
        f'<body>\n<header><h1>{name}</h1><p class="lead">{html.escape(lead)}</p>{contents}</header>\n'
        f"<main>\n{body}</main>\n"
        f"<footer>Made by clippedgossip {clippedgossip.__version__}.</footer>\n</body>\n</html>\n"
    )


def _cell(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, float):
        return f"{cell:.4g}"
    return str(cell)


def _caption(text: str) -> str:
    return f"<figcaption>{html.escape(text)}</figcaption>" if text else ""


def _scroll(inside: str, name: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(name)}">{inside}</div>'
