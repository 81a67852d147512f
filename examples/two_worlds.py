"""Two worlds that no rule can tell apart (Theorem: impossibility).

Clique A, all zeros, meets two strangers at its one door. Behind one of them stands a real clique of five
honest nodes; the other is a liar who only pretends to have five friends. In world 1 the real clique holds 0
and the liar's friends "hold" 1; in world 2 it is the other way round. Clique A sees the same in both, so
whatever rule it follows it answers the same in both; but the average it should find is 0 in world 1 and ½ in
world 2.
"""

from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

from clippedgossip.attacks import FreeAttack, View
from clippedgossip.network import Network
from clippedgossip.network.network import two_worlds
from clippedgossip.rules import (
    Adaptive,
    ClippedGossip,
    GeometricMedian,
    Gossip,
    Krum,
    Median,
    Rule,
    TrimmedMean,
)
from clippedgossip.simulate import consensus

CLIQUE, ROUNDS = 5, 150
DOOR_A, DOOR_B = CLIQUE - 1, CLIQUE  # the two ends of the bridge
RULES = (
    Gossip(),
    ClippedGossip(radius=0.1),
    ClippedGossip(radius=Adaptive(delta_max=0.15)),
    TrimmedMean(trim=1),
    Median(),
    GeometricMedian(),
    Krum(faulty=1),
)


@dataclass(frozen=True)
class Pretence(FreeAttack):
    """Say, round by round, what the door of an honest clique would have said."""

    script: tuple[Tensor, ...]

    def messages(self, view: View) -> Tensor:
        assert isinstance(view.context.round, int)
        return self.script[view.context.round].expand(len(view.victims), -1)


def in_the_liars_head(rule: Rule, real: float, pretended: float) -> tuple[Tensor, ...]:
    """What the pretended clique's door would hold in every round, were it real: three cliques, three doors"""
    graph = nx.disjoint_union_all([nx.complete_graph(CLIQUE) for _ in range(3)])
    doors = (DOOR_A, DOOR_B, 2 * CLIQUE)
    graph.add_edges_from([(doors[0], doors[1]), (doors[1], doors[2]), (doors[2], doors[0])])
    start = torch.tensor([0.0, real, pretended]).repeat_interleave(CLIQUE)[:, None].double()
    states = consensus(Network(graph), rule, start, rounds=ROUNDS)
    return tuple(state.models[doors[2]] for state in states)


def live(rule: Rule, real: float, pretended: float) -> tuple[Tensor, list[list[float]]]:
    """Clique A's final models, and what its door heard from the two strangers in every round."""
    script = in_the_liars_head(rule, real, pretended)
    start = torch.tensor([0.0, real]).repeat_interleave(CLIQUE)[:, None].double()
    states = list(consensus(two_worlds(clique=CLIQUE), rule, start, attack=Pretence(script), rounds=ROUNDS))
    heard = [
        sorted([float(state.models[DOOR_B]), float(said)]) for state, said in zip(states, script, strict=True)
    ]
    return states[-1].models[:CLIQUE], heard


def main() -> None:
    print("Clique A holds 0. At its door stand two strangers; one of them lies.")
    print("world 1: the honest stranger's clique holds 0, the liar pretends 1; average 0")
    print("world 2: the honest stranger's clique holds 1, the liar pretends 0; average ½")
    rows = []
    for rule in RULES:
        first, heard_first = live(rule, real=0.0, pretended=1.0)
        second, heard_second = live(rule, real=1.0, pretended=0.0)
        if isinstance(rule, Gossip):
            print("\nWhat A's door hears from them under gossip:")
            for now in (0, 1, 2, 10, ROUNDS):
                views = (f"{low:.4f} and {high:.4f}" for low, high in (heard_first[now], heard_second[now]))
                print(f"  round {now:>3}   world 1: {next(views)}   world 2: {next(views)}")
        same = torch.allclose(torch.tensor(heard_first), torch.tensor(heard_second))
        answers = float(first.mean()), float(second.mean())
        worst = max(abs(answers[0] - 0.0), abs(answers[1] - 0.5))
        name = type(rule).__name__
        if isinstance(rule, ClippedGossip):
            name += f" {type(rule.radius).__name__.lower()}"
        rows.append(
            f"{name:<22}  {'always' if same else 'NO':<11}  {answers[0]:.4f}   {answers[1]:.4f}   {worst:.2f}"
        )
    print(f"\n{'rule':<22}  {'same views?':<11}  A answers in 1, 2  wrong by")
    print("\n".join(rows))
    print("\nNo answer is within ¼ of both averages: the network, not the rule, must change.")


if __name__ == "__main__":
    main()
