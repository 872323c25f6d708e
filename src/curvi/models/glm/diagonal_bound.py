r"""What every bound with a diagonal R has in common on the host: prior, chart and metric.

A likelihood gives its energy :math:`-\sum_i w_i E[\ell_i]` as a function of
:math:`(\mu, s = \sigma^2)`, with gradient and Hessian blocks. The map from the parameters
(a, rho) to (mu, s) acts coordinate by coordinate, with :math:`\mu = a` or, under the relevance
prior, :math:`\mu = a\,e^{\rho}`.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from curvi.models.glm.newton import SecondOrder


class Energy(NamedTuple):
    """An energy in (mu, s): value, slopes, Hessian blocks (mu, mu), (mu, s) and (s, s).

    ``rank_one`` times the outer product of the gradient with itself is added to the Hessian.
    """

    value: float
    by_mean: np.ndarray
    by_variance: np.ndarray
    mean_mean: np.ndarray
    mean_variance: np.ndarray | None
    variance_variance: np.ndarray | None
    rank_one: float = 0.0


@dataclass(frozen=True)
class DiagonalBound(abc.ABC):
    """A negative bound as a function of the vector (a, rho)."""

    relevance: bool
    precision: np.ndarray  # of the prior, one per coordinate of mu
    has_all_rows: bool = field(default=True, kw_only=True)  # or only a share that stands for them

    @property
    @abc.abstractmethod
    def work(self) -> float:
        """Multiplications of one Hessian, roughly."""

    def coarser(self) -> list[DiagonalBound]:
        """Cheaper bounds that lead to a good start, the cheapest first."""
        return []

    @abc.abstractmethod
    def energy(self, mu: np.ndarray, sd: np.ndarray) -> float:
        """Minus the expected log likelihood."""

    @abc.abstractmethod
    def energy_second_order(self, mu: np.ndarray, sd: np.ndarray) -> Energy:
        """The same with its derivatives in (mu, s)."""

    def split(self, params: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The first block, the mean, and the sds."""
        a, rho = np.split(params, 2)
        sd = np.exp(rho)
        return a, (a * sd if self.relevance else a), sd

    def join(self, mu: np.ndarray, sd: np.ndarray) -> np.ndarray:
        """Parameters of a mean and sds."""
        return np.concatenate([mu / sd if self.relevance else mu, np.log(sd)])

    def value(self, params: np.ndarray) -> float:
        """The negative bound."""
        _, mu, sd = self.split(params)
        return self.energy(mu, sd) + self._divergence(params)

    def metric(self, params: np.ndarray) -> np.ndarray:
        """The Fisher metric of q, or the diagonal of its pull-back to (alpha, rho)."""
        a, _, sd = self.split(params)
        if self.relevance:
            return np.concatenate([np.ones_like(a), 2 + a**2])
        return np.concatenate([sd**-2.0, np.full_like(a, 2.0)])

    def second_order(self, params: np.ndarray) -> SecondOrder:
        """Value, gradient and Hessian in (a, rho)."""
        a, mu, sd = self.split(params)
        s, size = sd**2, a.size
        energy = self.energy_second_order(mu, sd)
        by_a = sd if self.relevance else np.ones_like(a)  # d mu / d a
        by_rho = mu if self.relevance else np.zeros_like(a)  # d mu / d rho
        g_mu, g_s = energy.by_mean, energy.by_variance
        gradient = np.concatenate([g_mu * by_a, g_mu * by_rho + 2 * s * g_s])
        hessian = _pulled_back(energy, by_a, by_rho, 2 * s)
        if energy.rank_one:
            hessian += energy.rank_one * np.outer(gradient, gradient)
        index = np.arange(size)
        if self.relevance:
            gradient[:size] += a / (1 + a**2)
            hessian[index, index] += (1 - a**2) / (1 + a**2) ** 2
            hessian[index, size + index] += g_mu * sd
            hessian[size + index, index] += g_mu * sd
            hessian[size + index, size + index] += g_mu * mu + 4 * g_s * s
        else:
            gradient += np.concatenate([self.precision * mu, self.precision * s - 1])
            hessian[index, index] += self.precision
            hessian[size + index, size + index] += 4 * g_s * s + 2 * self.precision * s
        return SecondOrder(energy.value + self._divergence(params), gradient, hessian)

    def _divergence(self, params: np.ndarray) -> float:
        """KL(q || prior), the prior's own variances optimised where it is a relevance prior."""
        a, mu, sd = self.split(params)
        if self.relevance:
            return float(0.5 * np.sum(np.log1p(a**2)))
        moment = self.precision * (sd**2 + mu**2)
        return float(0.5 * np.sum(moment - 1 - np.log(self.precision)) - np.sum(params[a.size :]))


def _pulled_back(
    energy: Energy, by_a: np.ndarray, by_rho: np.ndarray, widen: np.ndarray
) -> np.ndarray:
    """The Hessian blocks of an energy, from (mu, s) to (a, rho)."""
    first = energy.mean_mean
    mixed, corner = first * by_rho[None, :], by_rho[:, None] * first * by_rho[None, :]
    if energy.mean_variance is not None and energy.variance_variance is not None:
        mixed += energy.mean_variance * widen[None, :]
        slant = by_rho[:, None] * energy.mean_variance * widen[None, :]
        corner += slant + slant.T + widen[:, None] * energy.variance_variance * widen[None, :]
    top = by_a[:, None] * first * by_a[None, :]
    side = by_a[:, None] * mixed
    return np.block([[top, side], [side.T, corner]])
