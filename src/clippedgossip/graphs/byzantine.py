"""Where the Byzantine nodes sit: some of the nodes at random, or new ones hung on regular nodes."""

from collections.abc import Hashable, Iterable

import numpy as np

from clippedgossip.errors import NetworkError, unknown_name
from clippedgossip.graphs.types import Graph


def find_nodes(graph: Graph, names: Iterable[Hashable]) -> tuple[Hashable, ...]:
    """The nodes of these names, in the order given; '3' finds node 3."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise NetworkError(f"nodes are given as {names!r}; give a list of them: [{names!r}]")
    by_text = {str(node): node for node in graph}
    found = []
    for name in names:
        node = name if name in graph else by_text.get(str(name))
        if node is None:
            shown = by_text if len(by_text) <= 20 else [*list(by_text)[:20], "…"]
            raise NetworkError(unknown_name("node", str(name), map(str, shown)))
        found.append(node)
    return tuple(found)


def byzantine_nodes(graph: Graph) -> tuple[Hashable, ...]:
    """The nodes that the graph itself marks with `byzantine`."""
    return tuple(
        node for node, mark in graph.nodes(data="byzantine") if mark and str(mark).lower() != "false"
    )


def random_nodes(graph: Graph, count: int, *, seed: int = 0) -> tuple[Hashable, ...]:
    """`count` distinct nodes drawn at random from those not Byzantine yet."""
    marked = set(byzantine_nodes(graph))
    free = [node for node in graph if node not in marked]
    if not 0 <= count <= len(free):
        raise NetworkError(f"asked for {count} random nodes; the graph has 0..{len(free)} to give")
    chosen = np.random.default_rng(seed).permutation(len(free))[:count]
    return tuple(free[i] for i in sorted(chosen.tolist()))


def add_pendants(graph: Graph, on: Iterable[Hashable]) -> Graph:
    """A copy with one new Byzantine node hung on each of `on`; name a node twice to hang two on it."""
    new = graph.copy()
    whole = all(isinstance(node, int) for node in graph)
    start = 1 + max((node for node in graph if isinstance(node, int)), default=-1) if whole else 1
    for k, node in enumerate(find_nodes(graph, on)):
        pendant: Hashable = start + k if whole else f"byzantine {start + k}"
        new.add_node(pendant, byzantine=True)
        new.add_edge(node, pendant)
    return new
