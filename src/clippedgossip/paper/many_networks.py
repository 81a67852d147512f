"""Consensus on many small networks at once, under the strongest of several attacks on each of them.

The networks are parts of one network without edges between them. Every attack is run with every strength of
a list. On each network the one that does the most harm at the end counts: it is tuned on each network alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from clippedgossip.attacks import ALIE, IPM, Attack, Dissensus, FreeAttack, View
from clippedgossip.network import Network
from clippedgossip.paper.base import Progress
from clippedgossip.paper.consensus_chains import one_thread
from clippedgossip.report.claims import Floats
from clippedgossip.rules import Rule
from clippedgossip.simulate.consensus import trajectory

STRENGTHS = {
    "dissensus": (0.5, 1.5, 5.0, 50.0),
    "spectral": (0.5, 5.0, 50.0),
    "IPM": (0.5, 5.0),
    "ALIE": (2.0, 20.0),
}


@dataclass(frozen=True, eq=False)
class _Spectral(FreeAttack):
    """x_i + c·v_i·(vᵀX) in every part, v the Fiedler vector of the part; 0 in a part without one."""

    modes: Tensor  # (parts, r)
    c: float = 1.0
    strength: ClassVar[str | None] = "c"

    def messages(self, view: View) -> Tensor:
        along = self.modes.T @ (self.modes @ view.models)
        return (view.models + self.c * along)[view.receivers]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The models after the last round, and the harm, of each network under the attack that did the most."""

    models: list[Tensor]
    harm: Floats
    attack: list[str]


def attacks(networks: Sequence[Network]) -> dict[str, Attack]:
    """Every attack with every strength, on all networks together."""
    modes = torch.zeros(len(networks), sum(len(network.regular) for network in networks), dtype=torch.float64)
    first = 0
    for number, network in enumerate(networks):
        if network.gap.fiedler is not None:
            modes[number, first : first + len(network.regular)] = torch.as_tensor(network.gap.fiedler)
        first += len(network.regular)
    kinds: dict[str, Callable[[float], Attack]] = {
        "dissensus": Dissensus,
        "spectral": lambda c: _Spectral(modes, c),
        "IPM": IPM,
        "ALIE": ALIE,
    }
    return {f"{name} {s:g}": kinds[name](s) for name, many in STRENGTHS.items() for s in many}


def worst(
    networks: Sequence[Network],
    rule: Rule,
    starts: Sequence[Tensor],
    rounds: int,
    harm: Callable[[int, Tensor], float],
    progress: Progress = lambda label, done, total: None,
) -> Outcome:
    """Run every attack. `harm` gives that of a network, by its number, from its last models."""
    union = nx.disjoint_union_all(network.to_networkx() for network in networks)
    union.graph = {"weights": "own"}
    together, start = Network(union), torch.cat(list(starts))
    sizes = [len(network.regular) for network in networks]
    models: list[Tensor] = list(starts)
    most, by = np.full(len(networks), -np.inf), [""] * len(networks)
    chosen = attacks(networks)
    for done, (name, attack) in enumerate(chosen.items()):
        progress(name, done, len(chosen))
        with one_thread():
            *_, last = trajectory(together, rule, start, attack=attack, rounds=rounds)
        for number, part in enumerate(torch.split(last, sizes)):
            found = harm(number, part)
            if found > most[number]:
                most[number], by[number], models[number] = found, name, part
    return Outcome(models, most, by)
