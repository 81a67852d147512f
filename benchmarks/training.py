"""A full training round beside a plain loop: 20 modules, 20 optimizers, mixing neighbour by neighbour.

    python benchmarks/training.py [--device cuda] [--precision bfloat16] [--model cnn] [--together 1 5]
    python benchmarks/training.py --device cuda --precision bfloat16 --regular 500 8 --no-loop

Random images of MNIST's (or, for vgg11, CIFAR-10's) shape: the arithmetic is the same. Printed: milliseconds
a round, the floor of each stage (operations and bytes over ceilings measured in the same run), and the gap.
"""

import argparse

import networkx as nx
import torch
from timing import Work, captured, interleaved
from torch import Tensor, nn

from clippedgossip import graphs
from clippedgossip.network import Network
from clippedgossip.rules import ClippedGossip
from clippedgossip.simulate import Setup, Training
from clippedgossip.simulate.engine import Stack
from clippedgossip.tasks import DataSet, Task, build, make_task, partition

BATCHES = {"cnn": 32, "vgg11": 64}
SHAPES = {"cnn": (1, 28, 28), "vgg11": (3, 32, 32)}


def make(model: str, seed: int, network: Network, data: DataSet) -> Task:
    shares = partition(data.train_y, network.n, "iid", seed=seed)
    return make_task(data, shares, model, seed=seed, batch=BATCHES[model])


class Loop:
    """What one writes first."""

    def __init__(self, network: Network, task: Task, model: str, device: str) -> None:
        data = task.data
        self.network, self.task, self.device = network, task, device
        self.modules = [
            build(model, data.shape, data.classes or 0, seed=0).to(device) for _ in range(network.n)
        ]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=0.01, momentum=0.9) for m in self.modules]
        self.weights = network.weights
        self.round = 0

    def __call__(self) -> None:
        for i, (module, optimizer) in enumerate(zip(self.modules, self.optimizers, strict=True)):
            rows = self.task.table[
                i, torch.randint(int(self.task.sizes[i]), (self.task.batch,), device=self.device)
            ]
            x, y = self.task.data.normalise(self.task.data.train_x[rows]), self.task.data.train_y[rows]
            optimizer.zero_grad()
            torch.autograd.backward(self.task.loss(module, x, y))
            optimizer.step()
        self.mix()
        self.round += 1

    @torch.no_grad()
    def mix(self) -> None:
        vectors = [nn.utils.parameters_to_vector(module.parameters()) for module in self.modules]
        for i, module in enumerate(self.modules):
            mixed = vectors[i].clone()
            for j in self.network.indices[self.network.indptr[i] : self.network.indptr[i + 1]]:
                difference = vectors[j] - vectors[i]
                factor = min(1.0, 1.0 / float(difference.norm()))
                mixed += float(self.weights[i, j]) * factor * difference
            nn.utils.vector_to_parameters(mixed, module.parameters())


