# %% [markdown]
# # Rules against attacks
# `cg.compare` trains every rule under every attack, once for each seed.

# %%
import networkx as nx

import clippedgossip as cg

network = cg.Network(nx.petersen_graph(), byzantine=[7])
found = cg.compare(
    network,
    "digits",
    "linear",
    rules=["gossip", "median", cg.rules.ClippedGossip(1.0)],
    attacks=["dissensus", "alie"],
    seeds=2,
    rounds=30,
    lr=0.1,
    device="cpu",
)
print(found)

# %% [markdown]
# The same as a frame, one row for each record.

# %%
found.frame().tail()

# %%
found.plot()
