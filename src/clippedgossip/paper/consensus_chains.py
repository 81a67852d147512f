"""Robust consensus under attack: 53 chains, five rules, 100 rounds.

Chain 0–1–2–3 of regular nodes that hold 0, 0, 200, 200; weights ⅓, β, ⅓; a Byzantine node on 1 and on 2 with
weight δ each; dissensus with ε = 0.05 (§ Byzantine-robust consensus).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import networkx as nx
import numpy as np
import torch

from clippedgossip import graphs
from clippedgossip.attacks import Dissensus
from clippedgossip.devices import threads_for
from clippedgossip.network import Network
from clippedgossip.paper.base import Progress
from clippedgossip.report.claims import Floats
from clippedgossip.rules import (
    ClippedGossip,
    Median,
    Oracle,
    Rule,
    TrimmedMean,
    WeightedMedian,
    WeightedTrimmedMean,
)
from clippedgossip.simulate.consensus import trajectory

BETAS = (0.58, 0.45, 0.35, 0.267, 0.19, 0.12, 0.08, 0.04, 0.02, 0.01, 0.001)
DELTAS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
SETTINGS = tuple((beta, delta) for beta in BETAS for delta in DELTAS if delta <= 1 - 1 / 3 - beta)
START = (0.0, 0.0, 200.0, 200.0)
ROUNDS = 100
ATTACK = Dissensus(epsilon=0.05)


@dataclass(frozen=True, eq=False)
class ChainErrors:
    """Mean squared distance to the average, by rule: (rounds + 1, settings), in the order of SETTINGS."""

    errors: Mapping[str, Floats]

    @cached_property
    def gammas(self) -> Floats:
        chains = {beta: Network(graphs.consensus_chain(beta=beta, delta=DELTAS[0])) for beta in BETAS}
        return np.array([chains[beta].spectral_gap for beta, _ in SETTINGS])

    @property
    def deltas(self) -> Floats:
        return np.array([delta for _, delta in SETTINGS])

    @property
    def ratios(self) -> Floats:
        return self.deltas / self.gammas**2

    def last(self, rule: str) -> Floats:
        """The errors after the last round."""
        final: Floats = self.errors[rule][-1]
        return final


def rules(network: Network) -> dict[str, Rule]:
    """The rules by their names in the paper. Trims are the true Byzantine number, or weight, at each node."""
    weights = np.zeros(network.n)
    weights[network.regular] = network.delta
    return {
        "ClippedGossip": ClippedGossip(radius=Oracle()),
        "TM": TrimmedMean(trim=tuple(int(weight > 0) for weight in weights)),
        "Median": Median(),
        "TM*": WeightedTrimmedMean(trim=tuple(weights.tolist())),
        "Median*": WeightedMedian(),
    }


def simulate(progress: Progress = lambda label, done, total: None) -> ChainErrors:
    """All settings at once, as one network of 53 parts without edges between them."""
    parts = nx.disjoint_union_all(graphs.consensus_chain(beta=beta, delta=delta) for beta, delta in SETTINGS)
    parts.graph["weights"] = "own"
    network = Network(parts)
    start = torch.tensor(START, dtype=torch.float64).repeat(len(SETTINGS))[:, None]
    errors: dict[str, Floats] = {}
    chosen = rules(network)
    for done, (name, rule) in enumerate(chosen.items()):
        progress(name, done, len(chosen))
        with threads_for(0):  # a second thread costs more than it saves
            states = torch.stack([*trajectory(network, rule, start, attack=ATTACK, rounds=ROUNDS)])
        squares = (states.view(ROUNDS + 1, len(SETTINGS), len(START)) - sum(START) / len(START)).square()
        errors[name] = squares.mean(2).numpy()
    progress("figures", len(chosen), len(chosen))
    return ChainErrors(errors)
