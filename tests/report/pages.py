"""Runs and pages for the tests of reports, and what every page must keep to."""

import html
import math
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

from clippedgossip.records import Round, RunDirectory
from clippedgossip.report import (
    Claim,
    Claims,
    Code,
    Details,
    Figure,
    Section,
    Series,
    Table,
    page,
)
from clippedgossip.report.figures import (
    Panel,
    curve_panels,
    small_multiples,
)

NASTY = '<script>alert(1)</script> & "τ" \''
VOID = {"meta", "link", "br", "img", "path", "use", "circle", "rect"}

CLAIMS = Claims(
    [
        Claim(
            text="ClippedGossip equals gossip", paper="69.7", ours="59.0", interval="± 0.9", verdict="holds"
        ),
        Claim(
            text="GM falls under ALIE",
            paper="9.8",
            ours="37.2",
            verdict="does not hold",
            note="fresh batches",
        ),
        Claim(text="TM collapses on CIFAR-10", paper="25.3"),
        Claim(text="bucketing helps", ours="-0.03", verdict="undecided", source="The caption."),
        Claim(text="γ = 0.0154", ours="0.0154", verdict="by construction"),
    ],
    "What the paper says",
)


class Outline(HTMLParser):
    """Collects what a page is made of and fails on tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[tuple[str, str, str]] = []
        self.headings: list[int] = []
        self.open: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def write_run(
    root: Path, *, rule: str = "gossip", attack: str = "none", seed: int = 0, rounds: int = 60
) -> Path:
    config = {
        "network": {"name": "dumbbell", "clique": 10},
        "attack": {"name": attack},
        "rule": {"name": rule},
        "seed": seed,
    }
    run = RunDirectory.open(root, config, "dumbbell")
    level = 0.9 if rule == "gossip" else 0.5
    run.append(
        *(
            Round(
                round=number,
                accuracy={"all": level + seed / 100, "clique A": level},
                worst_accuracy=level / 2,
                loss=1 / (number + 1),
                consensus_distance=math.exp(-number / 9),
                clipped=0.25,
            )
            for number in range(rounds)
        )
    )
    run.write_summary({"accuracy": level})
    return run.path


def write_peer(root: Path, name: str, lie: str = "") -> Path:
    run = RunDirectory.open(root / name / "runs", {"name": name, "misbehave": lie, "seed": 0}, name)
    for number in range(20):
        accuracy = {"all": 0.8} if number % 5 == 4 else None
        run.append(Round(round=number, accuracy=accuracy, peer=name, missing=number % 2, rejected=1))
    return run.path


def sample_page() -> str:
    lines = [
        Series(name=name, x=range(50), y=[1 / (i + k) for i in range(50)])
        for k, name in ((1, "GM"), (2, "TM"))
    ]
    grid = [Panel(title=f"γ=0.244 δ={i}", series=lines) if i != 3 else None for i in range(20)]
    return page(
        "A page",
        "What it shows.",
        [
            Section("Findings", [CLAIMS]),
            Section("Curves", [curve_panels({"IID": lines, "non-IID": lines}, caption="Two panels.")]),
            Section("Grid", [Figure(small_multiples(grid, columns=10), "Small ones.", wide=True)]),
            Section(
                "Numbers",
                [
                    Table(
                        [f"a rather long header {i}" for i in range(12)],
                        [[i / 7 for i in range(12)]],
                        "Wide.",
                    ),
                    Details("config", [Code("x" * 300)]),
                ],
            ),
        ],
    )


def check_page(text: str) -> Outline:
    outline = Outline(text)
    for tag, name, value in outline.attributes:
        if name in {"src", "href", "srcset", "data", "action"}:
            assert value.startswith(("#", "data:")), (tag, name, value)
        assert name == "xmlns" or "//" not in value, (tag, name, value)
        assert not name.startswith("on")
    names = [value for _, name, value in outline.attributes if name == "id"]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    links = {value[1:] for _, name, value in outline.attributes if name == "href" and value.startswith("#")}
    assert links <= set(names)
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(
        after <= before + 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False)
    )
    assert "url(" not in re.sub(r"url\(#", "", text)
    assert "@import" not in text
    assert text.isprintable() or "\n" in text
    assert "default-src 'none'" in html.unescape(text)
    return outline
