"""The config reader: forgiving to people, unforgiving to nonsense."""

import contextlib
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clippedgossip.errors import UserError
from clippedgossip.peer import peer_config as config
from clippedgossip.peer.peer_config import Address, Config, Neighbour, Wire
from clippedgossip.peer.peer_mixing import rule_of
from clippedgossip.rules import TrimmedMean
from clippedgossip.settings import DataConfig, ModelConfig, TrainingConfig

MARK = "-".join(["0a1b"] * 16)
ASSETS = Path(__file__).parents[1] / "assets"
GOOD = f"""
format = 2
name = "alice"
run = "first"
bind = "[::1]:7001"
[training]
rounds = 30
[rule]
name = "gossip"
[deadlines]
most = 5
[[neighbours]]
name = "bob"
address = "bob.example.org:7000"
fingerprint = "{MARK}"
"""


def test_reads_what_the_guide_shows() -> None:
    read = config.parse(GOOD.encode())
    assert read.bind == Address("::1", 7001)
    assert read.deadlines.most == 5.0
    assert read.neighbours[0].address == Address("bob.example.org", 7000)
    assert read.rule == {"name": "gossip"}


def test_defaults_are_safe() -> None:
    plain = Config(name="a", run="r")
    assert plain.bind.host == plain.metrics.host == "127.0.0.1"


@pytest.mark.parametrize(
    "training",
    [
        TrainingConfig(lr=0.1, lr_drops=(10, 20), momentum_form="paper"),
        TrainingConfig(optimizer={"name": "adamw", "beta1": 0.8}, clip_gradient=1.0),
    ],
    ids=["momentum", "adamw"],
)
def test_dump_round_trip(training: TrainingConfig) -> None:
    neighbour = Neighbour(name="b", address=Address("10.0.0.1", 7), fingerprint=bytes(range(32)))
    made = Config(
        name="a",
        run='odd "name" \\ ü',
        neighbours=(neighbour,),
        wire=Wire(dtype="bfloat16", zstd=True),
        learner={"name": "mine:make", "width": 3},
        data=DataConfig(name="mine:blobs", partition={"name": "mine:thirds"}, parameters={"noise": 0.1}),
        model=ModelConfig("mlp", {"width": 8}),
        groups=((0, 1), (2,)),
        node=2,
        nodes=3,
        rule={"name": "bucketing", "rule": {"name": "clipped-gossip", "radius": {"adaptive": 0.2}}},
        training=training,
        witness=True,
    )
    assert "None" not in config.dump(made)
    assert config.parse(config.dump(made).encode()) == replace(made, folder=Path())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rounds = 30", "round = 30"), "did you mean 'rounds'"),
        (("most = 5", "mots = 5"), "did you mean 'most'"),
        (("rounds = 30", "rounds = -1"), "line 7: training.rounds is -1; it must be at least 1"),
        (("rounds = 30", 'rounds = "many"'), "line 7: training.rounds is 'many'; it must be a whole number"),
        (("rounds = 30", "rounds = true"), "training.rounds is true; it must be a whole number"),
        (("rounds = 30", "lr_drop = [9]"), "did you mean 'lr_drops'"),
        (("rounds = 30", "momentum = 1.0"), "at least 0 and below 1"),
        (("rounds = 30", "momentum_form = 'papers'"), "it must be 'pytorch' or 'paper'"),
        (("rounds = 30", "precision = 'tf32'"), "line 7: .*peers have float32 alone"),
        (
            ("rounds = 30", "evaluate_last = 30"),
            "line 7: training.evaluate_last is a key of a run",
        ),
        (
            ("format = 2", "format = 2\n[data]\npoison = 3"),
            "data.poison is a key of a run.*\ndrop it",
        ),
        (("format = 2", "format = 2\nrounds = 30"), "rounds is a key of format 1\nwrite it in .training."),
        (("format = 2", "format = 3"), "this version reads 1 to 2"),
        (("format = 2", "nodes = 3\nnode = 3"), "node is 3; with nodes = 3 choose 0 to 2"),
        (
            ("format = 2", 'metrics = "[::]:7001"\nformat = 2'),
            "as bind is; name another port",
        ),
        (("most = 5", "most = nan"), "deadlines.most is nan; choose 0.01 to"),
        (("most = 5", "most = 0.1"), "swap them"),
        (("[::1]:7001", "::1:7001"), "for IPv6 write"),
        (("[::1]:7001", "host:70000"), "host:port"),
        (("example.org:7000", "example.org:0"), "give the port that it listens on"),
        ((MARK, MARK[:-1]), "64 hex digits"),
        (('"bob"', '"../bob"'), "letters, digits"),
        (('name = "alice"', ""), "the file needs a value for name"),
        (('run = "first"', "run = "), "not TOML"),
    ],
)
def test_mistakes_are_named(change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UserError, match=message):
        config.parse(GOOD.replace(*change, 1).encode())


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("[rule]\nname = 'krm'", r"peer.toml, line \d+: unknown rule 'krm'; did you mean 'krum'"),
        ("[rule]\nname = 'krum'", r"peer.toml, line \d+: rule 'krum' needs a value for faulty\ngive faulty"),
        ("[rule]\nradius = 'oracle'", r"must be told who is Byzantine"),
        ("[rule]\nname = 'trimmed-mean'\ntrim = 'byzantine'", "nobody here knows which nodes are Byzantine"),
        ("[rule]\nname = 'not_here:Keep'", r"there is no module 'not_here'\n.*beside the config \(HERE\)"),
        ("[data]\nname = 'digit'", r"line \d+: unknown data set 'digit'; did you mean 'digits'"),
        ("[model]\nname = 'mpl'", r"line \d+: unknown model 'mpl'; did you mean 'mlp'"),
    ],
)
def test_what_a_file_names_is_looked_up_when_it_is_read(tmp_path: Path, section: str, message: str) -> None:
    (tmp_path / "peer.toml").write_text(f'format = 2\nname = "alice"\nrun = "first"\n{section}\n')
    with pytest.raises(UserError, match=message.replace("HERE", re.escape(str(tmp_path)))) as told:
        config.load(tmp_path)
    assert len(str(told.value).splitlines()) <= 2


