"""What users get wrong, through the real command line: one or two lines, exit code 2, no traceback."""

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_origin

import pytest
import typer
from rich.text import Text

from clippedgossip import __version__
from clippedgossip.cli import main
from clippedgossip.cli.app import app, two_lines
from clippedgossip.errors import tell, unknown_name
from tests.report.pages import write_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "ring.toml"

FILES = {
    "asymmetric.csv": "0,1,0.3\n1,2,0.3\n1,0,0.2\n",
    "asymmetric.json": json.dumps(
        {
            "directed": True,
            "nodes": [{"id": 0}, {"id": 1}],
            "links": [
                {"source": 0, "target": 1, "weight": 0.3},
                {"source": 1, "target": 0, "weight": 0.2},
            ],
        }
    ),
    "negative.csv": "0,1,0.3\n1,2,-0.3\n2,0,0.3\n",
    "partly.csv": "0,1,0.3\n1,2\n2,0,0.3\n",
    "heavy.csv": "0,1,0.9\n1,2,0.9\n2,0,0.9\n",
    "self_loop.csv": "0,1\n1,1\n",
    "parts.csv": "0,1\n2,3\n",
    "empty.csv": "",
    "empty.json": '{"nodes": [], "links": []}',
    "malformed.csv": "0,1,2,3\n",
    "malformed.json": '{"nodes": [',
    "malformed.graphml": "<graphml><gra",
    "malformed.toml": "[network\n",
}

