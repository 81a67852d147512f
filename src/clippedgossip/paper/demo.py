"""The demo: two of the paper's findings, small enough for a minute on two cores."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.no_honest_majority import ATTACKS, FALLS, PUBLISHED, STANDS, ring
from clippedgossip.paper.results import Results
from clippedgossip.paper.scales import MNIST, Case, Scale, ScaleName, often, paper_rules
from clippedgossip.paper.training_figure import TrainingExperiment
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


class Headline(TrainingExperiment):
    name = "demo"
    title = "Learning together among liars"
    lead = (
        "First, two groups of five workers joined by one edge. Nobody lies, but one group holds the digits 0 "
        "to 4 and the other 5 to 9; rules that drop what looks foreign leave each with its half. Second, "
        "five workers in a ring with eleven attackers, one worker surrounded by more lies than truth. "
        "ClippedGossip does well in both: each worker trusts itself, and lets others pull only so far."
    )
    scales: ClassVar[Mapping[ScaleName, Scale]] = {**MNIST, "quick": replace(MNIST["quick"], about=ABOUT)}
    remarks = (
        "Dumbbell: clique A's averaged model is reported; τ = 1, TM drops one value per side. Ring: the "
        "model averaged over all honest workers; τ = 0.1, TM drops two per side, lazy weights, ALIE has "
        "z = 10. For time's sake gossip and Mozi are left out there: the one falls, the other holds out, as "
        "it does in the paper (clippedgossip reproduce no-honest-majority)."
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
        return Claims([*_dumbbell(result), *_ring(result)], "What the paper says of these two")


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
        standing = final(setting, "ClippedGossip")
        claims.append(
            check(f"{setting}: ClippedGossip stands", standing, low=STANDS, paper=paper["ClippedGossip"])
        )
        claims += [
            check(f"{setting}: {rule} falls", final(setting, rule), high=FALLS, paper=paper[rule])
            for rule in ("GM", "TM")
        ]
    return claims


EXPERIMENT = Headline()
