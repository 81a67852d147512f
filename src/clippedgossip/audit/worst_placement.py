"""Where b more Byzantine nodes would do most harm."""

from collections import Counter
from dataclasses import dataclass
from itertools import combinations
from math import comb, inf
from typing import Literal

import numpy as np
from scipy.sparse import csgraph

from clippedgossip.audit.articulation import separated_by
from clippedgossip.audit.cut import Cut, weakest_cut
from clippedgossip.errors import NetworkError
from clippedgossip.network import Network, spectrum
from clippedgossip.network.spectrum import Floats, Ints
from clippedgossip.network.weights import row_sums, rows_of

EXHAUSTIVE = 3e8  # multiplications that trying every placement may cost


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A set of regular nodes that become Byzantine (node indices), and the network without them."""

    nodes: tuple[int, ...]
    gamma: float
    exact: bool  # False if γ is only an upper bound
    delta_max: float
    separated: int  # regular nodes that are cut off from the largest part
    method: Literal["exhaustive", "greedy"]

    @property
    def ratio(self) -> float:
        """δ_max/γ² of the remaining network; infinite if it is disconnected."""
        return self.delta_max / self.gamma**2 if self.gamma > 0 else inf

    @property
    def harm(self) -> tuple[int, float]:
        """What is compared: first how many nodes are cut off, then δ_max/γ²."""
        return self.separated, self.ratio


def worst_placement(network: Network, more_byzantine: int = 1, cut: Cut | None = None) -> Placement | None:
    """The b regular nodes that would do most harm as Byzantine nodes; None if too few regular nodes would
    remain.

    All placements are tried if that is cheap. Otherwise a greedy search starts also from the weakest cut.
    """
    if more_byzantine < 0:
        raise NetworkError(f"more_byzantine is {more_byzantine}; it must be at least 0")
    m = len(network.regular)
    if more_byzantine == 0 or m - more_byzantine < 1 or not network.connected:
        return None
    if comb(m, more_byzantine) * m**3 <= EXHAUSTIVE:
        return _exhaustive(network, more_byzantine)
    starts = [(), *_bottlenecks(network, more_byzantine, cut or weakest_cut(network))]
    found = (_greedy(network, more_byzantine, start) for start in starts)
    return max(found, key=lambda placement: placement.harm)


def without(network: Network, turned: Ints) -> tuple[spectrum.Csr, Ints, float]:
    """W̃ without these positions in `regular`, the positions left, and the new δ_max."""
    indptr, indices, values, selves = network.regular_csr
    gone = np.zeros(len(selves), dtype=bool)
    gone[turned] = True
    lost = row_sums(indptr, np.where(gone[indices], values, 0.0))
    keep = np.flatnonzero(~gone)
    whole = spectrum.matrix(indptr, indices, values, selves + lost)
    return whole[keep][:, keep], keep, float((network.delta + lost)[keep].max())


def _assess(network: Network, turned: Ints, method: Literal["exhaustive", "greedy"]) -> Placement:
    left, keep, delta_max = without(network, turned)
    count, part = csgraph.connected_components(left, directed=False)
    separated = len(keep) - int(np.bincount(part).max())
    if count > 1:
        gamma, exact = 0.0, True
    else:
        gap = spectrum.spectral_gap(left)
        gamma, exact = gap.value, gap.exact
    return Placement(
        nodes=tuple(network.regular[turned].tolist()),
        gamma=gamma,
        exact=exact,
        delta_max=delta_max,
        separated=separated,
        method=method,
    )


def _exhaustive(network: Network, more_byzantine: int) -> Placement:
    """Every placement, many at a time."""
    w = spectrum.matrix(*network.regular_csr).toarray()
    m = len(w)
    every = np.array(list(combinations(range(m), more_byzantine)), dtype=np.int64)
    ratios: list[Floats] = []
    separated: list[Ints] = []
    for turned in np.array_split(every, 1 + every.shape[0] * m**2 // 2_000_000):
        mask = np.ones((len(turned), m), dtype=bool)
        np.put_along_axis(mask, turned, False, axis=1)
        keep = np.nonzero(mask)[1].reshape(len(turned), -1)
        left = w[keep[:, :, None], keep[:, None, :]]
        lost = 1 - left.sum(2)
        diagonal = np.arange(keep.shape[1])
        left[:, diagonal, diagonal] += lost
        gamma = np.ones(len(turned))
        if len(diagonal) > 1:
            values = np.linalg.eigvalsh(left)
            gamma = 1 - np.maximum(np.abs(values[:, 0]), np.abs(values[:, -2]))
        apart = gamma < 1e-12
        ratio = (network.delta[keep] + lost).max(1) / np.where(apart, 1.0, gamma) ** 2
        ratios.append(np.where(apart, inf, ratio))
        separated.append(np.where(apart, _cut_off(left), 0))
    most = np.concatenate(separated)
    ratio = np.where(most == most.max(), np.concatenate(ratios), -1.0)  # nodes cut off come first
    worst = int(np.argmax(ratio >= ratio.max() * (1 - 1e-9)))  # the first of those equal by symmetry
    return _assess(network, every[worst], "exhaustive")


def _cut_off(left: Floats) -> Ints:
    """Nodes outside the largest part, for a stack of matrices: reachability by repeated squaring."""
    reach = (left > 0).astype(np.float32)
    for _ in range(left.shape[1].bit_length()):
        reach = (reach @ reach > 0).astype(np.float32)
    return np.asarray(left.shape[1] - reach.sum(2).max(1), dtype=np.int64)


def _greedy(network: Network, more_byzantine: int, start: tuple[int, ...]) -> Placement:
    """One after the other, each where it does most harm; a node that disconnects the network comes first."""
    turned = list(start)
    fiedler = network.gap.fiedler
    m = len(network.regular)
    while len(turned) < more_byzantine:
        left, keep, _ = without(network, np.array(turned, dtype=np.int64))
        separated = _separated(left)
        if separated.max() > 0:
            turned.append(int(keep[np.argmax(separated)]))
            continue
        v = np.zeros(len(keep)) if fiedler is None else fiedler[keep]
        harm = _estimate(left, v, network.delta[keep])
        shortlist = keep[np.argsort(-harm, kind="stable")[: _tries(m)]]
        if len(shortlist) == 1:
            turned.append(int(shortlist[0]))
            continue
        tried = [
            _assess(network, np.array([*turned, extra], dtype=np.int64), "greedy") for extra in shortlist
        ]
        turned.append(int(shortlist[int(np.argmax([placement.ratio for placement in tried]))]))
    return _assess(network, np.array(sorted(turned), dtype=np.int64), "greedy")


def _tries(m: int) -> int:
    """How many candidates are worth an exact γ each."""
    return m if m <= 60 else 20 if m <= 300 else 4 if m <= 5000 else 1


def _separated(w: spectrum.Csr) -> Ints:
    """Nodes cut off by the loss of each node; all 0 if the graph is already disconnected."""
    if csgraph.connected_components(w, directed=False)[0] > 1:
        return np.zeros(w.shape[0], dtype=np.int64)
    return separated_by(w.indptr.astype(np.int64), w.indices.astype(np.int64))


def _estimate(w: spectrum.Csr, v: Floats, delta: Floats) -> Floats:
    """δ_max/γ² after the loss of each node, with γ bounded by the Rayleigh quotient of v on the rest."""
    n = w.shape[0]
    rows, columns = rows_of(w.indptr.astype(np.int64)), w.indices
    off = rows != columns
    v = v - v.mean()
    energy = np.bincount(rows, weights=w.data * (v[rows] - v[columns]) ** 2, minlength=n)
    total, norm = energy.sum() / 2, float(v @ v)
    rest = np.maximum(norm - v**2 * (1 + 1 / max(n - 1, 1)), 1e-100)
    gamma = np.maximum((total - energy) / rest, 1e-100)
    worst = np.full(n, float(delta.max()))
    np.maximum.at(worst, columns[off], delta[rows[off]] + w.data[off])
    return np.asarray(worst / gamma**2)


def _bottlenecks(network: Network, more_byzantine: int, cut: Cut | None) -> list[tuple[int, ...]]:
    """Small sets that do much harm: around one node, around a node of low degree, at the ends of the weakest
    cut."""
    indptr, indices, values, _ = network.regular_csr
    degrees = np.diff(indptr)
    by_weight = np.lexsort((-values, rows_of(indptr)))
    rank = np.arange(len(indices)) - np.repeat(indptr[:-1], degrees)
    heaviest = np.where(rank < more_byzantine, values[by_weight], 0.0)
    found: list[tuple[int, ...]] = []
    for centre in (int(np.argmax(network.delta + row_sums(indptr, heaviest))), int(np.argmin(degrees))):
        around = indices[by_weight[indptr[centre] : indptr[centre + 1]]][:more_byzantine]
        found.append(tuple(around.tolist()))
    if cut is not None and len(cut.edges) <= 10_000:
        uncovered = set(cut.edges)
        cover: list[int] = []
        while uncovered and len(cover) <= more_byzantine:
            ends = Counter(end for edge in uncovered for end in edge)
            common = min(ends, key=lambda end: (-ends[end], end))
            cover.append(int(np.searchsorted(network.regular, common)))
            uncovered = {edge for edge in uncovered if common not in edge}
        if len(cover) <= more_byzantine:
            found.append(tuple(cover))
    return sorted(set(found))
