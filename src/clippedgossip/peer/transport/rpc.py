"""The real network: grpc.aio over mutual TLS 1.3, every certificate pinned."""

import asyncio
import contextlib
import ctypes
import os
import threading
import urllib.parse
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

# gRPC has no switch for the lowest TLS version. Peers have ECDSA keys; when every TLS 1.2 cipher suite on
# offer wants an RSA key, nothing below TLS 1.3 can be agreed on. gRPC reads it when it starts: set it first.
os.environ.setdefault("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384")
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # outsiders must not be able to fill the log

import grpc
from google.protobuf.message import DecodeError, Message

from clippedgossip.errors import PeerError
from clippedgossip.peer import wire_pb2 as pb
from clippedgossip.peer.identity import HOST, Certificate, Identity
from clippedgossip.peer.peer_config import Address, Limits, Neighbour
from clippedgossip.peer.rejection import Rejected, Rejection
from clippedgossip.peer.transport.base import Service
from clippedgossip.peer.transport.pins import Pins
from clippedgossip.peer.wire import LARGEST_PART

_SERVICE = "clippedgossip.peer.v1.Peer"
_CODE = {
    Rejection.NOTHING_NEW: grpc.StatusCode.OUT_OF_RANGE,
    Rejection.CONVICTED: grpc.StatusCode.PERMISSION_DENIED,
    Rejection.LATE: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Rejection.REFUSED: grpc.StatusCode.FAILED_PRECONDITION,
    Rejection.MALFORMED: grpc.StatusCode.INVALID_ARGUMENT,
}
_SMALL = 64 << 10
OLDEST_CONNECTION = 3_600_000
"""Milliseconds, give or take a tenth. Calls under way are finished; the next one opens a new connection."""
_M_ARENA_MAX = -8  # <malloc.h>
_M = TypeVar("_M", bound=Message)


class RpcTransport:
    """One peer's server and its channels to the neighbours."""

    def __init__(self, identity: Identity, bind: Address, pins: Pins, limits: Limits) -> None:
        self.identity = identity
        self.bind = bind
        self.pins = pins
        self.limits = limits
        self.port = 0
        self._server: Any = None
        self._handed_over = (b"", b"")
        """The certificate shown and those let in, as gRPC has them."""
        self._handing_over = threading.Lock()
        self.handlers = Handlers
        self._links: dict[str, RpcLink] = {}

    def server_options(self) -> list[tuple[str, Any]]:
        return [
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", 4),
            ("grpc.max_receive_message_length", _SMALL),
            ("grpc.max_metadata_size", 8192),
            ("grpc.server_handshake_timeout_ms", int(self.limits.handshake * 1000)),
            ("grpc.max_allowed_incoming_connections", self.limits.connections),
            ("grpc.http2.max_ping_strikes", 2),
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            # gRPC cannot close the connections of one neighbour: those of a removed key end of age.
            ("grpc.max_connection_age_ms", OLDEST_CONNECTION),
            *_COMMON,
        ]

    async def start(self, service: Service) -> None:
        _share_heaps()
        server = grpc.aio.server(options=self.server_options())
        handler = grpc.method_handlers_generic_handler(_SERVICE, self.handlers(self.pins, service).table())
        server.add_generic_rpc_handlers((handler,))
        credentials = grpc.dynamic_ssl_server_credentials(
            self._new_certificates(), self._new_certificates, require_client_authentication=True
        )
        try:
            self.port = server.add_secure_port(str(self.bind), credentials)
        except RuntimeError:
            raise PeerError(
                f"cannot listen on {self.bind}; is the port taken, is the address this machine's?"
            ) from None
        await server.start()
        self._server = server

    def link(self, neighbour: Neighbour) -> "RpcLink":
        self.pins.pin(neighbour)
        link = self._links[neighbour.name] = RpcLink(self.identity, neighbour, self.pins)
        return link

    async def unlink(self, name: str) -> None:
        self.pins.unpin(name)
        await self._links.pop(name).renew()

    async def change_identity(self, identity: Identity) -> None:
        """The server shows it in new handshakes; connections to it stay until the neighbours renew them."""
        self.identity = identity
        for link in self._links.values():
            link.identity = identity
            await link.renew()

    async def close(self) -> None:
        for link in self._links.values():
            await link.renew()
        if self._server is not None:
            await self._server.stop(grace=0.2)

    def _new_certificates(self) -> Any:
        """Asked for at every handshake, so that a neighbour is let in as soon as it is pinned.

        None where nothing changed: gRPC frees a configuration twice when many handshakes each get a new one.
        """
        with self._handing_over:
            me = self.identity
            # gRPC needs at least one anchor: without neighbours it is this peer's own.
            now = (me.certificate.pem, self.pins.anchors() or me.certificate.pem)
            if now == self._handed_over:
                return None
            self._handed_over = now
            return grpc.ssl_server_certificate_configuration(
                [(me.key_pem, me.certificate.pem)], root_certificates=now[1]
            )


