"""Imports the transport before anything else can import gRPC, as the command line does: it sets TLS up."""

from clippedgossip.peer.transport import rpc

__all__ = ["rpc"]
