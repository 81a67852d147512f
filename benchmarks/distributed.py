"""One run over several processes beside the same run in one: where a round's time goes, and its bytes.

    python benchmarks/distributed.py [--cases …] [--ranks 2] [--repetitions 20] [--rounds 1]

The ranks have one thread each, the single process has as many threads as there are ranks. They take turns;
the fastest turn of each is printed, which others on the machine disturbed least. `speed` is the single
process's time for a round over that of the ranks, `median` the same for the medians of all turns, `cpu` for
processor time. Phases are rank 0's; the wait for the other ranks is in its turns and mixing.

Ranks of one host write models to each other's memory. `gloo` is a round of ranks that may not, as if each
were on a host of its own, with a network as fast as the loopback. `MB sent` by such a rank in a round is what
crossed the loopback of a network namespace of our own, headers and all; `formula` is
2·(workers/ranks)·d·4·(ranks−1)/ranks.
"""

import argparse
import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import networkx as nx
import torch

from clippedgossip.attacks import Dissensus
from clippedgossip.network import Network
from clippedgossip.rules import ClippedGossip, Rule, TrimmedMean
from clippedgossip.simulate import Setup, Training
from clippedgossip.simulate.distributed.rendezvous import join
from clippedgossip.simulate.distributed.shard import Shard
from clippedgossip.simulate.engine import Stack
from clippedgossip.step import LearningRate
from clippedgossip.tasks import DataSet, make_task, partition

CASES = {
    "cnn, complete, clipped": ("cnn", 8, "complete", ClippedGossip(0.5)),
    "cnn, ring, clipped": ("cnn", 8, "ring", ClippedGossip(0.5)),
    "cnn, complete, trimmed mean": ("cnn", 8, "complete", TrimmedMean(1)),
    "mlp, complete, clipped": ("mlp", 32, "complete", ClippedGossip(0.5)),
}
Work = tuple[Callable[..., None], tuple[Any, ...]]
Spent = dict[str, float]
PHASES = ("step", "to_slices", "mix", "to_models")
NAMESPACE = "CLIPPEDGOSSIP_BENCHMARK_NAMESPACE"


def setup(model: str, workers: int, graph: str, rule: Rule) -> Setup:
    """So many regular nodes and two Byzantine ones, each with sixty-four images of noise."""
    n = workers + 2
    network = Network(nx.complete_graph(n) if graph == "complete" else nx.cycle_graph(n), byzantine=[0, 1])
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(64 * workers, 1, 28, 28, generator=generator)
    labels = torch.arange(len(images)) % 10
    data = DataSet.of(images, labels, images[:100], labels[:100])
    shares = partition(labels, workers, "iid", seed=0)
    task = make_task(data, shares, model, seed=0, batch=32, nodes=network.regular.tolist())
    training = Training(rounds=10**6, evaluate_every=10**6, evaluate_last=0, lr=LearningRate(initial=1e-3))
    return Setup(network=network, task=task, rule=rule, attack=Dissensus(), training=training)


def alone(pipe: Connection, case: str, threads: int) -> None:
    """The stacked engine."""
    torch.set_num_threads(threads)
    stack = Stack([setup(*CASES[case])], torch.device("cpu"), None)
    stack.advance()
    serve(pipe, stack.advance, {})


def member(pipe: Connection, case: str, url: str, share_memory: bool) -> None:
    """One rank, its phases timed."""
    torch.set_num_threads(1)
    with join(url=url, share_memory=share_memory) as ranks:
        shard = Shard(setup(*CASES[case]), ranks, torch.device("cpu"))
        shard.start(None)
        shard.advance()
        spent = dict.fromkeys(PHASES, 0.0)
        for phase in PHASES:
            setattr(shard, phase, timed(getattr(shard, phase), spent, phase))
        serve(pipe, shard.advance, spent)


def timed(call: Callable[[], None], spent: dict[str, float], phase: str) -> Callable[[], None]:
    def wrapped() -> None:
        begin = time.perf_counter()
        call()
        spent[phase] += time.perf_counter() - begin

    return wrapped


