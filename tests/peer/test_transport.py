"""The real transport: who gets in, who does not, and what a caller is told."""

import asyncio
import contextlib
import datetime
import os
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from clippedgossip.errors import PeerError
from clippedgossip.peer import identity, wire
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.drill.gzip_bomb import arm
from clippedgossip.peer.drill.leaks import resident
from clippedgossip.peer.drill.proxy import Proxy
from clippedgossip.peer.local_network import free_ports
from clippedgossip.peer.outbox import Message, Outbox
from clippedgossip.peer.peer_config import Address, Limits, Neighbour
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.transport import rpc
from clippedgossip.peer.transport.base import NeighbourLink
from clippedgossip.peer.transport.pins import Pins, read_off
from clippedgossip.peer.transport.rpc import RpcTransport

ALICE, BOB, EVE = (identity.create() for _ in range(3))
EXPECTED = wire.Expected(run="r", dtype="float32", length=1_000_000)
NONCE = bytes(range(16))
BODY = bytes(EXPECTED.size)


def terms() -> wire.RunTerms:
    return wire.RunTerms(run="r", degree=1, length=1_000_000, dtype="float32", rule="gossip")


def outbox(*names: str, **limits: float) -> Outbox:
    made = Limits(**limits)  # type: ignore[arg-type]  # numbers by name
    return Outbox(names, made, terms, patience=5.0, nonce=NONCE)


@contextlib.asynccontextmanager
async def pair(
    host: str = "127.0.0.1", **limits: float
) -> AsyncIterator[tuple[RpcTransport, RpcTransport, Outbox, Neighbour, Neighbour]]:
    """Alice serves, Bob asks; each knows the other's fingerprint only."""
    first, second = free_ports(2, host)
    a = Neighbour(name="alice", address=Address(host, first), fingerprint=ALICE.fingerprint)
    b = Neighbour(name="bob", address=Address(host, second), fingerprint=BOB.fingerprint)
    box = outbox("bob", **limits)
    alice = RpcTransport(ALICE, a.address, Pins([b], None), Limits())
    bob = RpcTransport(BOB, b.address, Pins([a], None), Limits())
    try:
        await alice.start(box)
        await bob.start(outbox("alice"))
        yield alice, bob, box, a, b
    finally:
        await alice.close()
        await bob.close()


async def pull(link: NeighbourLink, round: int = 0, *, last: int = -1, **options: Any) -> int:
    """The round of the message that comes; `last` is the newest one used."""
    request = pb.PullRequest(run="r", round=round, **{"hold_ms": 1000, **options})
    used = None if last < 0 else wire.Stamp(NONCE, last)
    if used is not None:
        request.nonce, request.last = used.nonce, used.round
    assembler = wire.Assembler(EXPECTED, ALICE.certificate, used=used, zstd=request.zstd)
    async with asyncio.timeout(10), link.pull(request) as parts:
        async for part in parts:
            assembler.feed(part)
    assert bytes(assembler.finish()) == BODY
    assert assembler.header is not None
    return assembler.header.round


def message(round: int = 0, *, final: bool = False) -> Message:
    header = wire.make_header(ALICE, EXPECTED, wire.Stamp(NONCE, round), BODY, final=final)
    return Message(header, BODY, wire.compress(BODY))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_two_peers_connect_by_fingerprint(host: str) -> None:
    async def scenario() -> None:
        async with pair(host) as (alice, bob, box, a, _):
            # Alice's server does not have Bob's certificate yet: she must have read it off his port first.
            await alice.pins.learn("bob")
            link = bob.link(a)
            reply = await link.hello(pb.HelloRequest(terms=terms().encode()))
            assert not reply.refusal
            made = message()
            asyncio.get_running_loop().call_later(0.1, box.publish, 0, lambda name: made)
            assert await pull(link) == 0
            assert await pull(link, zstd=True) == 0

    asyncio.run(scenario())


def test_what_is_not_served_is_explained() -> None:
    async def scenario() -> None:
        async with pair() as (alice, bob, _, a, _):
            await alice.pins.learn("bob")
            link = bob.link(a)
            reasons = []

            async def expect(round: int, hold_ms: int = 50) -> None:
                with pytest.raises(Rejected) as caught:
                    await pull(link, round, hold_ms=hold_ms)
                reasons.append(caught.value.reason)

            await expect(0)
            misfit = terms().encode()
            misfit.length = 7
            assert "length 7" in (await link.hello(pb.HelloRequest(terms=misfit))).refusal
            await expect(0)
            await link.hello(pb.HelloRequest(terms=terms().encode()))
            await expect(0)
            assert reasons == [Rejection.REFUSED, Rejection.REFUSED, Rejection.NOTHING_NEW]

    asyncio.run(scenario())


