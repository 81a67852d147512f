"""Not in the paper: how the precision of the products in the gradients changes the accuracy."""

from collections.abc import Mapping, Sequence
from typing import Any

from clippedgossip.paper.no_honest_majority import ring
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import (
    PAPER_ATTACKS,
    Case,
    Scale,
    ScaleName,
    TrainingExperiment,
    clipped,
)
from clippedgossip.report.claims import Claim, Claims, check, ratio
from clippedgossip.settings import Precision

EXACT: Precision = "float32"
ROUGHER: tuple[Precision, ...] = ("tf32", "bfloat16")
DUMBBELL = "dumbbell, non-IID"
SETTINGS = (DUMBBELL, "dumbbell, IID", "ring, dissensus")


class PrecisionOfProducts(TrainingExperiment):
    name = "precision"
    title = "The precision of the gradients' products"
    lead = (
        "Gradients are products of matrices. A GPU computes them several times faster with fewer bits: "
        "float32 has 23 bits behind the point, tf32 has 10, bfloat16 has 7. Models, momentum, messages and "
        "mixing are float32 in every case. This figure shows what the faster products cost ClippedGossip."
    )
    remarks = (
        "The non-IID dumbbell is reported by clique A, which must learn half of the digits over one edge, "
        "the other settings by all regular nodes. On the ring one node has a Byzantine majority around it. "
        "On a CPU tf32 is the same as float32, so the quick scale leaves it out. On a CPU bfloat16 is no "
        "faster: this figure is meant for a GPU."
    )

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        dumbbell = {"name": "dumbbell", "clique": 10 if name == "paper" else 5}
        where: Mapping[str, dict[str, Any]] = {
            DUMBBELL: {"network": dumbbell, "partition": "clique"},
            "dumbbell, IID": {"network": dumbbell},
            "ring, dissensus": {"network": ring([0]), "attack": PAPER_ATTACKS["dissensus"]},
        }
        return [
            scale.case(
                setting,
                precision,
                clipped(scale.radius / 10 if setting.startswith("ring") else scale.radius),
                precision=precision,
                **where[setting],
            )
            for setting in SETTINGS
            for precision in (EXACT, *(ROUGHER if name == "paper" else ROUGHER[1:]))
        ]

    def reported(self, setting: str) -> str:
        return "clique A" if setting == DUMBBELL else "all"

    def whom(self) -> str:
        return "all regular nodes; dumbbell, non-IID: clique A"

    def claims(self, result: Results) -> Claims:
        pairs = [(setting, name) for setting in SETTINGS for name in result.rules if name != EXACT]
        return Claims(
            [claim for setting, name in pairs for claim in self._same(result, setting, name)],
            "Products of lower precision give the same results (no claim of the paper)",
        )

    def _same(self, result: Results, setting: str, precision: str) -> list[Claim]:
        final, distance = result.finals(self.reported(setting)), result.finals(DISTANCE)
        return [
            check(
                f"{setting}: {precision} learns what float32 learns",
                final(setting, precision) - final(setting, EXACT),
                low=-0.01,
                high=0.01,
                unit="points",
            ),
            check(
                f"{setting}: {precision} leaves the models as close",
                ratio(distance(setting, precision), distance(setting, EXACT)),
                low=0.5,
                high=2.0,
                unit="×",
                note="its Ξ over float32's",
                digits=2,
            ),
        ]


EXPERIMENT = PrecisionOfProducts()
