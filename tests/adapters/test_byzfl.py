"""ByzFL's aggregators and attacks, the real ones, on our networks."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import networkx as nx
import pytest
import torch

import clippedgossip as cg
from clippedgossip.adapters.byzfl import Adversary, Aggregator
from clippedgossip.errors import ConfigError
from clippedgossip.network import Network
from tests.rounding import assert_near


@pytest.fixture(autouse=True)
def byzfl(monkeypatch: pytest.MonkeyPatch) -> None:
    """ByzFL's own folder without its `__init__`, which imports torchvision and more."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.origin is None:
        pytest.skip("pip install --no-deps byzfl")
    package = ModuleType("byzfl")
    package.__path__ = [str(Path(found.origin).parent)]
    monkeypatch.setitem(sys.modules, "byzfl", package)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (("TrMean", 1), cg.rules.TrimmedMean(1)),
        (("Median", None), cg.rules.Median()),
        (("Meamed", 1), cg.rules.MeaMed(1)),
        (("MoNNA", 1), cg.rules.NNA(1)),
    ],
)
def test_what_both_have_is_the_same(theirs: tuple[str, int | None], ours: cg.rules.Rule) -> None:
    draw = torch.Generator().manual_seed(0)
    own, received = torch.randn(3, 6, generator=draw), torch.randn(3, 5, 6, generator=draw)
    weights = torch.full((3, 5), 1 / 6)
    assert_near(Aggregator(*theirs)(own, received, weights), ours(own, received, weights))


def test_a_network_is_attacked_by_theirs_and_mixes_by_theirs() -> None:
    network = Network(nx.circulant_graph(12, [1, 2, 3]), byzantine=[4, 9])
    start = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    *_, end = cg.consensus(
        network, Aggregator("TrMean", f=2), start, attack=Adversary("SignFlipping"), rounds=30
    )
    *_, plain = cg.consensus(network, Aggregator("Average"), start, attack=Adversary("Inf"), rounds=3)
    assert end.error < 1
    assert torch.isfinite(plain.models).all()  # a message that is not finite counts as not received


def test_they_are_named_in_a_config() -> None:
    from clippedgossip.settings import AttackConfig, RuleConfig

    rule = RuleConfig.from_value(
        {"name": "clippedgossip.adapters.byzfl:Aggregator", "aggregator": "SMEA", "f": 1}
    )
    assert rule.checked().build() == Aggregator("SMEA", f=1)
    attack = {
        "name": "clippedgossip.adapters.byzfl:Adversary",
        "attack": "InnerProductManipulation",
        "tau": 0.5,
    }
    assert AttackConfig.from_value(attack).build() == Adversary("InnerProductManipulation", tau=0.5)
    with pytest.raises(
        ConfigError, match=r"unknown one of byzfl.aggregators: 'TrMaen'; did you mean 'TrMean'"
    ):
        Aggregator("TrMaen", f=1)
    with pytest.raises(ConfigError, match=r"byzfl.Median\(f=1\)"):
        Aggregator("Median", f=1)
