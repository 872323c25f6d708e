r"""Effects of one component given all others: independent normal vectors, level by level."""

from __future__ import annotations

import numpy as np
from scipy import sparse

from curvi.linalg import Pattern


class GivenRest:
    """Conditional moments of the levels of a component of groups, from a precision.

    Parameters
    ----------
    pattern : Pattern
        Of all effects.
    levels : slice
        The effects of the component.
    width : int
        Effects per level.
    """

    def __init__(self, pattern: Pattern, levels: slice, width: int) -> None:
        count = levels.stop - levels.start
        number = np.full(pattern.size, -1)
        number[levels] = np.arange(count)
        self.rest = np.flatnonzero(number < 0)
        other = np.empty(pattern.size, np.int64)
        other[self.rest] = np.arange(len(self.rest))
        one, two = number[pattern.rows], number[pattern.columns]
        across = np.flatnonzero((one >= 0) != (two >= 0))
        swapped = one[across] < 0
        level = np.where(swapped, two[across], one[across])
        rest = np.where(swapped, other[pattern.rows[across]], other[pattern.columns[across]])
        order = np.lexsort((rest, level))
        self._across, self._rest = across[order], rest[order]
        self._starts = np.searchsorted(level[order], np.arange(count + 1))
        self._inside = np.flatnonzero((one >= 0) & (two >= 0))
        self._at = divmod(one[self._inside], width), two[self._inside] % width
        self.levels, self.width = levels, width

    def covariances(self, values: np.ndarray) -> np.ndarray:
        """Of levels given the rest: (..., levels, width, width), from values (..., entries)."""
        count, width = (self.levels.stop - self.levels.start) // self.width, self.width
        blocks = np.zeros((*values.shape[:-1], count, width, width))
        (level, row), column = self._at
        inside = values[..., self._inside]
        blocks[..., level, row, column] = blocks[..., level, column, row] = inside
        return 1 / blocks if width == 1 else np.linalg.inv(blocks)

    def moments(
        self, values: np.ndarray, pull: np.ndarray, rest: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means (draws, levels, width) and covariances (levels, width, width).

        Parameters
        ----------
        values : array, shape (entries,)
            The precision.
        pull : array, shape (size,)
            The precision times the mean.
        rest : array, shape (draws, rest)
            The other effects.
        """
        count, width = self.levels.stop - self.levels.start, self.width
        data = values[self._across], self._rest, self._starts
        coupling = sparse.csr_array(data, shape=(count, len(self.rest)))
        covariance = self.covariances(values)
        left = (pull[self.levels, None] - coupling @ rest.T).T.reshape(len(rest), -1, width)
        return np.einsum("gkl,dgl->dgk", covariance, left), covariance
