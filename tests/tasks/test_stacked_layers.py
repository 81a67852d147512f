"""One module for many workers at once: each worker's gradients are the module's own."""

import shutil
from pathlib import Path
from types import MethodType

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from clippedgossip.tasks import MODELS, DataSet, make_task
from clippedgossip.tasks import stacked_layers as layers
from clippedgossip.tasks.workers import Workers

WORKERS, BATCH, CLASSES = 3, 5, 4

DEEP = nn.Sequential(
    nn.Conv2d(2, 6, 3, padding=1),
    nn.ReLU(),
    nn.MaxPool2d(2),  # of 9 rows: the last belongs to no square
    nn.Conv2d(6, 8, 2),
    nn.ReLU(),
    nn.MaxPool2d(3),
    nn.Flatten(),
    nn.Linear(8, 7),
    nn.ReLU(),
    nn.Linear(7, CLASSES),
)
SHALLOW = nn.Sequential(nn.Conv2d(2, 6, 3), nn.ReLU(), nn.MaxPool2d(7), nn.Flatten(), nn.Linear(6, CLASSES))


def work(module: nn.Module) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Parameters of all workers, and their batches."""
    generator = torch.Generator().manual_seed(0)
    parameters = {
        name: torch.randn(WORKERS, *tensor.shape, generator=generator) / tensor[0].numel() ** 0.5
        for name, tensor in module.named_parameters()
    }
    x = torch.randn(WORKERS, BATCH, 2, 9, 9, generator=generator)
    return parameters, x, torch.randint(CLASSES, (WORKERS, BATCH), generator=generator)


def stacked(
    module: nn.Sequential, parameters: dict[str, Tensor], x: Tensor, y: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    leaves = {name: held.detach().to(dtype).requires_grad_() for name, held in parameters.items()}
    outputs = layers.forward_stacked(module, leaves, x, None, dtype)
    loss = functional.cross_entropy(outputs.flatten(0, 1), y.flatten(), reduction="sum")
    return list(torch.autograd.grad(loss, list(leaves.values())))


def one_by_one(module: nn.Module, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> list[Tensor]:
    found = []
    for worker in range(WORKERS):
        own = {name: held[worker].clone().requires_grad_() for name, held in parameters.items()}
        outputs = functional_call(module, own, (x[worker],))
        loss = functional.cross_entropy(outputs, y[worker], reduction="sum")
        found.append(torch.autograd.grad(loss, list(own.values())))
    return [torch.stack(pieces) for pieces in zip(*found, strict=True)]


def test_stacked_gradients_are_the_modules_own() -> None:
    parameters, x, y = work(DEEP)
    found = stacked(DEEP, parameters, x, y, torch.float32)
    for mine, theirs in zip(found, one_by_one(DEEP, parameters, x, y), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)


class Residual(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self:
            h = layer(h)
        return h + x.flatten(1)[:, :CLASSES]


class Louder(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


def odd_modules() -> dict[str, nn.Module]:
    """Made of layers that the stacked form knows, but not what they seem."""
    relu, square, hooked = nn.ReLU(), nn.Linear(CLASSES, CLASSES), nn.Linear(8, CLASSES)
    hooked.register_forward_hook(lambda module, inputs, output: 3 * output)
    replaced = nn.Linear(8, CLASSES)
    vars(replaced)["forward"] = MethodType(lambda self, x: 3 * nn.Linear.forward(self, x), replaced)
    tied = nn.Sequential(nn.Flatten(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, CLASSES))
    tied[3].weight = tied[1].weight
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, CLASSES))
    return {
        "an activation twice": nn.Sequential(
            nn.Flatten(), nn.Linear(8, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, CLASSES)
        ),
        "a layer twice": nn.Sequential(nn.Flatten(), nn.Linear(8, CLASSES), square, nn.ReLU(), square),
        "tied weights": tied,
        "a sequence of its own kind": Residual(nn.Flatten(), nn.Linear(8, CLASSES)),
        "a layer of its own kind": nn.Sequential(nn.Flatten(), Louder(8, CLASSES)),
        "a hook": nn.Sequential(nn.Flatten(), hooked),
        "another forward": nn.Sequential(nn.Flatten(), replaced),
        "a norm of the weight": nn.Sequential(nn.Flatten(), normed),
        "features of images": nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)),
        "softmax of images": nn.Sequential(nn.LogSoftmax(-1), nn.Flatten(), nn.Linear(8, CLASSES)),
        "softmax over the batch": nn.Sequential(nn.Flatten(), nn.Linear(8, CLASSES), nn.LogSoftmax(0)),
    }


@pytest.mark.parametrize("name", odd_modules())
def test_a_module_of_ones_own_gets_its_own_gradients(name: str) -> None:
    module = odd_modules()[name]
    x = torch.randn(40, 2, 2, 2, generator=torch.Generator().manual_seed(0))
    y = torch.arange(40) % CLASSES
    shares = torch.arange(40).chunk(WORKERS)
    task = make_task(DataSet.of(x, y, x, y), shares, module, seed=0, batch=BATCH)
    models = task.initial() * torch.tensor([[1.0], [0.5], [2.0]])
    workers = Workers([task])
    inputs, labels = workers.draw(workers.shares, 0)
    buffers = workers.initial_buffers()
    found, _, _ = workers.gradients(workers.shares, models, buffers, inputs, labels, 0)
    parameters = {name: held.clone() for name, held in task.layout.views(models).items()}
    for mine, theirs in zip(found, one_by_one(module, parameters, inputs, labels), strict=True):
        torch.testing.assert_close(mine, theirs / BATCH, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_named_models_are_stacked(name: str) -> None:
    shape = (3, 32, 32) if name == "vgg11" else (1, 28, 28)
    with torch.device("meta"):
        assert layers.supported(MODELS[name](shape, 10), shape)


@pytest.mark.slow  # half a minute of g++
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, g++")
def test_rough_products_stay_close_when_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler may round less than was written: whatever compares rounded values must bear it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the usual one is everybody's
    parameters, x, y = work(SHALLOW)
    found = torch.compile(stacked)(SHALLOW, parameters, x, y, torch.bfloat16)
    for mine, theirs in zip(found, one_by_one(SHALLOW, parameters, x, y), strict=True):
        assert (mine.float() - theirs).norm() <= 0.1 * theirs.norm()
