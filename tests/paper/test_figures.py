"""The training figures: their networks, their claims, and the way from configs over runs to pages."""

import json
import math
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import getitem
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
import typer

from clippedgossip import consensus, rules
from clippedgossip.cli import main
from clippedgossip.cli.reproduce import verdict
from clippedgossip.errors import DataError, RunError
from clippedgossip.files import canonical
from clippedgossip.paper import base as base_module
from clippedgossip.paper import cifar, delta_max, dumbbell, no_honest_majority, page_parts
from clippedgossip.paper.base import EXPERIMENTS, SETS, Options, load, prepare
from clippedgossip.paper.deviations import DEVIATIONS, AsReleased
from clippedgossip.paper.overview import write_overview
from clippedgossip.paper.page_parts import tuning
from clippedgossip.paper.results import DISTANCE, Known, Line, Results, RunResult, read_json, run_all
from clippedgossip.paper.training_figure import (
    CIFAR,
    MNIST,
    Case,
    Grid,
    Scale,
    ScaleName,
    TrainingExperiment,
    by_radius,
    clipped,
)
from clippedgossip.records import RunDirectory
from clippedgossip.report.claims import Claim, Claims, check
from clippedgossip.runs.config import NetworkConfig
from clippedgossip.runs.execute import Attempt
from tests.paper.reproducing import reproduce
from tests.rounding import near

MIXING = ("consensus", "components", "average-delta")  # without training
TRAINING = [name for name in EXPERIMENTS if name not in MIXING]
SCALES: tuple[ScaleName, ...] = ("quick", "paper")


def training(name: str) -> TrainingExperiment:
    experiment = load(name)
    assert isinstance(experiment, TrainingExperiment)
    return experiment


def filled(
    experiment: TrainingExperiment,
    value: Callable[[str, str, str], float | None],
    seeds: int = 2,
    scale: Literal["quick", "paper"] = "quick",
) -> Results:
    """Results as if every run had ended with `value(setting, rule, group)`."""
    lines = []
    for case in experiment.cases(experiment.scales[scale]):
        groups = ("all", "clique A", "clique B", DISTANCE)
        final = {group: value(case.setting, case.rule, group) for group in groups}
        runs = [
            RunResult(seed=seed, final=final, rounds=[1, 2], curves={g: [v, v] for g, v in final.items()})
            for seed in range(seeds)
        ]
        lines.append(replace(case.line, runs=runs))
    return Results(experiment=experiment.name, scale="quick", seeds=seeds, lines=lines)


def page_of(experiment: TrainingExperiment, results: Results) -> str:
    return experiment.page(results, experiment.claims(results), experiment.figures(results))


def verdicts(claims: Claims) -> dict[str, str]:
    return {claim.text: claim.verdict for claim in claims.claims}


def failing(claims: Claims) -> list[str]:
    return [claim.text for claim in claims.claims if claim.verdict not in ("holds", "by construction")]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", TRAINING)
def test_every_line_can_be_run(name: str, scale: ScaleName) -> None:
    experiment = training(name)
    cases = [*experiment.cases(experiment.scales[scale])]
    assert len({(case.setting, case.rule) for case in cases}) == len(cases)
    networks: dict[str, Any] = {}
    for case in cases:
        key = json.dumps(case.line.config["network"])
        network = networks.setdefault(key, case.config.network.build())
        assert network.connected
        assert (case.config.attack is not None) == bool(len(network.byzantine))
        rule = case.config.rule.build(network)
        for count in set(network.degrees[network.regular].tolist()):
            rule.check(int(count))


@pytest.mark.parametrize("name", TRAINING)
def test_what_comes_over_a_bridge_is_told_by_one_clique(name: str) -> None:
    """The average of two cliques with different data is good without any exchange. The paper's figures of it,
    and those whose pages show all groups, are named here."""
    experiment = training(name)
    cases = [case for scale in SCALES for case in experiment.cases(experiment.scales[scale])]
    cliques = {case.setting for case in cases if case.config.data.partition == "clique"}
    reported = {experiment.reported(setting) for setting in cliques}
    assert reported <= {"clique A"} or name in ("clipping-radius", "delta-max", "cifar")


def test_the_papers_numbers_are_kept_at_its_scale() -> None:
    for case in training("dumbbell").cases(MNIST["paper"]):
        config = case.config
        assert (config.data.name, config.model.name) == ("mnist", "cnn")
        assert (config.training.rounds, config.training.batch, config.training.evaluate_last) == (
            900,
            32,
            150,
        )
        assert (config.training.lr, config.training.momentum) == (0.01, 0.9)
    for case in training("delta-max").cases(MNIST["paper"]):
        assert (case.config.training.rounds, case.config.training.lr) == (1500, 0.001)
    for case in training("cifar").cases(CIFAR["paper"]):
        assert case.config.training.lr_drops == (3120, 4680)
        assert case.config.data.augment


@pytest.mark.parametrize("name", TRAINING)
def test_the_miniature_is_what_its_words_say(name: str) -> None:
    experiment = training(name)
    scale = experiment.scales["quick"]
    cases = list(experiment.cases(scale))
    words = f"{scale.about} {experiment.remarks}"
    models = {"one hidden layer of 64": "mlp", "six hidden layers of 32": "deep-mlp"}
    assert {case.config.model.name for case in cases} <= {
        how for said, how in models.items() if said in words
    }
    for case in cases:
        trains = case.config.training
        assert f"{trains.rounds * trains.local_steps} rounds" in words
        assert trains.lr == 0.01 or f"learning rate of {trains.lr:g}" in words


@pytest.mark.parametrize("name", TRAINING)
def test_a_page_says_its_scale_and_what_it_leaves_out(name: str) -> None:
    experiment = training(name)
    results = filled(experiment, lambda *_: 0.5, seeds=1)
    assert "Run at the quick scale." in experiment.intro(results)
    assert experiment.table(results).caption.startswith(f"{experiment.title}, quick scale\n")
    part = replace(results, length=0.1)
    assert "quick scale, 0.1 of its rounds" in experiment.table(part).caption
    for case in experiment.cases(experiment.scales["paper"]):
        for said, here in ((case.setting, results.settings), (case.rule, results.rules)):
            assert said in here or said in experiment.left_out(results)
    assert experiment.left_out(replace(results, scale="paper")) == ""


