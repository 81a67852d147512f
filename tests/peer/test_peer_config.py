"""The config reader: forgiving to people, unforgiving to nonsense."""

import contextlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clippedgossip.errors import UserError
from clippedgossip.peer import peer_config as config
from clippedgossip.peer.peer_config import Address, Config, Neighbour, Training, Wire

MARK = "-".join(["0a1b"] * 16)
GOOD = f"""
name = "alice"
run = "first"
bind = "[::1]:7001"
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


def test_dump_round_trip() -> None:
    neighbour = Neighbour(name="b", address=Address("10.0.0.1", 7), fingerprint=bytes(range(32)))
    made = Config(
        name="a",
        run='odd "name" \\ ü',
        neighbours=(neighbour,),
        wire=Wire(dtype="bfloat16", zstd=True),
        task={"entry": "mine:make", "width": 3, "groups": [[0, 1], [2]]},
        rule={"name": "bucketing", "rule": {"name": "clipped-gossip", "radius": {"adaptive": 0.2}}},
        training=Training(lr=0.1, lr_drops=(10, 20), momentum_form="paper"),
        witness=True,
    )
    assert config.parse(config.dump(made).encode()) == replace(made, folder=Path())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rounds = 30", "round = 30"), "did you mean 'rounds'"),
        (("most = 5", "mots = 5"), r"did you mean 'deadlines\.most'"),
        (("rounds = 30", "rounds = -1"), "choose 1 to"),
        (("rounds = 30", 'rounds = "many"'), "must be a int"),
        (("rounds = 30", "rounds = true"), "must be a int"),
        (("[rule]", "[training]\nlr_drop = [9]\n[rule]"), r"did you mean 'training\.lr_drops'"),
        (("[rule]", "[training]\nmomentum = 1.0\n[rule]"), "choose 0 to"),
        (("[rule]", "[training]\nmomentum_form = 'papers'\n[rule]"), "did you mean 'paper'"),
        (("most = 5", "most = nan"), "out of bounds"),
        (("most = 5", "most = 0.1"), "swap them"),
        (("[::1]:7001", "::1:7001"), "for IPv6 write"),
        (("[::1]:7001", "host:70000"), "host:port"),
        ((MARK, MARK[:-1]), "64 hex digits"),
        (('"bob"', '"../bob"'), "letters, digits"),
        (('name = "alice"', ""), "name is not given"),
        (('run = "first"', "run = "), "not TOML"),
    ],
)
def test_mistakes_are_named(change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    with pytest.raises(UserError, match=message):
        config.parse(GOOD.replace(*change, 1).encode())


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
