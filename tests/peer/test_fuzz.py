"""Mutated bytes through all code that reads what others send: no crash, and nothing wrong is accepted.

`pytest -m slow tests/peer/test_fuzz.py` puts a million inputs through each reader, in chunks with seeds
of their own; without `-m slow` it is two thousand.
"""

import contextlib
import random
import ssl
from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.message import DecodeError

from clippedgossip.errors import UserError
from clippedgossip.peer import identity, wire
from clippedgossip.peer import peer_config as config
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.peer_config import Address, Config, Neighbour, Wire
from clippedgossip.peer.rejection import Rejected
from clippedgossip.settings import DataConfig

MILLION, CHUNKS, SHORT = 1_000_000, 10, 2000
ALICE = identity.create()
DER = ssl.PEM_cert_to_DER_cert(ALICE.certificate.pem.decode())
EXPECTED = wire.Expected(run="r", dtype="bfloat16", length=20)
STAMP = wire.Stamp(bytes(range(16)), 3)
BODY = bytes(range(40))
HEADER = wire.make_header(ALICE, EXPECTED, STAMP, BODY)
PLAIN = list(wire.parts(HEADER, BODY))
TERMS = wire.RunTerms(run="r", degree=2, length=20, dtype="bfloat16", rule="gossip", tensors=("a 4x5",))
ZEROS = bytes(40)
CONFIG = config.dump(
    replace(
        Config(name="alice", run="first", bind=Address("::1", 7001), data=DataConfig(samples=60)),
        wire=Wire(dtype="bfloat16", zstd=True),
        neighbours=tuple(
            Neighbour(
                name=name, address=Address(f"{name}.example.org", 7000), fingerprint=32 * name[:1].encode()
            )
            for name in ("bob", "cid")
        ),
    )
).encode()


def _packed() -> list[bytes]:
    header = wire.make_header(ALICE, EXPECTED, STAMP, ZEROS)
    header.zstd = True
    return list(wire.parts(header, wire.compress(ZEROS)))


PACKED = _packed()


def mutated(draw: random.Random, raw: bytes) -> bytes:
    """A few bytes changed, flipped, inserted, repeated, moved or cut."""
    data = bytearray(raw)
    for _ in range(draw.randint(1, 4)):
        at, length = draw.randrange(len(data) + 1), draw.randint(1, 9)
        match draw.randrange(6):
            case 0:
                data[at : at + 1] = draw.randbytes(1)
            case 1 if at < len(data):
                data[at] ^= 1 << draw.randrange(8)
            case 2:
                data[at:at] = draw.randbytes(length)
            case 3:
                data[at:at] = data[at : at + length] * draw.randint(1, 3)
            case 4:
                there = draw.randrange(len(data) + 1)
                data[at : at + length] = raw[there : there + length]
            case _:
                del data[at : at + length]
    return bytes(data)


def message(draw: random.Random) -> None:
    """Parts of a model, plain or as zstd; shuffled, doubled and missing ones too."""
    zstd = draw.random() < 0.3
    sent, body = (PACKED, ZEROS) if zstd else (PLAIN, BODY)
    place = draw.randrange(len(sent) + 1)
    parts = [mutated(draw, part) if i == place else part for i, part in enumerate(sent)]
    if draw.random() < 0.1:
        parts = draw.choices(parts, k=draw.randrange(4))
    assembler = wire.Assembler(EXPECTED, ALICE.certificate, zstd=zstd)
    with contextlib.suppress(Rejected):
        for part in parts:
            assembler.feed(part)
        assert bytes(assembler.finish()) == body


def hello(draw: random.Random) -> None:
    """What a neighbour says it expects."""
    with contextlib.suppress(DecodeError):
        said = pb.HelloRequest.FromString(mutated(draw, HELLO)).terms
        misfit = TERMS.misfit(said)
        assert misfit or (said.run, said.length, said.rule) == ("r", 20, "gossip")


def witness(draw: random.Random) -> None:
    """Headers that a neighbour says others have signed."""
    with contextlib.suppress(DecodeError):
        for header in pb.WitnessReply.FromString(mutated(draw, WITNESS)).headers:
            if wire.verify_header(header, ALICE.certificate):
                assert wire.signed_bytes(header) == wire.signed_bytes(HEADER)


def certificate(draw: random.Random) -> None:
    """What a port shows as its certificate."""
    with contextlib.suppress(UserError):
        pem = ssl.DER_cert_to_PEM_cert(mutated(draw, DER)).encode()
        if draw.random() < 0.1:
            pem = mutated(draw, ALICE.certificate.pem)
        identity.read_certificate(pem)


HELLO = pb.HelloRequest(terms=TERMS.encode()).SerializeToString()
WITNESS = pb.WitnessReply(headers=[HEADER, HEADER]).SerializeToString()


def off_the_wire(draw: random.Random) -> None:
    draw.choices((message, hello, witness, certificate), (6, 2, 1, 1))[0](draw)


def peer_toml(draw: random.Random) -> None:
    with contextlib.suppress(UserError):
        read = config.parse(mutated(draw, CONFIG))
        assert config.parse(config.dump(read).encode()) == read


READERS = [off_the_wire, peer_toml]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_two_thousand_inputs(reader: Callable[[random.Random], None]) -> None:
    draw = random.Random(-1)
    for _ in range(SHORT):
        reader(draw)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_a_million_inputs(reader: Callable[[random.Random], None], chunk: int) -> None:
    draw = random.Random(chunk)
    for _ in range(MILLION // CHUNKS):
        reader(draw)
