"""What the ranks of `test_distributed` run, in processes of their own: importable, quick to start."""

import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
from torch import nn

from clippedgossip.attacks import ATTACKS, Attack, Dissensus, LabelFlipping, Tuned, make_attack
from clippedgossip.errors import DataError
from clippedgossip.network import Network
from clippedgossip.rules import (
    NNM,
    RULES,
    Adaptive,
    Bucketing,
    ClippedGossip,
    Local,
    Median,
    Mozi,
    Oracle,
    Quantile,
    Rule,
    TrimmedMean,
)
from clippedgossip.simulate import Setup, State, Training
from clippedgossip.simulate.distributed import shared_memory
from clippedgossip.simulate.distributed.ranks import Ranks
from clippedgossip.simulate.distributed.rendezvous import join
from clippedgossip.simulate.distributed.shard import Shard, follow, train_distributed
from clippedgossip.simulate.distributed.transpose import length
from clippedgossip.step import AdamW, LearningRate
from clippedgossip.tasks import DataSet
from tests.samples import sample_rule, sample_setup

RULE_CASES: dict[str, Rule] = {name: sample_rule(name) for name in RULES} | {
    "clipped-gossip": ClippedGossip(0.05),
    "bucketing": Bucketing(TrimmedMean(trim=1)),
    "nnm": NNM(Median(), faulty=1),
    "mozi": Mozi(keep=0.5),  # by the losses of the engine
    "adaptive radius": ClippedGossip(Adaptive(delta_max=0.25)),
    "local radius": ClippedGossip(Local(faulty=1)),
    "quantile radius": ClippedGossip(Quantile(0.5)),
    "oracle radius": ClippedGossip(Oracle()),
    "bucketing mozi": Bucketing(Mozi(keep=0.5)),
}
# The search keeps off ε = 1, where messages lie on opposite sides of the own model, equally far from it.
ATTACK_CASES: dict[str, Attack] = {
    name: Tuned(Dissensus(), low=0.6, high=2, steps=2, refinements=1)
    if name == "tuned"
    else make_attack(name)
    for name in ATTACKS
}
SPARSE = [
    ("clipped-gossip", "dissensus"),
    ("geometric-median", "mimic"),
    ("balance", "gaussian"),
    ("median", "alie"),
    ("mozi", "bit-flipping"),
]


def data(shape: tuple[int, ...] = (6,), classes: int = 3, samples: int = 240) -> DataSet:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(samples) % classes
    centres = torch.randn(classes, *shape, generator=generator)
    inputs = centres[labels] + torch.randn(samples, *shape, generator=generator)
    return DataSet.of(inputs, labels, inputs[:61], labels[:61], name="tiny")


LONGEST = 80
"""Terms of the longest sum in `setup`, at most: a mean over the nodes of `sparse`."""


def setup(
    rule: Rule | str = "clipped-gossip",
    attack: Attack | str | None = None,
    *,
    network: Network | None = None,
    model: str | nn.Module = "linear",
    shape: tuple[int, ...] = (6,),
    seed: int = 0,
    **training: Any,
) -> Setup:
    """Seven nodes, two of them Byzantine if there is an attack, in two groups."""
    rule = RULE_CASES[rule] if isinstance(rule, str) else rule
    attack = ATTACK_CASES[attack] if isinstance(attack, str) else attack
    if network is None:
        graph = nx.circulant_graph(7, [1, 2])
        nx.set_node_attributes(graph, {node: "even" if node % 2 == 0 else "odd" for node in graph}, "group")
        network = Network(graph, byzantine=[2, 5] if attack else [])
    options: dict[str, Any] = {"rounds": 2, "evaluate_every": 2, "evaluate_last": 0}
    options["lr"] = LearningRate(initial=0.1)
    chosen = Training(**(options | training))
    return sample_setup(data(shape), rule, attack, chosen, network=network, model=model, seed=seed)


def sparse(nodes: int = 80) -> Network:
    """So large and sparse that rules walk along the edges."""
    return Network(nx.random_regular_graph(4, nodes, seed=3), byzantine=range(0, nodes, 10))


CHANGING: dict[str, dict[str, Any]] = {
    "random neighbours, late links": {
        "schedule": {"name": "random-neighbours", "neighbours": 3},
        "delay": {"edges": 1},
    },
    "random matching": {"schedule": "random-matching"},
    "one peer, late": {"schedule": "one-peer-exponential", "delay": 1},
    "churn, slow nodes": {"schedule": {"name": "churn", "leave": 0.3}, "delay": {"nodes": 2}},
    "phases": {"schedule": {"name": "phases", "phases": [{"rounds": 1, "network": "ring"}, {"rounds": 1}]}},
    "optimal weights, a function": {
        "weights": "optimal",
        "schedule": lambda network, round, seed: [(i, (i + 1 + round % 3) % 7) for i in range(7)],
    },
    "robust weights": {"weights": {"robust": 1, "cap": 0.13}},
}
"""Other neighbours in every round, messages that come late, weights that do not follow from degrees."""


