"""Bytes on the wire: what is signed, how a message is cut into parts, how parts become a message again.

Knows nothing of sockets or tensors. No size is believed before it is checked, and nothing is unpickled.
"""

import hashlib
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import accumulate, zip_longest

import blake3
import zstandard
from google.protobuf.message import DecodeError

from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.identity import Certificate, Identity, format_fingerprint
from clippedgossip.peer.rejection import Rejected, Rejection

Body = bytes | bytearray | memoryview
VERSIONS = (2,)
"""Of the protocol, that this peer speaks."""
CHUNK = 1 << 20
DRIFT = 2
"""How many rounds ahead of a server its neighbours may be and still wait for their own round."""
NONCE = 16
LAST_ROUND = 2**53
_TENSORS = 16 << 10
LARGEST_PART = CHUNK + 64
"""Cap of one gRPC message in either direction."""
ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}
_CODE = {"float32": pb.DTYPE_FLOAT32, "bfloat16": pb.DTYPE_BFLOAT16, "float16": pb.DTYPE_FLOAT16}
_LABEL = b"clippedgossip message 2\0"
_WINDOW = 1 << 23


@dataclass(frozen=True, kw_only=True)
class RunTerms:
    """What two peers must agree on before they exchange models."""

    run: str
    degree: int
    length: int
    dtype: str
    rule: str
    tensors: tuple[str, ...] = ()
    """Name and shape of each tensor that travels; empty: not stated."""

    def encode(self) -> pb.Terms:
        sizes = accumulate(len(text.encode()) + 4 for text in self.tensors)
        return pb.Terms(
            versions=VERSIONS,
            run=self.run,
            degree=self.degree,
            length=self.length,
            dtype=_CODE[self.dtype],
            rule=self.rule,
            tensors=[text for text, size in zip(self.tensors, sizes, strict=True) if size <= _TENSORS],
            tensors_digest=self.tensors_digest,
        )

    @property
    def tensors_digest(self) -> bytes:
        return hashlib.sha256("\n".join(self.tensors).encode()).digest() if self.tensors else b""

    def misfit(self, other: pb.Terms) -> str:
        """Why a neighbour with these terms cannot take part; empty when it can."""
        theirs = {
            "run": (other.run[:128], self.run),
            "length": (other.length, self.length),
            "dtype": (other.dtype, _CODE[self.dtype]),
            "rule": (other.rule[:256], self.rule),
        }
        wrong = [f"{key} {you!r} instead of {me!r}" for key, (you, me) in theirs.items() if you != me]
        shorter, longer = sorted((other.run[:128], self.run), key=len)
        if re.fullmatch(re.escape(shorter) + "-[0-9a-f]{9,}", longer):
            wrong[0] += " (`peer up` has a run of its own for each start; `peer start` has that of peer.toml)"
        if not common_version(other):
            wrong.insert(0, f"protocol versions {other.versions[:8]} instead of {list(VERSIONS)}")
        if self.tensors and other.tensors_digest and other.tensors_digest != self.tensors_digest:
            wrong.append(self._other_tensor(other))
        if not other.degree:
            wrong.append("degree 0")
        return ", ".join(wrong)

    def _other_tensor(self, other: pb.Terms) -> str:
        for place, (you, me) in enumerate(zip_longest(other.tensors, self.encode().tensors)):
            if you != me:
                return f"tensor {place} is {str(you)[:100]!r} instead of {str(me)[:100]!r}"
        return "other tensors"


def common_version(terms: pb.Terms) -> int:
    """The highest version of the protocol that both speak; 0: none."""
    return max({*terms.versions} & {*VERSIONS}, default=0)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """The only kind of message a receiver accepts."""

    run: str
    dtype: str
    length: int

    @property
    def size(self) -> int:
        return self.length * ITEMSIZE[self.dtype]


@dataclass(frozen=True, order=True)
class Stamp:
    """Which message of a sender it is: the nonce of the sender's start, and the round."""

    nonce: bytes
    round: int

    def is_new(self, used: "Stamp | None") -> bool:
        """Whether it has not been used yet, where `used` is the newest that was."""
        return used is None or self.nonce != used.nonce or self.round > used.round


def stamp_of(header: pb.Header) -> Stamp:
    return Stamp(header.nonce, header.round)


def digest_of(body: Body) -> bytes:
    """BLAKE3: SHA-256 of all models a peer receives would take as long as the rest of the exchange does."""
    return blake3.blake3(body).digest()


def signed_bytes(header: pb.Header) -> bytes:
    """The one encoding of a header that is signed; the layout is in wire.proto."""
    run = header.run.encode()
    return b"".join(
        (
            _LABEL,
            struct.pack(">H", len(run)),
            run,
            header.sender,
            header.nonce,
            struct.pack(">QBBQ", header.round, header.final, header.dtype, header.length),
            header.digest,
        )
    )


def make_header(
    identity: Identity, expected: Expected, stamp: Stamp, body: Body, *, final: bool = False
) -> pb.Header:
    """A signed header for `body`."""
    header = pb.Header(
        run=expected.run,
        sender=identity.fingerprint,
        nonce=stamp.nonce,
        round=stamp.round,
        final=final,
        dtype=_CODE[expected.dtype],
        length=expected.length,
        digest=digest_of(body),
    )
    header.signature = identity.sign(signed_bytes(header))
    return header


def verify_header(header: pb.Header, certificate: Certificate) -> bool:
    """True when the header was signed by the owner of the certificate and names it as sender."""
    well_formed = (
        len(header.run.encode()) <= 128
        and len(header.digest) == 32
        and len(header.nonce) == NONCE
        and header.round <= LAST_ROUND
        and header.dtype in _CODE.values()
        and header.sender == certificate.fingerprint
    )
    return well_formed and certificate.verify(header.signature, signed_bytes(header))


