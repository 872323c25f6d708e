"""Likelihoods of positive responses and of shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from curvi.likelihoods._base import NOTHING, ORDERS, ClosedForm, Extra, chosen
from curvi.likelihoods._counts import Binomial
from curvi.likelihoods._logistic import exponential
from curvi.likelihoods._real import normal_log_density


@dataclass(frozen=True)
class Gamma(ClosedForm):
    """Positive responses with mean ``exp(t)`` and a constant coefficient of variation.

    The shape is ``1 / dispersion^2``, so that the dispersion is the coefficient of variation.
    """

    link: str = "log"
    name = "gamma"
    links = ("log",)
    extras: ClassVar[tuple[Extra, ...]] = (Extra("dispersion", 1.0),)
    positive = True
    row_effects = "the dispersion"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``a log a - log Gamma(a) + (a - 1) log y - a (t + y exp(-t))``."""
        shape = extra[..., 0] ** -2.0
        return _gamma_constant(shape, y) - shape * (t + y * exponential(-t))

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        shape = extra[..., 0] ** -2.0
        relative = shape * y * exponential(-t)
        return relative - shape, -relative

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """``E[exp(-t)] = exp(-m + v / 2)``."""
        shape = extra[..., 0] ** -2.0
        relative = shape * y * exponential(-m + 0.5 * v)
        return chosen(
            orders,
            lambda: _gamma_constant(shape, y) - shape * m - relative,
            lambda: relative - shape,
            lambda: -relative,
        )

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """``exp(t)``."""
        return exponential(t)

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """Log-normal."""
        return exponential(m + 0.5 * v), exponential(2 * m + 2 * v)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Gamma variables."""
        shape = np.broadcast_to(extra[..., 0] ** -2.0, np.shape(t))
        return rng.gamma(shape) * exponential(t) / shape

    def units(self, y: np.ndarray, trials: Any = 1.0) -> tuple[float, float]:
        """One, and the mean of the logarithms."""
        return 1.0, float(np.mean(np.log(y)))

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Logarithm of the mean."""
        return math.log(float(y.mean()))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Half the spread of the logarithms."""
        return [0.5 * (float(np.std(np.log(y))) or 1.0)]

    def unsuitable(self, y: np.ndarray, trials: Any = 1.0) -> tuple[np.ndarray, str]:
        """Anything but positive numbers."""
        return y <= 0, "positive numbers"


@dataclass(frozen=True)
class Exponential(Gamma):
    """Waiting times with mean ``exp(t)``: gamma of shape one."""

    name = "exponential"
    extras = ()
    row_effects = ""

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``-t - y exp(-t)``."""
        return super().log_density(t, y, trials, np.ones(1))

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        return super().slopes(t, y, trials, np.ones(1))

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """``E[exp(-t)] = exp(-m + v / 2)``."""
        return super().expected(m, v, y, trials, np.ones(1), orders)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Waiting times."""
        return super().sample(t, trials, np.ones(1), rng)

    def extra_start(self, y: np.ndarray) -> list[float]:
        """There is none."""
        return []


@dataclass(frozen=True)
class Weibull(Gamma):
    """Waiting times: ``log y`` is t plus ``dispersion`` times a Gumbel variable.

    The shape is ``1 / dispersion``; an exponential variable has one.
    """

    name = "weibull"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``log k - log y + k (log y - t) - (y exp(-t))^k``."""
        shape = extra[..., 0] ** -1.0
        away = shape * (np.log(y) - t)
        return np.log(shape) - np.log(y) + away - exponential(away)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        shape = extra[..., 0] ** -1.0
        power = exponential(shape * (np.log(y) - t))
        return shape * (power - 1), -(shape**2) * power

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """``E[exp(-k t)] = exp(-k m + k^2 v / 2)``."""
        shape = extra[..., 0] ** -1.0
        away = shape * (np.log(y) - m)
        power = exponential(away + 0.5 * shape**2 * v)
        return chosen(
            orders,
            lambda: np.log(shape) - np.log(y) + away - power,
            lambda: shape * (power - 1),
            lambda: -(shape**2) * power,
        )

    def mean_shift(self, extra: Any) -> Any:
        """``log Gamma(1 + dispersion)``."""
        return special.gammaln(1 + extra[..., 0])

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Waiting times."""
        return exponential(t) * rng.standard_exponential(np.shape(t)) ** extra[..., 0]


@dataclass(frozen=True)
class LogNormal(Gamma):
    """Positive responses whose logarithm is normal around t."""

    name = "lognormal"
    extras: ClassVar[tuple[Extra, ...]] = (Extra("residual sd", 1.0),)
    row_effects = "the residual sd"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Normal, with the Jacobian of the logarithm."""
        logs = np.log(y)
        return normal_log_density(logs - t, 2 * np.log(extra[..., 0])) - logs

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Linear and constant."""
        precision = extra[..., 0] ** -2.0
        return (np.log(y) - t) * precision, np.broadcast_to(-precision, np.shape(t))

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """In closed form."""
        precision = extra[..., 0] ** -2.0
        return chosen(
            orders,
            lambda: self.log_density(m, y, trials, extra) - 0.5 * v * precision,
            lambda: (np.log(y) - m) * precision,
            lambda: -precision * np.ones(np.shape(m)),
            lambda: np.zeros(np.shape(m)),
        )

    def mean_shift(self, extra: Any) -> Any:
        """Half the variance of the logarithm."""
        return 0.5 * extra[..., 0] ** 2

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Exponentials of normal variables."""
        return exponential(t + extra[..., 0] * rng.standard_normal(np.shape(t)))

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Mean of the logarithms."""
        return float(np.mean(np.log(y)))


@dataclass(frozen=True)
class Beta(ClosedForm):
    """Shares with mean ``p = sigmoid(t)`` and variance ``p (1 - p) / (1 + a)``.

    The precision a is ``1 / dispersion^2``.
    """

    link: str = "logit"
    name = "beta"
    links = ("logit",)
    extras: ClassVar[tuple[Extra, ...]] = (Extra("dispersion", 1.0),)
    label = "expected share"
    row_effects = "the dispersion"
    width = 2.8  # the poles of its chances are essential singularities

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Beta with parameters ``p a`` and ``(1 - p) a``."""
        first, second = _beta_parameters(t, extra)
        logs = (first - 1) * np.log(y) + (second - 1) * np.log1p(-y)
        return logs - special.betaln(first, second)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        first, second = _beta_parameters(t, extra)
        by_share = special.logit(y) - special.digamma(first) + special.digamma(second)
        return _through_share(t, extra, by_share, -_trigammas(first, second))

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """The expected share."""
        return special.expit(t)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Shares, not so near to the ends that they are rounded to them."""
        drawn = rng.beta(*_beta_parameters(t, extra))
        return np.clip(drawn, np.finfo(float).tiny, 1 - np.finfo(float).epsneg)

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Logit of the mean."""
        return float(special.logit(np.mean(y)))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """From the variance of the shares."""
        mean, variance = float(np.mean(y)), float(np.var(y))
        return [math.sqrt(max(0.5 * variance / (mean * (1 - mean)), 1e-4))]

    def unsuitable(self, y: np.ndarray, trials: Any = 1.0) -> tuple[np.ndarray, str]:
        """Anything but what lies inside."""
        return (y <= 0) | (y >= 1), "numbers between zero and one, without the ends"


