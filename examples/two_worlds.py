"""Two worlds that no rule can tell apart (Theorem: impossibility).

    python examples/two_worlds.py

Clique A has five regular nodes that hold 0. One of them, A's gate, has two neighbours outside. One neighbour
is the gate of clique B, five more regular nodes. The other neighbour is Byzantine and pretends to be the gate
of a third clique. In world 1 clique B holds 0 and the Byzantine node pretends that its clique holds 1. In
world 2 it is the other way round. Clique A receives the same messages in both worlds. So under every rule it
ends with the same models in both. But the average that it should find is 0 in world 1 and ½ in world 2.
"""

from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

import clippedgossip as cg

CLIQUE, ROUNDS = 5, 150
GATE_A, GATE_B = CLIQUE - 1, CLIQUE  # the two ends of the edge between the cliques
RULES = (
    cg.rules.Gossip(),
    cg.rules.ClippedGossip(radius=0.1),
    cg.rules.ClippedGossip(radius=cg.rules.Adaptive(delta_max=0.15)),
    cg.rules.TrimmedMean(trim=1),
    cg.rules.Median(),
    cg.rules.GeometricMedian(),
    cg.rules.Krum(faulty=1),
)


@dataclass(frozen=True)
class Pretence(cg.attacks.FreeAttack):
    """Send, round by round, what the gate of a regular clique would have sent."""

    messages_by_round: tuple[Tensor, ...]

    def messages(self, view: cg.attacks.View) -> Tensor:
        assert isinstance(view.context.round, int)
        return self.messages_by_round[view.context.round].expand(len(view.receivers), -1)


def pretended_messages(rule: cg.rules.Rule, real: float, pretended: float) -> tuple[Tensor, ...]:
    """What the gate of the pretended clique would hold in every round if the clique were real.

    The Byzantine node simulates it: three cliques whose gates are neighbours of one another.
    """
    graph = nx.disjoint_union_all([nx.complete_graph(CLIQUE) for _ in range(3)])
    gate_c = 2 * CLIQUE
    graph.add_edges_from([(GATE_A, GATE_B), (GATE_B, gate_c), (gate_c, GATE_A)])
    start = torch.tensor([0.0, real, pretended]).repeat_interleave(CLIQUE)[:, None].double()
    states = cg.consensus(cg.Network(graph), rule, start, rounds=ROUNDS)
    return tuple(state.models[gate_c] for state in states)


def world(rule: cg.rules.Rule, real: float, pretended: float) -> tuple[Tensor, list[list[float]]]:
    """Clique A's final models, and the two messages that its gate received from outside in every round."""
    fakes = pretended_messages(rule, real, pretended)
    network = cg.Network(cg.graphs.two_worlds(clique=CLIQUE))
    start = torch.tensor([0.0, real]).repeat_interleave(CLIQUE)[:, None].double()
    states = list(cg.consensus(network, rule, start, attack=Pretence(fakes), rounds=ROUNDS))
    received = [
        sorted([float(state.models[GATE_B]), float(fake)]) for state, fake in zip(states, fakes, strict=True)
    ]
    return states[-1].models[:CLIQUE], received


def main() -> None:
    print("Clique A holds 0. Its gate has two neighbours outside; one of them is Byzantine.")
    print("world 1: clique B holds 0, the Byzantine node pretends 1; the average is 0")
    print("world 2: clique B holds 1, the Byzantine node pretends 0; the average is ½")
    rows = []
    for rule in RULES:
        models_1, received_1 = world(rule, real=0.0, pretended=1.0)
        models_2, received_2 = world(rule, real=1.0, pretended=0.0)
        if isinstance(rule, cg.rules.Gossip):
            print("\nWhat A's gate receives from them under gossip:")
            for now in (0, 1, 2, 10, ROUNDS):
                first, second = (
                    f"{low:.4f} and {high:.4f}" for low, high in (received_1[now], received_2[now])
                )
                print(f"  round {now:>3}   world 1: {first}   world 2: {second}")
        same = torch.allclose(torch.tensor(received_1), torch.tensor(received_2))
        answers = float(models_1.mean()), float(models_2.mean())
        error = max(abs(answers[0] - 0.0), abs(answers[1] - 0.5))
        name = type(rule).__name__
        if isinstance(rule, cg.rules.ClippedGossip):
            name += f" {type(rule.radius).__name__.lower()}"
        rows.append(
            f"{name:<22}  {'always' if same else 'NO':<14}  {answers[0]:.4f}   {answers[1]:.4f}   {error:.2f}"
        )
    print(f"\n{'rule':<22}  {'same messages?':<14}  A ends at (1, 2)  error")
    print("\n".join(rows))
    print("\nNo answer is within ¼ of both averages. A better rule cannot help, only another network can.")


if __name__ == "__main__":
    main()
