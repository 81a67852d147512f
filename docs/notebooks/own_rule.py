# %% [markdown]
# # A rule of your own
# Coefficients from weights and distances: a few lines.

# %%
from dataclasses import dataclass

import networkx as nx
import pandas as pd
import torch
from torch import Tensor

import clippedgossip as cg


@dataclass(frozen=True)
class HalfTheFar(cg.rules.LinearRule):
    """Half the weight for neighbours further away than the median neighbour."""

    def coefficients(self, near: cg.rules.Neighborhood) -> Tensor:
        far = near.distances > near.distances.median(dim=1, keepdim=True).values
        weights = near.weights * torch.where(far, 0.5, 1.0)
        return torch.cat([1 - weights.sum(1, keepdim=True), weights], 1)


# %%
network = cg.Network(nx.circulant_graph(12, [1, 2, 3]), byzantine=[4, 9])
start = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
rows = []
for rule in (cg.rules.Gossip(), HalfTheFar(), cg.rules.ClippedGossip(cg.rules.Adaptive(network.delta_max))):
    for attack in ("none", "alie", "dissensus"):
        *_, end = cg.consensus(network, rule, start, attack=attack, rounds=30)
        rows.append({"rule": type(rule).__name__, "attack": attack, "error": end.error})
pd.DataFrame(rows).pivot(index="rule", columns="attack", values="error")
