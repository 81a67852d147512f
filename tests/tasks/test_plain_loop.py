"""Any module trains as in a plain loop of modules, or is refused before round one; what a model remembers
between calls is told."""

import copy
import math
import random
from collections import OrderedDict, deque, namedtuple
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import clippedgossip as cg
from clippedgossip.errors import UserError
from clippedgossip.facade import TrainingRun
from clippedgossip.tasks import flatten
from clippedgossip.tasks.objective import called, cross_entropy, find_loss, find_metric
from clippedgossip.tasks.workers import Workers
from tests.rounding import assert_near

pytestmark = pytest.mark.usefixtures("one_thread")
NODES, ROUNDS = 3, 3
LABELS = torch.arange(24) % 3
ROWS = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(24, 2, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def same_models() -> None:
    """In whatever order the tests run."""
    torch.manual_seed(0)


def run(model: Any, x: Tensor = ROWS, **said: Any) -> TrainingRun:
    options: dict[str, Any] = {"rounds": ROUNDS, "batch": 4, "lr": 0.1, "evaluate_every": 1, "rule": "gossip"}
    data = (x, LABELS, x[:5], LABELS[:5])
    network = cg.Network(nx.complete_graph(NODES))
    return cg.train(network, data, model, device="cpu", progress=False, **{**options, **said})


def loop(found: TrainingRun, model: nn.Module, loss: Callable[..., Tensor]) -> list[nn.Module]:
    """Modules, optimizers, averages."""
    workers = Workers([found.setup.task])
    modules = [copy.deepcopy(model).train() for _ in range(NODES)]
    trained = [[p for p in module.parameters() if p.requires_grad] for module in modules]
    optimizers = [torch.optim.SGD(part, 0.1, momentum=0.9) for part in trained]
    for round in range(ROUNDS):
        x, y = workers.draw(workers.shares, round)
        for i, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            optimizer.zero_grad()
            torch.autograd.backward(loss(called(module, x[i]), y[i]))
            optimizer.step()
        with torch.no_grad():
            for parts in zip(*trained, strict=True):
                mean = torch.stack(list(parts)).mean(0)
                for part in parts:
                    part.copy_(mean)
    return modules


class Body(nn.Module):
    """A linear layer, behind a convolution or not: without one, one call computes all workers."""

    def __init__(self, convolution: bool = False) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.first = nn.Conv1d(1, 1, 1) if convolution else None

    def before(self, x: Tensor) -> Tensor:
        return x if self.first is None else self.first(x[:, None])[:, 0]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.before(x))  # type: ignore[no-any-return]  # a module's call returns Any


class Temperature(Body):
    """A parameter that is one number."""

    def __init__(self, convolution: bool) -> None:
        super().__init__(convolution)
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.temperature.exp()


class TwoNames(Body):
    """A normalisation that is a part twice."""

    def __init__(self, convolution: bool) -> None:
        super().__init__(convolution)
        self.norm = nn.BatchNorm1d(6)
        self.norms = nn.ModuleList([self.norm, self.norm])

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = torch.tanh(norm(x))
        return super().forward(x)


