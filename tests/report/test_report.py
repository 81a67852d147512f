import html
import json
import math
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from clippedgossip.cli.report import register
from clippedgossip.errors import RunError
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
    Text,
    estimate,
    over_seeds,
    page,
    write,
)
from clippedgossip.report.figures import (
    Mark,
    Panel,
    Points,
    bars,
    curve_panels,
    curves,
    scatter,
    small_multiples,
)
from clippedgossip.report.grouping import find, group
from clippedgossip.report.page import PagePart
from clippedgossip.report.palette import RULE_STYLES, rule_of, styles, swatch
from clippedgossip.report.run_report import report
from clippedgossip.report.summary import to_short_table
from clippedgossip.report.svg import standalone
from clippedgossip.report.terminal import claims_table, show, table
from clippedgossip.rules.registry import RULES

NASTY = '<script>alert(1)</script> & "τ" \''
VOID = {"meta", "link", "br", "path", "use", "circle", "rect"}

CLAIMS = Claims(
    [
        Claim(text="ClippedGossip equals gossip", paper="69.7", ours="59.0", interval="± 0.9", holds=True),
        Claim(text="GM falls under ALIE", paper="9.8", ours="37.2", holds=False, note="fresh batches"),
        Claim(text="TM collapses on CIFAR-10", paper="25.3"),
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


# --- statistics ------------------------------------------------------------------------------------------


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9))
def test_the_interval_is_students(values: list[float]) -> None:
    found = estimate(values)
    assert found is not None
    assert found.low is not None
    low, high = stats.t.interval(
        0.95, len(values) - 1, loc=stats.tmean(values), scale=stats.sem(values) or 1e-300
    )
    assert found.low == pytest.approx(low, abs=1e-6)
    assert found.high == pytest.approx(high, abs=1e-6)


def test_one_seed_has_no_interval_and_none_has_no_mean() -> None:
    one = estimate([0.964, None, math.nan])
    assert one is not None
    assert (one.low, one.text(scale=100, unit=" %")) == (None, "96.4 %")
    assert estimate([]) is None
    assert estimate([None]) is None


def test_a_seed_that_stopped_early_counts_while_it_lasts() -> None:
    line = over_seeds("gossip", [{0: 1.0, 5: 3.0}, {0: 2.0}])
    assert (list(line.x), list(line.y)) == ([0, 5], [1.5, 3.0])
    assert line.low is not None
    assert line.low[0] is not None
    assert line.low[0] < 1.5
    assert line.low[1] == 3.0
    assert over_seeds("gossip", [{0: 1.0}]).low is None


# --- palette ---------------------------------------------------------------------------------------------


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


# --- figures ---------------------------------------------------------------------------------------------

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
    assert "prefers-color-scheme:dark" in text


# --- the page --------------------------------------------------------------------------------------------


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
    text = Table(["rule", "Ξ"], [["GM", "0.02"], ["TM", "1 diverged"]]).to_html()
    assert '<td class="number">1 diverged</td>' in text


def test_a_page_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*page.html"):
        write(tmp_path / "file" / "page.html", "x")
    for folder in (tmp_path, Path()):
        with pytest.raises(RunError, match="is a folder; give a file in it"):
            write(folder, "x")
    assert write(tmp_path / "new" / "page.html", "x").read_text() == "x"


# --- claims ----------------------------------------------------------------------------------------------


def test_claims_say_in_words_what_holds() -> None:
    assert CLAIMS.tally == "1 holds, 1 does not hold, 1 not run"
    text = claims_table(CLAIMS).plain
    assert max(map(len, text.splitlines())) <= 80
    words = Outline(CLAIMS.to_html()).text
    for verdict in ("holds", "does not hold", "not run"):
        assert verdict in text
        assert verdict in words
    assert [row["verdict"] for row in CLAIMS.to_json()] == ["holds", "does not hold", "not run"]
    json.dumps(CLAIMS.to_json(), allow_nan=False)


def test_brackets_in_a_claim_are_not_markup(capsys: pytest.CaptureFixture[str]) -> None:
    show(claims_table(Claims([Claim(text="accuracy in [0, 1] and [red]", ours="[1, 2]")])))
    assert "[red]" in capsys.readouterr().out


def test_a_claim_wraps_under_itself_and_keeps_numbers_with_their_units() -> None:
    note = "the worst rule against gossip in all of the plots; must be at least 1 point"
    claim = Claim(
        text="non-IID: GM only reaches 50 %",
        paper="+0.5 points",
        ours="+0.0",
        interval="± 0.1 points",
        note=note,
    )
    many = [replace(claim, text=" ".join("x" * length) + " 50 %") for length in range(9, 40)]
    lines = [line[:31].rstrip() for line in claims_table(Claims([*many, claim])).plain.splitlines()]
    assert not [line for line in lines if line.lstrip().startswith("%")]
    first = next(place for place, line in enumerate(lines) if line.startswith("  the worst"))
    under = lines[first : next(place for place in range(first, len(lines)) if "point" in lines[place]) + 1]
    assert len(under) > 2
    assert all(re.match(r" {2}\S", line) for line in under)
    assert under[-1].endswith("1 point")