WRONG: dict[str, tuple[str, ...]] = {  # the command -> what its error must say
    # files
    "audit ring --draw /proc/x.svg": ("cannot draw to /proc/x.svg", "another file"),
    "audit ring --nodes 3000000000": ("3000000000", "GB", "smaller"),
    "audit ring --nodes 5 --nodes 6": ("--nodes", "twice", "5", "6"),
    "audit hypercube --dimension 200": ("200", "GB", "smaller"),
    "consensus ring --dim 1000000000": ("1000000000", "GB", "smaller"),
    "consensus ring --delay 1000000000": ("1,000,000,000 rounds", "bytes", "lower network.delay"),
    "audit ring --schedule {name='churn'": ("{name='churn'", "Unclosed", "close every {"),
    f"run {EXAMPLE} network.byzantine=[1,2": ("[1,2", "Unclosed", "close every {"),
    f"run {EXAMPLE} training.lr_factor=0.5": ("training.lr_factor", "no effect without training.lr_drops"),
    "consensus ring --rule-option radius=1 --rule-option radius=2": ("radius", "twice"),
    "reproduce dumbbell --from . --seeds 2": ("--from draws what is in .", "leave --seeds out"),
    "reproduce dumbbell --from . --precision tf32 --length 0.5": ("leave --precision and --length out",),
    "reproduce consensus --from nowhere": ("nowhere", "does not exist", "results.json"),
    "examples nothing.toml": ("nothing.toml", "dumbbell.toml"),
    "audit asymmetric.csv": ("1–0", "0.2", "0.3", "symmetric"),
    "audit asymmetric.json": ("1–0", "0.2", "0.3", "symmetric"),
    "audit negative.csv": ("-0.3", "negative", "must be positive"),
    "audit partly.csv": ("1–2", "None", "every edge", "metropolis-hastings"),
    "audit heavy.csv": ("-0.8", "self-weight", "must be positive", "lower the others"),
    "audit self_loop.csv": ("node 1", "edge to itself", "remove"),
    "audit empty.csv": ("empty.csv", "at least one"),
    "audit empty.json": ("empty.json", "at least one"),
    "audit malformed.csv": ("line 1", "0,1,2,3", "node,node,weight"),
    "audit malformed.json": ("malformed.json", "line 1"),
    "audit malformed.graphml": ("malformed.graphml", "line 1"),
    "audit missing.graphml": ("missing.graphml", "no such"),
    "run missing.toml": ("missing.toml", "No such file"),
    "run malformed.toml": ("malformed.toml", "line 1"),
    "report missing": ("missing", "does not exist"),
    # networks
    "consensus parts.csv": ("2 parts", "2, 2", "add edges"),
    "audit ring --nodes 0": ("nodes is 0", "at least 3"),
    "audit ring --byzantine 99": ("'99'", "known: 0, 1"),
    "audit ring --nodes 3 --byzantine 0,1,2": ("all 3", "at least one must be regular"),
    # rules on neighbourhoods that are too small for them
    "consensus ring --rule trimmed-mean --rule-option trim=3": ("trim is 3", "2 neighbours", "at most 1"),
    "consensus ring --rule krum --rule-option faulty=1": ("1 faulty", "at least 3", "add edges"),
    # unknown names, with the nearest match
    "adit ring": ("'adit'", "did you mean 'audit'"),
    "audit dumbell": ("'dumbell'", "did you mean 'dumbbell'", ".graphml"),
    "consensus ring --rule clipped-gosip": ("'clipped-gosip'", "did you mean 'clipped-gossip'"),
    "consensus ring --attack disensus": ("'disensus'", "did you mean 'dissensus'"),
    "reproduce consensu": ("'consensu'", "did you mean 'consensus'"),
    "data fetch mnst": ("'mnst'", "did you mean 'mnist'"),
    f"run {EXAMPLE} rule=krm": ("'krm'", "did you mean 'krum'"),
    "peer strat": ("'strat'", "start"),
    # mistyped parameters
    "audit dumbbell --cliqe 4": ("'--cliqe'", "did you mean '--clique'"),
    "consensus ring --rule trimmed-mean --rule-option trm=1": ("'trm'", "did you mean 'trim'"),
    "consensus ring --rule trimmed-mean --rule-option trim=x": ("'x'", "whole number"),
    "consensus ring --rule trimmed-mean": ("trimmed-mean", "needs a value for trim", "trim=1"),
    "consensus ring --attack-option epsilo=1": ("'epsilo'", "did you mean 'epsilon'"),
    f"run {EXAMPLE} training.rouns=3": ("'rouns'", "did you mean 'rounds'"),
    "run --sede 3": ("--sede", "--seed"),
    "consensus ring --rounds few": ("--rounds is 'few'", "valid integer"),
    "audit ring --seed -5": ("--seed is '-5'", "greater than or equal to 0"),
    f"run {EXAMPLE} network.byzantine={{random=1}} network.seed=-1": ("network.seed is -1", "at least 0"),
    "audit ring --random-byzantine -1": ("-1 random nodes", "0 to 10"),
    "audit ring --draw": ("--draw", "clippedgossip audit --help"),
    "peer nosuch": ("unknown command 'nosuch'", "known: add, drill"),
    "data ftch": ("did you mean 'fetch'", "known: fetch, list"),
    "data fetch mnist --from nowhere": ("nowhere", "give a folder"),
    "run": ("CONFIG", "clippedgossip run --help"),
}


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def code_of(command: str) -> int:
    """The exit code of a command, run in this process."""
    with pytest.raises(SystemExit) as end:
        main(command.split())
    assert isinstance(end.value.code, int)
    return end.value.code


