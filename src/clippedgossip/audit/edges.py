"""Which edges to add: the paper's advice to widen the bottleneck, made concrete."""

from dataclasses import dataclass
from itertools import islice, product

import numpy as np

from clippedgossip.errors import NetworkError
from clippedgossip.network import Network
from clippedgossip.network.spectrum import Floats, Ints
from clippedgossip.network.weights import row_sums, rows_of

EXTREMES = 60  # nodes at each end of the Fiedler vector whose pairs are estimated
GAIN = 1e-3  # a relative rise of γ below this is not worth an edge
JOINS = 20  # most edges proposed to join a network that has fallen apart


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """An edge between two regular nodes (indices); γ before and after it, with all earlier ones in place."""

    edge: tuple[int, int]
    gamma_before: float
    gamma_after: float
    exact: bool  # False: a γ is only an upper bound


def suggest_edges(network: Network, count: int = 3) -> tuple[Suggestion, ...]:
    """Edges that raise γ, one after the other: each the best of those tried, by γ with the new weights."""
    if count < 0:
        raise NetworkError(f"suggestions is {count}; it must be at least 0")
    chosen, current = _join(network)
    patience = 1
    while current.connected and len(chosen) < count:
        found = _best_edge(current)
        if found is None:
            break
        edge, after = found
        chosen.append(_suggestion(edge, current, after))
        # An edge may have to wait for its partner: a ring has two slowest modes, and γ follows the slower.
        patience = 1 if after.spectral_gap > current.spectral_gap * (1 + GAIN) else patience - 1
        if patience < 0:
            break
        current = after
    best = network.spectral_gap * (1 + GAIN)
    keep = 0
    for k, suggestion in enumerate(chosen, start=1):
        if suggestion.gamma_after > best:
            best, keep = suggestion.gamma_after * (1 + GAIN), k
    return tuple(chosen[:keep])


def _best_edge(network: Network) -> tuple[tuple[int, int], Network] | None:
    """The candidate that leaves the largest γ; if none raises it, the one that helps all modes most."""
    tried = [(edge, network.with_edges([edge])) for edge in _candidates(network)]
    if not tried:
        return None
    best = max(tried, key=lambda pair: _rounded(pair[1].spectral_gap))
    if best[1].spectral_gap <= network.spectral_gap * (1 + GAIN) and network.gap.eigenvalues is not None:
        return min(tried, key=lambda pair: _rounded(_slowness(pair[1])))
    return best


def _slowness(network: Network) -> float:
    """Σ 1/(1−λ)³ over all modes but the constant one: a smooth stand-in for 1/γ³ when several modes tie."""
    values = network.gap.eigenvalues
    assert values is not None
    return float(((1 - values[:-1]) ** -3.0).sum())


def _rounded(value: float) -> float:
    """Nine digits: candidates equal by symmetry tie, and the first one wins on every machine."""
    return float(f"{value:.9g}")


def _tries(m: int) -> int:
    """How many candidates are worth an exact γ each: all of them on up to 25 nodes."""
    return 300 if m <= 60 else 40 if m <= 100 else 20 if m <= 300 else 4 if m <= 5000 else 1


def _candidates(network: Network) -> list[tuple[int, int]]:
    """Missing edges between regular nodes, the most promising first."""
    fiedler = network.gap.fiedler
    if fiedler is None:
        return []
    m = len(network.regular)
    # Where λ₂ is multiple, tension is summed over its eigenvectors: the same for any basis of them.
    modes = fiedler[:, None] if network.gap.slowest is None else network.gap.slowest
    drop = _drops(network, modes)
    order = np.argsort(fiedler, kind="stable")
    low, high = (order, order) if m <= 2 * EXTREMES else (order[:EXTREMES], order[-EXTREMES:])
    a, b = (grid.ravel() for grid in np.meshgrid(low, high, indexing="ij"))
    if m <= 2 * EXTREMES:
        a, b = np.triu_indices(m, 1)
    indptr, indices, _, _ = network.regular_csr
    keys = rows_of(indptr) * m + indices
    missing = ~np.isin(a * m + b, keys)
    a, b = a[missing], b[missing]
    gain = _new_weight(network, a, b) * ((modes[a] - modes[b]) ** 2).sum(1) - drop[a] - drop[b]
    best = np.argsort(np.round(-gain, 9), kind="stable")[: _tries(m)]
    first, second = network.regular[a[best]], network.regular[b[best]]
    return [(min(e), max(e)) for e in zip(first.tolist(), second.tolist(), strict=True)]


def _new_weight(network: Network, a: Ints, b: Ints) -> Floats:
    """The weight that an edge between these positions would have."""
    degrees = network.degrees[network.regular]
    if network.weighting == "equal":
        largest = max(int(network.degrees.max()), network.max_degree or 0)
        return np.full(len(a), 1.0 / (largest + 1))
    weight = 1.0 / (np.maximum(degrees[a], degrees[b]) + 2.0)
    if network.fixed_weights:
        selves = network.self_weights()[network.regular]
        return np.minimum(weight, np.minimum(selves[a], selves[b]) / 2)
    return weight / 2 if network.weighting == "lazy" else weight


def _drops(network: Network, modes: Floats) -> Floats:
    """What a node's other edges lose to first order when its degree rises by one."""
    indptr, indices, values, _ = network.regular_csr
    rows = rows_of(indptr)
    tension = values * ((modes[rows] - modes[indices]) ** 2).sum(1)
    degrees = network.degrees[network.regular]
    if network.fixed_weights:
        return np.zeros(len(modes))
    if network.weighting == "equal":
        largest = max(int(network.degrees.max()), network.max_degree or 0)
        return np.where(degrees >= largest, tension.sum() / 2 / (largest + 2.0), 0.0)
    mine, theirs = degrees[rows], degrees[indices]
    return row_sums(indptr, np.where(mine >= theirs, tension / (mine + 2.0), 0.0))


def _join(network: Network) -> tuple[list[Suggestion], Network]:
    """One edge from the largest part to every other, between nodes with few neighbours; the last one, which
    makes γ positive, is the best of those tried."""
    largest, *rest = (part[np.argsort(network.degrees[part], kind="stable")] for part in network.components)
    chosen: list[Suggestion] = []
    current = network
    for k, part in enumerate(rest if len(rest) <= JOINS else ()):
        tries = _tries(len(network.regular)) if part is rest[-1] else 1
        quiet = islice(product(part.tolist(), np.roll(largest, -k).tolist()), tries)
        tried = [((min(edge), max(edge)), current.with_edges([edge])) for edge in quiet]
        edge, after = max(tried, key=lambda pair: _rounded(pair[1].spectral_gap))
        chosen.append(_suggestion(edge, current, after))
        current = after
    return chosen, current


def _suggestion(edge: tuple[int, int], before: Network, after: Network) -> Suggestion:
    return Suggestion(
        edge=edge,
        gamma_before=before.spectral_gap,
        gamma_after=after.spectral_gap,
        exact=before.gap.exact and after.gap.exact,
    )
