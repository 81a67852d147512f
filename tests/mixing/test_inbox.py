"""What a node received: a message that repeats a model is as far away as the model itself."""

from collections.abc import Iterator

import networkx as nx
import pytest
import torch

from clippedgossip.attacks import Silence
from clippedgossip.attacks.base import View
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def test_a_silent_neighbour_is_at_distance_zero(threads: None) -> None:
    """Its message counts as the receiver's own model. Equal rows need not have equal inner products: how they
    round depends on where they stand, on the number of coordinates and on that of threads."""
    network = Network(nx.circulant_graph(7, [1, 2]), byzantine=[2, 5])
    layout = Layout.of(network)
    for columns in range(1, 65):
        models = torch.randn(5, columns, generator=torch.Generator().manual_seed(columns))
        inbox = Silence().received(View(network=network, layout=layout, models=models)).measurable()
        for near in inbox.neighborhoods():
            assert near.byzantine is not None
            assert near.distances[near.byzantine].count_nonzero() == 0, columns
