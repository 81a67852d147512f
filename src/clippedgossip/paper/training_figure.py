"""An experiment made of training runs: lines of rules in settings, over seeds."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from clippedgossip.errors import DataError, RunError
from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.base import Experiment, Options, Progress
from clippedgossip.paper.processes import run_all
from clippedgossip.paper.results import DISTANCE, Line, Results, found
from clippedgossip.paper.scales import MNIST, Case, Scale, ScaleName
from clippedgossip.report.page import Part, Section
from clippedgossip.rules import RULES
from clippedgossip.runs.config import RunConfig
from clippedgossip.tasks import load as load_data

if TYPE_CHECKING:
    from rich.console import RenderableType


class TrainingExperiment(Experiment[Results]):
    """A figure of the paper, or of ours. A subclass says its lines and its claims."""

    scales: ClassVar[Mapping[ScaleName, Scale]] = MNIST
    group: ClassVar[str] = "all"
    """Whose averaged model is reported, unless `reported` says otherwise."""
    remarks: ClassVar[str] = ""
    """What the paper leaves open, and how it is settled here."""

    @abstractmethod
    def cases(self, scale: Scale, name: ScaleName) -> Sequence[Case]:
        """The lines."""

    def reported(self, setting: str) -> str:
        """The group whose averaged model a setting is reported by."""
        return self.group

    def whom(self) -> str:
        """The same in words."""
        return "all regular nodes" if self.group == "all" else self.group

    def configs(self, options: Options) -> Sequence[RunConfig]:
        if options.source is not None:
            return ()
        cases = self._cases(options)
        try:
            load_data(cases[0].config.data.name)
        except DataError:
            if options.lenient:
                return ()
            raise
        return [case.seeded(seed, options.device) for seed in range(options.seed_count) for case in cases]

    def run(self, options: Options, progress: Progress) -> Results:
        if options.source is not None:
            return self._loaded(options)
        configs = self.configs(options)
        run_all(configs, options.runs, device=options.device, workers=options.workers, progress=progress)
        results = Results.read(
            self.name, options.scale, self._cases(options), options.seed_count, options.runs
        )
        if not configs:
            results = replace(results, troubles=[f"{self._cases(options)[0].config.data.name} is not here"])
        elif results.troubles and not any(line.runs for line in results.lines):
            raise RunError(results.troubles[0])
        results = replace(results, length=options.length)
        results.save(options.out / self.name / "results.json")
        return results

    def figures(self, result: Results) -> Mapping[str, Part]:
        return {
            "Accuracy over the rounds": self.curves(result),
            "Accuracy at the end": drawing.end_bars(result, self.reported),
            "Agreement": drawing.agreement(result),
        }

    def curves(self, result: Results) -> Part:
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

    def table(self, result: Results) -> "RenderableType":
        title = f"{self.title}\naccuracy in %, {self.whom()}"
        return drawing.terminal_table(result, self.reported, title)

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

    def _loaded(self, options: Options) -> Results:
        assert options.source is not None
        try:
            return Results.load(found(options.source, self.name), self.name)
        except RunError:
            if not options.lenient:
                raise
        cases = self._cases(options)
        lines = [Line(setting=case.setting, rule=case.rule, config=case.mapping) for case in cases]
        return Results(
            experiment=self.name,
            scale=options.scale,
            seeds=options.seed_count,
            lines=lines,
            troubles=["not run"],
        )


def class_name(rule: Mapping[str, Any]) -> str:
    """`ClippedGossip`, or `Bucketing(TrimmedMean)`."""
    name = RULES[rule["name"]].__name__
    return f"{name}({class_name(rule['rule'])})" if "rule" in rule else name