# --- runs ------------------------------------------------------------------------------------------------


def test_runs_that_differ_in_their_seed_are_one_line(tmp_path: Path) -> None:
    for rule in ("trimmed-mean", "gossip"):
        for seed in range(3):
            write_run(tmp_path, rule=rule, seed=seed)
    runs, empty = find([tmp_path])
    assert not empty
    found = group(runs)
    assert [(g.setting, g.rule, len(g.runs)) for g in found] == [
        ("dumbbell, no attack", "gossip", 3),
        ("dumbbell, no attack", "trimmed-mean", 3),
    ]


def labels(tmp_path: Path, *configs: dict[str, object]) -> list[tuple[str, str]]:
    for config in configs:
        RunDirectory.open(tmp_path, config, "run").append(Round(round=0))
    return [(g.setting, g.rule) for g in group(find([tmp_path])[0])]


def test_what_differs_is_named(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        {"rule": {"name": "clipped-gossip", "radius": 1.0}, "network": {"name": "ring"}, "lr": 0.1},
        {"rule": {"name": "clipped-gossip", "radius": 10.0}, "network": {"name": "ring"}, "lr": 0.1},
        {"rule": "gossip", "network": {"name": "torus", "rows": 3}, "attack": "ipm", "lr": 0.01},
        {"rule": "gossip", "network": {"file": "own.csv", "sha256": "ab"}, "attack": "ipm", "lr": 0.01},
    )
    assert found == [
        ("own.csv, ipm", "gossip"),
        ("ring, no attack", "clipped-gossip radius=1"),
        ("ring, no attack", "clipped-gossip radius=10"),
        ("torus, ipm", "gossip"),
    ]


def test_titles_name_only_what_it_takes_to_tell_settings_apart(tmp_path: Path) -> None:
    def config(network: str, partition: str, rounds: int) -> dict[str, object]:
        data = {"name": "digits", "partition": partition}
        return {"network": {"name": network}, "data": data, "training": {"rounds": rounds}, "lr": 0.1}

    found = labels(
        tmp_path,
        config("dumbbell", "clique", 300),
        config("ring", "iid", 150),
        config("ring", "dirichlet", 150),
    )
    assert [setting for setting, _ in found] == [
        "dumbbell",
        "ring, digits partition=dirichlet",
        "ring, digits partition=iid",
    ]
    text = report([tmp_path]).html
    assert re.findall(r"<th[^>]*>(data.partition|training.rounds|lr)</th>", text) == [
        "data.partition",
        "training.rounds",
    ]
    assert '<td>dumbbell</td><td>clique</td><td class="number">300</td>' in text


def test_one_seed_is_not_said_to_have_an_interval(tmp_path: Path) -> None:
    write_run(tmp_path)
    assert "95 %" not in report([tmp_path]).html
    write_run(tmp_path, seed=1)
    outline = check_page(report([tmp_path]).html)
    assert outline.text.count("95 %") == 2, "under the title and over the summary"


def test_no_two_lines_have_one_name(tmp_path: Path) -> None:
    found = labels(
        tmp_path,
        {"rule": {"name": "bucketing", "rule": {"name": "gossip"}}},
        {"rule": {"name": "bucketing", "rule": {"name": "median"}}},
        {"rule": {"name": "krum", "faulty": None}},
        {"rule": {"name": "krum"}},
    )
    assert len(set(found)) == 4
    assert ("all runs", "bucketing(gossip)") in found


def test_a_rule_of_a_rule_is_named_with_what_differs(tmp_path: Path) -> None:
    def bucketing(**rule: Any) -> dict[str, Any]:
        return {"rule": {"name": "bucketing", "size": 2, "rule": rule}, "attack": {"name": "none"}}

    found = labels(
        tmp_path,
        bucketing(name="clipped-gossip", radius=1.0),
        bucketing(name="clipped-gossip", radius={"adaptive": 0.1}),
        bucketing(name="median"),
        {"rule": {"name": "median"}, "attack": {"name": "tuned", "attack": {"name": "ipm"}}},
        {"rule": {"name": "median"}, "attack": {"name": "tuned", "attack": {"name": "dissensus"}}},
    )
    assert {rule for _, rule in found} == {
        "bucketing(clipped-gossip) radius=1",
        "bucketing(clipped-gossip) adaptive=0.1",
        "bucketing(median)",
        "median",
    }
    assert {setting for setting, rule in found if rule == "median"} == {"tuned(ipm)", "tuned(dissensus)"}


