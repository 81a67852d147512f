"""Every tier gives the trajectory of a loop of modules in float64: 30 rounds, up to rounding."""

import copy
import random
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MethodType
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from clippedgossip.errors import RunError
from clippedgossip.network import Network
from clippedgossip.randomness import keep_mask, purpose_word
from clippedgossip.rules import ClippedGossip, Gossip
from clippedgossip.simulate import Setup, Training, train, train_together
from clippedgossip.simulate.distributed.ranks import Ranks
from clippedgossip.simulate.distributed.shard import follow, train_distributed
from clippedgossip.step import LearningRate
from clippedgossip.tasks import DataSet, Task, build, flatten, make_task, partition, unflatten
from clippedgossip.tasks.datasets import at, leaves
from clippedgossip.tasks.module_function import (
    REPEATS,
    ShiftedConv,
    activation_cost,
    batched_on_cpu,
    evaluated_at_once,
    evaluation_cost,
    product_cost,
)
from clippedgossip.tasks.objective import called, find_loss, find_metric
from clippedgossip.tasks.workers import Workers, evaluation_bytes
from tests.rounding import assert_near, near
from tests.simulate.distributed import distributed_cases as cases
from tests.tasks.nets import Convolutional, ResNet, Transformer, with_lora

ROUNDS, NODES, BATCH = 30, 4, 4


def images(classes: int = 3) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(96) % classes
    x = 2 * torch.randn(classes, 1, 8, 8, generator=generator)[labels]
    x += torch.randn(96, 1, 8, 8, generator=generator)
    return DataSet.of(x, labels, x[:40], labels[:40], name="images", classes=classes)


def sequences() -> DataSet:
    """Each word follows from the one before it."""
    generator = torch.Generator().manual_seed(0)
    words = [torch.randint(7, (96,), generator=generator)]
    for _ in range(6):
        words.append((3 * words[-1] + 1) % 7)
    text = torch.stack(words, 1)
    targets = text[:, 1:].clone()
    targets[::5, 0] = -100  # not counted
    return DataSet.of(text[:, :-1], targets, text[:40, :-1], targets[:40], name="sequences", classes=7)


def made(kind: str) -> tuple[nn.Module, DataSet]:
    torch.manual_seed(1)
    nets: dict[str, tuple[nn.Module, DataSet]] = {
        "cnn": (Convolutional(), images()),
        "resnet": (ResNet(), images()),
        "batch norm": (ResNet(nn.BatchNorm2d), images()),
        "transformer": (Transformer(), sequences()),
        "lora": (with_lora(Transformer(dropout=0.0)), sequences()),
        "frozen norm": (ResNet(lambda channels: nn.BatchNorm2d(channels).eval()), images()),
    }
    return nets[kind]


def run_of(kind: str, *, rounds: int = ROUNDS, seed: int = 0, **training: Any) -> Setup:
    module, data = made(kind)
    network = Network(nx.cycle_graph(NODES))
    shares = partition(data.labels, NODES, "iid", seed=0)
    loss = "nll" if kind == "cnn" else None
    task = make_task(data, shares, module, seed=seed, batch=BATCH, loss=loss)
    chosen = Training(
        rounds=rounds, evaluate_every=rounds, evaluate_last=0, lr=LearningRate(initial=0.02), **training
    )
    return Setup(network=network, task=task, rule=Gossip(), training=chosen, seed=seed)


class Draws:
    """Dropout by the package's draws, put into a module by hooks."""

    def __init__(self, module: nn.Module, task: Task, node: int) -> None:
        self.calls: dict[int, int] = {}
        self.step = 0
        for place, part in enumerate(module.modules()):
            if isinstance(part, nn.Dropout):
                rate, part.p = part.p, 0.0
                part.register_forward_hook(lambda _, x, y, r=rate, at=place - 1: self(y, at, r, task, node))

    def __call__(self, y: Tensor, place: int, rate: float, task: Task, node: int) -> Tensor:
        call = self.calls[place] = self.calls.get(place, -1) + 1
        kept = keep_mask(
            torch.tensor([task.seed]),
            torch.tensor([node]),
            self.step,
            place + REPEATS * call,
            y.shape[:],
            rate,
        )
        return y * kept[0] / (1 - rate)


