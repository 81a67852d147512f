"""The page and its parts."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from clippedgossip.errors import RunError
from clippedgossip.report import (
    Claim,
    Claims,
    Code,
    Details,
    Figure,
    Section,
    Series,
    Table,
    Text,
    page,
    write,
)
from clippedgossip.report.figures import (
    curve_panels,
)
from clippedgossip.report.page import PagePart
from tests.report.pages import NASTY, check_page, sample_page


def test_a_page_is_well_formed_and_fetches_nothing() -> None:
    outline = check_page(sample_page())
    assert ("html", "lang", "en") in outline.attributes
    assert any(value.startswith("width=device-width") for _, _, value in outline.attributes)


def test_everything_is_escaped() -> None:
    parts: list[PagePart] = [
        Text(NASTY),
        Code(NASTY),
        Table([NASTY], [[NASTY]], NASTY),
        Details(NASTY, [Text(NASTY)]),
        Claims([Claim(text=NASTY, paper=NASTY, ours=NASTY, note=NASTY)], NASTY),
        Figure("<svg></svg>", NASTY, wide=True),
        curve_panels({NASTY: [Series(name=NASTY, x=[0, 1], y=[0, 1])]}, caption=NASTY),
    ]
    text = page(NASTY, NASTY, [Section(NASTY, parts)])
    assert "<script" not in text
    assert check_page(text).text.count("alert(1)") >= 16


def test_numbers_line_up_and_words_do_not() -> None:
    text = Table(["rule", "accuracy", "error"], [["GM", "96.4 ± 0.3", 1e-9], ["TM", None, 2]]).to_html()
    assert text.count('<td class="number">') == 4
    assert "<td>GM</td>" in text
    assert "–" in text


def test_a_number_that_diverged_stays_in_its_column() -> None:
    text = Table(["rule", "Ξ"], [["GM", "0.02"], ["TM", "1 of 3 diverged"]]).to_html()
    assert '<td class="number">1 of 3 diverged</td>' in text


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*page.html"):
        write(tmp_path / "file" / "page.html", "x")
    for folder in (tmp_path, Path()):
        with pytest.raises(RunError, match="is a folder; give a file in it"):
            write(folder, "x")
    assert write(tmp_path / "new" / "page.html", "x").read_text() == "x"


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--enable-logging=stderr",
]
PROBE = """<!DOCTYPE html><body><pre id="result"></pre>
<iframe id="page" width="{width}" height="844" srcdoc="{page}"></iframe>
<script>document.getElementById("page").onload = (event) => {{
  const view = event.target.contentWindow, root = view.document.documentElement;
  const wide = [...view.document.querySelectorAll("body *")].filter((e) =>
    e.getBoundingClientRect().right > root.clientWidth + 1 && !e.closest(".scroll, pre"));
  document.getElementById("result").textContent = JSON.stringify({{
    client: root.clientWidth, scroll: root.scrollWidth, wide: wide.map((e) => e.outerHTML.slice(0, 80)),
    fetched: view.performance.getEntriesByType("resource").map((e) => e.name),
    title: view.document.title,
    hint: view.getComputedStyle(view.document.querySelector(".scroll")).backgroundAttachment }});
}};</script>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine")
@pytest.mark.parametrize("width", [390, 1280])
def test_a_real_browser_shows_it_without_overflow_errors_or_requests(tmp_path: Path, width: int) -> None:
    assert CHROMIUM is not None
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.format(width=width, page=html.escape(sample_page())))
    done = subprocess.run(
        [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probe.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    found = re.search(r'<pre id="result">(.+?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stderr[-2000:]
    result = json.loads(html.unescape(found[1]))
    assert result["title"] == "A page"
    assert result["wide"] == []
    assert result["scroll"] <= result["client"] <= width
    assert result["fetched"] == []
    assert set(result["hint"].split(", ")) == {"local", "scroll"}, "a shade where there is more to scroll to"
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
