"""Robust consensus: every regular node holds a vector, and mixing alone should bring them to their average."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from clippedgossip.attacks import Attack, Silence, View
from clippedgossip.errors import NetworkError, RunError
from clippedgossip.inbox import Context, Inbox
from clippedgossip.layout import Layout
from clippedgossip.network import Network
from clippedgossip.rules import Rule


@dataclass(frozen=True, eq=False)
class ConsensusRound:
    """The state after a round; round 0 is the start."""

    round: int
    models: Tensor  # (r, d) of the regular nodes
    error: float  # mean squared distance to the regular nodes' average at the start
    consensus_distance: float  # Ξ: the same to their average now


def consensus(
    network: Network,
    rule: Rule,
    initial: Tensor,
    *,
    attack: Attack | None = None,
    rounds: int = 100,
    seed: int = 0,
) -> Iterator[ConsensusRound]:
    """Start from `initial`, (n, d) or (regular, d), and mix. Without an attack Byzantine nodes are silent."""
    refuse_disconnected(network)
    layout = Layout.of(network, initial.device)
    for count in set(layout.counts):
        rule.check(count)
    models, shadows = _split(network, initial)
    target = models.double().mean(0)
    attack = attack or Silence()
    yield _measure(0, models, target)
    for now in range(1, rounds + 1):
        context = Context(round=now - 1, rounds=rounds, seed=seed)
        view = View(
            network=network,
            layout=layout,
            models=models,
            rule=rule,
            context=context,
            byzantine_models=shadows,
        )
        inbox = (
            attack.inbox(view) if len(view.victims) else Inbox(layout=layout, models=models, context=context)
        )
        shadows = honest_work(network, models, shadows) if attack.trains else shadows
        models = rule.mix(inbox)
        yield _measure(now, models, target)


def refuse_disconnected(network: Network) -> None:
    """The paper's Assumption (connectivity): without it no rule can reach consensus."""
    if not network.connected:
        sizes = ", ".join(str(len(part)) for part in network.components[:5])
        raise NetworkError(
            f"the regular nodes fall into {len(network.components)} parts (of {sizes} nodes), so they cannot agree; "
            "add edges between the parts or remove Byzantine nodes (`clippedgossip audit` shows where)"
        )


def honest_work(network: Network, models: Tensor, shadows: Tensor) -> Tensor:
    """What the Byzantine nodes' own models become by plain gossip with what their neighbours hold."""
    if not len(network.byzantine):
        return shadows
    rows = torch.as_tensor(_rows(network), device=models.device, dtype=models.dtype)
    return rows[:, : len(models)] @ models + rows[:, len(models) :] @ shadows


def _rows(network: Network) -> Tensor:
    """(b, r+b) weights of the Byzantine nodes' rows, regular columns first."""
    weights = network.weights[network.byzantine]
    dense = weights if not hasattr(weights, "toarray") else weights.toarray()
    order = [*network.regular.tolist(), *network.byzantine.tolist()]
    return torch.tensor(dense)[:, order]


def _split(network: Network, initial: Tensor) -> tuple[Tensor, Tensor]:
    if initial.dim() != 2 or len(initial) not in (network.n, len(network.regular)):
        raise RunError(
            f"initial has shape {tuple(initial.shape)}; one row for each of the {network.n} nodes, "
            f"or of the {len(network.regular)} regular ones, is needed"
        )
    if len(initial) == network.n:
        regular, byzantine = (torch.tensor(part, device=initial.device) for part in _parts(network))
        return initial[regular], initial[byzantine]
    return initial, initial.mean(0, keepdim=True).expand(len(network.byzantine), -1)


def _parts(network: Network) -> tuple[list[int], list[int]]:
    return network.regular.tolist(), network.byzantine.tolist()


def _measure(now: int, models: Tensor, target: Tensor) -> ConsensusRound:
    exact = models.double()
    return ConsensusRound(
        round=now,
        models=models,
        error=_mean_square(exact - target),
        consensus_distance=_mean_square(exact - exact.mean(0)),
    )


def _mean_square(differences: Tensor) -> float:
    return float(differences.square().sum(1).mean())
