"""Networks: who talks to whom, with which weights, and how well connected they are."""

from clippedgossip.network.network import Network

__all__ = ["Network"]
