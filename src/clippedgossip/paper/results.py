"""The results of a figure's runs, in a small file from which the figure can be drawn again."""

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clippedgossip.errors import RunError
from clippedgossip.files import write_atomic
from clippedgossip.records import RunDirectory
from clippedgossip.report.claims import Floats
from clippedgossip.report.statistics import Estimate, Series, estimate, over_seeds

if TYPE_CHECKING:
    from clippedgossip.paper.training_figure import Case

FORMAT = 1
DIGITS = 5  # significant ones in the file
DISTANCE = "consensus_distance"


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One run. `final` holds means over the last rounds: the accuracy of every group, and Ξ."""

    seed: int
    final: Mapping[str, float | None]
    rounds: Sequence[int]
    curves: Mapping[str, Sequence[float | None]]
    seconds: float | None = None
    diverged: bool = False
    """Its models became NaN or infinite. Its last record stands for its end."""

    @classmethod
    def read(cls, run: RunDirectory, seed: int, rounds: int) -> "RunResult | None":
        """From the folder of the run. None while it is not finished."""
        summary = run.summary
        if summary is None:
            return None
        records = list(run.rounds())
        groups = list(summary["groups"])
        curves: dict[str, list[float | None]] = {
            name: [(record.accuracy or {}).get(name) for record in records] for name in groups
        }
        curves[DISTANCE] = [record.consensus_distance for record in records]
        at = [record.round for record in records]
        diverged = "diverged" in summary
        if diverged and at[-1] < rounds:
            at.append(rounds)
            for values in curves.values():
                values.append(values[-1])
        return cls(
            seed=seed,
            final=summary["groups"] | {DISTANCE: summary[DISTANCE]},
            rounds=at,
            curves=curves,
            seconds=summary.get("seconds"),
            diverged=diverged,
        )

    def end(self, measure: str) -> float:
        """The mean over the last rounds. Ξ of a run that diverged is infinite."""
        value = self.final.get(measure)
        return (math.inf if self.diverged else math.nan) if value is None else value

    def by_round(self, measure: str) -> dict[int, float | None]:
        """The curve; ∞ where it has no number because the run diverged."""
        gap = math.inf if self.diverged else None
        curve = self.curves.get(measure, ())
        return {at: gap if value is None else value for at, value in zip(self.rounds, curve, strict=False)}

    def mean(self, measure: str) -> float:
        """The mean over the whole run: the area under its curve, divided by its length."""
        points = zip(self.rounds, self.curves[measure], strict=True)
        at, curve = np.array([point for point in points if point[1] is not None], dtype=np.float64).T
        area = float(((curve[1:] + curve[:-1]) / 2 * np.diff(at)).sum())
        return area / float(at[-1] - at[0]) if len(at) > 1 else float(curve[0])


@dataclass(frozen=True, kw_only=True)
class Line:
    """A rule in a setting, over its seeds."""

    setting: str
    rule: str
    config: Mapping[str, Any]
    runs: Sequence[RunResult] = ()


@dataclass(frozen=True, kw_only=True)
class Results:
    """All lines of a figure."""

    experiment: str
    scale: str
    seeds: int
    lines: Sequence[Line]
    environments: Sequence[Mapping[str, Any]] = ()
    troubles: Sequence[str] = ()
    """Why some runs have no result."""
    length: float = 1.0
    """The fraction of the rounds of the scale that was run."""

    @classmethod
    def read(cls, experiment: str, scale: str, cases: Sequence["Case"], seeds: int, root: Path) -> "Results":
        """From the runs under `root`."""
        lines = []
        environments: dict[str, Mapping[str, Any]] = {}
        troubles: dict[str, None] = {}
        for case in cases:
            runs = []
            for seed in range(seeds):
                run = case.seeded(seed).run(root)
                result = RunResult.read(run, seed, case.config.training.rounds)
                if result is not None:
                    runs.append(result)
                    environments[json.dumps(run.environment, sort_keys=True)] = run.environment
                elif run.failure is not None:
                    troubles[run.failure] = None
            lines.append(Line(setting=case.setting, rule=case.rule, config=case.mapping, runs=runs))
        return cls(
            experiment=experiment,
            scale=scale,
            seeds=seeds,
            lines=lines,
            environments=list(environments.values()),
            troubles=list(troubles),
        )

    @cached_property
    def _index(self) -> Mapping[tuple[str, str], Line]:
        return {(line.setting, line.rule): line for line in self.lines}

    @property
    def settings(self) -> list[str]:
        return list(dict.fromkeys(line.setting for line in self.lines))

    @property
    def rules(self) -> list[str]:
        return list(dict.fromkeys(line.rule for line in self.lines))

    def line(self, setting: str, rule: str) -> Line | None:
        return self._index.get((setting, rule))

    def final(self, setting: str, rule: str, measure: str) -> Floats:
        """(seeds,) the mean over the last rounds."""
        return self._by_seed(setting, rule, lambda run: run.end(measure))

    def finals(self, measure: str) -> Callable[[str, str], Floats]:
        """`final` for one measure, as a function of setting and rule."""
        return lambda setting, rule: self.final(setting, rule, measure)

    def wholes(self, measure: str) -> Callable[[str, str], Floats]:
        """The same for the mean over the whole run."""
        return lambda setting, rule: self._by_seed(setting, rule, lambda run: run.mean(measure))

    def _by_seed(self, setting: str, rule: str, number: Callable[[RunResult], float]) -> Floats:
        """(seeds,) NaN where a run has no result."""
        line = self.line(setting, rule)
        values = np.full(self.seeds, math.nan)
        for run in line.runs if line else ():
            values[run.seed] = number(run)
        return values

    def estimate(self, setting: str, rule: str, measure: str) -> Estimate | None:
        return estimate(self.final(setting, rule, measure).tolist())

    def series(self, setting: str, rule: str, measure: str) -> Series | None:
        """The curve with its band. None where nothing was run."""
        line = self.line(setting, rule)
        if line is None or not line.runs:
            return None
        seeds = [run.by_round(measure) for run in line.runs]
        return over_seeds(rule, seeds)

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        content = {
            "format": FORMAT,
            "experiment": self.experiment,
            "scale": self.scale,
            "seeds": self.seeds,
            "length": self.length,
            "environments": list(self.environments),
            "troubles": list(self.troubles),
            "lines": [_line_to_json(line) for line in self.lines],
        }
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(path, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror or error}") from error

    @classmethod
    def load(cls, path: Path, experiment: str) -> "Results":
        """Read what `save` wrote."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw["format"] != FORMAT or raw["experiment"] != experiment:
                raise RunError(f"{path} holds results of {raw['experiment']!r}, not of {experiment!r}")
            return cls(
                experiment=raw["experiment"],
                scale=raw["scale"],
                seeds=raw["seeds"],
                length=raw.get("length", 1.0),
                environments=raw["environments"],
                troubles=raw["troubles"],
                lines=[_line_from_json(line) for line in raw["lines"]],
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(
                f"cannot read results from {path}: {error}\ngive a results.json of reproduce"
            ) from error


def _line_to_json(line: Line) -> dict[str, Any]:
    return {
        "setting": line.setting,
        "rule": line.rule,
        "config": dict(line.config),
        "runs": [
            {
                "seed": run.seed,
                "final": {name: _short(value) for name, value in run.final.items()},
                "rounds": list(run.rounds),
                "curves": {name: [_short(value) for value in values] for name, values in run.curves.items()},
                "seconds": run.seconds,
                "diverged": run.diverged,
            }
            for run in line.runs
        ],
    }


def _line_from_json(raw: Mapping[str, Any]) -> Line:
    return Line(
        setting=raw["setting"],
        rule=raw["rule"],
        config=raw["config"],
        runs=[RunResult(**run) for run in raw["runs"]],
    )


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def found(source: Path, name: str) -> Path:
    """The file with the results of an experiment: `source` itself, or a file in this folder."""
    for path in _places(source, name):
        if path.is_file():
            return path
    raise RunError(
        f"there are no results of {name!r} at {source}\ngive a results.json, or the folder that holds it"
    )


def _places(source: Path, name: str) -> Iterator[Path]:
    yield source
    yield source / name / "results.json"
    yield source / f"{name}.json"
    yield source / "results.json"
