r"""What rows of data add to a structured precision, and the variances of what rows see."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from curvi.linalg._pattern import Pattern


def gram_entries(A: sparse.csr_array) -> tuple[np.ndarray, np.ndarray]:
    """Where A' A is not zero.

    Parameters
    ----------
    A : sparse array, shape (rows, size)
        What each row sees of the effects. Zeros that are stored count.

    Returns
    -------
    rows, columns : array of int
        Entries for a `Pattern`.
    """
    ones = sparse.csr_array((np.ones(A.nnz), A.indices, A.indptr), A.shape)
    joined = sparse.csr_array(ones.T @ ones).tocoo()
    return joined.row, joined.col


class RowProducts:
    r"""The products a_ij a_ik of every row of A, placed in a pattern once.

    Parameters
    ----------
    pattern : Pattern
        It holds the entries of A' A (`gram_entries`).
    A : sparse array, shape (rows, size)
        What each row sees of the effects.
    """

    def __init__(self, pattern: Pattern, A: sparse.csr_array) -> None:
        A = sparse.csr_array(A)
        lengths = np.diff(A.indptr)
        none = np.empty(0, np.int64)
        places, owners, products = [none], [none], [np.empty(0)]
        for length in np.unique(lengths[lengths > 0]):
            rows = np.flatnonzero(lengths == length)
            at = A.indptr[rows][:, None] + np.arange(length)
            one, other = np.tril_indices(length)
            index, data = A.indices[at].astype(np.int64), A.data[at]
            places.append(pattern.positions(index[:, one], index[:, other]).ravel())
            owners.append(np.repeat(rows, len(one)))
            products.append((data[:, one] * data[:, other]).ravel())
        where = (np.concatenate(places), np.concatenate(owners))
        shape = (pattern.entries, A.shape[0])
        self._products = sparse.csr_array((np.concatenate(products), where), shape=shape)
        self._of_rows = sparse.csr_array(self._products.T)
        self._twice = np.where(pattern.rows == pattern.columns, 1.0, 2.0)

    def gram(self, weights: np.ndarray) -> np.ndarray:
        """Entries of A' diag(w) A, shape (..., entries), for weights of shape (..., rows)."""
        lead = weights.shape[:-1]
        flat = self._products @ weights.reshape(-1, weights.shape[-1]).T
        return np.ascontiguousarray(flat.T).reshape(*lead, -1)

    def variances(self, selected: np.ndarray) -> np.ndarray:
        """``a_i' S a_i`` of every row, shape (..., rows), from entries of S on the pattern."""
        lead = selected.shape[:-1]
        flat = self._of_rows @ (selected * self._twice).reshape(-1, selected.shape[-1]).T
        return np.ascontiguousarray(flat.T).reshape(*lead, -1)
