"""Gaussian responses: the marginal likelihood of hyperparameters in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from curvi.mixed._design import Design
from curvi.mixed._hyper import Layout
from curvi.mixed._sums import DenseSums, dense_sums
from curvi.mixed._system import Prior, Statistics, System, condition, prior_of

_NUMBERS_AT_ONCE = 2**22  # in the largest array of a batch of systems


@dataclass(frozen=True)
class GaussianMarginal:
    r"""``log p(y, theta)``, the effects integrated out.

    .. math::

        \log p(y \mid \theta) = -\tfrac n2 \log 2\pi\tau^{-1} - \tfrac\tau2 y'y
            + \tfrac12 \log|Q| - \tfrac12 \log|H| + \tfrac12 b'H^{-1}b
    """

    stats: Statistics
    prior: Prior
    layout: Layout
    rows: float
    square: float

    @classmethod
    def of(cls, design: Design, layout: Layout, sums: DenseSums | None = None) -> GaussianMarginal:
        """RowSums over rows are taken once, if not before; no later step touches a row."""
        sums = dense_sums(design) if sums is None else sums
        return cls(sums.stats, prior_of(design), layout, sums.rows, sums.square)

    @property
    def at_once(self) -> int:
        """Points whose systems are solved together."""
        width = self.stats.cross.size + self.prior.size**2
        return max(1, _NUMBERS_AT_ONCE // width)

    def system(self, theta: np.ndarray) -> System:
        """The posterior of the effects given theta; leading axes are allowed."""
        noise = self.layout.extra_values(theta)[..., 0]
        return condition(self.stats, self.layout.scale_factors(theta), self.prior, noise**-2.0)

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """``log p(y, theta)`` of many points."""
        parts = [
            self._values(theta[start : start + self.at_once])
            for start in range(0, len(theta), self.at_once)
        ]
        return np.concatenate(parts)

    def _values(self, theta: np.ndarray) -> np.ndarray:
        theta = np.clip(theta, -30.0, 30.0)
        try:
            solved = self.system(theta)
        except np.linalg.LinAlgError:
            if len(theta) == 1:
                return np.array([-np.inf])
            return np.concatenate([self._values(point[None]) for point in theta])
        return self.value(theta, solved)

    def value(self, theta: np.ndarray, solved: System) -> np.ndarray:
        """``log p(y, theta)`` from a solved system."""
        noise = self.layout.extra_values(theta)[..., 0]
        prior = self.prior
        value = -self.rows * (np.log(noise) + 0.5 * np.log(2 * np.pi))
        value = value - 0.5 * self.square / noise**2 + 0.5 * np.log(prior.precision).sum()
        value = value - 0.5 * (prior.precision * prior.mean**2).sum()
        value = value - 0.5 * solved.log_det + 0.5 * solved.fit
        return value + self.layout.log_prior(theta)
