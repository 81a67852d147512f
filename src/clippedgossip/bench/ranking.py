"""Rules ranked by their worst accuracy over attacks."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from clippedgossip.bench.suite import ATTACKS, CLEAN, NETWORKS, SEARCHED, VERSION, Suite, Table, candidates
from clippedgossip.errors import RuleError
from clippedgossip.paper.base import Progress
from clippedgossip.paper.results import run_all
from clippedgossip.report.figures import bars
from clippedgossip.report.page import Cell, Code, Figure, Section, Text, page
from clippedgossip.report.page import Table as PageTable
from clippedgossip.report.statistics import SHARE, Estimate, estimate
from clippedgossip.runs.config import RunConfig

Accuracies = Mapping[tuple[str, str], Sequence[float]]
"""(network, attack) -> the accuracy of each seed."""


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A rule with the parameters that the search chose, and what it reached."""

    rule: Table
    accuracies: Accuracies
    notes: Sequence[str] = ()
    """Runs that failed, and why."""

    @property
    def label(self) -> str:
        """Its name and parameters."""
        values = ", ".join(f"{key}={_short(value)}" for key, value in self.rule.items() if key != "name")
        name = str(self.rule["name"]).rpartition(":")[2]
        return f"{name} ({values})" if values else name

    @property
    def worst(self) -> Estimate:
        """Over the networks, the mean of the accuracy under the attack that does most harm there."""
        return _mean([self.attacked(where)[1] for where in NETWORKS])

    @property
    def clean(self) -> Estimate:
        return _mean([self.accuracies[where, CLEAN] for where in NETWORKS])

    def attacked(self, where: str) -> tuple[str, Sequence[float]]:
        """The attack that does most harm on a network, and the accuracies under it."""
        under = [attack for place, attack in self.accuracies if place == where and attack != CLEAN]
        worst = min(under, key=lambda attack: sum(self.accuracies[where, attack]))
        return worst, self.accuracies[where, worst]

    def to_json(self) -> dict[str, Any]:
        found = {f"{where}, {attack}": list(values) for (where, attack), values in self.accuracies.items()}
        return {
            "rule": dict(self.rule),
            "worst": self.worst.mean,
            "clean": self.clean.mean,
            "accuracies": found,
            "notes": list(self.notes),
        }


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Rules, the best first."""

    suite: Suite
    rules: Sequence[Ranked]

    @property
    def table(self) -> PageTable:
        rows: list[list[Cell]] = []
        for place, rule in enumerate(self.rules, 1):
            cells = [f"{100 * fmean(rule.attacked(where)[1]):.1f}" for where in NETWORKS]
            rows.append([rule.label, place, rule.worst.text(scale=100), rule.clean.text(scale=100), *cells])
        header = ["rule", "place", "worst %", "clean %", *(f"{where} %" for where in NETWORKS)]
        caption = (
            f"Suite {self.suite.name}, version {VERSION}, {len(self.suite.seeds)} seeds.\n"
            "Accuracy of single regular nodes, mean over networks; on each network under the\n"
            "attack that harms the rule most there (worst), and without one (clean)."
        )
        return PageTable(header, rows, caption)

    def to_json(self) -> dict[str, Any]:
        told = {"version": VERSION, "suite": self.suite.name, "seeds": list(self.suite.seeds)}
        return told | {"rules": [rule.to_json() for rule in self.rules]}

    def html(self, command: str) -> str:
        """The page: the ranking, a figure, and every accuracy."""
        names = [rule.label.partition(" (")[0] for rule in self.rules]
        values = {
            "clean": [rule.clean for rule in self.rules],
            "worst attack": [rule.worst for rule in self.rules],
        }
        drawn = bars(names, values, size=(max(4.6, 0.55 * len(names)), 3.4), turned=len(names) > 4)
        every: list[list[Cell]] = [
            [rule.label, where, *(f"{100 * fmean(rule.accuracies[where, a]):.1f}" for a in ATTACKS)]
            for rule in self.rules
            for where in NETWORKS
        ]
        notes = [Text(f"{rule.label}: {note}") for rule in self.rules for note in rule.notes]
        sections = [
            Section("Ranking", [self.table, *notes]),
            Section("Clean and attacked", [Figure(drawn, "95 % intervals over seeds.", wide=True)]),
            Section("Every attack", [PageTable(["rule", "network", *ATTACKS], every, "Accuracy in %.")]),
            Section("How it was run", [Text(HOW), Code(command)]),
        ]
        lead = "The score of a rule is its worst accuracy over attacks. A rule is as good as its worst day."
        return page(f"Rules on the suite {self.suite.name}, version {VERSION}", lead, sections)


HOW = (
    "A built-in rule has the best of at most four values of its parameters, chosen on a seed that is not "
    "reported, under ALIE and the tuned dissensus attack, by the same score. A rule with parameters, or your "
    "own, is taken as it is. Tuned attacks search in each round for the strength that does most harm against "
    "the rule in use. A run that diverged counts as 0."
)


def rank(
    rules: Sequence[Table],
    suite: Suite,
    root: Path,
    *,
    device: str = "cpu",
    workers: int | None = None,
    progress: Progress = lambda label, done, total: None,
) -> Ranking:
    """Search each rule's parameters, run the suite with the best, and sort by the worst accuracy.

    Runs are kept under `root`: the same call again finds them.
    """
    tried = [[how for how in candidates(rule) if suite.fits(how)] for rule in rules]
    for rule, several in zip(rules, tried, strict=True):
        if not several:
            raise RuleError(
                f"rule {rule['name']!r} does not fit the networks of the suite\n"
                "give it parameters that fit nodes with four neighbours, such as faulty=1"
            )
    searched = [how for several in tried if len(several) > 1 for how in several]

    def run(wanted: Sequence[Table], seeds: Sequence[int], attacks: Collection[str]) -> None:
        configs = [config for how in wanted for config in suite.configs(how, seeds, attacks)]
        run_all(configs, root, device=device, workers=workers, progress=progress)

    run(searched, suite.search_seeds, SEARCHED)

    def score(how: Table) -> float:
        return _read(how, suite, suite.search_seeds, root, SEARCHED).worst.mean

    chosen = [max(several, key=score) if len(several) > 1 else several[0] for several in tried]
    run(chosen, suite.seeds, tuple(ATTACKS))
    found = [_read(how, suite, suite.seeds, root, tuple(ATTACKS)) for how in chosen]
    return Ranking(suite=suite, rules=sorted(found, key=lambda rule: -rule.worst.mean))


def _read(rule: Table, suite: Suite, seeds: Sequence[int], root: Path, attacks: Collection[str]) -> Ranked:
    accuracies, notes = {}, []
    for where in NETWORKS:
        for attack in attacks:
            configs = [suite.config(rule, where, attack, seed) for seed in seeds]
            values, why = zip(*(_accuracy(config, root) for config in configs), strict=True)
            accuracies[where, attack] = values
            notes += [f"{where}, {attack}: {reason}" for reason in dict.fromkeys(why) if reason]
    return Ranked(rule=rule, accuracies=accuracies, notes=notes)


def _accuracy(config: RunConfig, root: Path) -> tuple[float, str]:
    """The mean accuracy of single regular nodes at the end; 0 for a run that diverged or failed."""
    run = config.run(root)
    summary = run.summary
    if summary is None:
        return 0.0, (run.failure or "it was not run").split("\n")[0]
    return (0.0 if "diverged" in summary else float(summary["mean_accuracy"] or 0.0)), ""


def _mean(parts: Sequence[Sequence[float]]) -> Estimate:
    """Over networks for each seed, then over the seeds."""
    found = estimate([fmean(seed) for seed in zip(*parts, strict=True)], SHARE)
    assert found is not None
    return found


def _short(value: object) -> str:
    if isinstance(value, Mapping):
        inside = ", ".join(f"{key} {_short(part)}" for key, part in value.items() if key != "name")
        return " ".join(part for part in (str(value.get("name", "")), inside) if part)
    return str(value)