def test_the_message_of_the_callers_round_comes_or_the_newest_that_is_new() -> None:
    async def scenario() -> None:
        async with pair() as (alice, bob, box, a, _):
            await alice.pins.learn("bob")
            link = bob.link(a)
            await link.hello(pb.HelloRequest(terms=terms().encode()))
            for round in (4, 5):
                made = message(round)
                box.publish(round, lambda name, made=made: made)  # type: ignore[misc]  # bound now
            assert await pull(link, 4, hold_ms=0) == 4, "the previous round, since it was not taken yet"
            box.callers["bob"].pulled = -1
            assert await pull(link, 5, hold_ms=0) == 5
            box.callers["bob"].pulled = -1
            assert await pull(link, 0, hold_ms=0) == 5, "behind: the newest"
            box.callers["bob"].pulled = -1
            assert await pull(link, 10**9, hold_ms=10_000) == 5, "far ahead: the newest, at once"
            box.callers["bob"].pulled = -1
            assert await pull(link, 7, hold_ms=300) == 5, "near: held, then the newest"
            for asked in (0, 5, 7, 10**9):
                with pytest.raises(Rejected, match="nothing new"):
                    await pull(link, asked, last=5, hold_ms=100)
            box.callers["bob"].pulled = -1
            coming = message(6)
            asyncio.get_running_loop().call_later(0.3, box.publish, 6, lambda name: coming)
            assert await pull(link, 0, last=5, hold_ms=5000) == 6, "held until there is a new one"
            final = message(6, final=True)
            box.publish(6, lambda name: final, final=True)
            for asked in (6, 5, 6):  # round 5 was used, and is not sent again because the peer has finished
                assert await pull(link, asked, last=6, hold_ms=0) == 6, "a final one is used again"

    asyncio.run(scenario())


def test_one_pull_at_a_time_and_a_rate() -> None:
    async def scenario() -> None:
        async with pair(pulls_per_second=5) as (alice, bob, box, a, _):
            await alice.pins.learn("bob")
            link = bob.link(a)
            await link.hello(pb.HelloRequest(terms=terms().encode()))
            waiting = asyncio.create_task(pull(link, 0, hold_ms=3000))
            await asyncio.sleep(0.2)
            with pytest.raises(Rejected, match="nothing new"):
                await pull(link, hold_ms=1)
            with pytest.raises(Rejected, match="a newer pull"):
                await waiting
            for _ in range(10):
                with pytest.raises(Rejected):
                    await pull(link, 5, hold_ms=0)
            with pytest.raises(Rejected, match="too many"):
                await pull(link, 5, hold_ms=0)
            assert box.flooded

    asyncio.run(scenario())


