"""A simulated run's config as a network of peers: who links to whom, and what all their configs share."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from clippedgossip.errors import ConfigError, counted
from clippedgossip.network import Network
from clippedgossip.network.schedule import survey
from clippedgossip.network.weights import rows_of
from clippedgossip.peer.peer_config import UNUSED, Config, check
from clippedgossip.peer.peer_mixing import rule_of
from clippedgossip.peer.round_neighbours import table_of
from clippedgossip.runs.config import RunConfig
from clippedgossip.settings import DataConfig, TrainingConfig
from clippedgossip.simulate.setup import groups_of, refuse_disconnected

T = TypeVar("T", DataConfig, TrainingConfig)
Edges = list[tuple[int, int]]


def peers_of(config: RunConfig, *, run: str) -> tuple[Edges, int, Config]:
    """Edges, number of nodes, and the template for `write_network`. Peers made of it train to the models that
    `simulate.train` gives, up to rounding: same shares, initial model, batches, steps and rule."""
    network = config.network.build()
    _refuse_byzantine(network)
    refuse_disconnected(network, config.training.rounds, config.seed)
    groups = groups_of(network, config.data.scheme(), list(range(network.n)))
    template = Config(
        name="template",
        run=run,
        seed=config.seed,
        data=_without(config.data.located(), "data"),
        model=config.model,
        training=_without(config.training, "training"),
        rule=config.rule.resolved(network, rounds=config.training.rounds, seed=config.seed),
        network=table_of(network, config.network.schedule),
        groups=None if groups is None else tuple(map(tuple, groups)),
        folder=config.rule.folder or Path(),
    )
    check(template)
    rule = rule_of(template)
    counts = set(network.degrees.tolist())
    if network.schedule is not None:
        counts = set(survey(network, config.training.rounds, config.seed).counts) - {0}
    for degree in counts:
        rule.check(degree)
    ends = zip(rows_of(network.indptr).tolist(), network.indices.tolist(), strict=True)
    return [(a, b) for a, b in ends if a < b], network.n, template


def _without(section: T, name: str) -> T:
    """A section with the keys that no peer uses at their defaults."""
    defaults: dict[str, Any] = {
        entry.name: entry.default for entry in fields(section) if entry.name in UNUSED[name]
    }
    return replace(section, **defaults)


def _refuse_byzantine(network: Network) -> None:
    if count := len(network.byzantine):
        raise ConfigError(
            f"the config has {counted(count, 'Byzantine node')}, and all peers are regular at first\n"
            "give 'network.byzantine=[]'; `peer up NET --misbehave 3=bit-flipping` makes a peer Byzantine"
        )