class Handlers:
    """Takes bytes off the wire, finds out who is calling, and asks the service."""

    def __init__(self, pins: Pins, service: Service) -> None:
        self._pins = pins
        self._service = service

    def table(self) -> dict[str, Any]:
        return {
            "Hello": grpc.unary_unary_rpc_method_handler(self.hello),
            "Pull": grpc.unary_stream_rpc_method_handler(self.pull),
            "Witness": grpc.unary_unary_rpc_method_handler(self.witness),
        }

    async def hello(self, raw: bytes, context: Any) -> bytes:
        name, request = await self._asked(pb.HelloRequest, raw, context)
        return (await _answer(context, self._service.hello(name, request))).SerializeToString()

    async def witness(self, raw: bytes, context: Any) -> bytes:
        name, request = await self._asked(pb.WitnessRequest, raw, context)
        return (await _answer(context, self._service.witness(name, request))).SerializeToString()

    async def pull(self, raw: bytes, context: Any) -> None:
        name, request = await self._asked(pb.PullRequest, raw, context)
        await _answer(context, self._service.pull(name, request, context.write))

    async def _asked(self, kind: type[_M], raw: bytes, context: Any) -> tuple[str, _M]:
        """Who calls, and what for. The certificate passed the handshake; it is checked here again."""
        try:
            request = kind.FromString(raw)
        except DecodeError:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a {kind.__name__}")
        facts = context.auth_context()
        pem = next(iter(facts.get("x509_pem_cert", ())), b"")
        version = next(iter(facts.get("ssl_tls_version", ())), b"TLSv1.3")
        name = self._pins.name_of(pem)
        if name is None or version != b"TLSv1.3":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "not a neighbour")
        assert name is not None
        return name, request


_R = TypeVar("_R")


async def _answer(context: Any, answer: Awaitable[_R]) -> _R:
    try:
        return await answer
    except Rejected as rejected:
        await context.abort(_CODE.get(rejected.reason, grpc.StatusCode.INTERNAL), str(rejected)[:300])
    raise AssertionError("abort raises")


