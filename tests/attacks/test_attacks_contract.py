"""One contract, all attacks. An attack added to the registry is tested here without further work."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

from clippedgossip.attacks import (
    ALIE,
    ATTACKS,
    IPM,
    Attack,
    Dissensus,
    FreeAttack,
    Gaussian,
    LinearAttack,
    Mimic,
    NonFinite,
    SpectralHeterogeneity,
    Tuned,
    View,
    ZeroSum,
    base,
    make_attack,
)
from clippedgossip.errors import AttackError
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules import RULES, ClippedGossip, Gossip, Rule, TrimmedMean
from clippedgossip.simulate import consensus
from tests.rounding import assert_near
from tests.samples import sample_rule

D = 5
ATTACK_PARAMETERS: dict[str, dict[str, Any]] = {"tuned": {"attack": Dissensus()}}


def pendants() -> Network:
    """Byzantine nodes of degree one; two of them have the same receiver."""
    graph = nx.cycle_graph(5)
    graph.add_edges_from([(0, 5), (0, 6), (2, 7)])
    return Network(graph, byzantine=[5, 6, 7])


def broadcaster() -> Network:
    """One Byzantine node, beside every regular node."""
    graph = nx.random_regular_graph(4, 9, seed=1)
    graph.add_edges_from((9, node) for node in range(9))
    return Network(graph, byzantine=[9])


def colluders() -> Network:
    """Byzantine neighbours with common and different receivers, numbered between regular nodes."""
    return Network(nx.random_regular_graph(6, 14, seed=3), byzantine=[4, 5, 9])


def large() -> Network:
    """So sparse that rules work edge by edge."""
    return Network(nx.random_regular_graph(4, 120, seed=3), byzantine=range(0, 120, 10))


NETWORKS = {function.__name__: function for function in (pendants, broadcaster, colluders, large)}
CASES = {name: make_attack(name, **ATTACK_PARAMETERS.get(name, {})) for name in ATTACKS} | {
    "alie, z=10": ALIE(z=10),
    "mimic 1": Mimic(target=1),
    "tuned alie": Tuned(ALIE()),
}
attacks = pytest.mark.parametrize("attack", CASES.values(), ids=CASES)
networks = pytest.mark.parametrize("network", [make() for make in NETWORKS.values()], ids=NETWORKS)


def models_of(network: Network, seed: int = 0) -> Tensor:
    return torch.randn(network.n, D, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def view_of(network: Network, *, seed: int = 0, round: int = 0, rule: Rule | None = None) -> View:
    models = models_of(network)
    return View(
        network=network,
        layout=Layout.of(network),
        models=models[network.regular.tolist()],
        rule=rule or ClippedGossip(1.0),
        context=Context(seed=seed, round=round, rounds=10),
        byzantine_models=models[network.byzantine.tolist()],
    )


def sent(attack: Attack, view: View) -> dict[tuple[int, int], np.ndarray]:
    """(sender, receiver) -> the message in the receiver's slot of that sender."""
    inbox = attack.inbox(view).explicit()
    layout = view.layout
    assert layout.byzantine is not None
    found = {}
    for row, column in layout.byzantine.nonzero().tolist():
        edge = (int(layout.senders[row, column]), int(layout.nodes[row]))
        found[edge] = inbox.rows(inbox.layout.slots[row, column][None])[0].numpy()
    return found


@attacks
@networks
def test_one_message_per_edge(attack: Attack, network: Network) -> None:
    byzantine = set(network.byzantine.tolist())
    edges = {
        (int(j), int(i))
        for i in network.regular
        for j in network.indices[network.indptr[i] : network.indptr[i + 1]]
        if int(j) in byzantine
    }
    messages = sent(attack, view_of(network))
    assert set(messages) == edges
    assert all(message.shape == (D,) for message in messages.values())


Definition = Callable[[Network, dict[int, np.ndarray], int, int], np.ndarray]


def around(network: Network, i: int) -> tuple[list[int], list[int]]:
    """Regular and Byzantine neighbours."""
    near = network.indices[network.indptr[i] : network.indptr[i + 1]].tolist()
    byzantine = set(network.byzantine.tolist())
    return [j for j in near if j not in byzantine], [j for j in near if j in byzantine]