def _issued_by(issuer: identity.Identity) -> tuple[bytes, bytes]:
    """A certificate that a pinned neighbour signed for a friend."""
    key = ec.generate_private_key(ec.SECP256R1())
    parent = x509.load_pem_x509_certificate(issuer.certificate.pem)
    made = (
        x509.CertificateBuilder()
        .subject_name(parent.subject)
        .issuer_name(parent.subject)
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(datetime.datetime(2000, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .sign(issuer.key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return pem, made.public_bytes(serialization.Encoding.PEM) + issuer.certificate.pem


def test_nobody_without_a_pinned_certificate_gets_in() -> None:
    async def scenario() -> None:
        async with pair() as (alice, _, _, a, _):
            await alice.pins.learn("bob")
            friend = _issued_by(BOB)
            for key, chain in (
                (None, None),
                (EVE.key_pem, EVE.certificate.pem),
                friend,
            ):
                credentials = grpc.ssl_channel_credentials(ALICE.certificate.pem, key, chain)
                options = [("grpc.ssl_target_name_override", identity.HOST)]
                async with grpc.aio.secure_channel(str(a.address), credentials, options=options) as channel:
                    call = channel.unary_unary("/clippedgossip.peer.v1.Peer/Hello")
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call(b"", timeout=3)
                    # UNAVAILABLE: the connection never came to be; UNAUTHENTICATED would mean it had.
                    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE

    asyncio.run(scenario())


def test_only_tls_1_3(tmp_path: Path) -> None:
    def attempt(address: Address, version: ssl.TLSVersion) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = context.maximum_version = version
        context.load_cert_chain(tmp_path / identity.CERTIFICATE_FILE, tmp_path / identity.KEY_FILE)
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection((address.host, address.port), timeout=5) as raw,
            context.wrap_socket(raw, server_hostname=identity.HOST) as tls,
        ):
            tls.recv(1)
            return tls.version()

    async def scenario() -> None:
        async with pair() as (alice, _, _, a, _):
            await alice.pins.learn("bob")
            assert await asyncio.to_thread(attempt, a.address, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asyncio.to_thread(attempt, a.address, ssl.TLSVersion.TLSv1_2)

    identity.save(BOB, tmp_path)
    asyncio.run(scenario())


def test_an_impostor_is_not_pinned() -> None:
    async def scenario() -> None:
        async with pair() as (_, _, _, a, _):
            wrong = Neighbour(name="alice", address=a.address, fingerprint=EVE.fingerprint)
            with pytest.raises(Rejected, match="ask it whether"):
                await Pins([wrong], None).learn("alice")
            assert identity.read_certificate(await read_off("127.0.0.1", a.address.port)) == ALICE.certificate

    asyncio.run(scenario())


def test_a_taken_port_is_an_error() -> None:
    async def scenario() -> None:
        async with pair() as (_, _, _, a, _):
            again = RpcTransport(EVE, a.address, Pins([], None), Limits())
            with pytest.raises(PeerError, match="port taken"):
                await again.start(outbox())
            await again.close()

    asyncio.run(scenario())


def test_a_gzip_bomb_is_refused_before_it_is_unpacked() -> None:
    """A pinned neighbour's own compression, which the protocol does not have."""

    async def scenario() -> None:
        async with pair() as (alice, _, _, a, _):
            await alice.pins.learn("bob")
            credentials = grpc.ssl_channel_credentials(
                ALICE.certificate.pem, BOB.key_pem, BOB.certificate.pem
            )
            options = [("grpc.ssl_target_name_override", identity.HOST)]
            before = resident(os.getpid())[1]
            async with grpc.aio.secure_channel(
                str(a.address), credentials, options=options, compression=grpc.Compression.Gzip
            ) as channel:
                call = channel.unary_unary("/clippedgossip.peer.v1.Peer/Hello")
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(bytes(60 << 20), timeout=20)
            assert caught.value.code() in (
                grpc.StatusCode.UNIMPLEMENTED,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            ), caught.value
            # This process made the bomb as well: twice 60 MB would be both ends.
            assert resident(os.getpid())[1] - before < 100 << 20

    asyncio.run(scenario())


def test_a_server_with_gzip_bombs_is_refused_too() -> None:
    async def scenario() -> None:
        first, second = free_ports(2)
        a = Neighbour(name="alice", address=Address("127.0.0.1", first), fingerprint=ALICE.fingerprint)
        b = Neighbour(name="bob", address=Address("127.0.0.1", second), fingerprint=BOB.fingerprint)
        alice = RpcTransport(ALICE, a.address, Pins([b], None), Limits())
        bob = RpcTransport(BOB, b.address, Pins([a], None), Limits())
        arm(alice)
        await alice.start(outbox("bob"))
        await bob.start(outbox("alice"))
        try:
            await alice.pins.learn("bob")
            link = bob.link(a)
            assert not (await link.hello(pb.HelloRequest(terms=terms().encode()))).refusal
            with pytest.raises(Rejected) as refused:
                await pull(link)
            assert refused.value.reason is Rejection.MALFORMED, refused.value
        finally:
            await alice.close()
            await bob.close()

    asyncio.run(scenario())


def test_a_long_answer_is_refused_before_it_is_parsed() -> None:
    """A megabyte of empty headers takes sixty once it is parsed."""

    async def scenario() -> None:
        async with pair() as (alice, bob, box, a, _):
            await alice.pins.learn("bob")
            link, hello = bob.link(a), pb.HelloRequest(terms=terms().encode())
            assert not (await link.hello(hello)).refusal
            box.headers = lambda round: [pb.Header()] * 40_000
            with pytest.raises(Rejected) as refused:
                await link.witness(pb.WitnessRequest(run="r", round=0))
            assert refused.value.reason is Rejection.MALFORMED
            assert "at most 65536 are read" in str(refused.value)

    asyncio.run(scenario())


def test_a_removed_key_and_an_old_one_are_outsiders() -> None:
    """Over connections that are open, and over new ones."""
    new = identity.create()
    hello = pb.HelloRequest(terms=terms().encode())

    async def refused(link: NeighbourLink) -> str:
        with pytest.raises(Rejected) as caught:
            async with asyncio.timeout(10):
                await link.hello(hello)
        return str(caught.value)

    async def scenario() -> None:
        async with pair() as (alice, bob, _, a, b):
            await alice.pins.learn("bob")
            link = bob.link(a)
            await link.hello(hello)
            alice.link(replace(b, fingerprint=new.fingerprint, former=b.fingerprint))
            await link.hello(hello)  # the old key, still valid
            await bob.change_identity(new)
            await alice.pins.learn("bob")  # reads the new one off his port
            await link.hello(hello)
            assert alice.pins.certificates["bob"].fingerprint == new.fingerprint
            thief = RpcTransport(BOB, Address("127.0.0.1", free_ports(1)[0]), Pins([a], None), Limits())
            await thief.start(outbox("alice"))
            try:
                assert "has it pinned the key that this peer has now?" in await refused(thief.link(a))
            finally:
                await thief.close()
            await alice.unlink("bob")
            assert "not a neighbour" in await refused(link), "over the connection that was open"
            await link.renew()
            assert "not a neighbour" not in await refused(link), "no handshake any more"

    asyncio.run(scenario())


def test_connections_end_of_age_and_nobody_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc, "OLDEST_CONNECTION", 300)

    async def scenario() -> None:
        async with pair() as (alice, bob, box, a, _):
            await alice.pins.learn("bob")
            proxy = Proxy(Address("127.0.0.1", free_ports(1)[0]), a.address)
            try:
                link = bob.link(replace(a, address=proxy.listen))
                await link.hello(pb.HelloRequest(terms=terms().encode()))
                made = message()
                box.publish(0, lambda name: made)
                while proxy.made < 4:
                    try:
                        assert await pull(link) == 0
                    except Rejected as rejected:  # a call that was being written; a node pulls again
                        if rejected.reason is not Rejection.DEAD or "max_age" not in str(rejected):
                            raise
                        assert await pull(link) == 0
            finally:
                proxy.close()

    asyncio.run(scenario())


def test_a_connection_whose_state_is_lost_is_made_anew() -> None:
    async def scenario() -> None:
        async with pair() as (alice, bob, box, a, _):
            await alice.pins.learn("bob")
            proxy = Proxy(Address("127.0.0.1", free_ports(1)[0]), a.address)
            try:
                link = bob.link(replace(a, address=proxy.listen))
                await link.hello(pb.HelloRequest(terms=terms().encode()))
                made = message()
                box.publish(0, lambda name: made)
                proxy.set("forget")
                await asyncio.sleep(0.1)
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(1):
                        await pull(link)
                await link.renew()
                assert await pull(link) == 0
                assert proxy.lost
            finally:
                proxy.close()

    asyncio.run(scenario())


def test_what_a_peer_sends_can_be_limited() -> None:
    async def scenario() -> None:
        async with pair(bytes_per_second=4e6) as (alice, bob, box, a, _):
            await alice.pins.learn("bob")
            link = bob.link(a)
            await link.hello(pb.HelloRequest(terms=terms().encode()))
            made = message()
            box.publish(0, lambda name: made)
            started = asyncio.get_running_loop().time()
            assert await pull(link) == 0
            # 4 MB in parts of 1 MiB: the last one leaves when the others' time is over.
            assert asyncio.get_running_loop().time() - started >= 3 * wire.CHUNK / 4e6

    asyncio.run(scenario())


def test_a_key_that_was_changed_too_soon_is_named() -> None:
    """Bob uses a new key before Alice has pinned it."""

    async def scenario() -> None:
        async with pair() as (alice, bob, _, _, b):
            await alice.pins.learn("bob")
            await bob.change_identity(EVE)
            with pytest.raises(Rejected, match="another key now than the pinned one") as caught:
                async with asyncio.timeout(10):
                    await alice.link(b).hello(pb.HelloRequest(terms=terms().encode()))
            assert caught.value.reason is Rejection.DEAD

    asyncio.run(scenario())
