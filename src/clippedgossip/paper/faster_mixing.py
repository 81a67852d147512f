"""Not in the paper: the weights with the largest γ, and whether training gains from them."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from clippedgossip.network import Network
from clippedgossip.paper import training_figure as figure
from clippedgossip.paper.more_topologies import NETWORKS
from clippedgossip.paper.results import Results
from clippedgossip.report.claims import Claim, Floats, check
from clippedgossip.runs.config import NetworkConfig

PLACES: Mapping[str, tuple[dict[str, Any], str]] = {
    "dumbbell": ({"name": "dumbbell", "clique": 5, "byzantine": {"pendants": [0, 9]}}, "clique"),
    **{where: (network, "sorted") for where, network in NETWORKS.items()},
    "random graph": (
        {"name": "erdos-renyi", "nodes": 12, "probability": 0.4, "byzantine": {"random": 2}, "seed": 0},
        "sorted",
    ),
}
WEIGHTS: Mapping[str, Any] = {
    "Metropolis–Hastings": "metropolis-hastings",
    "optimal": "optimal",
    "robust": {"robust": 1, "cap": 0.2},
}
MH, OPTIMAL, ROBUST = WEIGHTS
ATTACKS = {name: figure.PAPER_ATTACKS[name] for name in ("ALIE", "IPM", "BF", "LF", "dissensus")}
"""Those that claims are about. The runs without an attack show what the weights and the radius do alone."""


class FasterMixing(figure.TrainingExperiment):
    name = "optimal-weights"
    title = "Weights with the largest spectral gap"
    lead = """ClippedGossip on four networks with two Byzantine nodes each, without an attack and under five,
    with three kinds of weights: Metropolis–Hastings, those with the largest γ of the full W, and robust ones,
    with the largest γ such that no neighbour has more than 0.2."""
    section = "Optimal weights"
    scales = figure.LONGER
    groups: ClassVar = {"dumbbell": "clique A"}
    remarks = """The radius is adaptive and knows δ_max. Weights are computed without knowing who is
    Byzantine. ALIE has the z of the text's formula, which is negative at all attacked nodes but one: it
    is hardly an attack. The theorem's measure of difficulty is δ_max/γ², with γ that of the regular nodes."""

    def cases(self, scale: figure.Scale) -> Iterator[figure.Case]:
        for where, (network, partition) in PLACES.items():
            for attack, how in {"no attack": "none", **ATTACKS}.items():
                for label, weights in WEIGHTS.items():
                    weighted, setting = {**network, "weights": weights}, f"{where}, {attack}"
                    yield scale.case(
                        setting, label, figure.adaptive(), network=weighted, partition=partition, attack=how
                    )

    def findings(self, result: Results) -> Iterator[Claim]:
        yield check(
            "optimal weights raise γ on every network",
            min(_network(w, OPTIMAL).spectral_gap_full / _network(w, MH).spectral_gap_full for w in PLACES),
            "at least 1.01 ×",
            note="γ of the full W against Metropolis–Hastings, the smallest of the four",
            digits=2,
        )
        for weights in (OPTIMAL, ROBUST):
            yield check(
                f"{weights} weights lower δ_max/γ² on every network",
                max(_difficulty(where, weights) / _difficulty(where, MH) for where in PLACES),
                "at most 1 ×",
                note="with γ of the regular nodes, against Metropolis–Hastings, the largest of the four",
                digits=2,
            )
        agree: list[Floats] = []
        for where in PLACES:
            for weights in (OPTIMAL, ROBUST):
                group = self.reported(where)
                gain = _gain(result, where, weights, group)
                yield check(
                    f"{where}: {weights} weights train better",
                    gain,
                    "at least 0 points",
                    note=f"accuracy of {'all regular nodes' if group == 'all' else group} against "
                    "Metropolis–Hastings, mean over the attacks",
                )
                easier = _difficulty(where, weights) < _difficulty(where, MH)
                agree.append(np.where(np.isnan(gain), np.nan, (gain > 0) == easier))
        yield check(
            "the weights with the smaller δ_max/γ² train better",
            np.mean(agree, axis=0),
            "at least 75 %",
            note=f"share of {len(agree)} comparisons with Metropolis–Hastings",
        )


@cache
def _network(where: str, weights: str) -> Network:
    return NetworkConfig.from_value({**PLACES[where][0], "weights": WEIGHTS[weights]}).build()


def _difficulty(where: str, weights: str) -> float:
    network = _network(where, weights)
    return network.delta_max / network.spectral_gap**2


def _gain(result: Results, where: str, weights: str, group: str) -> Floats:
    """Mean over the attacks of the accuracy gained over Metropolis–Hastings."""
    final = result.finals(group)
    gains = [final(f"{where}, {a}", weights) - final(f"{where}, {a}", MH) for a in ATTACKS]
    mean: Floats = np.mean(gains, axis=0)
    return mean
