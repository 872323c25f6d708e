r"""The exact bound with a full covariance, jointly over all predictors of a row, on the host.

A row has C linear predictors :math:`t_i \sim N(m_i, V_i)`, one, or the contrasts of a softmax. By
equations (1)-(3) of the paper the energy :math:`-\sum_i w_i E[\ell_i(t_i)]` has the gradient
:math:`-E[\ell_i']` in :math:`m_i` and :math:`-\tfrac12 E[\ell_i'']` in :math:`V_i`. The bound is
stationary where

.. math:: \Lambda = P + \sum_i w_i\, \big(-E[\ell_i'']\big) \otimes x_i x_i^\top

is the precision of q. One pass over the rows gives the value, the gradient and that precision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy import linalg, optimize

from curvi._core.threads import available_threads
from curvi.glm._dense import PASSES, added, summed
from curvi.glm._rows import Tables
from curvi.glm._sparse_rows import SparseTable
from curvi.likelihoods import RowModel

_AT_ONCE = PASSES.rows_at_once
_PART = 64 * _AT_ONCE  # rows that are shared among threads together


class Here(NamedTuple):
    """The negative ELBO at some q, its gradient in the mean, and the precision that it asks for."""

    value: float
    gradient: np.ndarray
    precision: np.ndarray


@dataclass(frozen=True)
class FullBound:
    """The negative ELBO of mean and R, of C predictors with ``precision.size`` columns each.

    ``noise`` is the noise variance of a Gaussian likelihood where it is positive; otherwise it is
    maximised in the bound, but not below ``-noise``. Vectors are flattened from (C, columns).
    """

    model: RowModel
    tables: Tables
    precision: np.ndarray  # of the prior, one per column
    noise: float = 1.0
    threads: int = field(default_factory=available_threads)

    @property
    def size(self) -> int:
        """Coefficients of all predictors."""
        return self.model.count * self.precision.size

    @property
    def work(self) -> float:
        """Multiplications of one step, roughly."""
        return 2.0 * self.tables.num_rows * self.size**2 + self.size**3

    @cached_property
    def prior(self) -> np.ndarray:
        """The precision of the prior, of all coefficients."""
        return np.tile(np.asarray(self.precision, np.float64), self.model.count)

    @property
    def is_gaussian(self) -> bool:
        """Whether rows have noise."""
        return self.model.conjugate

    def at(self, mean: np.ndarray, factor: np.ndarray) -> Here:
        """One pass over all rows."""
        value, slope, gram = self._sums(mean, factor)
        noise = self._noise(float(value))
        energy = float(value) / noise
        if self.is_gaussian:
            energy += 0.5 * self._total * float(np.log(2 * np.pi * noise))
        return Here(
            energy + self._divergence(mean, factor),
            slope.ravel() / noise + self.prior * mean,
            gram / noise + np.diag(self.prior),
        )

    def curvature(self, mean: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """The part of the precision that comes from the rows; of a noise that is given."""
        return self._sums(mean, factor)[2] / (self.noise if self.is_gaussian else 1.0)

    def value(self, mean: np.ndarray, factor: np.ndarray) -> float:
        """The negative ELBO."""
        return self.at(mean, factor).value

    def noise_variance(self, mean: np.ndarray, factor: np.ndarray) -> float:
        """The noise variance in use."""
        return self._noise(float(self._sums(mean, factor)[0])) if self.is_gaussian else self.noise

    def conjugate_start(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Mean and R of a Gaussian likelihood at its best noise: the optimum, but for rounding.

        With the noise free, steps would come closer to it by a constant factor only.
        """
        if not self.is_gaussian:
            return None
        nothing = np.zeros(self.size)
        square, slope, gram = self._sums(nothing, np.zeros((self.size, 0)))
        unit = self.prior**-0.5
        roots, vectors = linalg.eigh(unit[:, None] * gram * unit)
        roots = np.maximum(roots, 0.0)
        pulled = vectors.T @ (unit * slope.ravel())
        rows = self._total

        def neg_evidence(log_noise: float) -> float:
            noise = np.exp(log_noise)
            explained = float(np.sum(pulled**2 / (noise + roots)))
            misfit = max(2 * float(square) - explained, 0.0) / noise
            return 0.5 * (rows * log_noise + misfit + float(np.sum(np.log1p(roots / noise))))

        noise = self.noise
        if noise <= 0:
            least, most = np.log(-noise), np.log(max(2 * float(square) / rows, -2 * noise))
            grid = np.linspace(least, most, 60)
            best = int(np.argmin([neg_evidence(point) for point in grid]))
            ends = grid[max(best - 1, 0)], grid[min(best + 1, 59)]
            found = optimize.minimize_scalar(
                neg_evidence, bounds=ends, method="bounded", options={"xatol": 1e-10}
            )
            noise = float(np.exp(found.x))
        root = inverse_root(gram / noise + np.diag(self.prior))
        return -root @ (root.T @ slope.ravel()) / noise, root

    def _divergence(self, mean: np.ndarray, factor: np.ndarray) -> float:
        """KL(q || prior)."""
        moment = mean**2 + np.sum(factor**2, axis=1)
        prior = 0.5 * np.sum(self.prior * moment - 1 - np.log(self.prior))
        return float(prior - np.sum(np.log(np.abs(np.diag(factor)))))

    def _noise(self, unit_energy: float) -> float:
        if not self.is_gaussian:
            return 1.0
        best = 2 * unit_energy / self._total
        return self.noise if self.noise > 0 else max(best, -self.noise)

    @cached_property
    def _total(self) -> float:
        return float(sum(table.weight.sum(dtype=np.float64) for table in self.tables))

    def _sums(self, mean: np.ndarray, factor: np.ndarray) -> list[np.ndarray]:
        """Value, slopes and Gram matrix of all rows, of unit noise where there is noise."""
        means = mean.reshape(self.model.count, -1)
        factors = factor.reshape(self.model.count, means.shape[1], -1)

        def of_rows(rows: tuple[Any, slice]) -> list[np.ndarray]:
            table, part = rows
            X, weight = dense_rows(table, part), table.weight[part].astype(np.float64)
            m = X @ means.T
            spread = np.stack([X @ block for block in factors], axis=1)
            covariance = np.einsum("ikr,ilr->ikl", spread, spread, optimize=True)
            found = self.model.terms(m, covariance, table.y[part])
            slope = (weight[:, None] * found.slope).T @ X
            gram = _joint_gram(X, weight[:, None, None] * found.curvature)
            return [np.asarray(weight @ found.value), slope, gram]

        return added(
            summed(of_rows, blocks, self.threads)
            for table in self.tables
            for blocks in _shared(table)
        )


