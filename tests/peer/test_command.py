"""The `peer` command: a first network, three machines, and mistakes."""

import contextlib
import errno
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import networkx as nx
import pytest
import torch

from clippedgossip.cli import main
from clippedgossip.errors import PeerError
from clippedgossip.peer import Mixed, Peer, identity
from clippedgossip.peer.journal import FAR, Journal
from clippedgossip.peer.local_network import write_network
from clippedgossip.peer.peer_config import Config, Deadlines, load
from clippedgossip.peer.peer_folder import take
from clippedgossip.peer.signed_rounds import signed_file
from clippedgossip.peer.telemetry import read_status, unhealthy, write_starting, write_status
from clippedgossip.records import RunDirectory
from clippedgossip.report.terminal import short
from clippedgossip.settings import DataConfig, ModelConfig, TrainingConfig
from tests.peer.terminal import Terminal

COMMAND = [sys.executable, "-m", "clippedgossip"]
FEW = DataConfig(samples=60, test_samples=20)


def peer(*arguments: object) -> str:
    """The command, in a process of its own."""
    command = [*COMMAND, "peer", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def here(*arguments: object) -> str:
    """The command, in this process: quicker, where nothing is started."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
        main(["peer", *map(str, arguments)])
    assert not ended.value.code
    return said.getvalue()


def test_a_config_with_byzantine_nodes_says_how_to_leave_them_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ring = Path(__file__).parents[2] / "examples" / "ring.toml"
    with pytest.raises(SystemExit, match="2"):
        main(["peer", "network", str(ring), "--out", str(tmp_path / "net")])
    first, fix = capsys.readouterr().err.splitlines()
    assert "11 Byzantine nodes" in first
    here("network", ring, fix.split("'")[1], "--out", tmp_path / "net")
    assert len([*tmp_path.glob("net/*/peer.toml")]) == 5
    assert "no peer makes the attack 'ipm'" in capsys.readouterr().err


def test_a_first_network(tmp_path: Path) -> None:
    net = tmp_path / "net"
    here("network", "ring", "--nodes", 4, "--out", net, "--model", "linear")
    assert (net / "0" / "key.pem").stat().st_mode & 0o777 == 0o600
    rows = json.loads(peer("up", net, "--rounds", 30, "--json", "--watch", "--misbehave", "3=non-finite"))
    assert [row["peer"] for row in rows] == ["0", "1", "2", "3"]
    for row in rows[:3]:
        assert row["rounds"] == 30
        assert row["score"] > 0.8
    assert rows[0]["rejected"] >= 3
    assert rows[1]["rejected"] == 0
    status = json.loads(here("status", net, "--json"))
    assert [row["round"] for row in status] == [30] * 4
    assert f" {short(status[0]['neighbour_distance'])} " in here("status", net)
    assert not any(row["running"] for row in status)
    records = list((net / "0" / "runs").glob("*/records.jsonl"))
    assert len(records) == 1
    assert len(records[0].read_text().splitlines()) == 30


def test_a_first_network_bears_a_liar_among_four(tmp_path: Path) -> None:
    here("network", "complete", "--nodes", 4, "--out", tmp_path / "net")
    rows = json.loads(peer("up", tmp_path / "net", "--rounds", 40, "--json", "--misbehave", "3=bit-flipping"))
    assert all(row["score"] > 0.8 for row in rows[:3])  # 0.1 with a radius of 1


def test_a_simulated_runs_config_becomes_a_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text(
        'seed = 4\n[network]\nname = "torus"\nrows = 3\ncolumns = 3\n'
        '[data]\nname = "digits"\npartition = "dirichlet"\nsamples = 300\n[model]\nname = "linear"\n'
        '[rule]\nname = "bucketing"\nrule = {name = "krum", faulty = 0}\n'
        '[training]\nrounds = 70\nlr_drops = [30, 60]\nmomentum_form = "paper"\n'
    )
    network = ["peer", "network", str(tmp_path / "run.toml"), "--out", str(tmp_path / "net")]
    with pytest.raises(SystemExit, match="0"):
        main([*network, "--rounds", "80", "--set", "training.lr=0.3"])
    assert "9 peers, 18 links" in capsys.readouterr().out
    mine = load(tmp_path / "net" / "8")
    assert (mine.rounds, mine.seed, mine.degree) == (80, 4, 4)
    assert mine.training == TrainingConfig(rounds=80, lr=0.3, lr_drops=(30, 60), momentum_form="paper")
    assert mine.data == DataConfig(partition="dirichlet", alpha=0.5, samples=300)
    assert (mine.model, mine.nodes, mine.node) == (ModelConfig("linear"), 9, 8)
    assert dict(mine.rule) == {"name": "bucketing", "size": 2, "rule": {"name": "krum", "faulty": 0}}


NAME = "use 1 to 64 letters, digits, dots, dashes or underscores, the first a letter or a digit"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["up", "NET", "--misbehave", "1=bitflipping"], "did you mean 'bit-flipping'"),
        (["up", "NET", "--misbehave", "7=nan"], "unknown peer '7'"),
        (["up", "NET", "--misbehave", "7"], "not NAME=VALUE"),
        (["network", "ring", "--out", "NET"], "not empty"),
        (["network", "rnig", "--out", "new"], "did you mean 'ring'"),
        (["network", "ring", "--out", "new", "--rule", "krum"], "needs a value for faulty"),
        (["network", "ring", "--out", "new", "--set", "training.rl=1"], "did you mean 'lr'"),
        (["network", "ring", "training.rl=1", "--out", "new"], "did you mean 'lr'"),
        (["network", "ring", "rule=krum", "--out", "new"], "override 'rule=krum': rule 'krum' needs a value"),
        (["up", "nowhere"], "nowhere is no folder"),
        (["up", "NET/0"], "the folder of one peer"),
        (["up", "NET", "--resume"], "never started"),
        (["start", "nowhere"], "peer init"),
        (["start", "ALONE"], "peer add NAME ADDRESS FINGERPRINT"),
        (["status", "nowhere"], "peer init"),
        (["add", "bob", "10.0.0.1:7", "beef", "--dir", "NET/0"], "64 hex"),
        (["add", "0", "10.0.0.1:7", "ab" * 32, "--dir", "NET/0"], "shares its name with this peer"),
        (["add", "bob", "10.0.0.1:7", "OWN", "--dir", "NET/0"], "ask bob for theirs"),
        (["network", "torus", "--out", "new", "--nodes", "7"], "error: --nodes 7: unknown parameter"),
        (["network", "ring", "--out", "new", "--model", "vgg11"], "at least 32×32 pixels"),
        (["network", "nowhere.graphml", "--out", "new"], "nowhere.graphml"),
        (["up", "NET", "--rounds", "0"], "training.rounds is 0\nit must be at least 1"),
        (["start", "NET/0", "--rounds", "0"], "training.rounds is 0\nit must be at least 1"),
        (
            ["add", "../../evil", "10.0.0.1:7", "ab" * 32, "--dir", "NET/0"],
            f"a neighbour is '../../evil'\n{NAME}",
        ),
        (["init", "new", "--name", "../../evil"], f"error: name is '../../evil'\n{NAME}"),
        (["evidence", "NET/0/peer.toml"], "is not evidence: it is not JSON\ngive"),
        (["evidence", "NET/network.json"], "is not evidence: it has no certificate, or not a peer's\ngive"),
        (["evidence", "/dev/zero"], "is not evidence: it is larger than 65536 bytes\ngive"),
        (["evidence", "NET"], "is not evidence: Is a directory\ngive"),
        (["network", "ring", "--out", "new", "--radius", "nan"], "radius is nan"),
        (["drill", "kil"], "did you mean 'kill'"),
        (["drill", "--network", "rnig"], "did you mean 'ring'"),
        (["drill", "--peers", "2"], "at least 5 peers"),
    ],
)
def test_mistakes_are_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write_network([(0, 1), (1, 2), (0, 2)], 3, tmp_path / "net", Config(name="t", run="r"))
    write_network([], 1, tmp_path / "alone", Config(name="t", run="r"))
    places = {"NET": str(tmp_path / "net"), "ALONE": str(tmp_path / "alone" / "0")}
    places["OWN"] = identity.load(tmp_path / "net" / "0").fingerprint.hex()
    with pytest.raises(SystemExit) as ended:
        main(["peer", *(re.sub("NET|ALONE|OWN", lambda word: places[word[0]], a) for a in arguments)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        ["init", "FILE/new"],
        ["network", "ring", "--out", "FILE/new"],
        ["add", "x", "127.0.0.1:7", "ab" * 32, "--dir", "NET/0"],
        ["remove", "1", "--dir", "NET/0"],
        ["init", "/proc/none"],
    ],
    ids=" ".join,
)
def test_what_cannot_be_written_is_an_error_of_two_lines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    """Root may write everywhere: so a file is where a folder should be, and opening fails as on a disk that
    is mounted read-only."""
    write_network([(0, 1), (1, 2), (0, 2)], 3, tmp_path / "net", Config(name="t", run="r"))
    (tmp_path / "file").touch()
    places = {"NET": str(tmp_path / "net"), "FILE": str(tmp_path / "file")}
    opened = os.open

    def read_only(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if flags & os.O_CREAT and str(path).endswith(".tmp"):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *more, **options)

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(SystemExit) as ended:
        main(["peer", *(re.sub("NET|FILE", lambda word: places[word[0]], a) for a in command)])
    assert ended.value.code == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2
    assert said[0].startswith("error: cannot use ")
    assert "tmp:" not in said[0]


def test_own_code_that_raises_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import warnings\nfrom clippedgossip.rules import Gossip\nclass Boom(Gossip):\n"
        "    def coefficients(self, near):\n        warnings.warn('soon')\n        raise ValueError('boom')\n"
    )
    template = Config(name="t", run="r", rule={"name": "mine:Boom"}, folder=tmp_path)
    write_network([(0, 1)], 2, tmp_path / "net", template)
    # A process of its own: peers write where the server that forks them did when it was started.
    command = [*COMMAND, "peer", "up", str(tmp_path / "net"), "--rounds", "1"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 1
    file, said = tmp_path / "net" / "0" / "mine.py", ended.stderr
    assert "\nnote: peer 0: soon\n" in said
    assert f"error: peer 0: ValueError: boom\nraised by {file}, line 6\n" in said
    assert "error: ended badly: 0 (exit code 2), 1 (exit code 2)\nsee log.jsonl" in said
    assert f"`clippedgossip peer up {tmp_path / 'net'} --resume`" in said
    assert "Traceback" not in said
    assert "ValueError: boom" in (tmp_path / "net" / "0" / "log.jsonl").read_text()


def test_a_complete_run_says_so_and_starts_anew_when_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two peers one never comes, and is not waited for."""
    monkeypatch.setattr("clippedgossip.peer.telemetry.log_to", lambda path: None)
    hurry = Deadlines(least=0.01, most=0.01, join=0, linger=0)
    template = Config(
        name="t",
        run="r",
        checkpoint_every=1,
        data=FEW,
        model=ModelConfig("linear"),
        training=TrainingConfig(rounds=2),
        deadlines=hurry,
    )
    folder = write_network([(0, 1)], 2, tmp_path / "net", template)[0]

    def start(*more: str) -> tuple[dict[str, Any], str]:
        with pytest.raises(SystemExit, match="0"):
            main(["peer", "start", str(folder), "--json", *more])
        out, error = capsys.readouterr()
        return json.loads(out), error

    assert start()[0]["resumed"] is None
    row, said = start()
    assert (row["rounds"], row["resumed"], row["missing"]) == (2, 2, 2)
    assert "complete already" in said
    assert "--no-resume" in said
    row, said = start("--no-resume")
    assert (row["rounds"], row["resumed"]) == (2, None)
    assert "complete already" not in said
    assert len([*(folder / "runs").iterdir()]) == 1
    assert "complete already" in start("--rounds", "1")[1]
    row, _ = start("--rounds", "3")
    assert (row["resumed"], row["missing"]) == (2, 3), "of the run, not of this start"
    (run,) = (folder / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["missing"] == 3
    rounds = [json.loads(line)["round"] for line in (run / "records.jsonl").read_text().splitlines()]
    assert rounds == [0, 1, 2], "a run with fewer rounds or more is the same run"
    assert RunDirectory.existing(run).state == "finished"
    Journal(load(folder).until(4)).go_on_from(3)
    assert RunDirectory.existing(run).state != "finished", "not before its last round"


def test_a_graph_file_becomes_a_network(tmp_path: Path) -> None:
    nx.write_graphml(nx.path_graph(4), tmp_path / "mine.graphml")
    said = here("network", tmp_path / "mine.graphml", "--out", tmp_path / "net", "--model", "linear")
    assert "4 peers, 3 links" in said
    (tmp_path / "mine.json").write_text(json.dumps(nx.node_link_data(nx.path_graph(3), edges="edges")))
    assert "3 peers, 2 links" in here("network", tmp_path / "mine.json", "--out", tmp_path / "other")


QUICK = Deadlines(least=0.01, most=0.01, join=0, linger=0)
SMALL = DataConfig(name="digits", samples=60, test_samples=20)


def alone(tmp_path: Path, **changes: Any) -> Path:
    """The folder of a peer whose only neighbour never comes."""
    training = TrainingConfig(rounds=changes.pop("rounds", 3))
    facts: dict[str, Any] = {"checkpoint_every": 1, "data": SMALL, "deadlines": QUICK}
    facts |= {"model": ModelConfig("linear"), **changes}
    template = Config(name="t", run="r", training=training, **facts)
    return write_network([(0, 1)], 2, tmp_path / "net", template)[0]


@dataclass
class Ended:
    """How `peer start` ended, in this process: quicker than one of its own."""

    code: int
    error: str


def started(folder: Path, *more: str) -> Ended:
    error = io.StringIO()
    with (
        mock.patch("clippedgossip.peer.telemetry.log_to"),  # it would take the logs of all tests
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(error),
        pytest.raises(SystemExit) as ended,
    ):
        main(["peer", "start", str(folder), "--json", *more])
    return Ended(int(ended.value.code or 0), error.getvalue())


def test_a_trained_model_is_loaded_as_the_document_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = alone(tmp_path, data=DataConfig(name="digits"), model=ModelConfig("mlp"))
    assert started(folder).code == 0
    folder.rename(tmp_path / "ann")
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "running.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.S)
    exec(block, {})
    score = json.loads(Path("ann/status.json").read_text())["score"]
    assert capsys.readouterr().out == f"accuracy {score:.3f}\n"


def test_nothing_is_lost_by_one_mistyped_command(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = alone(tmp_path)
    assert started(folder).code == 0

    def kept(under: Path) -> set[str]:
        return {p.name for p in under.rglob("*") if p.suffix in (".safetensors", ".jsonl")}

    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}
    with take(folder):
        done = started(folder, "--no-resume")
    assert (done.code, "is running in" in done.error) == (2, True)
    assert {p: p.read_bytes() for p in before} == before, "not a byte has changed"
    again = started(folder, "--no-resume")
    assert again.code == 0
    assert "without being served" in caplog.text, "what was signed is not signed again"
    (aside,) = (folder / "set-aside").iterdir()
    assert kept(aside) == kept(folder / "checkpoints") | {"records.jsonl"}
    assert "`peer up` has a run of its own" not in caplog.text
    (folder.parent / "last-start").write_text("-6aff06a32bca")
    assert started(folder).code == 0
    assert "`peer up` has a run of its own" in caplog.text
    assert "are not known" not in caplog.text
    shutil.rmtree(folder / "signed")
    assert started(folder, "--rounds", "4").code == 0
    assert "the rounds that this peer has signed are not known" in caplog.text


def test_a_start_that_is_refused_changes_nothing(tmp_path: Path) -> None:
    """Of a peer that has finished; it stays healthy."""
    folder = alone(tmp_path)
    assert started(folder).code == 0
    config, bind, (signed,) = folder / "peer.toml", load(folder).bind, (folder / "signed").iterdir()
    text, rounds = config.read_text(), signed.read_bytes()

    def content() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "lock"}

    def refuses(*more: str, without_resume: bool = True) -> None:
        before = content()
        for resume in ("--resume", "--no-resume")[: 1 + without_resume]:
            assert started(folder, "--rounds", "9", resume, *more).code == 2
            assert {path for path, said in content().items() if before.get(path) != said} == set()
            assert here("health", folder) == "0: healthy\n"

    refuses("--enter", "50")
    with socket.create_server((bind.host, bind.port)):
        refuses()
    signed.write_bytes(b"x" * 24)
    refuses()
    signed.write_bytes(rounds)
    config.write_text(text.replace('"linear"', '"mlp"'))
    refuses(without_resume=False)
    config.write_text(text)
    before = content()
    with pytest.raises(PeerError, match="no round is signed twice"):
        Peer.from_config(folder, torch.nn.Linear(2, 2))
    assert content() == before


def test_a_folder_in_place_of_a_file_is_named_and_so_the_other_way_round(tmp_path: Path) -> None:
    folder = alone(tmp_path)
    signed = signed_file(folder, "r")

    def refuses(path: Path, fix: str) -> None:
        said = started(folder)
        assert (said.code, len(said.error.splitlines())) == (2, 2)
        assert said.error.startswith(f"error: cannot write {path}: ")
        assert said.error.endswith(f"\n{fix}\n")

    (folder / "lock").mkdir()
    refuses(folder / "lock", "remove that folder: a file belongs there")
    (folder / "lock").rmdir()
    signed.parent.touch()
    refuses(signed, "remove the file that is where a folder belongs")
    signed.parent.unlink()
    signed.mkdir(parents=True)
    refuses(signed, "remove that folder: a file belongs there")


def test_exit_codes_and_the_log_tell_the_truth(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = alone(tmp_path)
    assert started(folder, "--rounds", "2").code == 0
    text = (folder / "peer.toml").read_text()
    (folder / "peer.toml").write_text(text.replace('"linear"', '"mlp"'))
    changed = started(folder)
    assert (changed.code, "is of another model" in changed.error) == (2, True)
    (folder / "peer.toml").write_text(text)
    for path in (folder / "checkpoints").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:100])
    torn = started(folder)
    assert (torn.code, "none is whole" in torn.error) == (2, True)
    shutil.rmtree(folder / "checkpoints")
    (folder / "checkpoints").write_text("no folder: nothing can be written there")
    shutil.rmtree(folder / "runs")
    (folder / "runs").write_text("no folder either")
    full = started(folder)
    assert (full.code, "could not be written" in full.error) == (1, True)
    told = {record.getMessage(): getattr(record, "why", "") for record in caplog.records}
    assert "Not a directory" in told["checkpoint failed"]
    assert re.fullmatch(r"cannot write .*/runs/.*: Not a directory", told["records are not written"])
    assert "no message of any neighbour was used in this start: the peer trained alone" in told