def pairs(size: int) -> list[tuple[str, str]]:
    """Every rule and every attack at least once, in other pairs for every number of ranks."""
    attacks = list(ATTACK_CASES)
    return [(rule, attacks[(place + size) % len(attacks)]) for place, rule in enumerate(RULE_CASES)]


ALL_PAIRS = [(rule, attack) for rule in RULE_CASES for attack in ATTACK_CASES]


def cases(chosen: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Setup]]:
    """Those pairs of a rule and an attack, and what else a run may hold."""
    for rule, attack in chosen:
        yield f"{rule} under {attack}", setup(rule, attack)
    for rule, attack in SPARSE:
        yield f"{rule} under {attack}, sparse", setup(rule, attack, network=sparse())
    for name, changes in CHANGING.items():
        network = Network(nx.complete_graph(7), byzantine=[2, 5], **changes)
        for rule, attack in (("clipped-gossip", "dissensus"), ("median", "label-flipping")):
            yield f"{rule} under {attack}, {name}", setup(rule, attack, network=network)
    yield "no attack", setup(rounds=4, evaluate_last=4, evaluate_last_every=1, evaluate_nodes=False)
    yield "dropout and convolutions", setup("clipped-gossip", LabelFlipping(), model="cnn", shape=(1, 8, 8))
    yield (
        "local steps",
        setup(
            local_steps=3,
            batches="epochs",
            optimizer=AdamW(clip_gradient=1.0),
            rounds=3,
            evaluate_components=True,
        ),
    )
    fed = setup("clipped-gossip", LabelFlipping())
    yield "data on the host", replace(fed, task=replace(fed.task, data=replace(fed.task.data, keep="host")))
    few = nn.Linear(1, 3, bias=False)  # coordinates: one of four ranks has none
    nn.init.zeros_(few.weight)
    yield "few coordinates", setup("bucketing", "alie", model=few, shape=(1,))


def outcome(moments: Sequence[Any]) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """Records, models and clips of a run: arrays, since tensors would be sent as open files."""
    tensors = moments[-1].state().tensors
    records = [moment.record.to_json() for moment in moments if moment.record is not None]
    return records, tensors["models"].cpu().numpy(), tensors["clips"].cpu().numpy()


Work = Callable[..., Any]
"""work(ranks, *arguments) on every rank; what rank 0 returns is the result."""


def together(
    size: int,
    work: Work,
    *arguments: Any,
    folder: Path,
    timeout: float = 60,
    share_memory: bool = True,
    patience: float = 120,
) -> list[Any]:
    """Run `work` on that many ranks; what each returned, its error's text, or None if it died."""
    context = get_context("forkserver")
    # Models that are not small are counted on meta tensors, for which PyTorch imports its compiler.
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    url = f"file://{folder}/store-{time.monotonic_ns()}?world_size={size}"
    pipes, processes = [], []
    for rank in range(size):
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_member, args=(theirs, f"{url}&rank={rank}", timeout, share_memory, work, arguments)
        )
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    results = [_result(pipe, patience if rank == 0 else 5) for rank, pipe in enumerate(pipes)]
    for process, result in zip(processes, results, strict=True):
        process.join(0 if result is None else 10)
        process.kill()
    return results


def _member(
    pipe: Connection, url: str, timeout: float, share_memory: bool, work: Work, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    try:
        with join(url=url, timeout=timeout, share_memory=share_memory) as ranks:
            result = work(ranks, *arguments)
    except BaseException as error:
        result = f"{type(error).__name__}: {error}"
    pipe.send(result)


def _result(pipe: Connection, seconds: float) -> Any:
    try:
        return pipe.recv() if pipe.poll(seconds) else None
    except EOFError:
        return None


def run_cases(ranks: Ranks, chosen: Sequence[tuple[str, str]], device: str = "cpu") -> dict[str, Any] | None:
    """The cases one after the other, in one group of processes."""
    each = cases(chosen)
    if ranks.rank:
        follow(lambda: next(each)[1], ranks=ranks)
        return None
    return {name: outcome(list(train_distributed(case, ranks=ranks, device=device))) for name, case in each}


class Counts(nn.Module):
    """Counts its steps from a number at which float32 would not."""

    steps: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.tensor(2.0**40, dtype=torch.float64))
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps.add_(1)
        return self.layers(x)  # type: ignore[no-any-return]  # a module's call


