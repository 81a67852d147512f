"""Spectral gaps γ = 1 − max(|λ₂|, |λ_n|) of symmetric stochastic matrices of any size, without an n×n array
if n is large.

Small matrices are solved densely. Large ones are solved by Lanczos' method without the constant vector. It
finds both ends of the spectrum at once, but is slow on graphs like rings and trees. Those have sparse
factors, so the inverse is iterated instead. A value that does not converge within the budget is reported as a
bound.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.linalg import eigh_tridiagonal
from scipy.sparse import csgraph
from scipy.sparse.linalg import LinearOperator, eigsh, splu

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
if TYPE_CHECKING:
    Csr = sparse.csr_array[np.float64, tuple[int, int]]
else:
    Csr = sparse.csr_array

DENSE = 300  # up to this many nodes, all eigenvalues at once
RELATIVE = 1e-6  # accuracy asked of γ
BUDGET = 2e9  # multiplications that one Lanczos run may cost
BAND = 600  # widest profile that is still worth a factorisation
SEED = 20_220_202


@dataclass(frozen=True, kw_only=True)
class Gap:
    """γ, λ₂, and the eigenvector of λ₂: the slowest disagreement."""

    value: float
    lambda2: float
    fiedler: Floats | None
    eigenvalues: Floats | None = None  # all of them, ascending, where they were computed
    slowest: Floats | None = None  # (n, r) all eigenvectors of λ₂ as columns, where it is known to be r-fold
    exact: bool = True  # False if `value` is only an upper bound on γ


def matrix(indptr: Ints, indices: Ints, values: Floats, selves: Floats) -> Csr:
    """The CSR matrix with these off-diagonal entries and this diagonal."""
    n = len(selves)
    off: Csr = sparse.csr_array((values, indices, indptr), shape=(n, n))
    return (off + sparse.diags_array(selves, format="csr")).tocsr()


def spectral_gap(w: Csr) -> Gap:
    """γ of a symmetric stochastic matrix."""
    n = w.shape[0]
    if n == 1:
        return Gap(value=1.0, lambda2=0.0, fiedler=None)
    if csgraph.connected_components(w, directed=False)[0] > 1:
        return Gap(value=0.0, lambda2=1.0, fiedler=None)
    if n <= DENSE:
        return dense_gap(w.toarray())
    start = np.random.default_rng(SEED).standard_normal(n)
    return _inverse(w, start) if narrow(w) else _lanczos(w, start)


def dense_gap(w: Floats) -> Gap:
    """γ from all eigenvalues."""
    values, vectors = np.linalg.eigh(w)
    alike = np.flatnonzero(np.abs(values[:-1] - values[-2]) < 1e-9)
    slowest = vectors[:, alike]
    return Gap(
        value=_clamp(1 - max(abs(values[0]), abs(values[-2]))),
        lambda2=float(values[-2]),
        fiedler=_representative(slowest),
        eigenvalues=values,
        slowest=slowest,
    )


def _representative(space: Floats) -> Floats:
    """The same eigenvector on every machine. Where λ₂ is multiple a solver may give any basis; the projection
    of a coordinate is unique, here of the first one that is nearest to the space."""
    lengths = np.round((space**2).sum(1), 9)
    nearest = int(np.argmax(lengths))
    if space.shape[1] == 1:
        vector: Floats = space[:, 0] * (-1.0 if space[nearest, 0] < 0 else 1.0)
        return vector
    return _unit(space @ space[nearest])


def asymmetric_gap(w: Csr) -> Gap:
    """γ by moduli, where Byzantine rows differ from their columns; NaN (unknown) above 2000 nodes."""
    sizes = np.sort(np.abs(np.linalg.eigvals(w.toarray()))) if w.shape[0] <= 2000 else np.full(2, np.nan)
    value = float(1 - sizes[-2])
    return Gap(value=value, lambda2=1 - value, fiedler=None, exact=bool(np.isfinite(value)))


def edge_form(w: Csr, v: Floats) -> float:
    """1 − vᵀWv / vᵀv as a sum over edges: no cancellation however small it is."""
    entries = w.tocoo()
    return float((entries.data * (v[entries.row] - v[entries.col]) ** 2).sum() / 2 / (v @ v))


def narrow(w: Csr) -> bool:
    """Whether the graph without its trees has a small profile, so that its factors are sparse."""
    rest = _prune(w)
    if rest.shape[0] <= 1:
        return True
    order = csgraph.reverse_cuthill_mckee(rest, symmetric_mode=True)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    entries = rest.tocoo()
    reach = place[entries.row] - place[entries.col]
    first = np.zeros(len(order), dtype=np.int64)
    np.maximum.at(first, place[entries.row], reach)
    return float(np.sqrt(np.mean(first.astype(np.float64) ** 2))) <= BAND


def _prune(w: Csr) -> Csr:
    """The graph without its trees: nodes of degree one are removed until there are none."""
    degrees = np.diff(w.indptr) - 1  # the diagonal is stored
    leaves = np.flatnonzero(degrees <= 1).tolist()
    left, indptr, indices = degrees.tolist(), w.indptr.tolist(), w.indices.tolist()
    while leaves:
        leaf = leaves.pop()
        left[leaf] = 0
        for other in indices[indptr[leaf] : indptr[leaf + 1]]:
            left[other] -= 1
            if left[other] == 1:
                leaves.append(other)
    keep = np.flatnonzero(np.array(left) > 1)
    return w[keep][:, keep]


def _clamp(gap: float) -> float:
    return float(min(max(gap, 0.0), 1.0))


def _lanczos(w: Csr, start: Floats) -> Gap:
    """Both ends of the spectrum from one run."""
    first = _unit(start)
    alphas, betas, exact = _tridiagonal(w, first, _converged)
    vector = _ritz_vector(w, first, alphas, betas)
    return _gap(vector, edge_form(w, vector), _smallest(alphas, betas), exact)


def _gap(vector: Floats, low: float, lambda_n: float, exact: bool) -> Gap:
    """γ from 1 − λ₂, with the vector of λ₂, and λ_n."""
    value = _clamp(min(low, 1 + lambda_n))
    return Gap(value=value, lambda2=1 - low, fiedler=vector, exact=exact)


def _smallest(alphas: Floats, betas: Floats) -> float:
    return float(eigh_tridiagonal(alphas, betas, eigvals_only=True, select="i", select_range=(0, 0))[0])


def _tridiagonal(
    w: Csr, first: Floats, done: Callable[[Floats, Floats, float], bool]
) -> tuple[Floats, Floats, bool]:
    """Plain Lanczos, no reorthogonalisation: extreme Ritz values stay right, spurious copies do no harm."""
    n = w.shape[0]
    limit = int(max(50, BUDGET / (w.nnz + 10 * n)))
    q, previous, beta = first, np.zeros(n), 0.0
    alphas: list[float] = []
    betas: list[float] = []
    check = 20
    while True:
        z = _multiply(w, q)
        alpha = float(q @ z)
        z -= alpha * q
        z -= beta * previous
        z -= z.mean()
        alphas.append(alpha)
        beta = float(np.linalg.norm(z))
        steps = len(alphas)
        if steps >= check or steps == limit or beta < 1e-14:
            check = steps + max(20, steps // 5)
            settled = beta < 1e-14 or done(np.array(alphas), np.array(betas), beta)
            if settled or steps == limit:
                return np.array(alphas), np.array(betas), settled
        betas.append(beta)
        previous, q = q, z / beta


def _multiply(w: Csr, v: Floats) -> Floats:
    product: Any = w @ v  # the stubs cannot tell that this is an array
    return np.asarray(product)


def _unit(v: Floats) -> Floats:
    v = v - v.mean()
    unit: Floats = v / np.linalg.norm(v)
    return unit


def _converged(alphas: Floats, betas: Floats, beta: float) -> bool:
    """Whether the tridiagonal matrix so far determines γ."""
    theta2, error2 = _end(alphas, betas, beta, top=True)
    theta_n, error_n = _end(alphas, betas, beta, top=False)
    settled2 = error2 <= RELATIVE * max(1 - theta2, 1e-14)
    # λ_n matters only if it may be the larger of the two in size
    settled_n = error_n <= RELATIVE * max(1 + theta_n, 1e-14) or -theta_n + 10 * error_n < theta2
    return settled2 and settled_n


def _end(alphas: Floats, betas: Floats, beta: float, *, top: bool) -> tuple[float, float]:
    """An extreme Ritz value and its error: the residual r, or r² over the distance to the next value."""
    m = len(alphas)
    ends = (max(m - 2, 0), m - 1) if top else (0, min(1, m - 1))
    values, vectors = eigh_tridiagonal(alphas, betas, select="i", select_range=ends)
    last = -1 if top else 0
    residual, apart = abs(beta * vectors[-1, last]), float(values[-1] - values[0])
    return float(values[last]), float(min(residual, residual**2 / apart) if apart > 0 else residual)


def _ritz_vector(w: Csr, first: Floats, alphas: Floats, betas: Floats) -> Floats:
    """The Ritz vector of the largest Ritz value, by running the recurrence a second time."""
    m = len(alphas)
    _, s = eigh_tridiagonal(alphas, betas, select="i", select_range=(m - 1, m - 1))
    coefficients = s[:, 0]
    q, previous = first, np.zeros_like(first)
    vector = coefficients[0] * q
    for k in range(m - 1):
        z = _multiply(w, q)
        z -= alphas[k] * q
        if k:
            z -= betas[k - 1] * previous
        z -= z.mean()
        previous, q = q, z / betas[k]
        vector += coefficients[k + 1] * q
    return _unit(vector)


def _inverse(w: Csr, start: Floats) -> Gap:
    """λ₂ from the pseudo-inverse of I − W, by factoring it with the best-connected node grounded."""
    n = w.shape[0]
    free = np.delete(np.arange(n), np.argmax(np.diff(w.indptr)))  # a hub left in would make the ordering slow
    laplacian = (sparse.diags_array(np.ones(n), format="csr") - w)[free][:, free].tocsc()
    factors = splu(
        laplacian, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True}
    )

    def solve(b: Floats) -> Floats:
        b = b.ravel()
        x = np.zeros(n)
        x[free] = factors.solve((b - b.mean())[free])
        x -= x.mean()
        return x

    operator: Any = LinearOperator((n, n), matvec=solve, dtype=np.float64)
    _, vectors = eigsh(operator, k=1, which="LA", v0=_unit(start), tol=1e-8)
    vector = _unit(vectors[:, 0])
    low = edge_form(w, vector)
    theta_n, exact = 2 * float(w.diagonal().min()) - 1, True  # Gershgorin: λ_n is not below
    if -theta_n > 1 - low:
        alphas, betas, exact = _tridiagonal(w, _unit(start), _lowest(1 - low))
        theta_n = _smallest(alphas, betas)
    return _gap(vector, low, theta_n, exact)


def _lowest(lambda2: float) -> Callable[[Floats, Floats, float], bool]:
    """Whether λ_n is known, or known not to matter beside λ₂."""

    def done(alphas: Floats, betas: Floats, beta: float) -> bool:
        theta, error = _end(alphas, betas, beta, top=False)
        return error <= RELATIVE * max(1 + theta, 1e-14) or -theta + 10 * error < lambda2

    return done