def test_a_model_that_is_not_finite_is_told_and_replaces_no_checkpoint(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = alone(tmp_path, rounds=6, learner={"name": "diverging_for_test:make"})
    (folder / "diverging_for_test.py").write_text(
        "from torch import nn\n"
        "from clippedgossip.peer.learner import ModuleLearner\n"
        "def make(config):\n"
        "    model = nn.Linear(2, 1)\n"
        "    def step(round):\n"
        "        model.requires_grad_(False).weight.mul_(float('nan') if round == 3 else 1).add_(1)\n"
        "        model.requires_grad_(True)\n"
        "    return ModuleLearner(model, step, lambda: model.weight.sum().item(), metric='sum')\n"
    )
    ended = started(folder)
    assert (ended.code, "could not be written" in ended.error) == (1, True)
    assert max(path.stem for path in (folder / "checkpoints").rglob("*.safetensors")).endswith("-000000003")
    status = read_status(folder)
    assert unhealthy(status, 60) == "its model is not finite"
    assert status is not None
    assert status["score"] is None, "JSON has no NaN"
    told = [record.__dict__["round"] for record in caplog.records if "not finite" in record.getMessage()]
    assert told == [3, 4, 5]


def test_a_change_of_the_config_is_logged_when_a_peer_resumes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = alone(tmp_path)
    text = (folder / "peer.toml").read_text()
    changes = {
        "rounds = 3": "rounds = 3\nbatch = 7\nlocal_steps = 2\nbatches = 'epochs'",
        "nodes = 2": "nodes = 3\nseed = 5",
        "samples = 60": "samples = 50",
    }

    def logged(*more: str) -> list[str]:
        caplog.clear()
        assert started(folder, *more).code == 0
        return [line for record in caplog.records for line in getattr(record, "changes", ())]

    assert logged() == logged("--rounds", "4") == []
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "peer.toml").write_text(text)
    assert logged("--rounds", "5") == [
        "data.samples is 50, was 60",
        "nodes is 3, was 2",
        "seed is 5, was 0",
        "training.batch is 7, was 32",
        "training.batches is epochs, was not set",
        "training.local_steps is 2, was not set",
    ]
    assert logged("--rounds", "6") == [], "once is enough"