def _shared(table: Any) -> Iterator[list[tuple[Any, slice]]]:
    """Blocks of rows, as many together as keep all threads busy."""
    count = table.y.shape[0]
    for start in range(0, count, _PART):
        stop = min(start + _PART, count)
        yield [(table, slice(s, min(s + _AT_ONCE, stop))) for s in range(start, stop, _AT_ONCE)]


def dense_rows(table: Any, part: slice) -> np.ndarray:
    """Some rows of a table in fitted units, dense and in float64."""
    if not isinstance(table, SparseTable):
        return np.asarray(table.matrix[part], np.float64)
    stored = table.stored[part].toarray()
    extra = table.factor.size - stored.shape[1]
    return np.pad(stored, ((0, 0), (0, extra))) * table.factor + table.shift


def _joint_gram(X: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """``sum_i H_i (x) x_i x_i'``, by pairs of predictors."""
    count, columns = curvature.shape[1], X.shape[1]
    out = np.empty((count, columns, count, columns))
    for k in range(count):
        for other in range(k + 1):
            block = X.T @ (curvature[:, k, other, None] * X)
            out[k, :, other, :], out[other, :, k, :] = block, block.T
    return out.reshape(count * columns, count * columns)


def inverse_root(precision: np.ndarray) -> np.ndarray:
    """A lower triangular R with ``R R'`` the inverse of a precision.

    Raises
    ------
    LinAlgError
        If the precision is not positive definite.
    """
    unit = 1 / np.sqrt(np.diag(precision))
    flipped = (unit[:, None] * precision * unit)[::-1, ::-1]
    upper = linalg.cholesky(flipped, lower=True)[::-1, ::-1]  # upper @ upper.T, scaled
    inverse = linalg.solve_triangular(upper, np.eye(len(unit)), lower=False)
    return np.tril(unit[:, None] * inverse.T)
