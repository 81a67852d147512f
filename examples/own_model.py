"""Train your own model, on your own data and network, while one node is Byzantine.

    python examples/own_model.py

It prints the accuracy every ten rounds and writes the curve to accuracy.png.
"""

import matplotlib.pyplot as plt
import networkx as nx
import torch

import clippedgossip as cg

# Your data: inputs and class numbers, some to train on and some to test on.
# Here the inputs are points, and the class says whether both coordinates have the same sign.
torch.manual_seed(0)
points = 2 * torch.rand(2000, 2) - 1
same_sign = (points[:, 0] * points[:, 1] > 0).long()
data = cg.tasks.DataSet.of(points[:1500], same_sign[:1500], points[1500:], same_sign[1500:])

# Your model: any torch.nn.Module that gives one number for each class.
model = torch.nn.Sequential(
    torch.nn.Linear(2, 32),
    torch.nn.Tanh(),
    torch.nn.Linear(32, 2),
)

# Your network: any networkx graph. Node 7 is Byzantine, the other nine are regular and share the data.
network = cg.Network(nx.petersen_graph(), byzantine=[7])

# Every regular node trains a copy of the model and mixes it with its neighbours' models in each round.
run = cg.train(
    network,
    data,
    model,
    rule=cg.rules.ClippedGossip(1.0),
    attack=cg.attacks.Dissensus(),
    rounds=90,
    lr=0.3,
    momentum=0.9,
    seed=0,
)
for record in run:
    print(f"round {record.round}: accuracy {record.metrics['accuracy']['all']:.1%}")

# Use what was trained: node 0's model, or the average of the regular nodes' models with run.load(model).
run.load(model, node=0)
correct = (model(data.test_x).argmax(1) == data.test_y).float().mean()
print(f"node 0 alone: accuracy {correct:.1%}")

run.plot()
plt.savefig("accuracy.png")
