"""Fig. more_topologies: five attacks on a small world and on a torus. Each node has its own digits."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from clippedgossip.paper.results import DISTANCE, Results
from clippedgossip.paper.training_figure import TUNED, Case, Scale, TrainingExperiment, paper_rules
from clippedgossip.report import claims
from clippedgossip.report.claims import NO_WORSE, NO_WORSE_SOURCE, Claim, best, check, ratio, rounds_to, worst
from clippedgossip.runs.config import NetworkConfig

NETWORKS = {
    "small world": {"name": "small-world", "byzantine": {"pendants_random": 2}, "seed": 0},
    "torus": {"name": "torus", "byzantine": {"pendants_random": 2}, "seed": 0},
}
BRIDGED = {"name": "dumbbell", "clique": 5, "byzantine": {"pendants": [4, 5]}}
JUDGED = ("ALIE z=10", "IPM", "BF", "LF", "dissensus")
"""With the z of the text's formula, which is negative here, ALIE is no attack. No claim is about it."""
CALM = "dumbbell 5+5, no attack"
ROBUST = ("ClippedGossip", "GM", "TM", "Mozi")


class MoreTopologies(TrainingExperiment):
    name = "more-topologies"
    title = "More attacks and topologies"
    lead = """Ten workers in a small world and nine on a torus, each with its own digits. Two Byzantine nodes
    are attached to two of the workers. Fig. more_topologies of the paper."""
    section = "Decentralized learning under more attacks and topologies"
    groups: ClassVar = {CALM: "clique A"}
    remarks = """The data are sorted by label and cut into equal shards. Weights are Metropolis–Hastings. With
    the seed of the two networks the gap of the full W is that of the text. The radius of ClippedGossip is the
    best of 0.03, 0.1, 0.3 and 1 on each network, chosen on seeds that are not reported: the authors chose it
    for each figure, the text gives 1 as the default only. The parameters of the other rules are not searched
    for here; `newer-rules` does that. None of the released runs is of these two networks; in all others ALIE
    has z = 10. The z of the text's formula (eq. z:alie) is negative on these networks, which is no attack; it
    is shown beside. TM drops one value per side: the number of Byzantine neighbours of an attacked node. Mozi
    has a = 0.5, as on the dumbbell. The default of the text is 1; in the rule as published that would mean no
    exchange at all."""

    def cases(self, scale: Scale) -> Iterator[Case]:
        rules = paper_rules(TUNED)
        if scale.name == "quick":
            del rules["Gossip"]  # no claim is about it
        for where, network in NETWORKS.items():
            for attack, how in scale.attacks(JUDGED, "ALIE").items():
                setting = f"{where}, {attack}"
                yield from scale.cases(setting, rules, network=network, partition="sorted", attack=how)
        calm = paper_rules(scale.radius, trim=1)
        del calm["ClippedGossip"]
        yield from scale.cases(CALM, calm, network={"name": "dumbbell", "clique": 5}, partition="clique")

    def findings(self, result: Results) -> Iterator[Claim]:
        small, torus, bridged = (
            NetworkConfig.from_value(network).build() for network in (*NETWORKS.values(), BRIDGED)
        )
        full = "of the full W; of W̃ it is larger"
        yield rounds_to("γ of the small world", small.spectral_gap_full, "0.084", note=full)
        yield rounds_to("γ of the torus", torus.spectral_gap_full, "0.131", note=full)
        harder = "γ of the dumbbell they are less restrictive than"
        yield rounds_to(harder, bridged.spectral_gap, "0.043", note="of W̃")
        final, distance = result.finals("all"), result.finals(DISTANCE)
        for setting in (f"{where}, {attack}" for where in NETWORKS for attack in JUDGED):
            yield check(
                f"{setting}: ClippedGossip is superior",
                final(setting, "ClippedGossip") - best(final(setting, rule) for rule in ROBUST[1:]),
                NO_WORSE,
                note="its lead over the best of GM, TM, Mozi",
                source=f'"consistently superior performance"; {NO_WORSE_SOURCE}.',
            )
        for rule in ROBUST:
            yield check(
                f"{rule} does better on the torus, whose γ is larger",
                _mean(result, "torus", rule) - _mean(result, "small world", rule),
                "at least 0 points",
                note="mean over the attacks",
                source='"generally performing better on easier topology (large γ)".',
            )
        for where in NETWORKS:
            clipping, second, *others = (_mean(result, where, rule) for rule in ROBUST)
            yield check(
                f"{where}: GM comes second",
                worst([second - best(others), clipping - second]),
                NO_WORSE,
                note="its lead over TM and Mozi, or ClippedGossip's over it if less; mean over attacks",
                source=f'Caption: "with the geometric median (GM) coming second"; {NO_WORSE_SOURCE}.',
            )
        for rule in ROBUST[1:]:
            yield check(
                f"{CALM}: {rule} fails to reach consensus",
                ratio(distance(CALM, rule), distance(CALM, "Gossip")),
                "at least 10 ×",
                note="its Ξ over gossip's",
                source='"the dumbbell topology where all existing aggregators fail to reach consensus even '
                'δ = 0"; the bound is ours. In a released run on this network GM reaches 68 %.',
            )


def _mean(result: Results, where: str, rule: str) -> claims.Floats:
    final = result.finals("all")
    mean: claims.Floats = np.mean([final(f"{where}, {attack}", rule) for attack in JUDGED], axis=0)
    return mean
