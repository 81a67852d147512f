"""What every rule is measured on, and the values that the search tries for its parameters.

Whoever changes anything here changes VERSION: numbers of one version can be compared, others cannot.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clippedgossip.errors import UserError
from clippedgossip.rules import RULES
from clippedgossip.runs.config import RunConfig

VERSION = 2
CLEAN = "none"
Table = Mapping[str, Any]

NETWORKS: Mapping[str, tuple[Table, str]] = {
    "complete": ({"name": "complete", "nodes": 10, "byzantine": {"random": 2}, "seed": 0}, "dirichlet"),
    "torus": ({"name": "torus", "rows": 3, "columns": 4, "byzantine": {"random": 2}, "seed": 2}, "dirichlet"),
    "dumbbell": ({"name": "dumbbell", "clique": 5, "byzantine": {"pendants": [0, 9]}}, "sorted"),
}
"""Network and partition: all to all; sparse, where each node has four neighbours; and a bottleneck between
groups that hold other classes."""


def _tuned(attack: str) -> Table:
    return {"name": "tuned", "attack": {"name": attack}, "steps": 4, "refinements": 1}


ATTACKS: Mapping[str, Table] = {
    CLEAN: {"name": CLEAN},
    "bit-flipping": {"name": "bit-flipping"},
    "alie": {"name": "alie"},
    "ipm": {"name": "ipm"},
    "tuned dissensus": _tuned("dissensus"),
    "tuned alie": _tuned("alie"),
}
"""The last two search, in each round, for the strength that harms most with the rule in use."""
SEARCHED = ("alie", "tuned dissensus")
"""The attacks under which parameters are chosen."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """One size of the suite."""

    name: str
    data: Table
    model: str
    training: Table
    seeds: Sequence[int] = (0, 1, 2)
    """The reported ones."""
    search_seeds: Sequence[int] = (100,)
    """Those on which parameters are chosen. None of them is reported."""

    def config(self, rule: Table, where: str, attack: str, seed: int) -> RunConfig:
        network, partition = NETWORKS[where]
        data = {**self.data, "partition": partition, "byzantine_share": True}
        mapping = {"seed": seed, "network": network, "data": data, "model": self.model, "rule": rule}
        mapping |= {"attack": ATTACKS[attack], "training": self.training}
        return RunConfig.from_mapping(mapping, folder=Path.cwd())

    def configs(
        self, rule: Table, seeds: Sequence[int], attacks: Collection[str] = tuple(ATTACKS)
    ) -> Iterator[RunConfig]:
        """Every network under every attack."""
        for where in NETWORKS:
            for attack in attacks:
                for seed in seeds:
                    yield self.config(rule, where, attack, seed)

    def fits(self, rule: Table) -> bool:
        """Whether the rule can work on every network."""
        try:
            for where in NETWORKS:
                config = self.config(rule, where, CLEAN, 0)
                network = config.network.build()
                built = config.rule.build(network)
                for count in set(network.degrees[network.regular].tolist()):
                    built.check(int(count))
        except UserError:
            return False
        return True


def _training(rounds: int, *, last: int, every: int) -> Table:
    evaluated = {"evaluate_every": every, "evaluate_last": last, "evaluate_last_every": every}
    return {"rounds": rounds, "lr": 0.03, **evaluated}


SUITES: Mapping[str, Suite] = {
    "mini": Suite(
        name="mini",
        data={"name": "digits"},
        model="mlp",
        training=_training(80, last=20, every=20),
    ),
    "full": Suite(
        name="full",
        data={"name": "mnist"},
        model="mlp",
        training=_training(180, last=90, every=45),
    ),
}

_RADII: Sequence[Table] = [{"radius": radius} for radius in (0.03, 0.1, 0.3, 1.0)]
_COUNTS: Mapping[str, Sequence[Table]] = {
    key: [{key: "byzantine"}, {key: 1}, {key: 2}] for key in ("faulty", "trim")
}
_WEIGHTS: Sequence[Table] = [{"byzantine_weight": weight} for weight in ("byzantine", 0.1, 0.2, 0.3)]
TRIED: Mapping[str, Sequence[Table]] = {
    "clipped-gossip": [*_RADII[:3], {"radius": {"adaptive": "byzantine"}}],
    "centered-clipping": _RADII,
    "geometric-median": [{"iterations": count} for count in (2, 4, 8, 16)],
    "trimmed-mean": _COUNTS["trim"],
    "weighted-trimmed-mean": [{"trim": weight} for weight in ("byzantine", 0.1, 0.2, 0.3)],
    "mozi": [{"keep": keep} for keep in (0.4, 0.7, 0.99)],
    "cs-plus": _WEIGHTS,
    "gts": _WEIGHTS,
    "balance": [{"gamma": gamma} for gamma in (0.03, 0.1, 0.3, 1.0)],
    "bucketing": [{"rule": {"name": inner}} for inner in ("geometric-median", "median", "clipped-gossip")],
    "nnm": [
        {"rule": {"name": "trimmed-mean", "trim": 1}, "faulty": 1},
        {"rule": {"name": "median"}, "faulty": 1},
        {"rule": {"name": "geometric-median"}, "faulty": 1},
    ],
    **dict.fromkeys(("krum", "multi-krum", "nna", "ios", "meamed", "mda"), _COUNTS["faulty"]),
}
"""At most four values for each rule, so that none is searched longer than another. "byzantine" tells a rule
the true number or weight of Byzantine neighbours."""


def candidates(rule: Table) -> list[Table]:
    """The parameters to try; what the user gives parameters to is taken as it is."""
    name = str(rule["name"])
    if len(rule) > 1 or name not in RULES:
        return [rule]
    return [{"name": name, **values} for values in TRIED.get(name, [{}])]
