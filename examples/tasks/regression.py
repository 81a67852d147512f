"""Regression: predict the progress of a disease from ten numbers, while one node is Byzantine.

python examples/tasks/regression.py
"""

import networkx as nx
import torch
from sklearn.datasets import load_diabetes

import clippedgossip as cg

# Real-valued targets: the loss is the mean squared error and the metric is R², unless you say otherwise.
x, y = load_diabetes(return_X_y=True)
x, y = torch.tensor(x / x.std(0)).float(), torch.tensor((y - y.mean()) / y.std()).float()
order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
x, y = x[order], y[order]
data = cg.tasks.DataSet.of(x[:360], y[:360], x[360:], y[360:], name="diabetes")

network = cg.Network(nx.petersen_graph(), byzantine=[7])
run = cg.train(
    network,
    data,
    torch.nn.Linear(10, 1),
    rule=cg.rules.ClippedGossip(0.2),
    attack=cg.attacks.Dissensus(),
    rounds=200,
    lr=0.01,
    evaluate_every=50,
    device="cpu",
)
for record in run:
    print(f"round {record.round}: R² {record.metrics['r2']['all']:.3f}")
