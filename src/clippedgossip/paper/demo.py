"""The demo: two findings of the paper, small enough for a minute on two cores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.no_honest_majority import ATTACKS, FALLS, PUBLISHED, STANDS, ring
from clippedgossip.paper.results import Results
from clippedgossip.paper.training_figure import (
    MNIST,
    Case,
    Scale,
    ScaleName,
    TrainingExperiment,
    often,
    paper_rules,
)
from clippedgossip.report.claims import Claim, Claims, check, near
from clippedgossip.report.page import PagePart, Section

A = "clique A"
DUMBBELL = "dumbbell, non-IID"
RINGS = {"ring, IPM": "IPM", "ring, ALIE": "ALIE z=10"}

ABOUT = (
    "The miniature: scikit-learn's 1,797 digits in place of MNIST, one hidden layer of 64 in place of the "
    "CNN, 300 rounds on the dumbbell and 150 on the ring in place of 900. Batch, learning rate, momentum "
    "and τ are the paper's."
)


class Demo(TrainingExperiment):
    name = "demo"
    title = "Learning together with Byzantine nodes"
    lead = (
        "First, two groups of five workers are joined by one edge. There are no Byzantine nodes, but one "
        "group holds the digits 0 to 4 and the other holds 5 to 9. Rules that drop unusual models leave "
        "each group with its own half. Second, a ring of five regular nodes has eleven Byzantine nodes "
        "attached; one regular node has more Byzantine than regular nodes around it. ClippedGossip does "
        "well in both. It bounds how far each neighbour can move a node."
    )
    scales: ClassVar[Mapping[ScaleName, Scale]] = {**MNIST, "quick": replace(MNIST["quick"], about=ABOUT)}
    remarks = (
        "Dumbbell: accuracies are those of the model averaged over clique A; τ = 1; TM drops one value per "
        "side. Ring: the model averaged over all regular nodes; τ = 0.1; TM drops two values per side; "
        "weights are lazy; ALIE has z = 10. To save time the ring leaves out gossip, which fails, and Mozi, "
        "which does well, as in the paper (clippedgossip reproduce no-honest-majority)."
    )

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        dumbbell = {"name": "dumbbell", "clique": 5}
        clipping = paper_rules(scale.radius / 10)
        rules = {rule: clipping[rule] for rule in ("ClippedGossip", "GM", "TM")}
        return [
            *scale.cases(
                DUMBBELL,
                paper_rules(scale.radius, trim=1),
                network=dumbbell,
                partition="clique",
                **often(300, 10),
            ),
            *(
                case
                for setting, attack in RINGS.items()
                for case in scale.cases(
                    setting, rules, network=ring([0]), attack=ATTACKS[attack], **often(150, 10)
                )
            ),
        ]

    def reported(self, setting: str) -> str:
        return A if setting == DUMBBELL else "all"

    def whom(self) -> str:
        return "all regular nodes; dumbbell: clique A"

    def command(self, result: Results) -> str:
        return "clippedgossip demo"

    def notes(self, result: Results) -> Sequence[Section]:
        return [section for section in super().notes(result) if section.title != "Networks"]

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        caption = "Test accuracy of the averaged model: of clique A on the dumbbell, of all on the ring."
        return {
            "The networks": drawing.networks(result),
            "Accuracy over the rounds": drawing.curves(
                result, self.reported, caption=caption, marks=[drawing.HALF]
            ),
            "Accuracy at the end": drawing.end_bars(result, self.reported),
        }

    def claims(self, result: Results) -> Claims:
        return Claims([*_dumbbell(result), *_ring(result)], "What the paper says about these two")


def _dumbbell(result: Results) -> list[Claim]:
    final = result.finals(A)
    return [
        *(
            check(f"dumbbell: {rule} learns all classes", final(DUMBBELL, rule), low=0.65, paper=paper)
            for rule, paper in (("Gossip", "69.3 %"), ("ClippedGossip", "69.7 %"))
        ),
        *(
            near(f"dumbbell: {rule} stays at half", final(DUMBBELL, rule), 0.5, 0.03, paper=paper)
            for rule, paper in (("GM", "50.7 %"), ("TM", "50.7 %"), ("Mozi", "50.6 %"))
        ),
    ]


def _ring(result: Results) -> list[Claim]:
    final = result.finals("all")
    claims = []
    for setting, attack in RINGS.items():
        paper = {rule: f"{published[attack][0]} %" for rule, published in PUBLISHED.items()}
        ours = final(setting, "ClippedGossip")
        claims.append(
            check(f"{setting}: ClippedGossip stands", ours, low=STANDS, paper=paper["ClippedGossip"])
        )
        claims += [
            check(f"{setting}: {rule} falls", final(setting, rule), high=FALLS, paper=paper[rule])
            for rule in ("GM", "TM")
        ]
    return claims


EXPERIMENT = Demo()
