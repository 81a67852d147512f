"""Cost against size: a ClippedGossip round on sparse and on dense graphs, and the audit of a network.

    python benchmarks/scaling.py [--out docs/benchmarks]

Every size runs in a process of its own, so that its peak memory is its own. Writes a table (Markdown) and a
plot (SVG).
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

SPARSE = (1250, 2500, 5000, 10_000)  # nodes of a random 8-regular graph, d = 1000
DENSE = (
    10,
    20,
    40,
    80,
)  # nodes of a complete graph, n·d fixed: the same bytes, eightfold the edges a node has
DENSE_NUMBERS = 16_000_000
AUDITS = (1000, 10_000, 100_000)  # nodes of a random 8-regular graph


def round_of(kind: str, nodes: int) -> dict[str, float]:
    import networkx as nx
    import torch

    from clippedgossip.mixing.inbox import Inbox
    from clippedgossip.mixing.slots import Layout
    from clippedgossip.network import Network
    from clippedgossip.rules import ClippedGossip

    sparse = kind == "sparse"
    graph = nx.random_regular_graph(8, nodes, seed=0) if sparse else nx.complete_graph(nodes)
    layout = Layout.of(Network(graph))
    models = torch.randn(nodes, 1000 if sparse else DENSE_NUMBERS // nodes)
    rule = ClippedGossip(radius=1.0)
    before = peak()
    times = []
    for _ in range(3):
        start = time.perf_counter()
        rule.mix(Inbox(layout=layout, models=models))
        times.append(time.perf_counter() - start)
    cloning = time.perf_counter()
    models.clone()
    cloning = time.perf_counter() - cloning
    return {
        "edges": graph.number_of_edges(),
        "parameters": models.shape[1],
        "seconds": min(times),
        "clones": min(times) / cloning,
        "megabytes": (peak() - before) / 1e6,
        "model megabytes": models.numel() * 4 / 1e6,
    }


def audit_of(nodes: int) -> dict[str, float]:
    from clippedgossip import graphs
    from clippedgossip.audit import audit
    from clippedgossip.network import Network

    network = Network(graphs.random_regular(degree=8, nodes=nodes, seed=0))
    start = time.perf_counter()
    audit(network)
    return {"seconds": time.perf_counter() - start, "megabytes": peak() / 1e6}


def peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def measured(kind: str, nodes: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", kind, str(nodes)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("docs/benchmarks"))
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        kind, nodes = chosen.one[0], int(chosen.one[1])
        print(json.dumps(audit_of(nodes) if kind == "audit" else round_of(kind, nodes)))
        return
    sizes = {"sparse": SPARSE, "dense": DENSE, "audit": AUDITS}
    results = {kind: {n: measured(kind, n) for n in chosen_sizes} for kind, chosen_sizes in sizes.items()}
    chosen.out.mkdir(parents=True, exist_ok=True)
    table = markdown(results)
    (chosen.out / "scaling.md").write_text(table)
    plot(results, chosen.out / "scaling.svg")
    print(table)


Results = dict[str, dict[int, dict[str, float]]]


def markdown(results: Results) -> str:
    lines = [
        "Made by `python benchmarks/scaling.py`.",
        "",
        "ClippedGossip, one round, random 8-regular graph, d = 1000:",
        "",
        "| nodes | edges | seconds | µs per directed edge | extra memory, MB | models, MB |",
        "|---|---|---|---|---|---|",
    ]
    for n, row in results["sparse"].items():
        each = row["seconds"] / (2 * row["edges"]) * 1e6
        lines.append(
            f"| {n} | {row['edges']:.0f} | {row['seconds']:.3f} | {each:.2f} | {row['megabytes']:.0f} "
            f"| {row['model megabytes']:.0f} |"
        )
    few, *_, many = results["dense"].values()
    lines += [
        "",
        "The same on complete graphs that hold the same bytes. A model has d numbers; a clone is the time of "
        f"copying all models. {many['edges'] / few['edges']:.0f} times the edges take "
        f"{many['seconds'] / few['seconds']:.1f} times as long:",
        "",
        "| nodes | edges | d | seconds | clones |",
        "|---|---|---|---|---|",
    ]
    for n, row in results["dense"].items():
        lines.append(
            f"| {n} | {row['edges']:.0f} | {row['parameters']:.0f} | {row['seconds']:.3f} "
            f"| {row['clones']:.1f} |"
        )
    lines += ["", "Audit of a random 8-regular graph:", "", "| nodes | seconds | peak MB |", "|---|---|---|"]
    lines += [f"| {n} | {r['seconds']:.1f} | {r['megabytes']:.0f} |" for n, r in results["audit"].items()]
    return "\n".join(lines) + "\n"


def plot(results: Results, path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
    sparse, dense, audits = results["sparse"], results["dense"], results["audit"]
    axes[0].loglog([2 * r["edges"] for r in sparse.values()], [r["seconds"] for r in sparse.values()], "o-")
    axes[0].set(title="sparse: linear in edges", xlabel="directed edges (d = 1000)", ylabel="seconds a round")
    axes[1].semilogx([r["edges"] for r in dense.values()], [r["clones"] for r in dense.values()], "o-")
    axes[1].set(title="dense, same bytes", xlabel="edges", ylabel="clones of the models")
    axes[1].set_ylim(bottom=0)
    axes[2].loglog(list(audits), [r["seconds"] for r in audits.values()], "o-")
    axes[2].set(title="audit", xlabel="nodes", ylabel="seconds")
    for panel in axes:
        panel.minorticks_off()
    axes[0].set_xticks([2 * r["edges"] for r in sparse.values()])
    axes[0].set_xticklabels([f"{2 * r['edges']:.0f}" for r in sparse.values()])
    figure.savefig(path)


if __name__ == "__main__":
    main()
