"""The commands `consensus`, `reproduce` and `demo`, as a user meets them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clippedgossip.cli import main
from clippedgossip.paper.base import EXPERIMENTS

COMMAND = (sys.executable, "-m", "clippedgossip")


def run(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """In this process, which saves the second that Python and torch take to start."""
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    code = stopped.value.code
    assert isinstance(code, int)
    return code, out, err


CHAIN = ["consensus", "consensus-chain", "--beta", "0.04", "--delta", "0.2", "--start", "0,0,200,200"]
PAPER = ["--rule-option", "radius=oracle", "--attack", "dissensus", "--attack-option", "epsilon=0.05"]


def test_one_setting_of_the_paper_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*CHAIN, *PAPER, "--json"], capsys)
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert round(result["error"]) == 401
    assert result["byzantine"] == ["4", "5"]
    assert len(result["history"]) == 101
    assert result["history"][0]["error"] == 10_000


def test_terminal_output_fits_80_columns_without_colour(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "deep" / "page.html"
    arguments = ["consensus", "torus", "--random-byzantine", "1", "--rounds", "30", "--rule", "Median"]
    code, out, _ = run([*arguments, "--attack", "alie", "--out", str(page)], capsys)
    assert code == 0
    assert "\x1b" not in out
    assert max(map(len, out.splitlines()[:-1])) <= 80  # the last line is a path
    assert "Median() against ALIE" in out
    assert "<svg" in page.read_text(encoding="utf-8")


def test_a_network_from_a_file_with_an_adaptive_radius(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "net.csv"
    file.write_text("\n".join(f"{i},{j}" for i in range(6) for j in range(i)), encoding="utf-8")
    radius = ["--rule-option", "radius=adaptive", "--rule-option", "delta_max=0.2"]
    code, out, _ = run(
        ["consensus", str(file), "--byzantine", "3", *radius, "--attack", "gaussian", "--json"], capsys
    )
    result = json.loads(out)
    assert code == 0
    assert result["rule"] == "ClippedGossip(radius=Adaptive(delta_max=0.2))"
    assert result["error"] < 0.1 * result["history"][0]["error"]


def test_worst_byzantine_puts_nodes_where_they_do_most_harm(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["consensus", "star", "--pendants", "3", "--rounds", "1", "--json"], capsys)
    assert (code, json.loads(out)["byzantine"]) == (0, ["10"])
    code, out, err = run(["consensus", "star", "--worst-byzantine", "1"], capsys)
    assert (code, out) == (2, "")
    assert "fall into 9 parts" in err  # the hub
    code, out, _ = run(["consensus", "complete", "--worst-byzantine", "2", "--rounds", "1", "--json"], capsys)
    assert (code, len(json.loads(out)["byzantine"])) == (0, 2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["consensus", "ring", "--rule", "trimmed-mean", "--rule-option", "trim=3"], "trim at most 1"),
        (["consensus", "ring", "--rule", "krum", "--rule-option", "faulty=3"], "needs at least 5 neighbours"),
        (["consensus", "ring", "--rule", "{name = 'krum', faulty = 3}"], "needs at least 5 neighbours"),
        (
            ["consensus", "ring", "--rule", "{name = 'krum', faulty = 0}", "--rule-option", "faulty=1"],
            "--rule-option faulty is given twice",
        ),
        (["consensus", "line", "--byzantine", "4"], "cannot agree"),
        (["consensus", "rnig"], "did you mean 'ring'"),
        (["consensus", "ring", "--rule", "medan"], "did you mean 'median'"),
        (["consensus", "ring", "--rule-option", "radios=1"], "did you mean 'radius'"),
        (["consensus", "ring", "--rule-option", "radius"], "written key=value"),
        (["consensus", "ring", "--attack", "disensus"], "did you mean 'dissensus'"),
        (["consensus", "ring", "--nodse", "8"], "did you mean '--nodes'"),
        (["consensus", "ring", "--start", "1,two"], "give numbers"),
        (["consensus", "ring", "--start", "1,2"], "each of the 10 nodes"),
        (
            ["consensus", "dumbbell", "--start", "0,0,200"],
            "--start has 3 numbers\ngive one for each of the 20",
        ),
        (["consensus", "line", "--nodes", "3", "--start", "0,nan,1"], "must be finite"),
        (["consensus", "ring", "--weights", "own"], "own weights need one on every edge"),
        (["consensus", "ring", "--rule", "Mozi"], "the rule needs losses"),
        (
            ["consensus", "ring", "--rule", "bucketing", "--rule-option", "rule=mozi"],
            "`clippedgossip run`",
        ),
        (["consensus", "ring", "--byzantine", "1", "--attack", "label-flipping"], "the attack needs labels"),
        (["consensus", "ring", "--rule", "krum"], "for faulty\nadd, for example, --rule-option faulty=1"),
        (
            ["consensus", "ring", "--rule", "nnm"],
            "--rule-option rule=median --rule-option faulty=1",
        ),
        (
            ["consensus", "ring", "--rule", "bucketing", "--rule-option", "rule=krum"],
            "--rule-option rule.faulty=1",
        ),
        (["consensus", "ring", "--attack", "tuned"], "--attack-option attack=dissensus"),
        (["consensus", "ring", "--rule", "gts"], "--rule-option byzantine_weight=0.1"),
        (["consensus", "missing.csv"], "no such graph file"),
        (["reproduce", "consensu"], "did you mean 'consensus'"),
        (["reprodce", "consensus"], "did you mean 'reproduce'"),
    ],
)
def test_mistakes_give_two_lines_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(arguments, capsys)
    assert (code, out) == (2, "")
    assert says in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 2


def test_a_mistake_in_a_real_process_shows_no_traceback() -> None:
    done = subprocess.run(
        [*COMMAND, "consensus", "ring", "--rule", "trimmed-mean", "--rule-option", "trim=3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert "trim is 3 per side" in done.stderr


@pytest.mark.parametrize("options", [["rule=krum", "rule.faulty=1"], ["rule=krum", "faulty=1"]])
def test_a_wrapped_rule_takes_its_own_options(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    given = [part for option in options for part in ("--rule-option", option)]
    network = ["complete", "--nodes", "8", "--rounds", "2"]
    code, out, _ = run(["consensus", *network, "--rule", "bucketing", *given], capsys)
    assert code == 0
    assert "Krum(faulty=1)" in out


def test_help_of_consensus_names_networks_rules_and_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["consensus", "--help"], capsys)
    assert code == 0
    for name in ("--clique", "clipped-gossip", "spectral", "--rule-option", "radius=1.0"):
        assert name in out
    for name in ("mozi", "label-flipping"):
        assert name not in out
    assert max(map(len, out.splitlines())) <= 80


def test_help_of_reproduce_names_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["reproduce", "--help"], capsys)
    assert code == 0
    assert max(map(len, out.splitlines())) <= 80
    listed = [name.strip() for name in out.partition("Figures: ")[2].replace("\n", " ").split(",")]
    assert listed == [*EXPERIMENTS, "all (those of the paper)", "ours (the others)"]


def test_reproduce_prints_rows_alone_and_writes_its_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(["reproduce", "consensus", "--json"], capsys)
    assert code == 1  # three claims do not hold
    assert "3 of the claims do not hold" in err
    rows = json.loads(out)
    assert len(rows) == 265
    assert set(rows[0]) == {"rule", "beta", "delta", "gamma", "ratio", "error"}
    published = [row["error"] for row in rows if row["rule"] == "ClippedGossip" and row["beta"] == 0.02]
    assert [round(error) for error in published][::2] == [937, 3373, 4918]
    page = tmp_path / "out" / "consensus" / "index.html"
    assert page.read_text(encoding="utf-8").count("✓") == 27


@pytest.mark.parametrize(
    "said",
    ["{adaptive=0.2}", '{name="adaptive",delta_max=0.2}', '{adaptive="0.2"}', "{adaptive='byzantine'}"],
)
def test_a_rule_option_is_written_as_in_a_config(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    rounds = ["consensus", "complete", "--nodes", "5", "--byzantine", "4", "--rounds", "2", "--json"]
    one = run([*rounds, "--rule-option", f"radius={said}"], capsys)
    same = run([*rounds, "--rule-option", "radius=adaptive", "--rule-option", "radius.delta_max=0.2"], capsys)
    assert (one[0], json.loads(one[1])["error"]) == (0, json.loads(same[1])["error"])
