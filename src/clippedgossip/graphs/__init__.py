"""Graphs: generators, files and the placement of Byzantine nodes."""

from clippedgossip.decode import Parameter
from clippedgossip.graphs.byzantine import add_pendants, byzantine_nodes, find_nodes, random_nodes
from clippedgossip.graphs.generators import (
    GENERATORS,
    complete,
    consensus_chain,
    dumbbell,
    erdos_renyi,
    exponential,
    grid,
    hub_dumbbell,
    hypercube,
    line,
    random_regular,
    random_tree,
    ring,
    scale_free,
    small_world,
    star,
    torus,
    two_worlds,
)
from clippedgossip.graphs.graph_files import read_graph
from clippedgossip.graphs.registry import build, parameters

__all__ = [
    "GENERATORS",
    "Parameter",
    "add_pendants",
    "build",
    "byzantine_nodes",
    "complete",
    "consensus_chain",
    "dumbbell",
    "erdos_renyi",
    "exponential",
    "find_nodes",
    "grid",
    "hub_dumbbell",
    "hypercube",
    "line",
    "parameters",
    "random_nodes",
    "random_regular",
    "random_tree",
    "read_graph",
    "ring",
    "scale_free",
    "small_world",
    "star",
    "torus",
    "two_worlds",
]
