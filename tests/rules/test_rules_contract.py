"""One contract, all rules. A rule added to the registry is tested here without further work."""

from dataclasses import replace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor

from clippedgossip.errors import RuleError
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules import (
    IOS,
    NNM,
    RULES,
    Adaptive,
    Bucketing,
    ClippedGossip,
    CoordinateRule,
    GeometricMedian,
    LinearRule,
    Local,
    Oracle,
    Quantile,
    Rule,
    TrimmedMean,
    WeightedMedian,
    WeightedTrimmedMean,
)
from clippedgossip.rules.premix import Premix
from clippedgossip.rules.sorting import middle, middle_network, selection_network
from tests.rounding import assert_near
from tests.samples import sample_rule

CASES: dict[str, Rule] = {name: sample_rule(name) for name in RULES} | {
    "clipped-gossip, tight": ClippedGossip(radius=0.3),
    "clipped-gossip, adaptive": ClippedGossip(radius=Adaptive(delta_max=0.2)),
    "clipped-gossip, local": ClippedGossip(radius=Local(faulty=2)),
    "clipped-gossip, quantile": ClippedGossip(radius=Quantile(0.5)),
    "clipped-gossip, oracle": ClippedGossip(radius=Oracle()),
    "bucketing of trimmed mean": Bucketing(TrimmedMean(trim=1)),
    "nnm of trimmed mean": NNM(rule=TrimmedMean(trim=1), faulty=1),
    "bucketing of bucketing": Bucketing(Bucketing(ClippedGossip())),
    "bucketing of nnm of trimmed mean": Bucketing(NNM(rule=TrimmedMean(trim=1), faulty=1)),
}
NOT_TRANSLATED = {"balance", "mozi"}  # they look at ‖x_i‖, or at a loss

rules = pytest.mark.parametrize("rule", CASES.values(), ids=CASES)
B, K, D = 4, 6, 9