@pytest.mark.parametrize("name", TRAINING)
def test_claims_are_unique_and_not_run_without_runs(name: str) -> None:
    experiment = training(name)
    results = filled(experiment, lambda *_: None, seeds=1)
    claims = experiment.claims(replace(results, lines=[replace(line, runs=()) for line in results.lines]))
    texts = [claim.text for claim in claims.claims]
    assert len(set(texts)) == len(texts)
    assert all(len(text) <= 72 for text in texts)
    built = {"not run", "by construction"}
    assert {claim.verdict for claim in claims.claims} <= built or name == "optimal-weights"
    assert all("must be" in claim.note for claim in claims.claims)
    assert all(claim.source for claim in claims.claims), "every threshold says where it comes from"


def test_a_missing_seed_is_said_so() -> None:
    experiment = training("clipping-radius")
    results = filled(experiment, lambda *_: 0.5)
    lost = [replace(line, runs=line.runs[:1]) for line in results.lines]
    claims = [
        c for c in experiment.claims(replace(results, lines=lost)).claims if c.verdict != "by construction"
    ]
    assert all(claim.note.endswith("1 of 2 seeds") and claim.verdict == "undecided" for claim in claims)


def test_the_precisions_claims_are_about_differences() -> None:
    experiment = training("precision")
    claims = verdicts(experiment.claims(filled(experiment, lambda *_: 0.7)))
    assert set(claims.values()) == {"holds"}
    worse = verdicts(
        experiment.claims(filled(experiment, lambda _, rule, *__: 0.7 if rule == "float32" else 0.6))
    )
    assert worse["dumbbell, IID: bfloat16 learns what float32 learns"] == "does not hold"
    cases = [*experiment.cases(MNIST["paper"])]
    assert {case.rule for case in cases} == {"float32", "tf32", "bfloat16"}
    assert all(case.config.training.precision == case.rule for case in cases)


RESULTS = Path(__file__).parents[2] / "docs" / "results" / "h200"


def main_claims(results: Mapping[str, Results]) -> dict[str, str]:
    return {
        f"{name}: {claim.text}": claim.verdict
        for name, result in results.items()
        for claim in training(name).claims(result).claims
        if claim.main
    }


def kept() -> dict[str, Results]:
    """The results at the paper's scale of the figures that have main claims."""
    found = {
        name: Results.load(RESULTS / f"{name}.json", name) for name in SETS["all"] if name != "consensus"
    }
    return {name: result for name, result in found.items() if main_claims({name: result})}


