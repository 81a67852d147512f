import matplotlib.pyplot as plt
import networkx as nx
import torch

from clippedgossip import attacks, network, rules, simulate, tasks

x = 2 * torch.rand(2000, 2, generator=torch.Generator().manual_seed(0)) - 1
data = tasks.DataSet.of(x[:1500], (x[:1500].prod(1) > 0).long(), x[1500:], (x[1500:].prod(1) > 0).long())
net = network.Network(nx.petersen_graph(), byzantine=[0, 7])
mlp = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
job = tasks.make_task(data, tasks.partition(data.train_y, 8, seed=0), mlp, seed=0, nodes=net.regular.tolist())
setup = simulate.Setup(network=net, task=job, rule=rules.ClippedGossip(), attack=attacks.Dissensus())
seen = {moment.round: moment.record.to_json() for moment in simulate.train(setup) if moment.record}
plt.plot(list(seen), [record["accuracy"]["all"] for record in seen.values()])
plt.savefig("accuracy.png")
