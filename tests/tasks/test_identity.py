"""Models that differ in anything but numbers are not trained as one."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from types import SimpleNamespace
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn

import clippedgossip as cg
from clippedgossip.tasks import models
from clippedgossip.tasks.models import content, identity


class Net(nn.Module):
    """With attributes of a test's own."""

    def __init__(self, **held: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        for name, value in held.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.b(self.a(x))


def hooked(times: float) -> nn.Module:
    net = Net()
    net.a.register_forward_hook(lambda part, x, y: y * times)
    return net


def buffered(value: Tensor | None) -> nn.Module:
    net = Net()
    net.register_buffer("mask", value)
    return net


def in_order(*places: int) -> nn.Module:
    parts = nn.Linear(4, 4), nn.Linear(4, 4)
    return nn.Sequential(*(parts[place] for place in places))


def tied(to: str) -> nn.Module:
    third = nn.Linear(4, 4)
    net = Net(c=third)
    third.weight = getattr(net, to).weight
    return net


def frozen(name: str) -> nn.Module:
    net = Net()
    net.get_submodule(name).requires_grad_(False)
    return net


def still(name: str) -> nn.Module:
    net = Net()
    net.get_submodule(name).eval()
    return net


def recursive() -> Callable[..., Any]:
    def again(n: int) -> int:
        return n and again(n - 1)

    return again


def unlike() -> nn.Module:
    class Net(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    return Net()


@dataclass
class Plain:
    """With `==` and without a hash."""

    times: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.times * x


PAIRS: dict[str, tuple[Callable[..., nn.Module], Any, Any]] = {
    "names of attributes": (lambda name: Net(**{name: 2.0}), "scale", "shift"),
    "true and one": (lambda value: Net(flag=value), True, 1),
    "a list": (lambda value: Net(order=value), [0, 1], [1, 0]),
    "a table": (lambda value: Net(table={"times": value}), 1, 2),
    "an object": (lambda value: Net(held=SimpleNamespace(times=value)), 1, 2),
    "a callable": (lambda value: Net(act=Plain(value)), 1.0, 2.0),
    "a closure": (lambda value: Net(act=lambda x: value * x), 1.0, 2.0),
    "a partial function": (lambda value: Net(act=partial(torch.add, alpha=value)), 1, 2),
    "a bound method": (lambda value: Net(act=Plain(value).__call__), 1.0, 2.0),
    "numbers of a tensor": (lambda value: Net(held=[torch.tensor([value])]), 1.0, 2.0),
    "a hook": (hooked, 1.0, 1.004),
    "the place of a part": (lambda places: in_order(*places), (0, 1, 0), (0, 1, 1)),
    "the place of a weight": (tied, "a", "b"),
    "a buffer that is not there": (buffered, torch.ones(4), None),
    "the dtype of a buffer": (buffered, torch.ones(4), torch.ones(4, dtype=torch.int64)),
    "the shape of a buffer": (buffered, torch.ones(2), torch.ones(5)),
    "frozen parts": (frozen, "a", "b"),
    "parts in eval mode": (still, "a", "b"),
}


@pytest.mark.parametrize(("make", "one", "other"), PAIRS.values(), ids=PAIRS)
def test_what_differs_is_not_alike(make: Callable[..., nn.Module], one: Any, other: Any) -> None:
    assert identity(make(one)) != identity(make(other))
    assert identity(make(one)) == identity(make(one))
    assert hash(identity(make(one))) == hash(identity(copy.deepcopy(make(one))))


def test_code_that_is_written_anew_is_not_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    before = identity(Net())
    monkeypatch.setattr(Net, "forward", lambda self, x: self.a(self.b(x)))
    assert identity(Net()) != before
    assert identity(unlike()) != identity(unlike())  # two classes


def test_what_cannot_be_compared_is_like_itself() -> None:
    circle: list[Any] = []
    circle.append(circle)
    for thing in (circle, recursive(), nn.Linear(2, 2), (n for n in range(3)), torch.zeros(1 << 21)):
        assert content(thing) == content(thing)
        hash(content(thing))
    assert content(nn.Linear(2, 2)) != content(nn.Linear(2, 2))


MANY = [torch.arange(10_000.0), list(range(10_000)), dict.fromkeys(range(10_000), 0.5)]


@pytest.mark.parametrize("held", MANY, ids=["tensor", "list", "table"])
def test_many_numbers_are_compared_in_one_go(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, those of a large mask would take seconds for each run."""
    calls = []

    def counted(*given: Any) -> Any:
        calls.append(given)
        return content(*given)

    monkeypatch.setattr(models, "content", counted)
    assert identity(Net(held=held)) == identity(Net(held=copy.deepcopy(held)))
    assert len(calls) < 1000


class Drawn(nn.Module):
    """With a draw of its own that its description does not show."""

    held: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.order = nn.Linear(6, 3), torch.randperm(6).tolist()
        self.register_buffer("held", torch.randn(6))

    def forward(self, x: Tensor) -> Any:
        return self.linear(x[:, self.order] * self.held)


class Kept(nn.Module):
    """Computes something from its weights once, and keeps it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.held: Tensor | None = None
        with torch.no_grad():
            self.linear.weight *= 1 + 5 * torch.rand(())

    def size(self) -> Any:
        return self.linear.weight.detach().norm()

    def times(self) -> Any:
        self.held = self.size() if self.held is None else self.held
        return self.held

    def forward(self, x: Tensor) -> Any:
        return self.linear(x) * self.times()


class KeptByProperty(Kept):
    once = cached_property(Kept.size)

    def times(self) -> Any:
        return self.once


class KeptByCache(Kept):
    times = cache(Kept.size)


@pytest.mark.parametrize("kind", [Drawn, Kept, KeptByProperty, KeptByCache])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)], ids=["cpu", "gpu"])
def test_seeds_that_make_other_models_give_what_each_gives_alone(
    device: str, kind: type[nn.Module], recwarn: pytest.WarningsRecorder
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 6, generator=generator), torch.arange(80) % 3
    said: dict[str, Any] = {"rounds": 4, "evaluate_every": 4, "batch": 8, "device": device}
    network, data = cg.Network(nx.cycle_graph(3)), (x, y, x, y)
    for run in cg.compare(network, data, kind, rules=["gossip"], seeds=3, **said).runs:
        (alone,) = cg.train(network, data, kind, rule="gossip", seed=run.seed, **{**said, "device": "cpu"})
        assert run.records[-1].loss == pytest.approx(alone.loss, rel=1e-5)
        assert run.records[-1].consensus_distance == pytest.approx(alone.consensus_distance, rel=1e-4)
        assert run.records[-1].score == alone.score
    wrong = [w for w in recwarn if "wrongly" in str(w.message)]
    assert kind is KeptByCache or not wrong  # PyTorch's compiler computes again what functools.cache has


@pytest.mark.gpu
@pytest.mark.parametrize(("make", "one", "other"), PAIRS.values(), ids=PAIRS)
def test_a_gpu_trains_models_that_differ_each_by_its_own_code(
    make: Callable[..., nn.Module], one: Any, other: Any
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(48, 4, generator=generator), torch.arange(48) % 4
    for value in (one, other):
        scores = []
        for device in ("cpu", "cuda"):
            torch.manual_seed(0)
            network = cg.Network(nx.cycle_graph(3))
            run = cg.train(network, (x, y, x, y), make(value), rounds=2, batch=8, lr=0.3, device=device)
            scores.append(list(run)[-1])
        assert scores[1].loss == pytest.approx(scores[0].loss, rel=1e-5)
        assert scores[1].metrics["accuracy"] == scores[0].metrics["accuracy"]
