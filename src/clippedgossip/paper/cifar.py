"""Figs. exp6_1_CIFAR and CIFAR_bar: do cliques with a high accuracy also agree?"""

from collections.abc import Iterator, Mapping

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.page_parts import constant
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import CIFAR, Case, Scale, TrainingExperiment, paper_rules
from clippedgossip.report.claims import Claim, best, check, ratio, worst
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
    section = "CIFAR-10 task"
    scales = CIFAR
    remarks = (
        "In the non-IID half each clique has five classes. TM drops one value per side and Mozi keeps ρ = "
        "0.4, as in the released runs. Mozi keeps a = 0.5 of itself. An epoch has 39 rounds: 50,000 images, "
        "20 workers, batch 64. The quick scale has half the workers."
    )

    def cases(self, scale: Scale) -> Iterator[Case]:
        network = {"name": "dumbbell", "clique": scale.clique}
        rules = paper_rules(scale.radius, trim=1, keep=0.4)
        for setting, partition in (("IID", "iid"), ("non-IID", "clique")):
            yield from scale.cases(setting, rules, network=network, partition=partition)

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        parts: dict[str, PagePart] = {}
        for group, title in GROUPS.items():
            caption = f"Test accuracy of the averaged model: {WHOSE[group]}."
            parts[f"{title} over the rounds"] = drawing.curves(result, constant(group), caption=caption)
        for group, title in GROUPS.items():
            parts[f"{title} at the end"] = drawing.end_bars(result, constant(group))
        return {**parts, "Agreement": drawing.agreement(result)}

    def findings(self, result: Results) -> Iterator[Claim]:
        final, distance = result.finals("all"), result.finals(DISTANCE)
        paper = {(setting, rule): PUBLISHED[setting][rule] for setting in PUBLISHED for rule in LOST}
        ideal = {setting: rules["ClippedGossip"][0] for setting, rules in PUBLISHED.items()}
        for rule in LOST:
            yield check(
                f"IID-Global: {rule} is much worse than ClippedGossip and Gossip",
                worst(final("IID", good) for good in ("Gossip", "ClippedGossip")) - final("IID", rule),
                "at least 20 points",
                paper=f"{ideal['IID'] - paper['IID', rule][0]:+.1f} points",
            )
        for rule in LOST:
            yield check(
                f"IID: in each clique {rule} reaches over 80 %",
                worst(result.final("IID", rule, group) for group in CLIQUES),
                "at least 80 %",
                paper=f"{min(paper['IID', rule][1:])} %",
                note="the worse clique",
            )
        for rule in LOST:
            yield check(
                f"IID: in each clique {rule} is close to Gossip",
                worst(result.final("IID", rule, one) - result.final("IID", "Gossip", one) for one in CLIQUES),
                "at least -5 points",
                paper=f"{min(paper['IID', rule][1:]) - PUBLISHED['IID']['Gossip'][1]:+.1f} points",
                note="the worse clique",
            )
        for rule in LOST:
            yield check(
                f"IID: {rule}'s cliques do not agree without an attack",
                ratio(distance("IID", rule), distance("IID", "Gossip")),
                "at least 10 ×",
                note="its Ξ over gossip's",
            )
        for rule in (*LOST, "Mozi"):
            yield check(
                f"non-IID: ClippedGossip is much better than {rule}",
                final("non-IID", "ClippedGossip") - final("non-IID", rule),
                "at least 20 points",
                paper=f"{ideal['non-IID'] - paper['non-IID', rule][0]:+.1f} points" if rule in LOST else "",
                note="global model",
            )
        yield check(
            "non-IID: ClippedGossip's global model is better than its cliques'",
            final("non-IID", "ClippedGossip")
            - best(result.final("non-IID", "ClippedGossip", group) for group in CLIQUES),
            "at least 1 point",
            paper="+20.3 points",
        )
        for rule in LOST:
            yield check(
                f"non-IID: {rule}'s global model is worse than its cliques'",
                final("non-IID", rule) - worst(result.final("non-IID", rule, group) for group in CLIQUES),
                "at most -1 point",
                paper=f"{paper['non-IID', rule][0] - min(paper['non-IID', rule][1:]):+.1f} points",
            )


EXPERIMENT = Cifar()
