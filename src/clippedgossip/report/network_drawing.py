"""Drawings of a network: regular and Byzantine nodes, the weakest cut, the worst placement, edges to add."""

from collections.abc import Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from clippedgossip.audit import Audit, Cut
from clippedgossip.errors import NetworkError
from clippedgossip.network import Network
from clippedgossip.network.weights import rows_of
from clippedgossip.report.figures.canvas import drawing, to_svg

Floats = NDArray[np.float64]

FORMATS = (".svg", ".png", ".pdf")
SIDES = ("#1f7fc4", "#8fb8d8")
PARTS = ("#1f7fc4", "#e69f00", "#00855f", "#7a3fa0", "#56b4e9", "#8c6d31", "#5f6b78")
BYZANTINE, CUT, WORST, ADD, EDGE = "#c0392b", "#d55e00", "#7a3fa0", "#00855f", "#9aa3ad"
NAMED = 60  # nodes, at most, that are drawn with their names
DETAILED = 1000  # nodes, at most, that are drawn one by one
BINS = 24
DASHES: Any = (0, (4, 2))
LONGEST = 20  # letters of a name
BESIDE = {
    (0, -1): ("center", "top"),
    (0, 1): ("center", "bottom"),
    (1, 0): ("left", "center"),
    (-1, 0): ("right", "center"),
}
"""Places for a name beside its disc, and its alignment there. The first is taken if all are equally free."""


