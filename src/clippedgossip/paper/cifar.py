"""Figs. exp6_1_CIFAR and CIFAR_bar: do cliques with a high accuracy also agree?"""

from collections.abc import Mapping, Sequence

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.page_parts import constant
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import CIFAR, Case, Scale, ScaleName, TrainingExperiment, paper_rules
from clippedgossip.report.claims import Claim, Claims, best, check, ratio, worst
from clippedgossip.report.page import PagePart

GROUPS = {"all": "Global", "clique A": "Clique A", "clique B": "Clique B"}
WHOSE = {"all": "all regular nodes", "clique A": "clique A", "clique B": "clique B"}
CLIQUES = ("clique A", "clique B")
LOST = ("GM", "TM")
PUBLISHED = {  # all, clique A, clique B
    "IID": {
        "Gossip": (86.4, 86.4, 86.4),
        "ClippedGossip": (86.2, 86.2, 86.2),
        "GM": (12.0, 83.5, 82.4),
        "TM": (25.3, 83.9, 82.9),
    },
    "non-IID": {
        "Gossip": (73.7, 52.0, 53.7),
        "ClippedGossip": (73.5, 53.2, 52.5),
        "GM": (14.7, 43.2, 46.8),
        "TM": (11.2, 43.7, 46.8),
    },
}


class Cifar(TrainingExperiment):
    name = "cifar"
    title = "CIFAR-10 on the dumbbell"
    lead = (
        "Two cliques are joined by one edge. There are no Byzantine nodes. Do the cliques agree, or does "
        "each reach a minimum of its own? The average of all models shows it: its accuracy is low where the "
        "cliques do not agree. Figs. exp6_1_CIFAR and CIFAR_bar of the paper."
    )
    scales = CIFAR
    remarks = (
        "In the non-IID half each clique has five classes. TM drops one value per side and Mozi keeps ρ = "
        "0.4, as in the released runs. Mozi keeps a = 0.5 of itself. An epoch has 39 rounds: 50,000 images, "
        "20 workers, batch 64. The quick scale has half the workers."
    )

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        network = {"name": "dumbbell", "clique": 10 if name == "paper" else 5}
        rules = paper_rules(scale.radius, trim=1, keep=0.4)
        return [
            case
            for setting, partition in (("IID", "iid"), ("non-IID", "clique"))
            for case in scale.cases(setting, rules, network=network, partition=partition)
        ]

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        curves: dict[str, PagePart] = {
            f"{title} over the rounds": drawing.curves(
                result,
                constant(group),
                caption=f"Test accuracy of the averaged model: {WHOSE[group]}.",
            )
            for group, title in GROUPS.items()
        }
        bars: dict[str, PagePart] = {
            f"{title} at the end": drawing.end_bars(result, constant(group))
            for group, title in GROUPS.items()
        }
        return {**curves, **bars, "Agreement": drawing.agreement(result)}

    def claims(self, result: Results) -> Claims:
        return Claims(
            [
                *_collapse(result),
                *_cliques(result),
                *_better(result),
                *_together(result),
            ],
            "CIFAR-10 task",
        )


def _collapse(result: Results) -> list[Claim]:
    final = result.finals("all")
    return [
        check(
            f"IID-Global: {rule} is much worse than ClippedGossip and Gossip",
            worst(final("IID", good) for good in ("Gossip", "ClippedGossip")) - final("IID", rule),
            low=0.2,
            unit="points",
            paper=f"{PUBLISHED['IID']['ClippedGossip'][0] - PUBLISHED['IID'][rule][0]:+.1f} points",
        )
        for rule in LOST
    ]


def _cliques(result: Results) -> list[Claim]:
    distance = result.finals(DISTANCE)
    return [
        *(
            check(
                f"IID: in each clique {rule} reaches over 80 %",
                worst(result.final("IID", rule, group) for group in CLIQUES),
                low=0.8,
                paper=f"{min(PUBLISHED['IID'][rule][1:])} %",
                note="the worse clique",
            )
            for rule in LOST
        ),
        *(
            check(
                f"IID: in each clique {rule} is close to Gossip",
                worst(
                    result.final("IID", rule, group) - result.final("IID", "Gossip", group)
                    for group in CLIQUES
                ),
                low=-0.05,
                unit="points",
                paper=f"{min(PUBLISHED['IID'][rule][1:]) - PUBLISHED['IID']['Gossip'][1]:+.1f} points",
                note="the worse clique",
            )
            for rule in LOST
        ),
        *(
            check(
                f"IID: {rule}'s cliques do not agree without an attack",
                ratio(distance("IID", rule), distance("IID", "Gossip")),
                low=10,
                unit="×",
                note="its Ξ over gossip's",
            )
            for rule in LOST
        ),
    ]


def _better(result: Results) -> list[Claim]:
    final = result.finals("all")
    return [
        check(
            f"non-IID: ClippedGossip is much better than {rule}",
            final("non-IID", "ClippedGossip") - final("non-IID", rule),
            low=0.2,
            unit="points",
            paper=f"{PUBLISHED['non-IID']['ClippedGossip'][0] - PUBLISHED['non-IID'][rule][0]:+.1f} points"
            if rule in PUBLISHED["non-IID"]
            else "",
            note="global model",
        )
        for rule in (*LOST, "Mozi")
    ]


def _together(result: Results) -> list[Claim]:
    everyone = result.finals("all")
    cliques = {
        rule: best(result.final("non-IID", rule, group) for group in CLIQUES)
        for rule in ("ClippedGossip", *LOST)
    }
    better = everyone("non-IID", "ClippedGossip") - cliques["ClippedGossip"]
    return [
        check(
            "non-IID: ClippedGossip's global model is better than its cliques'",
            better,
            low=0.01,
            unit="points",
            paper="+20.3 points",
        ),
        *(
            check(
                f"non-IID: {rule}'s global model is worse than its cliques'",
                everyone("non-IID", rule) - worst(result.final("non-IID", rule, group) for group in CLIQUES),
                high=-0.01,
                unit="points",
                paper=f"{PUBLISHED['non-IID'][rule][0] - min(PUBLISHED['non-IID'][rule][1:]):+.1f} points",
            )
            for rule in LOST
        ),
    ]


EXPERIMENT = Cifar()