def weight(network: Network, i: int, j: int) -> float:
    return float(network.weights[i, j])


def dissensus(network: Network, x: dict[int, np.ndarray], i: int, j: int) -> np.ndarray:
    regular, byzantine = around(network, i)
    pull = sum((weight(network, i, k) * (x[k] - x[i]) for k in regular), np.zeros(D))
    result: np.ndarray = x[i] - 1.5 * pull / sum(weight(network, i, b) for b in byzantine)
    return result


def zero_sum(network: Network, x: dict[int, np.ndarray], i: int, j: int) -> np.ndarray:
    regular, byzantine = around(network, i)
    return -sum((x[k] for k in regular), np.zeros(D)) / len(byzantine)


def ipm(network: Network, x: dict[int, np.ndarray], i: int, j: int) -> np.ndarray:
    regular, _ = around(network, i)
    rows: np.ndarray = np.array([x[k] for k in [i, *regular]])
    result: np.ndarray = -0.1 * rows.mean(0)
    return result


def alie(network: Network, x: dict[int, np.ndarray], i: int, j: int) -> np.ndarray:
    regular, byzantine = around(network, i)
    rows = np.array([x[k] for k in [i, *regular]])
    n, b = len(rows) + len(byzantine), len(byzantine)
    share = (n - b - (math.floor(n / 2 + 1) - b)) / (n - b)
    z = scipy.stats.norm.ppf(min(max(share, 0.001), 0.999))
    result: np.ndarray = rows.mean(0) - z * rows.std(0)
    return result


@cache
def slowest_mode(network: Network) -> np.ndarray:
    _, vectors = np.linalg.eigh(np.asarray(network.regular_weights))
    mode: np.ndarray = vectors[:, -2]  # its sign cancels
    return mode


def spectral(network: Network, x: dict[int, np.ndarray], i: int, j: int) -> np.ndarray:
    v = slowest_mode(network)
    rows = np.array([x[k] for k in network.regular.tolist()])
    result: np.ndarray = x[i] + v[network.regular.tolist().index(i)] * (v @ rows)
    return result


def most_aligned(network: Network, x: dict[int, np.ndarray], i: int, j: int) -> np.ndarray:
    rows = np.array([x[k] for k in network.regular.tolist()])
    apart = rows - rows.mean(0)
    direction = np.linalg.svd(apart)[2][0]
    result: np.ndarray = rows[np.abs(apart @ direction).argmax()]
    return result


DEFINITIONS: dict[str, Definition] = {
    "dissensus": dissensus,
    "zero-sum": zero_sum,
    "ipm": ipm,
    "alie": alie,
    "spectral": spectral,
    "mimic": most_aligned,
    "silence": lambda network, x, i, j: x[i],
    "none": lambda network, x, i, j: x[j],
    "label-flipping": lambda network, x, i, j: x[j],
    "bit-flipping": lambda network, x, i, j: -x[j],
    "non-finite": lambda network, x, i, j: np.full(D, np.nan),
}


@pytest.mark.parametrize("name", DEFINITIONS)
@networks
def test_messages_equal_the_definition(name: str, network: Network) -> None:
    x = dict(enumerate(models_of(network).numpy()))
    for (j, i), message in sent(make_attack(name), view_of(network)).items():
        assert_near(message, DEFINITIONS[name](network, x, i, j))


def test_every_attack_has_its_definition_tested() -> None:
    assert set(ATTACKS) - set(DEFINITIONS) == {"gaussian", "tuned"}


@attacks
@networks
def test_same_seed_same_messages(attack: Attack, network: Network) -> None:
    first, second = (sent(attack, view_of(network, seed=3)) for _ in range(2))
    for edge in first:
        np.testing.assert_array_equal(first[edge], second[edge])