class Short(Body):
    """A frozen base in few bits, as of a large model that is fine-tuned."""

    scale: Tensor

    def __init__(self, convolution: bool, dtype: torch.dtype) -> None:
        super().__init__(convolution)
        self.base, self.dtype = nn.Linear(6, 6).to(dtype).requires_grad_(False), dtype
        self.register_buffer("scale", torch.full((6,), 1.5, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        assert self.scale.dtype == self.base.weight.dtype == self.dtype
        return super().forward(x + (self.base(x.to(self.dtype)) * self.scale).float())


class Counts(Body):
    """Buffers of numbers that float32 cannot hold, and of other kinds."""

    long: Tensor
    whole: Tensor
    short: Tensor
    odd: Tensor

    def __init__(self, convolution: bool) -> None:
        super().__init__(convolution)
        self.register_buffer("long", torch.tensor(2.0**40, dtype=torch.float64))
        self.register_buffer("whole", torch.tensor(2**40))
        self.register_buffer("short", torch.tensor(1.0, dtype=torch.bfloat16))
        self.register_buffer("odd", torch.tensor(False))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            assert (self.long.dtype, self.short.dtype) == (torch.float64, torch.bfloat16)
            self.long.add_(1)
            self.whole.add_(1)
            self.short.mul_(1.1)
            self.odd.logical_not_()
        return super().forward(x) * self.short.float()


class Viewed(nn.Module):
    """Sees how images lie in memory: by a view, or by asking."""

    def __init__(self, asks: bool) -> None:
        super().__init__()
        self.convolution, self.last, self.asks = nn.Conv2d(2, 4, 3), nn.Linear(64, 3), asks

    def forward(self, x: Tensor) -> Tensor:
        h = self.convolution(x)
        if self.asks and not h.is_contiguous():
            h = h.permute(0, 2, 3, 1)
        return self.last(h.reshape(len(x), -1) if self.asks else h.view(len(x), -1))  # type: ignore[no-any-return]  # a module's call


class PutBack(Body):
    """Computes with rounded weights, and takes the others again afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        weight, self.last.bias.data = self.last.weight.data, self.last.bias.data.contiguous()
        self.last.weight.data = weight.round(decimals=2)
        scores = super().forward(x)
        self.last.weight.data = weight
        return scores


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "plain": Body,
    "a number": Temperature,
    "two names": TwoNames,
    "bfloat16": lambda convolution: Short(convolution, torch.bfloat16),
    "float64": lambda convolution: Short(convolution, torch.float64),
    "buffers": Counts,
    "a view": lambda asks: Viewed(asks),
    "put back": PutBack,
}
"""Each in both tiers."""


@pytest.mark.filterwarnings("ignore:the model trains worker by worker, since vmap cannot batch accessing")
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("convolution", [False, True])
def test_a_model_trains_as_in_a_plain_loop(kind: str, convolution: bool) -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, y)[None] if kind == "plain" else cross_entropy(outputs, y)

    torch.manual_seed(0)
    model = MODELS[kind](convolution)
    found = run(model, IMAGES if isinstance(model, Viewed) else ROWS, loss=loss).finish()
    # A rounding of bfloat16 is 2⁻⁸; batched products of it round in another order.
    within = 2e-3 if "bfloat16" in kind else 2e-5
    for node, module in enumerate(loop(found, model, loss)):
        mine = found.load(copy.deepcopy(model), node=node).state_dict()
        for name, right in module.state_dict().items():
            exact = not right.is_floating_point() or right.dtype == torch.float64
            assert torch.allclose(mine[name], right, rtol=0 if exact else within, atol=0 if exact else within)


def frozen(convolution: bool, part: str = "1", norm: nn.Module | None = None) -> nn.Module:
    """A normalisation that keeps its statistics and a dropout that is off, within a model that trains."""
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3) if norm is None else norm
    model = nn.Sequential(Body(convolution), norm, nn.Dropout(0.5).eval(), nn.Linear(3, 3))
    model.get_submodule(part).eval()
    return model


@pytest.mark.parametrize("convolution", [False, True])
def test_a_part_in_eval_mode_stays_so(convolution: bool, tmp_path: Path) -> None:
    def variances(found: TrainingRun) -> Tensor:
        return found.load(frozen(convolution), node=0).get_buffer("1.running_var")

    found = run(frozen(convolution), out=tmp_path, rule="mozi").finish()
    right = run(frozen(convolution, norm=Frozen(3)), rule="mozi").finish()
    assert torch.equal(found.models, right.models)
    assert found.records == right.records
    assert torch.equal(variances(found), torch.ones(3))
    assert run(frozen(convolution, "2"), out=tmp_path, rule="mozi").path != found.path
    whole = run(frozen(convolution, part="")).finish()  # as `from_pretrained` gives it
    assert not torch.equal(variances(whole), torch.ones(3))


class Frozen(nn.BatchNorm1d):
    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


@pytest.mark.parametrize("convolution", [False, True])
def test_dropout_of_everything_gives_zeros(convolution: bool) -> None:
    model = nn.Sequential(Body(convolution), nn.Dropout(1.0))
    found = run(model).finish()
    assert [record.loss for record in found.records] == pytest.approx([math.log(3)] * ROUNDS)
    assert_near(found.models, flatten(model).expand(NODES, -1))


class Listed(Body):
    def __init__(self) -> None:
        super().__init__()
        self.held = [self.last.weight]

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.held[0], self.last.bias)


class Closed(Body):
    def __init__(self) -> None:
        super().__init__()
        weight = self.last.weight
        self.apply_to: Any = lambda x: functional.linear(x, weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_to(x) + self.last.bias  # type: ignore[no-any-return]  # a module's call


class Sparse(Body):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 6))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(functional.embedding((x[:, 0] > 0).long(), self.table, sparse=True))


class Complex(Body):
    wave: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("wave", torch.zeros(2, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.wave.add_(1j)
        return super().forward(x)


class Waves(Body):
    def __init__(self) -> None:
        super().__init__()
        self.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64))


class Writes(Body):
    """Writes to a parameter by `.data`, or to a mean of weights; at the start this changes no number."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.mean = how, copy.deepcopy(self.last).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "in place":
            self.last.weight.data.clamp_(-9, 9)
        elif self.how == "set":
            self.last.weight.data = self.last.weight.data.clamp(-9, 9)
        elif self.how == "once" and not self.mean.bias.isnan().any():
            self.last.bias.data.copy_(x.mean(0)[:3])
            self.mean.bias.data.fill_(math.nan)
        elif self.how == "mean":
            self.mean.weight.lerp_(self.last.weight.detach(), 0.1)
        return super().forward(x)


class Late(Body):
    """Makes a layer when it is first called."""

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "head"):
            self.head = nn.Linear(3, 3)
        scores: Tensor = self.head(super().forward(x))
        return scores


class Grows(Body):
    peaks: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("peaks", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        self.peaks.resize_(6).copy_(x.detach().amax(0))
        return super().forward(x)


BODY = Body()


def decayed(outputs: Tensor, y: Tensor) -> Tensor:
    return functional.cross_entropy(outputs, y) + BODY.last.weight.square().sum()


@pytest.mark.parametrize(
    ("model", "loss", "told"),
    [
        (Listed(), None, "reads the parameter last.weight past the copy"),
        (Closed(), None, "reads the parameter last.weight past the copy"),
        (BODY, decayed, "reads the parameter last.weight past the copy"),
        (Sparse(), None, "the gradient of table is sparse"),
        (Writes("in place"), None, "changes its parameter last.weight"),
        (Writes("set"), None, "changes its parameter last.weight"),
        (Writes("once"), None, r"changes its parameter last.bias.*\n.*call the model once before"),
        (Writes("mean"), None, "changes its parameter mean.weight"),
        (Late(), None, r"makes its parameter head.weight.*\n.*call the model once"),
        (Grows(), None, r"buffer peaks has shape \(0,\), and \(6,\).*\n.*call the model once"),
        (Complex(), None, "buffer wave of torch.complex64"),
        (Waves(), None, r"parameter turn is torch.complex64.*\n.*take torch.view_as_complex"),
        (Body().double(), None, r"is torch.float64.*\n.*module.float\(\)"),
        (Body(), {"name": "cross-entropy", "class_weights": [1, 2]}, "2 class_weights for 3 classes"),
        (nn.Unflatten(1, (3, 2)), "cross-entropy", "no parameters"),
    ],
)
def test_what_could_not_train_as_in_a_plain_loop_is_refused(model: Any, loss: Any, told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        run(model, loss=loss).finish()
    assert len(str(caught.value).splitlines()) <= 2


class Places(nn.Module):
    """Classes for each place of a sequence or an image, at dimension 1 or at the last one."""

    def __init__(self, dims: int, last: bool, fixed: bool = False) -> None:
        super().__init__()
        self.convolution = (nn.Conv1d if dims == 1 else nn.Conv2d)(2, 3, 1)
        self.last, self.fixed = last, fixed

    def forward(self, x: Tensor) -> Tensor:
        assert not self.fixed or set(x.shape[2:]) == {3}
        h = self.convolution(x)
        return h.movedim(1, -1) if self.last else h  # type: ignore[no-any-return]  # a module's call


@pytest.mark.parametrize("loss", [None, functional.cross_entropy])
@pytest.mark.parametrize("metric", [None, "loss", "f1"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("places", [(3,), (3, 3), (5, 3)])
def test_classes_come_last_also_with_as_many_places(
    places: tuple[int, ...], last: bool, metric: Any, loss: Any
) -> None:
    x, y = torch.randn(24, 2, *places), torch.randint(3, (24, *places))
    network = cg.Network(nx.complete_graph(NODES))
    said: dict[str, Any] = {"loss": loss, "metric": metric, "rounds": 1, "batch": 4}

    def trained(fixed: bool) -> None:
        model = Places(len(places), last, fixed)
        cg.train(network, (x, y, x, y), model, device="cpu", progress=False, **said).finish()

    asked = loss is None or metric != "loss"
    if last and loss is not None and places == (5, 3):
        return  # the loss is for classes at dimension 1
    if last or not asked:
        trained(fixed=False)
    else:
        with pytest.raises(UserError, match=r"classes (last|at dimension 1)") as caught:
            trained(fixed=False)
        assert len(str(caught.value).splitlines()) == 2
    if places != (5, 3):
        with pytest.warns(RuntimeWarning, match="the classes at dimension 1") if asked else nullcontext():
            trained(fixed=True)


class Words(nn.Module):
    def __init__(self, hot: bool) -> None:
        super().__init__()
        self.words, self.last, self.hot = nn.Embedding(5, 4), nn.Linear(5 if hot else 4, 3), hot

    def forward(self, x: Tensor) -> Tensor:
        h = functional.one_hot(x, 5).float() if self.hot else self.words(x)
        return self.last(h.mean(1))  # type: ignore[no-any-return]  # a module's call


@pytest.mark.parametrize("hot", [False, True])
@pytest.mark.parametrize("word", [5, -1])
def test_a_word_that_has_no_row_is_told(hot: bool, word: int) -> None:
    x = torch.arange(24 * 3).view(24, 3) % 5
    x[10:20] = word  # not among those tried first
    with pytest.raises(UserError, match=f"index {word} is out of range: rows go from 0 to 4"):
        run(Words(hot), x, rounds=30).finish()


class Remembers(Body):
    """Adds what it computed before, or multiplies by numbers of a generator of its own."""

    def __init__(self, convolution: bool, generator: Any = None) -> None:
        super().__init__(convolution)
        self.generator = generator
        self.last_mean: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        h = super().forward(x)
        if isinstance(self.generator, torch.Generator):
            return h * torch.randn(3, generator=self.generator)
        if self.generator is not None:
            return h * float(self.generator.random())
        h = h if self.last_mean is None else h + 0.1 * self.last_mean
        self.last_mean = h.detach().mean(0)
        return h


class CountingLoss:
    calls = 0

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        self.calls += 1
        return functional.cross_entropy(outputs, y) * self.calls


@pytest.mark.filterwarnings("ignore:the model trains worker by worker")
@pytest.mark.parametrize("convolution", [False, True])
@pytest.mark.parametrize("kind", ["torch", "numpy", "value", "loss"])
@pytest.mark.parametrize("seed", range(6))
def test_what_a_model_remembers_between_calls_is_told(seed: int, kind: str, convolution: bool) -> None:
    """Also if the loss changes little."""
    torch.manual_seed(seed)
    generators = {"torch": torch.Generator().manual_seed(0), "numpy": np.random.default_rng(0)}
    model = Body(convolution) if kind == "loss" else Remembers(convolution, generators.get(kind))
    says = "changes its attribute last_mean" if kind == "value" else "gives another loss when it is called"
    with pytest.warns(RuntimeWarning, match=says):
        run(model, loss=CountingLoss() if kind == "loss" else None).finish()


class Keeps(Body):
    """Writes down that it was called."""

    def __init__(self, place: Any) -> None:
        super().__init__(False)
        self.place = place

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.place, Tensor | np.ndarray):
            self.place += 1
        elif isinstance(self.place, dict):
            self.place["calls"] = self.place.get("calls", 0) + 1
        elif isinstance(self.place, SimpleNamespace):
            self.place.calls += 1
        else:
            self.place.append(0)
        return super().forward(x)


@pytest.mark.filterwarnings("ignore:the model trains worker by worker")
@pytest.mark.parametrize(
    "place",
    [{}, [], deque(), torch.zeros(2), np.zeros(2), SimpleNamespace(calls=0)],
    ids=lambda place: type(place).__name__,
)
def test_whatever_a_model_writes_into_is_told(place: Any) -> None:
    """Also if the loss does not depend on it yet."""
    with pytest.warns(RuntimeWarning, match="changes its attribute place when it is called"):
        run(Keeps(place)).finish()


class Follows(Body):
    """Keeps what it does not change in a second call on the same batch, at the same parameters."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.change = what, 0.0
        self.teachers = [copy.deepcopy(self.last)] if what == "a teacher" else []
        self.kept = self.last.weight.detach().clone() if what == "a mean" else None

    @torch.no_grad()
    def remember(self, x: Tensor) -> None:
        for teacher in self.teachers:
            teacher.weight.lerp_(self.last.weight, 0.1)
        if self.what == "a mean" and self.kept is not None:
            self.kept.lerp_(self.last.weight, 0.1)
        if self.what == "a copy":
            self.change = 0.0 if self.kept is None else float((self.last.weight - self.kept).sum())
            self.kept = self.last.weight.clone()
        if self.what == "the first batch" and self.kept is None:
            self.kept = x.mean(0)

    def forward(self, x: Tensor) -> Tensor:
        self.remember(x)
        if self.what == "the first batch" and self.kept is not None:
            x = x - self.kept
        return super().forward(x) * (1 + self.change)


@pytest.mark.filterwarnings("ignore:the model trains worker by worker")
@pytest.mark.parametrize("what", ["a teacher", "a mean", "a copy", "the first batch"])
def test_what_follows_weights_or_the_first_batch_is_told(what: str) -> None:
    with pytest.warns(RuntimeWarning, match="changes its attribute|gives another loss"):
        run(Follows(what))


class Trims(Body):
    """Makes masks and tables for as many columns as a batch uses, when it first sees so many."""

    def __init__(self) -> None:
        super().__init__()
        self.masks: dict[int, Tensor] = {}
        self.table: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        used = max(1, int((x != 0).sum(1).max()))
        if self.table is None or len(self.table) < used:
            self.table = torch.arange(1.0, used + 1)
        if used not in self.masks:
            self.masks[used] = (torch.arange(6) < used).float()
        return super().forward(x * self.masks[used] * self.table[:used].mean())


@pytest.mark.filterwarnings("error", "ignore:the model trains worker by worker")
def test_what_is_made_when_it_is_needed_is_no_memory() -> None:
    used = torch.where(torch.arange(24) < 12, 2, 6)
    run(Trims(), ROWS * (torch.arange(6) < used[:, None]))


class Wide(nn.Module):
    """Divides by the largest weight. To write by `.data` counts no version, as in quantizers of PyTorch."""

    widest: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(6, 3)
        self.register_buffer("widest", self.last.weight.detach().abs().max())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.widest.data.copy_(self.last.weight.detach().abs().max())
        scores: Tensor = self.last(x / self.widest)
        return scores


@pytest.mark.filterwarnings("ignore:the model trains worker by worker")
def test_a_buffer_that_follows_weights_is_each_worker_s_own() -> None:
    found = run(Wide(), local_steps=2).finish()
    widest = {float(found.load(Wide(), node=node).get_buffer("widest")) for node in range(NODES)}
    assert len(widest) == NODES


class Peak(nn.Module):
    """Divides by the largest input so far, which is 1 in the first samples."""

    peak: Tensor

    def __init__(self, always: bool = True, persistent: bool = True) -> None:
        super().__init__()
        self.always, self.last = always, nn.Linear(6, 3)
        self.register_buffer("peak", torch.ones(()), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and (self.always or bool(x.max() > 1)):
            self.peak.copy_(torch.maximum(self.peak, x.detach().abs().max()))
        scores: Tensor = self.last(x / self.peak)
        return scores


LATE_PEAKS = torch.linspace(0.1, 0.9, 24 * 6).view(24, 6)
LATE_PEAKS[8:] *= 1 + torch.arange(8, 24)[:, None]
BLOCKS = [range(8), range(8, 16), range(16, 24)]


@pytest.mark.parametrize("persistent", [True, False])
def test_a_buffer_that_changes_late_is_each_worker_s_own(persistent: bool) -> None:
    model = Peak(persistent=persistent)
    found = run(model, LATE_PEAKS, partition=BLOCKS, rounds=40).finish()
    loaded = [found.load(copy.deepcopy(model), node=node) for node in range(NODES)]
    peaks = [float(part.peak) for part in loaded if isinstance(part, Peak)]
    assert peaks == [1.0, float(LATE_PEAKS[8:16].max()), float(LATE_PEAKS[16:].max())]
    average = found.load(copy.deepcopy(model))
    assert float(average.peak) == pytest.approx(sum(peaks) / NODES)  # type: ignore[arg-type]  # a tensor
    with torch.no_grad():
        right = (average.eval()(LATE_PEAKS[:5]).argmax(1) == LABELS[:5]).double().mean()
    assert found.accuracy == float(right)


class Calls(Body):
    """Counts its calls, also when it is tested."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize("norm", [nn.Identity(), nn.BatchNorm1d(3)])
def test_the_statistics_of_an_average_change_no_other_buffer(norm: nn.Module) -> None:
    model = nn.Sequential(Calls(), norm)
    average = run(model).finish().load(copy.deepcopy(model))
    assert average.get_buffer("0.calls") == ROUNDS


def test_a_buffer_that_only_some_calls_change_is_told() -> None:
    model = Peak(always=False)
    with (
        pytest.warns(RuntimeWarning, match="a branch on values"),
        pytest.raises(UserError, match=r"changes the model's buffer peak, but only in some calls.*\n.*where"),
    ):
        run(model, LATE_PEAKS, partition=BLOCKS, rounds=40).finish()


@pytest.mark.parametrize("normal", [nn.BatchNorm1d(6), nn.InstanceNorm1d(1, track_running_stats=True)])
def test_an_average_of_equal_models_is_as_good_as_they_are(normal: nn.Module) -> None:
    """It has statistics of its own, or the means of theirs, not those of the start."""
    wide = isinstance(normal, nn.InstanceNorm1d)
    around = [nn.Unflatten(1, (1, 6)), normal, nn.Flatten()] if wide else [normal]
    model = nn.Sequential(*around, nn.Linear(6, 3))
    found = run(model, ROWS + 4 * LABELS[:, None], rounds=60).finish()
    means = [
        part.running_mean
        for part in found.load(copy.deepcopy(model)).modules()
        if isinstance(part, nn.BatchNorm1d | nn.InstanceNorm1d)
    ]
    assert all(mean is not None and float(mean.min()) > 2 for mean in means)
    assert len(means) == 1


Pair = namedtuple("Pair", "scores more")


class Table(OrderedDict[str, Any]):
    """As the outputs of transformers."""

    @property
    def scores(self) -> Tensor:
        return self["scores"]  # type: ignore[no-any-return]  # of any kind


@dataclass
class Outputs:
    """With `==`, which compares tensors."""

    scores: Tensor
    more: Any = None


class Gives(Body):
    """Outputs in a class of its own."""

    def __init__(self, kind: Callable[..., Any]) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        return self.kind(scores=super().forward(x), more=None)


def right_answers(outputs: Any, y: Tensor) -> Tensor:
    share: Tensor = (outputs.scores.argmax(1) == y).float().mean()
    return share


@pytest.mark.parametrize("kind", [Pair, Table, Outputs, SimpleNamespace])
def test_outputs_of_any_class_reach_loss_and_metric(kind: Callable[..., Any]) -> None:
    model = Gives(kind)
    found = run(model, loss=lambda o, y: functional.cross_entropy(o.scores, y), metric=right_answers).finish()
    plain = Body()
    plain.load_state_dict(model.state_dict())
    expected = run(plain).finish()
    assert torch.equal(found.models, expected.models)
    assert found.score == pytest.approx(expected.accuracy)


class Vague:
    """Has whatever it is asked for, as a mock."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self


class Thing:
    """Not equal to its copy, which lies elsewhere in memory."""

    def __init__(self, number: int) -> None:
        self.number = number


HELD = {
    "words": np.array(["cat", "dog"]),
    "days": np.array(["2020-02-29"], dtype="datetime64[D]"),
    "numbers of another machine": np.array([1.0], dtype=">f4"),
    "long numbers": np.array([1.0], dtype=np.longdouble),
    "records": np.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")]),
    "things": np.array([None, "a"], dtype=object),
    "a sparse tensor": torch.eye(3).to_sparse(),
    "anything": Vague(),
    "lists in an array": np.array([[1], [1, 2]], dtype=object),
    "things as keys": {Thing(number): number for number in range(9)},
    "a set of things": {Thing(number) for number in range(9)},
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
def test_a_model_may_hold_what_pytorch_cannot_add_up(held: Any, tmp_path: Path) -> None:
    model = Body()
    model.held = held
    found = [run(model, out=tmp_path).finish().path for _ in range(2)]
    assert found[0] == found[1]


class Noisy(Body):
    """Draws also when it is tested."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn_like(x))


def test_a_test_draws_the_same_numbers_and_none_of_the_callers() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Noisy(convolution=True), nn.BatchNorm1d(3))
    scores = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        scores.append([record.metrics["test_loss"] for record in run(model, metric="loss")])
        assert torch.equal(torch.get_rng_state(), state)
    assert scores[0] == scores[1]


@pytest.mark.parametrize("weights", [None, [1.0, 2.0, 0.5]])
def test_the_tested_loss_is_that_of_all_labels_at_once(weights: list[float] | None) -> None:
    outputs, y = ROWS.view(24, 2, 3), torch.stack([LABELS, LABELS.flip(0)], 1)
    y[:, 0][::2] = y[16:] = -100  # the last part has no label
    loss = find_loss({"name": "cross-entropy", "class_weights": weights} if weights else "cross-entropy")
    metric = find_metric("loss", loss, 3)
    parts = [(outputs[i : i + 8], y[i : i + 8]) for i in range(0, 24, 8)]
    found = metric.value(torch.stack([metric.sums(loss.of_outputs(*part), part[1]) for part in parts]).sum(0))
    assert_near(found, loss.of_outputs(outputs, y).double(), dtype=torch.float32)


class Draws(Body):
    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn_like(x) * random.random() * float(np.random.rand())
        return super().forward(functional.dropout(x, 0.3, self.training) + noise)


@pytest.mark.filterwarnings("ignore:the model trains worker by worker")
def test_runs_in_threads_draw_each_their_own_numbers() -> None:
    models = [Draws() for _ in range(4)]

    def models_of(model: nn.Module) -> Tensor:
        return run(model, rounds=10).finish().models

    alone = [models_of(model) for model in models]
    with ThreadPoolExecutor(len(models)) as pool:
        together = list(pool.map(models_of, models))
    assert all(map(torch.equal, together, alone))


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "inference": torch.inference_mode,
    "no_grad": torch.no_grad,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "float64": lambda: default_dtype(torch.float64),
    "bfloat16": lambda: default_dtype(torch.bfloat16),
}


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_of_the_caller_change_no_number(mode: str) -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
    start = torch.randn(7, 50)
    network = cg.Network(nx.complete_graph(7), byzantine=[5])
    rules = cg.rules.Krum(1), cg.rules.TrimmedMean(1)

    def found(shared: nn.Module) -> list[Tensor]:
        own = run(shared).finish()
        named = run("mlp", rounds=1).finish().models
        ends = [list(cg.consensus(network, rule, start, rounds=3))[-1].models for rule in rules]
        mixed = [rule(start[0], start[1:], torch.full((6,), 0.1)) for rule in rules]
        return [own.models, flatten(own.load(copy.deepcopy(shared))), named, *ends, *mixed]

    right = found(model)
    with MODES[mode]():
        now = torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
        got = found(model)
        after = torch.get_default_dtype(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled()
    assert now == after
    for one, other in zip(got, right, strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one, other)
