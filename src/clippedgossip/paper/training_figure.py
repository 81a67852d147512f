"""An experiment of training runs: its two scales, its lines (a rule in a setting, over seeds), its page."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from clippedgossip.errors import DataError, RunError, warn_user
from clippedgossip.files import canonical
from clippedgossip.paper import page_parts as drawing
from clippedgossip.paper.base import Experiment, Needs, Options
from clippedgossip.paper.results import DISTANCE, Known, Line, Results, found
from clippedgossip.report.page import PagePart, Section, Table
from clippedgossip.rules import RULES
from clippedgossip.runs.config import RunConfig
from clippedgossip.tasks import load as load_data

ScaleName = Literal["quick", "paper"]

PAPER_ATTACKS: Mapping[str, Any] = {
    "ALIE": "alie",
    "ALIE z=10": {"name": "alie", "z": 10.0},
    "IPM": {"name": "ipm", "epsilon": 0.1},
    "BF": "bit-flipping",
    "LF": "label-flipping",
    "dissensus": {"name": "dissensus", "epsilon": 1.5},
}
"""The attacks of the paper's figures. ALIE's z follows the text's formula, or is the released runs' 10."""
SHORT = {
    "ALIE": "a little is enough",
    "IPM": "inner product manipulation",
    "BF": "bit flipping",
    "LF": "label flipping",
}


TUNING_SEED = 1000
"""The seed on which parameters are chosen, with all attacks on the network. It is not reported."""


@dataclass(frozen=True)
class Grid:
    """Values of one parameter of a rule, by label. The best on each network is chosen."""

    values: Mapping[str, str | Mapping[str, Any]]


How = str | Mapping[str, Any] | Grid
"""A rule by its name, with parameters, or with one that is to be chosen."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One line of a figure: a rule in a setting. Each of its seeds is one run."""

    setting: str
    rule: str
    config: RunConfig
    tries: Mapping[str, RunConfig] = field(default_factory=dict)
    """If a parameter is to be chosen: a config for each of its values."""

    @property
    def line(self) -> Line:
        """As a line of the results, without runs; its config has no seed, and values that JSON has."""
        mapping = json.loads(canonical(self.config.to_mapping()))
        del mapping["seed"]
        return Line(setting=self.setting, rule=self.rule, config=mapping)

    @property
    def tuning(self) -> list[Line]:
        """The lines that try each value."""
        return [replace(self.with_value(value).line, value=value) for value in self.tries]

    def with_value(self, value: str) -> "Case":
        return replace(self, config=self.tries[value])

    def shortened(self, length: float) -> "Case":
        """The same with a fraction of the rounds. Drops of the learning rate move with it."""
        if length == 1:
            return self
        whole = self.config.training
        part = replace(
            whole,
            rounds=max(1, round(whole.rounds * length)),
            lr_drops=tuple(round(drop * length) for drop in whole.lr_drops),
            evaluate_last=max(1, round(whole.evaluate_last * length)),
        )
        tries = {value: replace(config, training=part) for value, config in self.tries.items()}
        return replace(self, config=replace(self.config, training=part), tries=tries)

    def seeded(self, seed: int, device: str = "auto") -> RunConfig:
        return replace(self.config, seed=seed, device=device)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What all lines of a figure share: data, model, the numbers of Algorithm 1, and the unit of τ."""

    name: ScaleName
    data: Mapping[str, Any]
    model: str
    training: Mapping[str, Any]
    radius: float
    about: str

    def attacks(self, judged: Iterable[str], *shown: str) -> dict[str, Any]:
        """Those that claims are about; at the paper's scale also some that are only shown."""
        names = [*judged, *(shown if self.name == "paper" else ())]
        return {name: PAPER_ATTACKS[name] for name in names}

    @property
    def clique(self) -> int:
        """Workers in each clique of the dumbbell without Byzantine nodes."""
        return 10 if self.name == "paper" else 5

    def case(
        self,
        setting: str,
        rule: str,
        how: How,
        *,
        network: Mapping[str, Any],
        partition: str = "iid",
        attack: str | Mapping[str, Any] | None = None,
        byzantine_share: bool = False,
        **training: Any,
    ) -> Case:
        """A line. Byzantine nodes that train hold copies of the data, so that the regular nodes hold all of
        it; with `byzantine_share` each Byzantine node holds a share of its own."""
        raw: dict[str, Any] = {
            "network": network,
            "data": {
                **self.data,
                "partition": partition,
                "byzantine_share": byzantine_share,
                "byzantine_copies": attack is not None and not byzantine_share,
            },
            "model": self.model,
            "training": {**self.training, **training},
        }
        if attack is not None:
            raw["attack"] = attack
        if not isinstance(how, Grid):
            return Case(setting=setting, rule=rule, config=RunConfig.from_mapping({**raw, "rule": how}))
        tries = {value: RunConfig.from_mapping({**raw, "rule": one}) for value, one in how.values.items()}
        return Case(setting=setting, rule=rule, config=next(iter(tries.values())), tries=tries)

    def cases(self, setting: str, rules: Mapping[str, How], **shared: Any) -> Sequence[Case]:
        """One line for each rule."""
        return [self.case(setting, name, how, **shared) for name, how in rules.items()]


