"""Not in the paper: the components that an audit predicts, held against runs on many small networks."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from clippedgossip.audit.components import Components, expected, guaranteed
from clippedgossip.metrics import components, pair_distances
from clippedgossip.mixing.kernels import squared_distances
from clippedgossip.network import Network
from clippedgossip.paper.many_networks import Cases, ManyNetworks, NetworkCase, by_seed, worst
from clippedgossip.report.claims import Claim, Floats, check
from clippedgossip.report.figures import Points, scatter
from clippedgossip.report.page import Cell, Figure, PagePart, Table
from clippedgossip.rules import ClippedGossip, Oracle

NETWORKS = 80  # of each seed
ROUNDS = 200
DIM = 4
NEAR = 0.05  # of the root of Ξ, at the start or at the end, whichever is larger
FLOOR = 1e-12  # smaller distances are drawn here


@dataclass(frozen=True, kw_only=True)
class ComponentCase(NetworkCase):
    """The components predicted and seen, as a number for each regular node."""

    gamma: float
    delta_max: float
    guaranteed: list[int]
    expected: list[int]
    seen: list[int]
    left: float
    """Ξ after the last round by Ξ at the start."""
    attack: str

    @property
    def ratio(self) -> float:
        """δ_max/γ²."""
        return self.delta_max / self.gamma**2 if self.gamma**2 > 0 else np.inf

    @property
    def told(self) -> bool:
        """Whether one component is expected and seen, or several are."""
        return (max(self.expected) == 0) == (max(self.seen) == 0)


class BlockedComponents(ManyNetworks[ComponentCase]):
    name = "components"
    title = "Components behind Byzantine nodes"
    lead = f"""Small random networks of one to three groups, each with one to three Byzantine nodes, some of
    them between the groups. Groups start from different vectors. ClippedGossip with the oracle radius mixes
    for {ROUNDS} rounds. On each network, the attack that leaves the nodes furthest apart counts."""
    section = "Components"
    source = "The conjecture is the paper's; the criterion and the bound are ours."
    case = ComponentCase

    def simulate(self, seed: int) -> list[ComponentCase]:
        return simulate(seed, NETWORKS)

    def findings(self, result: Cases[ComponentCase]) -> Iterator[Claim]:
        seeds = by_seed(result)
        yield check(
            "where a cut is blocked, not all regular nodes agree",
            [_share(max(case.seen) > 0 for case in cases if max(case.expected) > 0) for cases in seeds],
            "at least 95 %",
            note="networks where several components are expected",
        )
        yield check(
            "nodes expected together stay together",
            [_pairs(cases, together=True) for cases in seeds],
            "at least 90 %",
            note="pairs of nodes expected together that are together",
        )
        yield check(
            "nodes expected apart are apart",
            [_pairs(cases, together=False) for cases in seeds],
            "at least 90 %",
            note="pairs of nodes expected apart that are apart",
        )
        yield check(
            "the criterion tells whether all agree",
            [_share(case.told for case in cases) for cases in seeds],
            "at least 85 %",
            note="networks where one component is expected and seen, or several are",
        )
        yield check(
            "the components seen are those expected, node by node",
            [_share(case.expected == case.seen for case in cases) for cases in seeds],
            "at least 75 %",
            note="networks",
        )
        yield check(
            "the criterion tells it better than δ_max/γ² with the best threshold",
            [_share(case.told for case in cases) - _best_threshold(cases) for cases in seeds],
            "at least 0 points",
            note="share of networks; the threshold is chosen afterwards, on the same networks",
        )

    def figures(self, result: Cases[ComponentCase]) -> Mapping[str, PagePart]:
        clouds = [
            Points(name=name, x=[case.ratio for case in chosen], y=[max(case.left, FLOOR) for case in chosen])
            for name, one in (("one component expected", True), ("several expected", False))
            if (chosen := [c for c in result if (max(c.expected) == 0) is one and 0 < c.ratio < np.inf])
        ]
        svg = scatter(clouds, x_label="δ_max / γ²", y_label="Ξ at the end / at the start")
        caption = (
            "Each point is a connected network with Byzantine neighbours. δ_max/γ² does not tell whether the "
            f"regular nodes agree; the cut criterion mostly does. Values below {FLOOR:g} are drawn there."
        )
        return {"Prediction and outcome": Figure(svg, caption)}

    def table(self, result: Cases[ComponentCase]) -> Table:
        counts = Counter((max(case.expected) == 0, max(case.seen) == 0) for case in result)
        rows: list[list[Cell]] = [
            [name, counts[one, True], counts[one, False]]
            for name, one in (("one expected", True), ("several expected", False))
        ]
        return Table(["components", "one seen", "several seen"], rows, f"{len(result)} networks")


def simulate(seed: int, count: int) -> list[ComponentCase]:
    """So many random networks, each under its strongest attack."""
    draws = np.random.default_rng(seed)
    made = [_network(draws) for _ in range(count)]
    networks, starts = [network for network, _ in made], [start for _, start in made]
    first = np.array([float(squared_distances(start).mean()) for start in starts])

    def apart(number: int, models: Tensor) -> float:
        return float(squared_distances(models).mean())

    found = worst(networks, ClippedGossip(Oracle()), starts, ROUNDS, apart)
    ends = zip(networks, found.models, found.harm, first, found.attack, strict=True)
    cases = []
    for network, models, harm, start, attack in ends:
        near = NEAR * max(float(start), float(harm)) ** 0.5
        parts = components(pair_distances(models)[:, :-1], near=near).parts
        cases.append(
            ComponentCase(
                seed=seed,
                gamma=network.spectral_gap,
                delta_max=network.delta_max,
                guaranteed=_numbers(network, guaranteed(network)),
                expected=_numbers(network, expected(network)),
                seen=_numbered(len(models), parts),
                left=float(harm / start),
                attack=attack,
            )
        )
    return cases


def _network(draws: np.random.Generator) -> tuple[Network, Tensor]:
    """Groups in a row, some edges between them, and Byzantine nodes: some in a group, some beside a node."""
    while True:
        graph: nx.Graph[int] = nx.Graph()
        groups: list[list[int]] = []
        for _ in range(draws.integers(1, 4)):
            nodes = [graph.number_of_nodes() + k for k in range(draws.integers(3, 6))]
            groups.append(nodes)
            nx.add_path(graph, nodes)
            graph.add_edges_from(
                (i, j) for i in nodes for j in nodes if i < j and draws.random() < draws.choice([0.6, 1.0])
            )
        for one, other in pairwise(groups):
            for _ in range(draws.integers(1, 5)):
                graph.add_edge(int(draws.choice(one)), int(draws.choice(other)))
        members = graph.number_of_nodes()
        byzantine: set[int] = set()
        for _ in range(draws.integers(1, 4)):
            node = int(draws.integers(members))
            if draws.random() < 0.6:
                byzantine.add(graph.number_of_nodes())
                graph.add_edge(node, graph.number_of_nodes())
            else:
                byzantine.add(node)
        regular = [node for node in range(members) if node not in byzantine]
        network = Network(graph, byzantine=sorted(byzantine))
        if len(regular) > 2 and network.delta_max > 0:
            break
    centres = 3 * draws.normal(size=(len(groups), DIM))
    group = {node: number for number, nodes in enumerate(groups) for node in nodes}
    labels = [int(str(network.labels[i])) for i in network.regular]
    start = centres[[group[label] for label in labels]] + draws.normal(size=(len(labels), DIM))
    return network, torch.as_tensor(start)


def _numbers(network: Network, found: Components) -> list[int]:
    row = {int(node): place for place, node in enumerate(network.regular)}
    return _numbered(len(row), [[row[int(node)] for node in part] for part in found.parts])


def _numbered(count: int, parts: list[list[int]]) -> list[int]:
    """The number of each node's part; parts are numbered by their first nodes."""
    numbers = [0] * count
    for number, part in enumerate(sorted(parts, key=min)):
        for row in part:
            numbers[row] = number
    return numbers


def _pairs(cases: list[ComponentCase], *, together: bool) -> float:
    """Of the pairs of nodes predicted to be together, or apart, the share that is."""
    right = total = 0
    for case in cases:
        said, seen = np.array(case.expected), np.array(case.seen)
        pairs = np.triu((said[:, None] == said) == together, 1)
        total += int(pairs.sum())
        right += int((pairs & ((seen[:, None] == seen) == together)).sum())
    return right / total if total else float("nan")


def _share(true: Iterable[bool]) -> float:
    """NaN of none."""
    found = list(true)
    return float(np.mean(found)) if found else float("nan")


def _best_threshold(cases: list[ComponentCase]) -> float:
    """The share of networks that the best threshold on δ_max/γ² tells right."""
    ratios: Floats = np.array([case.ratio for case in cases])
    agreed = np.array([max(case.seen) == 0 for case in cases])
    return max(float(np.mean((ratios <= limit) == agreed)) for limit in (0.0, *ratios))
