"""A round on a network that changes, beside a static one with as many neighbours.

    python benchmarks/changing.py [--device cuda] [--rounds 60]

20 nodes with 1.2 million parameters, and 1000 nodes with ten thousand; every node hears ten others, of which
one in ten is Byzantine. Printed: seconds a round, the smallest of three interleaved repetitions: on a CPU
those of one thread, whatever else the machine does. Last, mixing of 100,000 nodes that hear 10 random others
each, for two lengths of model: the time of the draw, and that of the mixing for each edge and coordinate.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import networkx as nx
import torch
from torch import nn

from clippedgossip.attacks import Dissensus
from clippedgossip.network import Network
from clippedgossip.rules import ClippedGossip
from clippedgossip.simulate import Setup, Training
from clippedgossip.simulate.consensus import trajectory
from clippedgossip.simulate.engine import Stack
from clippedgossip.tasks import DataSet, make_task, partition

DRAWN = {"name": "random-neighbours", "neighbours": 10}


def networks(nodes: int) -> dict[str, Network]:
    """A static network and two that change, with ten neighbours each."""
    byzantine = range(0, nodes, 10)
    return {
        "static": Network(nx.random_regular_graph(10, nodes, seed=0), byzantine=byzantine),
        "changing": Network(nx.complete_graph(nodes), byzantine=byzantine, schedule=DRAWN),
        "changing, late": Network(nx.complete_graph(nodes), byzantine=byzantine, schedule=DRAWN, delay=1),
    }


def stack(network: Network, hidden: int, device: str, rounds: int) -> Stack:
    """A run of `rounds` rounds with 64 inputs, a hidden layer and 10 classes."""
    labels = torch.arange(2 * len(network.regular)) % 10
    data = DataSet.of(torch.randn(len(labels), 64), labels, torch.randn(20, 64), labels[:20], name="noise")
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    nodes = network.regular.tolist()
    task = make_task(data, partition(labels, len(nodes), "iid", seed=0), model, seed=0, batch=32, nodes=nodes)
    training = Training(rounds=rounds, lr=1e-4, evaluate_every=rounds, evaluate_last=0)
    return Stack(
        [Setup(network=network, task=task, rule=ClippedGossip(1.0), attack=Dissensus(), training=training)],
        device,
    )


def seconds(work: Callable[[], object], times: int, device: str) -> float:
    """Seconds of one call, of so many in a row."""
    if device == "cuda":
        torch.cuda.synchronize()
    clock = time.process_time if device == "cpu" else time.perf_counter
    started = clock()
    for _ in range(times):
        work()
    if device == "cuda":
        torch.cuda.synchronize()
    return (clock() - started) / times


def compare(nodes: int, hidden: int, device: str, rounds: int) -> None:
    stacks = {name: stack(net, hidden, device, 8 * rounds) for name, net in networks(nodes).items()}
    for made in stacks.values():
        for _ in range(3):
            made.advance()
    found: dict[str, list[float]] = {name: [] for name in stacks}
    for _ in range(3):
        for name, made in stacks.items():
            found[name].append(seconds(made.advance, rounds, device))
    size = next(iter(stacks.values())).models.shape[1]
    for name, times in found.items():
        ratio = min(times) / min(found["static"])
        print(f"{nodes} × {size:,} {device}, {name}: {min(times) * 1e3:.2f} ms a round, {ratio:.2f} × static")


def large(device: str) -> None:
    graph = nx.empty_graph(100_000)
    graph.graph["everyone"] = True
    network = Network(graph, byzantine=range(0, 100_000, 10), schedule=DRAWN)
    draw = min(seconds(partial(network.at, round), 1, "cpu") for round in range(3))
    print(f"100,000 nodes hear 10 each: {draw:.2f} s to draw")
    for length in (64, 256):
        start = torch.randn(len(network.regular), length, device=device)
        states = trajectory(network, ClippedGossip(1.0), start, attack=Dissensus(), rounds=3)
        next(states), next(states)
        took = seconds(partial(next, states), 1, device)
        each = took / 1e6 / length * 1e9
        print(f"  {length} coordinates: {took:.2f} s a round, {each:.2f} ns an edge and coordinate")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=20)
    chosen = parser.parse_args()
    if chosen.device == "cpu":
        torch.set_num_threads(1)
    compare(20, 16_000, chosen.device, chosen.rounds)
    compare(1000, 134, chosen.device, chosen.rounds)
    large(chosen.device)