def test_a_neighbour_that_is_clipped_in_every_round_is_named(caplog: pytest.LogCaptureFixture) -> None:
    journal, neighbours = Journal(Config(name="a", run="r")), {"b": 0.4, "c": 0.4, "d": 0.6}
    for round in range(FAR + 50):
        shares = {**neighbours, "c": 0.6 if round % 90 == 0 else 0.4}
        journal._tell_of_clipping(
            Mixed(
                round=round,
                missing={},
                rounds={},
                distances=dict.fromkeys(shares, 2.5),
                clipped_to=shares,
                seconds=1,
                deadline=1,
            )
        )
    said = [
        record.__dict__["neighbour"] for record in caplog.records if "were clipped" in record.getMessage()
    ]
    assert said == ["b"]


def test_a_hangup_ends_a_peer_with_a_checkpoint(tmp_path: Path) -> None:
    folder = alone(tmp_path, rounds=10**6, checkpoint_every=10**5)
    command = [*COMMAND, "peer", "start", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        until = time.monotonic() + 60
        while time.monotonic() < until and '"round": 0' in _status_text(folder):
            time.sleep(0.1)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert list((folder / "checkpoints").rglob("*.safetensors"))


def _status_text(folder: Path) -> str:
    path = folder / "status.json"
    return path.read_text() if path.exists() else '"round": 0'


def test_every_folder_has_a_name_and_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = alone(tmp_path)
    write_status(folder, {"peer": "0", "round": 5, "rounds": 9, "finished": True})
    monkeypatch.chdir(folder)
    assert here("health") == "0: healthy\n"
    shutil.copytree(folder, folder.with_name("0-copy"))
    lines = here("status", folder.parent).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["0", "1", "0-copy"]


def test_health_has_an_exit_code(tmp_path: Path) -> None:
    folder = alone(tmp_path)
    now = time.time()
    well = {"peer": "0", "round": 5, "rounds": 9, "time": now, "round_time": now}

    def health(**status: Any) -> tuple[int, str]:
        (folder / "status.json").write_text(json.dumps({**well, "exchanged": {"1": now}, **status}))
        said = io.StringIO()
        with contextlib.redirect_stdout(said), pytest.raises(SystemExit) as ended:
            main(["peer", "health", str(folder), "--age", "60"])
        # A busy machine may take seconds.
        return int(ended.value.code or 0), re.sub(r"10\d s", "100 s", said.getvalue())

    with take(folder):
        assert health() == (0, "0: healthy\n")
        assert health(round_time=now - 100) == (1, "0: its last round ended 100 s ago\n")
        assert health(exchanged={"1": now - 100}) == (1, "0: no neighbour was heard for 100 s\n")
        assert health(exchanged={"1": None}) == (1, "0: no neighbour was heard yet\n")
        assert health(ended=True)[0] == 1
    assert health() == (1, "0: it does not run\n")
    assert health(finished=True)[0] == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"round": "x", "links": [1]}',
        '{"exchanged": {"a": "b"}}',
        '{"messages": {"a": "b"}, "misbehave": 5}',
        "\0",
        "[" * 99999,
    ],
)
def test_a_damaged_status_file_is_no_traceback(tmp_path: Path, text: str) -> None:
    folder = alone(tmp_path)
    (folder / "status.json").write_text(text)
    assert "0" in here("status", folder)
    json.loads(here("status", folder, "--json"))


