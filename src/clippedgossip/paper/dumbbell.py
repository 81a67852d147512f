"""Fig. exp6_1: rules without Byzantine nodes, on two cliques that hold different digits."""

from collections.abc import Mapping, Sequence

from clippedgossip import graphs
from clippedgossip.network import Network
from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import (
    Case,
    Scale,
    ScaleName,
    TrainingExperiment,
    bucketed,
    paper_rules,
)
from clippedgossip.report.claims import TIE, Claim, Claims, best, check, near, ratio, worst
from clippedgossip.report.page import PagePart

A = "clique A"
SETTINGS = IID, PLAIN, BUCKETS, EDGE, BOTH = (
    "IID",
    "non-IID",
    "non-IID, bucketing",
    "non-IID, +1 edge",
    "non-IID, both",
)
ROBUST = ("GM", "TM", "Mozi")
PUBLISHED = {
    "Gossip": (96.4, 69.3, 70.8, 76.5, 75.7),
    "ClippedGossip": (96.3, 69.7, 70.2, 75.7, 77.7),
    "GM": (95.6, 50.7, 51.2, 50.9, 66.9),
    "TM": (95.4, 50.7, 63.0, 50.8, 72.6),
    "Mozi": (95.8, 50.6, 50.7, 50.6, 66.4),
}
"""Accuracy of clique A in the authors' released runs, one seed each, in the order of the settings."""


class Dumbbell(TrainingExperiment):
    name = "dumbbell"
    title = "Dumbbell without Byzantine nodes"
    lead = (
        "Two cliques are joined by one edge. There are no Byzantine nodes. Clique A holds the digits 0 to 4 "
        "and clique B holds 5 to 9, so each clique can learn the other digits only through this edge. Rules "
        "that drop unusual models drop exactly the models that carry this information. Fig. exp6_1 of the "
        "paper."
    )
    group = A
    remarks = (
        "In the paper's text TM drops β = δ_max·n values per side. Here that is none, so TM would be a "
        "plain mean and pass everything on. The released runs drop one value per side on this network, and "
        "so do we. That value is the model of the other clique, which is the extreme one in nearly every "
        "coordinate. Mozi has a = 0.5 and ρ = 0.99. Weights are equal, 1/(d_max + 1), with d_max = 11 where "
        "there is one more edge. This gives the two spectral gaps of the text. Buckets are shuffled anew in "
        "every round; in the released runs the shuffle was the same in all rounds. The quick scale has half "
        "the workers: 5 + 5."
    )

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        clique = 10 if name == "paper" else 5
        plain = {"name": "dumbbell", "clique": clique}
        edge = {**plain, "extra": 1, "weights": "equal", "max_degree": clique + 1}
        rules = paper_rules(scale.radius, trim=1)
        buckets = {rule: bucketed(how) for rule, how in rules.items()}
        return [
            *scale.cases(IID, rules, network=plain),
            *scale.cases(PLAIN, rules, network=plain, partition="clique"),
            *scale.cases(BUCKETS, buckets, network=plain, partition="clique"),
            *scale.cases(EDGE, rules, network=edge, partition="clique"),
            *scale.cases(BOTH, buckets, network=edge, partition="clique"),
        ]

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        caption = "Test accuracy of the model averaged over clique A, which trains on half of the digits."
        return {
            "Accuracy over the rounds": drawing.curves(
                result, self.reported, caption=caption, marks=[drawing.HALF], lowest=0.4
            ),
            "Accuracy at the end": drawing.end_bars(result, self.reported, marks=[drawing.HALF]),
            "Agreement": drawing.agreement(result),
        }

    def claims(self, result: Results) -> Claims:
        return Claims(
            [
                *_local(result),
                *_diffusion(result),
                *_buckets(result),
                *_edge(result),
                *_both(result),
            ],
            "Decentralized defenses without Byzantine nodes",
        )


def _local(result: Results) -> list[Claim]:
    """The 1st plot."""
    final, everyone = result.finals(A), result.finals("all")
    return [
        check(
            "IID: clique A alone is enough, all rules do well",
            worst(final(IID, rule) for rule in PUBLISHED) - final(IID, "Gossip"),
            low=-0.03,
            unit="points",
            paper=f"{min(row[0] for row in PUBLISHED.values()) - PUBLISHED['Gossip'][0]:+.1f} points",
            note="the worst rule against gossip",
        ),
        check(
            "IID: GM's and TM's global models match gossip's",
            worst(everyone(IID, rule) for rule in ("GM", "TM")) - everyone(IID, "Gossip"),
            low=-0.05,
            unit="points",
            note="said of MNIST in § CIFAR-10 task; the worse against gossip",
        ),
    ]


