r"""Structured precisions: where a symmetric matrix is not zero, and how it is factorised.

A pattern is analysed once. Its values have any leading axes, one matrix beside the other, such as
the precisions of the effects at several hyperparameters:

.. math:: P(\theta) = Q(\theta) + A^\top \mathrm{diag}(w) A.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from scipy import linalg

from curvi._core.errors import InputError
from curvi.linalg._factor import Factor
from curvi.linalg._ordering import Ordering, distinct
from curvi.linalg._plan import Plan, plan


class Pattern:
    """Where a symmetric matrix is not zero: entries of its lower triangle, each once.

    Parameters
    ----------
    rows, columns : array of int
        Entries in any order and of either triangle, repeated or not; the diagonal is added. They
        become ``rows >= columns``, sorted by columns, and the order of all values.
    size : int
        Rows of the matrix.
    border : sequence of int, optional
        Coordinates that touch most others, such as regression coefficients: eliminated last.
    places : array, shape (size, dimensions), optional
        Where coordinates lie, in space or time: separators are looked for across these axes too.
        NaN where a coordinate lies nowhere.
    ordering : Ordering, optional
        What decides between the orders of elimination.

    Attributes
    ----------
    rows, columns : array of int, shape (entries,)
        The entries, sorted.
    size : int
        Rows of the matrix.
    border : array of int
        The border.
    diagonal : array of int, shape (size,)
        The positions of the diagonal among the entries.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.linalg import Pattern
    >>> chain = Pattern([1, 2], [0, 1], 3)  # of three
    >>> factor = chain.factor(np.array([2.0, -1.0, 2.0, -1.0, 2.0]))
    >>> round(float(np.exp(factor.log_det)), 6)
    4.0
    """

    def __init__(
        self,
        rows: np.ndarray | Sequence[int],
        columns: np.ndarray | Sequence[int],
        size: int,
        *,
        border: np.ndarray | Sequence[int] = (),
        places: np.ndarray | None = None,
        ordering: Ordering | None = None,
    ) -> None:
        one, other = np.asarray(rows, np.int64).ravel(), np.asarray(columns, np.int64).ravel()
        if len(one) != len(other):
            raise InputError(f"a pattern has {len(one)} rows and {len(other)} columns of entries")
        self.size, self.border = int(size), np.unique(np.asarray(border, np.int64))
        self._places, self._ordering = places, ordering or Ordering()
        for name, index in (("rows", one), ("columns", other), ("border", self.border)):
            if len(index) and not (index.min() >= 0 and index.max() < size):
                raise InputError(f"{name} of a pattern of size {size} are 0 to {size - 1}")
        every = np.arange(self.size)
        low = np.concatenate([np.minimum(one, other), every])
        high = np.concatenate([np.maximum(one, other), every])
        self._keys = distinct(low * self.size + high)
        self.columns, self.rows = np.divmod(self._keys, max(self.size, 1))
        self.diagonal = self.positions(every, every)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return len(self._keys)

    @property
    def numbers(self) -> int:
        """Numbers that a factor keeps of each matrix."""
        return self.plan.fronts.total

    @cached_property
    def plan(self) -> Plan:
        """How matrices are factorised; found when it is first asked for."""
        given = self.rows, self.columns, self.size, self.border
        return plan(*given, self._places, self._ordering)

    def positions(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Where entries of the matrix stand among the values.

        Raises
        ------
        InputError
            If the pattern does not have one of them.
        """
        rows, columns = np.asarray(rows, np.int64), np.asarray(columns, np.int64)
        low, high = np.minimum(rows, columns), np.maximum(rows, columns)
        keys = low * self.size + high
        found = np.searchsorted(self._keys, keys)
        missing = self._keys[np.minimum(found, len(self._keys) - 1)] != keys
        if np.any(missing):
            row, column = np.ravel(high)[np.ravel(missing)][0], np.ravel(low)[np.ravel(missing)][0]
            raise InputError(f"the pattern has no entry ({row}, {column})")
        return found

    def dense(self, values: np.ndarray) -> np.ndarray:
        """The whole matrices, shape (..., size, size)."""
        values = np.asarray(values)
        out = np.zeros((*values.shape[:-1], self.size, self.size), values.dtype)
        out[..., self.rows, self.columns] = values
        out[..., self.columns, self.rows] = values
        return out

    def multiply(self, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """The matrix times vectors of shape (..., size)."""
        lower = values * vectors[..., self.columns]
        upper = np.where(self.rows == self.columns, 0.0, values) * vectors[..., self.rows]
        lead = np.broadcast_shapes(lower.shape[:-1], upper.shape[:-1])
        out = np.zeros((int(np.prod(lead)), self.size))
        for point, low in enumerate(lower.reshape(-1, self.entries)):
            out[point] = np.bincount(self.rows, low, self.size)
        for point, high in enumerate(upper.reshape(-1, self.entries)):
            out[point] += np.bincount(self.columns, high, self.size)
        return out.reshape(*lead, self.size)

    def factor(self, values: np.ndarray) -> Factor:
        """Factorise the matrices.

        Parameters
        ----------
        values : array, shape (..., entries)
            One matrix per point of the leading axes.

        Returns
        -------
        Factor
            Log determinants, solutions, covariances and draws.

        Raises
        ------
        NumericalError
            If no point has a positive definite matrix. Where some have, the others have a log
            determinant of minus infinity.
        """
        return Factor(self, np.asarray(values, np.float64))

    def log_pseudo_determinant(self, values: np.ndarray, null_space: np.ndarray) -> np.ndarray:
        r"""Log product of the non-zero eigenvalues of a matrix with a known null space.

        With N orthonormal in the null space and I as many coordinates,
        :math:`\\mathrm{pdet}(Q) = \\det Q_{-I,-I} / \\det(N_I)^2`.

        Parameters
        ----------
        values : array, shape (..., entries)
            Positive semidefinite matrices.
        null_space : array, shape (size, k)
            Independent columns that span the null space, the same for all of them.
        """
        basis = linalg.qr(null_space, mode="economic")[0]
        pinned = linalg.qr(basis.T, mode="r", pivoting=True)[1][: basis.shape[1]]
        outside = np.zeros(self.size, bool)
        outside[pinned] = True
        fixed = outside[self.rows] | outside[self.columns]
        kept = np.where(fixed, (self.rows == self.columns).astype(float), values)
        return self.factor(kept).log_det - 2 * np.linalg.slogdet(basis[pinned])[1]
