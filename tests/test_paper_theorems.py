"""What the paper proves, as properties: any network, any models, any messages."""

from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from clippedgossip.attacks import Dissensus, View
from clippedgossip.graphs.generators import Graph
from clippedgossip.mixing.inbox import Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules import ClippedGossip, Gossip, Oracle, Rule
from tests.rounding import assert_near

Matrix = NDArray[np.float64]
quick = settings(max_examples=150, deadline=None)


@dataclass(frozen=True)
class Case:
    """A network and the models its regular nodes hold."""

    network: Network
    models: Tensor

    @property
    def layout(self) -> Layout:
        return Layout.of(self.network)

    @property
    def view(self) -> View:
        return View(network=self.network, layout=self.layout, models=self.models)

    @property
    def rho2(self) -> float:
        return spread(self.models, self.models.mean(0))

    @property
    def rounding(self) -> float:
        """What float64 may lose in a squared distance."""
        return 1e-12 * (1 + float(self.models.abs().max()) ** 2)


def spread(models: Tensor, center: Tensor) -> float:
    return float((models - center).square().sum(1).mean())


@st.composite
def weighted_graphs(draw: st.DrawFn, complete: bool = False) -> Network:
    """Connected regular part, Byzantine nodes anywhere (beside one another too), any admissible weights."""
    regular, byzantine = draw(st.integers(2, 7)), draw(st.integers(1, 3))
    n = regular + byzantine
    graph: Graph = nx.complete_graph(n) if complete else nx.empty_graph(n)
    if not complete:
        for node in range(1, n):
            is_byzantine = node >= regular
            graph.add_edge(node, draw(st.integers(0, (node if not is_byzantine else regular) - 1)))
        pairs = [(i, j) for i in range(n) for j in range(i)]
        graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), max_size=8)))
    weights = np.zeros((n, n))
    for i, j in graph.edges:
        weights[i, j] = weights[j, i] = draw(st.floats(0.01, 1))
    weights /= weights.sum(1).max() * draw(st.floats(1.01, 3))
    np.fill_diagonal(weights, 1 - weights.sum(1))
    return Network(graph, byzantine=range(regular, n), weights=weights)


@st.composite
def cases(draw: st.DrawFn, complete: bool = False) -> Case:
    network = draw(weighted_graphs(complete=complete))
    size, d = draw(st.sampled_from([1e-3, 1.0, 1e4])), draw(st.integers(1, 4))
    entries = st.floats(-1, 1, width=32)
    rows = [[size * draw(entries) for _ in range(d)] for _ in network.regular]
    return Case(network, torch.tensor(rows, dtype=torch.float64))


@st.composite
def byzantine_messages(draw: st.DrawFn, case: Case) -> Tensor:
    """Anything at all along every Byzantine edge: near, far, huge, not finite; aimed or not."""
    layout, models = case.layout, case.models
    assert layout.byzantine_receivers is not None
    rows = []
    for receiver in layout.byzantine_receivers.tolist():
        own = models[receiver]
        away = own - models.mean(0)
        reach = draw(st.sampled_from([0.0, 1e-3, 1.0, -1.0, 30.0, 1e6, -1e6]))
        wild = draw(st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True)))
        rows.append(own + reach * away if wild is None else torch.full_like(own, wild))
    return torch.stack(rows)


@st.composite
def attacked(draw: st.DrawFn) -> tuple[Case, Tensor]:
    case = draw(cases())
    return case, draw(byzantine_messages(case))


def mix(rule: Rule, case: Case, messages: Tensor) -> Tensor:
    return rule.mix(Inbox(layout=case.layout, models=case.models, extra=messages))


