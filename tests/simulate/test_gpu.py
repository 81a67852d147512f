"""The GPU gives what the CPU gives. Skipped where there is none."""

import os
import subprocess
import sys
import warnings
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from clippedgossip import graphs
from clippedgossip.attacks import ATTACKS, make_attack
from clippedgossip.devices import uncollected
from clippedgossip.errors import RunError
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules import (
    Bucketing,
    ClippedGossip,
    CoordinateRule,
    GeometricMedian,
    Median,
    Mozi,
    Rule,
    TrimmedMean,
)
from clippedgossip.simulate import Moment, Setup, Training, train, train_together
from clippedgossip.simulate.engine import Stack, set_product_precision
from clippedgossip.step import SGD, LearningRate
from clippedgossip.tasks import DataSet, make_task, partition
from clippedgossip.tasks.module_function import ModuleFunction
from clippedgossip.tasks.objective import Loss, mean_metric
from tests.ahead import Ahead
from tests.rounding import assert_near, sums, trained
from tests.rules.test_rules_contract import CASES
from tests.simulate.distributed import distributed_cases as cases

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("error:a CUDA graph cannot hold")]


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    yield
    torch.set_float32_matmul_precision("highest")  # a run with TF32 leaves it on


@pytest.mark.parametrize("rule", CASES.values(), ids=CASES)
@pytest.mark.parametrize("shape", ["few rows", "many rows"])
def test_rules_near_consensus_beside_a_huge_lie_and_nan(rule: Rule, shape: str) -> None:
    graph = nx.complete_graph(12) if shape == "few rows" else nx.random_regular_graph(6, 150, seed=1)
    network = Network(graph, byzantine=[3, 7])
    generator = torch.Generator().manual_seed(0)
    d = 4999  # rows that do not start on word boundaries
    n = len(network.regular)
    models = torch.randn(d, generator=generator) + 1e-4 * torch.randn(n, d, generator=generator)
    layout = Layout.of(network)
    assert layout.byzantine is not None
    lies = torch.randn(int(layout.byzantine.sum()), d, generator=generator)
    lies *= 1e6 / lies.norm(dim=1, keepdim=True)
    lies[1] = torch.nan
    context = Context(rounds=10)
    exact = rule.mix(Inbox(layout=layout, models=models.double(), extra=lies.double(), context=context))
    on_gpu = Inbox(
        layout=Layout.of(network, "cuda"), models=models.cuda(), extra=lies.cuda(), context=context
    )
    found = rule.mix(on_gpu).cpu().double()
    moved = (exact - models.double()).norm(dim=1)
    # A distance is off by a unit of rounding of the longer model, and with it each coefficient. Two models
    # are √2·1e-4 of their length apart.
    unit = torch.finfo(torch.float32).eps
    off = unit / (2**0.5 * 1e-4) * moved + 8 * unit * exact.norm(dim=1)
    assert ((found - exact).norm(dim=1) <= off).all()


@pytest.mark.parametrize("nodes", [2, 3, 8, 33, 40])
@pytest.mark.parametrize("rule", [TrimmedMean(trim=0), Median()], ids=repr)
def test_means_of_the_middle_agree_with_the_cpu(rule: Rule, nodes: int) -> None:
    """In registers, and sorted in memory where a node has more values than fit there."""
    network = Network(nx.complete_graph(nodes))
    models = torch.randn(nodes, 4999, generator=torch.Generator().manual_seed(0))
    models[0, 2] = torch.nan
    models[1, :2] = torch.tensor([3.4e38, -3.4e38])
    expected = rule.mix(Inbox(layout=Layout.of(network), models=models))
    found = rule.mix(Inbox(layout=Layout.of(network, "cuda"), models=models.cuda())).cpu()
    for column in (slice(0, 2), slice(2, None)):  # the largest numbers have a rounding of their own
        assert_near(found[:, column], expected[:, column], roundings=sums(nodes))


LONGEST = 288
"""Terms of the longest sum in `setup`: a weight of the first convolution gets 36 products from each of 8
images, and a number of the second one has 9 from each of 32 channels."""


def assert_alike(there: Moment, here: Moment) -> None:
    models, expected = (moment.state().tensors["models"].cpu() for moment in (there, here))
    assert_near(models, expected, roundings=trained(6, of=LONGEST))


