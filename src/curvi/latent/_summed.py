r"""Gaussian responses from sums over their rows alone.

.. math::

    \log p(y \mid \theta) = -\tfrac n2 \log 2\pi\tau^{-1} - \tfrac\tau2 y^\top y
        + \tfrac12 \log|Q| - \tfrac12 m^\top Q m - \tfrac12 \log|P| + \tfrac12 b^\top P^{-1} b

with :math:`P = Q + \tau A^\top A` and :math:`b = \tau A^\top y + Q m`. No step touches a row, and
the sums of two blocks of rows add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from curvi._core.errors import NumericalError
from curvi._core.threads import one_blas_thread
from curvi.latent._assembly import Assembly
from curvi.latent._site_steps import SiteFit
from curvi.latent._sites import SiteModel
from curvi.likelihoods import Likelihood


@dataclass(frozen=True)
class RowSums:
    """Of products of columns with each other and with responses, of squares, and of rows.

    Attributes
    ----------
    gram : sparse array, shape (size, size)
        A' A.
    target : array, shape (size,)
        A' y, the offset taken off.
    square, rows : float
        y' y, and the number of rows.
    """

    gram: sparse.csr_array
    target: np.ndarray
    square: float
    rows: float

    @classmethod
    def of(cls, A: sparse.csr_array, y: np.ndarray) -> RowSums:
        """Of rows; responses less their offset."""
        return cls(sparse.csr_array(A.T @ A), A.T @ y, float(y @ y), float(len(y)))

    def __add__(self, other: RowSums) -> RowSums:
        """Of the rows of both."""
        gram, target = self.gram + other.gram, self.target + other.target
        return RowSums(gram, target, self.square + other.square, self.rows + other.rows)

    def turned(self, turn: sparse.csr_array, unit: float) -> RowSums:
        """Those of columns ``A @ turn`` and of responses in a unit."""
        gram = sparse.csr_array(turn.T @ self.gram @ turn)
        return RowSums(gram, turn.T @ self.target / unit, self.square / unit**2, self.rows)

    def arrays(self) -> list[np.ndarray]:
        """Every number, as plain arrays."""
        gram = self.gram.data, self.gram.indices, self.gram.indptr
        return [np.asarray([self.square, self.rows]), self.target, *gram]


@dataclass(frozen=True)
class SummedModel(SiteModel):
    """A Gaussian model without rows; its assembly has none.

    Effects are not centred around their prior means: a mean far away would cancel in the sums.

    Attributes
    ----------
    sums : RowSums
        Of the rows.
    probes : int
        Draws of q from which gradients have their traces, in the place of exact variances; none
        for exact ones. The error of a trace over many levels is small beside that of theta.
    """

    sums: RowSums | None = None
    probes: int = 0

    @classmethod
    def given(
        cls, assembly: Assembly, likelihood: Likelihood, sums: RowSums, *, probes: int = 0
    ) -> SummedModel:
        """Of components that were made for no rows, with ``gram`` given to their assembly."""
        none = np.zeros(0)
        return cls(assembly, likelihood, none, none, none, sums=sums, probes=probes)

    @property
    def _sums(self) -> RowSums:
        assert self.sums is not None  # noqa: S101  for type checkers
        return self.sums

    @property
    def origin(self) -> np.ndarray:
        """Zero."""
        return np.zeros(self.assembly.size)

    @cached_property
    def _gram(self) -> np.ndarray:
        """Entries of A' A on the pattern."""
        lower = sparse.tril(self._sums.gram).tocoo()
        out = np.zeros(self.assembly.pattern.entries)
        out[self.assembly.pattern.positions(lower.row, lower.col)] = lower.data
        return out

    def _tau(self, theta: np.ndarray) -> np.ndarray:
        tau: np.ndarray = self.assembly.extra_values(theta) ** -2.0
        return tau

    def values(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """See `SiteModel.values`."""
        return self.assembly.precision(theta).values + self._tau(theta) * self._gram

    def pull(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """See `SiteModel.pull`."""
        prior = self.assembly.precision(theta).values
        return self._tau(theta) * self._sums.target + self._prior_pull(prior)

    @cached_property
    def _times_prior_mean(self) -> sparse.csr_array:
        """Entries of Q times this are Q m."""
        pattern, mean = self.assembly.pattern, self.assembly.prior_mean
        lower = mean[pattern.columns]
        upper = np.where(pattern.rows == pattern.columns, 0.0, mean[pattern.rows])
        entry = np.arange(pattern.entries)
        data, at = (
            np.append(lower, upper),
            (np.tile(entry, 2), np.append(pattern.rows, pattern.columns)),
        )
        found = sparse.csr_array((data, at), shape=(pattern.entries, pattern.size))
        found.eliminate_zeros()
        return found

    def _prior_pull(self, values: np.ndarray) -> np.ndarray:
        """Q m, from the entries of Q."""
        if not self._times_prior_mean.nnz:
            return np.zeros((1, self.assembly.size))
        pull: np.ndarray = values @ self._times_prior_mean
        return pull

    @one_blas_thread()
    def fit(self, theta: np.ndarray, sites: Any = None) -> SiteFit:
        """The log marginal likelihood of each theta; there are no sites."""
        parts = [self._fitted(theta[some])[0] for some in self.at_once(len(theta))]
        none = np.zeros((len(theta), 0))
        return SiteFit(np.concatenate(parts), none, none, none, none)

    @cached_property
    def _last(self) -> dict[bytes, tuple[np.ndarray, Any, np.ndarray]]:
        """The last answer of `_fitted`: where an ascent ends other things begin."""
        return {}

    def _fitted(self, theta: np.ndarray) -> tuple[np.ndarray, Any, np.ndarray]:
        """Log marginal likelihoods, the factor, and posterior means."""
        key = theta.tobytes()
        if key not in self._last:
            self._last.clear()
            self._last[key] = self._conditioned(theta)
        return self._last[key]

    def _conditioned(self, theta: np.ndarray) -> tuple[np.ndarray, Any, np.ndarray]:
        prior, sums, tau = self.assembly.precision(theta), self._sums, self._tau(theta)
        from_prior = self._prior_pull(prior.values)
        pull = tau * sums.target + from_prior
        try:
            factor = self.assembly.factor(prior.values + tau * self._gram)
        except NumericalError:
            return np.full(len(theta), -np.inf), None, np.zeros_like(pull)
        mean = factor.solve(pull)
        value = 0.5 * sums.rows * (np.log(tau[:, 0]) - np.log(2 * np.pi))
        value = value - 0.5 * tau[:, 0] * sums.square - 0.5 * from_prior @ self.assembly.prior_mean
        value = value + 0.5 * (prior.log_det + (pull * mean).sum(axis=1))
        with np.errstate(invalid="ignore"):
            value = value - 0.5 * factor.log_det
        return np.where(np.isfinite(factor.log_det), value, -np.inf), factor, mean

    @one_blas_thread()
    def with_gradient(self, theta: np.ndarray, sites: Any = None) -> tuple[SiteFit, np.ndarray]:
        """See `SiteModel.with_gradient`; of one factorisation."""
        values, slopes = np.empty(len(theta)), np.zeros(theta.shape)
        for some in self.at_once(len(theta)):
            values[some], factor, mean = self._fitted(theta[some])
            if factor is not None:
                slopes[some] = self._slopes(theta[some], self._covariances(factor), mean)
        none = np.zeros((len(theta), 0))
        return SiteFit(values, none, none, none, none), slopes

    @one_blas_thread()
    def with_factor(self, theta: np.ndarray, sites: Any = None) -> tuple[SiteFit, Any, np.ndarray]:
        """See `SiteModel.with_factor`; of one factorisation."""
        next(self.at_once(len(theta)))  # looks at the clock, and at the memory that it takes
        value, factor, mean = self._fitted(theta)
        if factor is None:
            raise NumericalError("the precision of the effects is not positive definite anywhere")
        none = np.zeros((len(theta), 0))
        return SiteFit(value, none, none, none, none), factor, mean

    def gradient(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """Gradient of the log marginal likelihood in theta."""
        return self.with_gradient(theta)[1]

    def _covariances(self, factor: Any) -> np.ndarray:
        """Under q, on the pattern, or estimates where the prior has entries and zero elsewhere."""
        if not self.probes:
            return np.asarray(factor.selected_inverse())
        pattern = self.assembly.pattern
        noise = np.random.default_rng(0).standard_normal((1, pattern.size, self.probes))
        drawn = factor.sample(noise)
        at = np.concatenate(self.assembly.positions)
        out = np.zeros((len(drawn), pattern.entries))
        products = drawn[:, pattern.rows[at]] * drawn[:, pattern.columns[at]]
        out[:, at] = products.mean(axis=2)
        return out

    def _slopes(self, theta: np.ndarray, selected: np.ndarray, mean: np.ndarray) -> np.ndarray:
        assembly, sums, pattern = self.assembly, self._sums, self.assembly.pattern
        shift = mean - assembly.prior_mean
        second = selected + shift[:, pattern.rows] * shift[:, pattern.columns]
        out = assembly.slopes(theta, second)
        # tau E |y - A u|^2; its trace is what the prior leaves of tr(P^-1 P).
        twice = np.where(pattern.rows == pattern.columns, 1.0, 2.0)
        of_prior = (assembly.precision(theta).values * selected) @ twice
        free = assembly.size - (0 if assembly.constraints is None else len(assembly.constraints))
        residual = (
            sums.square - 2 * mean @ sums.target + ((sums.gram @ mean.T).T * mean).sum(axis=1)
        )
        out[:, -1] += self._tau(theta)[:, 0] * residual + free - of_prior - sums.rows
        return out
