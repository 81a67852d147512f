# %% [markdown]
# # Can this network be trusted?
# Two cliques with one bridge, and a Byzantine node in each.

# %%
import networkx as nx

import clippedgossip as cg

graph = nx.barbell_graph(5, 0)
network = cg.Network(graph, byzantine=[1, 8])
network

# %%
print(network.audit())

# %% [markdown]
# One more edge across the cut.

# %%
graph.add_edge(0, 9)
better = cg.Network(graph, byzantine=[1, 8])
print(f"γ before {network.spectral_gap:.3f}, after {better.spectral_gap:.3f}")
better