def _diffusion(result: Results) -> list[Claim]:
    """Existing robust aggregators impede information diffusion: the 2nd plot."""
    final, distance = result.finals(A), result.finals(DISTANCE)
    gossip = distance(PLAIN, "Gossip")
    return [
        *(
            near(f"non-IID: {rule} only reaches 50 %", final(PLAIN, rule), 0.5, 0.03, paper=_paper(rule, 1))
            for rule in ROBUST
        ),
        *(
            check(
                f"{setting}: ClippedGossip matches ideal gossip",
                final(setting, "ClippedGossip") - final(setting, "Gossip"),
                low=-0.02,
                high=0.02,
                unit="points",
                paper=f"{PUBLISHED['ClippedGossip'][place] - PUBLISHED['Gossip'][place]:+.1f} points",
            )
            for place, setting in enumerate(SETTINGS)
        ),
        check(
            "ClippedGossip is consistently the best of the robust rules",
            worst(
                final(setting, "ClippedGossip") - best(final(setting, rule) for rule in ROBUST)
                for setting in SETTINGS
            ),
            low=-TIE,
            unit="points",
            paper="+0.5 points",
            note="smallest lead over the best of GM, TM, Mozi in the five plots",
        ),
        check(
            "ClippedGossip keeps gossip's rate of diffusion",
            ratio(distance(PLAIN, "ClippedGossip"), gossip),
            high=2,
            unit="×",
            note="its Ξ over gossip's, non-IID",
        ),
        check(
            "GM, TM, Mozi fail to reach consensus",
            ratio(worst(distance(PLAIN, rule) for rule in ROBUST), gossip),
            low=10,
            unit="×",
            note="the smallest of their Ξ over gossip's, non-IID",
        ),
    ]


def _buckets(result: Results) -> list[Claim]:
    """The 3rd plot."""
    final = result.finals(A)
    gain = {rule: final(BUCKETS, rule) - final(PLAIN, rule) for rule in PUBLISHED}
    return [
        check(
            "bucketing helps TM to overcome 50 %",
            final(BUCKETS, "TM"),
            low=0.53,
            paper=_paper("TM", 2),
        ),
        check(
            "with bucketing TM is still behind ClippedGossip",
            final(BUCKETS, "ClippedGossip") - final(BUCKETS, "TM"),
            low=0.01,
            unit="points",
            paper="+7.2 points",
        ),
        check(
            "bucketing improves GM by 1 % only",
            gain["GM"],
            low=0.0,
            high=0.03,
            unit="points",
            paper="+0.5 points",
        ),
        check(
            "bucketing leaves Mozi almost where it was",
            gain["Mozi"],
            low=-0.02,
            high=0.02,
            unit="points",
            paper="+0.1 points",
        ),
        check(
            "bucketing mildly improves the performance",
            gain["ClippedGossip"],
            low=0.0,
            high=0.1,
            unit="points",
            paper="+0.5 points",
            note="ClippedGossip's",
        ),
    ]


def _edge(result: Results) -> list[Claim]:
    """The 4th plot."""
    final, whole = result.finals(A), result.wholes(A)
    gaps = [Network(graphs.dumbbell(clique=10)).spectral_gap]
    gaps.append(Network(graphs.dumbbell(clique=10, extra=1), weights="equal", max_degree=11).spectral_gap)
    return [
        check(
            "10 + 10 workers: γ = 0.0154",
            gaps[0],
            low=0.01535,
            high=0.01545,
            unit="",
            paper="0.0154",
            digits=4,
        ),
        check(
            "one more random edge: γ = 0.0286",
            gaps[1],
            low=0.02855,
            high=0.02865,
            unit="",
            paper="0.0286",
            digits=4,
        ),
        *(
            check(
                f"+1 edge: {rule} converges faster",
                whole(EDGE, rule) - whole(PLAIN, rule),
                low=0.005,
                unit="points",
                note="gain in mean accuracy over the whole run",
            )
            for rule in ("ClippedGossip", "Gossip")
        ),
        check(
            "+1 edge significantly improves the performance",
            final(EDGE, "ClippedGossip") - final(PLAIN, "ClippedGossip"),
            low=0.01,
            unit="points",
            paper="+6.0 points",
            note="ClippedGossip's",
        ),
        *(
            near(
                f"+1 edge: {rule} is still stuck at 50 %", final(EDGE, rule), 0.5, 0.03, paper=_paper(rule, 3)
            )
            for rule in ROBUST
        ),
    ]


def _both(result: Results) -> list[Claim]:
    """The 5th plot."""
    final = result.finals(A)
    return [
        check(f"bucketing and edge: {rule} exceeds 50 %", final(BOTH, rule), low=0.53, paper=_paper(rule, 4))
        for rule in PUBLISHED
    ]


def _paper(rule: str, place: int) -> str:
    return f"{PUBLISHED[rule][place]} %"


EXPERIMENT = Dumbbell()
