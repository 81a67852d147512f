"""Optimal weights of every network of the package at its default parameters: their γ and CPU seconds.

    python benchmarks/weights.py [--large]

Printed: γ with Metropolis–Hastings and with optimal weights, by what share other weights could have more, and
CPU seconds of one thread. `--large`: a random graph of 1,000 nodes and 10,000 edges instead.
"""

import argparse
import time

import networkx as nx

from clippedgossip import graphs
from clippedgossip.graphs.generators import Graph
from clippedgossip.network import Network
from clippedgossip.network.optimal_weights import optimum


def measure(name: str, graph: Graph) -> None:
    plain = Network(graph)
    started = time.process_time()
    found = optimum(plain.indptr, plain.indices)
    took = time.process_time() - started
    size = f"{plain.n:>5} nodes {len(plain.indices) // 2:>6} edges"
    gain = f"γ {plain.spectral_gap_full:.4f} -> {found.gamma:.4f}, at most {found.gap:.2%} below the optimum"
    print(f"{name:<16} {size}  {gain}, {took:.2f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--large", action="store_true")
    if parser.parse_args().large:
        measure("random graph", nx.gnm_random_graph(1000, 10_000, seed=1))
    else:
        for name in graphs.GENERATORS:
            measure(name, graphs.build(name))