def parts(header: pb.Header, body: Body) -> Iterator[bytes]:
    """The Parts of a message: the header, then chunks. One copy per chunk, none of the whole."""
    yield pb.MessagePart(header=header).SerializeToString()
    view = memoryview(body).cast("B")
    for start in range(0, len(view), CHUNK):
        chunk = view[start : start + CHUNK]
        yield b"".join((b"\x12", _varint(len(chunk)), chunk))


def compress(body: Body) -> bytes:
    """One zstd frame. Where it is not shorter than the body, send the body: receivers take no more bytes."""
    return zstandard.ZstdCompressor(level=1).compress(body)


class Assembler:
    """Puts Parts together again, refusing everything that is not exactly what was asked for."""

    def __init__(
        self,
        expected: Expected,
        certificate: Certificate,
        *,
        used: Stamp | None = None,
        zstd: bool = False,
        into: memoryview | None = None,
        keys: Collection[bytes] = (),
    ) -> None:
        """`used` is the newest message used of this sender. `into` is memory of exactly the model's size that
        receives it; not with zstd. `keys` are the fingerprints of all keys of a sender that changes its key.
        """
        self.expected = expected
        self.certificate = certificate
        self.used = used
        self.may_zstd = zstd
        self.header: pb.Header | None = None
        self._into = into
        self._keys = keys
        self._buffer = memoryview(b"")
        self._filled = 0

    def feed(self, part: bytes) -> None:
        """Takes the next Part; raises `Rejected` at the first thing that is wrong."""
        if self.header is None:
            self.header = self._accept(part)
            # Only here, after run, sender, dtype, length and round were checked.
            self._buffer = memoryview(bytearray(self.expected.size)) if self._into is None else self._into
            return
        chunk = read_chunk(part)
        end = self._filled + len(chunk)
        if end > self.expected.size:
            raise Rejected(Rejection.WRONG_SHAPE, f"more than the {self.expected.size} bytes of the model")
        self._buffer[self._filled : end] = chunk
        self._filled = end

    def finish(self) -> memoryview:
        """The model's bytes, once digest and signature are found right. Slow: call it off the event loop."""
        if self.header is None:
            raise Rejected(Rejection.MALFORMED, "the stream ended before a header")
        if self.header.zstd:
            target = memoryview(bytearray(self.expected.size))
            decompress(self._buffer[: self._filled], target)
            self._buffer = target
        elif self._filled != self.expected.size:
            detail = f"{self._filled} bytes instead of {self.expected.size}"
            raise Rejected(Rejection.WRONG_SHAPE, detail)
        if digest_of(self._buffer) != self.header.digest:
            raise Rejected(Rejection.MALFORMED, "digest does not match")
        if not verify_header(self.header, self.certificate):
            raise Rejected(Rejection.MALFORMED, "signature does not match")
        return self._buffer

    def _accept(self, part: bytes) -> pb.Header:
        if len(part) > 4096 or part[:1] != b"\x0a":
            raise Rejected(Rejection.MALFORMED, "the stream does not start with a header")
        try:
            header = pb.MessagePart.FromString(part).header
        except DecodeError:
            raise Rejected(Rejection.MALFORMED, "the header is not protobuf") from None
        if header.sender != self.certificate.fingerprint and header.sender in self._keys:
            raise Rejected(Rejection.DEAD, "a message under another key than the connection's")
        if header.run != self.expected.run or len(header.sender) != len(self.certificate.fingerprint):
            raise Rejected(Rejection.MALFORMED, "a header of another run or sender")
        if header.sender != self.certificate.fingerprint:  # a regular peer that changed its key too soon
            shown = format_fingerprint(header.sender)
            raise Rejected(
                Rejection.REFUSED, f"it signs with a key that is not pinned: {shown}\nis it its new one?"
            )
        if not header.final and not stamp_of(header).is_new(self.used):
            raise Rejected(Rejection.REPLAYED, f"round {header.round} was used already")
        if header.length != self.expected.length or header.dtype != _CODE[self.expected.dtype]:
            detail = f"length {header.length} of dtype {header.dtype} instead of {self.expected.length}"
            raise Rejected(Rejection.WRONG_SHAPE, detail)
        if header.zstd and not self.may_zstd:
            raise Rejected(Rejection.MALFORMED, "zstd was not asked for")
        return header


def decompress(frame: Body, target: memoryview) -> None:
    """Fills the target from one zstd frame, exactly; a bomb is stopped at its first byte too many."""
    size = len(target)
    try:
        with zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(frame) as reader:
            filled = 0
            while filled < size and (count := reader.readinto(target[filled:])):
                filled += count
            more = reader.read(1)
    except zstandard.ZstdError as error:
        raise Rejected(Rejection.MALFORMED, f"zstd: {str(error)[:80]}") from None
    if filled != size or more:
        raise Rejected(Rejection.WRONG_SHAPE, f"zstd frame is not {size} bytes long")


def read_chunk(part: bytes) -> memoryview:
    """The bytes of a chunk Part, without a copy."""
    if part[:1] != b"\x12" or len(part) > LARGEST_PART:
        raise Rejected(Rejection.MALFORMED, "not a chunk")
    length = shift = 0
    for at in range(1, min(len(part), 6)):
        length |= (part[at] & 0x7F) << shift
        shift += 7
        if part[at] < 0x80:
            view = memoryview(part)[at + 1 :]
            if length and length == len(view):
                return view
            break
    raise Rejected(Rejection.MALFORMED, "a chunk of the wrong length")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