def test_the_main_claims_are_few_and_decided() -> None:
    claims = main_claims(kept())
    assert 1 <= len(claims) <= 12
    assert set(claims.values()) <= {"holds", "does not hold"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_scales_agree_on_the_main_claims(tmp_path: Path) -> None:
    paper = kept()
    done = prepare(list(paper), Options(device="cpu", out=tmp_path), lambda *_: None)
    quick = {part.experiment.name: part.judge(lambda *_: None).result for part in done}
    assert main_claims(quick) == main_claims(paper)


def by_setting(table: Mapping[str, Sequence[float]]) -> Callable[[str, str, str], float]:
    """Percent from the dumbbell's table; Ξ as in a run that agrees, or does not."""

    def value(setting: str, rule: str, group: str) -> float:
        if group == DISTANCE:
            return 0.2 if rule in ("Gossip", "ClippedGossip") else 5.0
        return table[rule][dumbbell.SETTINGS.index(setting)] / 100

    return value


KEPT = [path for path in sorted(RESULTS.parent.glob("*/*.json")) if path.stem in TRAINING]


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_it_is_said_where_clipped_gossip_is_gossip(path: Path) -> None:
    """Then "it matches gossip" cannot fail, and what is said of it is said of gossip."""
    result = Results.load(path, path.stem)
    notes = [claim.note for claim in training(path.stem).claims(result).claims]
    said = [int(found[1]) for note in notes if (found := re.search(r"in (\d) of \d seeds its run", note))]
    seen = []
    for setting in result.settings:
        runs = [line.runs for rule in ("Gossip", "ClippedGossip") if (line := result.line(setting, rule))]
        pairs = zip(*runs, strict=True) if len(runs) == 2 else ()
        seen.append(sum(one.curves == other.curves for one, other in pairs))
    assert said == [same for same in seen if same]


@pytest.mark.parametrize("name", TRAINING)
def test_a_bound_from_a_released_number_shows_it(name: str) -> None:
    for claim in training(name).claims(filled(training(name), lambda *_: 0.5)).claims:
        named = re.search(r"released (lead|distance|drop|accuracy)", claim.source)
        assert claim.paper or not named, claim.text


def test_the_dumbbells_claims_hold_of_the_published_runs() -> None:
    claims = dumbbell.Dumbbell().claims(filled(dumbbell.Dumbbell(), by_setting(dumbbell.PUBLISHED)))
    assert not failing(claims)
    stuck = dict(dumbbell.PUBLISHED) | {"ClippedGossip": (96.0, 50.7, 51.0, 50.0, 55.0)}
    worse = verdicts(dumbbell.Dumbbell().claims(filled(dumbbell.Dumbbell(), by_setting(stuck))))
    assert worse["non-IID: ClippedGossip matches ideal gossip"] == "does not hold"
    assert worse["non-IID: GM only reaches 50 %"] == "holds"


@pytest.mark.parametrize("name", TRAINING)
def test_a_page_says_what_its_attacks_are(name: str) -> None:
    experiment = training(name)
    result = filled(experiment, lambda *_: 0.5)
    for short in {*re.findall(r"\b[A-Z]{2,4}\b", " ".join(result.settings))} - {"IID"}:
        assert f"{short} is " in experiment.intro(result), short


@pytest.mark.parametrize("name", TRAINING)
def test_a_bound_is_what_its_source_says(name: str) -> None:
    """About twice the noise of 1.1 points, or half of the paper's number."""
    experiment = training(name)
    for claim in experiment.claims(filled(experiment, lambda *_: 0.5)).claims:
        bounds = [float(number) for number in re.findall(r"-?[\d.]+", claim.note.partition("must be ")[2])]
        if dumbbell.NOISE in claim.source:
            assert {abs(bound) for bound in bounds} == {round(2 * 1.1)}, claim
        if claim.paper and re.search("half of the (smaller )?released", claim.source):
            (bound,), paper = bounds, float(re.findall(r"-?[\d.]+", claim.paper)[0])
            assert bound == pytest.approx(paper / 2, rel=0.25), claim  # "smaller": of two rules


@pytest.mark.parametrize("rule", [rules.ClippedGossip(rules.Adaptive(0.4)), rules.CSPlus(0.2)])
def test_two_rules_hear_nobody_on_the_ring(rule: rules.Rule) -> None:
    """The remarks say so: with the parameters that were chosen there, every node trains alone."""
    network = NetworkConfig.from_value(no_honest_majority.ring([0])).build()
    start = torch.randn(network.n, 5, generator=torch.Generator().manual_seed(0))
    error = [moment.error for moment in consensus(network, rule, start, attack="dissensus", rounds=3)]
    assert error == [error[0]] * len(error)


def test_the_rings_claims_hold_of_the_published_runs() -> None:
    def value(setting: str, rule: str, group: str) -> float:
        attack, _, majority = setting.rpartition(", ")
        known = no_honest_majority.PUBLISHED[rule].get(attack, no_honest_majority.PUBLISHED[rule]["IPM"])
        return known[majority == no_honest_majority.WITH] / 100

    claims = no_honest_majority.NoHonestMajority().claims(
        filled(no_honest_majority.NoHonestMajority(), value)
    )
    assert not failing(claims)
    notes = {claim.text: claim.note for claim in claims.claims}
    assert notes["ALIE z=10: with one more Byzantine node GM is corrupted"].startswith(
        "in %, with a majority: 9.8"
    )
    assert notes["dissensus: with one more Byzantine node GM is corrupted"].startswith(
        "in %, with a majority: 89.3"
    )


def test_cifars_claims_hold_of_the_published_runs() -> None:
    def value(setting: str, rule: str, group: str) -> float:
        if group == DISTANCE:
            return 5000.0 if rule in cifar.LOST else 1.0
        row = cifar.PUBLISHED[setting].get(rule, cifar.PUBLISHED[setting]["GM"])
        return row[list(cifar.GROUPS).index(group)] / 100

    claims = cifar.Cifar().claims(filled(cifar.Cifar(), value))
    assert not failing(claims)


def test_the_hubs_claims_hold_of_the_published_runs() -> None:
    def value(setting: str, rule: str, group: str) -> float:
        place = [f"δ_max = {label}" for label in delta_max.DELTAS].index(rule)
        if group == DISTANCE:
            return 10.0**place
        known = delta_max.PUBLISHED[group]
        return known[min(place, len(known) - 1)] / 100

    claims = delta_max.DeltaMax().claims(filled(delta_max.DeltaMax(), value))
    assert not failing(claims)


def test_the_hubs_honest_network_is_the_same_for_every_delta() -> None:
    networks = [NetworkConfig.from_value(delta_max.network(d)).build() for d in delta_max.DELTAS.values()]
    for network, delta in zip(networks, delta_max.DELTAS.values(), strict=True):
        assert network.delta_max == near(delta)
        gap = np.asarray(network.regular_weights) - np.asarray(networks[0].regular_weights)
        assert np.abs(gap).max() < 1e-12


def test_the_ring_loses_its_majority_at_one_node() -> None:
    for extra, most in (([], 2), ([0], 3)):
        network = NetworkConfig.from_value(no_honest_majority.ring(extra)).build()
        neighbours = [
            sum(j in network.byzantine for j in network.indices[network.indptr[i] : network.indptr[i + 1]])
            for i in network.regular
        ]
        assert max(neighbours) == most
        assert len(network.regular) == 5
    plain = NetworkConfig.from_value(
        {**no_honest_majority.ring([0]), "weights": "metropolis-hastings"}
    ).build()
    assert network.delta_max == pytest.approx(1 / 4)
    assert plain.delta_max == pytest.approx(1 / 2)
    assert (
        "1/4 of a node's weight. Plain Metropolis–Hastings weights give them 1/2"
        in training("no-honest-majority").remarks
    )


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        # All write these words in one place. One plot of some seeds has lines with and without intervals.
        pytest.param(name, seeds, marks=() if seeds == "some" or name == TRAINING[0] else pytest.mark.slow)
        for name, seeds in product(TRAINING, ("some", "one", "five"))
    ],
)
def test_captions_say_how_many_seeds_there_are(name: str, seeds: str) -> None:
    experiment = training(name)
    results = filled(experiment, lambda *_: 0.5, seeds=5)
    few = results.settings[:2]  # a plot of each takes a while to draw
    lines = [line for line in results.lines if line.setting in few]
    alone = [replace(line, runs=line.runs[:1]) for line in lines]
    shown = {"one": alone, "some": [alone[0], *lines[1:]], "five": lines}[seeds]
    page = page_of(experiment, replace(results, lines=shown))
    assert ("95 %" in page) == (seeds != "one")
    said = {"one": "one seed.", "some": " 1 to 5 seeds", "five": " 5 seeds"}[seeds]
    assert said + ("" if seeds == "one" else ", with 95 % confidence intervals.") in page


@pytest.mark.parametrize(("kept", "said"), [("cifar", "Of 50 runs 47 are here"), ("dumbbell", "")])
def test_a_page_says_how_many_runs_are_missing(kept: str, said: str) -> None:
    """Rules that were not run are in no picture."""
    intro = training(kept).intro(Results.load(RESULTS / f"{kept}.json", kept))
    assert (" runs " in intro) == bool(said)
    assert said in intro


