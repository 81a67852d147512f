"""One round of mixing for all nodes, beside a copy of the models and beside other libraries' rules.

    pip install --no-deps byzfl==0.0.11 byzpy==0.1.4
    python benchmarks/mixing.py [--device cuda] [--nodes 20] [--parameters 1200000]
    python benchmarks/mixing.py --processor-time    # of one thread: where others use the machine too

The others aggregate at one server, so for a network they loop over its nodes, each with its neighbours; two
nodes of that loop are timed and scaled to all.
"""

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from timing import Work, captured, interleaved
from torch import Tensor

from clippedgossip.graphs.generators import Graph
from clippedgossip.mixing.inbox import Inbox
from clippedgossip.mixing.slots import Layout
from clippedgossip.network import Network
from clippedgossip.rules import (
    NNM,
    Bucketing,
    CenteredClipping,
    ClippedGossip,
    GeometricMedian,
    Gossip,
    Krum,
    Median,
    Rule,
    TrimmedMean,
)

OURS: dict[str, Rule] = {
    "Gossip": Gossip(),
    "ClippedGossip": ClippedGossip(radius=1.0),
    "GeometricMedian": GeometricMedian(iterations=8),
    "CenteredClipping": CenteredClipping(radius=1.0),
    "Krum": Krum(faulty=1),
    "Bucketing": Bucketing(ClippedGossip(radius=1.0)),
    "NNM": NNM(ClippedGossip(radius=1.0), faulty=1),
    "TrimmedMean": TrimmedMean(trim=1),
    "Median": Median(),
}
"""Bucketing and NNM are of ClippedGossip."""
SAMPLE = 2  # nodes of the others' loops that are run; their times are scaled to all nodes
Aggregate = Callable[[Tensor], object]


@cache
def byzfl() -> dict[str, Aggregate]:
    """Its rules, loaded from their file: the package itself imports torchvision."""
    found = importlib.util.find_spec("byzfl")
    if found is None or found.origin is None:
        return {}
    path = Path(found.origin).parent / "aggregators" / "aggregators.py"
    sys.modules.setdefault("byzfl", type(sys)("byzfl")).__path__ = [str(path.parents[1])]
    spec = importlib.util.spec_from_file_location("byzfl.aggregators.aggregators", path)
    assert spec is not None
    assert spec.loader is not None
    rules: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rules)
    return {
        "ClippedGossip": rules.CenteredClipping(L=1, tau=1.0),
        "GeometricMedian": rules.GeometricMedian(nu=0.1, T=8),
        "TrimmedMean": rules.TrMean(f=1),
        "Median": rules.Median(),
    }


@cache
def byzpy() -> dict[str, Aggregate]:
    if importlib.util.find_spec("byzpy") is None:
        return {}
    from byzpy.aggregators.coordinate_wise.median import CoordinateWiseMedian
    from byzpy.aggregators.coordinate_wise.trimmed_mean import CoordinateWiseTrimmedMean
    from byzpy.aggregators.geometric_wise.geometric_median import GeometricMedian as TheirMedian
    from byzpy.aggregators.norm_wise.center_clipping import CenteredClipping

    rules = {
        "ClippedGossip": CenteredClipping(c_tau=1.0, M=1),
        "GeometricMedian": TheirMedian(max_iter=8),
        "TrimmedMean": CoordinateWiseTrimmedMean(f=1),
        "Median": CoordinateWiseMedian(),
    }
    return {name: partial(_as_list, rule) for name, rule in rules.items()}


def _as_list(rule: Any, rows: Tensor) -> object:
    return rule.aggregate(list(rows))


def loop(aggregate: Aggregate, models: Tensor, neighbours: list[Tensor]) -> None:
    """The first nodes of a loop over all: every node has as many neighbours, so the rest takes as long."""
    for rows in neighbours[:SAMPLE]:
        aggregate(models[rows])


def compare(
    graph: Graph, title: str, models: Tensor, device: str, repetitions: int, clock: Callable[[], float]
) -> None:
    network = Network(graph)
    layout = Layout.of(network, device)
    closed = [torch.cat([torch.tensor([i]), torch.tensor(network.indices[a:b])]).to(device)
              for i, (a, b) in enumerate(zip(network.indptr, network.indptr[1:], strict=False))]  # fmt: skip

    def ours(rule: Rule) -> Work:
        call = partial(lambda rule: rule.mix(Inbox(layout=layout, models=models)), rule)
        return captured(call) if device == "cuda" else call

    work: dict[str, Work] = {"clone": models.clone}
    work |= {name: ours(rule) for name, rule in OURS.items()}
    for library, rules in (("byzfl", byzfl()), ("byzpy", byzpy())):
        work |= {f"{name} {library}": partial(loop, rule, models, closed) for name, rule in rules.items()}
    times = interleaved(work, device, repetitions, clock)
    times |= {name: took * len(closed) / SAMPLE for name, took in times.items() if " byz" in name}
    clone = times["clone"]
    print(f"\n{title}: one clone of the models takes {clone * 1e3:.2f} ms")
    print(f"{'rule':<17}{'ms':>9}{'clones':>9}{'byzfl':>12}{'byzpy':>12}{'ahead of the faster':>21}")
    for name in OURS:
        mine = times[name]
        others = {library: times.get(f"{name} {library}") for library in ("byzfl", "byzpy")}
        known = [value for value in others.values() if value is not None]
        cells = [f"{value / clone:.1f}" if value is not None else "–" for value in others.values()]
        ahead = f"{min(known) / mine:.1f}×" if known else "–"
        print(f"{name:<17}{mine * 1e3:>9.2f}{mine / clone:>9.2f}{cells[0]:>12}{cells[1]:>12}{ahead:>21}")
    print("(in clones, but for the second column; the others' nearest to ClippedGossip is centered clipping)")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--nodes", type=int, default=20)
    parser.add_argument("--parameters", type=int, default=1_200_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true")
    chosen = parser.parse_args()
    clock = time.perf_counter
    if chosen.processor_time:
        clock = time.process_time
        torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    models = torch.randn(chosen.nodes, chosen.parameters, generator=generator).to(chosen.device)
    with torch.no_grad():
        nodes, size = chosen.nodes, (models, chosen.device, chosen.repetitions, clock)
        compare(nx.complete_graph(nodes), f"complete graph of {nodes}", *size)
        compare(nx.random_regular_graph(6, nodes, seed=0), f"random 6-regular graph of {nodes}", *size)


if __name__ == "__main__":
    main()
