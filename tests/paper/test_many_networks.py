"""Consensus on many small networks at once, and the two experiments that use it."""

import json
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from clippedgossip.cli import main
from clippedgossip.errors import RunError
from clippedgossip.mixing.kernels import squared_distances
from clippedgossip.network import Network
from clippedgossip.paper import average_delta, blocked_components
from clippedgossip.paper.base import Options, load
from clippedgossip.paper.many_networks import FIRST_SEED, Cases, ManyNetworks, attacks, worst
from clippedgossip.rules import ClippedGossip, Oracle
from clippedgossip.simulate.consensus import trajectory
from tests.paper.reproducing import reproduce
from tests.rounding import assert_near, near

pytestmark = pytest.mark.usefixtures("one_thread")


def test_networks_together_end_as_each_alone() -> None:
    networks = [
        Network(nx.cycle_graph(5), byzantine=[2]),
        Network(nx.complete_graph(4), byzantine=[0]),
    ]
    generator = torch.Generator().manual_seed(1)
    starts = [torch.randn(len(n.regular), 2, generator=generator, dtype=torch.float64) for n in networks]
    rule = ClippedGossip(Oracle())

    def harm(number: int, models: torch.Tensor) -> float:
        return float(squared_distances(models).mean())

    found = worst(networks, rule, starts, 5, harm)
    for number, (network, start) in enumerate(zip(networks, starts, strict=True)):
        ends = {}
        for name, attack in attacks([network]).items():
            *_, ends[name] = trajectory(network, rule, start, attack=attack, rounds=5)
        strongest = max(harm(number, models) for models in ends.values())
        assert found.harm[number] == near(strongest)
        assert_near(found.models[number], ends[found.attack[number]])


def test_components_are_held_against_runs() -> None:
    cases = Cases(blocked_components.simulate(0, 6))
    claims = blocked_components.BlockedComponents().claims(cases).claims
    assert all(len(claim.text) <= 72 and claim.source for claim in claims)
    assert all(len(case.seen) == len(case.expected) for case in cases)
    wrong = [replace(case, seen=[0] * len(case.seen), expected=list(range(len(case.seen)))) for case in cases]
    broken = Cases(replace(case, seed=seed) for seed in range(3) for case in wrong)
    verdicts = {
        claim.text: claim.verdict for claim in blocked_components.BlockedComponents().findings(broken)
    }
    assert verdicts["where a cut is blocked, not all regular nodes agree"] == "does not hold"


def test_seeds_are_kept_and_the_page_is_drawn_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished seeds are not computed again; --from reads what was saved."""
    experiment, folder = blocked_components.BlockedComponents(), tmp_path / "components"
    monkeypatch.setattr(blocked_components, "ROUNDS", 20)
    for seed in (FIRST_SEED, FIRST_SEED + 1):
        experiment.write(blocked_components.simulate(seed, 4), folder / "seeds" / f"{seed}.json")
    monkeypatch.setattr(ManyNetworks, "_one_seed", None)  # no process is started
    done = reproduce("components", Options(seeds=2, out=tmp_path))
    assert [case.seed for case in done.result] == [FIRST_SEED] * 4 + [FIRST_SEED + 1] * 4
    again = reproduce("components", Options(source=tmp_path, out=tmp_path / "again"))
    assert again.claims == done.claims
    assert (tmp_path / "again" / "components" / "index.html").read_text() == done.path.read_text()
    with pytest.raises(RunError, match="results of 'components'"):
        reproduce("average-delta", Options(source=folder / "results.json", out=tmp_path))


QUICK = Path(__file__).parents[2] / "docs" / "results" / "quick"


@pytest.mark.parametrize("name", ["components", "average-delta"])
def test_cases_of_another_form_are_refused(name: str, tmp_path: Path) -> None:
    raw = json.loads((QUICK / f"{name}.json").read_text())
    del raw["cases"][3]["gamma"]
    (tmp_path / f"{name}.json").write_text(json.dumps(raw))
    with pytest.raises(RunError, match=r"cannot read results from .* needs a value for gamma"):
        load(name).needs(Options(source=tmp_path)).read(lambda *_: None)
    for cases in (3, True, {"seed": 1}, [1]):
        (tmp_path / f"{name}.json").write_text(json.dumps(raw | {"cases": cases}))
        with pytest.raises(RunError, match="cannot read results from"):
            load(name).needs(Options(source=tmp_path)).read(lambda *_: None)


@pytest.mark.parametrize("name", ["components", "average-delta"])
def test_without_cases_there_is_no_verdict(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = json.loads((QUICK / f"{name}.json").read_text())
    (tmp_path / f"{name}.json").write_text(json.dumps(raw | {"cases": []}))
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", name, "--from", str(tmp_path), "--out", str(tmp_path / "out")])
    assert f"error: {name} could not be judged: its results are empty" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", name, "consensus", "--from", str(tmp_path / "out"), "--out", str(tmp_path)])
    assert f"{name} could not be judged: there are no results of" not in capsys.readouterr().err


@pytest.mark.slow
def test_average_delta_is_held_against_consensus_and_training(tmp_path: Path) -> None:
    cases = average_delta.simulate(0, 2)
    assert {case.base for case in cases} == set(average_delta.BASES)
    assert all(0 <= case.error["training"] <= 1 for case in cases)
    average_delta.AverageDelta().write(cases, tmp_path / "average-delta.json")
    done = reproduce("average-delta", Options(source=tmp_path, out=tmp_path))
    assert len(done.claims.claims) == 10
    assert len(done.figures) == 2


def test_gamma_does_not_depend_on_delta_and_both_families_are_what_they_say() -> None:
    draws = np.random.default_rng(0)
    for graph in average_delta.BASES.values():
        for family in average_delta.FAMILIES:
            network = average_delta.with_deltas(graph, average_delta._deltas(len(graph), family, draws))
            plain = average_delta.with_deltas(graph, np.zeros(len(graph)))
            assert network.spectral_gap == near(plain.spectral_gap)
            if family == "equal δ_max":
                assert network.delta_max == near(average_delta.WORST)
            if family == "equal average":
                assert network.delta.mean() == near(average_delta.MEAN)
