"""The diagnosis of a schedule: how fast its rounds mix, when their links connect all, what δ_i they have."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

import clippedgossip.theory as theory
from clippedgossip.network import Network
from clippedgossip.network.schedule import RandomNeighbours
from clippedgossip.network.spectrum import Floats, matrix

LOOKED = 300  # rounds
DENSE = 400  # regular nodes of the largest network whose contraction is computed
PATIENCE = 2000  # rounds in which the links should connect the regular nodes
LONGEST = 10_000  # the same, where the rounds repeat
RISK = 0.01


@dataclass(frozen=True, kw_only=True)
class Heard:
    """Byzantine nodes among s random neighbours, over all regular nodes and rounds of a run (exact)."""

    rounds: int
    neighbours: int
    most: int  # the smallest f that no node exceeds, but with the probability RISK
    probability: float  # that some node hears more than `most` of them
    outvoted: float  # the probability that in some round half of those that a node hears are Byzantine
    fewest: int | None  # the smallest s with which that is at most RISK; None if there is none


@dataclass(frozen=True, kw_only=True)
class RoundsAudit:
    """What `audit` knows of a network's schedule. Distances are those of the regular nodes to their mean,
    under gossip with W̃ of each round."""

    rounds: int  # that were looked at
    directed: bool
    p: float | None  # 1 − the largest eigenvalue of E[W̃ᵀ Π W̃], Π = I − 11ᵀ/n; None for large networks
    expected: bool  # whether that expectation is exact; otherwise it is a mean over the rounds
    connected_after: int | None  # rounds until the links together connect all, from any of these on
    unconnected_for: int | None  # if they do not: rounds looked at; None if these are all that there are
    connected_mean: float | None
    window_factor: float | None  # the largest on the distance, in so many rounds from any of these on
    delta_mean: float
    delta_median: float
    delta_95: float
    delta_max: float
    heard: Heard | None


def rounds_audit(network: Network, *, rounds: int = 1000, seed: int = 0) -> RoundsAudit | None:
    """Diagnose the schedule of a network, for runs of so many rounds; None if it has none."""
    schedule = network.schedule
    if schedule is None:
        return None
    looked = min(rounds, schedule.period or LOOKED)
    delta = np.concatenate([network.at(round, seed).delta for round in range(looked)])
    waits = _waits(network, looked, seed)
    never = len(waits) < looked
    small = len(network.regular) <= DENSE
    drawn = schedule if isinstance(schedule, RandomNeighbours) and not network.fixed_weights else None
    p = None
    if small:
        squares = _expected(network, drawn) if drawn else _mean(network, looked, seed)
        p = 1 - max(0.0, float(np.linalg.eigvalsh(squares)[-1]))
        p = 0.0 if abs(p) < 1e-12 else p  # rounding
    factor = None
    if small and not never:
        factor = _contraction(network, looked, max(waits), seed)
    return RoundsAudit(
        rounds=looked,
        directed=schedule.directed,
        p=p,
        expected=drawn is not None,
        connected_after=None if never else max(waits),
        unconnected_for=_sought(network) if never and (schedule.period or LONGEST) >= LONGEST else None,
        connected_mean=None if never else float(np.mean(waits)),
        window_factor=factor,
        delta_mean=float(delta.mean()),
        delta_median=float(np.median(delta)),
        delta_95=float(np.quantile(delta, 0.95)),
        delta_max=float(delta.max()),
        heard=_heard(network, schedule, rounds) if isinstance(schedule, RandomNeighbours) else None,
    )


def _waits(network: Network, looked: int, seed: int) -> list[int]:
    """How many rounds from each start on until the links together connect the regular nodes; ends where they
    do not.

    A spanning tree of the newest links knows all starts: it connects from its oldest link on.
    """
    m = len(network.regular)
    tree = sparse.csr_array((m, m))  # on each link, the round that used it, counted from 1
    waits: list[int] = []
    for round in range(looked + _sought(network)):
        indptr, indices, _, _ = network.at(round, seed).regular_csr
        now = sparse.csr_array((np.full(len(indices), round + 1.0), indices, indptr), shape=(m, m))
        tree = -csgraph.minimum_spanning_tree(-tree.maximum(now).maximum(now.T))
        oldest = int(tree.data.min(initial=round + 1.0)) if tree.nnz == m - 1 else 0
        waits += [round + 1 - start for start in range(len(waits), min(oldest, looked))]
        if len(waits) == looked or round + 1 - len(waits) >= _sought(network):
            break
    return waits


def _sought(network: Network) -> int:
    assert network.schedule is not None
    return min(network.schedule.period or PATIENCE, LONGEST)


def _regular(network: Network) -> Floats:
    found: Floats = matrix(*network.regular_csr).toarray()
    return found


def _centred(w: Floats) -> Floats:
    found: Floats = w - w.mean(0)
    return found


def _mean(network: Network, rounds: int, seed: int) -> Floats:
    """The mean of W̃ᵀ Π W̃ over the rounds."""
    total = np.zeros((len(network.regular),) * 2)
    for round in range(rounds):
        w = _centred(_regular(network.at(round, seed)))
        total += w.T @ w
    return total / rounds


def _expected(network: Network, schedule: RandomNeighbours) -> Floats:
    """E[W̃ᵀ Π W̃], exactly. Row i is w = e_i + c Σ_j z_j (e_j − e_i) over its regular neighbours, where z_j is
    1 if j is drawn: with probability p₁ = s/d, and together with another one p₂ = s(s−1)/(d(d−1)). Rows are
    independent of each other."""
    r = len(network.regular)
    row_of = np.full(network.n, -1)
    row_of[network.regular] = np.arange(r)
    halved = 0.5 if network.weighting == "lazy" else 1.0
    squares, means, of_means = (np.zeros((r, r)) for _ in range(3))
    for i, node in enumerate(network.regular):
        if network.everyone:
            around = np.delete(np.arange(r), i)
        else:
            around = row_of[network.indices[network.indptr[node] : network.indptr[node + 1]]]
        d, around = int(network.degrees[node]), around[around >= 0]
        s = min(schedule.neighbours, d)
        c = halved / (s + 1)
        p1, p2 = s / d if d else 0.0, s * (s - 1) / (d * (d - 1)) if d > 1 else 0.0
        towards = np.zeros(r)
        towards[around] = 1
        towards[i] -= len(around)
        step = c * p1 * towards
        of_one = np.zeros((r, r))  # Σ_j (e_j − e_i)(e_j − e_i)ᵀ
        of_one[around, around] = 1
        of_one[i, around] = of_one[around, i] = -1
        of_one[i, i] = len(around)
        squares[i] += step
        squares[:, i] += step
        squares[i, i] += 1
        squares += c * c * (p2 * np.outer(towards, towards) + (p1 - p2) * of_one)
        means[i] = step
        means[i, i] += 1
        of_means += np.outer(means[i], means[i])
    total = means.sum(0)
    found: Floats = squares - (np.outer(total, total) + squares - of_means) / r
    return found


def _contraction(network: Network, looked: int, window: int, seed: int) -> float:
    """The largest factor on the distance to the mean in a window of rounds that starts in one looked at.

    A window is the end of one block of rounds and the beginning of the next: so a round is multiplied twice.
    """

    def w(round: int) -> Floats:
        return _regular(network.at(round, seed))

    largest, nothing = 0.0, np.eye(len(network.regular))
    for block in range(0, looked, window):
        following, end = block + window, nothing
        ends: dict[int, Floats] = {}  # by the round that they start in
        for round in reversed(range(block, following)):
            end = end @ w(round)
            if round < looked:
                ends[round] = end
        beginning = nothing
        for start, end in sorted(ends.items(), key=lambda item: item[0]):
            spread = _centred(beginning @ end)
            spread -= spread.mean(1, keepdims=True)
            largest = max(largest, float(np.linalg.norm(spread, 2)))
            beginning = w(start + window) @ beginning
    return largest


def _heard(network: Network, schedule: RandomNeighbours, rounds: int) -> Heard:
    s = schedule.neighbours

    def risk(most: int) -> float:
        return theory.byzantine_heard(network, neighbours=s, more_than=most, rounds=rounds)

    most = next(f for f in range(s + 1) if risk(f) <= RISK)
    return Heard(
        rounds=rounds,
        neighbours=s,
        most=most,
        probability=risk(most),
        outvoted=theory.outvoted(network, neighbours=s, rounds=rounds),
        fewest=theory.fewest_neighbours(network, rounds=rounds, risk=RISK),
    )
