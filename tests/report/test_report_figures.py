"""Drawings."""

import html
import math
import re
from base64 import b64decode
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from matplotlib.text import Text

from clippedgossip.report import (
    Series,
    estimate,
)
from clippedgossip.report.figures import (
    Mark,
    Panel,
    Points,
    bars,
    curves,
    scatter,
    small_multiples,
)
from clippedgossip.report.figures.canvas import as_image, standalone
from clippedgossip.report.figures.plots import curves_drawn
from tests.report.pages import NASTY
from tests.report.test_palette import contrast

LINE = Series(name="GM", x=range(5), y=[5.0, None, 0.0, 1.0, 2.0], low=[-1.0] * 5, high=[9.0] * 5)
DRAWINGS: dict[str, Callable[[], str]] = {
    "curves": lambda: curves([LINE], title=NASTY, marks=[Mark(value=0.5, name="half")]),
    "log curves": lambda: curves([LINE], y_scale="log"),
    "no curves": lambda: curves([]),
    "scatter": lambda: scatter(
        [Points(name="TM", x=[0.1, 0.0, math.nan], y=[1.0, 1.0, 1.0])], x_label="δ/γ²", y_label="error"
    ),
    "bars": lambda: bars(["IID", "non-IID"], {"GM": [estimate([0.4, 0.6]), None], NASTY: [0.3, 0.4]}),
    "grid": lambda: small_multiples([Panel(title="γ=0.244", series=[LINE]), None, None], columns=2),
}


@pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)
def test_a_drawing_is_small_self_contained_and_the_same_each_time(draw: Callable[[], str]) -> None:
    svg = draw()
    assert svg == draw()
    tree = ElementTree.fromstring(svg)
    assert tree.get("role") == "img"
    assert tree.get("aria-label")
    assert tree.get("viewBox")
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert not tags & {"image", "style", "script", "foreignObject", "metadata"}
    assert "text" in tags or "no" in svg
    assert len(svg) < 40_000
    names = [element.get("id") for element in tree.iter() if element.get("id")]
    assert len(names) == len(set(names))
    assert set(re.findall(r"#(g[0-9a-f]{8}\w+)", svg)) == set(names)
    assert "currentColor" in svg
    assert "DejaVu" not in svg


@pytest.mark.parametrize("width", [3.0, 4.6])
def test_a_long_title_stays_in_its_figure(width: float) -> None:
    """Its end tells plots of one setting apart."""
    title = "dumbbell extra=0, digits partition=clique, clipped-gossip radius=0.1, WWW: clique A"
    with curves_drawn([LINE], title=title, size=(width, 3.1)) as figure:
        figure.draw_without_rendering()
        texts = (text for text in figure.findobj(Text) if isinstance(text, Text))
        (box,) = (text.get_window_extent() for text in texts if text.get_text().split() == title.split())
        assert 0 <= box.x0 < box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_labels_keep_their_digits() -> None:
    assert ">γ=0.244<" in DRAWINGS["grid"]()


def test_long_curves_are_thinned_but_keep_their_ends() -> None:
    long = Series(name="GM", x=range(100_000), y=[math.sin(i) for i in range(100_000)])
    svg = curves([long])
    assert len(svg) < 20_000
    assert f"GM ends at {math.sin(99_999):.3g}" in svg


def test_the_description_tells_the_values() -> None:
    line = Series(name="TM", x=[0, 1], y=[0.1, 0.505])
    assert "accuracy against round. TM ends at 50.5 %" in curves([line], y_scale="percent")


def test_a_drawing_stands_alone_as_a_file() -> None:
    text = standalone(DRAWINGS["curves"]())
    assert ElementTree.fromstring(text.encode()).tag == "{http://www.w3.org/2000/svg}svg"
    rules = re.findall(r"svg[^{<]*\{([^}]*)\}", text)  # light, then dark
    assert len(rules) == 2
    for rule in rules:  # the page behind it may be of the other kind
        look = dict(part.split(":") for part in rule.split(";"))
        assert contrast(look["color"], look["background"]) > 7


def test_a_file_is_an_image_of_a_page() -> None:
    drawing = standalone(DRAWINGS["curves"]()).encode()
    found = re.fullmatch(
        r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)">', as_image(drawing, NASTY)
    )
    assert found
    assert (html.unescape(found[1]), b64decode(found[2])) == (NASTY, drawing)
