"""A Byzantine server whose messages are compressed by gRPC itself: little on the wire, much in memory."""

from typing import Any

import grpc

from clippedgossip.peer.transport.base import Transport
from clippedgossip.peer.transport.rpc import Handlers, RpcTransport

_SIZE = 64 << 20


def arm(transport: Transport) -> None:
    """Before the server starts. A transport that is not gRPC has no compression of its own."""
    if isinstance(transport, RpcTransport):
        transport.__class__ = _Unlimited
        transport.handlers = _Bombs


class _Unlimited(RpcTransport):
    def server_options(self) -> list[tuple[str, Any]]:
        limits = ("grpc.compression_enabled_algorithms_bitset", "grpc.max_send_message_length")
        rest = [option for option in super().server_options() if option[0] not in limits]
        return [*rest, ("grpc.max_send_message_length", -1)]


class _Bombs(Handlers):
    async def pull(self, raw: bytes, context: Any) -> None:
        context.set_compression(grpc.Compression.Gzip)
        await context.write(bytes(_SIZE))
