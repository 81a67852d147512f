"""The looks of lines."""

import re
from importlib.resources import files
from xml.etree import ElementTree

import pytest

from clippedgossip.report.palette import HATCHES, RULE_STYLES, Style, rule_of, styles, swatch
from clippedgossip.rules import RULES


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def themes() -> list[dict[str, str]]:
    css = files("clippedgossip.report").joinpath("page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    return [dict(re.findall(r"--(\w+): (#\w+);", block)) for block in blocks]


def test_every_rule_has_a_look_of_its_own() -> None:
    assert len(set(styles(RULES).values())) == len(RULES)


@pytest.mark.parametrize("theme", themes(), ids=["light", "dark"])
def test_lines_and_words_stand_out_from_the_page(theme: dict[str, str]) -> None:
    for look in RULE_STYLES.values():
        assert contrast(look.color, theme["page"]) >= 3
    for words in ("ink", "soft", "good", "bad", "link"):
        assert contrast(theme[words], theme["page"]) >= 4.5


@pytest.mark.parametrize(
    ("label", "rule"),
    [
        ("ClippedGossip", "clipped gossip"),
        ("clipped-gossip radius=1", "clipped gossip"),
        ("ClippedGossip τ=0.1", "clipped gossip"),
        ("GM", "geometric median"),
        ("TM*", "weighted trimmed mean"),
        ("CS+", "cs plus"),
        ("peer-1", None),
    ],
)
def test_a_label_is_known_by_its_rule(label: str, rule: str | None) -> None:
    assert rule_of(label) == rule


def test_variants_of_one_rule_look_different() -> None:
    names = [
        "ClippedGossip",
        *(f"ClippedGossip τ={tau}" for tau in (0.1, 0.5, 1, 2, 10)),
        "adaptive",
        "Gossip",
    ]
    looks = styles(names)
    assert list(looks) == names
    assert len({look.color for look in looks.values()}) == len(names)
    assert looks["Gossip"] == RULE_STYLES["gossip"]
    assert len(set(styles(f"peer-{i}" for i in range(100)).values())) == 100


def test_every_marker_has_a_swatch() -> None:
    for look in styles(f"peer-{i}" for i in range(40)).values():
        assert len(ElementTree.fromstring(swatch(look))) == 2


def test_a_colour_stays_with_its_rule_and_a_name_with_its_look() -> None:
    few = styles(["clipped-gossip adaptive=0.1", "clipped-gossip radius=1", "gossip", "mine"])
    assert few["clipped-gossip radius=1"].color == RULE_STYLES["clipped gossip"].color
    assert few["clipped-gossip radius=1"] != few["clipped-gossip adaptive=0.1"]
    assert styles(["krum", "mine"])["mine"] == styles(["median", "mine", "yours"])["mine"]


def test_a_legend_shows_the_hatches_of_bars() -> None:
    shown = {swatch(Style("#1f7fc4", hatch=hatch)) for hatch in HATCHES}
    assert len(shown) == len(HATCHES)
    assert all(ElementTree.fromstring(text) is not None for text in shown)