def long_run() -> Setup:
    return setup(
        "clipped-gossip",
        "label-flipping",
        network=Network(nx.complete_graph(7), byzantine=[2, 5], **CHANGING["random neighbours, late links"]),
        model=Counts(),
        rounds=6,
        evaluate_every=1,
        evaluate_nodes=False,
    )


def run_from(ranks: Ranks, before: str | None, after: str, stop: int) -> Any:
    """A run from a checkpoint to a round, and another checkpoint there; the records on the way."""
    if ranks.rank:
        follow(long_run, ranks=ranks)
        return None
    state = None if before is None else State.load(before)
    records = []
    for moment in train_distributed(long_run(), ranks=ranks, state=state):
        assert moment.record is not None
        records.append(moment.record.to_json())
        if moment.round == stop:
            moment.state().save(after)
            return records
    return records


def count_bytes(ranks: Ranks, shape: str, hosts: int = 1) -> dict[str, int]:
    """What one round sends, and what it should, if ranks were on so many hosts."""
    shared_memory.host = lambda: f"host-{ranks.rank % hosts}"
    network = Network(nx.complete_graph(13) if shape == "dense" else nx.cycle_graph(13), byzantine=[4])
    shard = Shard(
        setup("clipped-gossip", "dissensus", network=network, model="mlp"), ranks, torch.device("cpu")
    )
    shard.start(None)
    shard.training = replace(shard.training, evaluate_every=1000, rounds=1000)
    shard.advance()
    exchanged, reduced = ranks.exchanged, ranks.reduced
    shard.advance()
    transpose = shard.transpose
    mine, here = length(transpose.own_rows), length(transpose.own_columns)
    return {
        "exchanged": ranks.exchanged - exchanged,
        "notes": 0 if shard.shared is None else 2 * (ranks.size - 1),
        "reduced": ranks.reduced - reduced,
        "expected": 4 * (mine * (transpose.size - here) + (transpose.workers - mine) * here),
        "workers": transpose.workers,
        "parameters": transpose.size,
    }


def count_tried(ranks: Ranks, rule: Rule) -> int:
    """Of how many messages this rank computes the loss in a round."""
    shard, tried = Shard(setup(rule), ranks, torch.device("cpu")), []
    losses_of = shard.mixer._losses_of

    def counted(models: torch.Tensor, *batch: Any) -> Any:
        tried.append(len(models))
        return losses_of(models, *batch)

    vars(shard.mixer)["_losses_of"] = counted
    shard.start(None)
    shard.advance()
    return sum(tried)


def disagree(ranks: Ranks, what: dict[str, Any]) -> int | None:
    """Rank 1 is started with something else."""
    if ranks.rank:
        other = what if ranks.rank == 1 else {}
        follow(lambda: setup(**other), ranks=ranks)
        return None
    return next(train_distributed(setup(), ranks=ranks)).round


def without_data(ranks: Ranks) -> int | None:
    def make() -> Setup:
        raise DataError("no digits on this host")

    if ranks.rank:
        follow(make if ranks.rank == 1 else setup, ranks=ranks)
        return None
    return next(train_distributed(setup(), ranks=ranks)).round


def lose_rank_1(ranks: Ranks, how: str) -> None:
    """Rank 1 is lost in the midst of the third round."""
    run = setup(rounds=50)
    if ranks.rank == 0:
        for _ in train_distributed(run, ranks=ranks):
            pass
        return
    if ranks.rank == 1:
        calls = iter(range(100))
        kept = ranks.exchange

        def exchange(*arguments: Any) -> None:
            if next(calls) == 5:
                fail(how)
            kept(*arguments)

        vars(ranks)["exchange"] = exchange
    follow(lambda: run, ranks=ranks)


def fail(how: str) -> None:
    if how == "raise":
        raise MemoryError("no room for another model")
    os.kill(os.getpid(), signal.SIGKILL if how == "kill" else signal.SIGSTOP)


def stop_by_signal(ranks: Ranks, number: signal.Signals) -> int:
    """Rank 0 gets torchrun's signals after the second round."""
    run = setup(rounds=1000)
    if ranks.rank:
        follow(lambda: run, ranks=ranks)
        return 0
    for moment in train_distributed(run, ranks=ranks):
        if moment.round == 2:
            os.kill(os.getpid(), number)
            os.kill(os.getpid(), number)
    return 0


def leave_early(ranks: Ranks) -> str:
    """Rank 0's reader has seen enough, or fails; the others stop too."""
    if ranks.rank:
        follow(setup, ranks=ranks)
        return "stopped"
    next(train_distributed(setup(), ranks=ranks))
    raise OSError("disk full")