def clipped(radius: float) -> dict[str, Any]:
    return {"name": "clipped-gossip", "radius": radius}


def by_radius(*radii: float) -> dict[str, Any]:
    """ClippedGossip with each of these radii."""
    return {f"τ = {radius:g}": clipped(radius) for radius in radii}


TUNED = Grid(by_radius(0.03, 0.1, 0.3, 1.0))
"""The radius, chosen on each network. The authors chose it for each figure: on their ring τ = 1 reaches
11.4 %, and τ = 0.1, which they show, 91.5 %."""


def adaptive(weight: float | str = "byzantine") -> dict[str, Any]:
    """τ_i from the messages and a bound on δ_max, by default the true one (§ choosing clipping radius)."""
    return {"name": "clipped-gossip", "radius": {"adaptive": weight}}


def paper_rules(radius: float | Grid, *, trim: int | str = "byzantine", keep: float = 0.99) -> dict[str, Any]:
    """The five rules of the paper's figures. GM takes 8 iterations, Mozi a = 0.5 (§ aggregator setup)."""
    return {
        "Gossip": "gossip",
        "ClippedGossip": radius if isinstance(radius, Grid) else clipped(radius),
        "GM": "geometric-median",
        "TM": {"name": "trimmed-mean", "trim": trim},
        "Mozi": {"name": "mozi", "keep": keep, "self_weight": 0.5},
    }


def bucketed(rule: str | Mapping[str, Any]) -> dict[str, Any]:
    """Bucketing with s = 2 (§ Techniques that improve information diffusion)."""
    return {"name": "bucketing", "rule": rule, "size": 2}


def often(rounds: int, every: int) -> dict[str, Any]:
    """Evaluate every `every` rounds. The reported accuracy is the mean over the last sixth."""
    return {
        "rounds": rounds,
        "evaluate_every": every,
        "evaluate_last": rounds // 6,
        "evaluate_last_every": every,
        "evaluate_nodes": False,
    }


MNIST: Mapping[ScaleName, Scale] = {
    "quick": Scale(
        name="quick",
        data={"name": "digits"},
        model="mlp",
        training={"batch": 32, "lr": 0.01, "momentum": 0.9, **often(240, 15)},
        radius=1.0,
        about="The miniature: scikit-learn's 1,797 digits in place of MNIST, one hidden layer of 64 in place "
        "of the CNN, 240 rounds in place of 900. Batch, learning rate and momentum are the paper's, and τ "
        "unless it is searched for.",
    ),
    "paper": Scale(
        name="paper",
        data={"name": "mnist"},
        model="cnn",
        training={"batch": 32, "lr": 0.01, "momentum": 0.9, "precision": "tf32", **often(900, 30)},
        radius=1.0,
        about="The paper's setting: MNIST, its CNN of 1,199,882 parameters, batch 32, learning rate 0.01, "
        "momentum 0.9, 900 rounds unless said otherwise; accuracies are means over the last 150 rounds.",
    ),
}

