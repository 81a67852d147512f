"""What an experiment is, and how it is reproduced: its runs, then its claims, its figures and its page."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

from clippedgossip.errors import ConfigError, unknown_name
from clippedgossip.files import write
from clippedgossip.report.claims import Claim, Claims
from clippedgossip.report.page import PagePart, Section, Table, page

if TYPE_CHECKING:
    from clippedgossip.runs.config import RunConfig

Progress = Callable[[str, int, int], None]
"""Called with a label, how much of it is done, and how much there is."""

Result = TypeVar("Result")
CLAIMS_FORMAT = 2


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to run an experiment. The consensus experiment needs only `out`."""

    scale: Literal["quick", "paper"] = "quick"
    seeds: int | None = None
    """Runs per curve. The default is 3 at the quick scale and 5 at the paper's."""
    device: str = "auto"
    precision: Literal["float32", "tf32", "bfloat16"] | None = None
    """Precision of the products in the gradients. The default is that of the scale."""
    length: float = 1.0
    """The fraction of the rounds to run. Drops of the learning rate move with it."""
    workers: int | None = None
    """Processes. The default is one for each core of a CPU, and one on a GPU."""
    out: Path = Path("out")
    """Folder of runs, figures and pages. Each experiment has a folder of its own in it."""
    source: Path | None = None
    """Results to draw from, a file or a folder. Nothing is run then."""
    source_scale: Literal["quick", "paper"] | None = None
    """The scale that these results must have. The default is any."""
    known: Path | None = None
    """Results whose runs are not done again, a file or a folder."""
    lenient: bool = False
    """If data or results of an experiment are not there, say so on its page and continue."""

    @property
    def seed_count(self) -> int:
        return self.seeds or (3 if self.scale == "quick" else 5)

    @property
    def runs(self) -> Path:
        """All experiments share their runs, so that a run that two of them need is run once."""
        return self.out / "runs"


@dataclass(frozen=True)
class Needs(Generic[Result]):
    """What an experiment needs: runs first, then a function that reads their result."""

    read: Callable[[Progress], Result]
    configs: Sequence["RunConfig"] = ()
    later: Callable[[], Sequence["RunConfig"]] = tuple
    """Runs whose parameters depend on the results of `configs`."""


class Experiment(ABC, Generic[Result]):
    """One figure, or a few that come from the same runs. A new one is a module and a line in SETS."""

    name: ClassVar[str]
    title: ClassVar[str]
    lead: ClassVar[str]
    section: ClassVar[str]
    """Where in the paper the findings are, or what they are about."""
    source: ClassVar[str] = "No claim of the paper; the bound is ours."
    """The source of claims that give none."""
    remarks: ClassVar[str] = ""
    """What the paper leaves open, and what we chose."""

    def __init_subclass__(cls) -> None:
        """Text is broken into lines for the source alone."""
        cls.lead, cls.remarks = (" ".join(getattr(cls, key, "").split()) for key in ("lead", "remarks"))

    @abstractmethod
    def needs(self, options: Options) -> Needs[Result]:
        """The runs it needs, and how to read its result from them."""

    @abstractmethod
    def findings(self, result: Result) -> Iterable[Claim]:
        """What the paper says beside what was seen."""

    @abstractmethod
    def figures(self, result: Result) -> Mapping[str, PagePart]:
        """The figures, by title."""

    @abstractmethod
    def rows(self, result: Result) -> list[dict[str, Any]]:
        """The numbers behind the figures, for `--json`."""

    def empty(self, result: Result) -> bool:
        """Whether there is nothing to judge or draw."""
        return not self.rows(result)

    @abstractmethod
    def table(self, result: Result) -> Table:
        """The numbers that matter most, for a terminal."""

    def intro(self, result: Result) -> str:
        """The lead of its page."""
        return self.lead

    def save(self, result: Result, folder: Path) -> None:
        """Keep the result in the folder of the experiment, to draw from later."""

    def notes(self, result: Result) -> Sequence[Section]:
        """Further sections of the page, below the claims."""
        return [] if self.empty(result) else [Section("Numbers", [self.table(result)])]

    def claims(self, result: Result) -> Claims:
        """All findings."""
        found = [replace(claim, source=claim.source or self.source) for claim in self.findings(result)]
        return Claims(found, self.section)

    def page(self, result: Result, claims: Claims, figures: Mapping[str, PagePart]) -> str:
        """All of it as one HTML page."""
        drawn = [Section(title, [figure]) for title, figure in figures.items()]
        judged = [
            Section(title, [Claims(part, claims.caption)])
            for title, apart in (("Claims", False), ("By construction", True))
            if (part := [c for c in claims.claims if (c.verdict == "by construction") is apart])
        ]
        return page(self.title, self.intro(result), [*drawn, *judged, *self.notes(result)])


