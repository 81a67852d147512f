"""The weakest cut: where the regular nodes hang together by the least weight."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clippedgossip.network import Network
from clippedgossip.network.spectrum import Floats, Ints, matrix
from clippedgossip.network.weights import rows_of

Sides = NDArray[np.bool_]
ALL_CUTS = 20  # up to this many regular nodes, all of their cuts are compared


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Two sides of the regular nodes, the smaller first, and the edges between them (node indices)."""

    side: Ints
    other: Ints
    edges: tuple[tuple[int, int], ...]
    weight: float
    exact: bool = True  # False: the weakest that was found; none is below (1 − λ₂)/2

    @property
    def conductance(self) -> float:
        """Weight by size of the smaller side: at least (1 − λ₂)/2 (Cheeger)."""
        return self.weight / len(self.side)

    @property
    def complete(self) -> bool:
        """Whether everybody on one side is next to everybody on the other: no bottleneck at all."""
        return len(self.edges) == len(self.side) * len(self.other)


def weakest_cut(network: Network) -> Cut | None:
    """The cut of least conductance: of all cuts on a small network, of the sweep cuts along the eigenvectors
    of λ₂ on a large one; the parts themselves if there are several."""
    m = len(network.regular)
    if m == 1:
        return None
    if not network.connected:
        largest, *rest = network.components
        small, large = sorted((np.sort(np.concatenate(rest)), np.sort(largest)), key=len)
        return Cut(side=small, other=large, edges=(), weight=0.0)
    left = _of_all(network) if m <= ALL_CUTS else _of_sweeps(network)
    indptr, indices, values, _ = network.regular_csr
    rows = rows_of(indptr)
    left ^= ~left[0]  # equal sides: the one with the first node comes first
    across = left[rows] & ~left[indices]
    first, second = np.flatnonzero(left), np.flatnonzero(~left)
    small, large = (first, second) if len(first) <= len(second) else (second, first)
    edges = network.regular[np.column_stack([rows[across], indices[across]])].tolist()
    return Cut(
        side=network.regular[small],
        other=network.regular[large],
        edges=tuple(sorted((min(e), max(e)) for e in edges)),
        weight=float(values[across].sum()),
        exact=m <= ALL_CUTS,
    )


def _of_all(network: Network) -> Sides:
    """Every cut: the weight of S ∪ {v} is that of S, and v's, less twice what joins v to S."""
    w = matrix(*network.regular_csr).toarray()
    np.fill_diagonal(w, 0.0)
    m = len(w)
    weight, size = np.zeros(1), np.zeros(1, dtype=np.int64)
    for v in range(m - 1):  # the last node is never in S: each cut once
        joined = np.zeros(1)
        for u in range(v):
            joined = np.concatenate([joined, joined + w[v, u]])
        weight = np.concatenate([weight, weight + w[v].sum() - 2 * joined])
        size = np.concatenate([size, size + 1])
    best = _weakest(weight[1:], np.minimum(size, m - size)[1:]) + 1
    return np.asarray((best >> np.arange(m)) & 1, dtype=np.bool_)


def _of_sweeps(network: Network) -> Sides:
    """Along the projection of each coordinate onto the eigenvectors of λ₂, which no choice of basis changes;
    along the one eigenvector, where more are not known."""
    indptr, indices, values, _ = network.regular_csr
    rows, m = rows_of(indptr), len(network.regular)
    space, fiedler = network.gap.slowest, network.gap.fiedler
    assert fiedler is not None
    several = space is not None and space.shape[1] > 1
    ways = [fiedler] if space is None or not several else list(np.round(space @ space.T, 9))
    size = np.minimum(np.arange(1, m), m - np.arange(1, m))
    found: list[tuple[float, float, Sides]] = []
    for way in ways:
        place = np.empty(m, dtype=np.int64)
        place[np.argsort(way, kind="stable")] = np.arange(m)
        ahead = place[rows] < place[indices]
        steps = np.bincount(place[rows[ahead]], weights=values[ahead], minlength=m)
        steps -= np.bincount(place[indices[ahead]], weights=values[ahead], minlength=m)
        weight = np.asarray(np.cumsum(steps)[:-1], dtype=np.float64)
        best = _weakest(weight, size)
        found.append((float(f"{weight[best] / size[best]:.9g}"), -float(size[best]), place <= best))
    return min(found, key=lambda cut: cut[:2])[2]


def _weakest(weight: Floats, size: Ints) -> int:
    """Of those equal but for rounding, the most even one, and of these the first."""
    conductance = weight / size
    close = np.flatnonzero(conductance <= conductance.min() * (1 + 1e-9))
    return int(close[np.argmax(size[close])])