class RpcLink:
    """A channel to one neighbour; the only certificate it accepts is the pinned one."""

    def __init__(self, identity: Identity, neighbour: Neighbour, pins: Pins) -> None:
        self.neighbour = neighbour
        self.identity = identity
        self._pins = pins
        self._channel: Any = None
        self._opening = asyncio.Lock()

    @property
    def certificate(self) -> Certificate | None:
        return self._pins.certificates.get(self.neighbour.name)

    async def hello(self, request: pb.HelloRequest) -> pb.HelloReply:
        return await self._unary("Hello", request, pb.HelloReply)

    async def witness(self, request: pb.WitnessRequest) -> pb.WitnessReply:
        return await self._unary("Witness", request, pb.WitnessReply)

    @asynccontextmanager
    async def pull(self, request: pb.PullRequest) -> AsyncIterator[AsyncIterator[bytes]]:
        channel = await self._open()
        call = channel.unary_stream(f"/{_SERVICE}/Pull")(request.SerializeToString())
        try:
            yield _CallParts(call)
        finally:
            call.cancel()

    async def renew(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _unary(self, method: str, request: Message, reply: type[_M]) -> _M:
        channel = await self._open()
        with _translated():
            raw = await channel.unary_unary(f"/{_SERVICE}/{method}")(request.SerializeToString())
        if len(raw) > _SMALL:  # a megabyte of empty fields would take sixty when it is parsed
            detail = f"the answer to {method} has {len(raw)} bytes; at most {_SMALL} are read"
            raise Rejected(Rejection.MALFORMED, detail)
        try:
            return reply.FromString(raw)
        except DecodeError:
            raise Rejected(Rejection.MALFORMED, f"the answer to {method} is not protobuf") from None

    async def _open(self) -> Any:
        async with self._opening:
            if self._channel is None:
                try:
                    certificate = await self._pins.learn(self.neighbour.name)
                except PeerError as error:
                    raise Rejected(Rejection.DEAD, str(error)) from None
                credentials = grpc.ssl_channel_credentials(
                    certificate.pem, self.identity.key_pem, self.identity.certificate.pem
                )
                self._channel = grpc.aio.secure_channel(
                    _target(self.neighbour.address), credentials, options=_CLIENT
                )
        return self._channel


class _CallParts(AsyncIterator[bytes]):
    def __init__(self, call: Any) -> None:
        self._call = call

    async def __anext__(self) -> bytes:
        with _translated():
            part: bytes = await self._call.read()
        if part is grpc.aio.EOF:
            raise StopAsyncIteration
        return part


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except grpc.aio.AioRpcError as error:
        raise _reason(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        raise Rejected(Rejection.DEAD, "the call was cancelled") from None


def _reason(error: Any) -> Rejected:
    code, detail = error.code(), str(error.details())[:300]
    reason = next((reason for reason, known in _CODE.items() if known == code), Rejection.DEAD)
    if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in detail:
        reason = Rejection.MALFORMED  # gRPC's own refusal of an oversize part
    if code == grpc.StatusCode.UNIMPLEMENTED:  # a peer of another version
        reason = Rejection.REFUSED
    if "Compression algorithm" in detail:  # gRPC's own compression, which the protocol does not have
        reason = Rejection.MALFORMED
    hint = next((words for sign, words in _HINTS.items() if sign in detail), "")
    return Rejected(reason, hint + detail.removeprefix(f"{reason}: "))


_HINTS = {  # a part of gRPC's words for a handshake that failed -> what to look for
    "SSL routines": "it has another key now than the pinned one: ask for its fingerprint; ",
    "Socket closed": "it hung up: has it pinned the key that this peer has now? ",
}


def _share_heaps() -> None:
    """glibc gives every thread a heap of its own, which keeps what it once held: 10 MB for each of gRPC's.
    Two heaps for all of them do as well. `MALLOC_ARENA_MAX` in the environment has precedence."""
    if "MALLOC_ARENA_MAX" not in os.environ:
        with contextlib.suppress(AttributeError, OSError, TypeError):  # where there is no glibc
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _target(address: Address) -> str:
    if address.is_ipv6:
        return f"ipv6:{urllib.parse.quote(str(address), safe=':')}"
    kind = "ipv4:" if address.host.replace(".", "").isdigit() else "dns:///"
    return f"{kind}{address}"


_COMMON: list[tuple[str, Any]] = [
    ("grpc.max_send_message_length", LARGEST_PART),
    ("grpc.optimization_target", "throughput"),
    # A window that gRPC chooses grows to 16 MB a stream: as much memory as some models, and no faster.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 16),  # more is held, and no faster
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    # A connection whose state a firewall has lost looks alive until somebody asks. gRPC also sets
    # TCP_USER_TIMEOUT by these.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else the ping waits for a minute
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Identity alone: a gzip bomb is refused before it is unpacked.
    ("grpc.compression_enabled_algorithms_bitset", 1),
]
_CLIENT = [
    ("grpc.ssl_target_name_override", HOST),
    ("grpc.max_receive_message_length", LARGEST_PART),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    *_COMMON,
]
