"""From a config to everything a training run is made of."""

from clippedgossip.attacks import Attack
from clippedgossip.errors import ConfigError
from clippedgossip.network import Network
from clippedgossip.runs.config import RunConfig
from clippedgossip.simulate.setup import Setup
from clippedgossip.tasks import FlipLabels, Task, make_task, partition
from clippedgossip.tasks.datasets import load_part


def build(config: RunConfig) -> Setup:
    """The setup of a run: network, task, rule, attack."""
    network = config.network.build()
    attack = None if config.attack is None else config.attack.build()
    if attack is None and len(network.byzantine):
        raise ConfigError(
            f"the network has {len(network.byzantine)} Byzantine nodes, but there is no [attack]\n"
            'add one, such as name = "dissensus", or name = "none" for nodes that behave'
        )
    return Setup(
        network=network,
        task=_task(config, network, attack),
        rule=config.rule.build(network),
        attack=attack,
        training=config.training.build(),
        seed=config.seed,
    )


def _task(config: RunConfig, network: Network, attack: Attack | None) -> Task:
    """The regular nodes share the data; so do the Byzantine ones if they train."""
    wanted = config.data
    data = load_part(wanted.name, wanted.root, wanted.samples, wanted.test_samples)
    regular, byzantine = network.regular.tolist(), network.byzantine.tolist()
    training = [*regular, *byzantine] if attack is not None and attack.trains else regular
    holders = [*regular, *byzantine] if config.data.byzantine_share else training
    holders = regular if config.data.byzantine_copies else holders
    shares = partition(
        data.train_y,
        len(holders),
        config.data.partition,
        seed=config.seed,
        groups=clique_places(network, holders) if config.data.partition == "clique" else None,
        alpha=0.5 if config.data.alpha is None else config.data.alpha,
        classes=data.classes,
    )
    copies = [shares[regular.index(_victim(network, node))] for node in training[len(holders) :]]
    flips = attack is not None and attack.flips_labels
    return make_task(
        data,
        [*shares, *copies][: len(training)],
        config.model.name,
        seed=config.seed,
        batch=config.training.batch,
        nodes=training,
        augment=config.data.augment,
        poison=FlipLabels(classes=data.classes) if flips else None,
        poisoned=byzantine if flips else (),
    )


def _victim(network: Network, node: int) -> int:
    """The first regular neighbour; for a node that has none, the first regular node."""
    around = network.indices[network.indptr[node] : network.indptr[node + 1]].tolist()
    lies = set(network.byzantine.tolist())
    return next((other for other in around if other not in lies), int(network.regular[0]))


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
