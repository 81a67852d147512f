"""Networks by name: which there are, what they take, and how to build one from text."""

from collections.abc import Mapping

from clippedgossip.decode import Kind, Parameter, errors_of, find, made
from clippedgossip.decode import parameters as taken
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import GENERATORS
from clippedgossip.graphs.types import Graph

NETWORK = Kind(
    word="network",
    names=GENERATORS,
    base=Graph,
    group="clippedgossip.networks",
    fix="make it a function that returns a networkx graph",
    error=NetworkError,
)


def parameters(name: str) -> Mapping[str, Parameter]:
    """What the generator of this name takes, in order."""
    with errors_of(NETWORK):
        return taken(find(NETWORK, name, ())[1], NETWORK)


def build(name: str, **values: object) -> Graph:
    """Build a network by name; values may be text. Unknown names and parameters get their nearest match."""
    graph: Graph = made(NETWORK, name, values)
    return graph