def serve(pipe: Connection, advance: Callable[[], object], spent: dict[str, float]) -> None:
    """So many rounds whenever asked; what one took: seconds, of each phase too, and bytes on the loopback."""
    while rounds := pipe.recv():
        spent.update(dict.fromkeys(spent, 0.0))
        before, begin, used = loopback(), time.perf_counter(), time.process_time()
        for _ in range(rounds):
            advance()
        spent["round"], spent["cpu"] = time.perf_counter() - begin, time.process_time() - used
        spent["bytes"] = loopback() - before
        pipe.send({name: total / rounds for name, total in spent.items()})


def loopback() -> int:
    """Bytes sent over the loopback since the namespace began."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    return 0


def measure(case: str, ranks: int, repetitions: int, rounds: int, folder: str) -> str:
    works: list[list[Work]] = [[(alone, (case, ranks))]]
    for share_memory in (True, False):
        url = f"file://{folder}/{time.monotonic_ns()}?world_size={ranks}"
        works.append([(member, (case, f"{url}&rank={rank}", share_memory)) for rank in range(ranks)])
    started: list[Any] = []
    pipes: list[tuple[Connection, ...]] = []
    for group in works:
        processes, ends = zip(*(start(work, arguments) for work, arguments in group), strict=True)
        started += processes
        pipes.append(ends)
    found: list[list[Spent]] = [[], [], []]
    for _ in range(repetitions):
        for turns, group_pipes in zip(found, pipes, strict=True):
            for pipe in group_pipes:
                pipe.send(rounds)
            each = [pipe.recv() for pipe in group_pipes]
            turns.append(each[0] | {"cpu": sum(one["cpu"] for one in each)})
    for pipe in (pipe for group_pipes in pipes for pipe in group_pipes):
        pipe.send(0)
    for process in started:
        process.join(30)
    return line(case, ranks, *found)


def start(work: Callable[..., None], arguments: tuple[Any, ...]) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, *arguments), daemon=True)
    process.start()
    return process, ours


def line(case: str, ranks: int, stacked: list[Spent], share_memory: list[Spent], by_gloo: list[Spent]) -> str:
    one, many, gloo = fastest(stacked), fastest(share_memory), fastest(by_gloo)
    turns = many["to_slices"] + many["to_models"]
    parts = [one["round"], many["round"], many["step"], turns, many["mix"], gloo["round"]]
    run = setup(*CASES[case])
    formula = 2 * len(run.task.nodes) / ranks * run.task.layout.size * 4 * (ranks - 1) / ranks
    sent = f"{gloo['bytes'] / ranks / 1e6:7.2f}" if NAMESPACE in os.environ else f"{'-':>7}"
    ratios = [one["round"] / many["round"], median(stacked) / median(share_memory), one["cpu"] / many["cpu"]]
    return (
        f"{case:<28}{''.join(f'{seconds * 1e3:7.1f}' for seconds in parts)}"
        f"{''.join(f'{ratio:7.2f}' for ratio in ratios)} {sent} {formula / 1e6:7.2f}"
    )


def fastest(found: list[Spent]) -> Spent:
    return min(found, key=lambda one: one["round"])


def median(found: list[Spent]) -> float:
    return statistics.median(one["round"] for one in found)


def in_own_namespace() -> None:
    """Start again where the loopback carries nothing but our own bytes, if the system lets us."""
    if NAMESPACE in os.environ or shutil.which("unshare") is None or shutil.which("ip") is None:
        return
    if subprocess.run(["unshare", "-rn", "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        return
    inside = 'ip link set lo up && exec "$@"'
    os.environ[NAMESPACE] = "yes"
    os.execvp("unshare", ["unshare", "-rn", "sh", "-c", inside, "sh", sys.executable, *sys.argv])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="*", choices=CASES, default=list(CASES))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "passive"  # a thread that waits must not burn what others could use
    in_own_namespace()
    print(
        f"{options.ranks} ranks with a thread each, and one process with {options.ranks} threads; ms a round"
    )
    heads = ("single", "ranks", "step", "turns", "mixing", "gloo", "speed", "median", "cpu", "MB sent")
    print(f"{'':<28}{''.join(f'{head:>7}' for head in heads[:-1])} {heads[-1]} formula")
    with tempfile.TemporaryDirectory() as folder:
        for case in options.cases:
            print(measure(case, options.ranks, options.repetitions, options.rounds, folder), flush=True)


if __name__ == "__main__":
    main()
