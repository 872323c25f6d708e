r"""The exact bound of a dense table with a diagonal R, with its dense Hessian, on the host.

In :math:`(\mu, s = \sigma^2)` the expected log likelihood has the Hessian blocks
:math:`X' c_{mm} X`, :math:`X' c_{mv} X^2` and :math:`{X^2}' c_{vv} X^2` by equations (1)-(3):
three weighted Gram matrices.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from curvi.models.glm.diagonal_bound import DiagonalBound, Energy
from curvi.models.glm.likelihoods import Gaussian, Likelihood
from curvi.models.glm.rowwise import RowTerms, row_terms, row_values

_FEW_ROWS = 4000  # on which the first steps towards a solution are taken


@dataclass(frozen=True)
class DenseBound(DiagonalBound):
    """The negative bound of one linear predictor.

    ``noise`` is the noise variance of a Gaussian likelihood where it is positive; otherwise it
    is maximised in the bound, but not below ``-noise``.
    """

    likelihood: Likelihood
    matrix: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    noise: float = 1.0
    squares: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        """Square the design once."""
        object.__setattr__(self, "squares", self.matrix * self.matrix)

    @property
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""
        return 3.0 * self.matrix.shape[0] * self.matrix.shape[1] ** 2

    def thinned(self) -> DiagonalBound | None:
        """Every k-th row with k times its weight; a relevance prior would switch off too much."""
        every = self.matrix.shape[0] // _FEW_ROWS
        if self.relevance or every < 4:
            return None
        part = slice(None, None, every)
        weight = every * self.weight[part]
        return replace(self, matrix=self.matrix[part], y=self.y[part], weight=weight)

    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""
        mean, variance = self._predictor(mu, sd)
        if isinstance(self.likelihood, Gaussian):
            rows = self._gaussian(mean, variance)[0].value
        else:
            rows = row_values(self.likelihood, mean, variance, self.y)
        return float(-self.weight @ rows)

    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives in (mu, s): three Gram matrices, or one."""
        mean, variance = self._predictor(mu, sd)
        rank_one = 0.0
        if isinstance(self.likelihood, Gaussian):
            terms, rank_one = self._gaussian(mean, variance)
        else:
            terms = row_terms(self.likelihood, mean, variance, self.y)
        curved = not isinstance(self.likelihood, Gaussian)
        X, squares = self.matrix, self.squares
        return Energy(
            float(-self.weight @ terms.value),
            self._pull(X, terms.by_mean),
            self._pull(squares, terms.by_variance),
            self._gram(X, terms.mean_mean, X),
            self._gram(X, terms.mean_variance, squares) if curved else None,
            self._gram(squares, terms.variance_variance, squares) if curved else None,
            rank_one,
        )

    def noise_variance(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """The noise variance in use."""
        return self._noise(*self._predictor(mu, sd))[0]

    def _predictor(self, mu: np.ndarray, sd: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        dtype = self.matrix.dtype
        mean = self.matrix @ mu.astype(dtype)
        variance = self.squares @ (sd**2).astype(dtype)
        return mean.astype(np.float64), variance.astype(np.float64)

    def _pull(self, matrix: np.ndarray, slope: np.ndarray) -> np.ndarray:
        """Minus the gradient of the weighted sum of rows, through a linear map."""
        return -((self.weight * slope).astype(matrix.dtype) @ matrix).astype(np.float64)

    def _gram(self, left: np.ndarray, slope: np.ndarray, right: np.ndarray) -> np.ndarray:
        weights = (-self.weight * slope).astype(left.dtype)
        return (left.T @ (weights[:, None] * right)).astype(np.float64)

    def _noise(self, mean: np.ndarray, variance: np.ndarray) -> tuple[float, bool]:
        """The noise variance, and whether it is free to follow its maximiser."""
        if self.noise > 0:
            return self.noise, False
        square = self.weight @ ((self.y - mean) ** 2 + variance)
        best = float(square / self.weight.sum())
        return max(best, -self.noise), best > -self.noise

    def _gaussian(self, mean: np.ndarray, variance: np.ndarray) -> tuple[RowTerms, float]:
        r"""Closed forms; free noise adds ``-2 / sum(w)`` times the outer product of the gradient.

        With :math:`Q = \sum_i w_i((y_i - m_i)^2 + v_i)` the profile is
        :math:`\tfrac W2 \log Q`, whose Hessian is :math:`\tfrac W2 (Q''/Q - Q'Q'^\top/Q^2)`.
        """
        noise, free = self._noise(mean, variance)
        residual = self.y - mean
        value = -0.5 * (residual**2 + variance) / noise - 0.5 * np.log(2 * np.pi * noise)
        flat, zero = np.full_like(mean, 1 / noise), np.zeros_like(mean)
        terms = RowTerms(value, residual / noise, -0.5 * flat, -flat, zero, zero)
        return terms, -2 / float(self.weight.sum()) if free else 0.0