def test_a_bare_config_still_has_a_name(tmp_path: Path) -> None:
    assert labels(tmp_path, {"seed": 0}, {"seed": 1}) == [("all runs", "run")]


def test_a_report_shows_every_measure_and_every_config(tmp_path: Path) -> None:
    for seed in range(2):
        path = write_run(tmp_path, seed=seed)
        write_run(tmp_path, rule="median", attack="ipm", seed=seed)
    (path / "network.svg").write_text(
        '<?xml version="1.0"?>\n<svg role="img" aria-label="two cliques"></svg>'
    )
    RunDirectory.open(tmp_path, {"rule": "krum"}, "waiting")
    made = report([tmp_path])
    outline = check_page(made.html)
    for words in ("dumbbell, ipm: clique A", "consensus distance", "loss", "clipped", "worst node"):
        assert words in outline.text
    assert "two cliques" in made.html
    assert "No records yet: waiting-" in outline.text
    assert '"name": "median"' in outline.text
    assert len(made.rows) == 2
    gossip = made.rows[1]
    assert (gossip.rule, gossip.runs, gossip.last_round, gossip.state) == ("gossip", 2, 59, "finished")
    accuracy = gossip.accuracy["all"]
    assert accuracy is not None
    assert accuracy.mean == pytest.approx(0.905)
    assert accuracy.count == 2
    assert made.html == report([tmp_path]).html


def test_the_edges_clipped_most_are_named(tmp_path: Path) -> None:
    for seed in range(2):
        run = RunDirectory.open(tmp_path, {"rule": "clipped-gossip", "seed": seed}, "run")
        edges = [["bridge", place, (9 - place + seed) / 10] for place in range(7)]
        run.append(Round(round=1, loss=1.0), Round(round=2, loss=1.0, clipped_edges=edges))
    words = check_page(report([tmp_path]).html).text
    assert "95.0%" in words  # 90 and 100
    assert "55.0%" in words
    assert "45.0%" not in words  # the sixth


def test_a_summary_takes_the_last_sixth(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {"rule": "gossip"}, "run")
    run.append(*(Round(round=i, accuracy={"all": float(i >= 750)}) for i in range(900)))
    accuracy = report([run.path]).rows[0].accuracy["all"]
    assert accuracy is not None
    assert accuracy.mean == 1.0


def test_a_report_and_a_runs_own_summary_mean_the_same_rounds(tmp_path: Path) -> None:
    config = {"rule": "gossip", "training": {"rounds": 900, "evaluate_last": 30}}
    run = RunDirectory.open(tmp_path, config, "run")
    run.append(*(Round(round=i, accuracy={"all": float(i > 870)}) for i in range(10, 901, 10)))
    whole = report([run.path]).rows[0].accuracy["all"]
    run.append(Round(round=910, accuracy={"all": 0.25}))
    run.write_summary({"diverged": "by round 910"})
    broken = report([run.path]).rows[0].accuracy["all"]
    assert whole is not None
    assert broken is not None
    assert (whole.mean, broken.mean) == (1.0, 0.25)


def test_a_line_looks_the_same_in_every_figure(tmp_path: Path) -> None:
    for number, clipped in enumerate((None, 0.5)):
        run = RunDirectory.open(tmp_path, {"rule": {"name": "gossip", "tau": number}}, "run")
        run.append(*(Round(round=i, loss=1.0, clipped=clipped) for i in range(3)))
    legends = re.findall(r'<ul class="legend">(.*?)</ul>', report([tmp_path]).html)
    assert len(legends) == 2
    assert legends[1] in legends[0]


def test_peers_are_drawn_one_by_one(tmp_path: Path) -> None:
    for name in ("peer-10", "peer-2"):
        write_peer(tmp_path, name)
    write_peer(tmp_path, "peer-3", "sign-flip")
    made = report([tmp_path])
    assert [row.rule for row in made.rows] == ["peer-2", "peer-3 (lies: sign-flip)", "peer-10"]
    assert [(row.missing, row.rejected) for row in made.rows] == [(10, 20)] * 3
    assert "3 peers on a real network (peers)" in check_page(made.html).text


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {"rule": "gossip"}, "run")
    run.append(Round(round=0, loss=1.0))
    run.write_failure("the loss is not finite in round 1")
    for name in ("krum", "mda", "nna"):
        RunDirectory.open(tmp_path, {"rule": name}, "other").write_failure("there is no room")
    text = check_page(report([tmp_path]).html).text
    assert f"Failed: {run.path.name}. the loss is not finite in round 1" in text
    assert text.count("there is no room") == 1