def test_status_says_that_a_peer_is_starting_while_it_is(tmp_path: Path) -> None:
    folder = write_network([(0, 1)], 2, tmp_path / "net", Config(name="t", run="r"))[0]
    assert "stopped" in here("status", folder)
    with take(folder):
        write_starting(load(folder))
        assert "starting" in here("status", folder)
    assert "stopped" in here("status", folder), "whoever died meanwhile is not starting"


def test_interrupt_stops_everyone(tmp_path: Path) -> None:
    net = tmp_path / "net"
    here("network", "ring", "--nodes", 3, "--out", net, "--model", "linear")
    with Terminal([*COMMAND, "peer", "up", str(net), "--rounds", "1000000"]) as terminal:
        until = time.monotonic() + 60
        status: list[dict[str, Any]] = [{}]
        while time.monotonic() < until and not all("rounds" in row for row in status):
            time.sleep(0.1)
            status = json.loads(here("status", net, "--json"))
        assert all(row["running"] for row in status)
        metrics = urllib.request.urlopen(f"http://{status[0]['metrics']}/metrics", timeout=10).read().decode()
        assert "clippedgossip_round" in metrics
        terminal.interrupt()
        assert terminal.ended() == 0, "the way to stop it is no failure"
    assert "Traceback" not in terminal.said
    assert "--resume` resumes from here" in terminal.said
    stopped = [row["round"] for row in json.loads(here("status", net, "--json"))]
    resumed = json.loads(peer("up", net, "--resume", "--rounds", 1, "--json"))
    assert [row["rounds"] for row in resumed] == stopped


