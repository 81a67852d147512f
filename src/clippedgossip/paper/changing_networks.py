"""Not in the paper: networks that change from round to round, and messages that come late."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from clippedgossip.paper import training_figure as figure
from clippedgossip.paper.results import Results
from clippedgossip.report.claims import Claim, Floats, check

BRIDGES = (1, 4, 16)
HEARD = 5  # ⌈log₂ 20⌉
CHURN = {"name": "churn", "leave": 0.05, "join": 0.2}
DELAYS: Mapping[str, Any] = {"2 rounds late": 2, "0 to 4 rounds late": {"edges": 4}}
DISSENSUS = {"dissensus": figure.PAPER_ATTACKS["dissensus"]}
CALM = "no attack"
ATTACKS = {name: figure.PAPER_ATTACKS[name] for name in ("ALIE z=10", "dissensus")}
RULES = {name: rule for name, rule in figure.paper_rules(figure.TUNED).items() if name != "Mozi"}
FEW = {name: RULES[name] for name in ("Gossip", "ClippedGossip")}
OVER_A_BRIDGE = RULES | {"ClippedGossip": figure.Grid(figure.by_radius(0.1, 0.3, 1.0, 3.0))}
"""Models that meet in every fourth round are further apart than those that meet in every round."""
EVERYONE, SOME = "all-to-all", f"{HEARD} random neighbours"
STILL, COMING = "torus", "torus, nodes come and go"


def dumbbell(every: int) -> dict[str, Any]:
    """The bridge is there in every so many rounds."""
    network: dict[str, Any] = {"name": "dumbbell", "clique": 5, "byzantine": {"pendants": [0, 9]}}
    if every == 1:
        return network
    phases = [{"rounds": every - 1, "without": [[4, 5]]}, {"rounds": 1}]
    return network | {"schedule": {"name": "phases", "phases": phases}}


def bridge(every: int) -> str:
    return "bridge in every round" if every == 1 else f"bridge in every {every}th round"


COMPLETE = {"name": "complete", "nodes": 20, "byzantine": {"random": 3}, "seed": 0}
TORUS = {"name": "torus", "rows": 4, "columns": 4, "byzantine": {"random": 2}, "seed": 0}


def places() -> Iterator[tuple[str, dict[str, Any], str, Mapping[str, Any], Mapping[str, Any]]]:
    """(setting, network, partition, rules, attacks)."""
    for every in BRIDGES:
        yield bridge(every), dumbbell(every), "clique", OVER_A_BRIDGE, {CALM: "none", **DISSENSUS}
    heard = {"name": "random-neighbours", "neighbours": HEARD}
    yield EVERYONE, COMPLETE, "sorted", FEW, ATTACKS
    yield SOME, COMPLETE | {"schedule": heard}, "sorted", FEW, ATTACKS
    yield STILL, TORUS, "sorted", FEW, DISSENSUS
    yield COMING, TORUS | {"schedule": CHURN}, "sorted", FEW, DISSENSUS
    for label, delay in DELAYS.items():
        yield f"torus, {label}", TORUS | {"delay": delay}, "sorted", FEW, DISSENSUS


class ChangingNetworks(figure.TrainingExperiment):
    name = "changing-networks"
    title = "Networks that change from round to round"
    lead = """A dumbbell whose bridge is there in every k-th round; twenty nodes of which each hears all
    others, or five drawn anew in each round; a torus whose nodes come and go, or whose messages come late.
    Two or three nodes are Byzantine."""
    section = "Networks that change"
    scales = figure.LONGER
    groups: ClassVar = {bridge(every): "clique A" for every in BRIDGES}
    remarks = """Each clique of the dumbbell holds half of the classes, so the model of clique A shows
    what comes over the bridge; the average of both cliques is good without any exchange. Elsewhere the
    data are sorted by label. The radius of ClippedGossip is the best of four values on each network (the
    tables name them), chosen on seeds that are not reported. TM drops as many values per side as a node
    has Byzantine neighbours at most. A node that is away trains on by itself. Byzantine nodes are never
    late."""

    def cases(self, scale: figure.Scale) -> Iterator[figure.Case]:
        for setting, network, partition, rules, attacks in places():
            for attack, how in attacks.items():
                label = f"{setting}, {attack}"
                yield from scale.cases(label, rules, network=network, partition=partition, attack=how)

    def findings(self, result: Results) -> Iterator[Claim]:
        def ours(setting: str, attack: str = "dissensus", rule: str = "ClippedGossip") -> Floats:
            return result.final(f"{setting}, {attack}", rule, self.reported(setting))

        for every in BRIDGES:
            for attack in (CALM, *DISSENSUS):
                yield check(
                    f"{bridge(every)}, {attack}: clique A learns from clique B",
                    ours(bridge(every), attack),
                    "at least 53 %",
                    note="ClippedGossip; with its own classes alone it has 50 %",
                )
        for every in BRIDGES:
            rivals = [ours(bridge(every), CALM, rule) for rule in ("GM", "TM")]
            yield check(
                f"{bridge(every)}, {CALM}: ClippedGossip beats GM and TM",
                ours(bridge(every), CALM) - np.max(rivals, axis=0),
                "at least 1 points",
                note="clique A, against the better of the two",
            )
        for every in BRIDGES[1:]:
            yield check(
                f"a bridge in every {every}th round costs ClippedGossip little",
                ours(bridge(every), CALM) - ours(bridge(1), CALM),
                "at least -3 points",
                note=f"clique A, {CALM}, against the bridge in every round",
            )
        for attack in ATTACKS:
            yield check(
                f"{attack}: {HEARD} random neighbours are as good as all-to-all",
                ours(SOME, attack) - ours(EVERYONE, attack),
                "at least -1 points",
                note=f"ClippedGossip, {20 * HEARD} messages a round in place of {20 * 19}",
            )
        yield check(
            "ClippedGossip bears nodes that come and go",
            ours(COMING) - ours(STILL),
            "at least -3 points",
            note="a fifth of the nodes is away at any time; against the torus as it is",
        )
        for label in DELAYS:
            yield check(
                f"ClippedGossip bears messages {label}",
                ours(f"torus, {label}") - ours(STILL),
                "at least -3 points",
                note="against messages in time",
            )
        for setting in (SOME, COMING, *(f"torus, {label}" for label in DELAYS)):
            yield check(
                f"{setting}: ClippedGossip is better than gossip",
                ours(setting) - ours(setting, rule="Gossip"),
                "at least 0 points",
                note="under dissensus",
            )
