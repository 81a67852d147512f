"""Spectral gaps."""

from dataclasses import dataclass

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import eigsh


@dataclass(frozen=True, kw_only=True)
class Gap:
    value: float


def symmetric(indptr, indices, values, selves) -> sparse.csr_array:
    n = len(selves)
    return sparse.csr_array((values, indices, indptr), shape=(n, n)) + sparse.diags_array(
        selves, format="csr"
    )


def spectral_gap(w: sparse.csr_array) -> Gap:
    n = w.shape[0]
    if n == 1:
        return Gap(value=1.0)
    if n <= 2000:
        e = np.linalg.eigvalsh(w.toarray())
    else:
        e = np.sort(eigsh(w, k=3, which="BE", return_eigenvectors=False))
    return Gap(value=float(min(max(1 - max(abs(e[0]), abs(e[-2])), 0), 1)))