@dataclass(frozen=True)
class BetaBinomial(Beta):
    """Successes among trials whose chance is beta distributed: overdispersed binomial counts."""

    name = "beta-binomial"
    takes_trials: ClassVar[bool] = True
    whole_numbers = True
    label = "expected count"
    unsuitable = Binomial.unsuitable
    predictor_start = Binomial.predictor_start

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """A binomial likelihood averaged over chances."""
        first, second = _beta_parameters(t, extra)
        ways = -np.log1p(trials) - special.betaln(y + 1, trials - y + 1)
        return (
            ways + special.betaln(first + y, second + (trials - y)) - special.betaln(first, second)
        )

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        first, second = _beta_parameters(t, extra)
        with_rows = first + y, second + (trials - y)
        by_share = special.digamma(with_rows[0]) - special.digamma(with_rows[1])
        by_share = by_share - special.digamma(first) + special.digamma(second)
        curved = _trigammas(*with_rows) - _trigammas(first, second)
        return _through_share(t, extra, by_share, curved)

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """Expected successes."""
        return trials * special.expit(t)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Successes."""
        number = np.broadcast_to(trials, np.shape(t)).astype(int)
        return rng.binomial(number, rng.beta(*_beta_parameters(t, extra)))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Moderate dispersion."""
        return [0.5]


def _gamma_constant(shape: Any, y: Any) -> Any:
    return shape * np.log(shape) - special.gammaln(shape) + (shape - 1) * np.log(y)


def _beta_parameters(t: Any, extra: Any) -> tuple[Any, Any]:
    """Both, so far from zero that squares of one over them are finite, and their sums."""
    precision, least = extra[..., 0] ** -2.0, np.finfo(float).tiny ** 0.4
    first, second = (np.maximum(precision * special.expit(sign * t), least) for sign in (1, -1))
    return first, second


def _trigammas(first: Any, second: Any) -> Any:
    return special.polygamma(1, first) + special.polygamma(1, second)


def _through_share(t: Any, extra: Any, by_share: Any, curved: Any) -> tuple[Any, Any]:
    """Slopes in t from those in ``p a`` less its complement: ``d(p a)/dt = a p (1 - p)``."""
    p, rest = special.expit(t), special.expit(-t)
    speed = extra[..., 0] ** -2.0 * p * rest
    return by_share * speed, curved * speed**2 + by_share * speed * (rest - p)
