"""A simulated run's config as a network of peers: who links to whom, and what all their configs share."""

from dataclasses import fields
from typing import Any

from clippedgossip.decode import plain_of
from clippedgossip.errors import ConfigError
from clippedgossip.network import Network
from clippedgossip.network.weights import rows_of
from clippedgossip.peer.peer_config import Config, Training
from clippedgossip.peer.peer_mixing import rule_of
from clippedgossip.runs.config import RunConfig
from clippedgossip.settings import TrainingConfig
from clippedgossip.simulate.network_task import clique_places

Edges = list[tuple[int, int]]


def peers_of(config: RunConfig, *, run: str) -> tuple[Edges, int, Config]:
    """Edges, number of nodes, and the template for `write_network`. Peers made of it train to the models that
    `simulate.train` gives, up to rounding: same shares, initial model, batches, steps and rule."""
    network = config.network.build()
    _refuse_what_peers_lack(config, network)
    template = Config(
        name="template",
        run=run,
        rounds=config.training.rounds,
        seed=config.seed,
        evaluate_every=config.training.evaluate_every,
        task=_task(config, network),
        training=_training(config.training),
        rule=plain_of(config.rule.build(network)),
    )
    rule = rule_of(template)
    for degree in set(network.degrees.tolist()):
        rule.check(degree)
    ends = zip(rows_of(network.indptr).tolist(), network.indices.tolist(), strict=True)
    return [(a, b) for a, b in ends if a < b], network.n, template


def _refuse_what_peers_lack(config: RunConfig, network: Network) -> None:
    if len(network.byzantine) or config.attack is not None:
        raise ConfigError(
            "the config has Byzantine nodes or an [attack]; drop both, all peers are regular at first\n"
            "`clippedgossip peer up NET --misbehave 3=bit-flipping` makes one of them Byzantine"
        )
    if network.weighting != "metropolis-hastings":
        raise ConfigError(
            f"network.weights is {network.weighting!r}; peers agree on metropolis-hastings alone, from the "
            "degrees they exchange"
        )
    if config.training.precision != "float32":
        raise ConfigError(f"training.precision is {config.training.precision!r}; peers have float32 alone")


def _task(config: RunConfig, network: Network) -> dict[str, Any]:
    data = config.data
    chosen: dict[str, Any] = {
        "name": data.name,
        "root": data.root,
        "model": config.model.name,
        "partition": data.partition,
        "alpha": data.alpha,
        "samples": data.samples,
        "test_samples": data.test_samples,
        "augment": data.augment or None,
    }
    if data.partition == "clique":
        chosen["groups"] = clique_places(network, list(range(network.n)))
    return {key: value for key, value in chosen.items() if value is not None}


def _training(training: TrainingConfig) -> Training:
    return Training(**{field.name: getattr(training, field.name) for field in fields(Training)})
