"""Symmetric matrices on the entries of an elimination, and their inverse roots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse

from curvi.linalg._elimination import Elimination


class InverseFactor(NamedTuple):
    """G, K, the entries of N and the diagonal of S; whether pivots had to be raised."""

    block: np.ndarray
    coupling: np.ndarray
    links: np.ndarray
    scale: np.ndarray
    raised: bool


@dataclass(frozen=True, eq=False)
class SparseSymmetric:
    """A symmetric matrix in the order of an elimination.

    Parameters
    ----------
    structure : Elimination
        The order, and the entries.
    block, cross : array, shapes (c, c) and (locals, c)
        The dense block, and the rows of the locals in its columns.
    low, diagonal : array
        Entries of the locals below the diagonal, where N has them, and on it.
    """

    structure: Elimination
    block: np.ndarray
    cross: np.ndarray
    low: np.ndarray
    diagonal: np.ndarray

    def blend(self, other: SparseSymmetric, share: float) -> SparseSymmetric:
        """``(1 - share) self + share other``."""
        pairs = zip(self._parts, other._parts, strict=True)
        return SparseSymmetric(self.structure, *((1 - share) * a + share * b for a, b in pairs))

    def with_block_of(self, other: SparseSymmetric) -> SparseSymmetric:
        """The locals of this matrix, and the dense block of another, which do not touch."""
        nothing = np.zeros_like(other.cross)
        return SparseSymmetric(self.structure, other.block, nothing, self.low, self.diagonal)

    def magnitude(self) -> SparseSymmetric:
        """The absolute values of all entries."""
        return SparseSymmetric(self.structure, *map(np.abs, self._parts))

    @property
    def _parts(self) -> tuple[np.ndarray, ...]:
        return self.block, self.cross, self.low, self.diagonal

    def dot(self, vectors: np.ndarray) -> np.ndarray:
        """The product with vectors, a column each."""
        found = self.structure
        size, count = found.num_locals, found.num_dense
        low = sparse.csr_matrix((self.low, found.columns, found.starts), (size, size))
        top, rest = vectors[:count], vectors[count:]
        own = self.diagonal[:, None] * rest + low @ rest + low.T @ rest + self.cross @ top
        return np.concatenate([self.block @ top + self.cross.T @ rest, own])

    def dense(self) -> np.ndarray:
        """The matrix in the order of the coordinates, for tests and few of them."""
        places = self.structure.places
        return self.dot(np.eye(len(places)))[np.ix_(places, places)]

    def inverse_root(self, floor: float, like: SparseSymmetric | None = None) -> InverseFactor:
        """R with ``R R'`` the inverse, by elimination round by round.

        Where the matrix is not positive definite, pivots below ``floor`` times the diagonal of
        ``like`` are replaced by their magnitude, or by that, which adds to the diagonal of the
        matrix and makes it so. Without ``like`` that is an error. A positive definite matrix may
        have pivots far below its diagonal, as a smooth chain has, and is taken as it is.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the matrix is not positive definite, and there is nothing to raise pivots to.
        """
        try:
            return self._eliminated(floor, None)
        except np.linalg.LinAlgError:
            if like is None:
                raise
            return self._eliminated(floor, like)

    def _eliminated(self, floor: float, like: SparseSymmetric | None) -> InverseFactor:
        """R, with pivots raised where there is something to raise them to."""
        found = self.structure
        block, cross = self.block.copy(), self.cross.copy()
        low, diagonal = self.low.copy(), self.diagonal.copy()
        one, other, slot = found.pairs
        least = np.zeros_like(diagonal) if like is None else floor * like.diagonal
        raised = False
        for step in list(found.rounds())[::-1]:
            pivots = diagonal[step.locals]
            small = ~(pivots > least[step.locals])
            if small.any():
                if like is None:
                    raise np.linalg.LinAlgError("the matrix is not positive definite")
                raised = True
                lifted = np.maximum(np.abs(pivots), least[step.locals])
                pivots = diagonal[step.locals] = np.where(small, lifted, pivots)
            rows, columns = found.rows[step.entries], found.columns[step.entries]
            p, q = one[step.pairs], other[step.pairs]
            entries = low[step.entries]
            part = entries / diagonal[rows]
            np.subtract.at(diagonal, columns, entries * part)
            np.subtract.at(low, slot[step.pairs], low[p] * low[q] / diagonal[found.rows[p]])
            beside = cross[step.locals] / pivots[:, None]
            block -= cross[step.locals].T @ beside
            if len(part):
                begin, end = step.locals.start, step.locals.stop
                below = sparse.csr_matrix(
                    (entries, columns, found.starts[begin : end + 1] - found.starts[begin]),
                    (end - begin, begin),
                )
                cross[:begin] -= below.T @ beside
        try:
            root = inverse_root(block) if len(block) else block
        except np.linalg.LinAlgError:
            if like is None:
                raise
            root, raised = inverse_root(_lifted(block, floor * np.diagonal(like.block))), True
        coupling, links = cross / diagonal[:, None], low / diagonal[found.rows]
        return InverseFactor(root, coupling, links, diagonal**-0.5, raised)


def _lifted(matrix: np.ndarray, least: np.ndarray, *, least_eigenvalue: float = 1e-3) -> np.ndarray:
    """A positive definite matrix with the magnitudes of the eigenvalues, none of them small.

    ``least_eigenvalue``: of a dense block that is made positive, in units of its diagonal.
    """
    unit = np.sqrt(np.maximum(np.abs(np.diagonal(matrix)), least))
    values, vectors = np.linalg.eigh(matrix / np.outer(unit, unit))
    floor = np.maximum((least / unit**2).max(), least_eigenvalue)
    return (vectors * np.maximum(np.abs(values), floor)) @ vectors.T * np.outer(unit, unit)


def inverse_root(matrix: np.ndarray) -> np.ndarray:
    """The lower triangular W with ``W W' = matrix^-1``."""
    upper = np.linalg.cholesky(matrix[::-1, ::-1])[::-1, ::-1]  # matrix = upper upper'
    identity = np.eye(len(matrix))
    return linalg.solve_triangular(upper.T, identity, lower=True, check_finite=False)
