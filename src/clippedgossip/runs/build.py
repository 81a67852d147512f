"""From a config to everything a training run is made of."""

from clippedgossip.errors import ConfigError
from clippedgossip.runs.config import RunConfig
from clippedgossip.simulate.network_task import network_task
from clippedgossip.simulate.setup import Setup


def build(config: RunConfig) -> Setup:
    """The setup of a run: network, task, rule, attack."""
    network = config.network.build()
    attack = None if config.attack is None else config.attack.build()
    if attack is None and len(network.byzantine):
        raise ConfigError(
            f"the network has {len(network.byzantine)} Byzantine nodes, but there is no [attack]\n"
            'add one, such as name = "dissensus", or name = "none" for nodes that behave'
        )
    wanted = config.data
    data = wanted.load()
    task = network_task(
        network,
        data,
        config.model.build(data.shape, data.classes, seed=config.seed),
        attack=attack,
        partition=wanted.scheme(),
        alpha=wanted.alpha,
        byzantine_share=wanted.byzantine_share,
        byzantine_copies=wanted.byzantine_copies,
        seed=config.seed,
        batch=config.training.batch,
        augment=wanted.augment,
        poison=wanted.build_poison(data.classes),
    )
    return Setup(
        network=network,
        task=task,
        rule=config.rule.build(network),
        attack=attack,
        training=config.training.build(),
        seed=config.seed,
    )
