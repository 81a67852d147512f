"""A round of the engine for models that users bring, beside a plain loop of modules.

    python benchmarks/models.py --device cuda --precision bfloat16 tf32 --models cnn resnet transformer

20 workers on a dumbbell, batch 32, ClippedGossip. It prints, for each model and precision: the tier, the wait
for the first round (compilation and self-check), a round of one run without evaluation, its gradients and
half-step alone, and a plain loop of modules without mixing. With `--together 5`, five runs are one stack.
"""

import argparse
import copy
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from timing import Work, captured, interleaved
from torch import Tensor, nn
from torch.nn import functional

from clippedgossip import Network, graphs
from clippedgossip.rules import ClippedGossip
from clippedgossip.simulate import Setup, Training
from clippedgossip.simulate.engine import Stack
from clippedgossip.tasks import DataSet, build, make_task, partition, workers
from clippedgossip.tasks.module_function import ShiftedConv

WORKERS, BATCH = 20, 32
LARGE = 64  # the batch of VGG-11


class Convolutional(nn.Module):
    """The paper's CNN as a user writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.hidden, self.last = nn.Linear(9216, 128), nn.Linear(128, 10)
        self.some, self.more = nn.Dropout(0.25), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.second(functional.relu(self.first(x))))
        h = self.some(functional.max_pool2d(h, 2)).flatten(1)
        scores: Tensor = self.last(self.more(functional.relu(self.hidden(h))))
        return scores


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList([nn.GroupNorm(8, after), nn.GroupNorm(8, after)])
        self.short = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.norms[0](self.first(x)))
        return functional.relu(self.norms[1](self.second(h)) + self.short(x))


class ResNet(nn.Module):
    """With GroupNorm; 78 k parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 16, 3, 1, 1), nn.Linear(64, 10)
        self.blocks = nn.Sequential(Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(functional.relu(self.stem(x))).mean((2, 3)))
        return scores


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm, self.after, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.mixed, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mixed(self.norm(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        h: Tensor = x + self.feed(self.after(x))
        return h


class Transformer(nn.Module):
    """Two layers of width 128 on sequences of 32 tokens; 285 k parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(64, 128), nn.Parameter(torch.zeros(32, 128))
        self.layers = nn.Sequential(Attention(128, 4), Attention(128, 4))
        self.head = nn.Linear(128, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        scores: Tensor = self.head(self.layers(self.words(tokens) + self.places))
        return scores


def images(*shape: int) -> DataSet:
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(6000, *shape, generator=draw), torch.arange(6000) % 10
    return DataSet.of(x, y, x[:100], y[:100], name=f"images {shape}")


def sequences() -> DataSet:
    text = torch.randint(64, (6000, 33), generator=torch.Generator().manual_seed(0))
    return DataSet.of(text[:, :-1], text[:, 1:], text[:100, :-1], text[:100, 1:], name="text", classes=64)


MODELS: dict[str, Callable[[], tuple[nn.Module, DataSet, Any]]] = {
    "built-in": lambda: (build("cnn", (1, 28, 28), 10, seed=0), images(1, 28, 28), "nll"),
    "mlp": lambda: (build("mlp", (1, 8, 8), 10, seed=0), images(1, 8, 8), None),
    "cnn": lambda: (Convolutional(), images(1, 28, 28), None),
    "resnet": lambda: (ResNet(), images(3, 32, 32), None),
    "transformer": lambda: (Transformer(), sequences(), None),
    "vgg11": lambda: (build("vgg11", (3, 32, 32), 10, seed=0), images(3, 32, 32), None),
}


def loop(setup: Setup, device: str) -> Work:
    """Gradients and steps of a list of modules, as one writes it first."""
    task = setup.task.to(device)
    modules = [copy.deepcopy(task.module) for _ in range(len(task.nodes))]
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9) for module in modules]
    whole, batch = len(task.nodes) * task.batch, task.batch
    x, y = task.data.train_x[:whole], task.data.train_y[:whole]

    def one_round() -> None:
        for i, (module, optimizer) in enumerate(zip(modules, optimizers, strict=True)):
            part = slice(i * batch, (i + 1) * batch)
            optimizer.zero_grad()
            torch.autograd.backward(task.loss(module, x[part], y[part]))
            optimizer.step()

    return one_round


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", nargs="*", default=["float32"])
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--together", type=int, nargs="*", default=[1], help="runs in one stack")
    parser.add_argument("--grouped", action="store_true", help="convolutions as vmap makes them of nn.Conv2d")
    parser.add_argument("--keep", default="auto", choices=["auto", "host"], help="where the data are")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--no-loop", action="store_true", help="leave the slow loop out")
    parser.add_argument("--tier", choices=["vmap", "each"], help="on a CPU: not the one that the model gets")
    chosen = parser.parse_args()
    if chosen.tier:
        vars(workers)["batched_on_cpu"] = lambda module: chosen.tier == "vmap"
    if chosen.grouped:
        ShiftedConv.fits = staticmethod(lambda part: False)  # type: ignore[method-assign]  # to time plain convolutions beside it
    network = Network(graphs.dumbbell(clique=chosen.workers // 2))
    print("model          precision  runs  tier     first round   round  gradients and step   plain loop, ms")
    for name in chosen.models:
        module, data, loss = MODELS[name]()
        data = replace(data, keep=chosen.keep)
        shares = partition(data.labels, network.n, "iid", seed=0)
        batch = LARGE if name == "vgg11" else BATCH
        task = make_task(data, shares, module, seed=0, batch=batch, loss=loss)
        for precision, runs in itertools.product(chosen.precision, chosen.together):
            training = Training(rounds=10**6, precision=precision)
            setup = Setup(network=network, task=task, rule=ClippedGossip(1.0), training=training)
            began = time.perf_counter()
            stack = Stack([setup] * runs, chosen.device)
            stack.advance()
            if chosen.device == "cuda":
                torch.cuda.synchronize()
            first = time.perf_counter() - began
            stack.check = None
            work: dict[str, Work] = {"round": stack.advance}
            work["step"] = captured(stack.step) if chosen.device == "cuda" else stack.step
            if not chosen.no_loop and precision == chosen.precision[0]:
                work["loop"] = loop(setup, chosen.device)
            found = interleaved(work, chosen.device)
            found = {key: seconds / (1 if key == "loop" else runs) for key, seconds in found.items()}
            times = "  ".join(f"{1e3 * found[key]:9.2f}" for key in ("round", "step", "loop") if key in found)
            print(
                f"{name:14} {precision:10} {runs:4}  {stack.workers.tier:8} {first:8.1f} s  {times}",
                flush=True,
            )


if __name__ == "__main__":
    main()