def neighbourhood(seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(B, D, generator=generator, dtype=dtype)
    received = torch.randn(B, K, D, generator=generator, dtype=dtype)
    weights = 0.02 + 0.1 * torch.rand(B, K, generator=generator, dtype=torch.float64)
    return own, received, weights


def by_coordinates(rule: Rule) -> bool:
    return isinstance(rule.innermost if isinstance(rule, Premix) else rule, CoordinateRule)


LIES = Context(byzantine=torch.arange(K) == 2)


@rules
def test_batched_equals_one_node_at_a_time(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    together = rule(own, received, weights, LIES)
    named = [replace(LIES, nodes=torch.tensor(i)) for i in range(B)]
    alone = torch.stack([rule(own[i], received[i], weights[i], named[i]) for i in range(B)])
    assert_near(together, alone)


@rules
def test_extra_batch_dimensions_are_kept(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    flat = rule(own, received, weights, LIES)
    square = rule(own.view(2, 2, D), received.view(2, 2, K, D), weights.view(2, 2, K), LIES)
    assert_near(square.view(B, D), flat)


@rules
def test_order_of_neighbours_does_not_matter(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    shuffle = torch.tensor([3, 0, 5, 2, 4, 1])
    assert LIES.byzantine is not None
    context = Context(byzantine=LIES.byzantine[shuffle], senders=shuffle)
    shuffled = rule(own, received[:, shuffle], weights[:, shuffle], context)
    assert_near(shuffled, rule(own, received, weights, LIES))


@rules
def test_translation(rule: Rule, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.id in NOT_TRANSLATED:
        pytest.skip("looks at norms or losses, so the origin matters")
    own, received, weights = neighbourhood()
    shift = torch.linspace(-3, 5, D, dtype=own.dtype)
    assert_near(
        rule(own + shift, received + shift, weights, LIES), rule(own, received, weights, LIES) + shift
    )


@rules
def test_rotation(rule: Rule) -> None:
    if by_coordinates(rule):
        pytest.skip("works by coordinates, so the basis matters")
    own, received, weights = neighbourhood()
    turn = torch.linalg.qr(torch.randn(D, D, dtype=own.dtype, generator=torch.Generator().manual_seed(1)))[0]
    assert_near(rule(own @ turn, received @ turn, weights, LIES), rule(own, received, weights, LIES) @ turn)


@rules
def test_agreement_is_kept(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    received = own[:, None].expand_as(received).clone()
    assert_near(rule(own, received, weights, LIES), own)


@rules
@pytest.mark.parametrize("rubbish", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_counts_as_missing_and_its_weight_goes_to_self(rule: Rule, rubbish: float) -> None:
    own, received, weights = neighbourhood()
    missing = received.clone()
    missing[:, 2] = own
    received[:, 2, D // 2] = rubbish
    mixed = rule(own, received, weights, LIES)
    assert torch.isfinite(mixed).all()
    assert_near(mixed, rule(own, missing, weights, LIES))


@rules
def test_nothing_finite_leaves_the_node_alone(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    assert_near(rule(own, torch.full_like(received, torch.nan), weights, LIES), own)


@rules
def test_a_slot_of_weight_zero_is_no_neighbour(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    padded = torch.cat([received, 100 * torch.ones(B, 2, D, dtype=own.dtype)], 1)
    empty = torch.cat([weights, torch.zeros(B, 2, dtype=weights.dtype)], 1)
    assert_near(
        rule(own, padded, empty, Context(byzantine=torch.arange(K + 2) == 2)),
        rule(own, received, weights, LIES),
    )


@rules
@pytest.mark.parametrize("graph", ["dense", "sparse"])
def test_a_whole_network_equals_its_nodes(rule: Rule, graph: str) -> None:
    """The dense and the edge-wise pass, with linear and other lies, give what each node would get alone."""
    shape = nx.random_regular_graph(6, 12 if graph == "dense" else 150, seed=3)
    network = Network(shape, byzantine=[2, 5])
    layout = Layout.of(network)
    assert layout.byzantine is not None
    n, lies = len(network.regular), int(layout.byzantine.sum())
    generator = torch.Generator().manual_seed(5)
    models = torch.randn(n, D, generator=generator, dtype=torch.float64)
    linear = torch.randn(3, n, generator=generator, dtype=torch.float64)
    extra = torch.randn(lies - 3, D, generator=generator, dtype=torch.float64)
    extra[1] = torch.nan
    inbox = Inbox(layout=layout, models=models, linear=linear, extra=extra, context=Context(seed=7))
    assert inbox.dense == (graph == "dense")
    rows = torch.cat([models, linear @ models, extra])
    mixed = rule.mix(inbox)
    for i in range(n):
        near = layout.weights[i] > 0
        context = Context(
            seed=7,
            nodes=layout.nodes[i],
            senders=layout.senders[i][near],
            byzantine=layout.byzantine[i][near],
        )
        alone = rule(models[i], rows[layout.slots[i][near]], layout.weights[i][near], context)
        assert_near(mixed[i], alone)
    assert torch.isfinite(mixed).all()


@rules
@pytest.mark.parametrize("graph", ["dense", "sparse"])
def test_when_all_have_diverged_none_is_mended(rule: Rule, graph: str) -> None:
    network = Network(nx.random_regular_graph(6, 12 if graph == "dense" else 150, seed=3))
    models = torch.full((network.n, D), torch.nan)
    inbox = Inbox(layout=Layout.of(network), models=models)
    assert inbox.dense == (graph == "dense")
    assert torch.isnan(rule.mix(inbox)).all()


@rules
@pytest.mark.parametrize("cliques", [2, 20], ids=["dense", "sparse"])
def test_nodes_that_hear_only_what_diverged_stay_so(rule: Rule, cliques: int) -> None:
    network = Network(nx.disjoint_union_all([nx.complete_graph(7)] * cliques))
    models = torch.randn(network.n, D, generator=torch.Generator().manual_seed(0))
    models[:7] = torch.nan
    inbox = Inbox(layout=Layout.of(network), models=models)
    assert inbox.dense == (cliques == 2)
    mixed = rule.mix(inbox)
    assert torch.isnan(mixed[:7]).all()
    assert torch.isfinite(mixed[7:]).all()


@rules
def test_float32_agrees_with_float64_near_consensus_and_beside_a_huge_lie(rule: Rule) -> None:
    """Models that differ by 1e-4 of their norm, and one message of norm 1e6."""
    network = Network(nx.complete_graph(12), byzantine=[11])
    layout = Layout.of(network)
    generator = torch.Generator().manual_seed(2)
    d = 2000
    center = torch.randn(d, generator=generator, dtype=torch.float64)
    models = (center + 1e-4 * torch.randn(11, d, generator=generator, dtype=torch.float64)).float()
    lie = torch.randn(11, d, generator=generator, dtype=torch.float64).float()
    lie *= 1e6 / lie.norm(dim=1, keepdim=True)
    if isinstance(rule, ClippedGossip) and isinstance(rule.radius, type(ClippedGossip(1.0).radius)):
        rule = ClippedGossip(radius=3e-3)
    single = rule.mix(Inbox(layout=layout, models=models, extra=lie))
    double = rule.mix(Inbox(layout=layout, models=models.double(), extra=lie.double()))
    moved = (double - models.double()).norm(dim=1)
    error = (single.double() - double).norm(dim=1)
    rounding = 4 * torch.finfo(torch.float32).eps * double.norm(dim=1)  # what storing the result costs
    assert (error <= 1e-4 * moved + rounding).all(), (error / double.norm(dim=1), moved)


def test_linear_coefficients_sum_to_one_and_skip_empty_slots() -> None:
    network = Network(nx.barbell_graph(6, 3))
    layout = Layout.of(network)
    models = torch.randn(network.n, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for name, rule in CASES.items():
        if not isinstance(rule, LinearRule) or by_coordinates(rule):
            continue
        try:
            plan = rule.plan(Inbox(layout=layout, models=models))
        except RuleError:
            continue  # two neighbours are too few for it
        assert_near(plan.sum(1), torch.ones(network.n, dtype=torch.float64))
        assert (plan[:, 1:][layout.weights == 0] == 0).all(), name


def test_bucketing_draws_afresh_each_round_and_alike_everywhere() -> None:
    network = Network(nx.complete_graph(9))
    models = torch.randn(9, D, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rule = Bucketing(TrimmedMean(trim=1))

    def mixed(round: int, seed: int) -> np.ndarray:
        context = Context(round=round, seed=seed)
        return rule.mix(Inbox(layout=Layout.of(network), models=models, context=context)).numpy()

    assert (mixed(round=3, seed=1) == mixed(round=3, seed=1)).all()
    assert not np.allclose(mixed(round=3, seed=1), mixed(round=4, seed=1))
    assert not np.allclose(mixed(round=3, seed=1), mixed(round=3, seed=2))


@pytest.mark.parametrize("rule", CASES.values(), ids=CASES)
def test_a_node_without_neighbours_keeps_its_model(rule: Rule) -> None:
    own = torch.randn(2, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    try:
        rule.check(0)
    except RuleError:
        return
    nobody = Context(byzantine=torch.zeros(0, dtype=torch.bool))
    assert torch.equal(rule(own, own.new_empty(2, 0, 5), own.new_empty(2, 0), nobody), own)


def test_trims_of_single_nodes_stay_theirs_however_nodes_are_grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Network(nx.complete_graph(12))
    models = torch.randn(12, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rule = Bucketing(TrimmedMean(trim=(0, 1, 2) * 4), size=2)
    inbox = Inbox(layout=Layout.of(network), models=models)
    together = rule.mix(inbox)
    monkeypatch.setattr("clippedgossip.mixing.inbox.PAIRS_BYTES", 8 * 12**2 * 5)
    assert torch.equal(rule.mix(inbox), together)


@pytest.mark.parametrize(
    "wrap", [lambda rule: rule, lambda rule: Bucketing(rule, size=2)], ids=["bare", "wrapped"]
)
@pytest.mark.parametrize("kind", [TrimmedMean, WeightedTrimmedMean])
def test_trims_go_by_the_node_s_number_in_the_simulator_as_in_a_peer(kind: Any, wrap: Any) -> None:
    """`at` is what a peer runs. Byzantine nodes have a number too."""
    network = Network(nx.complete_graph(8), byzantine=[2])
    share = 1 if kind is TrimmedMean else 0.1
    rule = wrap(kind(trim=tuple(share * trim for trim in (0, 1, 2, 1, 0, 1, 2, 1))))
    models, lies = torch.randn(2, 7, 30, generator=torch.Generator().manual_seed(0))
    inbox = Inbox(layout=Layout.of(network), models=models, extra=lies)
    mixed = rule.mix(inbox)
    for row, node in enumerate(network.regular.tolist()):
        assert torch.equal(mixed[row], rule.at(node).mix(inbox)[row])
    short = wrap(kind(trim=(0,) * 7))  # one for each regular node
    with pytest.raises(RuleError, match="trim gives 7 values and none for node 7"):
        short.mix(inbox)
    with pytest.raises(RuleError, match="trim gives 7 values and none for node 7"):
        short.at(7)


@rules
def test_models_of_other_kinds_are_refused(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    wrong: list[tuple[Any, Any, str]] = [
        (own.float(), received, "received is torch.float64 and own is torch.float32"),
        (own.long(), received.long(), "own is torch.int64"),
        (own, received.numpy(), "received is ndarray"),
        (own[0, 0], received, "own is torch.float64, 0-D"),
    ]
    for models, messages, says in wrong:
        with pytest.raises(RuleError, match=says):
            rule(models, messages, weights, LIES)


@rules
def test_parameters_are_mixed_without_gradients_and_nobody_is_mixed(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    mixed = rule(torch.nn.Parameter(own), torch.nn.Parameter(received), weights, LIES)
    assert torch.equal(mixed, rule(own, received, weights, LIES))
    assert not mixed.requires_grad
    assert rule(own[:0], received[:0], weights[:0]).shape == (0, D)


@rules
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_longest_models_do_not_overflow(rule: Rule, dtype: torch.dtype) -> None:
    own, received, weights = (part.to(dtype) for part in neighbourhood())
    most = torch.finfo(dtype).max / 2
    mixed = rule(torch.full_like(own, most), torch.full_like(received, most), weights, LIES)
    assert_near(mixed, torch.full_like(own, most))


@pytest.mark.parametrize("rule", [IOS(faulty=2), Bucketing(IOS(faulty=1))], ids=str)
def test_a_node_of_no_weight_that_drops_all_neighbours_keeps_its_model(rule: Rule) -> None:
    own = torch.tensor([3.0])
    assert torch.equal(rule(own, torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, 0.5])), own)


@pytest.mark.parametrize("smoothing", [0.0, 1e200, float("inf"), float("nan")])
def test_a_smoothing_whose_square_is_no_number_is_refused(smoothing: float) -> None:
    with pytest.raises(RuleError, match="smoothing is"):
        GeometricMedian(smoothing=smoothing)


@rules
def test_weights_that_are_none_are_refused(rule: Rule) -> None:
    own, received, weights = neighbourhood()
    full = weights / weights.sum(-1, keepdim=True)
    wrong_ones = {
        "at least 0": -weights,
        "nan": weights * torch.nan,
        "1.01; .* at most 1": full * 1.01,
    }
    for says, wrong in wrong_ones.items():
        with pytest.raises(RuleError, match=says):
            rule(own, received, wrong, LIES)


@pytest.mark.parametrize("name", RULES)
def test_a_number_of_things_is_whole(name: str) -> None:
    rule = sample_rule(name)
    for field in ("faulty", "trim", "iterations", "size", "select"):
        if hasattr(rule, field) and name != "weighted-trimmed-mean":
            with pytest.raises(RuleError, match=rf"{field} is 1\.5; it must be a whole number"):
                replace(rule, **{field: 1.5})


def test_the_oracle_radius_says_how_it_is_told() -> None:
    own, received, weights = neighbourhood()
    rule = ClippedGossip(radius=Oracle())
    with pytest.raises(RuleError, match=r"Context\(byzantine=mask\)"):
        rule(own, received, weights)
    assert torch.isfinite(rule(own, received, weights, LIES)).all()


def test_the_oracle_radius_cannot_judge_averages() -> None:
    lies = torch.tensor([False, True, False])
    with pytest.raises(RuleError, match="oracle"):
        Bucketing(ClippedGossip(radius=Oracle()))(
            torch.zeros(2), torch.ones(3, 2), torch.full((3,), 0.2), Context(byzantine=lies)
        )


@pytest.mark.parametrize("size", range(2, 22))
def test_the_middle_is_what_sorting_leaves_between_the_ends(size: int) -> None:
    values = torch.randint(9, (size, 200), generator=torch.Generator().manual_seed(size)).float()
    for trim in range((size - 1) // 2 + 1):
        comparators, places = middle_network(size, trim)
        assert len(comparators) <= len(selection_network(size, frozenset(range(trim, size - trim))))
        assert len(places) == size - 2 * trim
        found = torch.stack(middle([row.clone() for row in values], trim)).sort(0).values
        assert torch.equal(found, values.sort(0).values[trim : size - trim])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", range(3, 60))
def test_with_equal_weights_the_weighted_median_is_the_median(size: int, dtype: torch.dtype) -> None:
    """Half of the weight is met between two values, although 1/size summed may miss it by rounding."""
    values = torch.arange(float(size), dtype=dtype)[:, None]
    weights = torch.full((size - 1,), 1 / size, dtype=dtype)
    found = WeightedMedian()(values[size // 3], values[torch.arange(size) != size // 3], weights)
    assert found.item() == (size - 1) / 2


@pytest.mark.parametrize("rule", CASES.values(), ids=CASES)
def test_a_slice_of_no_coordinates_stays_one(rule: Rule) -> None:
    layout = Layout.of(Network(nx.complete_graph(12)))
    inbox = Inbox(layout=layout, models=torch.zeros(12, 0), context=Context(rounds=10))
    assert rule.mix(inbox).shape == (12, 0)
