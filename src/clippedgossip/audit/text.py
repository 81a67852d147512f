"""The diagnosis as plain text of eighty columns, without colour."""

from collections.abc import Hashable, Iterable
from math import inf
from textwrap import fill

import numpy as np
from numpy.typing import NDArray

from clippedgossip.audit.components import Components
from clippedgossip.audit.diagnosis import FEW_EDGES, Audit, delta_max_nodes
from clippedgossip.audit.edges import GAIN
from clippedgossip.errors import counted, some
from clippedgossip.network import Network

WIDTH = 80


def render(audit: Audit, title: str) -> str:
    """The whole diagnosis."""
    sections = [
        _head(audit.network, title),
        _verdict(audit),
        _numbers(audit),
        _rounds(audit),
        _krum(audit),
        _components(audit),
        _cut(audit),
        _placement(audit),
        _edges(audit),
    ]
    return "\n\n".join(section for section in sections if section)


def nodes_text(network: Network, nodes: Iterable[int], room: int = 60) -> str:
    """Labels, runs of whole numbers written as 3–7, cut short to fit."""
    labels: list[Hashable] = [network.labels[i] for i in nodes]
    parts: list[str] = []
    if all(type(label) is int for label in labels):
        numbers = sorted(int(str(label)) for label in labels)
        start = 0
        for k in range(len(numbers)):
            if k + 1 == len(numbers) or numbers[k + 1] != numbers[k] + 1:
                first, last = numbers[start], numbers[k]
                parts += [f"{first}–{last}"] if last > first + 1 else [str(i) for i in range(first, last + 1)]
                start = k + 1
    else:
        parts = [str(label) for label in labels]
    text = ""
    for k, part in enumerate(parts):
        longer = f"{text}, {part}" if text else part
        if len(longer) > room and k:
            return f"{text}, …"
        text = longer
    return text


def number(value: float, *, exact: bool = True) -> str:
    """Five digits, and a sign in front where it is only an upper bound."""
    text = f"{value:.5g}" if value == 0 or abs(value) >= 1e-4 else f"{value:.3g}"
    return text if exact else f"≤ {text}"


def _head(network: Network, title: str) -> str:
    named = {"metropolis-hastings": "Metropolis–Hastings", "own": "its own"}
    weights = named.get(network.weighting, network.weighting)
    counts = f"{counted(network.n, 'node')}, {counted(len(network.indices) // 2, 'edge')}, {weights} weights"
    byzantine = f"{len(network.regular)} regular, {len(network.byzantine)} Byzantine"
    if len(network.byzantine):
        byzantine += f" ({nodes_text(network, network.byzantine.tolist(), 50)})"
    return f"{title}: {counts}\n{byzantine}"


def _paragraph(text: str, indent: str = "  ") -> str:
    return fill(text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_long_words=False)


def _verdict(audit: Audit) -> str:
    network, guarantee = audit.network, audit.consensus
    limit, delta = number(guarantee.limit), number(network.delta_max)
    if audit.rounds is not None and audit.rounds.connected_after is None:
        looked = audit.rounds.unconnected_for
        verdict = "CONSENSUS IS IMPOSSIBLE" + (f" IN {looked:,} ROUNDS" if looked else "")
        why = (
            f"The links of {f'{looked:,}' if looked else 'all'} rounds of the schedule do not connect "
            "all regular nodes. No rule can repair that; a schedule that uses more links can."
        )
    elif not network.connected:
        shown = some(map(len, network.components), 10)
        verdict = "CONSENSUS IS IMPOSSIBLE"
        why = (
            f"The regular nodes fall into {len(network.components)} parts (nodes: {shown}). No path "
            "without a Byzantine node connects these parts, although the paper assumes one. No rule can "
            "repair that; more edges can."
        )
    elif network.changes:
        verdict = "CONSENSUS IS NOT GUARANTEED"
        why = (
            "The consensus theorem is about a network that is the same in all rounds, and about messages in "
            "time. It says nothing of this one. The numbers are those of the network with all its links"
        )
        why += "; what its rounds do stands below." if audit.rounds is not None else "."
    elif network.delta_max == 0 and guarantee.holds:
        verdict = "CONSENSUS IS GUARANTEED"
        why = (
            "The regular nodes are connected and have no Byzantine neighbour. By the consensus theorem every "
            f"round multiplies their distance to the mean by at most {guarantee.factor:.6g}."
        )
    elif guarantee.holds:
        verdict = "CONSENSUS IS GUARANTEED"
        why = (
            f"δ_max = {delta} is below γ²/32 = {limit}. So by the consensus theorem, with the oracle radius "
            "every round of ClippedGossip multiplies the distance to the mean by at most "
            f"{guarantee.factor:.6g}, whatever Byzantine nodes send."
        )
    elif not network.gap.exact:
        verdict = "CONSENSUS IS NOT GUARANTEED"
        why = "Only an upper bound on γ is known, and there are Byzantine nodes; nothing can be guaranteed."
    else:
        verdict = "CONSENSUS IS NOT GUARANTEED"
        why = (
            f"δ_max = {delta} is not below γ²/32 = {limit}. The consensus theorem still applies but is "
            f"vacuous: it lets the distance to the mean grow {guarantee.factor:.3g}-fold a round. Its "
            "constant 32 is loose, so ClippedGossip may still work here; a simulation can show it."
        )
    worst = audit.worst_placement
    if worst is not None and worst.separated and guarantee.holds:
        count = len(worst.nodes)
        few = "One more Byzantine node" if count == 1 else f"{count} more Byzantine nodes"
        why += f" {few} in the wrong place would undo that (below)."
    return f"{verdict}\n{_paragraph(why)}"


