"""Curves with their uncertainty: moments and quantiles of mixtures over hyperparameters."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from curvi.likelihoods import Likelihood


class Band(NamedTuple):
    """A curve with its uncertainty.

    Attributes
    ----------
    mean, sd : array, shape (steps,)
        Posterior mean and standard deviation.
    lower, upper : array, shape (steps,)
        Ends of the central interval.
    """

    mean: np.ndarray
    sd: np.ndarray
    lower: np.ndarray
    upper: np.ndarray


def mixture_band(
    mean: np.ndarray,
    variance: np.ndarray,
    weights: np.ndarray,
    interval: float,
    likelihood: Likelihood | None = None,
    trials: Any = 1.0,
) -> Band:
    """Moments and quantiles of a mixture of Gaussians at every step, or of the mean response.

    Parameters
    ----------
    mean, variance : array, shape (points, steps)
        Of each Gaussian.
    weights : array, shape (points,)
        They sum to one.
    interval : float
        Probability of the band.
    likelihood : Likelihood, optional
        Whose mean response is meant, with these trials.
    """
    variance = np.maximum(variance, 0)
    sd = np.sqrt(variance)
    tail = 0.5 * (1 - interval)
    ends = [quantile(mean, sd, weights, p) for p in (tail, 1 - tail)]
    if likelihood is None:
        return Band(*_moments(mean, variance, weights), *ends)
    first, second = likelihood.moments(mean, variance, trials)
    centre, spread = _moments(first, second - first**2, weights)
    return Band(centre, spread, *(likelihood.mean(end, trials) for end in ends))


def _moments(mean: np.ndarray, variance: np.ndarray, weights: np.ndarray) -> tuple[Any, Any]:
    """Mean and sd of a mixture."""
    centre = weights @ mean
    spread = weights @ (variance + (mean - centre) ** 2)
    return centre, np.sqrt(np.maximum(spread, 0))


def smooth_quantiles(
    points: np.ndarray, weights: np.ndarray, tails: tuple[float, ...], *, width: float = 0.4
) -> list[np.ndarray]:
    """Quantiles of the density that points with weights stand for, column by column.

    Points of a lattice are about an sd apart, and their own quantiles too close together. Kernels
    as wide as ``width`` sds fill the gaps; points move towards their mean so that the variance
    stays.
    """
    centre, spread = _moments(points, np.zeros_like(points), weights)
    kernels = centre + np.sqrt(1 - width**2) * (points - centre)
    sd = np.broadcast_to(width * spread, kernels.shape)
    return [quantile(kernels, sd, weights, p) for p in tails]


def quantile(
    mean: np.ndarray, sd: np.ndarray, weights: np.ndarray, p: float, *,
    rounds: int = 40, accuracy: float = 1e-5,
) -> np.ndarray:  # fmt: skip
    """Of a mixture of Gaussians: Newton's method, and bisection where that would leave the bracket.

    Parameters
    ----------
    mean, sd : array, shape (points, steps)
        Of each Gaussian.
    weights : array, shape (points,)
        They sum to one.
    p : float
        Probability below it.
    rounds : int
        At most.
    accuracy : float
        Last step, in sds of the narrowest part; what is missing then is about its square.
    """
    used = weights > np.finfo(float).eps * weights.max()
    mean, sd, weights = mean[used], np.maximum(sd[used], 1e-300), weights[used]
    reach = 12 * sd
    low, high = (mean - reach).min(axis=0), (mean + reach).max(axis=0)
    centre, spread = _moments(mean, sd**2, weights)
    narrow = sd.min(axis=0)
    x = np.clip(centre + special.ndtri(p) * spread, low, high)
    for _ in range(rounds):
        z = (x - mean) / sd
        above = weights @ special.ndtr(z) - p
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            slope = weights @ (np.exp(-0.5 * z**2) / sd) / np.sqrt(2 * np.pi)
            wanted = x - above / slope
        low, high = np.where(above < 0, x, low), np.where(above < 0, high, x)
        inside = (wanted >= low) & (wanted <= high)
        last, x = x, np.where(inside, wanted, 0.5 * (low + high))
        if (np.abs(x - last) <= accuracy * narrow).all():
            break
    return x