def test_a_run_that_diverged_is_said_to_have(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {"rule": "gossip"}, "run")
    run.append(Round(round=0, loss=1.0))
    run.write_summary({"accuracy": 0.1, "diverged": "node 3 holds NaN"})
    made = report([tmp_path])
    assert [row.state for row in made.rows] == ["diverged"]
    assert f"stands for the end: {run.path.name}" in check_page(made.html).text
    done = CliRunner().invoke(command(), [str(tmp_path), "--out", str(tmp_path / "page.html")])
    assert f"Diverged, so that the last record stands for the end: {run.path.name}" in done.stderr


def test_long_settings_stay_whole_in_a_narrow_terminal(tmp_path: Path) -> None:
    for lr in (0.1, 0.01):
        for rule in ("gossip", "a-rule-with-quite-a-long-name-that-must-not-squeeze-the-numbers"):
            config = {"rule": rule, "training": {"lr": lr, "momentum": 1 - lr, "momentum_form": f"form {lr}"}}
            run = RunDirectory.open(tmp_path, config, "run")
            run.append(*(Round(round=i, accuracy={"all": 0.5, "clique A": 0.25}) for i in range(3)))
    text = table(to_short_table(report([tmp_path]).rows))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert "…" not in text
    assert text.count("lr=0.01 momentum=0.99 momentum_form=form 0.01\n") == 1
    assert text.count("50.0") == 4


def test_columns_that_do_not_fit_stand_below() -> None:
    wide = Table(["", *(f"rule-{i:02d}" for i in range(12))], [["a setting", *["96.4 ± 0.3"] * 12]], "Title")
    lines = table(wide).splitlines()
    assert lines[0] == "Title"
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("a setting") for line in lines) == 3
    assert sum(line.count("96.4 ± 0.3") for line in lines) == 12
    narrow = Table(["rule", "accuracy"], [["a rule whose name is long " * 4, None], ["GM", 0.5]])
    assert table(narrow).splitlines()[-1].split() == ["GM", "0.5"]
    assert max(map(len, table(narrow).splitlines())) <= 80


# --- the command -----------------------------------------------------------------------------------------


def command() -> typer.Typer:
    app = typer.Typer()
    register(app)
    return app


def test_the_command_writes_the_page_and_a_summary(tmp_path: Path) -> None:
    runs = [str(write_run(tmp_path / "runs", rule=rule)) for rule in ("gossip", "clipped-gossip")]
    out = tmp_path / "report.html"
    done = CliRunner(env={"COLUMNS": "80", "TERM": "dumb"}).invoke(command(), [*runs, "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "clipped-gossip" in done.stdout
    assert done.stdout.endswith(f"wrote {out}\n")
    assert all(len(line) <= 80 for line in done.stdout.splitlines()[:-1])
    check_page(out.read_text())


def test_a_run_without_records_is_left_out_and_said(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    waiting = RunDirectory.open(tmp_path, {"rule": "krum"}, "waiting").path
    out = tmp_path / "report.html"
    done = CliRunner().invoke(command(), [str(path), str(waiting), "--json", "--out", str(out)])
    assert done.exit_code == 0
    assert len(json.loads(done.stdout)["rows"]) == 1
    assert f"No records yet: {waiting.name}." in done.stderr


def test_a_run_that_failed_before_its_first_record_says_why(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    failed = RunDirectory.open(tmp_path, {"rule": "krum"}, "failed")
    failed.write_failure("there are 10 classes")
    done = CliRunner().invoke(
        command(), [str(path), str(failed.path), "--out", str(tmp_path / "report.html")]
    )
    assert done.exit_code == 0
    assert f"Failed: {failed.path.name}. there are 10 classes" in done.stderr
    assert "No records yet" not in done.stderr


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs")
    out = tmp_path / "report.html"
    done = CliRunner().invoke(command(), [str(path), "--json", "--out", str(out)])
    printed = json.loads(done.stdout)
    assert printed["report"] == str(out)
    assert printed["rows"][0]["accuracy"]["all"]["mean"] == pytest.approx(0.9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("x"), "is not a folder"),
        (lambda path: path.mkdir(), "it has no config.json and records.jsonl"),
        (lambda path: RunDirectory.open(path, {}, "run"), "no records yet"),
    ],
    ids=["nothing", "a file", "an empty folder", "no records"],
)
def test_what_cannot_be_reported_is_a_user_error(
    tmp_path: Path, make: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "x"
    make(path)
    with pytest.raises(RunError, match=message):
        report([path])


# --- a real browser --------------------------------------------------------------------------------------

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
