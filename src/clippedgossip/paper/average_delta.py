"""Not in the paper: whether the worst δ_i or their average predicts the damage."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import networkx as nx
import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

from clippedgossip import graphs
from clippedgossip.attacks import ALIE, Attack, Dissensus, SpectralHeterogeneity
from clippedgossip.graphs.generators import Graph
from clippedgossip.mixing.kernels import squared_distances
from clippedgossip.network import Network
from clippedgossip.paper.many_networks import Cases, ManyNetworks, NetworkCase, by_seed, worst
from clippedgossip.report.claims import Claim, Floats, check
from clippedgossip.report.figures import Points, scatter
from clippedgossip.report.page import PagePart, Panels, Table
from clippedgossip.report.palette import styles
from clippedgossip.rules import Adaptive, ClippedGossip, Local, Oracle, Rule
from clippedgossip.settings import Training
from clippedgossip.simulate.engine import train_together
from clippedgossip.simulate.setup import Setup, network_task
from clippedgossip.tasks import load as load_data

BASES: Mapping[str, Graph] = {
    "ring": nx.cycle_graph(10),
    "torus": graphs.torus(),
    "hypercube": graphs.hypercube(),
    "dumbbell": graphs.dumbbell(clique=5),
    "random graph": nx.gnp_random_graph(12, 0.4, seed=3),
}
WORST, MEAN = 0.16, 0.04
EACH = 6  # networks of each family on each graph
ROUNDS = 50
DIM = 3
TRAINING = Training(rounds=100, evaluate_every=10, evaluate_last=0, evaluate_nodes=False)
LAST = 5  # evaluations whose mean is the accuracy
TRAINED: Sequence[Attack] = (ALIE(20.0), SpectralHeterogeneity(50.0), Dissensus(1.5))
"""Those that are strongest in consensus on most networks."""
FAMILIES = ("equal δ_max", "equal average", "random")
MEASURES = ("δ_max", "average δ", "weighted average δ")
RULES: Mapping[str, Rule] = {
    "oracle": ClippedGossip(Oracle()),
    "adaptive, δ_max": ClippedGossip(Adaptive(delta_max=WORST)),
    "local": ClippedGossip(Local(faulty=1)),
}


@dataclass(frozen=True, kw_only=True)
class DeltaCase(NetworkCase):
    """What is left of the way to the average under the strongest attack, and what training loses."""

    base: str
    family: str
    gamma: float
    measures: Mapping[str, float]
    error: Mapping[str, float]
    """Mean squared distance to the average of the start, by that at the start, of each rule's radius; and
    under "training" the share of test images that the averaged model gets wrong, with the oracle radius."""
    attack: str


def correlation(
    cases: Sequence[DeltaCase], measure: str, family: str | None = None, damage: str = "oracle"
) -> Floats:
    """Spearman's rank correlation with the damage, of each seed: the mean over the graphs."""
    found = []
    for of_seed in by_seed(cases):
        by_base = []
        for base in BASES:
            some = [case for case in of_seed if case.base == base and family in (None, case.family)]
            values = [case.measures[measure] for case in some]
            by_base.append(float(spearmanr(values, [case.error[damage] for case in some]).statistic))
        found.append(float(np.mean(by_base)))
    return np.array(found)


