"""Mixing weights (§ Constructing mixing matrices), on the edges of a graph in CSR order; nothing is n×n."""

from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from clippedgossip import decode
from clippedgossip.errors import NetworkError
from clippedgossip.graphs.generators import Graph
from clippedgossip.network.optimal_weights import Robust, optimum
from clippedgossip.network.spectrum import Floats, Ints

Name = Literal["metropolis-hastings", "equal", "lazy", "optimal", "own"]
WEIGHTS: tuple[Name, ...] = get_args(Name)
TOLERANCE = 1e-9


def weights_of(said: object, path: decode.Path = ("weights",)) -> Name | Robust:
    """From the words of a config: a name, or {robust = b, cap = c}."""
    if isinstance(said, Mapping):
        return decode.section(Robust, said, path)
    try:
        name: Name = decode.value(Name, said, path)
    except decode.KeyProblem as problem:
        raise decode.KeyProblem(path, f"{problem} or a table with robust and cap") from None
    return name


def rows_of(indptr: Ints) -> Ints:
    """The row of every CSR entry."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def starts(counts: Ints | NDArray[np.bool_]) -> Ints:
    """Where each of rows with so many entries starts, and the last one ends."""
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def row_sums(indptr: Ints, values: Floats) -> Floats:
    """The sum of each CSR row."""
    return np.bincount(rows_of(indptr), weights=values, minlength=len(indptr) - 1).astype(np.float64)


def metropolis_hastings(indptr: Ints, indices: Ints) -> Floats:
    """W_ij = 1 / (max(d_i, d_j) + 1)."""
    degrees = np.diff(indptr)
    return 1.0 / (np.maximum(degrees[rows_of(indptr)], degrees[indices]) + 1.0)


def equal(indptr: Ints, indices: Ints, max_degree: int | None = None) -> Floats:
    """W_ij = 1 / (d_max + 1), with d_max the largest degree or a public bound on it."""
    largest = int(np.diff(indptr).max(initial=0))
    bound = largest if max_degree is None else max_degree
    if bound < largest:
        raise NetworkError(
            f"max_degree is {bound}; the graph has a node of degree {largest}: give at least that"
        )
    return np.full(len(indices), 1.0 / (bound + 1.0))


def constructed(name: str, indptr: Ints, indices: Ints, max_degree: int | None = None) -> Floats:
    """Edge weights by the name of their construction; lazy: (I + W) / 2, with no negative eigenvalue."""
    if name == "equal":
        return equal(indptr, indices, max_degree)
    return metropolis_hastings(indptr, indices) / (2 if name == "lazy" else 1)


def from_attributes(graph: Graph, labels: Sequence[Hashable], indptr: Ints, indices: Ints) -> Floats:
    """The `weight` attribute of every edge."""
    values = np.empty(len(indices))
    for entry, (i, j) in enumerate(zip(rows_of(indptr).tolist(), indices.tolist(), strict=True)):
        weight = graph.edges[labels[i], labels[j]].get("weight")
        if not isinstance(weight, Real):
            raise NetworkError(
                f"edge {labels[i]}–{labels[j]} has weight {weight!r}; own weights need one on every edge\n"
                "give it a number, or choose other weights: metropolis-hastings, equal or lazy"
            )
        values[entry] = float(weight)
    return values


def from_matrix(
    matrix: Any, labels: Sequence[Hashable], indptr: Ints, indices: Ints
) -> tuple[Floats, Floats]:
    """Edge and self-weights of a full W; a weight off the graph is an error."""
    own = sparse.coo_array(matrix, dtype=np.float64)
    n = len(labels)
    if own.shape != (n, n):
        raise NetworkError(f"the weight matrix is {own.shape}; a network of {n} nodes needs ({n}, {n})")
    if not np.isfinite(own.data).all():
        raise NetworkError("the weight matrix holds NaN or Inf; every weight is a finite number")
    own.sum_duplicates()
    own.eliminate_zeros()
    keys = rows_of(indptr) * n + indices
    off = own.row != own.col
    wanted = own.row[off].astype(np.int64) * n + own.col[off]
    place = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
    stray = np.ones(len(wanted), dtype=bool) if not len(keys) else keys[place] != wanted
    if stray.any():
        i, j = divmod(int(wanted[np.argmax(stray)]), n)
        raise NetworkError(
            f"W[{labels[i]}, {labels[j]}] is not 0 but {labels[i]} and {labels[j]} are not neighbours; "
            "add the edge or drop the weight"
        )
    values = np.zeros(len(indices))
    values[place] = own.data[off]
    return values, own.diagonal()


def check(
    labels: Sequence[Hashable],
    indptr: Ints,
    indices: Ints,
    values: Floats,
    selves: Floats,
    is_byzantine: NDArray[np.bool_],
) -> None:
    """Assumption (Mixing weights), on the rows of the regular nodes."""
    rows = rows_of(indptr)
    regular = ~is_byzantine

    def fail(bad: NDArray[np.bool_], say: str) -> None:
        if bad.any():
            e = int(np.argmax(bad))
            i, j = int(rows[e]), int(indices[e])
            raise NetworkError(
                say.format(i=labels[i], j=labels[j], w=f"{values[e]:g}", back=f"{transposed[e]:g}")
            )

    transposed = values[reverse_entries(indptr, indices)]
    fail(
        regular[rows] & (values < 0),
        "W[{i}, {j}] = {w} is negative; weights must be positive between neighbours",
    )
    fail(
        regular[rows] & (values == 0),
        "W[{i}, {j}] = 0 but {i} and {j} are neighbours; give the edge a positive weight or remove it",
    )
    fail(
        regular[rows] & regular[indices] & (np.abs(values - transposed) > TOLERANCE),
        "W[{i}, {j}] = {w} but W[{j}, {i}] = {back}; weights must be symmetric between regular nodes",
    )
    sums = row_sums(indptr, values)
    low = regular & (selves <= TOLERANCE)
    if low.any():
        i = int(np.argmax(low))
        raise NetworkError(
            f"node {labels[i]} has self-weight {selves[i]:.3g} beside {sums[i]:.6g} for its neighbours\n"
            "every self-weight must be positive: lower the others or use metropolis-hastings weights"
        )
    off = regular & (np.abs(sums + selves - 1) > TOLERANCE)
    if off.any():
        i = int(np.argmax(off))
        raise NetworkError(f"row {labels[i]} of W sums to {sums[i] + selves[i]:.9g}; every row must sum to 1")


def is_symmetric(indptr: Ints, indices: Ints, values: Floats) -> bool:
    """Whether W_ij = W_ji on every edge, Byzantine ends included."""
    return bool((np.abs(values - values[reverse_entries(indptr, indices)]) <= TOLERANCE).all())


def reverse_entries(indptr: Ints, indices: Ints) -> Ints:
    """For the CSR entry of (i, j), the place of (j, i)."""
    return np.lexsort((rows_of(indptr), indices)).astype(np.int64)


def resolve(
    graph: Graph,
    labels: Sequence[Hashable],
    indptr: Ints,
    indices: Ints,
    is_byzantine: NDArray[np.bool_],
    weights: object,
    max_degree: int | None,
) -> tuple[str, Floats, Floats]:
    """Name, edge weights and self-weights of W, checked."""
    if max_degree is not None and weights != "equal":
        raise NetworkError(f"max_degree is {max_degree} but only equal weights use it; give weights='equal'")
    if isinstance(weights, str | Mapping):
        try:
            said = weights_of(weights)
        except decode.KeyProblem as problem:
            raise NetworkError(str(problem)) from problem
        name = "robust" if isinstance(said, Robust) else said
        if isinstance(said, Robust):
            values = optimum(indptr, indices, said).values
        elif said == "own":
            values = from_attributes(graph, labels, indptr, indices)
        elif said == "optimal":
            values = optimum(indptr, indices).values
        else:
            values = constructed(said, indptr, indices, max_degree)
        sums = row_sums(indptr, values)
        # The row of a Byzantine node may be wrong: it is scaled to a distribution.
        excess = np.where(is_byzantine & (sums > 1), np.maximum(sums, 1), 1.0)
        values = values / excess[rows_of(indptr)]
        selves = 1 - row_sums(indptr, values)
    elif sparse.issparse(weights) or isinstance(weights, np.ndarray):
        name = "own"
        values, selves = from_matrix(weights, labels, indptr, indices)
    else:
        raise NetworkError(
            f"weights are {type(weights).__name__}; give a name ({', '.join(WEIGHTS)}), "
            "a table such as {'robust': 2, 'cap': 0.2}, or a matrix"
        )
    if not np.isfinite(values).all():
        raise NetworkError("an edge weight is NaN or Inf; every weight is a finite number")
    check(labels, indptr, indices, values, selves, is_byzantine)
    return name, values, selves
