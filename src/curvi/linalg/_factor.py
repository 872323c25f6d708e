r"""A factorised structured precision, and all that follows from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from curvi._core.errors import NumericalError

if TYPE_CHECKING:
    from curvi.linalg._pattern import Pattern


class Factor:
    """The Cholesky factors of matrices of one pattern.

    Parameters
    ----------
    pattern : Pattern
        Where they are not zero.
    values : array, shape (..., entries)
        Their entries.

    Attributes
    ----------
    log_det : array, shape (...)
        Log determinants; minus infinity where a matrix is not positive definite, and the solutions
        there are those of the identity.
    """

    def __init__(self, pattern: Pattern, values: np.ndarray) -> None:
        self.pattern = pattern
        matrix = pattern.dense(values)
        lead = matrix.shape[:-2]
        self._root = np.empty_like(matrix)
        self.log_det = np.full(lead, -np.inf)
        for point in np.ndindex(*lead):
            try:
                self._root[point] = np.linalg.cholesky(matrix[point])
                self.log_det[point] = 2 * np.log(np.diagonal(self._root[point])).sum()
            except np.linalg.LinAlgError:
                self._root[point] = np.eye(pattern.size)
        if not np.isfinite(self.log_det).any():
            raise NumericalError(
                "the precision of the effects is not positive definite in double precision; "
                "rescale columns of very different sizes, or give a prior to effects that "
                "nothing determines"
            )

    def solve(self, right: np.ndarray) -> np.ndarray:
        """``P^-1 b`` for vectors (..., size), or (..., size, k) where that is the matrix's axes.

        A right-hand side with one axis more than the log determinants holds vectors.
        """
        vectors = np.ndim(right) == self.log_det.ndim + 1
        columns = right[..., None] if vectors else right
        half = np.linalg.solve(self._root, columns)
        solved = np.linalg.solve(np.swapaxes(self._root, -1, -2), half)
        return solved[..., 0] if vectors else solved

    def selected_inverse(self) -> np.ndarray:
        """Entries of the inverse on the pattern, shape (..., entries): covariances."""
        inverse = np.linalg.inv(self._root)
        whole = np.swapaxes(inverse, -1, -2) @ inverse
        return whole[..., self.pattern.rows, self.pattern.columns]

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Draws of N(0, P^-1) from standard normal noise of shape (..., size) or (..., size, k)."""
        vectors = np.ndim(noise) == self.log_det.ndim + 1
        columns = noise[..., None] if vectors else noise
        drawn = np.linalg.solve(np.swapaxes(self._root, -1, -2), columns)
        return drawn[..., 0] if vectors else drawn