def _rounds(audit: Audit) -> str:
    found = audit.rounds
    if found is None:
        return ""
    after = "never" if found.unconnected_for is None else f"not in {found.unconnected_for:,}"
    if found.connected_after is not None:
        after = counted(found.connected_after, "round")
    head = f"SCHEDULE: {audit.network.schedule}, {counted(found.rounds, 'round')} looked at"
    if found.directed:
        one_way = (
            "Links go one way: i may hear j while j does not hear i. The paper's theorems assume symmetric "
            "weights and say nothing here."
        )
        head += f"\n{_paragraph(one_way)}"
    rows = [("connected", after, "until the links together connect all regular nodes, at most")]
    if found.p is not None:
        what = "exact expectation" if found.expected else "mean over the rounds"
        rows.append(("p", number(found.p), f"1 − λ₂ of E[W̃ᵀW̃]: what a round takes off Ξ ({what})"))
    if found.window_factor is not None:
        largest = f"largest factor on the distance in {after}, by gossip"
        rows.append(("window", number(found.window_factor), largest))
    spread = f"mean; median {number(found.delta_median)}, 95 % below {number(found.delta_95)}, largest "
    rows.append(("δ_i", number(found.delta_mean), spread + number(found.delta_max)))
    if (heard := found.heard) is not None:
        by_each = f"Byzantine nodes by each regular node in {counted(heard.rounds, 'round')}"
        but = f"{by_each}, but with probability {number(heard.probability)}"
        fewest = "no number of neighbours is enough" if heard.fewest is None else f"{heard.fewest} are enough"
        half = f"probability that half of what a node hears is ever Byzantine; for 0.01 {fewest}"
        rows += [("heard", f"≤ {heard.most}", but), ("outvoted", number(heard.outvoted), half)]
    return f"{head}\n{_lines(rows)}"


def _lines(rows: Iterable[tuple[str, str, str]]) -> str:
    """Name, value and meaning of each number."""
    indent = " " * 28
    return "\n".join(
        fill(meaning, WIDTH, initial_indent=f"  {name:<12}{value:<14}", subsequent_indent=indent)
        for name, value, meaning in rows
    )


def _numbers(audit: Audit) -> str:
    network, gap, training = audit.network, audit.network.gap, audit.training
    where = nodes_text(network, delta_max_nodes(network), 30) or "any node"
    ratio = "infinite" if audit.ratio == inf else number(audit.ratio)
    if not gap.exact and audit.ratio > 0:
        ratio = f"≥ {ratio}"
    full = "the same if the Byzantine nodes were regular" if len(network.byzantine) else "the same here"
    wanted = f"the training theorem wants δ_max ≤ {number(training.limit)}"
    rows = [
        ("connected", "yes" if network.connected else "no", "the regular nodes, without the Byzantine ones"),
        ("γ", number(network.spectral_gap, exact=gap.exact), "spectral gap of W̃, the regular nodes"),
        ("γ, full W", number(network.spectral_gap_full, exact=network.gap_full.exact), full),
        ("p", number(network.p, exact=gap.exact), "1 − (1 − γ)²"),
        ("δ_max", number(network.delta_max), f"Byzantine weight at {where}"),
        ("δ_max/γ²", ratio, "difficulty; the consensus theorem wants < 1/32"),
        ("training", "guaranteed" if training.holds else "vacuous", wanted),
    ]
    if audit.lazy_gamma is not None:
        rows.append(("hint", number(audit.lazy_gamma), "γ would be this with lazy weights"))
    if audit.optimal is not None:
        better = f"γ, and δ_max/γ² {number(audit.optimal.ratio)}, with optimal weights"
        rows.append(("hint", number(audit.optimal.gamma), better))
    elif len(network.indices) > 2 * FEW_EDGES and not network.fixed_weights:
        rows.append(("hint", "", "optimal weights may have a larger γ; --weights optimal computes them"))
    return _lines(rows)