LONGER: Mapping[ScaleName, Scale] = {
    **MNIST,
    "quick": replace(
        MNIST["quick"],
        training={**MNIST["quick"].training, **often(360, 12)},
        about=MNIST["quick"].about.replace("240 rounds", "360 rounds"),
    ),
}
"""Of figures that are not in the paper. Most of their results are of the quick scale, which is longer here:
`reproduce all` is to take minutes, and they are no part of it."""

EPOCH = 39  # rounds: 50,000 images, 20 workers, batch 64

CIFAR: Mapping[ScaleName, Scale] = {
    "quick": Scale(
        name="quick",
        data={"name": "digits"},
        model="deep-mlp",
        training={"batch": 32, "lr": 0.07, "momentum": 0.9, **often(300, 20)},
        radius=10.0,
        about="The miniature: scikit-learn's 1,797 digits in place of CIFAR-10, six hidden layers of 32 in "
        "place of VGG-11 (averaging models of one hidden layer costs little accuracy), a "
        "learning rate of 0.07, the largest that does not diverge, and 300 rounds. τ = 10 is the paper's.",
    ),
    "paper": Scale(
        name="paper",
        data={"name": "cifar10", "augment": True},
        model="vgg11",
        training={
            "batch": 64,
            "lr": 0.1,
            "lr_drops": [80 * EPOCH, 120 * EPOCH],
            "momentum": 0.9,
            "precision": "tf32",
            **often(150 * EPOCH, EPOCH),
            "evaluate_last": 150,
            "evaluate_last_every": 30,
        },
        radius=10.0,
        about="The paper's setting: CIFAR-10, VGG-11 without batch normalisation, batch 64, learning rate "
        "0.1, a tenth of it from epoch 80 and a hundredth from epoch 120, momentum 0.9, 150 epochs.",
    ),
}


