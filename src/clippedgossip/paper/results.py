"""The runs of a figure, and their results, in a small file from which the figure can be drawn again.

Unfinished runs are done in this process on a GPU, in one process for each core otherwise.
`python -m clippedgossip.paper.results 0/2` is such a worker process. It reads its work from its input.
"""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from clippedgossip.decode import KeyProblem, from_json, section
from clippedgossip.devices import find_device, usable_cores
from clippedgossip.errors import RunError, UserError
from clippedgossip.files import canonical, write
from clippedgossip.paper.base import Progress
from clippedgossip.records import RunDirectory
from clippedgossip.report.claims import Floats
from clippedgossip.report.statistics import Estimate, Series, estimate, over_seeds
from clippedgossip.runs.config import RunConfig
from clippedgossip.runs.fill import run_unfinished

T = TypeVar("T")
FORMAT = 1
DIGITS = 5  # significant ones in the file
DISTANCE = "consensus_distance"
TABLES = ("network", "data", "rule", "training")
"""Of a run's config, those that pages read."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


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
    def read(cls, run: RunDirectory, seed: int, rounds: int, before: int) -> "RunResult | None":
        """From the folder of the run; its end are the rounds after `before`. None while it is unfinished."""
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
        if (last := at[-1] if at else 0) != summary["rounds"]:
            raise RunError(
                f"{run.records_path} ends at round {last}, but the run ended at round {summary['rounds']}\n"
                f"delete {run.path} and run it again"
            )
        diverged = "diverged" in summary
        if diverged and at[-1] < rounds:
            at.append(rounds)
            for values in curves.values():
                values.append(values[-1])
        result = cls(
            seed=seed,
            final=summary["groups"] | {DISTANCE: summary[DISTANCE]},
            rounds=at,
            curves=curves,
            seconds=summary.get("seconds"),
            diverged=diverged,
        )
        if wrong := result.contradiction(before):
            raise RunError(f"{run.path} {wrong}\ndelete it and run it again")
        return result

    def contradiction(self, before: int) -> str:
        """How its numbers disagree, if they do. Its ends are means over the rounds after `before`."""
        for name, curve in self.curves.items():
            if len(curve) != len(self.rounds):
                rounds = len(self.rounds)
                return f"has {len(curve)} values of {name} for {rounds} rounds with seed {self.seed}"
            points = zip(self.rounds, curve, strict=True)
            late = [value for at, value in points if at > before]
            ends = [value for value in late if value is not None]
            end = self.final.get(name)
            if self.diverged or not ends or (end is None and len(ends) < len(late)):
                continue
            mean, said = sum(ends) / len(ends), "no number" if end is None else f"{end:.5g}"
            if end is None or not math.isclose(mean, end, rel_tol=10.0 ** (1 - DIGITS)):
                return f"ends at {said} of {name} with seed {self.seed}, but at {mean:.5g} in its curve"
        return ""

    def end(self, measure: str) -> float:
        """The mean over the last rounds. A run that diverged ends with accuracy 0 and an infinite Ξ."""
        if self.diverged:
            return math.inf if measure == DISTANCE else 0.0
        value = self.final.get(measure)
        return math.nan if value is None else value

    def last(self, measure: str) -> float:
        """After the last round."""
        value = (self.curves.get(measure) or [None])[-1]
        return self.end(measure) if self.diverged or value is None else value

    def by_round(self, measure: str) -> dict[int, float | None]:
        """The curve; ∞ where it has no number because the run diverged."""
        gap = math.inf if self.diverged else None
        curve = self.curves.get(measure, ())
        return {at: gap if value is None else value for at, value in zip(self.rounds, curve, strict=False)}

    def mean(self, measure: str) -> float:
        """The mean over the whole run: the area under its curve, divided by its length. A run that diverged
        counts as at its end."""
        if self.diverged:
            return self.end(measure)
        points = zip(self.rounds, self.curves.get(measure, [None] * len(self.rounds)), strict=True)
        if not (known := [point for point in points if point[1] is not None]):
            return math.nan
        at, curve = np.array(known, dtype=np.float64).T
        area = float(((curve[1:] + curve[:-1]) / 2 * np.diff(at)).sum())
        return area / float(at[-1] - at[0]) if len(at) > 1 else float(curve[0])


@dataclass(frozen=True, kw_only=True)
class Line:
    """A rule in a setting, over its seeds."""

    setting: str
    rule: str
    config: Mapping[str, Any]
    runs: Sequence[RunResult] = ()
    value: str = ""
    """Of a run that tunes a parameter: the value that was tried."""

    @property
    def label(self) -> str:
        return f"{self.rule} in {self.setting}"

    @property
    def tuned(self) -> tuple[str, str]:
        """One value of the parameter is chosen for each network and rule."""
        return json.dumps(self.config["network"], sort_keys=True), self.rule

    def contradiction(self) -> str:
        """What cannot be in a file that was put together or edited; nothing where all can be."""
        if lacking := [name for name in TABLES if not isinstance(self.config.get(name), Mapping)]:
            return f"has no {lacking[0]} in its config"
        rounds, last = (self.config["training"].get(name) for name in ("rounds", "evaluate_last"))
        if not (isinstance(rounds, int) and isinstance(last, int)):
            return "does not say its rounds and evaluate_last"
        seeds = [run.seed for run in self.runs]
        if len(set(seeds)) < len(seeds):
            return f"has the seeds {seeds}; each must be there once"
        wrong = (run.contradiction(rounds - last) for run in self.runs)
        return next(filter(None, wrong), "")

    def read(self, seeds: Iterable[int], root: Path, known: "Known") -> "tuple[Line, list[RunDirectory]]":
        """The line with its known runs and the finished ones under `root`, and the folders of all of them."""
        folders = {seed: RunConfig.from_mapping({**self.config, "seed": seed}).run(root) for seed in seeds}
        rounds, last = (self.config["training"][name] for name in ("rounds", "evaluate_last"))
        runs = [
            RunResult.read(folder, seed, rounds, rounds - last) or known.run(self.config, seed)
            for seed, folder in folders.items()
        ]
        return replace(self, runs=[run for run in runs if run is not None]), list(folders.values())


@dataclass(frozen=True)
class Known:
    """Runs of kept results, by config and seed; they are not done again."""

    runs: Mapping[tuple[str, int], RunResult]
    environments: Sequence[Mapping[str, Any]]

    @classmethod
    def load(cls, source: Path | None, experiment: str) -> "Known":
        """Of a file of results, or of all such files in a folder. Figures share runs, which differ by
        rounding if they are of different versions: those in the experiment's own file come first."""
        files = [] if source is None else [source]
        if source is not None and source.is_dir():
            files = [*sorted(source.glob("*.json")), *sorted(source.glob("*/results.json"))]
            if not files:
                raise RunError(f"there are no results in {source}\ngive a results.json, or a folder of them")
        found: list[Results] = []
        for path in files:
            raw = read_json(path)
            if "cases" in raw or (path.name == "claims.json" and "experiments" in raw):
                continue  # of networks without training, or of claims
            found.append(Results.from_json(raw, path))
        found.sort(key=lambda results: results.experiment == experiment)  # what comes later counts
        lines = [line for results in found for line in (*results.lines, *results.tuning)]
        runs = {(canonical(line.config), run.seed): run for line in lines for run in line.runs}
        places = {canonical(place): place for results in found for place in results.environments}
        return cls(runs, list(places.values()))

    def and_of(self, path: Path) -> "Known":
        """These, and those of another file that are not among them."""
        other = Known.load(path, "")
        return Known({**other.runs, **self.runs}, [*self.environments, *other.environments])

    def run(self, config: Mapping[str, Any], seed: int) -> RunResult | None:
        """The run of a config (without its seed) and a seed."""
        return self.runs.get((canonical(config), seed))


