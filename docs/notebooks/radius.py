# %% [markdown]
# # What the clipping radius does
# Too small: information does not pass. Too large: the attack does.

# %%
import networkx as nx
import pandas as pd
import torch

import clippedgossip as cg

network = cg.Network(nx.barbell_graph(6, 0), byzantine=[1, 10])
start = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
rows = []
for radius in (0.01, 0.1, 1.0, 10.0, cg.rules.Adaptive(network.delta_max)):
    *_, end = cg.consensus(network, cg.rules.ClippedGossip(radius), start, attack="dissensus", rounds=100)
    rows.append({"radius": str(radius), "error": end.error, "distance": end.consensus_distance})
pd.DataFrame(rows)

# %% [markdown]
# The adaptive radius follows the distances as they shrink.

# %%
rule = cg.rules.ClippedGossip(cg.rules.Adaptive(network.delta_max))
states = list(cg.consensus(network, rule, start, attack="dissensus", rounds=100))
pd.Series([state.consensus_distance for state in states]).plot(logy=True, xlabel="round", ylabel="Ξ")
