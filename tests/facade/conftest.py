"""A small problem: the sign of a product, on the Petersen graph."""

import matplotlib
import networkx as nx
import pytest
import torch
from torch import nn

from clippedgossip.network import Network
from clippedgossip.tasks import DataSet

matplotlib.use("Agg")


@pytest.fixture
def network() -> Network:
    return Network(nx.petersen_graph(), byzantine=[7])


@pytest.fixture
def data() -> DataSet:
    x = 2 * torch.rand(600, 2, generator=torch.Generator().manual_seed(0)) - 1
    y = (x.prod(1) > 0).long()
    return DataSet.of(x[:500], y[:500], x[500:], y[500:])


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))
