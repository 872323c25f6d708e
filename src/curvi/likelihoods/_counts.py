"""Likelihoods of counts and of binary responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from curvi.likelihoods._base import NOTHING, ORDERS, ClosedForm, Extra, chosen
from curvi.likelihoods._logistic import (
    exponential,
    log_sigmoid_expectations,
    namespace,
    softplus,
)

_LARGEST_EXPONENT = 80.0  # eight factors of 1 + exp(t) stay finite
_LARGEST_RATE = 40.0  # log rate up to which counts are drawn
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def logistic_log_density(t: Any, y: Any) -> Any:
    """``y log sigmoid(t) + (1 - y) log sigmoid(-t)``, for y in [0, 1]."""
    return y * t - softplus(t)


@dataclass(frozen=True)
class Binomial(ClosedForm):
    """Successes among a number of trials."""

    link: str = "logit"
    name = "binomial"
    links = ("logit", "probit")
    takes_trials: ClassVar[bool] = True
    whole_numbers = True
    label = "expected count"
    width = 2.8  # of log ndtr

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``y log p + (n - y) log(1 - p)``, with the binomial coefficient."""
        if self.link == "probit":
            _, functions = namespace(t)
            up, down = functions.log_ndtr(t), functions.log_ndtr(-t)
            return y * up + (trials - y) * down + _coefficient(y, trials)
        return y * t - trials * softplus(t) + _coefficient(y, trials)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        if self.link == "probit":
            up, down = _mills(t), _mills(-t)
            first = y * up - (trials - y) * down
            return first, -y * up * (t + up) - (trials - y) * down * (down - t)
        p = namespace(t)[1].expit(t)
        return y - trials * p, -trials * p * (1 - p)

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Through ``E[log sigmoid(t)]`` for the logistic link."""
        if self.link == "probit":
            return super().expected(m, v, y, trials, extra, orders)
        return _logit_terms(m, v, y, trials, _coefficient(y, trials), orders)

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """Expected successes."""
        _, functions = namespace(t)
        return trials * (functions.ndtr(t) if self.link == "probit" else functions.expit(t))

    def expected_mean(self, m: Any, v: Any, trials: Any = 1.0) -> Any:
        """In closed form, or by the expectations of the logistic link."""
        if self.link == "probit":
            return trials * special.ndtr(m / np.sqrt(1 + v))
        return trials * log_sigmoid_expectations(-m, v, (1,))[0]

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """Of sigmoids, whose squares are what their slopes leave: ``s^2 = s - s'``."""
        if self.link == "probit":
            at = m / np.sqrt(1 + v)
            first = special.ndtr(at)
            # the probability that two normal variables with correlation v / (1 + v) are below
            second = first - 2 * special.owens_t(at, 1 / np.sqrt(1 + 2 * v))
        else:
            first, slope = log_sigmoid_expectations(-m, v, (1, 2))
            second = first + slope
        return trials * first, trials**2 * second

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Successes."""
        chance = self.mean(t, np.ones_like(trials))
        return rng.binomial(np.broadcast_to(trials, np.shape(t)).astype(int), chance)

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Link of the overall share of successes."""
        share = (y.sum() + 0.5) / (np.broadcast_to(trials, y.shape).sum() + 1)
        return float(special.ndtri(share) if self.link == "probit" else special.logit(share))

    def unsuitable(self, y: np.ndarray, trials: Any = 1.0) -> tuple[np.ndarray, str]:
        """Anything but whole numbers with ``0 <= y <= trials``."""
        wrong, need = _no_counts(y)
        wrong_trials, _ = _no_counts(np.asarray(trials))
        return wrong | wrong_trials | (y > trials), f"{need}, and no more successes than trials"


