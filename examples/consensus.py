"""Robust consensus on a network of your own: twelve nodes, two of which lie."""

import networkx as nx
import torch

from clippedgossip.attacks import Dissensus
from clippedgossip.network import Network
from clippedgossip.rules import Adaptive, ClippedGossip, Gossip, TrimmedMean
from clippedgossip.simulate import consensus

network = Network(nx.circulant_graph(12, [1, 2, 3]), byzantine=[4, 9])
start = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
for rule in (Gossip(), TrimmedMean(trim=1), ClippedGossip(Adaptive(delta_max=network.delta_max))):
    *_, last = consensus(network, rule, start, attack=Dissensus(epsilon=1.5), rounds=50)
    print(f"{type(rule).__name__:>14}: error {last.error:8.3g}, spread {last.consensus_distance:8.3g}")
