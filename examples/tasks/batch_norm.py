"""A ResNet with BatchNorm. Each worker keeps running statistics of its own; they are never mixed.

python examples/tasks/batch_norm.py
"""

import networkx as nx
import torch
from torch import Tensor, nn

import clippedgossip as cg


class Block(nn.Module):
    """x ↦ relu(x + two convolutions)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.body(x))


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(1, 8, 3, padding=1),
    Block(8),
    nn.AvgPool2d(2),
    Block(8),
    nn.Flatten(),
    nn.Linear(8 * 4 * 4, 10),
)
network = cg.Network(nx.circulant_graph(6, [1, 2]), byzantine=[5])
run = cg.train(
    network,
    "digits",
    model,
    rule=cg.rules.ClippedGossip(1.0),
    attack=cg.attacks.Dissensus(),
    rounds=40,
    lr=0.05,
    local_steps=2,
    evaluate_every=20,
    device="cpu",
)
for record in run:
    print(f"round {record.round}: accuracy {record.metrics['accuracy']['all']:.1%}")
