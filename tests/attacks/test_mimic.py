"""Mimic as its authors describe it: Oja's method over the first rounds, then one node."""

from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
import torch

from clippedgossip.attacks import Mimic, View
from clippedgossip.errors import AttackError
from clippedgossip.mixing.inbox import Context
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.randomness import hash_normal

NETWORK = Network(nx.complete_graph(7), byzantine=[6])
D, WARMUP = 40, 5


def rounds(count: int) -> list[torch.Tensor]:
    """Models that move on, and differ most along one direction."""
    generator = torch.Generator().manual_seed(0)
    apart = torch.randn(6, D, generator=generator, dtype=torch.float64)
    apart[:, 3] *= 5
    step = torch.randn(D, generator=generator, dtype=torch.float64)
    noise = torch.randn(count, 6, D, generator=generator, dtype=torch.float64)
    return [apart + now * step + 0.1 * noise[now] for now in range(count)]


def view_at(now: int, models: torch.Tensor, memory: torch.Tensor | None, part: slice = slice(None)) -> View:
    context = Context(round=now, rounds=10, seed=3, offset=part.start or 0)
    return View(
        network=NETWORK, layout=Layout.of(NETWORK), models=models[:, part], context=context, memory=memory
    )


def by_definition(models: list[torch.Tensor]) -> list[int]:
    """The node of each round."""
    z = hash_normal(3, "mimic", 0, torch.arange(D), dtype=torch.float64).numpy()
    mean, chosen = np.zeros(D), []
    for t, x in enumerate(model.numpy() for model in models):
        if t < WARMUP:
            mean = t / (1 + t) * mean + x.mean(0) / (1 + t)
            step = sum((row - mean) @ z * (row - mean) for row in x)
            z = t / (1 + t) * (z / np.linalg.norm(z)) + step / np.linalg.norm(step) / (1 + t)
            z = z / np.linalg.norm(z)
            chosen.append(int((x @ z).argmax()))
        else:
            chosen.append(chosen[-1])
    return chosen


def test_the_node_is_its_authors_choice_and_stays() -> None:
    attack, memory, models = Mimic(warmup=WARMUP), torch.zeros(3, D, dtype=torch.float64), rounds(9)
    models[-1] = -models[-1]  # after the first rounds, nothing changes the choice
    found = []
    for now, x in enumerate(models):
        view = view_at(now, x, memory)
        attack.learn(view)
        sent = attack.messages(view)
        assert torch.equal(sent, attack.inbox(view).explicit().blocks[1])
        found.append(int((x == sent[0]).all(1).nonzero()))
    assert found == by_definition(models)


def test_ranks_with_slices_of_the_coordinates_choose_the_same() -> None:
    """Each hears the others' sums: here, of one more rank that has no coordinates at all."""
    attack, models = Mimic(warmup=WARMUP), rounds(1)[0]
    memory, empty = torch.zeros(3, D, dtype=torch.float64), torch.zeros(3, 0, dtype=torch.float64)
    sums: list[torch.Tensor] = []

    def reduce(total: torch.Tensor) -> torch.Tensor:
        sums.append(total)
        return total

    whole = view_at(0, models, memory)
    heard = replace(whole, context=replace(whole.context, reduce=reduce))
    attack.learn(heard)
    expected = attack.messages(heard)
    answers = iter(sums)
    without = view_at(0, models, empty, slice(D, D))
    without = replace(without, context=replace(without.context, reduce=lambda total: next(answers)))
    attack.learn(without)
    assert torch.equal(attack.table(without).argmax(1), (models == expected[0]).all(1).nonzero()[0].expand(6))


def test_a_warm_up_of_no_rounds_is_refused() -> None:
    with pytest.raises(AttackError, match="at least 1"):
        Mimic(warmup=0)
