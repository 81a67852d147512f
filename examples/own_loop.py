"""Two lines in a training loop of your own: create the peer, call `mix` after `optimizer.step()`.

clippedgossip peer init me --name me …; clippedgossip peer add …; python examples/own_loop.py me/peer.toml
"""

import sys

import torch
from sklearn.datasets import load_digits

from clippedgossip.peer import Peer

if len(sys.argv) != 2:
    sys.exit("usage: python examples/own_loop.py PEER.toml (`clippedgossip peer init` writes one)")

data = load_digits()
inputs = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)
model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

with Peer.from_config(sys.argv[1], model) as peer:
    while peer.round < peer.config.rounds:
        batch = torch.randint(len(inputs), (32,))
        loss = criterion(model(inputs[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        peer.mix(model)

accuracy = (model(inputs).argmax(1) == labels).float().mean()
print(f"accuracy {accuracy:.3f}")
