"""Not in the paper: rules that were published later, on the networks of the paper."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.more_topologies import NETWORKS
from clippedgossip.paper.no_honest_majority import ring
from clippedgossip.paper.results import Results
from clippedgossip.paper.training_figure import (
    PAPER_ATTACKS,
    Case,
    Scale,
    TrainingExperiment,
    adaptive,
    clipped,
)
from clippedgossip.report.claims import Claim, Floats, check
from clippedgossip.report.page import PagePart

DUMBBELL = "dumbbell"
ATTACKED: Mapping[str, tuple[dict[str, Any], str, Any]] = {
    f"{where}, {attack}": (network, partition, PAPER_ATTACKS[attack])
    for where, network, partition in (
        ("small world", NETWORKS["small world"], "sorted"),
        ("torus", NETWORKS["torus"], "sorted"),
        ("ring", ring([0]), "iid"),
    )
    for attack in ("dissensus", "IPM")
}


def rules(radius: float, *, count: int | str, weight: float | str, keep: float) -> dict[str, Any]:
    """Every rule gets the same bound: on the number of Byzantine neighbours, or on their weight."""
    return {
        "ClippedGossip": clipped(radius),
        "adaptive": adaptive(weight),
        "GM": "geometric-median",
        "TM": {"name": "trimmed-mean", "trim": count},
        "Mozi": {"name": "mozi", "keep": keep, "self_weight": 0.5},
        "Median": "median",
        "Krum": {"name": "krum", "faulty": count},
        "CS+": {"name": "cs-plus", "byzantine_weight": weight},
        "NNA": {"name": "nna", "faulty": count},
        "IOS": {"name": "ios", "faulty": count},
        "BALANCE": "balance",
    }


class NewerRules(TrainingExperiment):
    name = "newer-rules"
    title = "Newer rules on the same networks"
    lead = (
        "CS+, NNA, IOS and BALANCE were published after the paper. This figure compares them with the rules "
        "of the paper: on the dumbbell without Byzantine nodes (accuracy of clique A), on the small world "
        "and the torus, and on the ring where one node has a Byzantine majority around it."
    )
    section = "Median and Krum are left out of the paper's figures"
    groups: ClassVar = {DUMBBELL: "clique A"}
    remarks = (
        "Rules that need a bound on the Byzantine neighbours, or on their weight, are given the true one, "
        "but at most what their neighbourhood allows. The dumbbell has no Byzantine nodes; there these "
        "rules expect one in each neighbourhood, as TM does. ClippedGossip has τ = 1, and 0.1 on the ring. "
        "Mozi has ρ = 0.99, and 0.4 on the ring. BALANCE has γ = 0.3, κ = 1 and a = 0.5."
    )

    def cases(self, scale: Scale) -> Iterator[Case]:
        expected = rules(scale.radius, count=1, weight=1 / (scale.clique + 1), keep=0.99)
        dumbbell = {"name": "dumbbell", "clique": scale.clique}
        yield from scale.cases(DUMBBELL, expected, network=dumbbell, partition="clique")
        for setting, (network, partition, attack) in ATTACKED.items():
            radius, keep = (scale.radius / 10, 0.4) if network["name"] == "ring" else (scale.radius, 0.99)
            told = rules(radius, count="byzantine", weight="byzantine", keep=keep)
            yield from scale.cases(setting, told, network=network, partition=partition, attack=attack)

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        return {
            "Accuracy at the end": drawing.end_bars(result, self.reported),
            "Accuracy over the rounds": self.curves(result),
        }

    def findings(self, result: Results) -> Iterator[Claim]:
        for rule in ("Median", "Krum"):
            behind: list[Floats] = []
            for setting in (DUMBBELL, *ATTACKED):
                final = result.finals(self.reported(setting))
                lead = final(setting, "GM") - final(setting, rule)
                behind.append(np.where(np.isnan(lead), np.nan, lead > 0))
            yield check(
                f"{rule} usually performs worse than GM",
                np.mean(behind, axis=0),
                "at least 50 %",
                note=f"share of the {len(behind)} settings in which GM is ahead",
            )


EXPERIMENT = NewerRules()
