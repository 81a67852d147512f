"""The diagnosis of a network: what it is, what is guaranteed, where it is weak and how to mend it."""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any

import numpy as np
from networkx import is_connected
from threadpoolctl import threadpool_limits

import clippedgossip.theory as theory
from clippedgossip.audit.components import LARGEST, Components, expected, guaranteed
from clippedgossip.audit.cut import Cut, weakest_cut
from clippedgossip.audit.edges import Suggestion, suggest_edges
from clippedgossip.audit.rounds import RoundsAudit, rounds_audit
from clippedgossip.audit.worst_placement import Placement, worst_placement
from clippedgossip.errors import NetworkError
from clippedgossip.network import Network

FEW_EDGES = 1000  # networks of no more are told what optimal weights would gain
LISTED = 1000  # longer lists of nodes or edges are cut short in JSON, and say so


@dataclass(frozen=True, kw_only=True)
class Gain:
    """γ and δ_max/γ² with other weights."""

    gamma: float
    ratio: float


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Everything `clippedgossip audit` knows about a network."""

    network: Network
    consensus: theory.ConsensusGuarantee
    training: theory.TrainingGuarantee
    weakest_cut: Cut | None
    more_byzantine: int
    worst_placement: Placement | None
    suggested_edges: tuple[Suggestion, ...]
    lazy_gamma: float | None  # γ with lazy weights, where that is larger

    rounds: RoundsAudit | None  # of the schedule, if there is one
    optimal: "Gain | None"  # with optimal weights, where the network is small and γ is larger
    guaranteed: Components | None = None
    expected: Components | None = None
    """Components, where Byzantine nodes are known and the network is small and does not change."""

    @property
    def krum_caveat(self) -> str | None:
        """Why Krum's theorem does not apply to the node with the fewest neighbours, if Krum is told the most
        Byzantine neighbours that a node has; None if it does."""
        network = self.network
        most = int(network.byzantine_neighbours.max(initial=0))
        return theory.krum_caveat(most, int(network.degrees[network.regular].min()) + 1)

    @property
    def ratio(self) -> float:
        """δ_max/γ²: the paper's measure of difficulty; infinite when γ = 0."""
        gamma = self.network.spectral_gap
        return self.network.delta_max / gamma**2 if gamma > 0 else inf

    @property
    def possible(self) -> bool:
        """Whether the regular nodes can reach consensus at all: they, or the rounds of their schedule, are
        connected."""
        return self.network.connected and (self.rounds is None or self.rounds.connected_after is not None)

    def __str__(self) -> str:
        """The diagnosis in words."""
        from clippedgossip.audit.text import render

        return render(self, "network")

    def to_json(self) -> dict[str, Any]:
        """One JSON object; what is infinite or unknown is null."""
        network = self.network
        return {
            "nodes": network.n,
            "edges": len(network.indices) // 2,
            "regular": len(network.regular),
            "byzantine": len(network.byzantine),
            "byzantine_nodes": _names(network, network.byzantine),
            "weights": network.weighting,
            "connected": network.connected,
            "components": [len(part) for part in network.components][:LISTED],
            "gamma": network.spectral_gap,
            "gamma_exact": network.gap.exact,
            "gamma_full": _number(network.spectral_gap_full),
            "gamma_full_exact": network.gap_full.exact,
            "p": network.p,
            "delta": network.delta.tolist(),
            "delta_max": network.delta_max,
            "delta_max_nodes": _names(network, delta_max_nodes(network)),
            "ratio": _number(self.ratio),
            "consensus_possible": self.possible,
            "consensus_guaranteed": self.possible and self.consensus.holds,
            "consensus_factor": self.consensus.factor,
            "consensus_limit": self.consensus.limit,
            "training_guaranteed": self.possible and self.training.holds,
            "training_limit": self.training.limit,
            "weakest_cut": None if self.weakest_cut is None else _cut(network, self.weakest_cut),
            "more_byzantine": self.more_byzantine,
            "worst_placement": _placement(network, self.worst_placement),
            "suggested_edges": [vars(s) | {"edge": _names(network, s.edge)} for s in self.suggested_edges],
            "krum_caveat": self.krum_caveat,
            "lazy_gamma": self.lazy_gamma,
            "optimal_gamma": None if self.optimal is None else self.optimal.gamma,
            "optimal_ratio": None if self.optimal is None else self.optimal.ratio,
            **({} if self.rounds is None else {"schedule": asdict(self.rounds)}),
            **self._components(),
        }

    def _components(self) -> dict[str, Any]:
        said = {"guaranteed": self.guaranteed, "expected": self.expected}
        found = {
            name: what.to_json(lambda nodes: _names(self.network, nodes))
            for name, what in said.items()
            if what is not None
        }
        return {"predicted_components": found} if found else {}


