"""The page of some runs."""

import math
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from clippedgossip.errors import RunError
from clippedgossip.records import Round, RunDirectory
from clippedgossip.report.figures.canvas import Axis, draw_line, drawing, finish, fitting
from clippedgossip.report.palette import Style
from clippedgossip.report.run_report import report
from clippedgossip.report.statistics import Series
from clippedgossip.report.summary import to_short_table
from clippedgossip.report.terminal import table
from tests.report.pages import check_page, write_peer, write_run
from tests.rounding import near
from tests.watch.browser import chromium


def test_a_report_shows_every_measure_and_every_config(tmp_path: Path) -> None:
    for seed in range(2):
        path = write_run(tmp_path, seed=seed)
        write_run(tmp_path, rule="median", attack="ipm", seed=seed)
    (path / "network.svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"/>')
    RunDirectory.open(tmp_path, {"rule": "krum"}, "waiting")
    made = report([tmp_path])
    outline = check_page(made.html)
    for words in ("dumbbell, ipm: clique A", "consensus distance", "loss", "clipped", "worst node"):
        assert words in outline.text
    assert '<img alt="the network" src="data:image/svg+xml;base64,PHN2' in made.html
    assert "No records yet: waiting-" in outline.text
    assert '"name": "median"' in outline.text
    assert len(made.rows) == 2
    gossip = made.rows[1]
    assert (gossip.rule, gossip.runs, gossip.last_round, gossip.state) == ("gossip", 2, 59, "finished")
    accuracy = gossip.score["all"]
    assert accuracy is not None
    assert accuracy.mean == near(0.905)
    assert accuracy.count == 2
    assert made.html == report([tmp_path]).html


def test_nothing_in_a_folder_of_somebody_else_s_runs_in_a_page(tmp_path: Path) -> None:
    path = write_run(tmp_path)
    harm = "document.title = 'harmed'"
    drawn = f'<svg xmlns="http://www.w3.org/2000/svg" width="40" height="30" onload="{harm}">{{}}</svg>'
    script = f"<script>{harm}</script></svg><img src=x onerror={harm!r}>"
    drawings = [drawn.format(f"<script>{harm}</script>"), f"<svg>{script}", script]
    with chromium() as driver:
        for drawing in drawings:
            (path / "network.svg").write_text(drawing)
            page = tmp_path / "page.html"
            page.write_text(report([tmp_path]).html)
            driver.get(page.as_uri())
            (wide,) = driver.execute_script("return [...document.images].map((e) => e.naturalWidth)")
            assert wide == (40 if drawing is drawings[0] else 0)
            assert "dumbbell" in driver.execute_script("return document.body.innerText")
            assert driver.title != "harmed"
    (path / "network.svg").write_bytes(b"\xff\x00")
    check_page(report([tmp_path]).html)


def test_the_edges_clipped_most_are_named(tmp_path: Path) -> None:
    for seed in range(2):
        run = RunDirectory.open(tmp_path, {"rule": "clipped-gossip", "seed": seed}, "run")
        edges = [["bridge", place, (9 - place + seed) / 10] for place in range(7)]
        run.append(Round(round=1, loss=1.0), Round(round=2, loss=1.0, clipped_edges=edges))
    words = check_page(report([tmp_path]).html).text
    assert "95.0%" in words  # 90 and 100
    assert "55.0%" in words
    assert "45.0%" not in words  # the sixth


def test_a_run_that_has_not_finished_says_so_on_the_page_and_in_the_terminal(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {"rule": "gossip", "seed": 1, "network": {"seed": 1}}, "run")
    run.append(Round(round=30, loss=1.0))
    made = report([tmp_path])
    (trouble,) = made.troubles
    assert re.fullmatch(r"Not finished; .*: run-\w+ \((stopped|running) after round 30\)\.", trouble)
    assert "Seed: 1. In run-" in check_page(made.html).text  # one seed, said once


def test_a_summary_takes_the_last_sixth(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {"rule": "gossip"}, "run")
    run.append(*(Round(round=i, accuracy={"all": float(i >= 750)}) for i in range(900)))
    accuracy = report([run.path]).rows[0].score["all"]
    assert accuracy is not None
    assert accuracy.mean == 1.0


def test_a_report_and_a_runs_own_summary_mean_the_same_rounds(tmp_path: Path) -> None:
    config = {"rule": "gossip", "training": {"rounds": 900, "evaluate_last": 30}}
    run = RunDirectory.open(tmp_path, config, "run")
    run.append(*(Round(round=i, accuracy={"all": float(i > 870)}) for i in range(10, 901, 10)))
    whole = report([run.path]).rows[0].score["all"]
    run.append(Round(round=910, accuracy={"all": 0.25}))
    run.write_summary({"diverged": "by round 910"})
    broken = report([run.path]).rows[0].score["all"]
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
    assert [row.rule for row in made.rows] == ["peer-2", "peer-3 (Byzantine: sign-flip)", "peer-10"]
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


def test_a_run_that_diverged_counts_in_the_mean(tmp_path: Path) -> None:
    for seed in range(3):
        run = RunDirectory.open(tmp_path, {"rule": "gossip", "seed": seed}, "run")
        run.append(*(Round(round=number, consensus_distance=1.0) for number in range(3)))
        if seed:
            run.append(Round(round=3, consensus_distance=math.nan))
        run.write_summary({"accuracy": 0.1} | ({"diverged": "node 3 holds NaN"} if seed else {}))
    made = report([tmp_path])
    distance = made.rows[0].consensus_distance
    assert distance is not None
    assert (distance.mean, distance.diverged) == (math.inf, 2)
    assert "2 of 3 diverged" in check_page(made.html).text
    assert "2 of 3 diverged" in table(to_short_table(made.rows))


def test_a_run_that_diverged_is_said_to_have(tmp_path: Path) -> None:
    run = RunDirectory.open(tmp_path, {"rule": "gossip"}, "run")
    run.append(Round(round=0, loss=1.0))
    run.write_summary({"accuracy": 0.1, "diverged": "node 3 holds NaN"})
    made = report([tmp_path])
    assert [row.state for row in made.rows] == ["diverged"]
    assert f"stands for the end: {run.path.name}" in check_page(made.html).text


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


def test_a_run_in_two_folders_counts_once(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / "sweep", seed=seed)
    write_run(tmp_path, seed=0)
    (row,) = report([tmp_path]).rows
    assert row.runs == 3
    accuracy = row.score["all"]
    assert accuracy is not None
    assert accuracy.count == 3


def test_a_run_that_failed_before_its_first_record_says_why(tmp_path: Path) -> None:
    RunDirectory.open(tmp_path, {"rule": "krum"}, "run").write_failure("no memory left")
    with pytest.raises(RunError, match="failed before its first record\nno memory left"):
        report([tmp_path])


@pytest.mark.parametrize(
    ("calm", "wild"),
    [
        ([[2.0, 1.0, 0.5], [2.0, 1.5, 0.9]], [2.0, 1e9, 1e30]),  # losses, on a linear axis
        ([[2.0, 0.1, 0.005], [2.0, 0.5, 0.09]], [2.0, 1e9, 1e30]),  # distances, on a log axis
        ([[-0.2, 0.5, 0.9], [0.1, 0.6, 0.8]], [-2.0, -1e9, -1e30]),  # R²
    ],
)
def test_one_that_diverges_does_not_flatten_the_others(calm: list[list[float]], wild: list[float]) -> None:
    """The others fill a third of the height or more, in the plot as matplotlib draws it."""
    lines = [
        Series(
            name=str(i), x=range(3), y=y, low=[v - abs(v) / 3 for v in y], high=[v + abs(v) / 3 for v in y]
        )
        for i, y in enumerate([*calm, wild])
    ]
    axis = fitting(lines, "linear")
    assert axis.cut
    plain = [value for values in calm for value in values]
    with drawing(4, 3) as figure:
        axes = figure.subplots()
        for order, series in enumerate(lines):
            look = Style("#000000", (), "o")
            draw_line(
                axes, series, look, points=9, markers=9, order=order, y_scale=axis.scale, y_limits=axis.limits
            )
        finish(axes, title="", x_label="round", y_label="", y_scale=axis.scale)
        axes.set_ylim(*(axis.limits or ()))
        assert axes.collections[-1].get_datalim(axes.transData).height <= 2  # no band where it has left
        low, high = (
            axes.transAxes.inverted().transform(axes.transData.transform((0, v)))[1]
            for v in (min(plain), max(plain))
        )
    assert 0 <= low <= high - 1 / 3 <= 2 / 3


def test_decades_need_a_log_axis() -> None:
    def line(name: str, *values: float) -> Series:
        return Series(name=name, x=range(len(values)), y=values)

    assert fitting([line("a", 2.0, 1.0, 0.5), line("b", 2.0, 1.5, 0.9)], "linear") == Axis("linear")
    assert fitting([line("a", -0.5, 0.001, 0.9)], "linear") == Axis("linear")  # it has no place for −0.5
    assert fitting([line("a", 3.0, 0.3, 0.003)], "linear").scale == "log"
