"""Mix with real peers inside a training loop of your own.

Create the peer, then call `mix` after `optimizer.step()`: it sends the model to the neighbours, waits for
theirs, and writes the mixture into the model.

    clippedgossip peer network ring --nodes 3 --out net/      # writes a folder for each peer
    python examples/own_loop.py net/0/peer.toml               # one process for each, on any machine
"""

import sys

import torch
from sklearn.datasets import load_digits

import clippedgossip as cg

if len(sys.argv) != 2:
    sys.exit("usage: python examples/own_loop.py PEER.toml (`clippedgossip peer init` writes one)")

data = load_digits()
inputs = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)

torch.manual_seed(0)  # all peers start from the same model
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
torch.seed()  # and draw batches of their own

with cg.Peer.from_config(sys.argv[1], model) as peer:
    while peer.round < peer.config.rounds:
        batch = torch.randint(len(inputs), (32,))
        loss = criterion(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peer.mix(model)

accuracy = (model(inputs).argmax(1) == labels).float().mean()
print(f"accuracy {accuracy:.3f}")
