"""Whom a peer hears in each round, where that is not always all of its neighbours, and by what weights."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from clippedgossip import decode
from clippedgossip.decode import KeyProblem, Thing
from clippedgossip.errors import ConfigError, NetworkError
from clippedgossip.files import canonical
from clippedgossip.network import Network
from clippedgossip.network.schedule import SCHEDULE, EdgeFile, survey
from clippedgossip.peer.peer_config import Config

KEYS = ("edges", "weights", "schedule")


class RoundNeighbours:
    """A peer's file describes the whole network: `[network]` has its edges (with their weights, where these
    do not follow from the degrees) and the schedule. All peers of a run have the same, but for links that
    change while members come or go.
    """

    def __init__(self, config: Config) -> None:
        self.network, self.seed, self.node = network_of(config), config.seed, config.node

    def weights(self, round: int) -> dict[str, float]:
        """The weight of each peer that this one hears in a round, by name."""
        now = self.network.at(round, self.seed)
        assert self.node is not None
        row = slice(now.indptr[self.node], now.indptr[self.node + 1])
        return {str(j): float(w) for j, w in zip(now.indices[row], now.edge_weights()[row], strict=True)}

    def listeners(self, round: int) -> set[str]:
        """Who hears this peer in a round."""
        now = self.network.at(round, self.seed)
        rows = np.searchsorted(now.indptr, np.flatnonzero(now.indices == self.node), side="right") - 1
        return {str(row) for row in rows.tolist()}

    def counts(self, rounds: int) -> set[int]:
        """How many neighbours a node may have in a round."""
        return set(survey(self.network, rounds, self.seed).counts) - {0}


def network_of(config: Config) -> Network:
    """The network that a peer's file describes."""
    said = config.network
    try:
        decode.known_keys(said, KEYS, ("network",))
        if config.node is None:
            raise KeyProblem(
                ("node",), "[network] is given, but not node\nsay which of its nodes this peer is"
            )
        graph = nx.empty_graph(config.nodes)
        for edge in said.get("edges", ()):
            a, b, *weight = edge
            graph.add_edge(int(a), int(b), **({"weight": float(weight[0])} if weight else {}))
        if len(graph) != config.nodes:
            last = config.nodes - 1
            raise KeyProblem(
                ("network", "edges"), f"network.edges names other nodes than 0 to {last}; drop them"
            )
        thing = schedule_thing(said, config.folder)
        schedule = None if thing is None else thing.build(offered={"folder": config.folder})
        return Network(graph, weights=said.get("weights"), schedule=schedule)
    except NetworkError as error:
        raise KeyProblem(("network",), f"[network] {error}") from error
    except (TypeError, ValueError) as error:
        raise KeyProblem(
            ("network", "edges"), f"network.edges is not a list of links ({error})\nwrite [[0, 1], [1, 2]]"
        ) from error


def schedule_thing(said: Mapping[str, Any], folder: Path | None) -> Thing | None:
    """The schedule of a `[network]` table."""
    schedule = said.get("schedule")
    return None if schedule is None else decode.decode(SCHEDULE, schedule, ("network", "schedule"), folder)


def table_of(network: Network, schedule: Mapping[str, Any] | str | None) -> dict[str, Any]:
    """The `[network]` table of a peer's file; empty where degrees say all. A file of links becomes phases."""
    if network.delay is not None:
        raise ConfigError(
            "network.delay makes messages late in the simulator; those of peers are late by themselves\n"
            "drop network.delay"
        )
    if network.schedule is None and network.weighting == "metropolis-hastings":
        return {}
    rows = np.repeat(np.arange(network.n), np.diff(network.indptr)).tolist()
    entries = zip(rows, network.indices.tolist(), network.edge_weights().tolist(), strict=True)
    own = network.fixed_weights
    edges = [[a, b, weight] if own else [a, b] for a, b, weight in entries if a < b]
    if isinstance(network.schedule, EdgeFile):
        schedule = {"name": "phases", "phases": network.schedule.phases()}
    table: dict[str, Any] = {"edges": edges, "weights": "own" if own else network.weighting}
    return table if schedule is None else table | {"schedule": schedule}


def describe_network(config: Config) -> str:
    """For hello: peers whose schedules or kinds of weights differ refuse each other. The links are not
    compared: members that come or go change them, in each file at another time."""
    if not config.network:
        return ""
    thing = schedule_thing(config.network, config.folder)
    said = {"weights": config.network.get("weights"), "schedule": None if thing is None else thing.plain()}
    name = "static" if thing is None else thing.name
    return f" network={name},{hashlib.sha256(canonical(said).encode()).hexdigest()[:16]}"