def test_noise_differs_by_seed_round_and_edge() -> None:
    network = broadcaster()
    first = sent(Gaussian(), view_of(network))
    for other in (view_of(network, seed=1), view_of(network, round=1)):
        assert all(not np.allclose(message, first[edge]) for edge, message in sent(Gaussian(), other).items())
    x = models_of(network).numpy()
    noise = [message - x[i] for (_, i), message in first.items()]
    assert len({tuple(row.round(9)) for row in noise}) == len(noise)
    assert 0.5 < np.std(noise) < 1.5


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if isinstance(case, LinearAttack)])
@networks
def test_sparse_dense_and_written_out_are_one(
    name: str, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    attack, view = CASES[name], view_of(network)
    assert isinstance(attack, LinearAttack)
    by_table = attack.table(view) @ view.models
    assert_near(attack.messages(view), by_table)
    monkeypatch.setattr(base, "DENSE", 0)
    assert_near(attack.messages(view), by_table)


@pytest.mark.parametrize("name", RULES)
def test_every_rule_stays_finite_under_every_attack(name: str) -> None:
    rule = sample_rule(name)
    network = Network(nx.complete_graph(9), byzantine=[3, 8])
    for label, attack in CASES.items():
        if attack.flips_labels:  # there are none
            continue
        *_, last = consensus(network, rule, models_of(network), attack=attack, rounds=2)
        assert torch.isfinite(last.models).all(), label


@attacks
def test_without_byzantine_nodes_an_attack_is_nothing(attack: Attack) -> None:
    network = Network(nx.cycle_graph(6))
    *_, attacked = consensus(network, Gossip(), models_of(network), attack=attack, rounds=3)
    *_, free = consensus(network, Gossip(), models_of(network), rounds=3)
    assert_near(attacked.models, free.models)


class Broken(base.LocalAttack):
    """A user's own, whose arithmetic went wrong."""

    def coefficients(self, view: View) -> torch.Tensor:
        return view.among * torch.nan


@pytest.mark.parametrize("name", RULES)
def test_coefficients_that_are_not_finite_count_as_missing(name: str) -> None:
    network = Network(nx.complete_graph(9), byzantine=[3, 8])
    *_, broken = consensus(network, sample_rule(name), models_of(network), attack=Broken(), rounds=2)
    *_, silent = consensus(network, sample_rule(name), models_of(network), attack=NonFinite(), rounds=2)
    assert_near(broken.models, silent.models)


@pytest.mark.parametrize("name", [name for name, attack in ATTACKS.items() if attack.strength])
def test_a_strength_is_a_number(name: str) -> None:
    strength = ATTACKS[name].strength
    assert strength is not None
    with pytest.raises(AttackError, match=f"{strength} is nan; it must be a finite number"):
        make_attack(name, **{strength: math.nan})


def test_honest_byzantine_nodes_are_just_nodes() -> None:
    """`none` on any network is gossip with the full W."""
    network = colluders()
    start = models_of(network)
    *_, last = consensus(network, Gossip(), start, attack=make_attack("none"), rounds=5)
    full = torch.tensor(np.linalg.matrix_power(np.asarray(network.weights), 5)) @ start
    assert_near(last.models, full[network.regular.tolist()])


@pytest.mark.parametrize(
    ("regular", "byzantine", "z"), [(4, 1, 0.0), (3, 2, 0.4307), (8, 3, 0.3186), (3, 5, 3.0902)]
)
def test_z_of_a_little_is_enough(regular: int, byzantine: int, z: float) -> None:
    """With s = ⌊n/2+1⌋−b. (3, 5): Byzantine nodes are the majority, so z is capped."""
    graph = nx.complete_graph(regular)
    graph.add_edges_from((0, regular + k) for k in range(byzantine))
    network = Network(graph, byzantine=range(regular, regular + byzantine))
    x = models_of(network).numpy()[:regular]
    expected = x.mean(0) - z * x.std(0)
    for message in sent(ALIE(), view_of(network)).values():
        half = 5e-5 * x.std(0).max()  # of the last digit of z
        np.testing.assert_allclose(message, expected, atol=half)
    for message in sent(ALIE(z=10), view_of(network)).values():
        assert_near(message, x.mean(0) - 10 * x.std(0))


@pytest.mark.parametrize(
    "attack",
    [Dissensus(), IPM(), ALIE(), SpectralHeterogeneity(), Gaussian(), Dissensus(epsilon=1e4)],
    ids=repr,
)
@pytest.mark.parametrize("rule", [Gossip(), ClippedGossip(1.0), TrimmedMean(trim=1)], ids=repr)
def test_tuned_is_at_least_as_harmful_as_its_grid_and_as_the_attack_itself(
    attack: Attack, rule: Rule
) -> None:
    view = view_of(colluders(), rule=rule)
    tuned = Tuned(attack, low=0.1, high=10, steps=3)
    worst = tuned.harm(view, tuned.best(view))
    assert all(worst >= tuned.harm(view, sign * size) for size in (0.1, 1.0, 10.0) for sign in (1, -1))
    mean = view.models.mean(0)
    plain = rule.mix(attack.inbox(view)).sub(mean).square().sum(1).mean()
    assert worst >= float(plain)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Tuned(Mimic()), "Mimic has no strength"),
        (lambda: Tuned(IPM(), low=2, high=1), "0 < low < high"),
        (lambda: Tuned(IPM(), steps=1), "at least 2"),
        (lambda: sent(Mimic(target=99), view_of(pendants())), "0 to 4"),
        (lambda: make_attack("disensus"), "did you mean 'dissensus'"),
        (lambda: make_attack("dissensus", epsilom=1), "did you mean 'epsilon'"),
        (lambda: make_attack("tuned"), "needs a value for attack"),
    ],
)
def test_errors_say_what_is_wrong(make: Callable[[], object], says: str) -> None:
    with pytest.raises(AttackError, match=says):
        make()


