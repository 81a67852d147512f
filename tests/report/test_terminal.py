"""Tables and bars of a terminal."""

import io
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from clippedgossip.records import Round, RunDirectory
from clippedgossip.report import (
    Table,
)
from clippedgossip.report.run_report import report
from clippedgossip.report.summary import to_short_table
from clippedgossip.report.terminal import download_progress, progress, short, show_peers, table


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
    both = Table(["setting", "rule", *wide.header[1:]], [["IID", "GM", *["96.4 ± 0.3"] * 12]], keys=2)
    lines = table(both).splitlines()
    assert max(map(len, lines)) <= 80
    assert sum(line.split()[:2] == ["IID", "GM"] for line in lines) == 3
    assert sum(line.count("96.4 ± 0.3") for line in lines) == 12
    assert table(Table(["rule"], [], "No rule. " * 20)).splitlines() == [
        *["No rule. No rule. " * 4 + "No rule."] * 2,
        "No rule. No rule.",
    ]
    narrow = Table(["rule", "accuracy"], [["a rule whose name is long " * 4, None], ["GM", 0.5]])
    assert table(narrow).splitlines()[-1].split() == ["GM", "0.5"]
    assert max(map(len, table(narrow).splitlines())) <= 80


def test_words_of_files_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those that turn a line around, or begin a new one."""
    evil = "\x1b[31mx\x07\u202e\x9b2J\r\u2028"
    shown = r"\x1b[31mx\x07\u202e\x9b2J\r\u2028"
    text = table(Table([evil, f"b {evil}"], [[evil, evil]], evil, headings={0: evil}))
    assert text.count(shown) == 6
    show_peers({evil: {"metric": evil, "score": 0.5, "convicted": [evil], "misbehave": evil}})
    text += capsys.readouterr().out
    assert text.replace("\n", "").isprintable()
    assert table(Table(["é", "\u4e2d"], [["ä\N{NO-BREAK SPACE}%", "≤"]])).count("ä\N{NO-BREAK SPACE}%") == 1


def test_a_huge_number_has_three_digits() -> None:
    assert [*map(short, (0.0, 0.00123, 0.01, 1234.5, 7.8e46, -1e6))] == [
        "0.000",
        "0.00123",
        "0.010",
        "1234.500",
        "7.8e+46",
        "-1e+06",
    ]


def test_a_squared_distance_is_not_called_a_distance(capsys: pytest.CaptureFixture[str]) -> None:
    """The log and the live page call the plain one so, and a radius compares with that."""
    show_peers({"0": {"neighbour_distance": 0.09}})
    head, _, row = capsys.readouterr().out.splitlines()[:3]
    assert row.split()[head.split().index("distance²")] == "0.090"


def test_the_state_of_a_peer_is_never_cut(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"round": 11261, "rounds": 10**6, "links": {"1": True}, "messages": {"1": 99}, "clipped": 9}
    row |= {"metric": "accuracy", "score": 0.975, "neighbour_distance": 1e-5}
    for name, lost in (("0", 0), ("0", 10**6), ("ann-of-the-hospital-of-a-large-town", 10**6)):
        show_peers({name: row | {"missing": lost, "rejected": lost}})
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "…" not in "".join(lines)
        assert lines[0].split()[:2] == ["peer", "state"]
        assert all(line.split()[:2] == [name, "stopped"] for line in lines if line.startswith(name))
        assert {"11261/1000000", "97.5%", "1e-05", "1/1", "9.1%", str(lost)} <= {*" ".join(lines).split()}


def test_a_peer_whose_rule_clips_nothing_has_no_share(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"round": 3, "rounds": 9, "links": {"1": True}, "messages": {"1": 3}, "clipped": None}
    show_peers({"0": row})
    assert "%" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("done", "total", "shown"),
    [(0, None, " "), (5_000_000, None, "5.0 MB"), (5_000, 10_000, "5.0 kB of 10.0 kB")],
)
def test_the_bar_shows_the_bytes_that_are_known(
    monkeypatch: pytest.MonkeyPatch, done: int, total: int | None, shown: str
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with download_progress() as show:
        show("npm thing", done, total)
    bar = terminal.getvalue()
    assert "npm thing" in bar
    assert shown in bar
    assert "/?" not in bar
    assert "0 bytes" not in bar


def test_a_pipe_hears_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress() as tell:
        tell("training", 1, 2)
    assert capsys.readouterr() == ("", "")


def test_a_notebook_sees_one_line_that_ends_empty(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]  # set for this test
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    with progress() as tell:
        for done in range(1000):
            tell("training", done, 1000)
    out = capsys.readouterr().out
    assert out.startswith("\r0/1000 training")
    assert "\n" not in out
    assert out.count("training") < 100
    assert out.rpartition("\r")[0].rpartition("\r")[2].isspace()


def test_off_a_terminal_a_line_is_printed_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 0.0
    monkeypatch.setattr("clippedgossip.report.terminal.time.monotonic", lambda: now)
    with progress() as tell:
        for done in range(1001):
            now = float(done)
            tell("ring: accuracy 90.0%", done, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "10/1000 ring: accuracy 90.0%, 16 min left"
    assert [line.split("/")[0] for line in lines] == ["10", "30", "70", "150", "310", "630"]
