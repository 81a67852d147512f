"""Compare rules under attacks: many runs of one network, data set and model."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch

from clippedgossip import simulate
from clippedgossip.devices import free_memory
from clippedgossip.errors import ConfigError, MiscompiledError, warn_user
from clippedgossip.export.frame import data_frame
from clippedgossip.facade.choices import (
    AttackLike,
    Choices,
    DataLike,
    ModelLike,
    OptimizerLike,
    Partition,
    RuleLike,
)
from clippedgossip.facade.recorded_run import RecordedRun, draw_scores, write_report
from clippedgossip.facade.training_run import shown_progress
from clippedgossip.network import Network
from clippedgossip.records import ACCURACY
from clippedgossip.report.grouping import labels
from clippedgossip.report.page import Table
from clippedgossip.report.statistics import ANY, SHARE, Series, estimate, over_seeds
from clippedgossip.report.terminal import table
from clippedgossip.runs.fill import MEMORY_SHARE, most_together, packed
from clippedgossip.settings import Precision
from clippedgossip.simulate.setup import needed_bytes
from clippedgossip.step import LearningRate, Momentum
from clippedgossip.tasks.objective import LossLike, MetricLike
from clippedgossip.tasks.workers import stackable

if TYPE_CHECKING:
    import pandas
    from numpy.typing import NDArray

PANELS = 4  # side by side in a plot


def compare(
    network: Network,
    data: DataLike = "digits",
    model: ModelLike = "mlp",
    *,
    rules: Sequence[RuleLike],
    attacks: Sequence[AttackLike] = (None,),
    seeds: int | Sequence[int] = 1,
    partition: Partition = "iid",
    rounds: int = 900,
    batch: int = 32,
    lr: float | LearningRate = 0.01,
    momentum: float | Momentum | None = None,
    optimizer: OptimizerLike = None,
    weight_decay: float = 0.0,
    clip_gradient: float | None = None,
    local_steps: int = 1,
    loss: LossLike = None,
    metric: MetricLike = None,
    augment: bool = False,
    evaluate_every: int | None = None,
    precision: Precision = "float32",
    device: str | torch.device = "auto",
    progress: bool = True,
    **training: Any,
) -> "Comparison":
    """Every rule under every attack, once for each seed.

        found = cg.compare(network, data, model, rules=["gossip", cg.rules.ClippedGossip(1.0)],
                           attacks=["dissensus", "alie"], seeds=3, rounds=90)
        print(found)
        found.report("page.html")

    `seeds=3` means the seeds 0, 1 and 2. All other arguments are those of `train`, but for `out`.
    On a GPU the runs are trained together, in one stack; each gives what it would give alone, up to rounding.
    """
    choices = Choices.of(**locals())
    wanted = {
        "rules": _several("rules", rules, '["gossip", cg.rules.ClippedGossip(1.0)]'),
        "attacks": _several("attacks", attacks, "[cg.attacks.Dissensus()]"),
        "seeds": _several("seeds", range(seeds) if type(seeds) is int else seeds, "[0, 1, 2], or seeds=3"),
    }
    for name, values in wanted.items():
        if not values:
            raise ConfigError(f"{name} is empty; there is nothing to compare\ngive at least one")
    runs = [
        choices.recorded(choices.setup(rule, attack, seed))
        for attack in wanted["attacks"]
        for rule in wanted["rules"]
        for seed in wanted["seeds"]
    ]
    descriptions = [run.description for run in runs]
    names = zip(labels("rule", descriptions), labels("attack", descriptions), strict=True)
    seen: Counter[tuple[str, str, int]] = Counter()
    for run, (rule, attack) in zip(runs, names, strict=True):
        run.rule, run.attack = rule, run.attack if run.attack == "none" else attack
        key = (run.rule, run.attack, run.seed)
        seen[key] += 1
        if seen[key] > 1:  # rules with equal parameters
            run.rule += f" #{seen[key]}"
    return Comparison(runs, device=choices.device, progress=progress)


class Comparison:
    """Runs that differ in rule, attack and seed. They train when `finish()` is called or a result is read.
    After Ctrl-C the results are those recorded so far; `finish()` trains what is unfinished."""

    def __init__(self, runs: Sequence[RecordedRun], *, device: str = "cpu", progress: bool = True) -> None:
        self.device = device
        self._runs = list(runs)
        self._progress = progress

    @property
    def runs(self) -> list[RecordedRun]:
        """Every run with its rule, attack, seed and records."""
        self._begin()
        return list(self._runs)

    def finish(self) -> Self:
        """Train all runs to their end; shows its progress on a terminal and in a notebook."""
        with shown_progress(self._progress) as tell:
            total = sum(run.setup.training.rounds for run in self._runs)
            before = 0
            for batch in batches([run for run in self._runs if not run.finished], self.device):
                for done in train_batch(batch, self.device):
                    label = f"rounds, {sum(run.finished for run in self._runs)}/{len(self._runs)} runs"
                    tell(f"{label}, {batch[0].rule}", before + done * len(batch), total)
                before += sum(run.setup.training.rounds for run in batch)
        for run in self._runs:
            run.warn()
        return self

    def frame(self) -> "pandas.DataFrame":
        """A pandas DataFrame with a row for each record of each run."""
        rows = ((run, record) for run in self.runs for record in run.records)
        named = (
            {"rule": r.rule, "attack": r.attack, "seed": r.seed, **record.to_row()} for r, record in rows
        )
        return data_frame(list(named))

    def plot(self) -> "NDArray[Any]":
        """The metric against the round, means over seeds with 95 % intervals: an array of Axes, by attack."""
        import numpy as np
        from matplotlib import pyplot

        panels = self._panels()
        columns = min(len(panels), PANELS)
        rows = math.ceil(len(panels) / columns)
        look: dict[str, Any] = {"figsize": (0.6 + 4.4 * columns, 3.6 * rows), "layout": "constrained"}
        figure, grid = pyplot.subplots(rows, columns, sharex=True, sharey=True, squeeze=False, **look)
        axes = np.ravel(grid)
        for number, (attack, lines) in enumerate(panels.items()):
            draw_scores(axes[number], lines, self._metric, title=attack, legend=number == 0)
            axes[number].label_outer()
        for spare in axes[len(panels) :]:
            figure.delaxes(spare)
        return axes[: len(panels)]

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page about all runs; returns its path."""
        self._begin()
        return write_report([run for run in self._runs if run.records], path, device=self.device)

    def __str__(self) -> str:
        """The final metric (accuracy in %): a row for each rule, a column for each attack, ± half of the 95 %
        interval over seeds."""
        self._begin()
        attacks, rules = self._distinct("attack"), self._distinct("rule")
        rows = [[rule, *(self._final(rule, attack) for attack in attacks)] for rule in rules]
        unit = " %" if self._metric == ACCURACY else ""
        return table(Table([f"{self._metric}{unit}", *attacks], rows))

    def __repr__(self) -> str:
        done = sum(run.finished for run in self._runs)
        kinds = f"{len(self._distinct('rule'))} rules, {len(self._distinct('attack'))} attacks"
        return f"Comparison({kinds}, {done} of {len(self._runs)} runs finished)"

    def _begin(self) -> None:
        if not any(run.records for run in self._runs):
            self.finish()

    def _distinct(self, what: str) -> list[str]:
        return list(dict.fromkeys(getattr(run, what) for run in self._runs))

    def _of(self, rule: str, attack: str) -> list[RecordedRun]:
        return [run for run in self._runs if (run.rule, run.attack) == (rule, attack)]

    def _final(self, rule: str, attack: str) -> str:
        share = SHARE if self._metric == ACCURACY else ANY
        runs = self._of(rule, attack)
        final = estimate((run.score for run in runs), share)
        if final is None:
            return "–"
        final = replace(final, diverged=sum(run.diverged is not None for run in runs))
        return final.text(scale=100) if self._metric == ACCURACY else final.text(digits=3)

    @property
    def _metric(self) -> str:
        return self._runs[0].metric

    def _panels(self) -> dict[str, list[Series]]:
        self._begin()
        rules = self._distinct("rule")
        return {
            attack: [over_seeds(rule, [run.curve for run in self._of(rule, attack)], SHARE) for rule in rules]
            for attack in self._distinct("attack")
        }


