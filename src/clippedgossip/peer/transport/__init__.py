"""How peers reach each other: one seam, a real network and a fake one behind it."""

from clippedgossip.peer.transport.base import NeighbourLink, Parts, Send, Service, Transport
from clippedgossip.peer.transport.memory import MemoryNetwork, MemoryTransport

__all__ = ["MemoryNetwork", "MemoryTransport", "NeighbourLink", "Parts", "Send", "Service", "Transport"]