def _krum(audit: Audit) -> str:
    """What a run with Krum says too, where Byzantine nodes are known."""
    caveat = audit.krum_caveat if len(audit.network.byzantine) else None
    return "" if caveat is None else _paragraph(caveat)


def _components(audit: Audit) -> str:
    """Which regular nodes stay together, where Byzantine nodes are known."""
    if audit.expected is None or audit.guaranteed is None:
        return ""
    together = _parts(audit.network, audit.expected)
    found = "Components to expect" if audit.expected.exact else "Components to expect, of the cuts tried"
    if audit.expected.lost and len(audit.expected.lost) <= 12:
        lost = "lost bridges: " + _edge_list(audit.network, audit.expected.lost)
        together += f"\n{_paragraph(lost, '    ')}"
    sure = audit.guaranteed.groups
    text = f"guaranteed by the theorem: {'; '.join(_part(audit.network, part) for part in sure) or 'none'}"
    return f"{found} under the strongest attack\n{together}\n{_paragraph(text, '    ')}"


def _parts(network: Network, found: Components) -> str:
    lines = [_part(network, part) for part in found.groups[:5]]
    if len(found.groups) > 5:
        lines.append(f"and {counted(len(found.groups) - 5, 'smaller part')}")
    if found.alone:
        lines.append(f"alone: {nodes_text(network, found.alone)}")
    return "\n".join(_paragraph(line, "    ") for line in lines)


def _part(network: Network, part: NDArray[np.int64]) -> str:
    return f"{counted(len(part), 'node')}: {nodes_text(network, part.tolist())}"


def _cut(audit: Audit) -> str:
    cut, network = audit.weakest_cut, audit.network
    if cut is None:
        return ""
    parts = (cut.side, cut.other) if cut.edges else network.components[:5]
    sides = "\n".join(_paragraph(_part(network, part), "    ") for part in parts)
    if not cut.edges:
        more = len(network.components) - len(parts)
        rest = f"\n    and {counted(more, 'smaller part')}" if more else ""
        return f"Weakest cut: no edge joins\n{sides}{rest}"
    if cut.complete:
        return "Weakest cut: none, every node is next to every other"
    name = "Weakest cut" if cut.exact else "Weakest cut found"
    lead = f"{name}: {counted(len(cut.edges), 'edge')} of total weight {number(cut.weight)} between"
    if len(cut.edges) <= 12:
        sides += f"\n{_paragraph('across it: ' + _edge_list(network, cut.edges), '    ')}"
    if not cut.exact:
        least = number((1 - network.gap.lambda2) / 2)
        bound = f"its weight by size is {number(cut.conductance)}; none has less than {least} (Cheeger)"
        sides += f"\n{_paragraph(bound, '    ')}"
    return f"{lead}\n{sides}"


def _edge_list(network: Network, edges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{network.labels[i]}–{network.labels[j]}" for i, j in edges)


def _placement(audit: Audit) -> str:
    worst, network = audit.worst_placement, audit.network
    if worst is None:
        return ""
    more = " more" if len(network.byzantine) else ""
    plural = "" if len(worst.nodes) == 1 else "s"
    tried = "all placements tried" if worst.method == "exhaustive" else "greedy search: others may be worse"
    lead = f"Worst place for {len(worst.nodes)}{more} Byzantine node{plural} ({tried})"
    place = f"node{plural} {nodes_text(network, worst.nodes)}"
    if worst.separated:
        left = len(network.regular) - len(worst.nodes)
        effect = f"cuts {worst.separated} of the {left} other regular nodes off from the rest"
    else:
        gamma = number(worst.gamma, exact=worst.exact)
        effect = f"γ becomes {gamma}, δ_max {number(worst.delta_max)}, δ_max/γ² {number(worst.ratio)}"
    return f"{lead}\n{_paragraph(f'{place}: {effect}', '    ')}"


def _edges(audit: Audit) -> str:
    network, suggestions = audit.network, audit.suggested_edges
    if not suggestions:
        if not network.connected:
            return f"Edges to add: at least {len(network.components) - 1}, to join the parts"
        m = len(network.regular)
        if len(network.regular_csr[1]) == m * (m - 1):
            return ""
        return "Edges to add: a few edges do not raise γ"
    rows = [f"Edges to add, one after the other, and γ then (now {number(network.spectral_gap)})"]
    waiting: list[tuple[int, int]] = []
    best = network.spectral_gap
    for suggestion in suggestions:
        waiting.append(suggestion.edge)  # one that gains nothing alone is shown with the next that does
        if suggestion.gamma_after > best * (1 + GAIN):
            gamma = number(suggestion.gamma_after, exact=suggestion.exact)
            rows.append(f"{_paragraph(_edge_list(network, waiting), '    '):<22}  γ = {gamma}")
            best, waiting = suggestion.gamma_after, []
    return "\n".join(rows)
