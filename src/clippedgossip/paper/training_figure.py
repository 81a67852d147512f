"""An experiment of training runs: each line is a rule in a setting, over seeds."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from clippedgossip.errors import DataError, RunError
from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.base import Experiment, Needs, Options
from clippedgossip.paper.results import DISTANCE, Line, Results, found
from clippedgossip.paper.scales import MNIST, Case, Scale, ScaleName
from clippedgossip.report.page import PagePart, Section, Table
from clippedgossip.rules import RULES
from clippedgossip.tasks import load as load_data


class TrainingExperiment(Experiment[Results]):
    """A figure of the paper, or one of ours. A subclass gives its lines and its claims."""

    scales: ClassVar[Mapping[ScaleName, Scale]] = MNIST
    group: ClassVar[str] = "all"
    """The group of nodes whose averaged model is reported, unless `reported` gives another."""
    remarks: ClassVar[str] = ""
    """What the paper leaves open, and what we chose."""

    @abstractmethod
    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        """The lines."""

    def reported(self, setting: str) -> str:
        """The group whose averaged model is reported for a setting."""
        return self.group

    def whom(self) -> str:
        """The same in words, for captions."""
        return "all regular nodes" if self.group == "all" else self.group

    def needs(self, options: Options) -> Needs[Results]:
        if options.source is not None:
            return Needs(lambda progress: self._loaded(options))
        cases = self._cases(options)
        data = cases[0].config.data.name
        try:
            load_data(data)
        except DataError:
            if not options.lenient:
                raise
            return Needs(lambda progress: self._not_run(cases, options, f"{data} is not here"))
        seeds = range(options.seed_count)
        configs = [case.seeded(seed, options.device) for seed in seeds for case in cases]
        return Needs(lambda progress: self._read(cases, options), configs)

    def save(self, result: Results, folder: Path) -> None:
        result.save(folder / "results.json")

    def figures(self, result: Results) -> Mapping[str, PagePart]:
        return {
            "Accuracy over the rounds": self.curves(result),
            "Accuracy at the end": drawing.end_bars(result, self.reported),
            "Agreement": drawing.agreement(result),
        }

    def curves(self, result: Results) -> PagePart:
        caption = f"Test accuracy of the model averaged over {self.whom()}."
        return drawing.curves(result, self.reported, caption=caption)

    def rows(self, result: Results) -> list[dict[str, Any]]:
        return [
            {
                "network": line.config["network"].get("name"),
                "data": "IID" if line.config["data"]["partition"] == "iid" else "non-IID",
                "attack": line.config.get("attack", {"name": "none"})["name"],
                "rule": class_name(line.config["rule"]),
                "accuracy": run.final.get(self.reported(line.setting)),
                "group": self.reported(line.setting),
                "setting": line.setting,
                "label": line.rule,
                "seed": run.seed,
                "accuracies": {name: value for name, value in run.final.items() if name != DISTANCE},
                "consensus_distance": run.final[DISTANCE],
                "diverged": run.diverged,
            }
            for line in result.lines
            for run in line.runs
        ]

    def table(self, result: Results) -> Table:
        title = f"{self.title}\naccuracy in %, {self.whom()}"
        return drawing.short_table(result, self.reported, title)

    def notes(self, result: Results) -> Sequence[Section]:
        return [
            Section("Accuracies", [drawing.page_table(result)]),
            Section("Networks", [drawing.networks(result)]),
            Section("How it was run", drawing.how(result, self.scales, self.remarks, self.command(result))),
        ]

    def command(self, result: Results) -> str:
        part = "" if result.length == 1 else f" --length {result.length:g}"
        return f"clippedgossip reproduce {self.name} --scale {result.scale} --seeds {result.seeds}{part}"

    def _cases(self, options: Options) -> Sequence[Case]:
        scale = self.scales[options.scale]
        if options.precision is not None:
            scale = replace(scale, training={**scale.training, "precision": options.precision})
        return [case.shortened(options.length) for case in self.cases(scale, options.scale)]

    def _read(self, cases: Sequence[Case], options: Options) -> Results:
        results = Results.read(self.name, options.scale, cases, options.seed_count, options.runs)
        if results.troubles and not any(line.runs for line in results.lines):
            raise RunError(results.troubles[0])
        return replace(results, length=options.length)

    def _loaded(self, options: Options) -> Results:
        assert options.source is not None
        try:
            return Results.load(found(options.source, self.name), self.name)
        except RunError:
            if not options.lenient:
                raise
        return self._not_run(self._cases(options), options, "not run")

    def _not_run(self, cases: Sequence[Case], options: Options, trouble: str) -> Results:
        lines = [Line(setting=case.setting, rule=case.rule, config=case.mapping) for case in cases]
        return Results(
            experiment=self.name,
            scale=options.scale,
            seeds=options.seed_count,
            lines=lines,
            troubles=[trouble],
            length=options.length,
        )


def class_name(rule: Mapping[str, Any]) -> str:
    """`ClippedGossip`, or `Bucketing(TrimmedMean)`."""
    name = RULES[rule["name"]].__name__
    return f"{name}({class_name(rule['rule'])})" if "rule" in rule else name
