r"""The exact bound of a dense table with a diagonal R, with its dense Hessian, on the host.

In :math:`(\mu, s = \sigma^2)` the expected log likelihood has the Hessian blocks
:math:`X' c_{mm} X`, :math:`X' c_{mv} X^2` and :math:`{X^2}' c_{vv} X^2` by equations (1)-(3):
three weighted Gram matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from curvi.models.glm.diagonal_bound import DiagonalBound, Energy
from curvi.models.glm.likelihoods import Gaussian, Likelihood
from curvi.models.glm.rowwise import RowTerms, row_terms, row_values
from curvi.models.glm.tables import Table, Tables

_FEW_ROWS = 4000  # on which the first steps towards a solution are taken
_AT_ONCE = 2048  # rows of a product of matrices whose factors stay in the cache


@dataclass(frozen=True)
class DenseBound(DiagonalBound):
    """The negative bound of one linear predictor.

    ``noise`` is the noise variance of a Gaussian likelihood where it is positive; otherwise it
    is maximised in the bound, but not below ``-noise``. With ``single`` the Hessian, and it
    alone, is made of float32 products: good enough for steps, not for the last digits.
    """

    likelihood: Likelihood
    tables: Tables
    noise: float = 1.0
    single: bool = False

    @property
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""
        return 3.0 * self.tables.num_rows * self.precision.shape[0] ** 2

    def coarser(self) -> list[DiagonalBound]:
        """A share of the rows, then all rows with single-precision Hessians.

        Under a relevance prior few rows would switch off too much.
        """
        every = self.tables.num_rows // _FEW_ROWS
        stages: list[DiagonalBound] = []
        if every >= 4 and not self.relevance:
            stages.append(replace(self, tables=self.tables.thinned(every), has_all_rows=False))
        if self.tables.num_rows > _FEW_ROWS:
            stages.append(replace(self, single=True))
        return stages

    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""
        total = 0.0
        for table in self.tables:
            mean, variance = _predictor(table, mu, sd)
            total -= float(table.weight @ self._values(mean, variance, table.y))
        nothing = np.zeros(0)
        return self._profiled(Energy(total, nothing, nothing, nothing, None, None)).value

    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives in (mu, s): three Gram matrices, or one."""
        sums: list[np.ndarray | float] | None = None
        for table in self.tables:
            parts = self._parts(table, mu, sd)
            sums = parts if sums is None else [a + b for a, b in zip(sums, parts, strict=True)]
        if sums is None:
            raise RuntimeError("a bound needs rows")
        curved = not isinstance(self.likelihood, Gaussian)
        return self._profiled(Energy(*sums, *([] if curved else [None, None])))  # type: ignore[arg-type]

    def noise_variance(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """The noise variance in use."""
        if not isinstance(self.likelihood, Gaussian) or self.noise > 0:
            return self.noise
        predicted = ((table, *_predictor(table, mu, sd)) for table in self.tables)
        half = sum(-float(t.weight @ self._values(m, v, t.y)) for t, m, v in predicted)
        return max(2 * half / self._total, -self.noise)

    @cached_property
    def _total(self) -> float:
        return float(sum(table.weight.sum(dtype=np.float64) for table in self.tables))

    def _values(self, mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> np.ndarray:
        if isinstance(self.likelihood, Gaussian):
            return -0.5 * ((y - mean) ** 2 + variance)
        return row_values(self.likelihood, mean, variance, y)

    def _terms(self, mean: np.ndarray, variance: np.ndarray, y: np.ndarray) -> RowTerms:
        if not isinstance(self.likelihood, Gaussian):
            return row_terms(self.likelihood, mean, variance, y)
        flat, zero = np.ones_like(mean), np.zeros_like(mean)
        value = self._values(mean, variance, y)
        return RowTerms(value, y - mean, -0.5 * flat, -flat, zero, zero)

    def _parts(self, table: Table, mu: np.ndarray, sd: np.ndarray) -> list[np.ndarray | float]:
        """Value, slopes and Hessian blocks of one table; of unit noise where there is noise."""
        terms = self._terms(*_predictor(table, mu, sd), table.y)
        slopes = [terms.mean_mean]
        if not isinstance(self.likelihood, Gaussian):
            slopes += [terms.mean_variance, terms.variance_variance]
        weight = table.weight.astype(np.float64)
        grams = _grams(table, [-weight * slope for slope in slopes], single=self.single)
        value = -float(weight @ terms.value)
        by_mean = _pull(table.matrix, weight * terms.by_mean)
        return [value, by_mean, _pull(table.squares, weight * terms.by_variance), *grams]

    def _profiled(self, energy: Energy) -> Energy:
        r"""With the noise of a Gaussian likelihood put in, or maximised.

        With :math:`Q = \sum_i w_i((y_i - m_i)^2 + v_i)`, half of which is the energy of unit
        noise, the profile is :math:`\tfrac W2 \log Q`, whose Hessian is
        :math:`\tfrac W2 (Q''/Q - Q'Q'^\top/Q^2)`: free noise adds ``-2 / W`` times the outer
        product of the gradient.
        """
        if not isinstance(self.likelihood, Gaussian):
            return energy
        best = 2 * energy.value / self._total
        free = self.noise <= 0 and best > -self.noise
        noise = best if free else abs(self.noise)
        return Energy(
            energy.value / noise + 0.5 * self._total * float(np.log(2 * np.pi * noise)),
            energy.by_mean / noise,
            energy.by_variance / noise,
            energy.mean_mean / noise,
            None,
            None,
            -2 / self._total if free else 0.0,
        )


def _predictor(table: Table, mu: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    dtype = table.matrix.dtype
    mean = table.matrix @ mu.astype(dtype)
    variance = table.squares @ (sd**2).astype(dtype)
    return mean.astype(np.float64), variance.astype(np.float64)


def _pull(matrix: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """Minus the gradient of the weighted sum of rows, through a linear map."""
    return -(slope.astype(matrix.dtype) @ matrix).astype(np.float64)


def _grams(table: Table, weights: list[np.ndarray], *, single: bool) -> list[np.ndarray]:
    """``X'aX``, and ``X'b(X*X)`` and ``(X*X)'c(X*X)`` where there are three weights.

    Block by block, so that the weighted factors stay in the cache; sums in float64.
    """
    width = table.matrix.shape[1]
    sums = [np.zeros((width, width)) for _ in weights]
    dtype = np.float32 if single else table.matrix.dtype
    for start in range(0, table.matrix.shape[0], _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        matrix = table.matrix[part].astype(dtype, copy=False)
        squares = table.squares[part].astype(dtype, copy=False) if len(weights) > 1 else matrix
        pairs = ((matrix, matrix), (matrix, squares), (squares, squares))
        for index, (weight, (left, right)) in enumerate(zip(weights, pairs, strict=False)):
            sums[index] += left.T @ (weight[part].astype(dtype)[:, None] * right)
    return sums