def test_a_page_says_that_its_file_lacks_a_whole_line() -> None:
    """As one of an older version may, or one that was put together."""
    result = Results.load(RESULTS / "dumbbell.json", "dumbbell")
    assert "Of 125 runs 120 are here" in training("dumbbell").intro(replace(result, lines=result.lines[1:]))


class Tiny(TrainingExperiment):
    """Two rules on a ring of three, a few rounds."""

    name = "tiny"
    title = "Tiny"
    lead = "Three workers."
    section = "No claim of the paper"

    def cases(self, scale: Scale) -> Sequence[Case]:
        few = {"rounds": 6, "evaluate_every": 2, "evaluate_last": 2, "batch": 4}
        rules: dict[str, Any] = {"Gossip": "gossip", "ClippedGossip": clipped(scale.radius)}
        return scale.cases("ring", rules, network={"name": "ring", "nodes": 3}, **few)

    def findings(self, result: Results) -> list[Claim]:
        return [check("it learns", result.final("ring", "Gossip", "all"), "at least 0 %")]


class Searching(Tiny):
    """ClippedGossip with the better of two radii. With the first nobody moves."""

    def cases(self, scale: Scale) -> Sequence[Case]:
        few = {"rounds": 6, "evaluate_every": 2, "evaluate_last": 2, "batch": 4}
        rules: dict[str, Any] = {"Gossip": "gossip", "ClippedGossip": Grid(by_radius(0.0, 1.0))}
        return scale.cases("ring", rules, network={"name": "ring", "nodes": 3}, **few)


def test_a_parameter_is_chosen_on_a_seed_that_is_not_reported(tmp_path: Path) -> None:
    options = Options(seeds=2, device="cpu", workers=1, out=tmp_path)
    done = reproduce(Searching(), options)
    result: Results = done.result
    ((network, rule), tried) = next(iter(result.tried(lambda _: "all").items()))
    assert rule == "ClippedGossip"
    assert json.loads(network)["name"] == "ring"
    best = max(tried, key=tried.__getitem__)
    line = result.line("ring", "ClippedGossip")
    assert line is not None
    assert f"τ = {line.config['rule']['radius']:g}" == best
    assert [run.seed for run in line.runs] == [0, 1]
    assert {run.seed for tuning in result.tuning for run in tuning.runs} == {1000}
    assert len(files(tmp_path)) == 2 + 2 * 2
    page = done.path.read_text(encoding="utf-8")
    assert f"{best}: {100 * tried[best]:.1f} ✓" in page
    again = reproduce(Searching(), Options(source=tmp_path, out=tmp_path / "again"))
    assert again.result.tuning[0].value == "τ = 0"
    assert again.claims.to_json() == done.claims.to_json()


def test_tries_that_are_not_here_are_said_so() -> None:
    """The mark is at the value that was used, whatever else is here."""
    whole = Results.load(RESULTS / "more-topologies.json", "more-topologies")
    measure = training("more-topologies").reported

    def clipping(keep: Callable[[Line], bool]) -> str:
        few = replace(whole, tuning=[line for line in whole.tuning if keep(line)])
        return str(tuning(few, measure).rows[0][-1])

    assert re.search(r"τ = 0.1: [\d.]+ ✓;", clipping(lambda line: True))
    one = clipping(lambda line: (line.setting, line.value) != ("small world, IPM", "τ = 1"))
    assert re.search(r"τ = 1: [\d.]+ \(5 of 6 runs\)", one)
    none = clipping(lambda line: line.value != "τ = 0.1")
    assert "✓" not in none
    assert none.endswith("no try of the value used above is here")


def test_a_search_names_its_network() -> None:
    """Some settings say the attack alone; on one network links may come and go, or messages come late."""
    for kept, named, last in (
        ("h200/more-topologies", "small world", "torus"),
        ("quick/random-partner", "complete", "complete"),
        ("quick/changing-networks", "bridge in every round", "torus, 0 to 4 rounds late"),
    ):
        result = Results.load(RESULTS.parent / f"{kept}.json", name := Path(kept).name)
        titles = [row[0] for row in tuning(result, training(name).reported).rows]
        assert (titles[0], titles[-1]) == (named, last)
        assert len(titles) == len(set(titles))


def test_cells_of_fewer_seeds_say_so() -> None:
    experiment = training("weaker-topology")
    results = filled(experiment, lambda *_: 0.5, seeds=3)
    first, *others = results.lines
    few = replace(results, lines=[replace(first, runs=first.runs[:2]), *others])
    shown = [str(cell) for row in experiment.table(few).rows for cell in row]
    assert [cell for cell in shown if "seeds" in cell] == ["50.0 ± 0.0\n(2 of 3 seeds)"]
    short = {"training": {**first.config["training"], "evaluate_last": 1}}
    lines = [replace(line, config={**line.config, **short}) for line in results.lines]
    assert page_parts.ends(replace(results, lines=lines)).startswith("Means over the last round and 3 seeds")


@pytest.mark.parametrize("name", TRAINING)
def test_labels_of_bars_do_not_meet(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Sequence[str]] = []

    def bars(names: Sequence[str], *_: Any, **__: Any) -> str:
        drawn.append(names)
        return ""

    monkeypatch.setattr(page_parts, "bars", bars)
    experiment = training(name)
    page_parts.end_bars(filled(experiment, lambda *_: 0.5), experiment.reported)
    for names in drawn:
        longest = max(len(line) for label in names for line in label.split("\n"))
        assert len(names) * (longest + 1) <= 52 or len(names) == 1


def test_a_search_that_is_not_complete_is_said_so(tmp_path: Path) -> None:
    options = Options(seeds=1, device="cpu", workers=1, out=tmp_path)
    need = Searching().needs(options)
    assert len(need.configs) == 3, "two to try, and gossip"
    with pytest.raises(RunError, match="2 of 2 runs that choose parameters have no result"):
        need.read(lambda *_: None)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> str:
    """The tiny experiment, known by its name."""
    module = type(sys)("tests_tiny")
    module.Tiny = Tiny  # type: ignore[attr-defined] # a module made on the spot
    monkeypatch.setitem(sys.modules, "tests_tiny", module)
    monkeypatch.setattr(base_module, "EXPERIMENTS", {"tiny": "tests_tiny:Tiny"})
    return "tiny"