def check_target(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is computed."""
    if path.suffix.lower() not in FORMATS:
        raise NetworkError(f"cannot draw to {path}; give a file ending in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise NetworkError(f"cannot draw to {path}: there is no folder {path.parent}; make it first")


def draw_audit(audit: Audit, path: Path, *, title: str = "") -> None:
    """Draw a diagnosis to an SVG, PNG or PDF file."""
    check_target(path)
    gamma = audit.network.spectral_gap
    figure = draw_network(
        audit.network,
        cut=None if audit.weakest_cut is None or audit.weakest_cut.complete else audit.weakest_cut,
        worst=audit.worst_placement.nodes if audit.worst_placement else (),
        suggested=[suggestion.edge for suggestion in audit.suggested_edges],
        title=f"{title}   γ = {gamma:.4g}   δ_max = {audit.network.delta_max:.4g}".strip(),
    )
    with rc_context({"svg.hashsalt": "clippedgossip", "svg.fonttype": "none"}):
        undated = {"Date": None} if path.suffix.lower() == ".svg" else None
        try:
            figure.savefig(path, dpi=150, metadata=undated)
        except OSError as error:
            why = error.strerror or error
            raise NetworkError(f"cannot draw to {path}: {why}\ngive another file") from error


@rc_context({"text.parse_math": False})  # names are names, also those with dollars
def draw_network(network: Network, *, title: str = "", **marked: Any) -> Figure:
    """The network as a figure with a legend. `marked` is what `draw_on` takes besides."""
    figure = Figure(figsize=(7.2, 5.4), layout="constrained")
    axes = figure.add_subplot()
    draw_on(axes, network, **marked)
    if title:
        axes.set_title(_printable(title), fontsize=11)
    figure.legend(
        handles=legend(network, **marked), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
    return figure


def draw_on(
    axes: Axes,
    network: Network,
    *,
    cut: Cut | None = None,
    worst: Collection[int] = (),
    suggested: Sequence[tuple[int, int]] = (),
    parts: Sequence[Collection[int]] = (),
) -> None:
    """Draw on given axes, each of the `parts` in a colour of its own. More than a thousand nodes are drawn in
    slices along the slowest mode."""
    axes.set_axis_off()
    if network.n > DETAILED:
        _draw_slices(axes, network, cut)
        return
    axes.set_aspect("equal")
    place = layout(network)
    rows = rows_of(network.indptr)
    once = rows < network.indices
    pairs = list(zip(rows[once].tolist(), network.indices[once].tolist(), strict=True))
    crossing = set(cut.edges) if cut else set()
    thin = 1.0 if network.n <= NAMED else 0.4
    inner = [pair for pair in pairs if pair not in crossing]
    _lines(axes, place, inner, colors=EDGE, linewidths=thin, zorder=1)
    _lines(
        axes, place, sorted(crossing), colors=CUT, linewidths=2.6 if len(crossing) <= 30 else 1.2, zorder=2
    )
    for i, j in sorted(suggested):  # bent, so that they do not hide the edges below them
        bend = FancyArrowPatch(
            tuple(place[i]), tuple(place[j]), connectionstyle="arc3,rad=0.18", arrowstyle="-", zorder=3
        )
        bend.set(color=ADD, linewidth=1.8, linestyle=DASHES, clip_on=False)
        axes.add_patch(bend)
    size = float(np.clip(9000 / network.n, 12, 260))
    minor = set(cut.other.tolist()) if cut else set()
    parts = parts or [[i for i in network.regular.tolist() if (i in minor) is side] for side in (False, True)]
    many = PARTS if len(parts) > 2 or not cut else SIDES
    for nodes, colour, marker in (
        *((part, many[k % len(many)], "o") for k, part in enumerate(parts)),
        (network.byzantine.tolist(), BYZANTINE, "s"),
    ):
        x, y = place[list(nodes)].reshape(-1, 2).T
        axes.scatter(x, y, s=size, c=colour, marker=marker, zorder=4, edgecolors="white", linewidths=0.6)
    x, y = place[list(worst)].reshape(-1, 2).T
    axes.scatter(x, y, s=size * 2.2, facecolors="none", edgecolors=WORST, linewidths=2.0, zorder=5)
    if network.n <= NAMED:
        _name_nodes(axes, network, place, size, worst, minor - set(network.byzantine.tolist()))
    low, high = place.min(0), place.max(0)
    pad = 0.09 * float((high - low).max() or 1.0)
    axes.set_xlim(low[0] - pad, high[0] + pad)
    axes.set_ylim(low[1] - pad, high[1] + pad)


def _name_nodes(
    axes: Axes, network: Network, place: Floats, size: float, ringed: Collection[int], dark: Collection[int]
) -> None:
    """Names on the discs if all of them fit. Otherwise beside them, on the side with the fewest edges."""
    font = 8 if network.n <= 30 else 6
    names = [_short(_printable(str(label))) for label in network.labels]
    if max(map(len, names)) * font * 0.62 <= size**0.5:
        for i, name in enumerate(names):
            colour = "black" if i in dark else "white"
            axes.annotate(name, place[i], ha="center", va="center", fontsize=font, color=colour, zorder=6)
        return
    halo = [withStroke(linewidth=2.4, foreground="white", alpha=0.85)]
    for i, name in enumerate(names):
        edges = place[network.indices[network.indptr[i] : network.indptr[i + 1]]] - place[i]
        side = min(BESIDE, key=lambda side: _crowding(edges, np.array(side)))
        away = (size * (2.2 if i in ringed else 1)) ** 0.5 / 2 + 3
        axes.annotate(
            name,
            place[i],
            xytext=(side[0] * away, side[1] * away),
            textcoords="offset points",
            ha=BESIDE[side][0],
            va=BESIDE[side][1],
            fontsize=font,
            color="#1d2733",
            path_effects=halo,
            zorder=6,
        )


def _printable(text: str) -> str:
    """As XML wants."""
    return "".join(letter if letter.isprintable() else "·" for letter in text)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def _crowding(edges: Floats, side: Floats) -> float:
    """How close an edge is to this direction: the largest cosine."""
    lengths = np.maximum(np.linalg.norm(edges, axis=1), 1e-12)
    return round(float((edges @ side / lengths).max(initial=-1.0)), 6)


def legend(
    network: Network,
    *,
    cut: Cut | None = None,
    worst: Collection[int] = (),
    suggested: Sequence[tuple[int, int]] = (),
) -> list[Line2D]:
    """The meaning of the marks that are used."""
    line = partial(Line2D, [], [])
    dot = partial(line, marker="o", linestyle="none", markersize=8)
    marks = [dot(color=SIDES[0], label="regular")]
    if cut is not None:
        marks.append(dot(color=SIDES[1], label="regular, beyond the weakest cut"))
    if len(network.byzantine):
        marks.append(dot(marker="s", color=BYZANTINE, label="Byzantine"))
    if cut is not None and cut.edges:
        marks.append(line(color=CUT, linewidth=2.6, label="weakest cut"))
    if network.n > DETAILED:
        return marks
    if suggested:
        marks.append(line(color=ADD, linewidth=1.8, linestyle=DASHES, label="edges to add"))
    if worst:
        ring = {"color": WORST, "markerfacecolor": "none", "markeredgewidth": 2}
        marks.append(dot(label="worst place for a Byzantine node", **ring))
    return marks


def layout(network: Network) -> Floats:
    """Coordinates of every node. Two groups are two circles. Other networks are placed by graph distances."""
    graph = network.to_networkx()
    if len(network.groups) == 2:
        return _two_circles(network)
    if network.n <= 100:
        places: dict[Any, Any] = {}
        edge = 0.0
        for part in sorted(nx.connected_components(graph), key=len, reverse=True):
            reach = len(part) ** 0.5 - 0.6  # a single node needs little room
            centre = (edge + reach, 0.0)
            inside = graph.subgraph(part)
            places |= nx.kamada_kawai_layout(inside, weight=None, scale=reach, center=centre)
            edge += 2 * reach + 0.6
        return _level(np.array([places[label] for label in network.labels]))
    spread = nx.spring_layout(graph, weight=None, seed=0, iterations=80)
    return _level(np.array([spread[label] for label in network.labels]))


def _level(place: Floats) -> Floats:
    """Rotated so that it is widest from left to right."""
    centred = place - place.mean(0)
    axes = np.linalg.eigh(centred.T @ centred)[1]  # the longest last
    return np.asarray(centred @ axes[:, ::-1])


def _two_circles(network: Network) -> Floats:
    """Two circles, with their edges in the middle. Other nodes are between or below their neighbours."""
    place = np.zeros((network.n, 2))
    member = np.full(network.n, -1)
    around = [network.indices[network.indptr[i] : network.indptr[i + 1]] for i in range(network.n)]
    for g, nodes in enumerate(network.groups.values()):
        member[nodes] = g
    for g, nodes in enumerate(network.groups.values()):
        across = np.array([(member[around[i]] != g).sum() for i in nodes])
        order = nodes[np.argsort(-across, kind="stable")]
        fan = np.array([(k + 1) // 2 * (-1) ** k for k in range(len(nodes))]) * 2 * np.pi / max(len(nodes), 1)
        side = -1 if g == 0 else 1
        place[order] = np.column_stack([1.7 * side - side * np.cos(fan), np.sin(fan)])
    strays = np.flatnonzero(member < 0).tolist()
    hubs = [i for i in strays if i in network.regular]
    taken: dict[tuple[float, float], int] = {}
    for i in [*hubs, *(i for i in strays if i not in hubs)]:
        near = [j for j in around[i].tolist() if member[j] >= 0 or j in hubs]
        anchor = place[near].mean(0) if near else np.zeros(2)
        if i not in hubs:
            spot = (round(float(anchor[0]), 3), round(float(anchor[1]), 3))
            k = taken[spot] = taken.get(spot, 0) + 1
            angle = -np.pi / 2 + k // 2 * (-1) ** k * 0.6
            anchor = anchor + 0.65 * np.array([np.cos(angle), np.sin(angle)])
        place[i] = anchor
    return place


def _lines(axes: Axes, place: Floats, pairs: Sequence[tuple[int, int]], **look: Any) -> None:
    if pairs:
        axes.add_collection(LineCollection(list(place[np.array(pairs)]), **look))


def _draw_slices(axes: Axes, network: Network, cut: Cut | None) -> None:
    """Regular nodes in slices of equal size along the slowest mode. Line widths are the weights between."""
    fiedler = network.gap.fiedler
    m = len(network.regular)
    if fiedler is None:
        sizes = [len(part) for part in network.components[:12]]
        axes.barh(range(len(sizes)), sizes, color=SIDES[0])
        axes.set_axis_on()
        axes.invert_yaxis()
        axes.set_xlabel("nodes")
        axes.set_ylabel("connected parts, largest first")
        return
    order = np.argsort(fiedler, kind="stable")
    edges_at = np.linspace(0, m, BINS + 1).astype(int)
    slot = np.empty(m, dtype=np.int64)
    slot[order] = np.searchsorted(edges_at, np.arange(m), side="right") - 1
    indptr, indices, values, _ = network.regular_csr
    between = np.zeros((BINS, BINS))
    np.add.at(between, (slot[rows_of(indptr)], slot[indices]), values)
    x = np.arange(BINS, dtype=np.float64)
    mean = np.array([fiedler[slot == k].mean() for k in range(BINS)])
    place = np.column_stack([x, mean / np.abs(mean).max() * BINS / 4])
    off = between * ~np.eye(BINS, dtype=bool)
    top = off.max() or 1.0
    pairs = [(a, b) for a in range(BINS) for b in range(a) if off[a, b] > top * 1e-3]
    widths = [0.3 + 5 * off[a, b] / top for a, b in pairs]
    _lines(axes, place, pairs, colors=EDGE, linewidths=widths, zorder=1)
    side = np.zeros(m, dtype=bool)
    if cut is not None:
        side[np.searchsorted(network.regular, cut.other)] = True
    beyond = np.array([side[slot == k].mean() for k in range(BINS)])
    colours = [SIDES[1] if share > 0.5 else SIDES[0] for share in beyond]
    axes.scatter(place[:, 0], place[:, 1], s=170, c=colours, edgecolors="white", zorder=3)
    if cut is not None:
        where = int(np.argmax(np.abs(np.diff(beyond)))) + 0.5
        axes.vlines(where, *(1.1 * place[[0, -1], 1]), color=CUT, linewidth=2.6, zorder=2)
    axes.annotate(
        f"{network.n} nodes in {BINS} slices of about {m // BINS} along the slowest mode;\n"
        "height: where the mode puts them, line width: weight between slices",
        (0.5, -0.02),
        xycoords="axes fraction",
        ha="center",
        fontsize=9,
    )
    axes.margins(0.08, 0.2)


def network_svg(network: Network, title: str = "", components: Sequence[Sequence[Any]] = ()) -> str:
    """The network, with γ and δ_max below. Byzantine nodes are red squares. `title` is for screen readers.
    Each of the components, as labels of nodes, has a colour of its own."""
    index = {str(label): i for i, label in enumerate(network.labels)}
    parts = [[index[str(label)] for label in part] for part in components]
    numbers = f"γ = {network.spectral_gap:.4g}"
    if len(network.byzantine):
        numbers += f", δ_max = {network.delta_max:.3g}"
    with drawing(4.2, 2.9) as figure:
        axes = figure.add_subplot()
        draw_on(axes, network, parts=parts)
        if parts:
            numbers += f", {len(parts)} components at the end"
        figure.supxlabel(numbers, fontsize=9)
        regular, byzantine = len(network.regular), len(network.byzantine)
        nodes = f"{regular} regular and {byzantine} Byzantine nodes, {numbers}"
        return to_svg(figure, f"{_printable(title)}: {nodes}" if title else nodes)