def test_a_mark_of_the_byte_order_is_no_mistake() -> None:
    assert config.parse(GOOD.encode("utf-8-sig")) == config.parse(GOOD.encode())


def test_a_name_listed_twice() -> None:
    again = GOOD[GOOD.index("[[neigh") :]
    with pytest.raises(UserError, match="shares its name"):
        config.parse((GOOD + again).encode())


@pytest.mark.parametrize("text", ["10.0.0.1:7000", "[fe80::1]:1", "localhost:0", "a-b.c_d.org:65535"])
def test_addresses_round_trip(text: str) -> None:
    assert str(Address.parse(text)) == text


@given(st.binary(max_size=300))
def test_garbage_is_a_user_error(raw: bytes) -> None:
    with pytest.raises(UserError):
        config.parse(raw)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, len(GOOD)), st.binary(max_size=8))
def test_mutations_never_crash(start: int, length: int, patch: bytes) -> None:
    raw = GOOD.encode()
    with contextlib.suppress(UserError):
        config.parse(raw[:start] + patch + raw[start + length :])


def test_a_file_of_version_0_1_is_read_and_written_anew() -> None:
    old = config.load(ASSETS / "v0.1" / "peer")
    assert (old.rounds, old.training.evaluate_every, old.training.lr_drops) == (7, 10, (3,))
    assert (old.data, old.model) == (DataConfig(partition="dirichlet", alpha=0.5), ModelConfig("mlp"))
    assert (old.seed, old.node, old.nodes, old.degree) == (4, 4, 9, 4)
    assert rule_of(old) == TrimmedMean(1)
    text = config.dump(old)
    assert text.startswith("format = 2\n")
    assert "[task]" not in text
    assert config.parse(text.encode(), folder=old.folder) == old


def test_a_plain_file_of_version_0_1_keeps_its_defaults() -> None:
    plain = config.parse(b'name = "a"\nrun = "r"\n')
    assert (plain.rounds, plain.training.evaluate_every) == (100, 10)
    own = b'name = "a"\nrun = "r"\n[task]\nentry = "mine:make"\nwidth = 3\nnode = 2\nnodes = 3\n'
    assert config.parse(own).learner == {"name": "mine:make", "width": 3, "node": 2, "nodes": 3}
    for bad, said in (
        (b"rounds = 0\n", "rounds is 0"),
        (b"[task]\nmodl = 'mlp'\nlr = 1.0\n", r"line 5: task.lr belongs .* write it in \[training\]"),
        (b"[task]\nsamples = 0\n", "data.samples is 0"),
    ):
        with pytest.raises(UserError, match=said):
            config.parse(b'name = "a"\nrun = "r"\n' + bad)


def test_reading_a_config_loads_no_torch() -> None:
    check = (
        "import sys; from clippedgossip.peer import peer_config; "
        f"peer_config.parse({GOOD.encode()!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
