"""Not in the paper: many local steps, then an exchange with one random partner (NoLoCo), some Byzantine."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from clippedgossip.paper import training_figure as figure
from clippedgossip.paper.results import Results
from clippedgossip.report.claims import Claim, Floats, check

STEPS = 8
NETWORK = {"name": "complete", "nodes": 16, "byzantine": {"random": 2}, "seed": 0}
PARTNER = {"schedule": {"name": "random-matching"}}
RULES: Mapping[str, Any] = {"Gossip": "gossip", "ClippedGossip": figure.TUNED}
ATTACKS: Mapping[str, Any] = {
    "no attack": "none",
    "BF": figure.PAPER_ATTACKS["BF"],
    "noise": {"name": "gaussian", "std": 1.0},
    "LF": figure.PAPER_ATTACKS["LF"],
}
HARMFUL = ("BF", "noise")


class RandomPartner(figure.TrainingExperiment):
    name = "random-partner"
    title = "Local steps and a random partner"
    lead = f"""Sixteen nodes, two of them Byzantine. Each takes {STEPS} local steps and then mixes with one
    partner drawn at random, as in NoLoCo. Averaging with the partner is compared with clipping its
    message."""
    section = "Networks that change"
    scales = figure.LONGER
    remarks = f"""There are {STEPS} times fewer rounds than in the other figures, so the gradients are as
    many. Data are drawn at random. A partner has the weight ½, so a Byzantine partner has δ_i = ½: no bound
    on δ_max helps, and the radius is a number: the best of 0.03, 0.1, 0.3 and 1 over all attacks, chosen on a
    seed that is not reported. Dissensus and ALIE are no attacks here: they use the other neighbours of the
    receiver, and it has none."""

    def cases(self, scale: figure.Scale) -> Iterator[figure.Case]:
        fewer = figure.often(scale.training["rounds"] // STEPS, 3)
        for attack, how in ATTACKS.items():
            yield from scale.cases(
                attack, RULES, network=NETWORK | PARTNER, attack=how, local_steps=STEPS, **fewer
            )

    def findings(self, result: Results) -> Iterator[Claim]:
        final = result.finals("all")

        def lost(rule: str, attack: str) -> Floats:
            return final("no attack", rule) - final(attack, rule)

        for attack in HARMFUL:
            yield check(
                f"{attack}: averaging with a random partner fails",
                lost("Gossip", attack),
                "at least 10 points",
                note="accuracy lost against no attack",
            )
            yield check(
                f"{attack}: clipping is better than averaging",
                final(attack, "ClippedGossip") - final(attack, "Gossip"),
                "at least 0 points",
            )
        yield check(
            "clipping the partner's message holds",
            np.max([lost("ClippedGossip", attack) for attack in ATTACKS], axis=0),
            "at most 3 points",
            note="accuracy lost against no attack, the worst of the three attacks",
        )
        yield check(
            "without an attack clipping costs little",
            final("no attack", "ClippedGossip") - final("no attack", "Gossip"),
            "at least -1 points",
            note=result.unclipped("no attack", "against averaging"),
        )