def loop(run: Setup) -> tuple[Tensor, list[nn.Module]]:
    """What one writes first, in float64: modules, optimizers, averages."""
    task, workers, weights = run.task, Workers([run.task]), torch.tensor(run.network.weights)
    modules = [copy.deepcopy(task.module).double().train() for _ in range(NODES)]
    draws = [Draws(module, task, node) for node, module in enumerate(modules)]
    trained = [[p for p in module.parameters() if p.requires_grad] for module in modules]
    optimizers = [torch.optim.SGD(part, 0.02, momentum=0.9) for part in trained]
    for round in range(run.training.rounds):
        x, y = workers.draw(workers.shares, round)
        for i, module in enumerate(modules):
            draws[i].step, draws[i].calls = round, {}
            optimizers[i].zero_grad()
            mine = at(x, i)
            outputs = called(module, mine.double() if mine.is_floating_point() else mine)
            loss = functional.nll_loss if isinstance(module, Convolutional) else functional.cross_entropy
            torch.autograd.backward(loss(outputs.flatten(0, -2), y[i].flatten()))
            optimizers[i].step()
        for module, mixed in zip(modules, weights @ torch.stack(list(map(flatten, modules))), strict=True):
            unflatten(mixed, module)
    return torch.stack(list(map(flatten, modules))), modules