@dataclass(frozen=True, kw_only=True)
class Results:
    """All lines of a figure."""

    experiment: str
    scale: Literal["quick", "paper"]
    seeds: int
    lines: Sequence[Line]
    environments: Sequence[Mapping[str, str]] = ()
    troubles: Sequence[str] = ()
    """Why some runs have no result."""
    length: float = 1.0
    """The fraction of the rounds of the scale that was run."""
    tuning: Sequence[Line] = ()
    """The values that were tried for the parameters of rules, on seeds that are not reported."""

    def read(self, root: Path, known: Known) -> "Results":
        """The same lines, with known runs and those under `root`."""
        lines = [line.read(range(self.seeds), root, known) for line in self.lines]
        folders = [folder for _, some in lines for folder in some]
        places = [*known.environments, *(run.environment for run in folders if run.finished)]
        environments = {json.dumps(place, sort_keys=True): place for place in places}
        troubles = {run.failure: None for run in folders if not run.finished and run.failure is not None}
        whole = replace(self, lines=[line for line, _ in lines], environments=list(environments.values()))
        return replace(whole, troubles=[*self.troubles, *troubles] or whole.unfinished)

    @property
    def unfinished(self) -> list[str]:
        """How many runs are not here, if any."""
        missing = sum(self.seeds - len(line.runs) for line in self.lines)
        return [f"{missing} of {self.seeds * len(self.lines)} runs are not finished"] if missing else []

    @property
    def size(self) -> str:
        """`quick scale`, `paper's scale`, or how much of it was run."""
        named = "quick scale" if self.scale == "quick" else "paper's scale"
        return named if self.length == 1 else f"{named}, {self.length:.3g} of its rounds"

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

    def unclipped(self, setting: str, note: str = "") -> str:
        """The note of a claim about ClippedGossip, and in how many seeds its run is gossip's."""
        ours, plain = (self._curves(setting, rule) for rule in ("ClippedGossip", "Gossip"))
        same = sum(plain.get(seed) == curves for seed, curves in ours.items())
        said = f"in {same} of {len(ours)} seeds its run is gossip's: nothing was clipped" if same else ""
        return "; ".join(filter(None, [note, said]))

    def _curves(self, setting: str, rule: str) -> dict[int, Mapping[str, Sequence[float | None]]]:
        line = self.line(setting, rule)
        return {run.seed: run.curves for run in line.runs} if line else {}

    def tried(self, measure: Callable[[str], str]) -> dict[tuple[str, str], dict[str, float]]:
        """For each network and rule, the values of its parameter that were tried and the mean accuracy of
        each, over the settings of the network. A seed that diverged or was not run counts as 0."""
        found: dict[tuple[str, str], dict[str, list[float]]] = {}
        for line in self.tuning:
            ends = [run.end(measure(line.setting)) for run in line.runs]
            found.setdefault(line.tuned, {}).setdefault(line.value, []).extend(ends or [0.0])
        return {key: {v: float(np.mean(ends)) for v, ends in tried.items()} for key, tried in found.items()}

    def chosen(self, measure: Callable[[str], str]) -> dict[tuple[str, str], str]:
        """The best value for each network and rule."""
        return {key: max(values, key=values.__getitem__) for key, values in self.tried(measure).items()}

    def lasts(self, measure: str) -> Callable[[str, str], Floats]:
        """The same for the last round."""
        return lambda setting, rule: self._by_seed(setting, rule, lambda run: run.last(measure))

    def estimate(self, setting: str, rule: str, measure: str) -> Estimate | None:
        """The mean over the last rounds and over the seeds, and how many of them diverged."""
        found, line = estimate(self.final(setting, rule, measure).tolist()), self.line(setting, rule)
        if found is None or line is None:
            return None
        return replace(found, diverged=sum(run.diverged for run in line.runs))

    def accuracy(self, setting: str, rule: str, group: str) -> str | None:
        """The same in %, as text; with fewer seeds than other lines have, it says so."""
        found, most = (
            self.estimate(setting, rule, group),
            max((len(line.runs) for line in self.lines), default=0),
        )
        if found is None:
            return None
        few = "" if found.count == most else f" ({found.count} of {most} seeds)"
        return found.text(scale=100) + few

    def series(self, setting: str, rule: str, measure: str) -> Series | None:
        """The curve with its band. None where nothing was run, or measured."""
        line = self.line(setting, rule)
        seeds = [run.by_round(measure) for run in line.runs] if line else []
        known = any(value is not None for seed in seeds for value in seed.values())
        return over_seeds(rule, seeds) if known else None

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all. Of runs that tune a parameter only the end is kept."""
        ends = [[replace(run, rounds=(), curves={}) for run in line.runs] for line in self.tuning]
        tuning = [replace(line, runs=runs) for line, runs in zip(self.tuning, ends, strict=True)]
        lines: dict[str, Any] = {"lines": [*map(_to_json, self.lines)], "tuning": [*map(_to_json, tuning)]}
        content = {"format": FORMAT, **vars(replace(self, **lines))}
        write(path, json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n")

    @classmethod
    def load(cls, path: Path, experiment: str) -> "Results":
        """Read what `save` wrote."""
        raw = read_json(path)
        if raw.get("experiment") != experiment:
            raise RunError(
                f"{path} holds results of {raw.get('experiment')!r}, not of {experiment!r}\ngive another file"
            )
        return cls.from_json(raw, path)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], path: Path) -> "Results":
        """The content of a file, checked."""
        if raw["format"] != FORMAT:
            raise RunError(f"{path} has format {raw['format']}; known is {FORMAT}\ngive another file")
        results = decoded(cls, {name: held for name, held in raw.items() if name != "format"}, path)
        if wrong := next(results.contradictions(), ""):
            raise unreadable(path, wrong)
        return results

    def contradictions(self) -> Iterator[str]:
        """What cannot be in a file that was put together or edited."""
        if not 0 < self.length <= 1:
            yield f"it has {self.length} of the rounds; that is at most 1"
        there: set[str] = set()
        for line in self.lines:
            seeds = {run.seed for run in line.runs}
            if not seeds <= set(range(self.seeds)):
                yield f"{line.label} has the seeds {sorted(seeds)}; they go to {self.seeds - 1}"
            if line.label in there:
                yield f"{line.label} is there twice"
            there.add(line.label)
        for line in (*self.lines, *self.tuning):
            if wrong := line.contradiction():
                yield f"{line.label} {wrong}"


def read_json(path: Path) -> dict[str, Any]:
    """The content of a file of results."""
    try:
        raw: dict[str, Any] = from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error)) from error
    if not isinstance(raw, dict) or "format" not in raw:
        raise unreadable(path, "it is no table with a format")
    return raw


def decoded(kind: type[T], raw: Any, path: Path) -> T:
    """A dataclass from its table in a file of results: nothing unknown, missing or mistyped gets in."""
    try:
        return section(kind, raw, ())
    except KeyProblem as problem:
        raise unreadable(path, str(problem)) from problem


def unreadable(path: Path, why: str) -> RunError:
    """The error of a file that cannot be read."""
    return RunError(
        f"cannot read results from {path}: {why.splitlines()[0]}\ngive a results.json of reproduce"
    )


def _to_json(line: Line) -> dict[str, Any]:
    runs = [vars(run) | {"final": rounded(run.final), "curves": rounded(run.curves)} for run in line.runs]
    return vars(line) | {"runs": runs}


def rounded(value: Any) -> Any:
    """The same with few digits, and null where a number is not finite."""
    if isinstance(value, Mapping):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    return value


def found(source: Path, name: str) -> Path:
    """The file with the results of an experiment: `source` itself, or a file in this folder."""
    for path in (source, source / name / "results.json", source / f"{name}.json", source / "results.json"):
        if path.is_file():
            return path
    raise RunError(
        f"there are no results of {name!r} at {source}\ngive a results.json, or the folder that holds it"
    )


def run_all(
    configs: Sequence[RunConfig], root: Path, *, device: str, workers: int | None, progress: Progress
) -> None:
    """Run every config that is not finished under `root`. A run that fails says why in its folder.

    Small models do not gain from threads, and lose much where cores are busy. So each process has one thread.
    """
    device = str(find_device(device))
    distinct = {config.run(root): config for config in configs}
    unfinished = [config for run, config in distinct.items() if not run.finished]
    count = workers or (1 if device.startswith("cuda") else usable_cores())
    count = min(count, len(unfinished))
    if count > 1:
        _in_processes(unfinished, root, device, count, progress)
    elif unfinished:
        here = [replace(config, device=device) for config in unfinished]
        run_unfinished(here, root, wait=True, progress=progress)


def _in_processes(
    configs: Sequence[RunConfig], root: Path, device: str, count: int, progress: Progress
) -> None:
    """Each process starts at another place of the same list. The locks of the runs keep them apart."""
    environment = os.environ | dict.fromkeys(_THREADS, "1")
    request = {"root": str(root), "device": device, "configs": [config.to_mapping() for config in configs]}
    workers = []
    with tempfile.TemporaryFile("w+") as said:
        try:
            for index in range(count):
                command = [sys.executable, "-m", "clippedgossip.paper.results", f"{index}/{count}"]
                pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stderr": said, "text": True}
                # A group of its own: Ctrl-C in the terminal reaches this process, which passes it on once.
                worker = subprocess.Popen(command, env=environment, process_group=0, **pipes)
                workers.append(worker)
                assert worker.stdin is not None
                with suppress(BrokenPipeError), worker.stdin as pipe:  # its exit code says more
                    pipe.write(json.dumps(request))
            show = _Shown({config.run(root): config.training.rounds for config in configs}, progress)
            while any(worker.poll() is None for worker in workers):
                show()
                time.sleep(0.5)
            show()
        except KeyboardInterrupt:
            print("\nstopping after this round; Ctrl-C again stops at once", file=sys.stderr, flush=True)
            for worker in workers:
                worker.send_signal(signal.SIGINT)  # it writes its checkpoint and ends
            for worker in workers:
                worker.wait()
            raise
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                worker.wait()
        if any(worker.returncode for worker in workers):
            said.seek(0)
            last = (said.read().strip().splitlines() or ["it gave no reason"])[-1]
            goes_on = "" if "same command again" in last else "\nrun the same command again to resume"
            raise RunError(f"a worker process ended early: {last}{goes_on}")


class _Shown:
    """Counts the rounds that are done, from the folders of the runs."""

    def __init__(self, runs: Mapping[RunDirectory, int], progress: Progress) -> None:
        self.open, self.progress = dict(runs), progress
        self.runs, self.rounds = len(runs), sum(runs.values())

    def __call__(self) -> None:
        self.open = {run: rounds for run, rounds in self.open.items() if not run.finished}
        left = sum(rounds - _last_round(run.records_path) for run, rounds in self.open.items())
        label = f"rounds, {self.runs - len(self.open)}/{self.runs} runs"
        self.progress(label, self.rounds - left, self.rounds)


def _last_round(records: Path) -> int:
    """The round of the last whole line; 0 where there is none."""
    try:
        lines = records.read_bytes().split(b"\n")
        return int(from_json(lines[-2])["round"]) if len(lines) > 1 else 0
    except (OSError, ValueError, KeyError):
        return 0


def main() -> None:
    """A worker process. It ends with its parent."""
    index, count = map(int, sys.argv[1].split("/"))
    request = json.load(sys.stdin)
    configs = [RunConfig.from_mapping({**raw, "device": request["device"]}) for raw in request["configs"]]
    start = index * len(configs) // count
    parent = os.getppid()

    def progress(label: str, done: int, total: int) -> None:
        if os.getppid() != parent:
            os._exit(1)

    torch.set_num_threads(1)
    try:
        ordered = [*configs[start:], *configs[:start]]
        run_unfinished(ordered, request["root"], processes=count, wait=True, progress=progress)
    except UserError as error:
        sys.exit("; ".join(str(error).splitlines()))  # the parent shows the last line


if __name__ == "__main__":
    main()