@pytest.mark.parametrize("command", WRONG, ids=lambda command: command.replace(str(EXAMPLE), EXAMPLE.name))
def test_an_error_says_the_value_the_bound_and_the_fix(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(command) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    lines = err.splitlines()
    assert len(lines) <= 2, err
    if "did you mean" in lines[0]:
        assert all(len(line) <= 80 for line in lines[1:]), err
    for part in WRONG[command]:
        assert part in err, err


def test_every_option_that_does_not_fit_is_named_with_its_value_and_its_bound(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def tries(command: Any, words: list[str]) -> Iterator[tuple[list[str], str]]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from tries(inner, [*words, name])
        given = [
            word
            for parameter in command.params
            if parameter.required
            for word in ([*parameter.opts[:1], "x"] if parameter.opts[0].startswith("-") else ["x"])
        ]
        for parameter in command.params:
            kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", str)
            if parameter.opts[0].startswith("-") and (kind in (int, float) or get_origin(kind) is Literal):
                low = getattr(parameter, "min", None)
                for wrong in ("few", *(() if low is None else (str(low - 1),))):
                    yield [*words, *given, parameter.opts[0], wrong], f"{parameter.opts[0]} is {wrong!r}"

    every = list(tries(typer.main.get_command(app), []))
    assert len(every) > 40
    for words, said in every:
        with pytest.raises(SystemExit) as end:
            main(words)
        first, second = capsys.readouterr().err.splitlines()
        assert (end.value.code, first) == (2, f"error: {said}"), words
        assert second.startswith(("Input should be ", "Value error, ")), second


def test_names_beside_the_nearest_match_are_cut_to_a_line() -> None:
    names = [f"name-{number}" for number in range(40)]
    unknown, known = two_lines(unknown_name("rule", "name-3x", names)).split("\n")
    assert "did you mean 'name-3'" in unknown
    assert known.endswith(", … (40 in all)")
    assert 60 < len(known) <= 80
    assert set(known.removeprefix("known: ").removesuffix(", … (40 in all)").split(", ")) <= set(names)
    for message in (unknown_name("rule", "name-3x", names[:8]), unknown_name("rule", "?", names)):
        assert two_lines(message) == message  # short, or all there is to go by


def test_a_disconnected_network_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("audit parts.csv") == 1
    assert "CONSENSUS IS IMPOSSIBLE" in capsys.readouterr().out
    assert code_of("audit parts.csv --json") == 1
    diagnosis = json.loads(capsys.readouterr().out)
    assert diagnosis["connected"] is False
    assert diagnosis["consensus_guaranteed"] is False
    assert diagnosis["suggested_edges"]


def test_a_schedule_that_never_connects_is_diagnosed(capsys: pytest.CaptureFixture[str]) -> None:
    never = "audit ring --schedule {name='phases',phases=[{rounds=1,edges=[[0,1]]}]}"
    assert code_of(never) == 1
    assert "CONSENSUS IS IMPOSSIBLE" in capsys.readouterr().out
    assert code_of(f"{never} --json") == 1
    assert json.loads(capsys.readouterr().out)["consensus_guaranteed"] is False


def test_a_disconnected_network_is_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = f'[network]\nfile = "{tmp_path / "parts.csv"}"\n[data]\nname = "digits"\n'
    (tmp_path / "parts.toml").write_text(config + '[model]\nname = "linear"\n[rule]\nname = "gossip"\n')
    assert code_of("run parts.toml") == 2
    err = capsys.readouterr().err
    assert "2 parts" in err
    assert len(err.splitlines()) == 2, err


def test_no_arguments_show_the_help_and_version_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("") == 2
    shown = capsys.readouterr()
    assert "audit" in shown.out + shown.err
    assert code_of("--version") == 0
    assert capsys.readouterr().out == f"clippedgossip {__version__}\n"


def test_a_missing_extra_is_named() -> None:
    code = """
import sys
sys.modules["cryptography"] = None
from clippedgossip.cli import main
from clippedgossip.cli.app import app
main(["peer", "init", "me"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "error: cryptography is not installed",
        "fix: `pip install 'clippedgossip[peer]'`",
    ]


@pytest.mark.parametrize(
    ("command", "code"), [("consensus parts.csv", 2), ("audit --attackrs 1 ring", 2), ("--help", 0)]
)
def test_a_real_process_ends_as_it_should(command: str, code: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "clippedgossip", *command.split()], capture_output=True, text=True
    )
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith(" ")]) <= 2
    assert bool(done.stdout) == (code == 0)


def test_help_fills_its_lines_and_cuts_no_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def commands(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, inner in getattr(command, "commands", {}).items():
            yield from commands(inner, [*words, name])

    monkeypatch.setenv("COLUMNS", "80")
    for words in commands(typer.main.get_command(app), []):
        with pytest.raises(SystemExit):
            main([*words, "--help"])
        text = capsys.readouterr().out
        assert not re.search(r"--[\w-]*…", text), text
        about = [line.strip() for line in text.partition("╭")[0].splitlines()]
        for line, following in pairwise(about):
            if line and following:
                assert len(f"{line} {following.split()[0]}") > 78, (words, line)


def test_no_help_text_is_taken_for_markup() -> None:
    def texts(command: Any) -> Iterator[str]:
        yield from (
            command.help or "",
            *(getattr(parameter, "help", "") or "" for parameter in command.params),
        )
        for inner in getattr(command, "commands", {}).values():
            yield from texts(inner)

    every = list(texts(typer.main.get_command(app)))
    assert len(every) > 100
    assert [text for text in every if Text.from_markup(text).plain != text] == []


class Pipe(io.RawIOBase):
    """Keeps what each call of the system would write."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        self.pieces.append(bytes(piece))
        return len(piece)


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no such names")
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_names_that_are_no_text_and_terminals_without_utf_8_end_no_command(
    tmp_path: Path, encoding: str
) -> None:
    """A file's name may be any bytes. The UTF-8 of a locale is strict about them, and others lack δ."""
    name = os.fsdecode(b"\xe9")
    folder = tmp_path / name
    folder.mkdir()
    (folder / "mine.py").write_text("def broken(shape, classes):\n    raise ValueError(__file__)\n")
    (folder / f"{name}.csv").write_text("a,b\nb,c\nc,a\n")
    (folder / "run.toml").write_text(
        'attack = "none"\nrule = "gossip"\nmodel = "linear"\ndata = {name = "digits", samples = 60}\n'
        "[network]\nname = 'ring'\nnodes = 3\n[training]\nrounds = 1\nbatch = 4\n"
    )
    graph = f'network={{file="{name}.csv"}}'
    for words, code in (
        (["run", "run.toml", "model=mine:broken", "--out", name], 2),
        (["run", "run.toml", graph, "--out", name], 0),
        (["report", name, "--out", f"{name}.html"], 0),
        (["export", name, "--out", f"{name}_.csv"], 0),
        (["export", name, "--out", f"{name}.parquet", "--to", "parquet"], 0),
        (["audit", f"{name}.csv", "--draw", f"{name}.svg"], 0),
        (["peer", "network", "run.toml", graph, "--out", "net"], 2),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "clippedgossip", *words],
            cwd=folder,
            env=os.environ | {"PYTHONIOENCODING": f"{encoding}:strict", "CUDA_VISIBLE_DEVICES": ""},
            capture_output=True,
            check=False,
        )
        errors = done.stderr.decode(errors="replace")
        assert done.returncode == code, (words, errors)
        assert "Traceback" not in errors


def test_two_lines_are_written_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers and ranks that fail at the same time print into one terminal."""
    pipe = Pipe()
    stderr = io.TextIOWrapper(io.BufferedWriter(pipe), line_buffering=True)  # as Python's own
    monkeypatch.setattr(sys, "stderr", stderr)
    tell("error: what\nthe fix")
    with pytest.raises(SystemExit):
        main(["run", "no-such-file.toml"])
    monkeypatch.undo()
    assert pipe.pieces[0] == b"error: what\nthe fix\n"
    assert len(pipe.pieces) == 2
    assert pipe.pieces[1].startswith(b"error: ")


def test_a_terminal_obeys_no_word_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"format": "\x1b[2J\u202e", "experiment": "dumbbell"}))
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "dumbbell", "--from", str(path), "--out", str(tmp_path / "out")])
    err = capsys.readouterr().err
    assert "has format \\x1b[2J\\u202e; known is 1" in err


@pytest.mark.parametrize("depth", [500, 200_000])  # for what walks; for what parses
@pytest.mark.parametrize("name", ["records.jsonl", "config.json", "graph.json", "run.toml", "peer.toml"])
def test_no_file_is_nested_too_deep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, depth: int
) -> None:
    monkeypatch.chdir(tmp_path)
    run = write_run(tmp_path)
    deep = "[" * depth + "]" * depth
    path = run / name if (run / name).exists() else Path(name)
    line = f"x = {deep}\n" if name.endswith(".toml") else f'{{"round": 0, "x": {deep}}}\n'
    path.write_text(line * (2 if name == "records.jsonl" else 1))  # a last line may be torn
    commands = {
        "records.jsonl": ("report RUN", "export RUN --out out.csv"),
        "config.json": ("report RUN", "export RUN --out out.csv", "run RUN/config.json", "peer watch RUN"),
        "graph.json": ("audit graph.json", "peer network graph.json --out net"),
        "run.toml": ("run run.toml", "peer network run.toml --out net"),
        "peer.toml": ("peer start .",),
    }
    for command in commands[name]:
        with pytest.raises(SystemExit, match="2"):
            main(command.replace("RUN", str(run)).split())
        err = capsys.readouterr().err
        assert err.startswith("error: "), err
        assert err.count("\n") == 2, err
        assert name in err