class TrainingExperiment(Experiment[Results]):
    """A figure of the paper, or one of ours. A subclass gives its lines and its claims."""

    scales: ClassVar[Mapping[ScaleName, Scale]] = MNIST
    group: ClassVar[str] = "all"
    """The group of nodes whose averaged model is reported."""
    groups: ClassVar[Mapping[str, str]] = {}
    """Settings for which another group is reported, or all of a network: what stands before the comma."""

    @abstractmethod
    def cases(self, scale: Scale) -> Iterable[Case]:
        """The lines."""

    def released(self, setting: str, rule: str) -> float | None:
        """The accuracy of the authors' released run in %, if there is one."""
        return None

    def reported(self, setting: str) -> str:
        """The group whose averaged model is reported for a setting."""
        return self.groups.get(setting) or self.groups.get(setting.partition(", ")[0], self.group)

    def whom(self) -> str:
        """The same in words, for captions."""
        others = [f"{setting}: {group}" for setting, group in self.groups.items()]
        return "; ".join(["all regular nodes" if self.group == "all" else self.group, *others])

    def needs(self, options: Options) -> Needs[Results]:
        if options.source is not None:
            return Needs(lambda progress: self._loaded(options))
        cases = self._cases(options)
        if not cases:  # deviations that change no line of the figure
            return Needs(lambda progress: self._empty(cases, options))
        fixed, tuned = ([case for case in cases if bool(case.tries) is chosen] for chosen in (False, True))
        known = Known.load(options.known, self.name)

        def configs(some: Iterable[Case], seeds: Iterable[int]) -> list[RunConfig]:
            wanted = [(case, seed) for seed in seeds for case in some]
            return [
                case.seeded(seed, options.device)
                for case, seed in wanted
                if known.run(case.line.config, seed) is None
            ]

        seeds, tries = range(options.seed_count), [case.with_value(v) for case in tuned for v in case.tries]
        first = [*configs(tries, [TUNING_SEED]), *configs(fixed, seeds)]
        needs = Needs(
            lambda progress: self._read(cases, options, known),
            first,
            lambda: configs(self._tuned(tuned, options, known)[0], seeds),
        )
        asked, lacking = len(tries) + len(fixed) * len(seeds), len(first)
        if not configs(tries, [TUNING_SEED]):  # what a search decides is known
            asked, lacking = asked + len(tuned) * len(seeds), lacking + len(needs.later())
        if options.known is not None and lacking:
            warn_user(
                f"{self.name}: {lacking} of {asked} runs have no match in {options.known}\n"
                "runs match with the same --scale, --precision and --length"
            )
        data = cases[0].config.data.name
        try:
            # What depends on a search is asked for only when the search is done.
            if not all(
                config.run(options.runs).finished
                for part in (lambda: first, needs.later)
                for config in part()
            ):
                load_data(data)
        except DataError:
            if not options.lenient:
                raise
            warn_user(f"{self.name} will lack results: {data} is not here")  # before others run for hours
            return Needs(lambda progress: self._without(data, cases, options, known))
        return needs

    def intro(self, result: Results) -> str:
        small = " This is a miniature: verdicts can differ from those at the paper's scale."
        lines = list(self.cases(self.scales[result.scale]))  # a file may lack some of them
        whole, here = len(lines) * result.seeds, sum(len(line.runs) for line in result.lines)
        lacking = (
            f" Of {whole} runs {here} are here: the table of accuracies counts them." if here < whole else ""
        )
        words = {word for setting in result.settings for word in setting.replace(",", "").split()}
        named = ", ".join(f"{short} is {name}" for short, name in SHORT.items() if short in words)
        lead = f"{self.lead} {named}." if named else self.lead
        return f"{lead} Run at the {result.size}.{small if result.scale == 'quick' else ''}{lacking}"

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
                "data": "IID" if _partition(line.config["data"]) == "iid" else "non-IID",
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
        title = f"{self.title}, {result.size}\naccuracy in %, {self.whom()}{drawing.diverged(result)}"
        return drawing.short_table(result, self.reported, title)

    def notes(self, result: Results) -> Sequence[Section]:
        remarks = " ".join(part for part in (self.remarks, self.left_out(result)) if part)
        tuning = [Section("How parameters were chosen", [drawing.tuning(result, self.reported)])]
        return [
            Section("Accuracies", [drawing.page_table(result)]),
            *(tuning if result.tuning else []),
            Section("Networks", [drawing.networks(result)]),
            Section("How it was run", drawing.how(result, self.scales, remarks, self.command(result))),
        ]

    def left_out(self, result: Results) -> str:
        """What the paper's scale has and this one has not."""
        whole = list(self.cases(self.scales["paper"])) if result.scale == "quick" else []
        settings = dict.fromkeys(c.setting for c in whole if c.setting not in result.settings)
        rules = dict.fromkeys(c.rule for c in whole if c.rule not in result.rules)
        names = "; ".join([*settings, *rules])
        return f"At the paper's scale only: {names}." if names else ""

    def command(self, result: Results) -> str:
        part = "" if result.length == 1 else f" --length {result.length:g}"
        usual: dict[str, Any] = {
            name: scale.training.get("precision", "float32") for name, scale in self.scales.items()
        }
        precisions = {line.config["training"].get("precision", "float32") for line in result.lines}
        if len(precisions) == 1 and (one := precisions.pop()) != usual.get(result.scale):
            part += f" --precision {one}"
        return f"clippedgossip reproduce {self.name} --scale {result.scale} --seeds {result.seeds}{part}"

    def _cases(self, options: Options) -> Sequence[Case]:
        scale = self.scales[options.scale]
        if options.precision is not None:
            scale = replace(scale, training={**scale.training, "precision": options.precision})
        return [case.shortened(options.length) for case in self.cases(scale)]

    def _tuned(self, cases: Sequence[Case], options: Options, known: Known) -> tuple[list[Case], Results]:
        """The cases with the chosen values, and the results that they were chosen from."""
        tuning = [line for case in cases for line in case.tuning]
        found = [line.read([TUNING_SEED], options.runs, known) for line in tuning]
        lines = [line for line, _ in found]
        failures = (run.failure for _, runs in found for run in runs if run.failure is not None)
        troubles = list(dict.fromkeys(failures))
        if lost := sum(not line.runs for line in lines):
            troubles.append(
                f"{lost} of {len(lines)} runs that choose parameters have no result and count as 0"
            )
        results = replace(self._empty(cases, options), tuning=lines, troubles=troubles)
        chosen = results.chosen(self.reported)
        return [case.with_value(chosen[case.line.tuned]) if case.tries else case for case in cases], results

    def _read(self, cases: Sequence[Case], options: Options, known: Known) -> Results:
        chosen, tuning = self._tuned(cases, options, known)
        results = replace(tuning, lines=[case.line for case in chosen]).read(options.runs, known)
        if results.troubles and not any(line.runs for line in results.lines):
            raise RunError(results.troubles[0])
        return results

    def _without(self, data: str, cases: Sequence[Case], options: Options, known: Known) -> Results:
        """What is there without the data: known and finished runs, and those that were written before."""
        path = options.out / self.name / "results.json"
        known = known.and_of(path) if path.is_file() else known
        chosen, tuning = self._tuned(cases, options, known)
        start = replace(tuning, lines=[case.line for case in chosen], troubles=[f"{data} is not here"])
        return start.read(options.runs, known)

    def _loaded(self, options: Options) -> Results:
        assert options.source is not None
        try:
            path = found(options.source, self.name)
        except RunError as error:
            if not options.lenient:
                raise
            why = str(error).splitlines()[0]
            return replace(self._empty(self._cases(options), options), troubles=[why])
        result = Results.load(path, self.name)
        if options.source_scale not in (None, result.scale):
            raise RunError(
                f"{path} is of --scale {result.scale}, not of --scale {options.source_scale}\n"
                "leave --scale out, or give another file"
            )
        self._compare(result, options, path)
        return result

    def _compare(self, result: Results, options: Options, path: Path) -> None:
        """Captions, claims and remarks are about the configs of this version. Refuse others; only the
        precision may differ."""

        def settings(line: Line) -> Mapping[str, Any]:
            return {**line.config, "training": {**line.config["training"], "precision": None}}

        scale = next(name for name in self.scales if name == result.scale)
        asked = replace(options, scale=scale, length=result.length)
        own: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for case in self._cases(asked):
            for line in (case.line, *case.tuning):
                own.setdefault((line.setting, line.rule), []).append(settings(line))
        for line in (*result.lines, *result.tuning):
            known = own.get((line.setting, line.rule), [])
            if known and (held := settings(line)) not in known:
                differs = [name for name in known[0].keys() | held if known[0].get(name) != held.get(name)]
                raise RunError(
                    f"{path}: {line.rule} in {line.setting} has another {' and '.join(sorted(differs))} than "
                    "this version\ndraw it with the version that made it, or run the figure again"
                )

    def _empty(self, cases: Sequence[Case], options: Options) -> Results:
        """Without runs."""
        return Results(
            experiment=self.name,
            scale=options.scale,
            seeds=options.seed_count,
            lines=[case.line for case in cases],
            length=options.length,
        )


def _partition(data: Mapping[str, Any]) -> str:
    """Its name; of a part of each share, that of the shares."""
    said = data["partition"]
    return str(said if isinstance(said, str) else said["of"])


def class_name(rule: Mapping[str, Any]) -> str:
    """`ClippedGossip`, or `Bucketing(TrimmedMean)`."""
    known = RULES.get(rule["name"])
    name = known.__name__ if known else rule["name"].rpartition(":")[2]
    return f"{name}({class_name(rule['rule'])})" if "rule" in rule else name
