"""A GPU gets machine code for every model, precision, rule and attack. With the plugin `hopper` alone."""

from typing import Any

import networkx as nx
import pytest
import torch
from torch import nn

from clippedgossip import Network, graphs
from clippedgossip.mixing.inbox import Context, Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.rules import ClippedGossip
from clippedgossip.simulate import Setup, Training
from clippedgossip.simulate.engine import Stack
from clippedgossip.step import SGD, AdamW, HeavyBall
from clippedgossip.tasks import DataSet, make_task, partition
from tests.rehearsal.hopper import KERNELS
from tests.rules.test_rules_contract import CASES
from tests.simulate.distributed import distributed_cases as cases
from tests.tasks import nets

NETWORK = Network(graphs.dumbbell(clique=10))
MODELS: dict[str, Any] = {
    "cnn": ("cnn", (1, 28, 28)),
    "vgg11": ("vgg11", (3, 32, 32)),
    "own cnn": (lambda: nets.Convolutional(1, 32, 28, 10), (1, 28, 28)),
    "resnet": (lambda: nets.ResNet(widths=(16, 32, 64), channels=3, classes=10), (3, 32, 32)),
    "batchnorm": (lambda: nets.ResNet(nn.BatchNorm2d, (16, 32), 3, 10), (3, 32, 32)),
    "transformer": (lambda: nets.Transformer(64, 32, 128, 4), None),
}


@pytest.fixture(autouse=True)
def _anew() -> None:
    KERNELS.clear()


def of(model: str, precision: str, **more: Any) -> Setup:
    made, shape = MODELS[model]
    generator = torch.Generator().manual_seed(0)
    if shape is None:
        x = torch.randint(64, (2000, 33), generator=generator)
        data = DataSet.of(x[:, :-1], x[:, 1:], x[:100, :-1], x[:100, 1:], classes=64)
    else:
        x, y = torch.randn(2000, *shape, generator=generator), torch.arange(2000) % 10
        data = DataSet.of(x, y, x[:100], y[:100])
    shares = partition(data.labels, NETWORK.n, "iid", seed=0)
    task = make_task(data, shares, made if isinstance(made, str) else made(), seed=0, batch=32)
    training = Training(rounds=4, precision=precision, **more)  # type: ignore[arg-type]  # one of the names
    return Setup(network=NETWORK, task=task, rule=ClippedGossip(1.0), training=training)


def one_round(*runs: Setup) -> set[str]:
    stack = Stack(runs, "cuda")
    stack.advance()
    stack.evaluate()
    return set(KERNELS)


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("model", MODELS)
def test_a_round_of_a_model(model: str, precision: str) -> None:
    kernels = one_round(of(model, precision))
    assert {"_half_step_kernel", "_combine_kernel"} <= kernels
    assert any(name.startswith("triton_") for name in kernels)
    assert ("_convolve_kernel" in kernels) is (model != "transformer" and precision != "float32")


@pytest.mark.parametrize("optimizer", [SGD(), AdamW(), HeavyBall(0.9)], ids=str)
def test_a_round_of_an_optimizer(optimizer: Any) -> None:
    assert one_round(of("transformer", "bfloat16", optimizer=optimizer, local_steps=2))


@pytest.mark.parametrize("d", [10, 4999])
@pytest.mark.parametrize("graph", [nx.complete_graph(20), nx.random_regular_graph(6, 150, seed=1)], ids=str)
def test_all_rules(graph: Any, d: int) -> None:
    network = Network(graph, byzantine=[3, 7])
    layout = Layout.of(network, "cuda")
    assert layout.byzantine is not None
    models = torch.zeros(len(network.regular), d, device="cuda")
    lies = torch.zeros(int(layout.byzantine.sum()), d, device="cuda")
    for rule in CASES.values():
        rule.mix(Inbox(layout=layout, models=models, extra=lies, context=Context(rounds=10)))
    assert KERNELS


def test_all_attacks_and_networks() -> None:
    for name, run in cases.cases(cases.pairs(1)):
        if "tuned" not in name:  # it chooses by numbers
            assert one_round(run), name
