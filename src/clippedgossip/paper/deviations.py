"""What the authors' released code does otherwise than the text, each deviation by its name.

`reproduce NAME --as-released` runs a figure as we do it, with all deviations, and with each of them alone.
Its page tells which single deviation explains a difference.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from clippedgossip.errors import ConfigError, unknown_name, warn_user
from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.as_released import (
    AlternatingBitFlipping,
    DoubledBucketing,
    SecondLargest,
    few_images,
    released_cnn,
)
from clippedgossip.paper.base import Options, load
from clippedgossip.paper.results import Line, Results
from clippedgossip.paper.training_figure import Case, Scale, TrainingExperiment
from clippedgossip.report.claims import Claim, Floats
from clippedgossip.report.page import Cell, PagePart, Section, Table
from clippedgossip.report.statistics import estimate
from clippedgossip.runs.config import RunConfig

OURS, RELEASED, TOGETHER = "ours", "as released", "these together"
EXPLAINED = (
    "The last column names each deviation that alone goes half of the way or more from ours to the released "
    "number, or, where none was released, to ours with all these deviations. The 95 % interval over the "
    "seeds decides; – means too few seeds, or nothing to compare with."
)

Config = dict[str, Any]


def _own(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__name__}"


def _bucketing(config: Config) -> Config:
    rule = config["rule"]
    if rule["name"] != "bucketing":
        return config
    return config | {"rule": {"name": _own(DoubledBucketing), "rule": rule["rule"]}}


def _bit_flipping(config: Config) -> Config:
    alternating = config.get("attack", {}).get("name") == "bit-flipping"
    return config | {"attack": {"name": _own(AlternatingBitFlipping)}} if alternating else config


def _few_images(config: Config) -> Config:
    data = config["data"]
    if data["name"] != "mnist":
        return config
    few = data | {"partition": {"name": _own(few_images), "of": data["partition"]}}
    return config | {"data": few, "training": config["training"] | {"batches": "same-epochs"}}


def _cnn(key: str) -> Callable[[Config], Config]:
    def change(config: Config) -> Config:
        model, name = config["model"], _own(released_cnn)
        if model["name"] not in ("cnn", name):
            return config
        known = {"plain": False, "one_mask": False} if model["name"] == "cnn" else model
        return config | {"model": {**known, "name": name, key: True}}

    return change


def _adaptive_radius(config: Config) -> Config:
    rule = config["rule"]
    if not isinstance(rule.get("radius"), Mapping):
        return config
    return config | {"rule": rule | {"radius": {"name": _own(SecondLargest)}}}


DEVIATIONS: Mapping[str, Callable[[Config], Config]] = {
    "bucketing": _bucketing,
    "bit-flipping": _bit_flipping,
    "few-images": _few_images,
    "one-mask": _cnn("one_mask"),
    "cnn": _cnn("plain"),
    "adaptive-radius": _adaptive_radius,
}
"""Name -> how it changes the config of a run. A run that it does not concern stays as it is."""
WORDS: Mapping[str, str] = {
    "bucketing": "each model in two buckets, bucket 0 as the own model, one shuffle for all rounds "
    "(dumbbell_improvement.py:195, :206, simulator.py:512)",
    "bit-flipping": "the sign of bit flipping alternates (attacks.py:72)",
    "few-images": "each worker sees the same 30 batches, of 960 images, again and again: the order is "
    "never drawn anew (template.py:271)",
    "one-mask": "the mask of dropout is the same in every round (simulator.py:512)",
    "cnn": "no ReLU after the second convolution, dropout of whole channels (tasks/mnist.py:24, :16)",
    "adaptive-radius": "the adaptive radius is the second-largest distance (aggregator.py:513)",
}


UNCHANGED = "No line of this figure changes with these deviations at this scale."


def deviating(case: Case, names: Sequence[str]) -> Case:
    """The case with these deviations; the same object if they change nothing."""

    def changed(config: RunConfig) -> RunConfig:
        before = after = config.to_mapping()
        for name in names:
            after = DEVIATIONS[name](after)
        return config if after is before else RunConfig.from_mapping(after)

    config = changed(case.config)
    if config is case.config:
        return case
    return replace(case, config=config, tries={value: changed(one) for value, one in case.tries.items()})


class AsReleased(TrainingExperiment):
    """A figure with the authors' deviations: all of them together, and each alone."""

    def __init__(self, figure: TrainingExperiment, deviations: Sequence[str]) -> None:
        for name in deviations:
            if name not in DEVIATIONS:
                raise ConfigError(unknown_name("deviation", name, DEVIATIONS))
        self.figure, self.deviations = figure, [name for name in DEVIATIONS if name in deviations]
        same = {key: getattr(figure, key) for key in ("scales", "group", "groups", "section", "remarks")}
        lead = (
            "The authors' released code does some things otherwise than the text. This page has the "
            "accuracies of the released runs, ours, and ours with these deviations, together and each alone."
        )
        names = {"name": f"{figure.name}-as-released", "title": f"{figure.title}, as released", "lead": lead}
        for key, value in (same | names).items():
            setattr(self, key, value)

    def cases(self, scale: Scale) -> Iterator[Case]:
        """Ours, all deviations, and each alone. Lines that no deviation changes are left out."""
        for case in self.figure.cases(scale):
            arms = {name: deviating(case, [name]) for name in self.deviations}
            arms = {name: arm for name, arm in arms.items() if arm is not case}
            if arms:
                yield replace(case, rule=_arm(case.rule, OURS))
                for some in dict.fromkeys([tuple(arms), *((name,) for name in arms)]):
                    yield replace(deviating(case, some), rule=_arm(case.rule, *some))

    def left_out(self, result: Results) -> str:
        """The deviations that no line shows."""
        if not result.lines:
            return ""
        shown, effective = _arms(line for line in result.lines if line.runs), _arms(self._all(result))
        idle = [name for name in self.deviations if name not in effective]
        arms = [arm for arm in effective if arm not in shown]
        lacking = [arm for arm in arms if arm in DEVIATIONS] or arms  # without one, nor is it among others
        parts = [f"Without effect on this figure at this scale: {', '.join(idle)}."] if idle else []
        return " ".join([*parts, f"Not run: {', '.join(lacking)}."] if lacking else parts)

    def _all(self, result: Results) -> list[Case]:
        """The lines at its scale."""
        return list(self.cases(next(scale for name, scale in self.scales.items() if name == result.scale)))

    def _loaded(self, options: Options) -> Results:
        """Of a file that has more deviations, the lines of these alone, or of some of them together."""
        result = super()._loaded(options)
        asked = {(case.setting, case.rule) for case in self._all(result)}
        lines = [
            line
            for line in result.lines
            if (line.setting, line.rule) in asked or {*_deviations(line)} <= {*self.deviations}
        ]
        if len(lines) == len(result.lines):
            return result
        part = replace(result, lines=lines)
        return replace(part, troubles=part.unfinished)

    def empty(self, result: Results) -> bool:
        return bool(self._all(result)) and super().empty(result)

    def findings(self, result: Results) -> Iterable[Claim]:
        return ()

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        rows: list[list[Cell]] = [[name, WORDS[name]] for name in self.deviations]
        said = Table(["deviation", "what the released code does"], rows, keys=1)
        return {"Accuracies, with and without": self.comparison(result), "Deviations": said}

    def notes(self, result: Results) -> Sequence[Section]:
        return super().notes(result) if result.lines else []

    def table(self, result: Results) -> Table:
        table = self.comparison(result)
        return replace(table, caption=f"{self.title}, {result.size}\n{table.caption}")

    def command(self, result: Results) -> str:
        chosen = "--as-released" if len(self.deviations) == len(DEVIATIONS) else ""
        chosen = chosen or " ".join(f"--deviation {name}" for name in self.deviations)
        return super().command(result).replace(self.name, f"{self.figure.name} {chosen}")

    def comparison(self, result: Results) -> Table:
        """Released, ours, ours as released, each deviation alone, and which explains the difference."""
        rows: list[list[Cell]] = []
        arms, effective = _arms(result.lines), _arms(self._all(result))
        shown = [name for name in self.deviations if name in arms]
        every = len(self.deviations) == len(DEVIATIONS)
        whole = every and all(arm in arms for arm in effective if arm in DEVIATIONS)
        comparable = result.scale == "paper" and result.length == 1
        for setting in result.settings:
            group = self.reported(setting)
            for rule in dict.fromkeys(_rule(line.rule) for line in result.lines if line.setting == setting):
                alone = [arm for arm in shown if result.line(setting, _arm(rule, arm))]
                if not alone:
                    continue
                ran = {OURS: _arm(rule, OURS), RELEASED: _arm(rule, *alone)}  # all that are asked for
                ran |= {arm: _arm(rule, arm) for arm in shown}
                cells = [result.accuracy(setting, label, group) for label in ran.values()]
                ends = {arm: result.final(setting, ran[arm], group) for arm in (OURS, RELEASED, *alone)}
                known = self.figure.released(setting, rule) if comparable else None
                why = _why(ends, known)
                rows.append([setting, rule, None if known is None else f"{known:.1f}", *cells, why])
        apart = not comparable and any(self.figure.released(f"{row[0]}", f"{row[1]}") for row in rows)
        all_of_them = RELEASED if whole else TOGETHER
        header = ["setting", "rule", "released", OURS, all_of_them, *shown, "explained by"]
        fewer, rows = _fewer_seeds(header, rows)
        parts = [
            f"Accuracy in %, {self.whom()}.",
            drawing.ends(result),
            fewer,
            EXPLAINED,
            "The released numbers are of the paper's scale: not here." if apart else "",
            self.left_out(result),
        ]
        return Table(header, rows, " ".join(filter(None, parts)) if rows else UNCHANGED, keys=2)