def audit(
    network: Network,
    *,
    more_byzantine: int = 1,
    suggestions: int = 3,
    rounds: int = 1000,
    seed: int = 0,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Audit:
    """Diagnose a network. `tell` hears what is being computed, for large networks. If it has a schedule, the
    links of all rounds together are diagnosed, and the rounds of a run with this length and seed."""
    if network.everyone:
        raise NetworkError(
            f"the network is complete, of {network.n} nodes, and lists no links to diagnose\n"
            "diagnose one of at most 2000 nodes"
        )
    with threadpool_limits(1):  # many small eigenproblems: threads would only get in each other's way
        tell("spectral gap of the regular nodes", 0, 5)
        gap = network.gap
        if len(network.byzantine):
            tell("spectral gap of all nodes", 1, 5)
            _ = network.gap_full
        tell("weakest cut", 2, 5)
        cut = weakest_cut(network)
        tell("worst placement", 3, 5)
        worst = worst_placement(network, more_byzantine, cut)
        tell("edges to add", 4, 5)
        edges = suggest_edges(network, suggestions)
        plain = network.weighting == "metropolis-hastings" and network.connected
        lazy = (1 - gap.lambda2) / 2 if plain else 0.0
        few = len(network.byzantine) > 0 and network.n <= LARGEST and not network.changes
        return Audit(
            network=network,
            consensus=theory.consensus_guarantee(network),
            training=theory.training_guarantee(network),
            weakest_cut=cut,
            more_byzantine=more_byzantine,
            worst_placement=worst,
            suggested_edges=edges,
            lazy_gamma=lazy if lazy > gap.value * 1.01 else None,
            rounds=rounds_audit(network, rounds=rounds, seed=seed),
            optimal=_optimal(network),
            guaranteed=guaranteed(network) if few else None,
            expected=expected(network) if few else None,
        )


def _optimal(network: Network) -> Gain | None:
    """What optimal weights would give, where they take a few seconds and raise γ by 1 % or more."""
    if network.fixed_weights or not network.connected or len(network.indices) > 2 * FEW_EDGES:
        return None
    graph = network.to_networkx()
    if not is_connected(graph):
        return None
    better = Network(graph, weights="optimal")
    gamma = better.spectral_gap
    if gamma <= network.spectral_gap * 1.01:
        return None
    return Gain(gamma=gamma, ratio=better.delta_max / gamma**2)


def delta_max_nodes(network: Network) -> list[int]:
    """The regular nodes that see the most Byzantine weight; none if nobody sees any."""
    if network.delta_max == 0:
        return []
    close = np.isclose(network.delta, network.delta_max, rtol=1e-9, atol=0)
    nodes: list[int] = network.regular[close].tolist()
    return nodes


def _number(value: float) -> float | None:
    return value if isfinite(value) else None


def _names(network: Network, nodes: Iterable[int]) -> list[Hashable]:
    """Labels that JSON can hold."""
    labels = (network.labels[i] for i in list(nodes)[:LISTED])
    return [label if isinstance(label, str | int) else str(label) for label in labels]


def _cut(network: Network, cut: Cut) -> dict[str, Any]:
    return {
        "edges": [_names(network, edge) for edge in cut.edges[:LISTED]],
        "edge_count": len(cut.edges),
        "weight": cut.weight,
        "conductance": cut.conductance,
        "exact": cut.exact,
        "least_conductance": cut.conductance if cut.exact else (1 - network.gap.lambda2) / 2,
        "sizes": [len(cut.side), len(cut.other)],
        "sides": [_names(network, cut.side), _names(network, cut.other)],
        "truncated": max(len(cut.edges), len(cut.other)) > LISTED,
    }


def _placement(network: Network, placement: Placement | None) -> dict[str, Any] | None:
    if placement is None:
        return None
    return {
        "nodes": _names(network, placement.nodes),
        "gamma": placement.gamma,
        "exact": placement.exact,
        "delta_max": placement.delta_max,
        "ratio": _number(placement.ratio),
        "disconnects": placement.separated > 0,
        "separated": placement.separated,
        "method": placement.method,
    }
