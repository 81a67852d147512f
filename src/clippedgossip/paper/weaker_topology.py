"""Fig. dumbbell_variant2: Byzantine nodes away from the bridge. The assumption of earlier work fails here."""

from collections.abc import Mapping, Sequence

import networkx as nx

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.page_parts import constant
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import (
    PAPER_ATTACKS,
    Case,
    Scale,
    ScaleName,
    TrainingExperiment,
    paper_rules,
)
from clippedgossip.report.claims import Claim, Claims, best, check, near, ratio, worst
from clippedgossip.report.page import PagePart
from clippedgossip.runs.config import NetworkConfig

NETWORK = {"name": "dumbbell", "clique": 5, "byzantine": {"pendants": [0, 9]}}
A = "clique A"
PARTITIONS = {"IID": "iid", "non-IID": "clique"}


class WeakerTopology(TrainingExperiment):
    name = "weaker-topology"
    title = "A weaker assumption on the topology"
    lead = (
        "Two cliques of five, with one Byzantine node in each that sends the dissensus attack. Neither is "
        "on the bridge. The robust-network assumption of earlier work does not hold here: for two Byzantine "
        "nodes it asks for three disjoint paths. But both ends of the bridge are regular nodes. Fig. "
        "dumbbell_variant2 of the paper."
    )
    group = A
    remarks = "ε = 1.5, Metropolis–Hastings weights, TM drops one value per side."

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        rules = paper_rules(scale.radius)
        rules.pop("Mozi")
        return [
            case
            for setting, partition in PARTITIONS.items()
            for case in scale.cases(
                setting, rules, network=NETWORK, partition=partition, attack=PAPER_ATTACKS["dissensus"]
            )
        ]

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        curves: dict[str, PagePart] = {
            f"{title} over the rounds": drawing.curves(
                result, constant(group), caption=f"Test accuracy of the averaged model: {title}."
            )
            for group, title in (("all", "All regular nodes"), (A, "Clique A"))
        }
        return {
            **curves,
            "Clique A at the end": drawing.end_bars(result, self.reported),
            "Agreement": drawing.agreement(result),
        }

    def claims(self, result: Results) -> Claims:
        return Claims(
            [*_assumption(), *_discarded(result), *_consensus(result)], "Weaker topology assumption"
        )


def _assumption() -> list[Claim]:
    network = NetworkConfig.from_value(NETWORK).build()
    graph = network.to_networkx()
    graph.remove_nodes_from([network.labels[node] for node in network.byzantine])
    return [
        check(
            "the robust-network assumption does not hold",
            float(nx.node_connectivity(graph)),
            high=float(len(network.byzantine)),
            unit="",
            paper="1",
            note="disjoint paths between the cliques; b + 1 = 3 are needed",
            digits=0,
        )
    ]


def _discarded(result: Results) -> list[Claim]:
    return [
        near(
            f"non-IID: {rule} discards the graph cut",
            result.final("non-IID", rule, A),
            0.5,
            0.03,
            note="clique A learns only its own half of the classes",
        )
        for rule in ("GM", "TM")
    ]


def _consensus(result: Results) -> list[Claim]:
    final, distance = result.finals(A), result.finals(DISTANCE)
    others = ("GM", "TM")
    return [
        check(
            "non-IID: only ClippedGossip helps the cliques to consensus",
            ratio(worst(distance("non-IID", rule) for rule in others), distance("non-IID", "ClippedGossip")),
            low=3.0,
            unit="×",
            note="the smaller Ξ of GM and TM over ClippedGossip's",
        ),
        check(
            "non-IID: ClippedGossip performs better empirically",
            final("non-IID", "ClippedGossip") - best(final("non-IID", rule) for rule in others),
            low=0.03,
            unit="points",
            note="clique A, against the better of GM and TM",
        ),
    ]


EXPERIMENT = WeakerTopology()
