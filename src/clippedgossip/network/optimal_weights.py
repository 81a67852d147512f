"""Weights with the largest γ(W) that a graph allows, with an upper bound that proves how near they come.

Fastest mixing (Boyd, Diaconis, Xiao 2004). W = I − L(w), L(w) = Σ_e w_e b_e b_eᵀ, b_e = e_i − e_j:

    maximise γ   with   γ ⪯ L(w) ⪯ 2 − γ on 1⊥,   w ≥ 0,   Σ_{e∋i} w_e ≤ 1.

It is not known beforehand which nodes are Byzantine, so γ is that of the full W. *Robust* weights also give
no b neighbours of a node more than the cap together. Then b Byzantine neighbours give δ_max ≤ cap, whichever
they are, and the largest γ gives the smallest bound cap/γ² on the theorem's δ_max/γ². Each set of b
neighbours is a constraint; where there are more than `SETS` of them, no edge has more than cap/b instead,
which is stricter.

Up to `EXACT` edges a barrier method finds the point of the central path

    argmin  −t log γ − Σ log(slack) − log det(L − γ) − log det(2 − γ − L),   t = (number of slacks)/ε,

whose γ is within the share ε of the optimum. Optimal weights are often not unique; this point is. It is as
symmetric as the graph, all edges and all self-weights are positive, and CPUs agree on it to rounding.
Larger graphs are solved by ADMM, a nonexpansive iteration: rounding errors do not grow there either.

The bound. For Y₁, Y₂ ⪰ 0 on 1⊥ with tr Y₁ + tr Y₂ = 1, all allowed weights have

    γ ≤ 2 tr Y₂ + Σ_e w_e b_eᵀ(Y₁ − Y₂)b_e.

The largest right-hand side is a linear program. It holds however Y₁ and Y₂ were found.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from scipy import linalg, sparse
from scipy.sparse import csgraph
from threadpoolctl import threadpool_limits

from clippedgossip.errors import NetworkError
from clippedgossip.network.spectrum import Floats, Ints

LARGEST = 2000  # nodes; the methods hold several n×n matrices
EXACT = 2000  # edges up to which the barrier method is used
LEAST_CAP = 0.001  # below, γ is so small that rounding hides it
SETS = 20_000  # of b neighbours; where there are more, each edge is bounded by itself
EPSILON = 1e-4  # share of γ that the barrier method may leave
ENOUGH = 1e-3  # share of γ at which ADMM stops
ROUNDS = 240  # of ADMM, at most
BLEND = 1e-4  # share of Metropolis–Hastings in ADMM's weights: no weight is 0, and γ loses no larger share
KEEP_OFF = 1.5  # a step ends where one of this many times its length would still be allowed
THREADS_FROM = 200  # nodes; smaller matrices are faster on one thread


@dataclass(frozen=True)
class Robust:
    """No `robust` neighbours of any node hold more than `cap` together."""

    robust: int
    cap: float

    def __post_init__(self) -> None:
        if self.robust < 1:
            raise NetworkError(
                f"robust is {self.robust}\n"
                "it is the number of Byzantine neighbours to expect: give at least 1"
            )
        if not LEAST_CAP <= self.cap <= 1:
            raise NetworkError(
                f"cap is {self.cap}; it bounds Byzantine weight\ngive a number from {LEAST_CAP} to 1"
            )


@dataclass(frozen=True, kw_only=True)
class Optimum:
    """Edge weights in CSR order, their γ, and a γ that no allowed weights exceed."""

    values: Floats
    gamma: float
    bound: float

    @property
    def gap(self) -> float:
        """The share of the bound that the weights may lack."""
        return max(1 - self.gamma / self.bound, 0.0)


def optimum(indptr: Ints, indices: Ints, robust: Robust | None = None) -> Optimum:
    """The optimal weights of a connected graph. They are cached: all runs on one graph need the same."""
    _check(indptr, indices, robust)
    return _optimum(indptr.tobytes(), indices.tobytes(), robust)


def _check(indptr: Ints, indices: Ints, robust: Robust | None) -> None:
    n = len(indptr) - 1
    name = "optimal" if robust is None else "robust"
    graph: Any = sparse.csr_array((np.ones(len(indices)), indices, indptr), shape=(n, n))
    parts = csgraph.connected_components(graph, directed=False)[0]
    if parts > 1:
        raise NetworkError(
            f"the graph falls into {parts} parts; {name} weights need a connected graph\n"
            "add edges between the parts, or use metropolis-hastings weights"
        )
    if n > LARGEST:
        raise NetworkError(
            f"the graph has {n} nodes; {name} weights are computed for at most {LARGEST}\n"
            "use metropolis-hastings weights"
        )
    if robust is None:
        return
    least = int(np.diff(indptr).min(initial=n))
    if robust.robust > least:
        raise NetworkError(
            f"robust is {robust.robust} but a node has only {least} neighbour{'s' * (least != 1)}\n"
            + (f"give robust = {least} at most, or add edges" if least else "add edges")
        )


@lru_cache(maxsize=32)
def _optimum(indptr: bytes, indices: bytes, robust: Robust | None) -> Optimum:
    starts, columns = np.frombuffer(indptr, dtype=np.int64), np.frombuffer(indices, dtype=np.int64)
    n = len(starts) - 1
    if n == 1:
        return Optimum(values=np.empty(0), gamma=1.0, bound=1.0)
    problem = _Problem(starts, columns, robust)
    with threadpool_limits(1 if n < THREADS_FROM else None):
        w, top, bottom = _barrier(problem) if problem.m <= EXACT else _admm(problem)
        gamma, bound = problem.gamma(w), problem.bound(top, bottom)
    values = w[problem.edge_of_entry]
    values.flags.writeable = False
    return Optimum(values=values, gamma=gamma, bound=min(max(bound, gamma), 1.0))


class _Problem:
    """The graph as edges i–j, and the linear constraints A w ≤ h."""

    incidence: Any  # the stubs cannot tell what a product with a sparse matrix is
    a: Any

    def __init__(self, indptr: Ints, indices: Ints, robust: Robust | None) -> None:
        n = self.n = len(indptr) - 1
        rows = np.repeat(np.arange(n), np.diff(indptr))
        ahead = rows < indices
        self.i, self.j = rows[ahead], indices[ahead]
        m = self.m = len(self.i)
        keys = np.minimum(rows, indices) * n + np.maximum(rows, indices)
        self.edge_of_entry = np.searchsorted(keys[ahead], keys)
        ends, edge = np.concatenate([self.i, self.j]), np.tile(np.arange(m), 2)
        self.incidence = sparse.csr_array((np.ones(2 * m), (ends, edge)), shape=(n, m))
        degrees = np.diff(indptr)
        self.metropolis = 1.0 / (np.maximum(degrees[self.i], degrees[self.j]) + 1.0)
        self.most = np.inf if robust is None else robust.cap / robust.robust
        rows_of_a = [-sparse.eye_array(m), self.incidence]
        h = [np.zeros(m), np.ones(n)]
        if robust is not None:
            sets = _sets(indptr, self.edge_of_entry, robust.robust)
            if m > EXACT or sets is None:
                rows_of_a.append(sparse.eye_array(m))
                h.append(np.full(m, self.most))
            else:
                place = np.repeat(np.arange(len(sets)), robust.robust)
                members = (np.ones(sets.size), (place, sets.ravel()))
                rows_of_a.append(sparse.csr_array(members, shape=(len(sets), m)))
                h.append(np.full(len(sets), robust.cap))
        self.a, self.h = sparse.csr_array(sparse.vstack(rows_of_a)), np.concatenate(h)

    def laplacian(self, w: Floats) -> Floats:
        matrix = np.zeros((self.n, self.n))
        matrix[self.i, self.j] = matrix[self.j, self.i] = -w
        matrix[np.diag_indices(self.n)] = self.incidence @ w
        return matrix

    def on_edges(self, x: Floats) -> Floats:
        """b_eᵀ X b_e of every edge."""
        diagonal = np.diag(x)
        return np.asarray(diagonal[self.i] + diagonal[self.j] - 2 * x[self.i, self.j])

    def gamma(self, w: Floats) -> float:
        """γ of the weights."""
        values = linalg.eigvalsh(self.laplacian(w), check_finite=False)
        return float(min(values[1], 2 - values[-1]))

    def bound(self, top: Floats, bottom: Floats) -> float:
        """The bound from Y₁ = `top` and Y₂ = `bottom`, scaled to trace 1 together."""
        from scipy.optimize import linprog

        trace = float(np.trace(top) + np.trace(bottom))
        cost = self.on_edges(top - bottom) / trace
        scale = float(np.abs(cost).max())
        found: Any = linprog(-cost / scale, A_ub=self.a, b_ub=self.h, bounds=(None, None), method="highs")
        return float(2 * np.trace(bottom) / trace - scale * found.fun)


def _sets(indptr: Ints, edge_of_entry: Ints, byzantine: int) -> Ints | None:
    """(count, b) every set of b edges at a node, each once; None if there are too many."""
    degrees = np.diff(indptr)
    if sum(comb(int(degree), byzantine) for degree in degrees) > SETS:
        return None
    found = [
        np.sort(np.array(list(combinations(edges.tolist(), byzantine)), dtype=np.int64), axis=1)
        for edges in np.split(edge_of_entry, indptr[1:-1])
    ]
    return np.unique(np.concatenate(found), axis=0)


def _barrier(problem: _Problem) -> tuple[Floats, Floats, Floats]:
    """Newton's method along the central path: w and the two dual matrices there."""
    count = 2 * (problem.n - 1) + len(problem.h)
    w = problem.metropolis * min(0.9, problem.most / 2 / float(problem.metropolis.max()))
    gamma = problem.gamma(w) / 2
    t, last = float(count), count / EPSILON
    while True:
        w, gamma, duals = _centre(problem, w, gamma, t, 1e-8 if t == last else 0.25)
        if t == last:
            return w, *duals
        t = min(10 * t, last)