def setup(rule: Rule, attack: str | None, model: str | nn.Module, precision: str = "float32") -> Setup:
    network = Network(graphs.dumbbell(clique=3), byzantine=[] if attack is None else [0])
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 4
    inputs = torch.randn(4, 1, 8, 8, generator=generator)[labels] + torch.randn(
        200, 1, 8, 8, generator=generator
    )
    data = DataSet.of(inputs, labels, inputs[:100], labels[:100])
    chosen = None if attack is None else make_attack(attack)
    nodes = [*network.regular.tolist(), *(network.byzantine.tolist() if chosen and chosen.trains else [])]
    task = make_task(data, partition(labels, len(nodes), "iid", seed=0), model, seed=0, batch=8, nodes=nodes)
    training = Training(
        rounds=6,
        evaluate_every=3,
        lr=LearningRate(initial=0.05),
        precision=precision,  # type: ignore[arg-type]  # one of the names
    )
    return Setup(network=network, task=task, rule=rule, attack=chosen, training=training)


@pytest.mark.parametrize("rule", [ClippedGossip(radius=0.1), GeometricMedian(), Median(), Mozi()])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_training_agrees_with_the_cpu(rule: Rule, model: str) -> None:
    *_, here = train(setup(rule, None, model))
    *_, there = train(setup(rule, None, model), device="cuda")
    assert_alike(there, here)


class Residual(nn.Module):
    """One that cannot be stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.flatten(1)
        return self.last(x + torch.relu(self.first(x)))  # type: ignore[no-any-return]  # a module's call returns Any


class OfFloat32(Residual):
    """One that makes float32 numbers itself, which weights of another type refuse."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(torch.float32))


def test_a_module_that_takes_no_bfloat16_is_refused_before_round_one() -> None:
    run = setup(ClippedGossip(radius=0.1), None, OfFloat32(), "bfloat16")
    with pytest.raises(
        RunError, match=r"(?s)OfFloat32.* before round 1.*computes in bfloat16.*take precision tf32"
    ):
        next(train(run, device="cuda"))