@pytest.fixture(params=["vmap", "each"])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Take this tier whatever the rule for CPUs says."""
    find = Workers._find_tier

    def forced(workers: Workers, task: Task) -> Any:
        monkeypatch.setattr("clippedgossip.tasks.workers.batched_on_cpu", lambda module: True)
        find(workers, task)
        assert workers.function.obstacle is None
        return request.param

    monkeypatch.setattr(Workers, "_find_tier", forced)
    return str(request.param)


def assert_follows_the_loop(kind: str, device: str) -> None:
    run = run_of(kind)
    models, modules = loop(run)
    *_, last = train(run, device=device)
    state = {name: tensor.cpu().double() for name, tensor in last.state().tensors.items()}
    # 30 rounds of float32: each rounds by about 1e-7 of the size, and momentum sums ten of them.
    size = models.norm(dim=1)
    assert ((state["models"] - models).norm(dim=1) / size).max() < 2e-5
    if kind == "batch norm":
        held = [torch.cat([b.flatten().double() for b in module.buffers()]) for module in modules]
        assert_near(state["buffers"], torch.stack(held), roundings=10, dtype=torch.float32)


KINDS = ["cnn", "resnet", "batch norm", "transformer", "lora"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_tier_gives_the_loop_of_modules(kind: str, tier: str) -> None:
    assert_follows_the_loop(kind, "cpu")


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_loop_of_modules(kind: str) -> None:
    """Compiled and captured, in float32."""
    assert_follows_the_loop(kind, "cuda")


@pytest.mark.parametrize("kind", ["cnn", "transformer"])
def test_a_tier_takes_products_in_the_precision_asked_for(kind: str, tier: str) -> None:
    """One step with bfloat16 is that with float32, off by the rounding of bfloat16."""
    start = flatten(run_of(kind).task.module).double()
    steps = {
        precision: [*train(run_of(kind, rounds=1, precision=precision))][-1]
        .state()
        .tensors["models"]
        .double()
        - start
        for precision in ("float32", "tf32", "bfloat16")
    }
    assert torch.equal(steps["tf32"], steps["float32"])  # of a GPU alone
    off = (steps["bfloat16"] - steps["float32"]).norm(dim=1) / steps["float32"].norm(dim=1)
    unit = torch.finfo(torch.bfloat16).eps
    assert ((off > unit / 8) & (off < 16 * unit)).all(), off / unit


def test_runs_in_one_stack_give_what_they_give_alone(tier: str) -> None:
    runs = [run_of("batch norm", rounds=4, seed=seed) for seed in (0, 1)]
    together = list(train_together(runs))[-1]
    for run, moment in zip(runs, together, strict=True):
        *_, alone = train(run)
        held, right = moment.state().tensors, alone.state().tensors
        assert torch.equal(held["drawn"], right.pop("drawn"))
        for name, tensor in right.items():
            assert_near(held[name], tensor, told=name)
        assert moment.record is not None
        assert alone.record is not None
        assert moment.record.score == alone.record.score


def test_a_run_with_buffers_resumes_to_the_same_bytes(tier: str) -> None:
    moments = [(moment.record, moment.state()) for moment in train(run_of("batch norm", rounds=6))]
    *_, (record, end) = moments
    *_, last = train(run_of("batch norm", rounds=6), state=moments[2][1])
    assert last.record == record
    assert all(torch.equal(tensor, end.tensors[name]) for name, tensor in last.state().tensors.items())


@pytest.mark.parametrize(("channels", "last"), [(4, False), (8, True)])
def test_narrow_kernels_of_one_pixel_get_no_images_channels_last(channels: int, last: bool) -> None:
    """On a CPU with AVX2 alone, oneDNN writes the gradient of such a kernel past its memory."""
    x, y = torch.randn(8, 2, 6, 6), torch.arange(8) % 3
    module = nn.Sequential(
        nn.Conv2d(2, channels, 3), nn.Conv2d(channels, 8, 1, 2), nn.Flatten(), nn.Linear(32, 3)
    )
    task = make_task(DataSet.of(x, y, x, y), partition(y, 2, seed=0), module, seed=0, batch=4)
    workers = Workers([task])
    given: list[Tensor] = []
    workers.function.module[1].register_forward_pre_hook(lambda _, inputs: given.extend(inputs))  # type: ignore[index]  # a sequence
    models = task.initial().expand(2, -1).clone()
    workers.gradients(workers.shares, models, workers.initial_buffers(), *workers.draw(workers.shares, 0), 0)
    assert [images.is_contiguous(memory_format=torch.channels_last) for images in given] == [last, last]


@pytest.mark.parametrize("kind", ["cnn", "resnet", "batch norm", "transformer", "lora", "frozen norm"])
def test_what_is_compiled_is_one_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that the compiler leaves out is neither fused nor, if it reads a host's value, captured."""
    monkeypatch.setattr("clippedgossip.tasks.workers.batched_on_cpu", lambda module: True)
    workers = Workers([run_of(kind).task])
    workers.function.looks_up = False  # tokens are compared with the rows of an embedding on a CPU alone
    shares, models = workers.shares, workers.task.initial().expand(NODES, -1).clone()
    x, y = workers.draw(shares, 0)
    start, buffers = torch.tensor(0), workers.initial_buffers()
    torch._dynamo.reset()  # it counts what other tests compiled
    torch.compiler.assume_constant_result(purpose_word)  # type: ignore[no-untyped-call]  # of PyTorch
    for name, given in {
        "draw": (start,),
        "gradients": (models, buffers, x, y, start),
        "losses_of": (models, x, y),
        "sums": (models[0], buffers[0], at(x, 0), at(y, 0)),
    }.items():
        plain: Callable[..., Any] = getattr(workers, name)
        call: Callable[..., Any] = torch.compile(plain, backend="eager", fullgraph=True, dynamic=False)
        for found, right in zip(leaves(call(shares, *given)), leaves(plain(shares, *given)), strict=True):
            if right.numel():  # of buffers that a model does not have
                assert_near(found.double(), right.double(), dtype=torch.float32)