def _centre(
    problem: _Problem, w: Floats, gamma: float, t: float, accuracy: float
) -> tuple[Floats, float, tuple[Floats, Floats]]:
    """The minimiser of the barrier function for one t, to this Newton decrement, and its dual matrices."""
    everywhere = np.eye(problem.n)
    value, factors = _value(problem, w, gamma, t)
    while True:
        assert factors is not None, "a step never leaves the domain"
        p, q = (linalg.cho_solve((factor, True), everywhere, check_finite=False) for factor in factors)
        dw, dgamma, decrement = _newton(problem, w, gamma, t, p, q)
        step = 1.0
        while decrement >= accuracy:
            lower, factors = _value(problem, w + step * dw, gamma + step * dgamma, t)
            further = _value(problem, w + KEEP_OFF * step * dw, gamma + KEEP_OFF * step * dgamma, t)[0]
            if lower <= value - 0.1 * step * decrement and further < np.inf:
                break
            step /= 2
            if step < 1e-9:  # rounding hides what is left to gain
                decrement = 0.0
        if decrement < accuracy:
            return w, gamma, (_off_mean(p), _off_mean(q))
        w, gamma, value = w + step * dw, gamma + step * dgamma, lower


def _value(
    problem: _Problem, w: Floats, gamma: float, t: float
) -> tuple[float, tuple[Floats, Floats] | None]:
    """The barrier function, infinite outside of its domain, and the factors of L − γ and 2 − γ − L."""
    slack = problem.h - problem.a @ w
    if gamma <= 0 or slack.min() <= 0:
        return np.inf, None
    laplacian, eye, mean = problem.laplacian(w), np.eye(problem.n), 1.0 / problem.n
    # The constraints are on 1⊥; on 1 both matrices are made 1.
    both = laplacian - gamma * eye + (1 + gamma) * mean, (2 - gamma) * eye - laplacian + (gamma - 1) * mean
    try:
        low, high = (linalg.cholesky(matrix, lower=True, check_finite=False) for matrix in both)
    except linalg.LinAlgError:
        return np.inf, None
    logs = np.log(slack).sum() + 2 * np.log(np.diag(low)).sum() + 2 * np.log(np.diag(high)).sum()
    return float(-t * np.log(gamma) - logs), (low, high)


