"""Curves with their uncertainty: moments and quantiles of mixtures, and observations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from curvi.latent import Lattice
from curvi.likelihoods import NOTHING, Likelihood
from curvi.sequences._latent import LatentModel, Posterior

_ROUNDS = 34  # of bisection: quantiles to a billionth of an sd


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
) -> Band:
    """Moments and quantiles of a mixture of Gaussians at every step, or of the mean response."""
    variance = np.maximum(variance, 0)
    sd = np.sqrt(variance)
    tail = 0.5 * (1 - interval)
    ends = [_quantile(mean, sd, weights, p) for p in (tail, 1 - tail)]
    if likelihood is None:
        centre = weights @ mean
        spread = weights @ (variance + (mean - centre) ** 2)
        return Band(centre, np.sqrt(spread), *ends)
    first, second = likelihood.moments(mean, variance)
    centre = weights @ first
    spread = weights @ (second - first**2 + (first - centre) ** 2)
    return Band(centre, np.sqrt(np.maximum(spread, 0)), *(likelihood.mean(end) for end in ends))


def _quantile(mean: np.ndarray, sd: np.ndarray, weights: np.ndarray, p: float) -> np.ndarray:
    """By bisection on the distribution function of the mixture."""
    reach = 12 * sd
    low, high = (mean - reach).min(axis=0), (mean + reach).max(axis=0)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        below = weights @ special.ndtr((middle - mean) / sd) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def replicated(
    model: LatentModel, lattice: Lattice, posterior: Posterior, num_draws: int, rng: Any,
    last: int = 0,
) -> np.ndarray:  # fmt: skip
    """Draws of hyperparameters, states and observations, (num_draws, times); of the last steps."""
    counts = rng.multinomial(num_draws, lattice.weights)
    drawn = []
    for index in np.flatnonzero(counts):
        one = slice(index, index + 1)
        part = Posterior(*(column[one] for column in posterior))
        states = model.draw(lattice.points[one], part, rng, int(counts[index]))[0, -last:].T
        natural = model.natural(lattice.points[one])
        extra = natural.get("noise", NOTHING)
        drawn.append(model.likelihood.sample(states, np.ones_like(states), extra, rng))
    stacked = np.concatenate(drawn)
    rng.shuffle(stacked)
    return stacked