def test_interrupt_ends_the_waiting_for_neighbours(tmp_path: Path) -> None:
    deadlines = Deadlines(join=600)
    forever = Config(name="t", run="r", data=FEW, model=ModelConfig("linear"), deadlines=deadlines)
    folder = write_network([(0, 1)], 2, tmp_path / "net", forever)[0]
    with Terminal([*COMMAND, "peer", "start", str(folder)]) as terminal:
        until = time.monotonic() + 60
        while time.monotonic() < until and "listening" not in terminal.said:
            time.sleep(0.1)
        terminal.interrupt()
        assert terminal.ended() == 0
    assert "rounds 0" in terminal.said
    assert "Traceback" not in terminal.said


@contextlib.contextmanager
def machines(addresses: Sequence[str]) -> Iterator[list[str]]:
    """Network namespaces on one bridge, each with an address of its own."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("needs root and `ip` to make network namespaces")
    mark = f"cg{os.getpid() % 100000}"
    names = [f"{mark}n{i}" for i in range(len(addresses))]

    def ip(command: str) -> None:
        done = subprocess.run(["ip", *command.split()], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot make network namespaces here: ip {command}: {done.stderr.strip()}")

    try:
        ip(f"netns add {mark}")
        ip(f"-n {mark} link add bridge type bridge")
        ip(f"-n {mark} link set bridge up")
        for i, (name, address) in enumerate(zip(names, addresses, strict=True)):
            ip(f"netns add {name}")
            ip(f"-n {name} link set lo up")
            ip(f"-n {name} link add eth type veth peer name v{i} netns {mark}")
            ip(f"-n {name} address add {address} dev eth {'nodad' if ':' in address else ''}")
            ip(f"-n {name} link set eth up")
            ip(f"-n {mark} link set v{i} master bridge")
            ip(f"-n {mark} link set v{i} up")
        yield names
    finally:
        for name in (*names, mark):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_three_machines(tmp_path: Path) -> None:
    """What the guide shows: init, hand over fingerprints, add, start; IPv4 and IPv6."""
    addresses = ["10.77.0.1/24", "10.77.0.2/24", "fd77::3/64"]
    people = ["ann", "bea", "cid"]
    listen = ["10.77.0.1:7000", "10.77.0.2:7000", "[fd77::3]:7000"]
    with machines(addresses) as names:
        # cid listens on IPv6 only, the others on IPv4 only; everyone can call both.
        for name, more in zip(names, ["fd77::1/64", "fd77::2/64", "10.77.0.3/24"], strict=True):
            extra = ["nodad"] if ":" in more else []
            subprocess.run(["ip", "-n", name, "address", "add", more, "dev", "eth", *extra], check=True)
        marks = []
        for i, who in enumerate(people):
            said = here("init", tmp_path / who, "--name", who, "--bind", listen[i])
            marks.append(re.search(r"fingerprint (\S+)", said)[1])  # type: ignore[index]  # None is a failure
            path = tmp_path / who / "peer.toml"
            text = path.read_text().replace("node = 0", f"node = {i}").replace('"mlp"', '"linear"')
            path.write_text(text + "\n[deadlines]\nleast = 10\nmost = 20\n")
        links = [(0, 1), (0, 2), (1, 2)]
        for a, b in [*links, *((b, a) for a, b in links)]:
            here("add", people[b], listen[b], marks[b], "--dir", tmp_path / people[a])
        processes = []
        try:
            for name, who in zip(names, people, strict=True):
                inside = ["ip", "netns", "exec", name, *COMMAND, "peer", "start", str(tmp_path / who)]
                arguments = [*inside, "--rounds", "20", "--json"]
                processes.append(
                    subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                )
            rows: list[dict[str, Any]] = []
            for process in processes:
                out, error = process.communicate(timeout=120)
                assert process.returncode == 0, error
                rows.append(json.loads(out))
        finally:
            for process in processes:
                process.kill()
                process.wait(5)
    assert [row["peer"] for row in rows] == people
    for row in rows:
        assert row["rounds"] == 20
        assert row["missing"] == 0
        assert row["score"] > 0.7