SETS: Mapping[str, Mapping[str, str]] = {
    "all": {
        "consensus": "consensus_figures:Consensus",
        "dumbbell": "dumbbell:Dumbbell",
        "more-topologies": "more_topologies:MoreTopologies",
        "delta-max": "delta_max:DeltaMax",
        "no-honest-majority": "no_honest_majority:NoHonestMajority",
        "clipping-radius": "clipping_radius:ClippingRadius",
        "weaker-topology": "weaker_topology:WeakerTopology",
        "cifar": "cifar:Cifar",
    },
    "ours": {
        "adaptive-radius": "adaptive_radius:AdaptiveRadius",
        "newer-rules": "newer_rules:NewerRules",
        "precision": "precision:PrecisionOfProducts",
        "optimal-weights": "faster_mixing:FasterMixing",
        "changing-networks": "changing_networks:ChangingNetworks",
        "random-partner": "random_partner:RandomPartner",
        "components": "blocked_components:BlockedComponents",
        "average-delta": "average_delta:AverageDelta",
    },
}
"""`all` figures of the paper, and `ours`, which are not in it: name -> module and class."""
EXPERIMENTS: Mapping[str, str] = {
    name: f"clippedgossip.paper.{where}" for figures in SETS.values() for name, where in figures.items()
}
"""Their modules are imported when they are used."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """An experiment whose runs are done. `judge` makes a `Reproduction` of it."""

    experiment: Experiment[Any]
    options: Options
    read: Callable[[Progress], Any]

    def judge(self, progress: Progress) -> "Reproduction":
        """Read the result, judge the claims, draw. Writes `results.json`, `claims.json` and `index.html`."""
        experiment, folder = self.experiment, self.options.out / self.experiment.name
        result = self.read(progress)
        experiment.save(result, folder)
        claims = experiment.claims(result)
        length = float(getattr(result, "length", 1.0))
        write_claims(folder / "claims.json", {experiment.name: (result, claims)})
        progress(f"drawing {experiment.name}", 0, 1)
        figures = {} if experiment.empty(result) else experiment.figures(result)
        path = write(folder / "index.html", experiment.page(result, claims, figures))
        return Reproduction(
            experiment=experiment, result=result, length=length, claims=claims, figures=figures, path=path
        )


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """An experiment that is done: its result, its claims, its figures and the path of its page."""

    experiment: Experiment[Any]
    result: Any
    length: float
    """The fraction of the rounds that was run. The claims are about all of them."""
    claims: Claims
    figures: Mapping[str, PagePart]
    path: Path

    @property
    def failed(self) -> int:
        """The number of claims that do not hold."""
        return self.claims.count("does not hold")


def resolve(names: Iterable[str]) -> list[str]:
    """The experiments of these names, each once. `all` and `ours` name several."""
    chosen: dict[str, None] = {}
    for name in names:
        if name not in SETS and name not in EXPERIMENTS:
            raise ConfigError(unknown_name("experiment", name, [*EXPERIMENTS, *SETS]))
        chosen |= dict.fromkeys(SETS.get(name, [name]))
    return list(chosen)


def load(name: str) -> Experiment[Any]:
    """The experiment of this name."""
    module, _, kind = EXPERIMENTS[resolve([name])[0]].partition(":")
    experiment: Experiment[Any] = getattr(import_module(module), kind)()
    return experiment


def prepare(
    experiments: Iterable[str | Experiment[Any]], options: Options, progress: Progress
) -> list[Prepared]:
    """Do all unfinished runs of these experiments together."""
    chosen = [load(entry) if isinstance(entry, str) else entry for entry in experiments]
    needs = [experiment.needs(options) for experiment in chosen]
    for later in (False, True):
        if configs := [config for need in needs for config in (need.later() if later else need.configs)]:
            from clippedgossip.paper.results import run_all

            run_all(configs, options.runs, device=options.device, workers=options.workers, progress=progress)
    return [
        Prepared(experiment=experiment, options=options, read=need.read)
        for experiment, need in zip(chosen, needs, strict=True)
    ]


def write_claims(path: Path, judged: Mapping[str, tuple[Any, Claims]]) -> None:
    """Every claim with its verdict, by experiment, as JSON: also the scale (null: there is but one), the
    fraction of the rounds that was run, and why results are missing."""
    content = {
        "format": CLAIMS_FORMAT,
        "tally": Claims([claim for _, claims in judged.values() for claim in claims.claims]).tally,
        "experiments": {
            name: {
                "scale": getattr(result, "scale", None),
                "length": float(getattr(result, "length", 1.0)),
                "missing": list(getattr(result, "troubles", ())),
                "claims": claims.to_json(),
            }
            for name, (result, claims) in judged.items()
        },
    }
    write(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
