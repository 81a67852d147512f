"""The paper's bounds."""

from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clippedgossip import graphs, theory
from clippedgossip.errors import NetworkError
from clippedgossip.network import Network
from tests.rounding import near


def test_without_attackers_clipped_gossip_contracts_as_gossip() -> None:
    network = Network(graphs.ring(nodes=7))
    guarantee = theory.consensus_guarantee(network)
    assert guarantee.holds
    assert guarantee.factor == near(1 - network.spectral_gap)


def test_a_complete_graph_with_few_attackers_is_guaranteed_and_with_many_is_not() -> None:
    few = theory.consensus_guarantee(Network(graphs.complete(nodes=100), byzantine=range(2)))
    many = theory.consensus_guarantee(Network(graphs.complete(nodes=100), byzantine=range(3)))
    assert few.holds
    assert not many.holds


@given(st.floats(0.001, 0.6), st.floats(0, 1))
def test_progress_is_guaranteed_exactly_where_the_factor_is_below_one(beta: float, share: float) -> None:
    network = Network(graphs.consensus_chain(beta=beta, delta=share * 0.01))
    guarantee = theory.consensus_guarantee(network)
    assert guarantee.limit == near(network.spectral_gap**2 / 32)
    if abs(guarantee.factor - 1) > 1e-9:
        assert guarantee.holds == (guarantee.factor < 1)


def test_the_training_requirement_is_stricter() -> None:
    network = Network(graphs.complete(nodes=400), byzantine=[0])
    assert theory.consensus_guarantee(network).holds
    guarantee = theory.training_guarantee(network)
    assert guarantee.limit == near(network.spectral_gap**2 / 10240)
    assert not guarantee.holds
    assert theory.training_guarantee(Network(graphs.complete(nodes=4))).max_step(2.0) == near(1 / 80)


def test_the_terms_of_the_training_bound() -> None:
    network = Network(graphs.complete(nodes=5))
    bound = theory.training_bound(network, smoothness=2, sigma2=3, zeta2=5, r0=7, rounds=99)
    assert bound.heterogeneity == 0
    assert bound.noise == near(2 * sqrt(9 / 5) * sqrt(3 * 2 * 3 * 7 / 100))
    assert bound.drift == near(2 * (48 * 5 * 5) ** (1 / 3) * 0.14 ** (2 / 3))
    assert bound.variance == near(2 * (144 * 5 * 3) ** (1 / 4) * 0.14 ** (3 / 4))
    assert bound.start == near(80 * 7 / 100)
    assert bound.value == near(bound.noise + bound.drift + bound.variance + bound.start + bound.heterogeneity)


def test_vacuous_bounds_are_called_vacuous() -> None:
    constants = {"smoothness": 1.0, "sigma2": 1.0, "zeta2": 1.0, "r0": 1.0}
    clean, ring = Network(graphs.complete(nodes=5)), graphs.ring(nodes=5)
    assert theory.training_bound(clean, rounds=10, **constants).vacuous
    assert not theory.training_bound(clean, rounds=10**9, **constants).vacuous
    attacked = theory.training_bound(Network(ring, byzantine=[0]), rounds=10**9, **constants)
    assert not attacked.applies
    assert attacked.vacuous
    cut = theory.training_bound(Network(ring, byzantine=[0, 2]), rounds=10, **constants)
    assert cut.value == inf
    assert cut.vacuous
    with pytest.raises(NetworkError, match="smoothness is 0"):
        theory.training_bound(clean, rounds=10, smoothness=0, sigma2=1, zeta2=1, r0=1)


def test_a_gap_known_only_as_an_upper_bound_guarantees_nothing() -> None:
    guarantee = theory.ConsensusGuarantee(factor=0.5, limit=0.1, delta_max=0.01, applies=False)
    assert not guarantee.holds
    assert np.isfinite(guarantee.factor)
