"""Fig. tuning_tau: ClippedGossip with fixed radii over two decades, and with the adaptive one."""

from collections.abc import Sequence

from clippedgossip.experiments.checks import best, check, worst
from clippedgossip.experiments.results import Results
from clippedgossip.experiments.scales import Case, Scale, ScaleName, adaptive, clipped
from clippedgossip.experiments.training import TrainingExperiment
from clippedgossip.report.claims import Claim, Claims

NETWORK = {"name": "dumbbell", "clique": 5, "byzantine": {"pendants": [4, 5]}}
RADII = (0.1, 0.5, 1.0, 2.0, 10.0)
ATTACKS = {"BF": "bit-flipping", "LF": "label-flipping", "ALIE": "alie"}
FIXED = tuple(f"τ = {radius:g}" for radius in RADII)
ADAPTIVE = "adaptive"


class ClippingRadius(TrainingExperiment):
    name = "clipping-radius"
    title = "Choosing the clipping radius"
    lead = (
        "Two cliques of five with different digits and an attacker at either end of the bridge. "
        "ClippedGossip with five radii, and with the adaptive radius that needs only a bound on δ_max. Fig. "
        "tuning_tau of the paper."
    )
    remarks = (
        "Reported is the model averaged over all regular nodes, as in the paper. The adaptive radius is told "
        "the true δ_max. ALIE's z follows the text's formula."
    )

    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        rules = {label: clipped(radius) for label, radius in zip(FIXED, RADII, strict=True)}
        return [
            case
            for attack, how in ATTACKS.items()
            for case in scale.cases(
                attack, {**rules, ADAPTIVE: adaptive()}, network=NETWORK, partition="clique", attack=how
            )
        ]

    def claims(self, result: Results) -> Claims:
        return Claims([*_insensitive(result), *_adaptive(result)], "Choosing clipping radius")


def _insensitive(result: Results) -> list[Claim]:
    final = result.finals("all")
    return [
        check(
            f"{attack}: performances with different τ are similar",
            best(final(attack, rule) for rule in FIXED) - worst(final(attack, rule) for rule in FIXED),
            high=0.1,
            unit="points",
            note="best against worst τ from 0.1 to 10",
        )
        for attack in ATTACKS
    ]


def _adaptive(result: Results) -> list[Claim]:
    final = result.finals("all")
    return [
        check(
            f"{attack}: the adaptive radius performs well",
            final(attack, ADAPTIVE) - best(final(attack, rule) for rule in FIXED),
            low=-0.05,
            unit="points",
            note="against the best fixed τ",
        )
        for attack in ATTACKS
    ]


EXPERIMENT = ClippingRadius()
