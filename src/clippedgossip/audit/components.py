"""Components: which groups of regular nodes stay together, and which bridges are lost.

Guaranteed: C stays together if 32·δ_max(C) < γ(C)², where every node outside of C counts as Byzantine. That
is the consensus theorem on C. Its constant is loose.

Expected: two sides of the regular nodes stay together unless Byzantine nodes push them apart at least as hard
as the edges across pull them together. Let w_i be the weight of node i's neighbours on the other side, and D
the distance of the sides. The edges move i by w_i·D. The oracle radius is τ_i = D·√(w_i/δ_i) where all others
are near, so Byzantine neighbours move i by up to δ_i·τ_i = D·√(δ_i·w_i). A side moves by the mean of its
nodes. A cut is blocked if the means of √(δ_i·w_i) on both sides together are at least those of w_i. This is
no theorem; `reproduce components` holds it against runs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from clippedgossip.audit.cut import Sides, weakest_cut
from clippedgossip.network import Network
from clippedgossip.network.spectrum import Floats, Ints
from clippedgossip.network.weights import rows_of
from clippedgossip.theory import C1

ALL_CUTS = 14  # up to this many nodes, all of their cuts are compared
LARGEST = 300  # nodes of the largest network whose components are predicted


@dataclass(frozen=True, kw_only=True)
class Components:
    """The regular nodes in parts, as node indices, the largest first. `lost`: the edges between parts."""

    parts: tuple[Ints, ...]
    lost: tuple[tuple[int, int], ...]
    exact: bool = True  # False: not all cuts were compared

    @property
    def groups(self) -> tuple[Ints, ...]:
        """Those of two nodes or more. A node alone stays with nobody."""
        return tuple(part for part in self.parts if len(part) > 1)

    @property
    def alone(self) -> list[int]:
        return sorted(int(part[0]) for part in self.parts if len(part) == 1)

    def to_json(self, names: Callable[[Any], list[Any]]) -> dict[str, Any]:
        return {
            "groups": [names(part.tolist()) for part in self.groups],
            "alone": names(self.alone),
            "lost_edges": [names(edge) for edge in self.lost],
            "exact": self.exact,
        }


def guaranteed(network: Network) -> Components:
    """The groups for which the consensus theorem holds, whatever all others do."""

    def parts(nodes: Ints) -> list[Ints]:
        sub = _alone(network, nodes)
        if not sub.connected:
            return list(sub.components)
        if len(nodes) == 1 or (sub.gap.exact and C1 * sub.delta_max < sub.spectral_gap**2):
            return []
        hopeless = C1 * sub.delta >= 1  # γ is at most 1
        if hopeless.any():
            rest = nodes[~hopeless]
            return [*nodes[hopeless][:, None], *([rest] if len(rest) else [])]
        cut = weakest_cut(sub)
        assert cut is not None
        return [cut.side, cut.other]

    return _split(network, parts)


def expected(network: Network) -> Components:
    """The groups that no blocked cut divides, with the most blocked cut taken first."""
    place = np.zeros(network.n, dtype=np.int64)
    place[network.regular] = np.arange(len(network.regular))
    indptr, indices, values, _ = network.regular_csr
    m = len(network.regular)
    weights = np.asarray(csr_array((values, indices, indptr), shape=(m, m)).toarray(), dtype=np.float64)

    def parts(nodes: Ints) -> list[Ints]:
        rows = place[nodes]
        inner: Floats = weights[np.ix_(rows, rows)]
        side = blocked(inner, network.delta[rows])
        return [] if side is None else [nodes[side], nodes[~side]]

    return _split(network, parts, exact=m <= ALL_CUTS)


def blocked(weights: Floats, delta: Floats) -> Sides | None:
    """One side of the most blocked cut, from weights without the diagonal and δ; None if none is blocked."""
    m = len(weights)
    if m == 1:
        return None
    several, part = connected_components(weights > 0)
    if several > 1:
        return np.asarray(part == 0)
    sides = _all_cuts(m) if m <= ALL_CUTS else _some_cuts(weights)
    across = np.where(sides, ~sides @ weights, sides @ weights)
    inside = sides.sum(1, keepdims=True)
    share = np.where(sides, 1 / inside, 1 / (m - inside))  # of a node in the mean of its side
    ratio = (share * np.sqrt(delta * across)).sum(1) / (share * across).sum(1)
    close = np.flatnonzero(ratio >= ratio.max() * (1 - 1e-9))  # of equal ones, the most even
    best = int(close[np.argmin(np.abs(2 * sides[close].sum(1) - m))])
    return sides[best] if ratio[best] >= 1 - 1e-9 else None


def _all_cuts(m: int) -> Sides:
    return np.asarray((np.arange(1, 2 ** (m - 1))[:, None] >> np.arange(m)) & 1, dtype=np.bool_)


def _some_cuts(weights: Floats) -> Sides:
    """Every node alone, and all sides along each of the four slowest eigenvectors."""
    m = len(weights)
    _, vectors = np.linalg.eigh(weights - np.diag(weights.sum(1)))
    orders = np.argsort(np.round(vectors[:, -5:-1], 9), axis=0, kind="stable").T
    along = [np.isin(np.arange(m), order[:k]) for order in orders for k in range(1, m)]
    return np.concatenate([np.eye(m, dtype=np.bool_), np.array(along)])


def _split(network: Network, parts: Callable[[Ints], list[Ints]], *, exact: bool = True) -> Components:
    """Split the regular nodes until `parts` gives none."""
    found: list[Ints] = []
    left = [network.regular]
    while left:
        nodes = left.pop()
        inner = parts(nodes)
        left += inner
        found += [] if inner else [nodes]
    found.sort(key=lambda nodes: (-len(nodes), int(nodes[0])))
    place = np.full(network.n, -1)
    for number, nodes in enumerate(found):
        place[nodes] = number
    rows, others = rows_of(network.indptr), network.indices
    across = (rows < others) & (place[rows] >= 0) & (place[others] >= 0) & (place[rows] != place[others])
    lost = zip(rows[across].tolist(), others[across].tolist(), strict=True)
    return Components(parts=tuple(found), lost=tuple(sorted(lost)), exact=exact)


def _alone(network: Network, nodes: Ints) -> Network:
    """The same network where all other nodes count as Byzantine."""
    if len(nodes) == len(network.regular):
        return network
    others = np.setdiff1d(np.arange(network.n), nodes)
    return Network(network.to_networkx(), byzantine=[network.labels[i] for i in others])
