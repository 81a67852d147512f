"""Robust consensus on a network of your own: the regular nodes look for their average.

    python examples/consensus.py

Twelve nodes hold five numbers each. Two nodes are Byzantine and push the others apart. Gossip and the
trimmed mean lose the average, ClippedGossip stays close to it.
"""

import networkx as nx
import torch

import clippedgossip as cg

network = cg.Network(nx.circulant_graph(12, [1, 2, 3]), byzantine=[4, 9])
start = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
attack = cg.attacks.Dissensus(epsilon=1.5)

rules = (
    cg.rules.Gossip(),
    cg.rules.TrimmedMean(trim=1),
    cg.rules.ClippedGossip(cg.rules.Adaptive(network.delta_max)),
)
for rule in rules:
    *_, last = cg.consensus(network, rule, start, attack=attack, rounds=50)
    name = type(rule).__name__
    print(f"{name:>14}: error {last.error:8.3g}, spread {last.consensus_distance:8.3g}")
