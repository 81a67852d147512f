"""Robust consensus: every regular node holds a vector, and mixing should bring all vectors to their mean."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from clippedgossip.attacks import Attack, Silence, View
from clippedgossip.devices import free_memory, usual_modes
from clippedgossip.errors import RunError
from clippedgossip.mixing.inbox import Context
from clippedgossip.mixing.kernels import mean_model, squared_distances
from clippedgossip.mixing.slots import RoundLayouts
from clippedgossip.network import Network
from clippedgossip.rules import Rule
from clippedgossip.rules.base import whole
from clippedgossip.settings import AttackConfig, RuleConfig, must_be
from clippedgossip.simulate.engine import byzantine_rows
from clippedgossip.simulate.setup import checked_counts, refuse_disconnected, refuse_late


@dataclass(frozen=True, eq=False)
class ConsensusRound:
    """The state after a round; round 0 is the start."""

    round: int
    models: Tensor = field(repr=False)  # (r, d) of the regular nodes
    error: float  # mean squared distance to the regular nodes' average at the start
    consensus_distance: float  # Ξ: the same to their average now


def consensus(
    network: Network,
    rule: Rule | str | Mapping[str, Any],
    initial: Tensor,
    *,
    attack: Attack | str | Mapping[str, Any] | None = None,
    rounds: int = 100,
    seed: int = 0,
) -> Iterator[ConsensusRound]:
    """Start from `initial`, (n, d) or (regular, d), and mix. Without an attack Byzantine nodes are silent.
    Rule and attack are objects, or the words that a config uses."""
    if isinstance(rule, str | Mapping):
        rule = RuleConfig.from_value(rule).build(network, rounds=rounds, seed=seed)
    if isinstance(attack, str | Mapping):
        attack = AttackConfig.from_value(attack).build()
    must_be("rule", rule, Rule, "rules.ClippedGossip()")
    must_be("initial", initial, Tensor, "torch.randn(10, 3)")
    whole("rounds", rounds, 0)
    whole("seed", seed, 0)
    if attack is not None:
        must_be("attack", attack, Attack, "attacks.Dissensus()")
    refuse_disconnected(network, rounds, seed)
    for kind, needs, there in (
        ("rule", "losses", rule.needs_losses),
        ("attack", "labels", attack is not None and attack.flips_labels and len(network.byzantine)),
    ):
        if there:
            raise RunError(
                f"the {kind} needs {needs}, and consensus trains nothing\n"
                f"take another {kind} here, or train with this one: `cg.train` or `clippedgossip run`"
            )
    counts = checked_counts(network, rule, rounds, seed)
    states = trajectory(network, rule, initial, attack=attack, rounds=rounds, seed=seed)
    rule.warn(min(counts, default=0))
    return _measured(states)


def trajectory(
    network: Network,
    rule: Rule,
    initial: Tensor,
    *,
    attack: Attack | None = None,
    rounds: int = 100,
    seed: int = 0,
) -> Iterator[Tensor]:
    """The regular nodes' models, (r, d), at the start and after each round; connected or not."""
    layouts = RoundLayouts(network, seed, initial.device)
    models, shadows = _split(network, initial.detach())
    refuse_late(network, models.shape[1], free_memory(models.device), models.element_size())
    attack = attack or Silence()

    def states(models: Tensor, shadows: Tensor) -> Iterator[Tensor]:
        yield models
        follow = byzantine_rows(network.at(0, seed), models) if attack.trains else None
        sent = models.new_zeros(layouts.kept, *models.shape)
        memory = models.new_zeros(attack.memory, models.shape[1]) if attack.memory else None
        for now in range(rounds):
            with usual_modes():
                if follow is not None and network.schedule is not None:
                    follow = byzantine_rows(network.at(now, seed), models)
                view = View(
                    network=network,
                    layout=layouts.at(now),
                    models=models,
                    rule=rule,
                    context=Context(round=now, rounds=rounds, seed=seed),
                    byzantine_models=shadows,
                    memory=memory,
                )
                inbox = attack.received(view)
                if len(sent):
                    inbox = inbox.with_late(sent)
                    sent[now % len(sent)] = models
                if follow is not None:
                    shadows = follow @ torch.cat([models, shadows])
                models = rule.mix(inbox)
            yield models

    return states(models, shadows)


def _split(network: Network, initial: Tensor) -> tuple[Tensor, Tensor]:
    if initial.dim() != 2 or len(initial) not in (network.n, len(network.regular)):
        raise RunError(
            f"initial has shape {tuple(initial.shape)}; one row for each of the {network.n} nodes, "
            f"or of the {len(network.regular)} regular ones, is needed"
        )
    if not initial.is_floating_point() or not bool(torch.isfinite(initial).all()):
        found = "has NaN or infinite numbers" if initial.is_floating_point() else f"is {initial.dtype}"
        raise RunError(f"initial {found}\ngive finite floating-point numbers")
    if len(initial) == network.n:
        return initial[network.regular.tolist()], initial[network.byzantine.tolist()]
    return initial, mean_model(initial).expand(len(network.byzantine), -1)


def _measured(states: Iterator[Tensor]) -> Iterator[ConsensusRound]:
    target: Tensor | None = None
    for now, models in enumerate(states):
        exact = models.double()
        target = exact.mean(0) if target is None else target
        yield ConsensusRound(
            round=now,
            models=models,
            error=float(squared_distances(exact, target).mean()),
            consensus_distance=float(squared_distances(exact).mean()),
        )
