"""The decoder against every kind of wrong bytes."""

import contextlib
import os
import random
import tracemalloc

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clippedgossip.peer import identity, wire, wire_tensors
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.rejection import Rejected, Rejection

ALICE, MALLORY = identity.create(), identity.create()
STAMP = wire.Stamp(bytes(range(16)), 3)
EXPECTED = wire.Expected(run="r", dtype="float32", length=700_000)
USED = wire.Stamp(STAMP.nonce, 2)
BODY = os.urandom(EXPECTED.size)
SMALL = wire.Expected(run="r", dtype="bfloat16", length=20)
PARTS = list(wire.parts(wire.make_header(ALICE, SMALL, STAMP, bytes(40)), bytes(40)))


def assemble(
    parts: list[bytes],
    expected: wire.Expected = EXPECTED,
    *,
    zstd: bool = False,
    by: identity.Identity = ALICE,
) -> bytes:
    assembler = wire.Assembler(expected, by.certificate, used=USED, zstd=zstd)
    for part in parts:
        assembler.feed(part)
    return bytes(assembler.finish())


def header(**changes: object) -> pb.Header:
    made = wire.make_header(ALICE, EXPECTED, STAMP, BODY)
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def reason(parts: list[bytes], expected: wire.Expected = EXPECTED, *, zstd: bool = False) -> Rejection:
    with pytest.raises(Rejected) as caught:
        assemble(parts, expected, zstd=zstd)
    return caught.value.reason


def test_round_trip_and_parts_are_plain_protobuf() -> None:
    sent = list(wire.parts(header(), BODY))
    assert assemble(sent) == BODY
    assert b"".join(pb.MessagePart.FromString(part).chunk for part in sent[1:]) == BODY
    assert max(map(len, sent)) <= wire.LARGEST_PART


def test_zstd_round_trip() -> None:
    text = bytes(EXPECTED.size)
    parts = list(wire.parts(_zstd(text), wire.compress(text)))
    assert assemble(parts, zstd=True) == text
    assert reason(parts) is Rejection.MALFORMED


def _zstd(body: bytes) -> pb.Header:
    made = wire.make_header(ALICE, EXPECTED, STAMP, body)
    made.zstd = True
    return made


def test_zstd_bomb_takes_no_memory() -> None:
    bomb = wire.compress(bytes(200_000_000))
    parts = list(wire.parts(_zstd(BODY), bomb))
    tracemalloc.start()
    assert reason(parts, zstd=True) is Rejection.WRONG_SHAPE
    assert tracemalloc.get_traced_memory()[1] < 4 * EXPECTED.size
    tracemalloc.stop()


def test_a_huge_announcement_takes_no_memory() -> None:
    made = header(length=10 * 2**30)
    tracemalloc.start()
    assert reason(list(wire.parts(made, b""))) is Rejection.WRONG_SHAPE
    assert tracemalloc.get_traced_memory()[1] < 100_000
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"round": 2}, Rejection.REPLAYED),
        ({"round": 4}, Rejection.MALFORMED),
        ({"nonce": bytes(16)}, Rejection.MALFORMED),
        ({"final": True}, Rejection.MALFORMED),
        ({"length": 1}, Rejection.WRONG_SHAPE),
        ({"dtype": pb.DTYPE_FLOAT16}, Rejection.WRONG_SHAPE),
        ({"run": "other"}, Rejection.MALFORMED),
        ({"sender": MALLORY.fingerprint}, Rejection.REFUSED),
        ({"digest": bytes(32)}, Rejection.MALFORMED),
        ({"signature": b"no"}, Rejection.MALFORMED),
    ],
)
def test_every_field_is_checked(changes: dict[str, object], expected: Rejection) -> None:
    assert reason(list(wire.parts(header(**changes), BODY))) is expected


def test_length_of_the_body_is_checked() -> None:
    good = list(wire.parts(header(), BODY))
    assert reason(good[:-1]) is Rejection.WRONG_SHAPE
    assert reason([*good, good[-1]]) is Rejection.WRONG_SHAPE
    assert reason([]) is Rejection.MALFORMED
    assert reason(good[1:]) is Rejection.MALFORMED


def test_a_signature_does_not_carry_over() -> None:
    made = wire.make_header(ALICE, EXPECTED, STAMP, BODY)
    assert wire.verify_header(made, ALICE.certificate)
    assert not wire.verify_header(made, MALLORY.certificate)
    made.round += 1
    assert not wire.verify_header(made, ALICE.certificate)