def _newton(
    problem: _Problem, w: Floats, gamma: float, t: float, p: Floats, q: Floats
) -> tuple[Floats, float, float]:
    """Newton's direction in w and γ, and its decrement; P and Q invert L − γ and 2 − γ − L."""
    on_edges = problem.on_edges
    slack = problem.h - problem.a @ w
    gradient = problem.a.T @ (1 / slack) + on_edges(q) - on_edges(p)
    slope = -t / gamma + np.trace(p) + np.trace(q) - 2
    p2, q2 = p @ p, q @ q
    mixed = on_edges(q2) - on_edges(p2)
    curvature = t / gamma**2 + np.trace(p2) + np.trace(q2) - 2
    hessian = _gram(problem, p) + _gram(problem, q)
    hessian += (problem.a.T @ sparse.diags_array(slack**-2.0) @ problem.a).toarray()
    factor = linalg.cho_factor(hessian, check_finite=False, overwrite_a=True)
    one, two = linalg.cho_solve(factor, np.stack([gradient, mixed], 1), check_finite=False).T
    dgamma = float(-(slope - mixed @ one) / (curvature - mixed @ two))
    dw: Floats = -one - dgamma * two
    return dw, dgamma, float(-(gradient @ dw + slope * dgamma))


def _gram(problem: _Problem, x: Floats) -> Floats:
    """(b_eᵀ X b_f)² of all pairs of edges: the Hessian of −log det."""
    half = x[problem.i] - x[problem.j]
    full = half[:, problem.i] - half[:, problem.j]
    return np.asarray(full * full)


