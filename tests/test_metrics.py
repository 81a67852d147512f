"""What is measured of a run, beside the same computed by hand."""

import networkx as nx
import pytest
import torch

from clippedgossip import graphs
from clippedgossip.metrics import RunMetrics, group_rows, pair_distances
from clippedgossip.mixing.kernels import squared_distances
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.tasks import METRICS
from tests.rounding import assert_near, near

CPU = torch.device("cpu")


def metrics(network: Network, *, counts_clips: bool = True) -> RunMetrics:
    return RunMetrics(network, Layout.of(network, CPU), counts_clips=counts_clips)


def test_groups_hold_the_rows_of_their_regular_nodes() -> None:
    network = Network(graphs.dumbbell(clique=3), byzantine=[0])
    rows = {name: found.tolist() for name, found in group_rows(network, CPU).items()}
    assert rows == {"all": [0, 1, 2, 3, 4], "clique A": [0, 1], "clique B": [2, 3, 4]}


def test_a_group_without_regular_nodes_is_left_out() -> None:
    network = Network(graphs.dumbbell(clique=3), byzantine=[0, 1, 2])
    assert set(group_rows(network, CPU)) == {"all", "clique B"}


def test_the_consensus_distance_is_the_mean_squared_distance_to_the_mean() -> None:
    models = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 3.0]])
    assert squared_distances(models).tolist() == [5.0, 1.0, 8.0]
    assert squared_distances(models, torch.zeros(2)).tolist() == [0.0, 4.0, 25.0]


@pytest.mark.parametrize("d", [3, 200_000])  # more than one chunk
def test_models_near_the_largest_number_are_measured(d: int) -> None:
    """Sums and differences of them are beyond float32."""
    big = torch.finfo(torch.float32).max
    models = torch.tensor([[big], [big], [-big]]).expand(3, d).contiguous()
    third = big / 3
    apart = torch.tensor([2 * third, 2 * third, -4 * third], dtype=torch.float64)
    assert_near(squared_distances(models), d * apart**2)
    pairs = torch.tensor([[0.0, 0, 2, 1], [0, 0, 2, 1], [2, 2, 0, 1]], dtype=torch.float64) * big
    assert_near(pair_distances(models), d * pairs**2)
    average = metrics(Network(nx.path_graph(3))).averages(models)
    assert_near(average, torch.full((1, d), third), roundings=1, dtype=torch.float32)
    assert bool((models.abs() == big).all())  # they are not changed


def test_clipped_edges_are_named_and_the_most_clipped_come_first() -> None:
    found = metrics(Network(nx.path_graph(["a", "b", "c"])))
    weights = found.layout.weights
    whole = torch.cat([1 - weights.sum(1, keepdim=True), weights], 1)
    senders = found.layout.senders
    from_b_to_c = (senders == 1) & (torch.arange(3)[:, None] == 2) & (weights > 0)
    clipped = whole.clone()
    clipped[:, 1:][from_b_to_c] /= 2
    found.count_clips(whole, found.layout)  # nothing is clipped
    found.count_clips(clipped, found.layout)
    clipped[:, 1:] /= 2
    found.count_clips(clipped, found.layout)
    edges = found.clipped_edges(3)
    assert edges is not None
    assert edges[0] == ["b", "c", near(2 / 3)]
    assert sorted(edge[:2] for edge in edges[1:]) == [["a", "b"], ["b", "a"], ["c", "b"]]
    assert {share for _, _, share in edges[1:]} == {1 / 3}


def test_a_record_gives_means_and_the_share_of_clipped_messages() -> None:
    found = metrics(Network(nx.path_graph(3)))
    found.clips[0] += (found.layout.weights > 0)[0]  # node 0 has one neighbour, of four directed edges
    record = found.record(
        2,
        METRICS["accuracy"](3),
        scores=torch.tensor([0.5]),
        node_scores=torch.tensor([0.2, 0.4, 0.9]),
        losses=torch.tensor([1.0, 2.0, 3.0]),
        distances=torch.tensor([1.0, 2.0, 6.0]),
        lr=0.1,
        last=False,
    )
    assert record.accuracy == {"all": 0.5}
    assert record.mean_accuracy == near(0.5)
    assert record.worst_accuracy == near(0.2, roundings=1, dtype=torch.float32)
    assert (record.loss, record.consensus_distance, record.lr) == (2.0, 3.0, 0.1)
    assert record.clipped == 1 / (4 * 2)
    assert record.clipped_edges is None


def test_a_rule_that_does_not_clip_has_no_clips() -> None:
    assert metrics(Network(nx.path_graph(3)), counts_clips=False).clipped_edges(1) is None
