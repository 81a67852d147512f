"""The weakest cut: where the regular nodes hang together by the least weight."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from clippedgossip.network import Network
from clippedgossip.network.weights import rows_of

Ints = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """Two sides of the regular nodes, the smaller first, and the edges between them (node indices)."""

    side: Ints
    other: Ints
    edges: tuple[tuple[int, int], ...]
    weight: float

    @property
    def conductance(self) -> float:
        """Weight by size of the smaller side: at least (1 − λ₂)/2 (Cheeger)."""
        return self.weight / len(self.side)

    @property
    def complete(self) -> bool:
        """Whether everybody on one side is next to everybody on the other: no bottleneck at all."""
        return len(self.edges) == len(self.side) * len(self.other)


def weakest_cut(network: Network) -> Cut | None:
    """The best sweep cut along the eigenvector of λ₂; the parts themselves if there are several."""
    m = len(network.regular)
    if m == 1:
        return None
    if not network.connected:
        largest, *rest = network.components
        small, large = sorted((np.sort(np.concatenate(rest)), np.sort(largest)), key=len)
        return Cut(side=small, other=large, edges=(), weight=0.0)
    indptr, indices, values, _ = network.regular_csr
    fiedler = network.gap.fiedler
    assert fiedler is not None
    place = np.empty(m, dtype=np.int64)
    place[np.argsort(fiedler, kind="stable")] = np.arange(m)
    rows = rows_of(indptr)
    ahead = place[rows] < place[indices]
    steps = np.bincount(place[rows[ahead]], weights=values[ahead], minlength=m)
    steps -= np.bincount(place[indices[ahead]], weights=values[ahead], minlength=m)
    size = np.arange(1, m)
    conductance = np.cumsum(steps)[:-1] / np.minimum(size, m - size)
    best = int(np.argmin(conductance))
    left = place <= best
    left ^= ~left[0]  # equal sides: the one with the first node comes first
    across = left[rows] & ~left[indices]
    first, second = np.flatnonzero(left), np.flatnonzero(~left)
    small, large = (first, second) if len(first) <= len(second) else (second, first)
    edges = zip(
        network.regular[rows[across]].tolist(), network.regular[indices[across]].tolist(), strict=True
    )
    return Cut(
        side=network.regular[small],
        other=network.regular[large],
        edges=tuple(sorted((min(e), max(e)) for e in edges)),
        weight=float(values[across].sum()),
    )