def files(out: Path) -> dict[str, bytes]:
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("records.jsonl")}


def test_runs_go_through_worker_processes_once(tiny: str, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    options = Options(seeds=2, device="cpu", workers=2, out=tmp_path)
    prepare([tiny], options, lambda label, done, total: seen.append((done, total)))
    assert seen[-1] == (24, 24)
    records = files(tmp_path)
    assert len(records) == 4
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records.jsonl")}
    done = reproduce(tiny, options)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert done.failed == 0
    assert done.path == tmp_path / "tiny" / "index.html"
    alone = Options(seeds=2, device="cpu", workers=1, out=tmp_path / "alone")
    reproduce(tiny, alone)
    assert files(alone.out) == records


def test_ctrl_c_reaches_worker_processes_once_and_they_leave_checkpoints(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The next checkpoint would be due after thirty seconds. The process group of this test is not asked."""
    (case,) = (case for case in Tiny().cases(MNIST["quick"]) if case.rule == "Gossip")
    long = replace(case.config, training=replace(case.config.training, rounds=1_000_000))

    def stop(label: str, done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    configs = [replace(long, seed=seed) for seed in range(2)]
    with pytest.raises(KeyboardInterrupt):
        run_all(configs, tmp_path, device="cpu", workers=2, progress=stop)
    assert "stopping after this round" in capfd.readouterr().err
    reached = [Attempt.of(config, tmp_path).checkpoint_round() for config in configs]
    assert max(reached) > 0


def test_a_run_that_was_stopped_is_done_again(tiny: str, tmp_path: Path) -> None:
    options = Options(seeds=1, device="cpu", workers=1, out=tmp_path)
    reproduce(tiny, options)
    run = RunDirectory(next(path.parent for path in tmp_path.rglob("summary.json")))
    whole = run.records_path.read_bytes()
    run.summary_path.unlink()
    run.records_path.write_bytes(whole[: len(whole) // 2])
    reproduce(tiny, options)
    assert run.finished
    assert run.records_path.read_bytes() == whole


def test_records_of_a_finished_run_that_are_cut_off_are_refused(tiny: str, tmp_path: Path) -> None:
    options = Options(seeds=1, device="cpu", workers=1, out=tmp_path)
    reproduce(tiny, options)
    records = next(tmp_path.rglob("records.jsonl"))
    for lines, last in ((records.read_bytes().splitlines(keepends=True)[:-1], 4), ([b'{"round": 2'], 0)):
        records.write_bytes(b"".join(lines))
        with pytest.raises(RunError, match=f"ends at round {last}, but the run ended at round 6\ndelete"):
            reproduce(tiny, options)


def test_a_page_is_drawn_again_from_its_results(tiny: str, tmp_path: Path) -> None:
    options = Options(seeds=2, device="cpu", workers=1, out=tmp_path / "there")
    first = reproduce(tiny, options)
    for source in (options.out, options.out / "tiny", options.out / "tiny" / "results.json"):
        again = reproduce(tiny, Options(seeds=9, out=tmp_path / "here", source=source))
        assert again.result.seeds == 2
        assert again.claims.to_json() == first.claims.to_json()
    assert not (tmp_path / "here" / "runs").exists()
    rows = first.experiment.rows(first.result)
    assert {row["rule"] for row in rows} == {"Gossip", "ClippedGossip"}
    written = [row["accuracy"] for row in again.experiment.rows(again.result)]  # with five digits
    assert [row["accuracy"] for row in rows] == pytest.approx(written, abs=5e-6)


def test_known_runs_are_not_done_again(tiny: str, tmp_path: Path) -> None:
    """Kept results are enough to add seeds: the folders of their runs may be gone."""
    first = Options(seeds=1, device="cpu", workers=1, out=tmp_path / "first")
    known = reproduce(tiny, first)
    write_overview([known], first)  # writes a claims.json beside the figures
    whole = reproduce(tiny, Options(seeds=2, device="cpu", workers=1, out=tmp_path / "whole"))
    for source in (first.out, first.out / "tiny" / "results.json"):
        out = tmp_path / f"added to {source.stem}"
        with pytest.warns(RuntimeWarning, match="2 of 4 runs have no match in "):
            added = reproduce(tiny, Options(seeds=2, device="cpu", workers=1, out=out, known=source))
        assert len(files(out)) == 2, "of four runs, those of the second seed"
        written = [row["accuracy"] for row in added.experiment.rows(added.result)]
        right = [row["accuracy"] for row in whole.experiment.rows(whole.result)]
        assert written == pytest.approx(right, abs=5e-6)  # with five digits
        assert added.result.environments == whole.result.environments
    with pytest.raises(RunError, match="no results in"):
        reproduce(tiny, Options(out=tmp_path, known=first.out / "runs"))
    broken = tmp_path / "broken.json"
    for text, says in (
        ("[", "cannot read results"),
        ('{"format": 1, "lines": [{"runs": [{}]}]}', "cannot read results"),
        ('{"format": 2, "lines": []}', "has format 2"),
    ):
        broken.write_text(text)
        with pytest.raises(RunError, match=says):
            reproduce(tiny, Options(out=tmp_path, known=broken))
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "dumbbell", "--known", str(first.out), "--from", str(first.out)])


def written(root: Path, tiny: str) -> dict[str, Any]:
    reproduce(tiny, Options(seeds=2, device="cpu", workers=1, out=root))
    raw: dict[str, Any] = json.loads((root / "tiny" / "results.json").read_text())
    return raw


def places(raw: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value lies in nested lists and tables; of a list, the first."""
    yield path
    for key in raw if isinstance(raw, dict) else range(min(len(raw), 1)) if isinstance(raw, list) else ():
        yield from places(raw[key], (*path, key))


def edited(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copied = dict(raw) if isinstance(raw, dict) else list(raw)
    copied[path[0]] = edited(raw[path[0]], path[1:], value)
    return copied


def test_a_damaged_file_of_results_is_refused(tiny: str, tmp_path: Path) -> None:
    """Every value of the file, but for what a config holds, is replaced by one of another type."""
    raw, path = written(tmp_path / "first", tiny), tmp_path / "results.json"
    found = [place for place in places(raw) if "config" not in place[:-1]]
    texts = [json.dumps(edited(raw, place, [{"y": {}}])) for place in found]
    for text in [*texts, "", "[]", "[" * 100_000, json.dumps(raw)[:-200]]:
        path.write_text(text)
        for read in (
            lambda: Known.load(path, tiny),
            lambda: reproduce(tiny, Options(source=path, out=tmp_path)),
        ):
            with pytest.raises(RunError) as refused:
                read()
            assert len(str(refused.value).splitlines()) == 2


def test_a_figure_s_own_file_comes_before_others_that_share_its_runs(tiny: str, tmp_path: Path) -> None:
    raw = written(tmp_path / "first", tiny)
    line = raw["lines"][0]
    run = line["runs"][0]
    changed = run | {"final": dict.fromkeys(run["final"], 0.5), "curves": {}}
    other = raw | {"lines": [line | {"runs": [changed]}]}
    for names in (("a", "b"), ("b", "a")):
        for name, held in zip(names, (raw, other | {"experiment": "another"}), strict=True):
            (tmp_path / f"{name}.json").write_text(json.dumps(held))
        for experiment, final in ((tiny, run["final"]), ("another", dict.fromkeys(run["final"], 0.5))):
            known = Known.load(tmp_path, experiment).run(line["config"], run["seed"])
            assert known is not None
            assert known.final == final


def test_one_damaged_file_among_several_is_refused(tiny: str, tmp_path: Path) -> None:
    """A figure without a file counts as not run; a file that cannot be read is no such figure."""
    lenient = Options(source=tmp_path, out=tmp_path / "out", lenient=True)
    assert "no results of 'tiny'" in reproduce(tiny, lenient).result.troubles[0]
    (tmp_path / "tiny.json").write_text('{"format": 1')
    with pytest.raises(RunError, match="cannot read results from"):
        reproduce(tiny, lenient)


def test_contradictions_in_a_file_of_results_are_refused(tiny: str, tmp_path: Path) -> None:
    raw, path = written(tmp_path / "first", tiny), tmp_path / "results.json"
    line = raw["lines"][0]
    run = line["runs"][0]
    longer = {**run, "rounds": [*run["rounds"], run["rounds"][-1] + 1]}
    for runs, says in (
        ([run, run], "each must be there once"),
        ([longer], "values of .* rounds with seed"),
        ([{**run, "final": {**run["final"], "all": 0.5}}], "ends at 0.5 of all with seed 0, but at"),
        ([{**run, "final": {**run["final"], "all": None}}], "ends at no number of all with seed 0, but at"),
        ([{**run, "seed": raw["seeds"]}], "they go to"),
        ([{**run, "seed": -1}], "they go to"),
        ([], "is there twice"),
    ):
        lines = [{**line, "runs": runs}] * (1 if runs else 2)
        path.write_text(json.dumps(raw | {"lines": lines}))
        for read in (
            lambda: Known.load(path, tiny),
            lambda: reproduce(tiny, Options(source=path, out=tmp_path)),
        ):
            with pytest.raises(RunError, match=says):
                read()
    for length in (0, -1, 1.5, 1e308, math.nan):
        path.write_text(json.dumps(raw | {"length": length}))
        with pytest.raises(RunError, match="of the rounds; that is at most 1"):
            reproduce(tiny, Options(source=path, out=tmp_path))


def test_a_run_whose_end_is_not_that_of_its_records_is_refused(tiny: str, tmp_path: Path) -> None:
    """Its results would be refused as well."""
    written(tmp_path, tiny)
    path = next((tmp_path / "runs").rglob("summary.json"))
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | {"groups": summary["groups"] | {"all": 0.987}}))
    with pytest.raises(RunError, match=rf"{path.parent.name} ends at 0.987 of all(.|\n)*run it again"):
        written(tmp_path, tiny)


def test_results_of_other_settings_are_refused(tiny: str, tmp_path: Path) -> None:
    """Captions, claims and remarks are about the configs of this version."""
    raw, path = written(tmp_path / "first", tiny), tmp_path / "results.json"
    line = raw["lines"][0]
    other: Mapping[type, Callable[[Any], Any]] = {
        bool: lambda held: not held,
        int: lambda held: held + 1,
        float: lambda held: held / 2,
        str: lambda held: held + "s",
    }
    refused = []
    for *tables, key in filter(None, places(line["config"])):
        held = reduce(getitem, [*tables, key], line["config"])
        if type(held) in other:
            changed = edited(line["config"], (*tables, key), other[type(held)](held))
            path.write_text(json.dumps(raw | {"lines": [line | {"config": changed}]}))
            try:
                load(tiny).needs(Options(source=path)).read(lambda label, done, total: None)
            except RunError as error:
                refused.append((key, len(str(error).splitlines())))
            else:
                assert key == "precision"
    assert {key for key, _ in refused} >= {"lr", "batch", "partition", "nodes", "name"}
    assert {lines for _, lines in refused} == {2}


def test_results_that_are_not_there_or_of_another_figure(tiny: str, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no results of 'tiny'"):
        reproduce(tiny, Options(source=tmp_path, out=tmp_path))
    other = tmp_path / "results.json"
    Results(experiment="dumbbell", scale="quick", seeds=1, lines=[]).save(other)
    with pytest.raises(RunError, match="of 'dumbbell', not of 'tiny'"):
        reproduce(tiny, Options(source=other, out=tmp_path))
    other.write_text("{}")
    with pytest.raises(RunError, match="cannot read results"):
        reproduce(tiny, Options(source=other, out=tmp_path))
    done = reproduce(tiny, Options(source=tmp_path / "nowhere", out=tmp_path, lenient=True))
    assert failing(done.claims) == ["it learns"]


def test_the_page_for_all_shows_every_claim(tiny: str, tmp_path: Path) -> None:
    options = Options(seeds=1, device="cpu", workers=1, out=tmp_path)
    done = reproduce(tiny, options)
    text = write_overview([done, done], options).read_text(encoding="utf-8")
    assert 'href="tiny/index.html"' in text
    assert text.count("it learns") == 2
    assert "2 figures at the quick scale. " in text
    other = replace(done, result=replace(done.result, scale="paper"))  # of --from
    text = write_overview([other, other], options).read_text(encoding="utf-8")
    assert "2 figures at the paper&#x27;s scale. " in text
    assert not re.search(r"https?://(?!www\.w3\.org)", text)


def test_claims_are_judged_once_and_written_down(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged: list[Results] = []
    claims = Tiny.claims

    def judge(self: Tiny, result: Results) -> Claims:
        judged.append(result)
        return claims(self, result)

    monkeypatch.setattr(Tiny, "claims", judge)
    options = Options(seeds=1, device="cpu", workers=1, out=tmp_path)
    done = reproduce(tiny, options)
    write_overview([done, done], options)
    assert judged == [done.result]
    for path in (tmp_path / "tiny" / "claims.json", tmp_path / "claims.json"):
        written = json.loads(path.read_text(encoding="utf-8"))
        about = {"scale": "quick", "length": 1.0, "missing": []}
        assert written["experiments"]["tiny"] == {**about, "claims": done.claims.to_json()}
        assert written["experiments"]["tiny"]["claims"][0]["verdict"] == "undecided"


def test_data_that_is_not_there(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("CLIPPEDGOSSIP_DATA", raising=False)
    with pytest.raises(DataError, match="mnist"):
        reproduce(tiny, Options(scale="paper", seeds=1, device="cpu", out=tmp_path))
    options = Options(scale="paper", seeds=1, device="cpu", out=tmp_path, lenient=True)
    with pytest.warns(RuntimeWarning, match="tiny will lack results: mnist is not here"):
        done = reproduce(tiny, options)
    assert verdicts(done.claims) == {"it learns": "not run"}
    assert "mnist is not here" in done.path.read_text(encoding="utf-8")
    written = json.loads(done.path.with_name("claims.json").read_text(encoding="utf-8"))
    assert written["experiments"]["tiny"]["missing"] == ["mnist is not here"]


def test_known_runs_need_no_data_and_are_not_lost(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("CLIPPEDGOSSIP_DATA", raising=False)
    kept = tmp_path / "kept.json"
    filled(Tiny(), lambda *_: 0.9, scale="paper").save(kept)
    options = Options(scale="paper", seeds=2, device="cpu", known=kept, out=tmp_path)
    assert verdicts(reproduce(tiny, options).claims) == {"it learns": "holds"}
    with pytest.warns(RuntimeWarning, match="tiny will lack results"):
        again = reproduce(tiny, replace(options, known=None, lenient=True))
    assert verdicts(again.claims) == {"it learns": "holds"}
    others = pytest.warns(RuntimeWarning, match=r"4 of 4 runs have no match in .*\n.*--scale")
    with pytest.raises(DataError, match="mnist"), others:
        reproduce(tiny, replace(options, precision="bfloat16"))
    others = pytest.warns(RuntimeWarning, match=r"2 of 6 runs have no match in ")
    with pytest.raises(DataError, match="mnist"), others:
        reproduce(tiny, replace(options, seeds=3))


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_known_results_leave_nothing_to_run(path: Path) -> None:
    """Their configs, and the digests of code in them, are still those of the figures."""
    kept = Results.from_json(read_json(path), path)
    arms = {line.rule.rpartition(" | ")[2] for line in kept.lines}
    experiment = training(kept.experiment.removesuffix("-as-released"))
    if experiment.name != kept.experiment:
        experiment = AsReleased(experiment, [name for name in DEVIATIONS if name in arms])
    precision, *more = {line.config["training"].get("precision", "float32") for line in kept.lines}
    how: Any = {"scale": kept.scale, "precision": None if more else precision}
    options = Options(**how, seeds=kept.seeds, known=path)
    asked = [line for case in experiment._cases(options) for line in (case.line, *case.tuning)]
    ran = [line for line in (*kept.lines, *kept.tuning) if line.runs]
    assert {canonical(line.config) for line in ran} <= {canonical(line.config) for line in asked}
    if not kept.troubles and path.stem != "cifar-tf32":  # for which Mozi was not run
        need = experiment.needs(options)
        assert [*need.configs, *need.later()] == []


def test_the_command_on_a_page_gives_its_precision() -> None:
    kept = Path(__file__).parents[2] / "docs" / "results" / "h200"
    narrow = " --precision bfloat16"
    for name, words in (("dumbbell", narrow), ("cifar", narrow), ("precision", "")):
        command = training(name).command(Results.load(kept / f"{name}.json", name))
        assert re.fullmatch(f"clippedgossip reproduce {name} --scale paper --seeds .{words}", command)


def test_a_run_of_another_command_is_waited_for(tiny: str, tmp_path: Path) -> None:
    options = Options(seeds=2, device="cpu", workers=2, out=tmp_path)
    first = Tiny().needs(options).configs[0]
    with ThreadPoolExecutor() as pool:
        with Attempt.open(first, options.runs).run.lock():
            done = pool.submit(reproduce, tiny, options)
            others = [config.run(options.runs) for config in Tiny().needs(options).configs[1:]]
            while not all(run.finished for run in others):
                assert not done.done()
                time.sleep(0.1)
            time.sleep(1.5)
            assert not done.done()
        assert not done.result(timeout=60).result.troubles


LEFT = ["2>&1 | head -n 1", ">&-", "2>&-", ">/dev/null 2>/dev/full"]


@pytest.mark.parametrize(
    ("name", "where", "code"),
    [("dumbbell", "| head -n 1", 1), *(("weaker-topology", how, 0) for how in LEFT)],
)
def test_a_reader_that_leaves_ends_nothing(tmp_path: Path, name: str, where: str, code: int) -> None:
    """Neither the work nor its exit code, which is 1 if a claim does not hold."""
    result = Results.load(RESULTS / f"{name}.json", name)
    replace(result, troubles=["a word on stderr"]).save(tmp_path / "results.json")
    command = f"{sys.executable} -m clippedgossip reproduce {name} --from {tmp_path} --out {tmp_path} {where}"
    bash = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(bash, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert ("3 of the claims do not hold" in done.stderr) == (code == 1)
    assert (tmp_path / name / "index.html").exists()


def test_all_figures_with_a_deviation_are_those_that_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = Path(__file__).parents[2] / "docs" / "results" / "h200"
    said = ["reproduce", "all", "--deviation", "bucketing", "--from", str(source), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="0"):  # bucketing changes the dumbbell alone
        main(said)
    assert (
        "note: 'consensus' trains nothing, so that no deviation changes it; it is left out"
        in capsys.readouterr().err
    )
    assert (tmp_path / "dumbbell-as-released" / "index.html").exists()


def test_figures_without_results_are_an_error_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several figures the others are drawn first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "empty"))
    monkeypatch.delenv("CLIPPEDGOSSIP_DATA", raising=False)
    figures = ["weaker-topology", "precision"]
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", *figures, "--scale", "paper", "--device", "cpu", "--out", str(tmp_path)])
    error = capsys.readouterr().err.splitlines()
    early = [f"note: {name} will lack results: mnist is not here" for name in figures]
    assert error == [
        *early,
        "error: weaker-topology, precision could not be judged: mnist is not here",
        "run `clippedgossip data fetch` for missing data, or leave out these figures",
    ]
    results = filled(training("weaker-topology"), lambda *_: 0.5)
    results.save(tmp_path / "kept" / "weaker-topology.json")
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", *figures, "--from", str(tmp_path / "kept"), "--out", str(tmp_path)])
    out, err = capsys.readouterr()
    assert "page: " in out
    assert err.count("there are no results of 'precision' at ") == 1
    assert "error: precision could not be judged: there are no results of" in err
    assert "give --from what has them, or leave out these figures" in err


@pytest.mark.parametrize("lost", ["lines", "runs"])
def test_a_figure_with_empty_results_is_an_error(
    lost: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = filled(training("weaker-topology"), lambda *_: 0.5)
    lines = [] if lost == "lines" else [replace(line, runs=[]) for line in results.lines]
    replace(results, lines=lines).save(tmp_path / "results.json")
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "weaker-topology", "--from", str(tmp_path), "--out", str(tmp_path / "out")])
    assert "could not be judged: its results are empty" in capsys.readouterr().err


def test_a_worker_that_dies_is_said_so(tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunError, match="worker process ended early"):
        reproduce(tiny, Options(seeds=2, device="cpu", workers=2, out=tmp_path))


def test_a_worker_says_what_keeps_it_from_its_work(tiny: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot write .*Not a directory"):
        reproduce(tiny, Options(seeds=2, device="cpu", workers=2, out=tmp_path / "file"))


def test_a_part_of_the_rounds_is_no_verdict(
    tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = reproduce(tiny, Options(seeds=1, device="cpu", workers=1, out=tmp_path))
    wrong = Claims([Claim(text="it flies", verdict="does not hold")])
    part = replace(whole, length=0.5, claims=wrong)
    verdict([part])
    assert "about all rounds" in capsys.readouterr().err
    with pytest.raises(typer.Exit):
        verdict([part, replace(whole, claims=wrong)])
    assert "the quick scale is a miniature" in capsys.readouterr().err


def test_a_run_that_diverged_counts_as_diverged() -> None:
    run = RunResult(
        seed=0, final={"all": 0.1, DISTANCE: None}, rounds=[1], curves={"all": [0.1]}, diverged=True
    )
    line = Line(setting="s", rule="r", config={}, runs=[run])
    results = Results(experiment="e", scale="quick", seeds=1, lines=[line])
    assert results.final("s", "r", "all").tolist() == [0.0]
    shown = results.estimate("s", "r", "all")
    assert shown is not None
    assert shown.text(scale=100) == "diverged"
    good = replace(run, seed=1, final={"all": 0.9, DISTANCE: 1.0}, diverged=False)
    two = replace(results, seeds=2, lines=[replace(line, runs=[run, good])]).estimate("s", "r", "all")
    assert two is not None
    assert re.fullmatch(r"45\.0 ± \d+\.\d \(1 of 2 diverged\)", two.text(scale=100))
    assert results.final("s", "r", DISTANCE).tolist() == [math.inf]
    assert results.wholes("all")("s", "r").tolist() == [0.0]
    assert np.isnan(results.final("s", "other", "all")).all()


def test_the_command_draws_from_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experiment = training("weaker-topology")
    results = filled(experiment, lambda *_: 0.5, seeds=2)
    results.save(tmp_path / "results.json")
    command = ["reproduce", experiment.name, "--from", str(tmp_path), "--out", str(tmp_path)]
    with pytest.raises(SystemExit, match="1"):  # claims that do not hold
        main(command)
    out, err = capsys.readouterr()
    assert "do not hold" in err
    assert max(len(line) for line in out.splitlines() if not line.startswith("page: ")) <= 80
    with pytest.raises(SystemExit, match="1"):
        main([*command, "--json"])
    rows = [(row["rule"], row["seed"]) for row in json.loads(capsys.readouterr().out)]
    assert rows == [*product(["ClippedGossip", "GeometricMedian", "TrimmedMean"], range(2))]
    with pytest.raises(SystemExit, match="1"):
        main([*command, "--scale", "quick"])
    capsys.readouterr()
    for names in ([experiment.name], [experiment.name, "consensus"]):
        with pytest.raises(SystemExit, match="2"):
            main(["reproduce", *names, *command[2:], "--scale", "paper"])
        assert "is of --scale quick, not of --scale paper\nleave --scale out" in capsys.readouterr().err
