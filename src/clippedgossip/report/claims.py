"""What the paper says, beside what was seen here. A claim that does not hold is shown as such."""

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from textwrap import TextWrapper
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

_GLUE = "\N{NO-BREAK SPACE}"
_GLUED = re.compile(r"(?<=\d) (?=%|×|points?\b)| (?=[=≤≥])|(?<=[=≤≥]) ")
"""Between a number and its unit, or its sign of equality."""
_HEADER = ("Claim", "Paper", "Here", "Verdict")


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One finding: its words, the paper's number where given, ours with its interval, the verdict."""

    text: str
    paper: str = ""
    ours: str = ""
    interval: str = ""
    holds: bool | None = None
    """None: not run."""
    note: str = ""

    @property
    def verdict(self) -> str:
        return {True: "holds", False: "does not hold", None: "not run"}[self.holds]

    @property
    def seen(self) -> str:
        return " ".join(part for part in (self.ours, self.interval) if part) or "–"


@dataclass(frozen=True)
class Claims:
    """A table of claims: a part of a page, a table in a terminal, rows of JSON."""

    claims: Sequence[Claim]
    caption: str = ""

    @property
    def tally(self) -> str:
        """`5 hold, 1 does not hold, 2 not run`."""
        held, failed, unrun = (
            sum(claim.holds is verdict for claim in self.claims) for verdict in (True, False, None)
        )
        words = [
            (held, "holds" if held == 1 else "hold"),
            (failed, "does not hold" if failed == 1 else "do not hold"),
        ]
        return (
            ", ".join(f"{count} {word}" for count, word in [*words, (unrun, "not run")] if count)
            or "no claims"
        )

    def to_html(self) -> str:
        """A table; on a phone each claim becomes a card."""
        head = "".join(f'<th role="columnheader" scope="col">{name}</th>' for name in _HEADER)
        rows = "".join(_row(claim) for claim in self.claims)
        caption = html.escape(f"{self.caption} ({self.tally})" if self.caption else self.tally)
        return (
            f'<table class="stack" role="table"><caption>{caption}</caption>'
            f'<thead role="rowgroup"><tr role="row">{head}</tr></thead>'
            f'<tbody role="rowgroup">{rows}</tbody></table>'
        )

    def to_rich(self) -> "Table":
        """For a terminal of 80 columns."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=box.SIMPLE, caption=self.tally, caption_justify="left", pad_edge=False)
        table.add_column("Claim", ratio=1, overflow="fold")
        table.add_column("Paper", justify="right")
        table.add_column("Here", justify="right")
        table.add_column("Verdict", no_wrap=True)
        for claim in self.claims:
            color = {True: "green", False: "bold red", None: "dim"}[claim.holds]
            cells = (escape(cell) for cell in (claim.paper or "–", claim.seen))
            table.add_row(_Words(claim), *cells, f"[{color}]{claim.verdict}[/{color}]")
        return table

    def to_json(self) -> list[dict[str, Any]]:
        return [asdict(claim) | {"verdict": claim.verdict} for claim in self.claims]


@dataclass(frozen=True)
class _Words:
    """A claim and its note in a terminal; rich alone breaks lines at no-break spaces as well."""

    claim: Claim

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "Iterator[Text]":
        from rich.text import Text

        for line in self._lines(options.max_width):
            yield Text(line.replace(_GLUE, " "), no_wrap=True)

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

        lines = self._lines(1000)
        least = max(len(word) for line in lines for word in line.split(" "))
        return Measurement(least, max(map(len, lines))).with_maximum(options.max_width)

    def _lines(self, width: int) -> list[str]:
        """No wider than `width`, the note indented."""
        lines = []
        for indent, text in (("", self.claim.text), ("  ", self.claim.note)):
            wrapper = TextWrapper(
                width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
            )
            lines += wrapper.wrap(_GLUED.sub(_GLUE, text))
        return lines


def _row(claim: Claim) -> str:
    kind = {True: "holds", False: "fails", None: "open"}[claim.holds]
    sign = {True: "✓", False: "✗", None: "○"}[claim.holds]
    note = f'<div class="soft">{html.escape(claim.note)}</div>' if claim.note else ""
    return (
        f'<tr role="row"><td role="cell">{html.escape(claim.text)}{note}</td>'
        f'<td role="cell" data-label="Paper">{html.escape(claim.paper) or "–"}</td>'
        f'<td role="cell" data-label="Here">{html.escape(claim.seen)}</td>'
        f'<td role="cell"><span class="verdict {kind}">'
        f'<span aria-hidden="true">{sign}</span> {claim.verdict}</span></td></tr>'
    )