@pytest.mark.parametrize("kind", ["cnn", "batch norm", "transformer"])
def test_what_earlier_workers_compiled_serves_later_ones(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Methods are compiled once for all runs of a kind; dropout must be off in the tests of each run."""
    monkeypatch.setattr("clippedgossip.tasks.workers.batched_on_cpu", lambda module: True)  # as on a GPU
    task = run_of(kind).task
    task = replace(task, metric=find_metric("loss", task.loss, task.data.classes))
    earlier, later = Workers([task]), Workers([copy.deepcopy(task)])
    models = task.initial().expand(NODES, -1)
    batch = later.shares, models, *later.draw(later.shares, 0)
    right, losses = later.measures(models), later.losses_of(*batch)
    for name in ("sums", "losses_of"):
        method = torch.compile(getattr(earlier, name), backend="eager", dynamic=False)
        monkeypatch.setattr(later, name, method)
    for _ in range(2):
        assert_near(later.measures(models), right)
        assert_near(later.losses_of(*batch), losses)


def test_the_rule_for_a_cpu_depends_on_the_model_alone() -> None:
    tiers = {kind: Workers([run_of(kind).task]).tier for kind in ("cnn", "resnet", "transformer", "lora")}
    assert tiers == {"cnn": "each", "resnet": "each", "transformer": "vmap", "lora": "vmap"}
    dense = nn.Sequential(nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 3))
    assert batched_on_cpu(dense)
    assert not batched_on_cpu(nn.Sequential(dense, nn.LayerNorm(3)))
    assert not batched_on_cpu(nn.Linear(800, 800)), "a weight this large is read from memory in any case"


class Guesses(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        noise = torch.rand(len(x), 3) + random.random() + float(np.random.rand())
        return super().forward(x) + 3 * noise


def test_all_models_are_tested_with_the_same_random_numbers_and_none_of_the_caller_s() -> None:
    def drawn() -> tuple[float, float, float]:
        return float(torch.rand(())), random.random(), float(np.random.rand())

    def seeded() -> None:
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 5, generator=generator), torch.arange(40) % 3
    data = DataSet(name="some", train_x=x, train_y=y, test_x=x, test_y=y, classes=3)
    workers = Workers([make_task(data, [torch.arange(40)], Guesses(5, 3), seed=0, batch=8)])
    model = torch.randn(1, 18, generator=generator)
    seeded()
    first, second, other = workers.measures(torch.cat([model, model, -model]))
    found = drawn()
    seeded()
    assert found == drawn()
    assert torch.equal(first, second)
    assert not torch.equal(first, other)


class Noisy(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.dropout(x, 0.5, self.training))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x[:, None])[0][:, -1])  # type: ignore[no-any-return]  # a module's call returns Any


class Reads(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * (1.0 if float(x.sum()) > -1e9 else 0.0)


class Skips(nn.Linear):
    """Stochastic depth, drawn as many write it."""

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.training and (random.random() < 0.5) != (np.random.rand() < 0.5)
        return super().forward(x * 0 if skipped else x)


@pytest.mark.parametrize(
    ("module", "operation"),
    [
        (Noisy(5, 3), r"random numbers of its own \(functional dropout, nn.AlphaDropout, randn_like"),
        (Recurrent(), "aten::"),
        (Reads(5, 3), "item"),
        (Skips(5, 3), "random numbers of Python"),
    ],
)
def test_what_cannot_be_batched_trains_worker_by_worker_and_says_so(
    module: nn.Module, operation: str
) -> None:
    x, y = torch.randn(40, 5), torch.arange(40) % 3
    data = DataSet.of(x, y, x, y)
    task = make_task(data, partition(y, 4, seed=0), module, seed=0, batch=4)
    training = Training(rounds=3, evaluate_every=3)
    setup = Setup(network=Network(nx.cycle_graph(4)), task=task, rule=ClippedGossip(), training=training)
    with pytest.warns(
        RuntimeWarning, match=f"worker by worker, since vmap cannot batch .*{operation}"
    ) as said:
        records = [moment.record for moment in train(setup)]
    assert len(str(said[0].message).splitlines()) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [moment.record for moment in train(setup)] == records  # its draws are the same again
        warnings.simplefilter("error")  # a peer has one worker
        Workers([make_task(data, [range(40)], module, seed=0, batch=4)])


def test_data_of_another_scale_are_compiled_apart() -> None:
    """What draws and normalises batches is compiled once for all workers of a kind."""
    task = run_of("resnet").task
    scaled = [replace(task.data, mean=torch.tensor([0.0]), std=torch.tensor([std])) for std in (1.0, 2.0)]
    kinds = [Workers([replace(task, data=data)]).kind("draw") for data in (*scaled, scaled[0])]
    assert kinds[0] == kinds[2] != kinds[1]


def test_runs_whose_frozen_parameters_differ_do_not_stack() -> None:
    runs = [run_of("lora", rounds=2), run_of("lora", rounds=2, seed=1)]
    with torch.no_grad():
        next(p for p in runs[1].task.module.parameters() if not p.requires_grad).add_(1)
    with pytest.raises(RunError, match="frozen parameters"):
        list(train_together(runs))


def test_frozen_parameters_are_neither_trained_nor_sent() -> None:
    run = run_of("lora", rounds=3)
    frozen = [p.clone() for p in run.task.module.parameters() if not p.requires_grad]
    *_, last = train(run)
    trainable = sum(p.numel() for p in run.task.module.parameters() if p.requires_grad)
    assert last.state().tensors["models"].shape == (NODES, trainable)
    kept = [p for p in run.task.module.parameters() if not p.requires_grad]
    assert all(torch.equal(a, b) for a, b in zip(frozen, kept, strict=True))


@torch.no_grad()
def test_an_average_is_tested_with_statistics_of_its_own() -> None:
    """As one would do it: the mean over eight batches of the training data, and then the test set."""
    run = run_of("batch norm", rounds=8)
    *_, last = train(run)
    workers, models = Workers([run.task]), last.state().tensors["models"]
    module = unflatten(models.mean(0), copy.deepcopy(run.task.module))
    norms = [part for part in module.modules() if isinstance(part, nn.BatchNorm2d)]
    for part in norms:
        part.reset_running_stats()
        part.momentum = None
    module.train()
    for x in workers.statistics_batches():
        module(x)
    outputs = module.eval()(run.task.data.test_x)
    accuracy = (outputs.argmax(1) == run.task.data.test_y).double().mean()
    assert last.record is not None
    assert last.record.score["all"] == near(float(accuracy))


def test_shifted_images_are_convolutions() -> None:
    generator = torch.Generator().manual_seed(0)
    for options in ({}, {"stride": 2, "padding": 1}, {"stride": (2, 1), "padding": (0, 2), "bias": False}):
        layer = nn.Conv2d(3, 5, (3, 2), **options)
        assert ShiftedConv.fits(layer)
        x = torch.randn(4, 3, 9, 8, generator=generator, requires_grad=True)
        for a, b in zip(*(backwards(part, x) for part in (layer, ShiftedConv(layer))), strict=True):
            assert_near(a, b, roundings=20)
    for other in (nn.Conv2d(4, 4, 3, groups=2), nn.Conv2d(1, 1, 3, padding="same"), nn.Conv1d(1, 1, 3)):
        assert not ShiftedConv.fits(other)


def backwards(part: nn.Module, x: Tensor) -> tuple[Tensor, ...]:
    out = part(x)
    return (out.detach(), *torch.autograd.grad(out.square().sum(), [x, *part.parameters()]))


def test_costs_are_counted_without_computing() -> None:
    """A linear layer of 6 × 4 multiplies and adds 24 times for a sample; its input and ReLU are kept."""
    module = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    x, y = torch.zeros(2, 6), torch.zeros(2, dtype=torch.long)
    given = module, find_loss("cross-entropy"), x, y
    assert product_cost(*given, on_gpu=False) == 2 * (24 + 12)
    kept = activation_cost(*given, on_gpu=False)
    assert 4 * (6 + 4) <= kept <= 4 * (6 + 4 + 4 + 3 + 3 + 3)
    deep = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 900), nn.Linear(900, 900), nn.Linear(900, 3))
    assert activation_cost(deep, *given[1:], on_gpu=False) < 4 * 1.1 * (6 + 4 + 2 * 900 + 9)  # no weights


@pytest.mark.parametrize("kind", ["cnn", "resnet", "batch norm", "transformer"])
def test_activations_count_alike_with_and_without_numbers(kind: str) -> None:
    """A small model is run on numbers, a large one on meta tensors."""
    task = run_of(kind).task
    x, y = task.data.samples(torch.arange(2), task.device)
    state = torch.get_rng_state()
    kept = activation_cost(task.module, task.loss, x, y, on_gpu=False)
    assert torch.equal(torch.get_rng_state(), state)
    assert kept == activation_cost(copy.deepcopy(task.module).to("meta"), task.loss, x, y, on_gpu=False) > 0


class Wide(nn.Linear):
    """Three results of 3·k numbers are held for each sample; with `numbers` it needs a value."""

    def __init__(self, k: int, numbers: bool) -> None:
        super().__init__(5, 3)
        self.spare = nn.Parameter(torch.zeros(60_000 if numbers else 1))  # too large to be tried on numbers
        self.k, self.numbers = k, numbers

    def forward(self, x: Tensor) -> Tensor:
        assert not self.numbers or float(x.sum()) < np.random.rand() + 1e9
        h = super().forward(x)[..., None].expand(-1, -1, self.k) * 1
        for _ in range(3):
            h = (1 + h) - 1
        return h.mean(-1) + 0 * self.spare.sum()


@pytest.mark.parametrize("numbers", [False, True])
@pytest.mark.parametrize(("k", "rows"), [(100, 1000), (100_000, 218)])
def test_large_samples_are_tested_a_few_at_a_time(
    k: int, rows: int, numbers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(1100, 5), torch.arange(1100) % 3
    task = make_task(DataSet.of(x[:9], y[:9], x, y), [range(9)], Wide(k, numbers), seed=0, batch=3)
    np.random.seed(0)
    held, drawn = evaluation_bytes(task), np.random.rand()
    np.random.seed(0)
    assert drawn == np.random.rand()
    assert held == pytest.approx(3 * 3 * 4 * k, rel=0.1)
    assert evaluated_at_once(held, on_gpu=False) == pytest.approx(rows, rel=0.01)
    workers, taken = Workers([task]), list[int]()
    sums = workers.sums

    def noted(*given: Any) -> Tensor:
        taken.append(len(given[-1]))
        return sums(*given)

    monkeypatch.setattr(workers, "sums", noted)
    workers.scores(task.initial()[None])
    assert (sum(taken), max(taken)) == (1100, evaluated_at_once(held, on_gpu=False))


@pytest.mark.parametrize("kind", ["cnn", "resnet", "batch norm", "transformer", "lora"])
def test_usual_samples_are_tested_a_thousand_at_a_time(kind: str) -> None:
    held = evaluation_bytes(run_of(kind).task)
    assert [evaluated_at_once(held, on_gpu=on_gpu) for on_gpu in (False, True)] == [1000, 5000]


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 28, 28)), ("vgg11", (3, 32, 32))])
def test_the_papers_models_are_tested_a_thousand_at_a_time(name: str, shape: tuple[int, ...]) -> None:
    loss = find_loss("cross-entropy")
    given = build(name, shape, 10, seed=0), loss, find_metric("loss", loss, 10)
    held = evaluation_cost(*given, torch.zeros(2, *shape), torch.zeros(2, dtype=torch.long))
    assert 200_000 < held < 600_000
    assert [evaluated_at_once(held, on_gpu=on_gpu) for on_gpu in (False, True)] == [1000, 5000]


def test_what_a_metric_computes_counts() -> None:
    loss = find_loss("cross-entropy")
    given = nn.Linear(4, 9000), loss, torch.zeros(2, 4), torch.zeros(2, dtype=torch.long)
    costs = [
        evaluation_cost(*given[:2], find_metric(name, loss, 9000), *given[2:])
        for name in ("accuracy", "perplexity")
    ]
    assert costs == pytest.approx([4 * 9000, 2 * 4 * 9000], rel=0.01)


def one_by_one(module: nn.Module, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    found = []
    for worker in range(3):
        own = {name: held[worker].clone().requires_grad_() for name, held in parameters.items()}
        outputs = functional_call(module, own, (x[worker],))
        loss = functional.cross_entropy(outputs, y[worker], reduction="sum")
        found.append(torch.autograd.grad(loss, list(own.values())))
    return [torch.stack(pieces) for pieces in zip(*found, strict=True)]


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self:
            h = layer(h)
        return h + x.flatten(1)[:, :4]


class Turned(nn.Linear):
    """A reversed gradient, by a hook on a tensor."""

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        if h.requires_grad:
            h.register_hook(lambda gradient: -gradient)  # type: ignore[no-untyped-call]  # of PyTorch
        return h


class Louder(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def odd_modules() -> dict[str, nn.Module]:
    """Made of layers that the stacked form knows, but not what they seem."""
    relu, square, hooked = nn.ReLU(), nn.Linear(4, 4), nn.Linear(8, 4)
    hooked.register_forward_hook(lambda module, inputs, output: 3 * output)
    replaced = nn.Linear(8, 4)
    vars(replaced)["forward"] = MethodType(lambda self, x: 3 * nn.Linear.forward(self, x), replaced)
    tied = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 4))
    tied[3].weight = tied[1].weight
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 4))
    backwards = nn.Linear(8, 4)
    backwards.register_full_backward_hook(lambda module, before, after: (before[0] / 8,))
    return {
        "an activation twice": nn.Sequential(
            nn.Flatten(), nn.Linear(8, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 4)
        ),
        "a layer twice": nn.Sequential(nn.Flatten(), nn.Linear(8, 4), square, nn.ReLU(), square),
        "tied weights": tied,
        "a sequence of its own kind": Residual(nn.Flatten(), nn.Linear(8, 4)),
        "a layer of its own kind": nn.Sequential(nn.Flatten(), Louder(8, 4)),
        "a hook": nn.Sequential(nn.Flatten(), hooked),
        "a backward hook": nn.Sequential(nn.Flatten(), nn.Linear(8, 8), backwards),
        "a hook on a tensor": nn.Sequential(nn.Flatten(), Turned(8, 4)),
        "another forward": nn.Sequential(nn.Flatten(), replaced),
        "a norm of the weight": nn.Sequential(nn.Flatten(), normed),
        "features of images": nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)),
        "softmax of images": nn.Sequential(nn.LogSoftmax(-1), nn.Flatten(), nn.Linear(8, 4)),
        "softmax over the batch": nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.LogSoftmax(0)),
    }


class Padded(nn.Module):
    """Words with padding, by the function instead of the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Parameter(torch.randn(6, 3)), nn.Linear(9, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(functional.embedding(x, self.table, padding_idx=0).flatten(1))  # type: ignore[no-any-return]  # a module's call


def readers() -> dict[str, nn.Module]:
    """Of words 0 to 5, the first or last of which is padding; most batches tried hold none."""
    return {
        "padding": nn.Sequential(nn.Embedding(6, 3, padding_idx=0), nn.Flatten(), nn.Linear(9, 4)),
        "the last is padding": nn.Sequential(
            nn.Embedding(6, 3, padding_idx=-1), nn.Flatten(), nn.Linear(9, 4)
        ),
        "padding by frequency": nn.Sequential(
            nn.Embedding(6, 3, padding_idx=0, scale_grad_by_freq=True), nn.Flatten(), nn.Linear(9, 4)
        ),
        "padding by a function": Padded(),
    }


@pytest.mark.filterwarnings("ignore:the model trains worker by worker")
@pytest.mark.parametrize("name", [*odd_modules(), *readers()])
def test_a_module_of_ones_own_gets_its_own_gradients(name: str) -> None:
    module = (odd_modules() | readers())[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, 2, 2, generator=generator)
    if name in readers():
        x = torch.randint(6, (40, 3), generator=generator)
        x[:10] = x[:10].clamp(1, 4)  # what is tried first has no padding
    y = torch.arange(40) % 4
    shares = torch.arange(40).chunk(3)
    task = make_task(DataSet.of(x, y, x, y), shares, module, seed=0, batch=5)
    models = task.initial() * torch.tensor([[1.0], [0.5], [2.0]])
    workers = Workers([task])
    inputs, labels = workers.draw(workers.shares, 0)
    buffers = workers.initial_buffers()
    found, _, _ = workers.gradients(workers.shares, models, buffers, inputs, labels, 0)
    parameters = {name: held.clone() for name, held in task.layout.views(models).items()}
    right = one_by_one(module, parameters, inputs, labels)
    whole, wanted = (torch.cat([piece.flatten(1) for piece in pieces], 1) for pieces in (found, right))
    assert_near(whole, wanted / 5)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_give_the_loop_of_modules(size: int, tmp_path: Path) -> None:
    for kind in ("cnn", "resnet", "batch norm", "transformer", "lora"):
        (tmp_path / kind).mkdir()
        models, *_ = cases.together(size, run_kind, kind, folder=tmp_path / kind)
        right, _ = loop(run_of(kind))
        apart = (torch.tensor(models).double() - right).norm(dim=1) / right.norm(dim=1)
        assert apart.max() < 2e-5, kind


def run_kind(ranks: Ranks, kind: str) -> Any:
    """A kind of model over these ranks; rank 0 returns the models."""
    if ranks.rank:
        return follow(lambda: run_of(kind), ranks=ranks)
    *_, last = train_distributed(run_of(kind), ranks=ranks)
    return last.state().tensors["models"].numpy()
