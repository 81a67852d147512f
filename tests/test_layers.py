"""One module for many workers at once: each worker's gradients are the module's own."""

import shutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from clippedgossip.tasks import layers

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


@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler, g++")
def test_rough_products_stay_close_when_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler may round less than was written: whatever compares rounded values must bear it."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # the usual one is everybody's
    parameters, x, y = work(SHALLOW)
    found = torch.compile(stacked)(SHALLOW, parameters, x, y, torch.bfloat16)
    for mine, theirs in zip(found, one_by_one(SHALLOW, parameters, x, y), strict=True):
        assert (mine.float() - theirs).norm() <= 0.1 * theirs.norm()
