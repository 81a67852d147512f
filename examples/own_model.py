import matplotlib.pyplot as plt
import networkx as nx
import torch

from clippedgossip import Network, Setup, Training, attacks, rules, simulate, step, tasks

x = 2 * torch.rand(2000, 2, generator=torch.manual_seed(0)) - 1
data = tasks.DataSet.of(x[:1500], (x[:1500].prod(1) > 0).long(), x[1500:], (x[1500:].prod(1) > 0).long())
net, how = Network(nx.petersen_graph(), byzantine=[7]), Training(rounds=90, lr=step.LearningRate(initial=0.3))
mlp = torch.nn.Sequential(torch.nn.Linear(2, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
job = tasks.make_task(data, tasks.partition(data.train_y, 9, seed=0), mlp, seed=0, nodes=net.regular.tolist())
setup = Setup(network=net, task=job, rule=rules.ClippedGossip(), attack=attacks.Dissensus(), training=how)
seen = {now.round: now.record.to_json()["accuracy"]["all"] for now in simulate.train(setup) if now.record}
plt.getp(plt.plot(list(seen), list(seen.values()))[0], "figure").savefig("accuracy.png")
print(f"accuracy {list(seen.values())[-1]:.1%} after {max(seen)} rounds; its curve is in accuracy.png")
