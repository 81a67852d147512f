"""One page for several figures: every claim, and links to the pages of the figures."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clippedgossip.files import write
from clippedgossip.paper.base import SETS, Options, Reproduction, write_claims
from clippedgossip.report.claims import PLURALS, Claims
from clippedgossip.report.page import Cell, Section, Table, Text, page


@dataclass(frozen=True)
class PageLink:
    """A link to another page."""

    text: str
    target: str

    def to_html(self) -> str:
        return f'<p><a href="{html.escape(self.target)}">{html.escape(self.text)}</a></p>'


def write_overview(done: Sequence[Reproduction], options: Options) -> Path:
    """Write `index.html` and `claims.json` beside the folders of the figures."""
    everything = Claims([claim for part in done for claim in part.claims.claims])
    counts: list[list[Cell]] = [
        [part.experiment.title, *(part.claims.count(verdict) for verdict in PLURALS)] for part in done
    ]
    glance = Section("At a glance", [Table(["figure", *PLURALS.values()], counts)])
    sections = [glance] if everything.claims else []
    for part in done:
        target = part.path.relative_to(options.out).as_posix()
        link = PageLink("The page of this figure: more plots, networks, configs", target)
        first = list(part.figures.values())[:1]
        shown = [Text(part.experiment.intro(part.result)), *first, link]
        claims = [part.claims] if part.claims.claims else []
        sections.append(Section(part.experiment.title, [*shown, *claims]))
    sizes = dict.fromkeys(part.result.size for part in done if hasattr(part.result, "size"))
    own = sum(part.experiment.name in SETS["ours"] for part in done)
    lead = (
        f"{len(done)} figures{' at the ' * bool(sizes)}{' and the '.join(sizes)}"
        f"{f', {own} of them not in the paper' if own else ''}."
    )
    if everything.claims:
        lead += " What the paper, or we, say stands beside what was seen."
        lead += f" Of {len(everything.claims)} claims {everything.tally}."
    judged = {part.experiment.name: (part.result, part.claims) for part in done}
    write_claims(options.out / "claims.json", judged)
    return write(options.out / "index.html", page("ClippedGossip: figures", lead, sections))