def _fewer_seeds(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> tuple[str, list[list[Cell]]]:
    """A sentence on columns whose cells all lack the same seeds, in place of a note in each cell."""
    columns = [list(column) for column in zip(*rows, strict=True)]
    lacking: dict[str, list[str]] = {}
    for place, (name, column) in enumerate(zip(header, columns, strict=False)):
        notes = {str(cell).partition(" (")[2] for cell in column if cell is not None}
        if len(notes) == 1 and (note := notes.pop()).endswith(" seeds)"):
            lacking.setdefault(note.removesuffix(")"), []).append(name)
            columns[place] = [None if cell is None else str(cell).partition(" (")[0] for cell in column]
    said = [f"Only {count}: {', '.join(names)}." for count, names in lacking.items()]
    return " ".join(said), [list(row) for row in zip(*columns, strict=True)]


def _why(ends: Mapping[str, Floats], released: float | None) -> str:
    """Each deviation of a row that alone goes at least half of the way from ours to the released number, or
    to all of them: of one alone that would say nothing."""
    ours, together, *alone = ends.values()
    goal = together if released is None else np.full_like(ours, released / 100)
    way = estimate((goal - ours).tolist())
    beyond = [
        None if way is None else estimate((np.sign(way.mean) * (arm - (ours + goal) / 2)).tolist())
        for arm in alone
    ]
    found = [None if part is None or part.low is None else part.bounds for part in (way, *beyond)]
    if found[0] is None or (released is None and len(alone) < 2):
        return "–"
    if found[0][0] <= 0 <= found[0][1]:
        return "undecided"
    far = {name: held for name, held in zip(list(ends)[2:], found[1:], strict=True) if held}
    if named := [name for name, (low, _) in far.items() if low > 0]:
        return ", ".join(named)
    if len(far) < len(alone):
        return "–"
    return "undecided" if any(high >= 0 for _, high in far.values()) else "no single one"


def _arms(lines: Iterable[Line | Case]) -> dict[str, None]:
    return dict.fromkeys(line.rule.rpartition(" | ")[2] for line in lines)


def _deviations(line: Line) -> list[str]:
    return line.rule.rpartition(" | ")[2].split(" + ")


def _arm(rule: str, *arm: str) -> str:
    """The label of a line: its rule, and ours or all its deviations, in the order of DEVIATIONS."""
    return f"{rule} | {' + '.join(arm)}"


def _rule(label: str) -> str:
    return label.rpartition(" | ")[0]


def with_deviations(names: Iterable[str], deviations: Sequence[str]) -> list[AsReleased]:
    """The experiments of `reproduce NAME --as-released`, or `--deviation NAME`."""
    figures = list(map(load, names))
    trained = [figure for figure in figures if isinstance(figure, TrainingExperiment)]
    for figure in figures:
        why = f"{figure.name!r} trains nothing, so that no deviation changes it"
        if not trained:
            raise ConfigError(f"{why}\nleave it out, or --as-released and --deviation")
        if figure not in trained:
            warn_user(f"{why}; it is left out")
    return [AsReleased(figure, deviations or list(DEVIATIONS)) for figure in trained]
