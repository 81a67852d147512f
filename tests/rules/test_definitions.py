"""Small cases worked out on paper, one for each place where an implementation is easily wrong."""

import networkx as nx
import pytest
import torch

from clippedgossip.mixing import kernels
from clippedgossip.network import Network
from clippedgossip.peer.peer_config import Address, Config, Neighbour
from clippedgossip.peer.peer_mixing import Mixing
from clippedgossip.rules import (
    Bucketing,
    ClippedGossip,
    CSPlus,
    GeometricMedian,
    Krum,
    MeaMed,
    Mozi,
    WeightedTrimmedMean,
)
from clippedgossip.simulate import consensus
from tests.rounding import near


def test_the_mean_around_the_median_where_values_are_equal() -> None:
    """Median 1; nearest are 1, 1.5 and two of the three zeros: not the three zeros and 1."""
    values = torch.tensor([1, 0, 0, 0, 1.5, 5, 6], dtype=torch.float64)[:, None]
    mixed = MeaMed(faulty=3)(values[0], values[1:], torch.full((6,), 0.1, dtype=torch.float64))
    assert float(mixed) == 0.625


def test_the_radius_of_cs_plus_is_its_authors() -> None:
    """Weights 0.2, b = 0.15: the furthest that leaves 0.3 beyond it is at 2."""
    received = torch.tensor([[1.0], [2.0], [3.0], [9.0]], dtype=torch.float64)
    mixed = CSPlus(byzantine_weight=0.15)(
        torch.zeros(1, dtype=torch.float64), received, torch.full((4,), 0.2, dtype=torch.float64)
    )
    assert float(mixed) == near(0.2 * (1 + 2 + 2 + 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_messages_that_cancel_in_a_bucket_are_clipped(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    own = torch.randn(50, generator=generator, dtype=dtype)
    rule, weights = Bucketing(ClippedGossip(1.0)), torch.full((2,), 0.25, dtype=torch.float64)
    for exponent in range(0, 38, 3):
        far = 10.0**exponent * torch.randn(50, generator=generator, dtype=dtype)
        mixed = rule(own, torch.stack([far, -far * (1 + 1e-6)]), weights)
        assert float((mixed.double() - own.double()).norm()) <= 0.5 * (1 + 1e-5), exponent


def test_a_sliver_of_weight_does_not_multiply_a_message() -> None:
    """Six nodes of weight 1/7 and the trim that one Byzantine node has: sums of sevenths miss 1 − 1/7."""
    received = torch.tensor([[0.1], [0.2], [0.3], [0.4], [0.5], [1e30]], dtype=torch.float64)
    for n in range(7, 60):
        weights = torch.full((6,), 1 / n, dtype=torch.float64)
        mixed = WeightedTrimmedMean(trim=1 / n)(torch.zeros(1, dtype=torch.float64), received, weights)
        assert 0 <= float(mixed) <= 0.5


@pytest.mark.parametrize("iterations", [1, 8, 32, 100])
def test_the_geometric_median_beside_a_huge_message(iterations: int) -> None:
    """As many iterations as are asked for, by the definition, from a mean of 2e37."""
    generator = torch.Generator().manual_seed(3)
    received = torch.randn(4, 20, generator=generator)
    received[2] = 1e38
    own = torch.randn(20, generator=generator)
    mixed = GeometricMedian(iterations)(own, received, torch.full((4,), 0.2)).double()
    models = torch.cat([own[None], received]).double()
    z = models.mean(0)
    for _ in range(iterations):
        pull = 1 / (models - z).norm(dim=1).clamp(min=0.1)
        z = (pull[:, None] * models).sum(0) / pull.sum()
    assert float((mixed - z).norm()) <= 8 * torch.finfo(torch.float32).eps * float(z.norm() + own.norm())


def test_mozi_takes_no_dropped_message_where_no_kept_one_has_a_loss() -> None:
    def loss(models: torch.Tensor) -> torch.Tensor:
        return torch.where(models[..., 0] == 0, 0.0, torch.nan)

    received = torch.tensor([[9.0], [1.0], [2.0], [8.0]], dtype=torch.float64)
    own, weights = torch.zeros(1, dtype=torch.float64), torch.full((4,), 0.2, dtype=torch.float64)
    assert float(Mozi(loss=loss, keep=0.5)(own, received, weights)) == 0


def test_krum_takes_the_first_of_two_that_tie() -> None:
    """n − f − 2 = 1: the two nearest models have each other's distance for a score."""
    generator = torch.Generator().manual_seed(0)
    for d in (1, 7, 1000, 4099):
        own, received = torch.randn(40, d, generator=generator), torch.randn(40, 6, d, generator=generator)
        received[:, 4] = received[:, 1] + 1e-3 * torch.randn(40, d, generator=generator)
        mixed = Krum(faulty=4)(own, received, torch.full((40, 6), 0.1))
        assert torch.equal(mixed, received[:, 1])


def test_inner_products_are_symmetric() -> None:
    held = torch.randn(37, 5001, generator=torch.Generator().manual_seed(0))
    products = kernels.gram([held])
    assert torch.equal(products, products.T)


def test_a_message_is_finite_if_all_of_it_is() -> None:
    from clippedgossip.peer.wire_tensors import is_finite

    assert is_finite(torch.full((1000,), 3e38))
    assert is_finite(torch.tensor([3e38, -3e38]))
    assert not is_finite(torch.tensor([1.0, torch.nan]))
    assert not is_finite(torch.tensor([1.0, -torch.inf]))
    own, received = torch.zeros(3), torch.full((2, 3), 3e38)
    mixed = ClippedGossip(1.0)(own, received, torch.full((2,), 0.25))
    assert float(mixed.double().norm()) == near(0.5, roundings=8, dtype=torch.float32), "clipped, not missing"


def test_krum_says_where_its_theorem_ends() -> None:
    assert Krum(faulty=2).caveat(6) is None
    assert "proved for 7 models or more, a node sees 6" in str(Krum(faulty=2).caveat(5))
    assert Bucketing(Krum(faulty=1)).caveat(8) == Krum(faulty=1).caveat(4)


def test_audit_consensus_and_peers_say_the_same_of_krum() -> None:
    network = Network(nx.cycle_graph(9), byzantine=[0])
    caveat = Krum(faulty=1).caveat(2)
    assert caveat is not None
    assert caveat in " ".join(str(network.audit()).split())
    assert network.audit().to_json()["krum_caveat"] == caveat
    neighbours = tuple(Neighbour(name=name, address=Address("a", 1), fingerprint=b"") for name in "abc")
    config = Config(name="z", run="r", neighbours=neighbours, rule={"name": "krum", "faulty": 1})
    with pytest.warns(RuntimeWarning, match="proved for 5 models or more, a node sees 4"):
        Mixing(config)
    everyone = Network(nx.complete_graph(4), byzantine=[0])
    with pytest.warns(RuntimeWarning, match="proved for 5 models or more, a node sees 4") as said:
        list(consensus(everyone, Krum(faulty=1), torch.zeros(4, 2), rounds=3))
    assert len(said) == 1