def _off_mean(x: Floats) -> Floats:
    """X on 1⊥."""
    return np.asarray(x - x.mean(0) - x.mean(1)[:, None] + x.mean())


def _admm(problem: _Problem) -> tuple[Floats, Floats, Floats]:
    """min ‖Z‖ + [0 ≤ p ≤ most] + [q ≥ 0]  with  Z = I − J − L(w), p = w, q = 1 − Σ_{e∋i} w_e.

    The step in w is least squares with a matrix of the form c I + d DᵀD, D the incidence: 𝓛ᵀ𝓛 = DᵀD + 2I.
    """
    n, d = problem.n, problem.incidence
    rho, beta, relax = 2 / np.sqrt(n), 0.3, 1.6
    inner = linalg.cho_factor(np.eye(n) / (1 + beta) + (d @ d.T).toarray() / (2 + beta))
    centring = np.eye(n) - 1 / n
    w = _allowed(problem, problem.metropolis)
    z, p, q = centring - problem.laplacian(w), w, 1 - d @ w
    y, up, uq = np.zeros((n, n)), np.zeros(problem.m), np.zeros(n)
    best, least, duals = (-np.inf, w), np.inf, (centring, centring)
    for k in range(1, ROUNDS + 1):
        total = z + y
        values, vectors = linalg.eigh(total, check_finite=False, overwrite_a=False, driver="evd")
        excess = _excess(values, 1 / rho)
        active = excess != 0
        y = (vectors[:, active] * excess[active]) @ vectors[:, active].T
        fixed = total - y
        inside, room = np.clip(p + up, 0, problem.most), np.maximum(q + uq, 0)
        up, uq = p + up - inside, q + uq - room
        right = problem.on_edges(centring - fixed + y) + beta * (inside - up) + beta * (d.T @ (1 - room + uq))
        w = right / (2 + beta) - d.T @ linalg.cho_solve(inner, d @ right) / (2 + beta) ** 2
        z = relax * (centring - problem.laplacian(w)) + (1 - relax) * fixed
        p, q = relax * w + (1 - relax) * inside, relax * (1 - d @ w) + (1 - relax) * room
        if k % 20 == 0:
            allowed = _allowed(problem, w)
            best = max(best, (problem.gamma(allowed), allowed), key=lambda found: found[0])
            top, bottom = _parts(vectors, excess)
            bound = problem.bound(top, bottom)
            if bound < least:
                least, duals = bound, (top, bottom)
            if best[0] >= (1 - ENOUGH) * least:
                break
    return (1 - BLEND) * best[1] + BLEND * _allowed(problem, problem.metropolis), *duals


def _excess(values: Floats, budget: float) -> Floats:
    """What exceeds ±s, with s such that it sums to the budget: the proximal step of the spectral norm."""
    sizes = np.sort(np.abs(values))[::-1]
    levels = (np.cumsum(sizes) - budget) / np.arange(1, len(sizes) + 1)
    level = max(float(levels[np.flatnonzero(sizes > levels)[-1]]), 0.0)
    return np.asarray(np.sign(values) * np.maximum(np.abs(values) - level, 0))


def _parts(vectors: Floats, excess: Floats) -> tuple[Floats, Floats]:
    """The positive and the negative part of Σ excess v vᵀ, on 1⊥."""
    up, down = excess > 0, excess < 0
    top = (vectors[:, up] * excess[up]) @ vectors[:, up].T
    bottom = (vectors[:, down] * -excess[down]) @ vectors[:, down].T
    return _off_mean(top), _off_mean(bottom)


def _allowed(problem: _Problem, w: Floats) -> Floats:
    """Allowed weights near w: cut off at their bounds, then scaled so that no row is above 1."""
    w = np.clip(w, 0, problem.most)
    sums = np.maximum(problem.incidence @ w, 1)
    return np.asarray(w / np.maximum(sums[problem.i], sums[problem.j]))
