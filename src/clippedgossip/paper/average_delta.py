"""Not in the paper: whether the worst δ_i or their average predicts the damage."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import networkx as nx
import numpy as np
import torch
from scipy.stats import spearmanr

from clippedgossip import graphs
from clippedgossip.graphs.generators import Graph
from clippedgossip.metrics import squared_distances
from clippedgossip.network import Network
from clippedgossip.paper.base import Experiment, Needs, Options, Progress
from clippedgossip.paper.many_networks import worst
from clippedgossip.report.claims import Claim, Floats, check
from clippedgossip.report.figures import Points, scatter
from clippedgossip.report.page import PagePart, Panels, Table
from clippedgossip.report.palette import styles
from clippedgossip.rules import Adaptive, ClippedGossip, Local, Oracle, Rule

BASES: Mapping[str, Graph] = {
    "ring": nx.cycle_graph(10),
    "torus": graphs.torus(),
    "hypercube": graphs.hypercube(),
    "dumbbell": graphs.dumbbell(clique=5),
    "random graph": nx.gnp_random_graph(12, 0.4, seed=3),
}
WORST, MEAN = 0.16, 0.04
EACH = 8  # networks of each family on each graph
ROUNDS = 50
DIM = 3
FAMILIES = ("equal δ_max", "equal average", "random")
MEASURES = ("δ_max", "average δ", "weighted average δ")
RULES: Mapping[str, Rule] = {
    "oracle": ClippedGossip(Oracle()),
    "adaptive, δ_max": ClippedGossip(Adaptive(delta_max=WORST)),
    "local": ClippedGossip(Local(faulty=1)),
}
OURS = "The paper believes that an average can replace δ_max; the bound is ours."


@dataclass(frozen=True, kw_only=True)
class DeltaCase:
    """One network, and what is left of Ξ and of the way to the average under its strongest attack."""

    seed: int
    base: str
    family: str
    gamma: float
    measures: Mapping[str, float]
    error: Mapping[str, float]
    """Mean squared distance to the average of the start, by that at the start; of each rule's radius."""
    attack: str


@dataclass(frozen=True)
class Damage:
    cases: list[DeltaCase]

    def correlation(self, measure: str, family: str | None = None, rule: str = "oracle") -> Floats:
        """Spearman's rank correlation with the error, of each seed: the mean over the graphs."""
        found = []
        for seed in sorted({case.seed for case in self.cases}):
            by_base = []
            for base in BASES:
                some = [
                    case
                    for case in self.cases
                    if (case.seed, case.base) == (seed, base) and family in (None, case.family)
                ]
                values = [case.measures[measure] for case in some]
                by_base.append(float(spearmanr(values, [case.error[rule] for case in some]).statistic))
            found.append(float(np.mean(by_base)))
        return np.array(found)


class AverageDelta(Experiment[Damage]):
    name = "average-delta"
    title = "Average δ or the worst"
    lead = (
        "Networks on five graphs. Byzantine neighbours take their weight δ_i from the self-weight of node i, "
        "so γ is the same for all networks on one graph. Some have equal δ_max and different averages, some "
        "the reverse, some are random. On each network, the attack that does the most harm counts."
    )
    section = "Average δ"

    def needs(self, options: Options) -> Needs[Damage]:
        return Needs(
            lambda progress: Damage(
                [case for seed in range(options.seed_count) for case in simulate(seed, EACH, progress)]
            )
        )

    def findings(self, result: Damage) -> Iterator[Claim]:
        average, worst_one = (result.correlation(measure) for measure in ("average δ", "δ_max"))
        yield check(
            "the average δ predicts the damage",
            average,
            "at least 0.7",
            note="Spearman's rank correlation with the error, over the networks of one graph, mean of graphs",
            source=OURS,
            digits=2,
        )
        yield check(
            "δ_max predicts the damage", worst_one, "at least 0.7", note="the same", source=OURS, digits=2
        )
        yield check(
            "the average predicts it better than δ_max",
            average - worst_one,
            "at least 0.05",
            note="difference of the two",
            source=OURS,
            digits=2,
        )
        yield check(
            "with equal δ_max, a larger average does more damage",
            result.correlation("average δ", FAMILIES[0]),
            "at least 0.7",
            note="Spearman's rank correlation",
            source=OURS,
            digits=2,
        )
        yield check(
            "with equal average, a larger δ_max does more damage",
            result.correlation("δ_max", FAMILIES[1]),
            "at least 0.7",
            note="Spearman's rank correlation; if this holds, the average alone is not enough",
            source=OURS,
            digits=2,
        )
        yield check(
            "weights from the slowest mode predict better than the plain average",
            result.correlation("weighted average δ") - average,
            "at least 0.05",
            note="δ_i weighted by the square of node i's entry in the Fiedler vector",
            source=OURS,
            digits=2,
        )
        yield check(
            "a radius from a node's own bound does less harm than one from δ_max",
            [
                float(np.exp(np.mean([np.log(c.error["local"] / c.error["adaptive, δ_max"]) for c in some])))
                for seed in sorted({case.seed for case in result.cases})
                for some in [[case for case in result.cases if case.seed == seed]]
            ],
            "at most 0.95 ×",
            note="error against that of the adaptive radius, geometric mean; `local` counts one neighbour",
            source=OURS,
            digits=2,
        )

    def figures(self, result: Damage) -> Mapping[str, PagePart]:
        looks = styles(FAMILIES)
        svgs = [
            scatter(
                [
                    Points(
                        name=family,
                        x=[case.measures[measure] for case in result.cases if case.family == family],
                        y=[case.error["oracle"] for case in result.cases if case.family == family],
                    )
                    for family in FAMILIES
                ],
                x_label=measure,
                y_label="error at the end / at the start",
                x_scale="linear",
                looks=looks,
                legend=False,
                size=(4.2, 3.0),
            )
            for measure in MEASURES
        ]
        words = f"Each point is one of {len(result.cases)} networks under its strongest attack."
        return {"What predicts the damage": Panels(svgs, words, looks)}

    def rows(self, result: Damage) -> list[dict[str, Any]]:
        return [
            {
                "seed": case.seed,
                "graph": case.base,
                "family": case.family,
                "gamma": case.gamma,
                **case.measures,
                "error": dict(case.error),
                "attack": case.attack,
            }
            for case in result.cases
        ]

    def table(self, result: Damage) -> Table:
        constant = {("δ_max", FAMILIES[0]), ("average δ", FAMILIES[1])}
        rows = [
            [
                measure,
                *(
                    ""
                    if (measure, family) in constant
                    else f"{result.correlation(measure, family).mean():.2f}"
                    for family in (*FAMILIES, None)
                ),
            ]
            for measure in MEASURES
        ]
        title = f"Spearman's rank correlation with the damage, {len(result.cases)} networks, oracle radius"
        return Table(["measure", *FAMILIES, "all"], rows, title)


