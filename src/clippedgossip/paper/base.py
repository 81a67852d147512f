"""What an experiment is: it runs, is checked claim by claim, draws its figures and becomes a page."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.report.claims import Claims
from clippedgossip.report.page import Part, Section, page, write

if TYPE_CHECKING:
    from rich.console import RenderableType

    from clippedgossip.runs.config import RunConfig

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run an experiment. One that is deterministic and small ignores them."""

    scale: Literal["quick", "paper"] = "quick"
    seeds: int | None = None
    """Runs per curve; 3 at the quick scale and 5 at the paper's unless said."""
    device: str = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] | None = None
    """Of the gradients' products; that of the scale unless said."""
    length: float = 1.0
    """The part of the rounds that training runs take; learning-rate drops come as much earlier."""
    workers: int | None = None
    """Processes on a CPU; one per core unless said."""
    out: Path = Path("out")
    """Where runs, figures and pages go; each experiment has a folder of its own in it."""
    source: Path | None = None
    """Results to draw from, a file or a folder, instead of running."""
    lenient: bool = False
    """Where data or results of an experiment are missing, say so on its page and go on."""

    @property
    def seed_count(self) -> int:
        return self.seeds or (3 if self.scale == "quick" else 5)

    @property
    def runs(self) -> Path:
        """All experiments share their runs, so that one that two of them need is run once."""
        return self.out / "runs"


class Experiment(ABC, Generic[Result]):
    """One figure, or a few that come from the same runs. A new one is a module and a line in EXPERIMENTS."""

    name: ClassVar[str]
    title: ClassVar[str]
    lead: ClassVar[str]

    def configs(self, options: Options) -> Sequence["RunConfig"]:
        """The runs it needs, if it is made of runs: those of several experiments go best together."""
        return ()

    @abstractmethod
    def run(self, options: Options, progress: Progress) -> Result:
        """Do the work; what was finished before is not done again."""

    @abstractmethod
    def claims(self, result: Result) -> Claims:
        """What the paper says beside what was seen."""

    @abstractmethod
    def figures(self, result: Result) -> Mapping[str, Part]:
        """The figures, by title."""

    @abstractmethod
    def rows(self, result: Result) -> list[dict[str, Any]]:
        """The numbers behind the figures, for `--json`."""

    @abstractmethod
    def table(self, result: Result) -> "RenderableType":
        """The numbers in a few lines of at most 80 columns, for a terminal."""

    def notes(self, result: Result) -> Sequence[Section]:
        """What else the page should say, below the figures."""
        return ()

    def page(self, result: Result, figures: Mapping[str, Part] | None = None) -> str:
        """The whole as one HTML page, with the figures if they are already drawn."""
        figures = self.figures(result) if figures is None else figures
        drawn = [Section(title, [figure]) for title, figure in figures.items()]
        claims = Section("Claims", [self.claims(result)])
        return page(self.title, self.lead, [*drawn, claims, *self.notes(result)])


EXPERIMENTS: Mapping[str, str] = {
    "consensus": "clippedgossip.paper.consensus_figures",
} | {
    name: f"clippedgossip.paper.{name.replace('-', '_')}"
    for name in (
        "dumbbell",
        "more-topologies",
        "delta-max",
        "no-honest-majority",
        "clipping-radius",
        "weaker-topology",
        "cifar",
        "adaptive-radius",
        "newer-rules",
        "precision",
    )
}
"""Name -> module; each module holds its `EXPERIMENT` and is imported when it is asked for."""


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """An experiment done: its numbers, its verdicts and where its page is."""

    experiment: Experiment[Any]
    result: Any
    claims: Claims
    figures: Mapping[str, Part]
    path: Path

    @property
    def whole(self) -> bool:
        """Whether it ran its whole length, which is what the claims are about."""
        return bool(getattr(self.result, "length", 1.0) == 1)

    @property
    def failed(self) -> int:
        """The number of claims that do not hold."""
        return sum(claim.holds is False for claim in self.claims.claims)


def resolve(names: Iterable[str]) -> list[str]:
    """The experiments meant, each once; `all` means all of them."""
    chosen: dict[str, None] = {}
    for name in names:
        if name != "all" and name not in EXPERIMENTS:
            raise ConfigError(unknown_name("experiment", name, [*EXPERIMENTS, "all"]))
        chosen |= dict.fromkeys(EXPERIMENTS if name == "all" else [name])
    return list(chosen)


def load(name: str) -> Experiment[Any]:
    """The experiment of this name."""
    experiment: Experiment[Any] = import_module(EXPERIMENTS[resolve([name])[0]]).EXPERIMENT
    return experiment


def prepare(names: Iterable[str], options: Options, progress: Progress) -> None:
    """Run whatever is missing for these experiments, all in one go."""
    from clippedgossip.paper.processes import run_all

    configs = [config for name in names for config in load(name).configs(options)]
    run_all(configs, options.runs, device=options.device, workers=options.workers, progress=progress)


def reproduce(
    name: str | Experiment[Any], options: Options, progress: Progress | None = None
) -> Reproduction:
    """Run an experiment, check it, and write its page to `index.html` in its folder."""
    experiment = load(name) if isinstance(name, str) else name
    result = experiment.run(options, progress or (lambda label, done, total: None))
    figures = experiment.figures(result)
    path = write(options.out / experiment.name / "index.html", experiment.page(result, figures))
    return Reproduction(
        experiment=experiment,
        result=result,
        claims=experiment.claims(result),
        figures=figures,
        path=path,
    )