class AverageDelta(ManyNetworks[DeltaCase]):
    name = "average-delta"
    title = "Average δ or the worst"
    lead = """Networks on five graphs. Byzantine neighbours take their weight δ_i from the self-weight of node
    i, so γ is the same for all networks on one graph. Some have equal δ_max and different averages, some the
    reverse, some are random. On each network, the attack that does the most harm counts."""
    section = "Average δ"
    source = "The paper believes that an average can replace δ_max; the bound is ours."
    case = DeltaCase

    def simulate(self, seed: int) -> list[DeltaCase]:
        return simulate(seed, EACH)

    def findings(self, result: Cases[DeltaCase]) -> Iterator[Claim]:
        judged, spearman = partial(check, digits=2), "Spearman's rank correlation"
        for damage, words, errors in (
            ("oracle", "the damage", "the error in consensus"),
            ("training", "what training loses", "the errors in training"),
        ):
            average, most = (correlation(result, key, damage=damage) for key in ("average δ", "δ_max"))
            note = f"{spearman} with {errors}, over the networks of one graph, mean of the graphs"
            yield judged(f"the average δ predicts {words}", average, "at least 0.7", note=note)
            yield judged(f"δ_max predicts {words}", most, "at least 0.7", note="the same")
            text, note = f"the average predicts {words} better than δ_max", "difference of the two"
            yield judged(text, average - most, "at least 0.05", note=note)
        yield judged(
            "with equal δ_max, a larger average does more damage",
            correlation(result, "average δ", FAMILIES[0]),
            "at least 0.7",
            note=spearman,
        )
        yield judged(
            "with equal average, a larger δ_max does more damage",
            correlation(result, "δ_max", FAMILIES[1]),
            "at least 0.7",
            note=f"{spearman}; if this holds, the average alone is not enough",
        )
        yield judged(
            "weights from the slowest mode predict better than the plain average",
            correlation(result, "weighted average δ") - correlation(result, "average δ"),
            "at least 0.05",
            note="δ_i weighted by the square of node i's entry in the Fiedler vector",
        )
        yield judged(
            "a radius from a node's own bound does less harm than one from δ_max",
            [
                float(np.exp(np.mean([np.log(c.error["local"] / c.error["adaptive, δ_max"]) for c in some])))
                for some in by_seed(result)
            ],
            "at most 0.95 ×",
            note="error against that of the adaptive radius, geometric mean; `local` counts one neighbour",
        )

    def figures(self, result: Cases[DeltaCase]) -> Mapping[str, PagePart]:
        families = {family: [case for case in result if case.family == family] for family in FAMILIES}

        def panel(damage: str, y_label: str, measure: str) -> str:
            clouds = []
            for family, cases in families.items():
                x, y = [case.measures[measure] for case in cases], [case.error[damage] for case in cases]
                clouds.append(Points(name=family, x=x, y=y))
            look: dict[str, Any] = {"x_scale": "linear", "size": (4.2, 3.0), "legend": measure == MEASURES[0]}
            return scatter(clouds, x_label=measure, y_label=y_label, looks=styles(FAMILIES), **look)

        def panels(damage: str, y_label: str, words: str) -> Panels:
            return Panels([panel(damage, y_label, measure) for measure in MEASURES], words)

        many = f"Each point is one of {len(result)} networks under its strongest attack"
        few = f"{many} of {len(TRAINED)}, {TRAINING.rounds} rounds on digits sorted by label."
        return {
            "What predicts the damage": panels("oracle", "error at the end / at the start", f"{many}."),
            "What predicts the loss in training": panels("training", "share of test errors", few),
        }

    def table(self, result: Cases[DeltaCase]) -> Table:
        constant = {("δ_max", FAMILIES[0]), ("average δ", FAMILIES[1])}

        def cell(measure: str, family: str | None, damage: str) -> str:
            if (measure, family) in constant:
                return ""
            return f"{correlation(result, measure, family, damage).mean():.2f}"

        rows = [
            [measure, words, *(cell(measure, family, damage) for family in (*FAMILIES, None))]
            for damage, words in (("oracle", "consensus"), ("training", "training"))
            for measure in MEASURES
        ]
        title = f"Spearman's rank correlation with the damage, {len(result)} networks, oracle radius"
        return Table(["measure", "damage to", *FAMILIES, "all"], rows, title)


def simulate(seed: int, each: int) -> list[DeltaCase]:
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

    def harm(number: int, models: Tensor) -> float:
        return float(squared_distances(models, centres[number]).mean())

    outcomes = {name: worst(networks, rule, starts, ROUNDS, harm) for name, rule in RULES.items()}
    wrong = np.max([_training_errors(networks, attack, seed) for attack in TRAINED], axis=0)
    return [
        DeltaCase(
            seed=seed,
            base=base,
            family=family,
            gamma=network.spectral_gap,
            measures=dict(zip(MEASURES, _measures(network), strict=True)),
            error={name: float(found.harm[k] / first[k]) for name, found in outcomes.items()}
            | {"training": float(wrong[k])},
            attack=outcomes["oracle"].attack[k],
        )
        for k, (base, family, network) in enumerate(made)
    ]


def _training_errors(networks: Sequence[Network], attack: Attack, seed: int) -> Floats:
    """(networks,) the share of test images that the model averaged over the regular nodes gets wrong."""
    data, rule = load_data("digits"), RULES["oracle"]
    setups = [
        Setup(
            network=network,
            task=network_task(network, data, "mlp", partition="sorted", seed=seed),
            rule=rule,
            attack=attack,
            training=TRAINING,
            seed=seed,
        )
        for network in networks
    ]
    found = [
        [1 - ((m.record.accuracy or {}).get("all") or 0.0) for m in moments if m.record is not None]
        for moments in train_together(setups)
        if moments[0].record is not None
    ]
    mean: Floats = np.mean(found[-LAST:], axis=0)
    return mean


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
