"""What the site iteration hands on, and when it ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class SiteFit(NamedTuple):
    """q for several theta side by side: the bound, the sites, and the predictors.

    Attributes
    ----------
    bound : array, shape (points,)
        The evidence lower bound; exact for Gaussian responses.
    precision, linear : array, shape (points, rows)
        The sites w and r.
    mean, variance : array, shape (points, rows)
        Of the predictors, offset included.
    """

    bound: np.ndarray
    precision: np.ndarray
    linear: np.ndarray
    mean: np.ndarray
    variance: np.ndarray

    @property
    def sites(self) -> tuple[np.ndarray, np.ndarray]:
        """Where another fit may begin."""
        return self.precision, self.linear

    def at(self, points: Any) -> SiteFit:
        """Some of the points."""
        return SiteFit(*(column[points] for column in self))


class Effects(NamedTuple):
    """Moments of the effects: means and variances (points, size)."""

    mean: np.ndarray
    variance: np.ndarray


class SiteStep(NamedTuple):
    """Sites, centred predictors, and the bound; minus infinity where there is no Gaussian."""

    w: np.ndarray
    r: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    bound: np.ndarray

    def where(self, better: np.ndarray, other: SiteStep) -> SiteStep:
        """The other one at the points where it is better."""
        pairs = zip(other, self, strict=True)
        return SiteStep(
            *(np.where(better.reshape(-1, *(1,) * (old.ndim - 1)), new, old) for new, old in pairs)
        )

    def at(self, points: np.ndarray) -> SiteStep:
        """Some of the points."""
        return SiteStep(*(column[points] for column in self))


@dataclass(frozen=True)
class Iteration:
    """When the sites have converged.

    Attributes
    ----------
    rounds : int
        At most.
    accuracy : float
        Of means and variances of predictors, in posterior sds; that of the bound is its square.
    near : float
        Where a better bound is not found so near the end, rounding is all that is left.
    shortest : float
        Step that is still tried.
    largest_loss : float
        Of a bound through rounding, in nats: sites far too long are not accepted.
    rounding : float
        Relative, of a bound.
    numbers_at_once : float
        Entries of matrices that are factorised side by side.
    """

    rounds: int = 200
    accuracy: float = 1e-6
    near: float = 1e-3
    shortest: float = 1e-8
    largest_loss: float = 1e-2
    rounding: float = 1e-10
    numbers_at_once: float = 2e7
