"""Curves with their uncertainty: moments and quantiles of mixtures, and observations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.sequences._latent import LatentModel, Posterior
from curvi.sequences._nested import Lattice

_ROUNDS = 34  # of bisection: quantiles to a billionth of an sd
RESPONSES = {
    "gaussian": lambda t: t,
    "poisson": np.exp,
    "bernoulli": special.expit,
    "volatility": lambda t: np.exp(0.5 * t),
}


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


def check_interval(interval: float) -> None:
    """Refuse what is not a probability."""
    validation.positive_number(interval, "interval")
    if interval >= 1:
        raise InputError(f"interval is {interval}; it is a probability, below 1")


def mixture_band(
    mean: np.ndarray, variance: np.ndarray, weights: np.ndarray, interval: float, transform: Any
) -> Band:
    """Moments and quantiles of a mixture of Gaussians at every step."""
    sd = np.sqrt(np.maximum(variance, 0))
    tail = 0.5 * (1 - interval)
    ends = [_quantile(mean, sd, weights, p) for p in (tail, 1 - tail)]
    if transform is None:
        centre = weights @ mean
        spread = weights @ (variance + (mean - centre) ** 2)
        return Band(centre, np.sqrt(spread), *ends)
    nodes, rule = np.polynomial.hermite_e.hermegauss(24)
    values = transform(mean[..., None] + sd[..., None] * nodes)
    rule = rule / rule.sum()
    centre = weights @ (values @ rule)
    spread = weights @ ((values - centre[None, :, None]) ** 2 @ rule)
    return Band(centre, np.sqrt(spread), *(transform(end) for end in ends))


def _quantile(mean: np.ndarray, sd: np.ndarray, weights: np.ndarray, p: float) -> np.ndarray:
    """By bisection on the distribution function of the mixture."""
    reach = 12 * sd
    low, high = (mean - reach).min(axis=0), (mean + reach).max(axis=0)
    for _ in range(_ROUNDS):
        middle = 0.5 * (low + high)
        below = weights @ special.ndtr((middle - mean) / sd) < p
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return 0.5 * (low + high)


def observed(
    rng: np.random.Generator, predictor: np.ndarray, likelihood: str, natural: Any
) -> np.ndarray:
    """Observations given their predictors."""
    if likelihood == "gaussian":
        return predictor + natural["noise"][0] * rng.normal(size=predictor.shape)
    if likelihood == "poisson":
        return rng.poisson(np.exp(np.minimum(predictor, 40))).astype(float)
    if likelihood == "bernoulli":
        return (rng.uniform(size=predictor.shape) < special.expit(predictor)).astype(float)
    return np.exp(0.5 * predictor) * rng.normal(size=predictor.shape)


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
        drawn.append(observed(rng, states, model.likelihood, natural))
    stacked = np.concatenate(drawn)
    rng.shuffle(stacked)
    return stacked
