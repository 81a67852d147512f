"""Not in the paper: how the precision of the products in the gradients changes the accuracy."""

from collections.abc import Iterator
from typing import Any, ClassVar

from clippedgossip.paper import training_figure as figure
from clippedgossip.paper.no_honest_majority import ring
from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.report.claims import Claim, check, ratio
from clippedgossip.settings import Precision

EXACT: Precision = "float32"
ROUGHER: tuple[Precision, ...] = ("tf32", "bfloat16")
DUMBBELL = "dumbbell, non-IID"
SETTINGS = (DUMBBELL, "dumbbell, IID", "ring, dissensus")


class PrecisionOfProducts(figure.TrainingExperiment):
    name = "precision"
    title = "The precision of the gradients' products"
    lead = """Gradients are products of matrices. A GPU computes them several times faster with fewer bits:
    float32 has 23 bits behind the point, tf32 has 10, bfloat16 has 7. Models, momentum, messages and mixing
    are float32 in every case. This figure shows what the faster products cost ClippedGossip."""
    section = "Products of lower precision give the same results (no claim of the paper)"
    scales = figure.LONGER
    groups: ClassVar = {DUMBBELL: "clique A"}
    remarks = """The non-IID dumbbell is reported by clique A, which must learn half of the digits over one
    edge, the other settings by all regular nodes. On the ring one node has a Byzantine majority around it. On
    a CPU tf32 is the same as float32, so the quick scale leaves it out. On a CPU bfloat16 is no faster: this
    figure is meant for a GPU."""

    def cases(self, scale: figure.Scale) -> Iterator[figure.Case]:
        dumbbell = {"name": "dumbbell", "clique": scale.clique}
        where: tuple[dict[str, Any], ...] = (
            {"network": dumbbell, "partition": "clique"},
            {"network": dumbbell},
            {"network": ring([0]), "attack": figure.PAPER_ATTACKS["dissensus"]},
        )
        for setting, shared in zip(SETTINGS, where, strict=True):
            how = figure.clipped(scale.radius / 10 if "attack" in shared else scale.radius)
            for precision in (EXACT, *(ROUGHER if scale.name == "paper" else ROUGHER[1:])):
                yield scale.case(setting, precision, how, precision=precision, **shared)

    def findings(self, result: Results) -> Iterator[Claim]:
        distance = result.finals(DISTANCE)
        for setting in SETTINGS:
            final = result.finals(self.reported(setting))
            for precision in (name for name in result.rules if name != EXACT):
                yield check(
                    f"{setting}: {precision} learns what float32 learns",
                    final(setting, precision) - final(setting, EXACT),
                    "-1 to 1 points",
                )
                yield check(
                    f"{setting}: {precision} leaves the models as close",
                    ratio(distance(setting, precision), distance(setting, EXACT)),
                    "0.5 to 2 ×",
                    note="its Ξ over float32's",
                    digits=2,
                )