@given(st.lists(st.binary(max_size=200), max_size=4))
def test_garbage_is_rejected(parts: list[bytes]) -> None:
    with pytest.raises(Rejected):
        assemble(parts, SMALL)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_mutations_are_rejected_or_harmless(seed: int) -> None:
    mutate_once(random.Random(seed))


def mutate_once(draw: random.Random) -> None:
    """One message with a few bytes changed, inserted or cut."""
    parts = [bytearray(part) for part in PARTS]
    for _ in range(draw.randint(1, 4)):
        part = draw.choice(parts)
        at = draw.randrange(len(part) + 1)
        match draw.randrange(3):
            case 0:
                part[at : at + 1] = draw.randbytes(1)
            case 1:
                part[at:at] = draw.randbytes(draw.randint(1, 9))
            case _:
                del part[at : at + draw.randint(1, 9)]
    with contextlib.suppress(Rejected):
        assert assemble([bytes(part) for part in parts], SMALL) == bytes(40)


@given(st.integers(1, wire.CHUNK))
def test_chunk_lengths_round_trip(length: int) -> None:
    part = pb.MessagePart(chunk=bytes(length)).SerializeToString()
    assert len(wire.read_chunk(part)) == length


@pytest.mark.parametrize("dtype", [*wire_tensors.DTYPES])
def test_rounding_for_the_wire_makes_no_finite_number_infinite(dtype: str) -> None:
    """Else neighbours would ignore a regular peer for a violation that its own log does not know of."""
    most, largest = torch.finfo(wire_tensors.DTYPES[dtype]).max, torch.finfo(torch.float32).max
    row = torch.empty(4)
    wire_tensors.widen(
        memoryview(wire_tensors.to_bytes(torch.tensor([1.0, 3, largest, -largest]), dtype)), dtype, row
    )
    assert row.tolist() == [1, 3, most, -most]
    diverged = torch.tensor([largest, torch.inf, -torch.inf, torch.nan])
    wire_tensors.widen(memoryview(wire_tensors.to_bytes(diverged, dtype)), dtype, row)
    assert row.nan_to_num(nan=7, posinf=8, neginf=9).tolist() == [most, 8, 9, 7]


def test_terms_name_what_differs_before_round_one() -> None:
    def terms(*tensors: str, **changes: object) -> wire.RunTerms:
        facts: dict[str, object] = {
            "run": "r",
            "degree": 2,
            "length": 5,
            "dtype": "float32",
            "rule": "gossip",
        }
        return wire.RunTerms(**{**facts, **changes}, tensors=tensors)  # type: ignore[arg-type]  # by name

    mine = terms("a.weight 2x2", "a.bias 1")
    assert mine.misfit(terms("a.weight 2x2", "a.bias 1").encode()) == ""
    assert mine.misfit(terms().encode()) == "", "a learner of one's own need not name its tensors"
    assert "tensor 1 is 'b 1' instead of 'a.bias 1'" in mine.misfit(terms("a.weight 2x2", "b 1").encode())
    assert "tensor 1 is 'None'" in mine.misfit(terms("a.weight 2x2").encode())
    assert "rule 'median'" in mine.misfit(terms("a.weight 2x2", "a.bias 1", rule="median").encode())
    assert mine.misfit(terms(run="s").encode()) == "run 's' instead of 'r'"
    for one, other in (
        ("r", "r-6aff06a32bca"),
        ("r-6aff06a32bca", "r"),
    ):  # one of `peer start`, one of `peer up`
        assert "`peer up` has a run of its own" in terms(run=one).misfit(terms(run=other).encode())
    many = terms(*(f"layer{i}.weight 10x10" for i in range(100_000)))
    assert len(many.encode().SerializeToString()) < 20_000
    assert many.misfit(many.encode()) == ""
    assert "other tensors" in many.misfit(terms(*many.tensors[:-1], "x 1").encode())


def test_the_highest_common_version_is_used() -> None:
    def speaks(*versions: int) -> pb.Terms:
        return pb.Terms(versions=versions, run="r", degree=1)

    assert wire.common_version(speaks(1, 2, 7)) == 2
    assert wire.common_version(speaks(1)) == 0
    mine = wire.RunTerms(run="r", degree=1, length=0, dtype="float32", rule="")
    assert "protocol versions [1] instead of [2]" in mine.misfit(speaks(1))