BIG = torch.finfo(torch.float32).max
BEYOND: dict[str, tuple[Attack, float]] = {
    "alie": (ALIE(z=1e60), 1.0),
    "ipm": (IPM(epsilon=1e39), 1.0),
    "ipm, far": (IPM(epsilon=-1e300), 1.0),
    "dissensus": (Dissensus(epsilon=1e39), 1.0),
    "dissensus of models near the largest": (Dissensus(), BIG / 4),
    "zero-sum of them": (ZeroSum(), BIG / 4),
    "spectral": (SpectralHeterogeneity(c=1e39), 1.0),
    "spectral, far": (SpectralHeterogeneity(c=1e200), 1.0),
}
"""Attacks, and how long the models are, whose messages are beyond float32 in some elements."""


@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("network", [colluders(), large()], ids=["colluders", "large"])
def test_what_is_beyond_the_type_is_sent_as_its_largest_number(name: str, network: Network) -> None:
    attack, size = BEYOND[name]
    assert isinstance(attack, FreeAttack)
    wide = view_of(network)
    wide = replace(wide, models=(size * wide.models).float().double())
    view = replace(wide, models=wide.models.float())
    exact = attack.messages(wide)
    assert bool((exact.abs() > BIG).any())
    right = exact.clamp(-BIG, BIG).float()
    inbox = attack.inbox(view).explicit()
    assert inbox.extra is not None
    for found in (inbox.extra, attack.sent(view)):
        assert bool((found[exact.abs() > 1.001 * BIG].abs() == BIG).all())
        assert_near(found, right, dtype=torch.float32)
        assert bool((found.sign() == right.sign()).all())
    for rule in (Gossip(), ClippedGossip(1.0), TrimmedMean(trim=1)):
        mixed, written = rule.mix(attack.inbox(view)), rule.mix(replace(inbox, extra=right))
        assert bool(torch.isfinite(mixed).all())
        assert_near(mixed, written, dtype=torch.float32)
    half = attack.sent(view, torch.float16)
    assert half.dtype == torch.float16
    assert torch.equal(half, right.clamp(-65504, 65504).half())


@pytest.mark.gpu
@pytest.mark.parametrize("name", BEYOND)
@pytest.mark.parametrize("network", [colluders(), large()], ids=["colluders", "large"])
def test_it_is_so_on_a_gpu_in_a_captured_round(name: str, network: Network) -> None:
    attack, size = BEYOND[name]
    assert isinstance(attack, FreeAttack)
    models = (size * view_of(network).models).float()
    here, there = (
        View(network=network, layout=Layout.of(network, device), models=models.to(device))
        for device in ("cpu", "cuda")
    )

    def work() -> tuple[Tensor, Tensor]:
        written = attack.inbox(there).explicit().extra
        assert written is not None
        return written, attack.sent(there)

    work()  # constants are copied to the device before
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    graph.replay()
    for found in captured:
        assert_near(found.cpu(), attack.sent(here), dtype=torch.float32)


