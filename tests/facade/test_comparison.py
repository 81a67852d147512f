"""`cg.compare`: many runs in one stack, each what it is alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import clippedgossip as cg
from clippedgossip.errors import ConfigError
from clippedgossip.facade import Comparison
from clippedgossip.facade.comparison import batches
from clippedgossip.network import Network
from clippedgossip.tasks import DataSet
from tests.facade.interrupting import Interrupting
from tests.rounding import near

SHORT: dict[str, Any] = {"rounds": 4, "evaluate_every": 2, "lr": 0.3, "device": "cpu"}
RULES: list[str | cg.rules.Rule] = ["gossip", cg.rules.ClippedGossip(1.0), cg.rules.ClippedGossip(0.1)]


@pytest.fixture
def comparison(network: Network, data: DataSet, model: nn.Module) -> Comparison:
    return cg.compare(
        network, data, model, rules=RULES, attacks=["dissensus", "label-flipping"], seeds=2, **SHORT
    )


def test_every_run_is_what_it_is_alone(
    comparison: Comparison, network: Network, data: DataSet, model: nn.Module
) -> None:
    assert len(comparison.runs) == 12
    for run in comparison.runs:
        alone = cg.train(
            network, data, model, rule=run.setup.rule, attack=run.setup.attack, seed=run.seed, **SHORT
        )
        for here, there in zip(run.records, alone.records, strict=True):
            assert here.round == there.round
            # Four rounds in float32, products in another order.
            assert here.loss == near(there.loss, dtype=torch.float32)
            assert here.consensus_distance == near(there.consensus_distance, dtype=torch.float32)


def test_the_frame_names_rule_attack_and_seed(comparison: Comparison) -> None:
    frame = comparison.frame()
    assert list(frame.columns[:5]) == ["rule", "attack", "seed", "round", "accuracy"]
    assert len(frame) == 12 * 2
    assert set(frame["rule"]) == {"gossip", "clipped-gossip radius=1", "clipped-gossip radius=0.1"}
    assert set(frame["attack"]) == {"dissensus", "label-flipping"}


def test_it_prints_a_table_plots_a_panel_an_attack_and_writes_a_page(
    comparison: Comparison, tmp_path: Path
) -> None:
    assert repr(comparison) == "Comparison(3 rules, 2 attacks, 0 of 12 runs finished)"
    head, _, *rows = str(comparison).splitlines()
    assert head.split() == ["accuracy", "%", "dissensus", "label-flipping"]
    assert len(rows) == 3
    panels = comparison.plot()
    assert [axes.get_title(loc="left") for axes in panels] == ["dissensus", "label-flipping"]
    assert [line.get_label() for line in panels[0].lines] == [
        row.rpartition("±")[0].split("  ")[0] for row in rows
    ]
    text = comparison.report(tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Report on 12 runs" in text
    assert "clipped-gossip radius=0.1" in text


def test_after_an_interrupt_finished_runs_stay_and_the_rest_is_trained(
    network: Network, data: DataSet, model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clippedgossip.runs.fill.TOGETHER", 2)
    loss = Interrupting()
    options: dict[str, Any] = {"rules": RULES, "attacks": ["dissensus"], "seeds": 2, "loss": loss, **SHORT}
    whole = cg.compare(network, data, model, **options).finish()
    third = 3 + SHORT["rounds"]  # calls of the last stack: three to try the model, and one in each round
    loss.calls, loss.last = 0, loss.calls - third - 2  # towards the end of the second
    stopped = cg.compare(network, data, model, **options)
    with pytest.raises(KeyboardInterrupt):
        stopped.finish()
    assert "2 of 6 runs finished" in repr(stopped)
    assert stopped.runs[0].records == whole.runs[0].records
    stopped.finish()
    assert [run.records for run in stopped.runs] == [run.records for run in whole.runs]


def test_rules_that_nothing_tells_apart_are_numbered(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    comparison = cg.compare(
        network, data, model, rules=["gossip", cg.rules.Gossip()], attacks=["none"], seeds=2, **SHORT
    )
    assert list(dict.fromkeys(run.rule for run in comparison.runs)) == ["gossip", "gossip #2"]


def test_large_models_go_one_by_one_on_a_cpu(network: Network, data: DataSet) -> None:
    wide = nn.Sequential(nn.Linear(2, 20_000), nn.ReLU(), nn.Linear(20_000, 2))
    comparison = cg.compare(network, data, wide, rules=RULES, attacks=["none"], rounds=1, device="cpu")
    assert [len(stack) for stack in batches(comparison.runs, "cpu")] == [1, 1, 1]


def test_a_run_that_diverges_leaves_the_others_alone(
    network: Network, data: DataSet, model: nn.Module
) -> None:
    attack = cg.attacks.Dissensus(epsilon=1e4)
    options = SHORT | {"rounds": 40}
    comparison = cg.compare(
        network, data, model, rules=["gossip", "clipped-gossip"], attacks=[attack], **options
    )
    with pytest.warns(RuntimeWarning, match="gossip under attack dissensus, seed 0: diverged by round"):
        comparison.finish()
    lost, kept = comparison.runs
    assert lost.diverged
    assert kept.diverged is None
    assert kept.round == 40 > lost.round
    assert "2 of 2 runs finished" in repr(comparison)
    gossip, clipped = str(comparison).splitlines()[-2:]
    assert gossip.split() == ["gossip", "diverged"]
    assert "diverged" not in clipped


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rules": []}, "rules is empty"),
        ({"rules": "gossip"}, r"give a list: rules=\["),
        ({"rules": [cg.rules.Gossip()], "attacks": []}, "attacks is empty"),
        ({"rules": [cg.rules.Gossip()], "seeds": 0}, "seeds is empty"),
        ({"rules": [cg.rules.Gossip()]}, "there is no attack"),
        ({"rules": ["gosip"], "attacks": ["none"]}, "did you mean 'gossip'"),
    ],
)
def test_a_mistake_is_told_before_the_first_run(
    options: dict[str, Any], message: str, network: Network, data: DataSet, model: nn.Module
) -> None:
    with pytest.raises(ConfigError, match=message) as told:
        cg.compare(network, data, model, **(SHORT | options))
    assert len(str(told.value).splitlines()) <= 2


@pytest.mark.parametrize("seeds", [None, 1.5, "3", True, [True], [0.5]])
def test_seeds_are_a_number_or_numbers(network: Network, data: DataSet, model: nn.Module, seeds: Any) -> None:
    with pytest.raises(ConfigError, match=r"seeds? is .*(seeds=|whole number)"):
        cg.compare(network, data, model, rules=["gossip"], attacks=["alie"], seeds=seeds, **SHORT)
