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
    if all(isinstance(label, int) for label in labels):
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
    weights = {"metropolis-hastings": "Metropolis–Hastings", "own": "its own"}.get(
        network.weighting, network.weighting
    ) + " weights"
    counts = f"{counted(network.n, 'node')}, {counted(len(network.indices) // 2, 'edge')}, {weights}"
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
            f"The regular nodes fall into {len(network.components)} parts (of {shown} nodes). No path "
            "without a Byzantine node connects these parts, although the paper assumes one. No rule can "
            "repair that; more edges can."
        )
    elif network.delta_max == 0:
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
        few = (
            "One more Byzantine node" if len(worst.nodes) == 1 else f"{len(worst.nodes)} more Byzantine nodes"
        )
        why += f" {few} in the wrong place would undo that (below)."
    if audit.rounds is not None and audit.possible:
        why += " All of this is about the network with all its links; what its rounds do stands below."
    return f"{verdict}\n{_paragraph(why)}"


def _rounds(audit: Audit) -> str:
    found = audit.rounds
    if found is None:
        return ""
    after = "never" if found.unconnected_for is None else f"not in {found.unconnected_for:,}"
    if found.connected_after is not None:
        after = counted(found.connected_after, "round")
    lines = [f"SCHEDULE: {audit.network.schedule}, {counted(found.rounds, 'round')} looked at"]
    if found.directed:
        lines.append(
            _paragraph(
                "Links go one way: i may hear j while j does not hear i. The paper's theorems assume "
                "symmetric weights and say nothing here."
            )
        )
    lines.append(_row("connected", after, "until the links together connect all regular nodes, at most"))
    if found.p is not None:
        what = "exact expectation" if found.expected else "mean over the rounds"
        lines.append(_row("p", number(found.p), f"1 − λ₂ of E[W̃ᵀW̃]: what a round takes off Ξ ({what})"))
    if found.window_factor is not None:
        lines.append(
            _row(
                "window", number(found.window_factor), f"largest factor on the distance in {after}, by gossip"
            )
        )
    spread = f"mean; median {number(found.delta_median)}, 95 % below {number(found.delta_95)}, largest "
    lines.append(_row("δ_i", number(found.delta_mean), spread + number(found.delta_max)))
    if found.heard is not None:
        heard = found.heard
        lines.append(
            _row(
                "heard",
                f"≤ {heard.most}",
                f"Byzantine nodes by each regular node in {counted(heard.rounds, 'round')}, but with "
                f"probability {number(heard.probability)}",
            )
        )
        fewest = "no number of neighbours is enough" if heard.fewest is None else f"{heard.fewest} are enough"
        lines.append(
            _row(
                "outvoted",
                number(heard.outvoted),
                f"probability that half of what a node hears is ever Byzantine; for 0.01 {fewest}",
            )
        )
    return "\n".join(lines)


def _row(name: str, value: str, meaning: str) -> str:
    lead = f"  {name:<12}{value:<14}"
    return fill(meaning, WIDTH, initial_indent=lead, subsequent_indent=" " * 28)


def _numbers(audit: Audit) -> str:
    network, training = audit.network, audit.training
    where = nodes_text(network, delta_max_nodes(network), 30)
    ratio = "infinite" if audit.ratio == inf else number(audit.ratio)
    if not network.gap.exact and audit.ratio > 0:
        ratio = f"≥ {ratio}"
    full = "the same if the Byzantine nodes were regular" if len(network.byzantine) else "the same here"
    rows = [
        _row(
            "connected", "yes" if network.connected else "no", "the regular nodes, without the Byzantine ones"
        ),
        _row(
            "γ", number(network.spectral_gap, exact=network.gap.exact), "spectral gap of W̃, the regular nodes"
        ),
        _row("γ, full W", number(network.spectral_gap_full, exact=network.gap_full.exact), full),
        _row("p", number(network.p, exact=network.gap.exact), "1 − (1 − γ)²"),
        _row(
            "δ_max",
            number(network.delta_max),
            "Byzantine weight " + (f"at {where}" if where else "at any node"),
        ),
        _row("δ_max/γ²", ratio, "difficulty; the consensus theorem wants < 1/32"),
        _row(
            "training",
            "guaranteed" if training.holds else "vacuous",
            f"the training theorem wants δ_max ≤ {number(training.limit)}",
        ),
    ]
    if audit.lazy_gamma is not None:
        rows.append(_row("hint", number(audit.lazy_gamma), "γ would be this with lazy weights"))
    if audit.optimal is not None:
        gamma, better = number(audit.optimal.gamma), number(audit.optimal.ratio)
        rows.append(_row("hint", gamma, f"γ, and δ_max/γ² {better}, with optimal weights"))
    elif len(audit.network.indices) > 2 * FEW_EDGES and not audit.network.fixed_weights:
        rows.append(_row("hint", "", "optimal weights may have a larger γ; --weights optimal computes them"))
    return "\n".join(rows)


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
        return f"Weakest cut: no edge joins\n{sides}" + (
            f"\n    and {counted(more, 'smaller part')}" if more else ""
        )
    if cut.complete:
        return "Weakest cut: none, every node is next to every other"
    name = "Weakest cut" if cut.exact else "Weakest cut found"
    lead = f"{name}: {counted(len(cut.edges), 'edge')} of total weight {number(cut.weight)} between"
    if len(cut.edges) <= 12:
        sides += f"\n{_paragraph('across it: ' + _edge_list(network, cut.edges), '    ')}"
    if not cut.exact:
        least = number((1 - network.gap.lambda2) / 2)
        sides += "\n" + _paragraph(
            f"its weight by size is {number(cut.conductance)}; none has less than {least} (Cheeger)", "    "
        )
    return f"{lead}\n{sides}"


def _edge_list(network: Network, edges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(_edge(network, edge) for edge in edges)


def _edge(network: Network, edge: tuple[int, int]) -> str:
    return f"{network.labels[edge[0]]}–{network.labels[edge[1]]}"


def _placement(audit: Audit) -> str:
    worst, network = audit.worst_placement, audit.network
    if worst is None:
        return ""
    more = " more" if len(network.byzantine) else ""
    one = len(worst.nodes) == 1
    lead = f"Worst place for {len(worst.nodes)}{more} Byzantine node{'' if one else 's'}"
    lead += (
        " (all placements tried)" if worst.method == "exhaustive" else " (greedy search: others may be worse)"
    )
    place = f"node{'' if one else 's'} {nodes_text(network, worst.nodes)}"
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
        waiting.append(
            suggestion.edge
        )  # an edge that gains nothing alone is shown with the next one that does
        if suggestion.gamma_after > best * (1 + GAIN):
            gamma = number(suggestion.gamma_after, exact=suggestion.exact)
            rows.append(f"{_paragraph(_edge_list(network, waiting), '    '):<22}  γ = {gamma}")
            best, waiting = suggestion.gamma_after, []
    return "\n".join(rows)
