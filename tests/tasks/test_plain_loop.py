"""Any module trains as in a plain loop of modules, or is refused before round one; what a model remembers
between calls is told."""

import copy
from collections.abc import Callable
from typing import Any

import networkx as nx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import clippedgossip as cg
from clippedgossip.facade import TrainingRun
from clippedgossip.tasks.objective import called, cross_entropy
from clippedgossip.tasks.workers import Workers

pytestmark = pytest.mark.usefixtures("one_thread")
NODES, ROUNDS = 3, 3
LABELS = torch.arange(24) % 3
ROWS = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(24, 2, 6, 6, generator=torch.Generator().manual_seed(0))


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


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "plain": Body,
    "a number": Temperature,
    "two names": TwoNames,
}
"""Each in both tiers."""


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("convolution", [False, True])
def test_a_model_trains_as_in_a_plain_loop(kind: str, convolution: bool) -> None:
    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, y)[None] if kind == "plain" else cross_entropy(outputs, y)

    torch.manual_seed(0)
    model = MODELS[kind](convolution)
    found = run(model, loss=loss).finish()
    # A rounding of bfloat16 is 2⁻⁸; batched products of it round in another order.
    within = 2e-3 if "bfloat16" in kind else 2e-5
    for node, module in enumerate(loop(found, model, loss)):
        mine = found.load(copy.deepcopy(model), node=node).state_dict()
        for name, right in module.state_dict().items():
            exact = not right.is_floating_point() or right.dtype == torch.float64
            assert torch.allclose(mine[name], right, rtol=0 if exact else within, atol=0 if exact else within)
