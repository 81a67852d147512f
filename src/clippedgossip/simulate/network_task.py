"""A network's task: the nodes that train share the data."""

from collections.abc import Hashable, Mapping, Sequence

import numpy as np
from torch import Tensor, nn

from clippedgossip.attacks import Attack
from clippedgossip.errors import ConfigError, DataError
from clippedgossip.network import Network
from clippedgossip.tasks import DataSet, FlipLabels, Task, make_task
from clippedgossip.tasks import partition as share_out
from clippedgossip.tasks.datasets import Data
from clippedgossip.tasks.module_checks import Loss
from clippedgossip.tasks.partitions import Scheme
from clippedgossip.tasks.poison import Poison

Shares = Data | Sequence[Data | Sequence[int]] | Mapping[Hashable, Data | Sequence[int]]
"""The rows of each node that trains: in the order of the nodes, or by their labels."""


def network_task(
    network: Network,
    data: DataSet,
    model: str | nn.Module,
    *,
    attack: Attack | None = None,
    partition: str | Scheme | Shares = "iid",
    alpha: float | None = None,
    byzantine_share: bool = False,
    byzantine_copies: bool = False,
    seed: int,
    batch: int = 32,
    loss: str | Loss | None = None,
    augment: bool = False,
    poison: Poison | None = None,
) -> Task:
    """The regular nodes share the data. Byzantine nodes share it too if the attack has them train.

    With `byzantine_share` Byzantine nodes hold a share even if they do not train on it. With
    `byzantine_copies` those that train hold a copy of a regular neighbour's share. Those that train do so on
    batches that went through `poison`.
    """
    regular, byzantine = network.regular.tolist(), network.byzantine.tolist()
    trains = attack is not None and attack.trains
    training = [*regular, *byzantine] if trains else regular
    if isinstance(partition, str) or callable(partition):
        holders = [*regular, *byzantine] if byzantine_share else training
        holders = regular if byzantine_copies else holders
        shares = share_out(
            data.train_y,
            len(holders),
            partition,
            seed=seed,
            groups=clique_places(network, holders) if partition == "clique" else None,
            alpha=0.5 if alpha is None else alpha,
            classes=data.classes,
        )
        copies = [shares[regular.index(_victim(network, node))] for node in training[len(holders) :]]
        held: Sequence[Data | Sequence[int]] = [*shares, *copies][: len(training)]
    else:
        held = _given(network, training, partition)
    if poison is not None and not trains:
        named = "there is no attack" if attack is None else f"under {type(attack).__name__} they do not"
        raise ConfigError(
            f"data.poison is for Byzantine nodes that train, and {named}\n"
            'take an attack that trains, such as "none": they follow the protocol on poisoned data'
        )
    if attack is not None and attack.flips_labels:
        if poison is not None:
            raise ConfigError(
                f"{type(attack).__name__} is a poison already; drop data.poison\n"
                'or take the attack "none", which trains on what data.poison makes'
            )
        poison = FlipLabels(classes=data.classes)
    return make_task(
        data,
        held,
        model,
        seed=seed,
        batch=batch,
        loss=loss,
        nodes=training,
        augment=augment,
        poison=poison,
        poisoned=byzantine if poison is not None else (),
    )


def _given(network: Network, training: Sequence[int], shares: Shares) -> Sequence[Data | Sequence[int]]:
    """The user's own shares, one for each node that trains, none of them empty."""
    if not isinstance(shares, Mapping | Sequence | np.ndarray | Tensor):
        raise DataError(
            f"partition is {shares!r}\ngive a name such as 'iid', or a list with the rows of each node"
        )
    labels = [network.labels[node] for node in training]
    listed = ", ".join(map(str, labels[:12])) + (", …" if len(labels) > 12 else "")
    if isinstance(shares, Mapping):
        for label in [*shares, *labels]:
            if label not in shares or label not in labels:
                what = "does not train" if label in shares else "has no share"
                raise DataError(f"node {label!r} {what}\ngive one share to each of {listed}")
        held = [shares[label] for label in labels]
    else:
        held = list(shares)
        if len(held) != len(labels):
            raise DataError(
                f"partition has {len(held)} shares, but {len(labels)} nodes train\n"
                f"give one share to each of {listed}"
            )
    for label, share in zip(labels, held, strict=True):
        if not len(share):
            raise DataError(f"node {label!r} holds no samples\ngive every node that trains at least one")
    return held


def _victim(network: Network, node: int) -> int:
    """The first regular neighbour; for a node that has none, the first regular node."""
    around = network.indices[network.indptr[node] : network.indptr[node + 1]].tolist()
    byzantine = set(network.byzantine.tolist())
    return next((other for other in around if other not in byzantine), int(network.regular[0]))


def clique_places(network: Network, holders: list[int]) -> list[list[int]]:
    """Places in `holders`, clique by clique; who is in none joins the one most of its neighbours are in."""
    if not network.groups:
        raise ConfigError(
            "partition 'clique' needs a network with groups, such as 'dumbbell'; a file names them in the "
            "'group' attribute of its nodes"
        )
    names = list(network.groups)
    member = {int(node): place for place, name in enumerate(names) for node in network.groups[name]}
    while lost := [node for node in holders if node not in member]:
        near = {node: _nearest(network, node, member, len(names)) for node in lost}
        found = {node: group for node, group in near.items() if group is not None}
        member |= found or dict.fromkeys(lost, 0)
    return [
        [place for place, node in enumerate(holders) if member[node] == group] for group in range(len(names))
    ]


def _nearest(network: Network, node: int, member: dict[int, int], groups: int) -> int | None:
    around = network.indices[network.indptr[node] : network.indptr[node + 1]].tolist()
    votes = [sum(member.get(other) == group for other in around) for group in range(groups)]
    return votes.index(max(votes)) if any(votes) else None