@quick
@given(attacked())
def test_theorem_one_round_of_clipped_gossip_whatever_the_attackers_send(drawn: tuple[Case, Tensor]) -> None:
    """Theorem (consensus): mean ‖x_i⁺−x̄‖² ≤ (√(1−p)+√(32 δ_max))² ρ², and ‖x̄⁺−x̄‖² ≤ 32 δ_max ρ²."""
    case, messages = drawn
    network, center = case.network, case.models.mean(0)
    mixed = mix(ClippedGossip(Oracle()), case, messages)
    bound = (np.sqrt(1 - network.p) + np.sqrt(32 * network.delta_max)) ** 2 * case.rho2
    assert torch.isfinite(mixed).all()
    assert spread(mixed, center) <= bound * (1 + 1e-6) + case.rounding
    moved = float((mixed.mean(0) - center).square().sum())
    assert moved <= 32 * network.delta_max * case.rho2 * (1 + 1e-6) + case.rounding


@quick
@given(attacked())
def test_consensus_once_reached_is_kept(drawn: tuple[Case, Tensor]) -> None:
    """ρ = 0: consensus is kept, whatever Byzantine nodes send."""
    case, messages = drawn
    agreed = Case(case.network, case.models[:1].expand_as(case.models).contiguous())
    mixed = mix(ClippedGossip(Oracle()), agreed, messages)
    assert_near(mixed, agreed.models, least=1e-160)  # smaller distances have the square 0 in float64


@quick
@given(cases())
def test_without_byzantine_nodes_the_bound_is_that_of_gossip(case: Case) -> None:
    """δ_max = 0: the spread falls by (1−γ)², and clipping with the oracle radius is gossip."""
    graph = case.network.to_networkx()
    graph.remove_nodes_from(case.network.byzantine.tolist())
    alone = Case(Network(graph), case.models)
    nothing = case.models.new_zeros(0, case.models.shape[1])
    mixed = mix(ClippedGossip(Oracle()), alone, nothing)
    assert_near(mixed, mix(Gossip(), alone, nothing))
    bound = (1 - alone.network.spectral_gap) ** 2 * alone.rho2
    assert spread(mixed, case.models.mean(0)) <= bound * (1 + 1e-9) + case.rounding


@quick
@given(cases())
def test_proposition_dissensus_with_epsilon_one_is_no_communication(case: Case) -> None:
    """Proposition (dissensus), first half. A node without Byzantine neighbours gossips as usual."""
    mixed = Gossip().mix(Dissensus(epsilon=1).inbox(case.view))
    beset = torch.tensor(case.network.delta > 0)
    free = torch.tensor(np.asarray(case.network.regular_weights)) @ case.models
    expected = torch.where(beset[:, None], case.models, free)
    assert_near(mixed, expected)


@quick
@given(cases(complete=True), st.floats(0, 3))
def test_proposition_dissensus_leaves_the_mean_on_the_complete_graph(case: Case, epsilon: float) -> None:
    """Proposition (dissensus), second half: any ε, any symmetric weights."""
    mixed = Gossip().mix(Dissensus(epsilon=epsilon).inbox(case.view))
    assert_near(mixed.mean(0), case.models.mean(0))


@quick
@given(attacked())
def test_gossip_has_no_such_bound(drawn: tuple[Case, Tensor]) -> None:
    """The bound above is the clipping's doing: one huge message carries gossip as far as it likes."""
    case, messages = drawn
    huge = torch.full_like(messages, 1e9)
    moved = (mix(Gossip(), case, huge) - case.models).abs().amax()
    clipped = (mix(ClippedGossip(Oracle()), case, huge) - case.models).norm(dim=1)
    assert moved > 1e6 * case.network.delta_max
    radii = _oracle_radii(case)
    inside = torch.tensor(case.network.delta > 0)
    assert (clipped[inside] <= radii[inside] + np.sqrt(case.rounding)).all()


def _oracle_radii(case: Case) -> Tensor:
    """τ_i² = (1/δ_i) Σ_{j∈R} W_ij ‖x_i − x_j‖²."""
    apart = torch.cdist(case.models, case.models).square()
    weights = torch.tensor(np.asarray(case.network.regular_weights))
    delta = torch.tensor(case.network.delta)
    return ((weights * apart).sum(1) / delta).sqrt()