def pooled() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize("make", [Residual, OfFloat32, pooled])
def test_a_module_of_one_s_own_trains_as_on_the_cpu(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    run = setup(ClippedGossip(radius=0.1), "alie", make())
    *_, here = train(run)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*worker by worker.*")
        *_, there = train(run, device="cuda")
    assert_alike(there, here)


def test_a_loss_with_tensors_trains_as_on_the_cpu() -> None:
    """A module goes to the GPU; of what a closure holds, nobody knows."""
    run, weights = setup(ClippedGossip(radius=0.1), None, "mlp"), torch.tensor([1.0, 2.0, 3.0, 4.0])
    run = replace(run, task=replace(run.task, loss=Loss(nn.CrossEntropyLoss(weight=weights))))
    *_, here = train(run)
    *_, there = train(run, device="cuda")
    assert_alike(there, here)
    closure = Loss(lambda outputs, y: nn.functional.cross_entropy(outputs, y, weight=weights))
    with pytest.raises(RunError, match=r"it holds a tensor elsewhere"):
        next(train(replace(run, task=replace(run.task, loss=closure)), device="cuda"))


def by_numpy(outputs: torch.Tensor, y: torch.Tensor) -> Any:
    return np.mean(outputs.argmax(1).cpu().numpy() == y.cpu().numpy())


def by_python(outputs: torch.Tensor, y: torch.Tensor) -> Any:
    return sum(outputs.argmax(1).eq(y).tolist()) / len(y)


def on_the_cpu(outputs: torch.Tensor, y: torch.Tensor) -> Any:
    return outputs.argmax(1).eq(y).float().mean().cpu()


@pytest.mark.parametrize("function", [by_numpy, by_python, on_the_cpu])
def test_a_metric_may_give_a_number_of_the_host(function: Callable[..., Any]) -> None:
    run = setup(ClippedGossip(radius=0.1), None, "mlp")
    own = replace(run, task=replace(run.task, metric=mean_metric("own", function)))
    usual, found = (list(train(one, device="cuda"))[-1].record for one in (run, own))
    assert usual is not None
    assert found is not None
    assert found.score == pytest.approx(usual.score)


class Scaled(SGD):
    """Its number is no field, so that all are equal."""

    def __init__(self, times: float) -> None:
        super().__init__()
        object.__setattr__(self, "times", times)

    def step(self, x: Any, g: Any, held: Any, lr: Any, numbers: Any) -> Any:
        return x - lr * vars(self)["times"] * g


def test_an_optimizer_of_one_s_own_is_compiled_for_itself() -> None:
    for times in (1.0, 3.0):
        run = setup(ClippedGossip(radius=0.1), None, "mlp")
        run = replace(run, training=replace(run.training, optimizer=Scaled(times)))
        *_, here = train(run)
        *_, there = train(run, device="cuda")
        assert_alike(there, here)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_what_is_compiled_is_found_right(model: str, precision: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*wrongly.*")
        for _ in train(setup(ClippedGossip(radius=0.1), None, model, precision), device="cuda"):
            pass


@pytest.mark.gpu("time for so many rounds")
@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_stacks_of_many_sizes_train_rightly_one_after_the_other(precision: str) -> None:
    """What is compiled for one size is compiled anew for the next, for any size then; and models that have
    learnt, each clique its own classes, are another matter for a compiler than those at the start."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*wrongly.*")
        for cliques in ((6, 6, 6), (6, 3), (3,), (5, 4)):
            *_, last = train_together([by_clique(clique, precision) for clique in cliques], device="cuda")
            for clique, there in zip(cliques, last, strict=True):
                assert there.record is not None
                wanted = distance_on_a_cpu(clique)
                # Of a square, over 64 rounds: 2·√64 units of rounding are 0.06 (2⁻⁸ in bfloat16) and 0.008
                # (2⁻¹¹ in TF32). A ReLU that rounding switches adds to it, in float32 too.
                assert there.record.consensus_distance == pytest.approx(
                    wanted, rel=0.1 if precision == "bfloat16" else 0.02
                )


@cache
def distance_on_a_cpu(clique: int) -> float:
    *_, last = train(by_clique(clique, "float32"))
    assert last.record is not None
    assert last.record.consensus_distance is not None
    return last.record.consensus_distance


def test_a_run_that_is_over_leaves_its_memory_to_the_next() -> None:
    """Its CUDA graphs refer to it: it would stay until Python looks for garbage."""
    with uncollected():
        stack = Stack([setup(ClippedGossip(radius=0.1), None, "mlp")], "cuda")
        stack.advance()
        over = weakref.ref(stack)
        del stack
        assert over() is not None
        Stack([setup(ClippedGossip(radius=0.1), None, "mlp")], "cuda")
        assert over() is None


def by_clique(clique: int, precision: str) -> Setup:
    """64 rounds on images, half of whose classes each clique has."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(2000) % 4
    inputs = 0.5 * torch.randn(4, 1, 8, 8, generator=generator)[labels]
    inputs += torch.randn(2000, 1, 8, 8, generator=generator)
    data = DataSet.of(inputs, labels, inputs[:400], labels[:400], name="four classes")
    groups = [list(range(clique)), list(range(clique, 2 * clique))]
    shares = partition(labels, 2 * clique, "clique", seed=0, groups=groups)
    return Setup(
        network=Network(graphs.dumbbell(clique=clique)),
        task=make_task(data, shares, "cnn", seed=0, batch=16),
        rule=ClippedGossip(radius=1.0),
        training=Training(
            rounds=64,
            evaluate_every=64,
            lr=LearningRate(initial=0.02),
            precision=precision,  # type: ignore[arg-type]  # one of the names
        ),
    )


@pytest.mark.parametrize(("precision", "rounding"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
@pytest.mark.parametrize("shape", [(6, 8, 1, 8), (6, 8, 1, 28), (5, 32, 1, 28), (20, 9, 1, 28), (6, 8, 3, 9)])
def test_compiled_convolutions_agree_with_float64(
    shape: tuple[int, int, int, int], precision: torch.dtype, rounding: float
) -> None:
    """Of few images and many: a compiler treats them differently.

    The layers are smooth: a ReLU or the place of a maximum that rounding switches would change a gradient by
    more than rounding. Without that a CPU is off by at most 3e-7 and 0.007, two units of rounding. Here the
    bounds are 84 and 6 units: a GPU adds up to 21,632 products in another order, and 4 layers round forth and
    back.
    """
    set_product_precision("float32")  # another test may have left TF32
    n, batch, channels, side = shape
    module = nn.Sequential(nn.Conv2d(channels, 8, 3), nn.Tanh(), nn.Conv2d(8, 8, 3), nn.AvgPool2d(2))
    generator = torch.Generator("cuda").manual_seed(0)
    parameters = {
        name: 0.3 * torch.randn(n, *value.shape, device="cuda", generator=generator)
        for name, value in module.named_parameters()
    }
    x = torch.randn(n, batch, channels, side, side, device="cuda", generator=generator)
    loss = Loss(lambda outputs, y: outputs.square().mean())
    function = ModuleFunction(module.cuda(), loss, on_gpu=True)
    keys, none = torch.zeros(n, 4, dtype=torch.int64, device="cuda"), torch.zeros(n, 0, device="cuda")

    def gradients(dtype: torch.dtype, call: Callable[..., Any]) -> list[torch.Tensor]:
        cast = {name: value.to(dtype) for name, value in parameters.items()}
        return list(call(cast, none, keys, {}, x, x)[0])

    exact = gradients(torch.float64, function.gradients)
    torch._dynamo.reset()  # each shape is compiled for itself
    found = gradients(precision, torch.compile(function.gradients))
    for mine, right in zip(found, exact, strict=True):
        assert float((mine - right).norm() / right.norm()) < rounding


@pytest.mark.parametrize("attack", [name for name in ATTACKS if name != "tuned"])
def test_attacked_training_agrees_with_the_cpu(attack: str) -> None:
    rule = ClippedGossip(radius=0.1)
    *_, here = train(setup(rule, attack, "mlp"))
    *_, there = train(setup(rule, attack, "mlp"), device="cuda")
    assert_alike(there, here)


def test_capturable_attacks_on_a_large_sparse_network_agree_with_the_cpu() -> None:
    """Together, and captured: messages are made edge by edge there."""
    names = [name for name in cases.ATTACK_CASES if name != "tuned"]
    runs = [cases.setup("clipped-gossip", name, network=cases.sparse()) for name in names]
    *_, here = train_together(runs)
    *_, there = train_together(runs, device="cuda")
    for name, ours, theirs in zip(names, here, there, strict=True):
        models, expected = (moment.state().tensors["models"].cpu() for moment in (theirs, ours))
        assert_near(models, expected, roundings=trained(2, of=cases.LONGEST), told=name)


def test_two_gpu_runs_give_the_same_bytes() -> None:
    rule = TrimmedMean(trim=1)
    assert isinstance(rule, CoordinateRule)
    first, second = (list(train(setup(rule, "alie", "cnn", "bfloat16"), device="cuda")) for _ in range(2))
    assert [str(moment.record) for moment in first] == [str(moment.record) for moment in second]


@pytest.mark.gpu("other processes")
def test_a_process_that_compiles_anew_writes_the_same_bytes(tmp_path: Path) -> None:
    """No form of a kernel is chosen by timing it."""
    changes = ["model=cnn", "training.precision=bfloat16", "training.rounds=12", "device=cuda"]
    found = []
    for place in (tmp_path / "first", tmp_path / "second"):
        empty = {"TORCHINDUCTOR_CACHE_DIR": f"{place}/code", "TRITON_CACHE_DIR": f"{place}/kernels"}
        command = [sys.executable, "-m", "clippedgossip", "run", "examples/ring.toml", *changes]
        subprocess.run([*command, "--out", f"{place}/runs"], check=True, env={**os.environ, **empty})
        found.append([path.read_bytes() for path in place.glob("runs/*/records.jsonl")])
    assert found[0] == found[1] != []


@pytest.mark.gpu("compiler of kernels")
def test_the_first_round_launches_what_was_compiled_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no fake tensor stays behind."""
    ahead = Ahead(tmp_path, monkeypatch)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 61), nn.ReLU(), nn.Linear(61, 4))
    stack = Stack([setup(ClippedGossip(0.1), None, model, "bfloat16")], "cuda")
    stack.advance()
    ahead.assert_found()
    assert not isinstance(stack.mixers[0].layout.own, FakeTensor)


DRAWN = {"name": "random-neighbours", "neighbours": 4}
PHASES = {
    "name": "phases",
    "phases": [{"rounds": 1, "nodes": [0, 1, 2, 3, 4, 5, 6]}, {"rounds": 2}],
}
"""With 0, 6 and 8 neighbours."""


@pytest.mark.parametrize("delay", [None, {"edges": 2}], ids=str)
@pytest.mark.parametrize(
    ("rule", "attack", "schedule", "captured"),
    [
        (ClippedGossip(0.5), "dissensus", DRAWN, True),
        (ClippedGossip(0.5), "label-flipping", DRAWN, True),
        (GeometricMedian(), "alie", DRAWN, True),
        (Median(), "ipm", DRAWN, True),
        (TrimmedMean(trim=1), "gaussian", DRAWN, True),
        (Bucketing(Median()), "ipm", DRAWN, True),
        (Mozi(), "ipm", DRAWN, True),
        (Median(), "ipm", PHASES, True),
        (TrimmedMean(trim=(1, 0, 2, 1, 1, 2, 0, 1, 1)), "ipm", PHASES, True),
        (Bucketing(Median()), "ipm", PHASES, False),
    ],
    ids=str,
)
def test_a_network_that_changes_is_captured_once(
    rule: Rule, attack: str, schedule: Any, captured: bool, delay: dict[str, int] | None
) -> None:
    """And its rounds are those of a CPU."""
    network = Network(nx.complete_graph(9), byzantine=[1, 6], schedule=schedule, delay=delay)
    run = cases.setup(rule, attack, network=network, model="linear", rounds=8, evaluate_every=8)
    stack = Stack([run], "cuda")
    assert stack.mixers[0].capturable is captured
    graphs_seen = set()
    for _ in range(8):
        stack.advance()
        assert stack.captured is not None
        assert stack.captured.replays
        graphs_seen.add(id(stack.captured._graph))
    assert len(graphs_seen) == 1
    *_, last = train(run)
    expected = last.state().tensors["models"]
    assert_near(stack.models.cpu(), expected, roundings=trained(8, of=cases.LONGEST), told=attack)