def simulate(seed: int, each: int, progress: Progress = lambda label, done, total: None) -> list[DeltaCase]:
    """`each` networks of every family on every graph."""
    draws = np.random.default_rng(seed)
    made: list[tuple[str, str, Network]] = [
        (base, family, with_deltas(graph, _deltas(len(graph), family, draws)))
        for base, graph in BASES.items()
        for family in FAMILIES
        for _ in range(each)
    ]
    networks = [network for *_, network in made]
    sides = {base: draws.normal(size=(len(graph), DIM)) for base, graph in BASES.items()}
    starts = [torch.as_tensor(sides[base]) for base, *_ in made]
    centres = [start.mean(0) for start in starts]
    first = np.array([float(squared_distances(start).mean()) for start in starts])
    outcomes = {
        name: worst(
            networks,
            rule,
            starts,
            ROUNDS,
            lambda number, models: float(squared_distances(models, centres[number]).mean()),
            lambda label, done, total: progress(f"seed {seed}, {name}, {label}", done, total),  # noqa: B023  # called before the next name
        )
        for name, rule in RULES.items()
    }
    return [
        DeltaCase(
            seed=seed,
            base=base,
            family=family,
            gamma=network.spectral_gap,
            measures=dict(zip(MEASURES, _measures(network), strict=True)),
            error={name: float(found.harm[k] / first[k]) for name, found in outcomes.items()},
            attack=outcomes["oracle"].attack[k],
        )
        for k, (base, family, network) in enumerate(made)
    ]


def with_deltas(graph: Graph, deltas: Floats) -> Network:
    """Lazy Metropolis–Hastings weights; node i gets a Byzantine neighbour of weight δ_i, which is taken from
    its self-weight. W̃ and γ do not depend on δ."""
    weighted = Network(nx.convert_node_labels_to_integers(graph), weights="lazy").to_networkx()
    for node, delta in enumerate(deltas.tolist()):
        if delta > 0:
            weighted.add_node(("byzantine", node), byzantine=True)
            weighted.add_edge(node, ("byzantine", node), weight=delta)
    return Network(weighted)


def _deltas(n: int, family: str, draws: np.random.Generator) -> Floats:
    """δ_i of each node."""
    if family == "equal δ_max":
        found = np.zeros(n)
        found[: draws.integers(1, n + 1)] = WORST
    elif family == "equal average":
        count = int(draws.integers(ceil(n * MEAN / WORST), n + 1))
        found = np.zeros(n)
        found[:count] = n * MEAN / count
    else:
        found = WORST * draws.random(n) * (draws.random(n) < draws.random())
        found[0] = WORST * draws.random()
    return np.asarray(draws.permutation(found))


def _measures(network: Network) -> tuple[float, float, float]:
    mode = network.gap.fiedler
    assert mode is not None
    return network.delta_max, float(network.delta.mean()), float(np.average(network.delta, weights=mode**2))


EXPERIMENT = AverageDelta()
