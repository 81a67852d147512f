"""Networks: nodes, edges, mixing weights, and how well connected they are."""

from clippedgossip.network.network import Network

__all__ = ["Network"]