def ceilings(device: str, precision: str) -> tuple[float, float]:
    """(bytes a second of a large copy, reads and writes; operations a second of a large product)."""
    big = torch.randn((1 << 28 if device == "cuda" else 1 << 25), device=device)
    size = 8192 if device == "cuda" else 1024
    dtype = torch.bfloat16 if precision == "bfloat16" and device == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    times = interleaved({"copy": big.clone, "product": lambda: a @ b}, device, 5)
    return 2 * big.numel() * 4 / times["copy"], 2 * size**3 / times["product"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--precision", default="float32", choices=["float32", "tf32", "bfloat16"])
    parser.add_argument("--model", default="cnn", choices=list(BATCHES))
    parser.add_argument("--together", type=int, nargs="*", default=[1])
    parser.add_argument("--clique", type=int, default=10, help="of the dumbbell")
    parser.add_argument(
        "--regular",
        type=int,
        nargs=2,
        metavar=("NODES", "DEGREE"),
        help="a random regular graph in its place",
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--no-loop", action="store_true", help="leave the slow loop out")
    chosen = parser.parse_args()
    if chosen.regular:
        nodes, degree = chosen.regular
        network = Network(nx.random_regular_graph(degree, nodes, seed=0))
    else:
        network = Network(graphs.dumbbell(clique=chosen.clique))
    generator = torch.Generator().manual_seed(0)
    shape = SHAPES[chosen.model]
    x = torch.randint(256, (6000, *shape), generator=generator, dtype=torch.uint8)
    y = torch.arange(6000) % 10
    data = DataSet(
        name="random", train_x=x, train_y=y, test_x=x[:100], test_y=y[:100], classes=10,
        mean=torch.tensor(128.0), std=torch.tensor(64.0),
    )  # fmt: skip
    training = Training(rounds=10**6, precision=chosen.precision)
    work: dict[str, Work] = {}
    stacks: dict[int, Stack] = {}
    for runs in chosen.together:
        tasks = [make(chosen.model, seed, network, data) for seed in range(runs)]
        rule = ClippedGossip(radius=1.0)
        setups = [Setup(network=network, task=task, rule=rule, training=training) for task in tasks]
        stacks[runs] = Stack(setups, torch.device(chosen.device), None)
        stacks[runs].advance()
        stacks[runs].check = None  # it would compare the graphs of `stages`
        work[f"stacked, {runs} run(s)"] = stacks[runs].advance
    if not chosen.no_loop:
        task = make(chosen.model, 0, network, data).to(chosen.device)
        work["loop"] = Loop(network, task, chosen.model, chosen.device)
    one = stacks[chosen.together[0]]
    with torch.no_grad():
        work |= stages(one, chosen.device)
    times = interleaved(work, chosen.device, chosen.repetitions)
    bandwidth, rate = ceilings(chosen.device, chosen.precision)
    report(times, one, chosen.together, bandwidth, rate)
    if chosen.device == "cuda":
        print(f"most memory held: {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB")


def stages(stack: Stack, device: str) -> dict[str, Work]:
    def local() -> None:
        stack.step()

    def mixing() -> None:
        for mixer, part in zip(stack.mixers, stack.parts, strict=True):
            mixer.mix(stack.half[part], stack.models[part], stack.clock.round, 1)

    found: dict[str, Work] = {"gradients and half-step": local, "mixing": mixing}
    return {name: captured(call) if device == "cuda" else call for name, call in found.items()}


def report(times: dict[str, float], stack: Stack, together: list[int], bandwidth: float, rate: float) -> None:
    n, d = stack.models.shape
    samples = n * stack.workers.task.batch
    operations = 6 * samples * products(stack.workers.task.module, stack.workers.task.data.shape)
    model_bytes = n * d * 4
    floors = {
        "gradients and half-step": max(operations / rate, 6 * model_bytes / bandwidth),
        "mixing": 3 * model_bytes / bandwidth,
    }
    print(f"{n} workers, {d:,} parameters; ceilings: {bandwidth / 1e9:.0f} GB/s, {rate / 1e12:.2f} TFLOP/s")
    for runs in together:
        took = times[f"stacked, {runs} run(s)"]
        ahead = f", {times['loop'] / took * runs:.1f}× the loop" if "loop" in times else ""
        print(f"stacked, {runs} run(s): {took / runs * 1e3:.2f} ms a round and run{ahead}")
    if "loop" in times:
        print(f"loop: {times['loop'] * 1e3:.2f} ms a round")
    for name, floor in floors.items():
        gap = times[name] / floor
        print(f"{name}: {times[name] * 1e3:.2f} ms, floor {floor * 1e3:.2f} ms, {gap:.1f}× the floor")


def products(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Multiplications of one sample's forward pass."""
    total = 0

    def count(layer: nn.Module, _: object, output: Tensor) -> None:
        nonlocal total
        if isinstance(layer, nn.Conv2d):
            total += output[0].numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Linear):
            total += layer.weight.numel()

    hooks = [layer.register_forward_hook(count) for layer in module.modules()]
    with torch.no_grad():
        module(torch.zeros(1, *shape, device=next(module.parameters()).device))
    for hook in hooks:
        hook.remove()
    return total


if __name__ == "__main__":
    main()