def batches(runs: Sequence[RecordedRun], device: str) -> Iterator[list[RecordedRun]]:
    """Runs to train in one stack: as many as there is memory for. Models may differ by the seed."""
    alike: list[list[RecordedRun]] = []
    for run in runs:
        fitting = (some for some in alike if stackable(some[0].setup.task, run.setup.task))
        if (group := next(fitting, None)) is None:
            alike.append(group := [])
        group.append(run)
    most = most_together(device, max((run.setup.task.layout.size for run in runs), default=0))
    free, place = MEMORY_SHARE * free_memory(device), torch.device(device)
    for some in alike:
        yield from packed(some, lambda run: needed_bytes([run.setup.task], [run.setup], place), free, most)


def train_batch(runs: Sequence[RecordedRun], device: str) -> Iterator[int]:
    """Train runs in one stack from their start; yields the rounds done. One that diverged records no more."""
    while True:
        for run in runs:
            run.forget()
        try:
            for moments in simulate.train_together([run.setup for run in runs], device=device):
                for run, moment in zip(runs, moments, strict=True):
                    if run.diverged is None:
                        run.add(moment)
                yield moments[0].round
                if all(run.diverged is not None for run in runs):
                    return
        except MiscompiledError as error:
            warn_user(str(error))
        else:
            return


def _several(name: str, values: object, example: str) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {values!r}; give a list: {name}={example}")
    return list(values)