@pytest.mark.parametrize("std", [1e37, 1e39, 1e60, 1e300])
def test_noise_beyond_the_type_is_sent_as_its_largest_number(std: float) -> None:
    view = view_of(colluders())
    view = replace(view, models=torch.zeros(len(view.models), 2000))
    noise = Gaussian(std=1.0).sent(view).double()
    right = (std * noise).clamp(-BIG, BIG).float()
    for strength in (std, torch.tensor(std, dtype=torch.float64)):
        assert_near(Gaussian(std=strength).sent(view), right, dtype=torch.float32)  # type: ignore[arg-type]  # as a search gives it


def test_the_same_in_float64() -> None:
    most = torch.finfo(torch.float64).max
    view = view_of(colluders())
    view = replace(view, models=1000 * view.models)
    exact = -1e307 * np.asarray(IPM(epsilon=-1.0).sent(view), dtype=np.longdouble)
    right = np.clip(exact, -most, most).astype(np.float64)
    assert 0 < (np.abs(right) == most).sum() < right.size
    found = IPM(epsilon=1e307).inbox(view).explicit().extra
    assert_near(found / most, right / most)  # type: ignore[operator]  # it is written out


def test_an_infinite_message_of_its_own_is_missing() -> None:
    network = Network(nx.complete_graph(9), byzantine=[3, 8])
    *_, infinite = consensus(network, Gossip(), models_of(network), attack=NonFinite(math.inf), rounds=2)
    *_, silent = consensus(network, Gossip(), models_of(network), attack=make_attack("silence"), rounds=2)
    assert_near(infinite.models, silent.models)


class Own(LinearAttack):
    """A user's own: minus the receiver's model, in float32, or something wrong."""

    def table(self, view: View) -> Tensor:
        return -torch.eye(len(view.models))[view.receivers]

    def messages(self, view: View) -> Tensor:
        return -view.models[view.receivers]


class OwnLocal(base.LocalAttack):
    def coefficients(self, view: View) -> Tensor:
        return torch.cat([-torch.ones(len(view.receivers), 1), torch.zeros(view.neighbors.shape)], 1)


@pytest.mark.parametrize("attack", [Own(), OwnLocal()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@networks
def test_coefficients_may_be_float32(attack: LinearAttack, dtype: torch.dtype, network: Network) -> None:
    view = view_of(network)
    view = replace(view, models=view.models.to(dtype))
    for rule in (Gossip(), ClippedGossip(1.0), TrimmedMean(trim=1)):
        written = Inbox(layout=view.layout, models=view.models, extra=-view.models[view.receivers])
        assert_near(rule.mix(attack.inbox(view)), rule.mix(written), dtype=dtype)


@pytest.mark.parametrize("attack", [Own, OwnLocal])
@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        (torch.zeros(2, 3), r"torch.float32 of shape \(2, 3\)"),
        (torch.zeros(18, 11, dtype=torch.int64), r"torch.int64 of shape \(18, 11\)"),
        (None, "NoneType"),
    ],
)
def test_wrong_coefficients_are_named(
    attack: type[LinearAttack], wrong: Tensor | None, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = "table" if attack is Own else "coefficients"
    monkeypatch.setattr(attack, method, lambda self, view: wrong)
    with pytest.raises(AttackError, match=f"^the coefficients of {attack.__name__} are {what}\ngive float"):
        attack().inbox(view_of(colluders()))


def test_alie_keeps_its_digits_where_neighbours_nearly_agree() -> None:
    network = Network(nx.complete_graph(8), byzantine=[7])
    models = 100 + 1e-3 * torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    layout = Layout.of(network)
    inbox = ALIE(z=1.0).inbox(View(network=network, layout=layout, models=models))
    assert inbox.extra is not None
    exact = models.double().mean(0) - models.double().std(0, unbiased=False)
    assert_near(inbox.extra[0].double(), exact, roundings=1, dtype=torch.float32)
