"""What several tests take as their example: a rule of every name, and a run of a few nodes."""

from dataclasses import fields
from typing import Any

import networkx as nx
from torch import Tensor, nn

from clippedgossip.attacks import Attack
from clippedgossip.network import Network
from clippedgossip.rules import RULES, GeometricMedian, Rule, make_rule
from clippedgossip.simulate import Setup, Training
from clippedgossip.tasks import DataSet, FlipLabels, make_task, partition


def loss(models: Tensor) -> Tensor:
    """Any function of the models: here, how far they are from a point that turns with no basis."""
    return models.double().square().sum(-1)


BY_NAME: dict[str, Any] = {
    "faulty": 1,
    "trim": 1,
    "byzantine_weight": 0.12,
    "rule": GeometricMedian(),
    "loss": loss,
}
EXCEPT: dict[str, dict[str, Any]] = {"weighted-trimmed-mean": {"trim": 0.15}}


def sample_rule(name: str) -> Rule:
    """The rule of this name, on nodes with six neighbours or so."""
    asked = {field.name for field in fields(RULES[name])}
    return make_rule(
        name, **{key: value for key, value in BY_NAME.items() if key in asked} | EXCEPT.get(name, {})
    )


def sample_setup(
    data: DataSet,
    rule: Rule,
    attack: Attack | None,
    training: Training,
    *,
    network: Network | None = None,
    model: str | nn.Module = "linear",
    seed: int = 0,
) -> Setup:
    """A run on seven nodes, two of them Byzantine if there is an attack; or on another network."""
    if network is None:
        network = Network(nx.circulant_graph(7, [1, 2]), byzantine=[2, 5] if attack else [])
    byzantine = network.byzantine.tolist()
    nodes = network.regular.tolist() + (byzantine if attack and attack.trains else [])
    poisoned = byzantine if attack and attack.flips_labels else []
    task = make_task(
        data,
        partition(data.train_y, len(nodes), "iid", seed=seed),
        model,
        seed=seed,
        batch=4,
        nodes=nodes,
        poison=FlipLabels(classes=3) if poisoned else None,
        poisoned=poisoned,
    )
    return Setup(network=network, task=task, rule=rule, attack=attack, training=training, seed=seed)