@dataclass(frozen=True)
class Bernoulli(Binomial):
    """Binary responses: 0 and 1, or -1 and +1. Trials are not looked at."""

    name = "bernoulli"
    takes_trials = False
    binary = True
    label = "probability"
    row_effects = "the chance of each answer"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Of what happened, so that small probabilities have all their digits."""
        own = _sign(y) * t
        return namespace(t)[1].log_ndtr(own) if self.link == "probit" else -softplus(-own)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        sign = _sign(y)
        if self.link == "probit":
            up = _mills(sign * t)
            return sign * up, -up * (sign * t + up)
        q = namespace(t)[1].expit(-sign * t)
        return sign * q, -q * (1 - q)

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Through ``E[log sigmoid(t)]`` for the logistic link."""
        if self.link == "probit":
            return super().expected(m, v, y, trials, extra, orders)
        sign = _sign(y)
        e = log_sigmoid_expectations(sign * m, v, orders)
        return tuple(sign * x if k % 2 else x for k, x in zip(orders, e, strict=True))

    def level_sums(self, t: Any, y: Any, trials: Any, extra: Any, starts: np.ndarray) -> Any:
        """One exponential per row and node, one logarithm per eight rows."""
        # beyond 80 the product of eight rows overflows; such predictors are rare
        if self.link != "logit" or float(np.max(t, initial=0.0)) > _LARGEST_EXPONENT:
            return super().level_sums(t, y, trials, extra, starts)
        linear = np.add.reduceat(y[:, None] * t, starts, axis=1)
        rows = len(y)
        ends = np.append(starts[1:], rows)
        cuts = np.concatenate([np.arange(s, e, 8) for s, e in zip(starts, ends, strict=True)])
        np.exp(t, out=t)
        t += 1.0
        logs = np.log(np.multiply.reduceat(t, cuts, axis=1))
        return linear - np.add.reduceat(logs, np.searchsorted(cuts, starts), axis=1)

    def sites(self, y: np.ndarray, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """The slope and the largest curvature at the offset of even odds."""
        return np.full_like(y, 0.25), 0.5 * _sign(y)

    def unsuitable(self, y: np.ndarray, trials: Any = 1.0) -> tuple[np.ndarray, str]:
        """Anything but labels."""
        return (y != 0) & (y != 1), "0 and 1"


@dataclass(frozen=True)
class Poisson(ClosedForm):
    """Counts with a log link."""

    link: str = "log"
    name = "poisson"
    links = ("log",)
    whole_numbers = True
    label = "expected count"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``y t - exp(t) - log y!``."""
        return y * t - exponential(t) - namespace(y)[1].gammaln(y + 1.0)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """``y - exp(t)`` and ``-exp(t)``."""
        rate = exponential(t)
        return y - rate, -rate

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """``E[exp(t)] = exp(m + v / 2)``."""
        rate = exponential(m + 0.5 * v)
        return chosen(
            orders,
            lambda: y * m - rate - namespace(y)[1].gammaln(y + 1.0),
            lambda: y - rate,
            lambda: -rate,
        )

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """The rate."""
        return exponential(t)

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """Log-normal."""
        return exponential(m + 0.5 * v), exponential(2 * m + 2 * v)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Counts."""
        return rng.poisson(np.exp(np.minimum(t, _LARGEST_RATE)))

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Logarithm of the mean count."""
        return math.log(float(y.mean()) + 0.1)

    def sites(self, y: np.ndarray, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
        """Around the logarithm of every count."""
        precision = y + 0.5
        return precision, precision * (np.log(precision) - offset)

    def unsuitable(self, y: np.ndarray, trials: Any = 1.0) -> tuple[np.ndarray, str]:
        """Anything but whole numbers from zero on."""
        return _no_counts(y)


@dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Counts with variance ``mu + dispersion^2 mu^2`` around the mean ``mu = exp(t)``."""

    name = "negative-binomial"
    extras = (Extra("dispersion", 1.0),)

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Gamma-Poisson with size ``1 / dispersion^2``."""
        size = extra[..., 0] ** -2.0
        log_size = np.log(size)
        constant = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1.0)
        return constant + y * (t - log_size) - (y + size) * softplus(t - log_size)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        size = extra[..., 0] ** -2.0
        p = special.expit(t - np.log(size))
        return y - (y + size) * p, -(y + size) * p * (1 - p)

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """That of ``y + size`` binomial trials, but for the constant."""
        size = extra[..., 0] ** -2.0
        constant = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1.0)
        return _logit_terms(m - np.log(size), v, y, y + size, constant, orders)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Counts."""
        size = np.broadcast_to(extra[..., 0] ** -2.0, np.shape(t))
        return rng.poisson(rng.gamma(size, np.exp(np.minimum(t, _LARGEST_RATE)) / size))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Moderate dispersion."""
        return [0.5]


def _sign(y: Any) -> Any:
    return namespace(y)[0].sign(y - 0.5)


def _mills(t: Any) -> Any:
    """The slope of ``log ndtr``."""
    xp, functions = namespace(t)
    return xp.exp(-0.5 * t**2 - _HALF_LOG_TWO_PI - functions.log_ndtr(t))


def _logit_terms(
    m: Any, v: Any, y: Any, trials: Any, constant: Any, orders: Sequence[int]
) -> tuple[Any, ...]:
    """Expected derivatives of ``y t - n log(1 + exp(t))``, by ``log sigmoid(-t)``."""
    e = log_sigmoid_expectations(-m, v, orders)
    signed = (trials * (-x if k % 2 else x) for k, x in zip(orders, e, strict=True))
    added = (y * m + constant, y)
    return tuple(added[k] + x if k in (0, 1) else x for k, x in zip(orders, signed, strict=True))


def _coefficient(y: Any, trials: Any) -> Any:
    """The logarithm of the binomial coefficient."""
    _, functions = namespace(y)
    ways = functions.gammaln(trials + 1.0) - functions.gammaln(y + 1.0)
    return ways - functions.gammaln(trials - y + 1.0)


def _no_counts(y: np.ndarray) -> tuple[np.ndarray, str]:
    return (y < 0) | (y != np.round(y)), "counts: whole numbers from zero on"
