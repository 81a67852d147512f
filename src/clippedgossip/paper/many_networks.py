"""Experiments on many small networks: consensus under the strongest of several attacks on each of them.

The networks are parts of one network without edges between them. Every attack is run with every strength of
a list. On each network the one that does the most harm at the end counts: it is tuned on each network alone.
`python -m clippedgossip.paper.many_networks components 2000 FILE` does the networks of one seed.
"""

import json
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from clippedgossip.attacks import ALIE, IPM, Attack, Dissensus, FreeAttack, View
from clippedgossip.devices import threads_for, usable_cores
from clippedgossip.errors import RunError
from clippedgossip.files import write
from clippedgossip.network import Network
from clippedgossip.paper.base import Experiment, Needs, Options, Progress, load
from clippedgossip.paper.results import decoded, found, read_json, rounded, unreadable
from clippedgossip.report.claims import Floats
from clippedgossip.rules import Rule
from clippedgossip.simulate.consensus import trajectory

FORMAT = 1
FIRST_SEED = 2000
"""Criteria, families of networks and claims were chosen on smaller seeds."""
STRENGTHS = {
    "dissensus": (0.5, 1.5, 5.0, 50.0),
    "spectral": (0.5, 5.0, 50.0),
    "IPM": (0.5, 5.0),
    "ALIE": (2.0, 20.0),
}


@dataclass(frozen=True, kw_only=True)
class NetworkCase:
    """One network and what was seen on it, in values that JSON has."""

    seed: int


Case = TypeVar("Case", bound=NetworkCase)


class Cases(list[Case]):
    """The cases of all seeds, and why there are none."""

    troubles: Sequence[str] = ()


class ManyNetworks(Experiment[Cases[Case]], Generic[Case]):
    """An experiment whose networks follow from a seed. The cases of a finished seed are kept in its folder,
    so that a stopped experiment resumes."""

    case: ClassVar[type[NetworkCase]]

    @abstractmethod
    def simulate(self, seed: int) -> list[Case]:
        """The networks of a seed."""

    def needs(self, options: Options) -> Needs[Cases[Case]]:
        if options.source is None:
            return Needs(lambda progress: self._done(options, progress))
        try:
            path = found(options.source, self.name)
        except RunError as error:
            if not options.lenient:
                raise
            none = Cases[Case]()
            none.troubles = [str(error).splitlines()[0]]
            return Needs(lambda progress: none)
        return Needs(lambda progress: self.read(path))

    def rows(self, result: Cases[Case]) -> list[dict[str, Any]]:
        return [asdict(case) for case in result]

    def save(self, result: Cases[Case], folder: Path) -> None:
        self.write(result, folder / "results.json")

    def write(self, cases: Iterable[Case], path: Path) -> None:
        """The file that `--from` reads."""
        rows = [rounded(asdict(case)) for case in cases]
        content = {"format": FORMAT, "experiment": self.name, "cases": rows}
        write(path, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")

    def read(self, path: Path) -> Cases[Case]:
        """What `write` wrote."""
        raw = read_json(path)
        if raw["format"] != FORMAT or raw.get("experiment") != self.name:
            raise unreadable(path, f"it holds results of {raw.get('experiment')!r}, not of {self.name!r}")
        if not isinstance(rows := raw.get("cases", []), list):
            raise unreadable(path, f"its cases are {rows!r}")
        return Cases[Any](decoded(self.case, row, path) for row in rows)

    def _done(self, options: Options, progress: Progress) -> Cases[Case]:
        """Each seed in a process of its own, as many at a time as there are cores."""
        folder = options.out / self.name / "seeds"
        seeds = range(FIRST_SEED, FIRST_SEED + options.seed_count)
        paths = {seed: folder / f"{seed}.json" for seed in seeds}
        open_ = [seed for seed in seeds if not paths[seed].exists()]
        with ThreadPoolExecutor(min(options.workers or usable_cores(), len(seeds))) as pool:
            running = [pool.submit(self._one_seed, seed, paths[seed]) for seed in open_]
            for done, future in enumerate(as_completed(running), 1):
                future.result()
                progress(f"{self.name}, {len(seeds)} seeds", len(seeds) - len(open_) + done, len(seeds))
        return Cases[Case](case for seed in seeds for case in self.read(paths[seed]))

    def _one_seed(self, seed: int, path: Path) -> None:
        command = [sys.executable, "-m", __name__, self.name, str(seed), str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            last = (ended.stderr.strip().splitlines() or ["it gave no reason"])[-1]
            why = f"{self.name}, seed {seed}: the process ended early: {last}"
            raise RunError(f"{why}\nrun the same command again to resume")


def by_seed(cases: Iterable[Case]) -> list[list[Case]]:
    """The cases of each seed."""
    found: dict[int, list[Case]] = {}
    for case in cases:
        found.setdefault(case.seed, []).append(case)
    return list(found.values())


@dataclass(frozen=True, eq=False)
class _Spectral(FreeAttack):
    """x_i + c·v_i·(vᵀX) in every part, v the Fiedler vector of the part; 0 in a part without one."""

    modes: Tensor  # (parts, r)
    c: float = 1.0
    strength: ClassVar[str | None] = "c"

    def messages(self, view: View) -> Tensor:
        along = self.modes.T @ (self.modes @ view.models)
        return (view.models + self.c * along)[view.receivers]


@dataclass(frozen=True, eq=False)
class Outcome:
    """The models after the last round, and the harm, of each network under the attack that did the most."""

    models: list[Tensor]
    harm: Floats
    attack: list[str]


def attacks(networks: Sequence[Network]) -> dict[str, Attack]:
    """Every attack with every strength, on all networks together."""
    modes = torch.zeros(len(networks), sum(len(network.regular) for network in networks), dtype=torch.float64)
    first = 0
    for number, network in enumerate(networks):
        if network.gap.fiedler is not None:
            modes[number, first : first + len(network.regular)] = torch.as_tensor(network.gap.fiedler)
        first += len(network.regular)
    kinds: dict[str, Callable[[float], Attack]] = {
        "dissensus": Dissensus,
        "spectral": lambda c: _Spectral(modes, c),
        "IPM": IPM,
        "ALIE": ALIE,
    }
    return {f"{name} {s:g}": kinds[name](s) for name, many in STRENGTHS.items() for s in many}


def worst(
    networks: Sequence[Network],
    rule: Rule,
    starts: Sequence[Tensor],
    rounds: int,
    harm: Callable[[int, Tensor], float],
) -> Outcome:
    """Run every attack. `harm` gives that of a network, by its number, from its last models."""
    union = nx.disjoint_union_all(network.to_networkx() for network in networks)
    union.graph = {"weights": "own"}
    together, start = Network(union), torch.cat(list(starts))
    sizes = [len(network.regular) for network in networks]
    models: list[Tensor] = list(starts)
    most, by = np.full(len(networks), -np.inf), [""] * len(networks)
    for name, attack in attacks(networks).items():
        with threads_for(0):  # a second thread costs more than it saves
            *_, last = trajectory(together, rule, start, attack=attack, rounds=rounds)
        for number, part in enumerate(torch.split(last, sizes)):
            done = harm(number, part)
            if done > most[number]:
                most[number], by[number], models[number] = done, name, part
    return Outcome(models, most, by)


if __name__ == "__main__":
    experiment = load(sys.argv[1])
    torch.set_num_threads(1)
    experiment.write(experiment.simulate(int(sys.argv[2])), Path(sys.argv[3]))  # type: ignore[attr-defined]  # only a ManyNetworks starts this
