# %% [markdown]
# # Your first robust network
# A network draws itself. Byzantine nodes are marked.

# %%
import networkx as nx
import pandas as pd
import torch

import clippedgossip as cg

network = cg.Network(nx.circulant_graph(12, [1, 2, 3]), byzantine=[4, 9])
network

# %% [markdown]
# The regular nodes look for the average of their vectors. The Byzantine nodes keep them apart.

# %%
start = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
rules = {
    "gossip": cg.rules.Gossip(),
    "clipped-gossip": cg.rules.ClippedGossip(cg.rules.Adaptive(network.delta_max)),
}
errors = {
    name: [state.error for state in cg.consensus(network, rule, start, attack="dissensus", rounds=40)]
    for name, rule in rules.items()
}
frame = pd.DataFrame(errors)
frame.tail(3)

# %%
frame.plot(logy=True, xlabel="round", ylabel="error")
# %% [markdown]
# Now with data and a model.

# %%
run = cg.train(
    network, "digits", "mlp", attack="dissensus", rounds=60, lr=0.05, evaluate_every=20, device="cpu"
)
run.finish().frame()[["round", "accuracy", "loss"]]
