"""The two scales of every training figure, and its lines."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from clippedgossip.files import canonical
from clippedgossip.runs.config import RunConfig

ScaleName = Literal["quick", "paper"]

PAPER_ATTACKS: Mapping[str, Any] = {
    "ALIE": "alie",
    "ALIE z=10": {"name": "alie", "z": 10.0},
    "IPM": {"name": "ipm", "epsilon": 0.1},
    "BF": "bit-flipping",
    "LF": "label-flipping",
    "dissensus": {"name": "dissensus", "epsilon": 1.5},
}
"""The attacks of the paper's figures. ALIE's z follows the text's formula, or is the released runs' 10."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a figure: a rule in a setting. Each of its seeds is one run."""

    setting: str
    rule: str
    config: RunConfig

    @property
    def mapping(self) -> dict[str, Any]:
        """Its config without the seed, with values that JSON has."""
        mapping: dict[str, Any] = json.loads(canonical(self.config.to_mapping()))
        del mapping["seed"]
        return mapping

    def shortened(self, length: float) -> "Case":
        """The same with a fraction of the rounds. Drops of the learning rate move with it."""
        if length == 1:
            return self
        whole = self.config.training
        part = replace(
            whole,
            rounds=max(1, round(whole.rounds * length)),
            lr_drops=tuple(round(drop * length) for drop in whole.lr_drops),
            evaluate_last=max(1, round(whole.evaluate_last * length)),
        )
        return replace(self, config=replace(self.config, training=part))

    def seeded(self, seed: int, device: str = "auto") -> RunConfig:
        return replace(self.config, seed=seed, device=device)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What all lines of a figure share: data, model, the numbers of Algorithm 1, and the unit of τ."""

    data: Mapping[str, Any]
    model: str
    training: Mapping[str, Any]
    radius: float
    about: str

    def case(
        self,
        setting: str,
        rule: str,
        how: str | Mapping[str, Any],
        *,
        network: Mapping[str, Any],
        partition: str = "iid",
        attack: str | Mapping[str, Any] | None = None,
        **training: Any,
    ) -> Case:
        """A line. Byzantine nodes train on copies of the data, so that the regular nodes hold all of it."""
        raw: dict[str, Any] = {
            "network": network,
            "rule": how,
            "data": {**self.data, "partition": partition, "byzantine_copies": attack is not None},
            "model": self.model,
            "training": {**self.training, **training},
        }
        if attack is not None:
            raw["attack"] = attack
        return Case(setting=setting, rule=rule, config=RunConfig.from_mapping(raw))

    def cases(
        self, setting: str, rules: Mapping[str, str | Mapping[str, Any]], **shared: Any
    ) -> Sequence[Case]:
        """One line for each rule."""
        return [self.case(setting, name, how, **shared) for name, how in rules.items()]


def clipped(radius: float) -> dict[str, Any]:
    return {"name": "clipped-gossip", "radius": radius}


def by_radius(*radii: float) -> dict[str, Any]:
    """ClippedGossip with each of these radii."""
    return {f"τ = {radius:g}": clipped(radius) for radius in radii}


def adaptive(weight: float | str = "byzantine") -> dict[str, Any]:
    """τ_i from the messages and a bound on δ_max, by default the true one (§ choosing clipping radius)."""
    return {"name": "clipped-gossip", "radius": {"adaptive": weight}}


def paper_rules(
    radius: float, *, trim: int | str = "byzantine", keep: float = 0.99
) -> dict[str, str | dict[str, Any]]:
    """The five rules of the paper's figures. GM takes 8 iterations, Mozi a = 0.5 (§ aggregator setup)."""
    return {
        "Gossip": "gossip",
        "ClippedGossip": clipped(radius),
        "GM": "geometric-median",
        "TM": {"name": "trimmed-mean", "trim": trim},
        "Mozi": {"name": "mozi", "keep": keep, "self_weight": 0.5},
    }


def bucketed(rule: str | Mapping[str, Any]) -> dict[str, Any]:
    """Bucketing with s = 2 (§ Techniques that improve information diffusion)."""
    return {"name": "bucketing", "rule": rule, "size": 2}


def often(rounds: int, every: int) -> dict[str, Any]:
    """Evaluate every `every` rounds. The reported accuracy is the mean over the last sixth."""
    return {
        "rounds": rounds,
        "evaluate_every": every,
        "evaluate_last": rounds // 6,
        "evaluate_last_every": every,
        "evaluate_nodes": False,
    }


MNIST: Mapping[ScaleName, Scale] = {
    "quick": Scale(
        data={"name": "digits"},
        model="mlp",
        training={"batch": 32, "lr": 0.01, "momentum": 0.9, **often(360, 12)},
        radius=1.0,
        about="The miniature: scikit-learn's 1,797 digits in place of MNIST, one hidden layer of 64 in place "
        "of the CNN, 360 rounds in place of 900. Batch, learning rate, momentum and τ are the paper's.",
    ),
    "paper": Scale(
        data={"name": "mnist"},
        model="cnn",
        training={"batch": 32, "lr": 0.01, "momentum": 0.9, "precision": "tf32", **often(900, 30)},
        radius=1.0,
        about="The paper's setting: MNIST, its CNN of 1,199,882 parameters, batch 32, learning rate 0.01, "
        "momentum 0.9, 900 rounds unless said otherwise; accuracies are means over the last 150 rounds.",
    ),
}

EPOCH = 39  # rounds: 50,000 images, 20 workers, batch 64

CIFAR: Mapping[ScaleName, Scale] = {
    "quick": Scale(
        data={"name": "digits"},
        model="deep-mlp",
        training={"batch": 32, "lr": 0.07, "momentum": 0.9, **often(360, 12)},
        radius=10.0,
        about="The miniature: scikit-learn's 1,797 digits in place of CIFAR-10, six hidden layers of 32 in "
        "place of VGG-11 (averaging models of one hidden layer costs little accuracy), a "
        "learning rate of 0.07, the largest that does not diverge, and 360 rounds. τ = 10 is the paper's.",
    ),
    "paper": Scale(
        data={"name": "cifar10", "augment": True},
        model="vgg11",
        training={
            "batch": 64,
            "lr": 0.1,
            "lr_drops": [80 * EPOCH, 120 * EPOCH],
            "momentum": 0.9,
            "precision": "tf32",
            **often(150 * EPOCH, EPOCH),
            "evaluate_last": 150,
            "evaluate_last_every": 30,
        },
        radius=10.0,
        about="The paper's setting: CIFAR-10, VGG-11 without batch normalisation, batch 64, learning rate "
        "0.1, a tenth of it from epoch 80 and a hundredth from epoch 120, momentum 0.9, 150 epochs.",
    ),
}
