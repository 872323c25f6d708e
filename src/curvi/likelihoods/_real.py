"""Likelihoods of real responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from curvi.likelihoods._base import NOTHING, ORDERS, ClosedForm, Extra, Likelihood, RowTerms, chosen
from curvi.likelihoods._logistic import exponential, namespace

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
_LOG_CHI_SQUARE = -1.27  # the mean of the logarithm of a squared standard normal variable


def normal_log_density(residual: Any, log_variance: Any) -> Any:
    """Normal with mean zero."""
    square = residual**2 * namespace(log_variance)[0].exp(-log_variance)
    return -0.5 * (log_variance + math.log(2 * math.pi) + square)


@dataclass(frozen=True)
class Gaussian(ClosedForm):
    """Real responses with a residual sd."""

    link: str = "identity"
    name = "gaussian"
    links = ("identity",)
    extras: ClassVar[tuple[Extra, ...]] = (Extra("residual sd", 1.0),)
    conjugate: ClassVar[bool] = True
    location_scale = True
    row_effects = "the residual sd"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Normal."""
        sd = extra[..., 0]
        return -0.5 * ((y - t) / sd) ** 2 - namespace(sd)[0].log(sd) - _HALF_LOG_TWO_PI

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Linear and constant."""
        precision = extra[..., 0] ** -2.0
        return (y - t) * precision, np.broadcast_to(-precision, np.shape(t))

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """In closed form."""
        sd = extra[..., 0]
        return chosen(
            orders,
            lambda: self.log_density(m, y, trials, extra) - 0.5 * v / sd**2,
            lambda: (y - m) * sd**-2.0,
            lambda: namespace(m)[0].broadcast_to(-(sd**-2.0), m.shape),
            lambda: None,
        )

    def row_terms(self, mean: Any, variance: Any, y: Any, *, second: bool = True) -> RowTerms:
        """``-((y - m)^2 + v) / 2``, without the constant."""
        one = np.ones_like(mean)
        return RowTerms(-0.5 * ((y - mean) ** 2 + variance), y - mean, -0.5 * one, -one)

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """The predictor itself."""
        return t

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """Those of the predictor."""
        return m, v + m**2

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Normal noise."""
        return t + extra[..., 0] * rng.standard_normal(np.shape(t))

    def units(self, y: np.ndarray, trials: Any = 1.0) -> tuple[float, float]:
        """Sd and mean of the responses."""
        return float(np.std(y)) or 1.0, float(np.mean(y))

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Zero: responses are centred where it matters."""
        return 0.0

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Half the spread of the responses."""
        return [0.5 * (float(np.std(y)) or 1.0)]


@dataclass(frozen=True)
class StudentT(Gaussian):
    """Real responses with heavy tails: scale and degrees of freedom. Not log-concave."""

    name = "student-t"
    extras = (Extra("residual sd", 1.0), Extra("degrees of freedom", 10.0, "gamma"))
    conjugate = False
    expected = Likelihood.expected
    row_terms = Likelihood.row_terms

    def _width(self, extra: Any) -> Any:
        """Where the density has its poles."""
        return extra[..., 0] * np.sqrt(extra[..., 1])

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Student t."""
        sd, df = extra[..., 0], extra[..., 1]
        constant = special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)
        constant = constant - 0.5 * np.log(df * math.pi) - np.log(sd)
        return constant - 0.5 * (df + 1) * np.log1p(((y - t) / sd) ** 2 / df)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """The second is positive for outliers."""
        sd, df = extra[..., 0], extra[..., 1]
        residual, scale = y - t, df * sd**2
        bottom = scale + residual**2
        return (df + 1) * residual / bottom, -(df + 1) * (scale - residual**2) / bottom**2

    def sites(
        self, y: np.ndarray, offset: Any = 0.0, trials: Any = 1.0, extra: Any = NOTHING
    ) -> tuple[np.ndarray, np.ndarray]:
        """Those of Gaussian noise, of which no outlier has the wrong sign."""
        precision = np.ones_like(y) * extra[..., 0] ** -2.0
        return precision, precision * (y - offset)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Noise with heavy tails."""
        return t + extra[..., 0] * rng.standard_t(np.broadcast_to(extra[..., 1], np.shape(t)))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Half the spread of the responses, and moderate tails."""
        return [0.5 * (float(np.std(y)) or 1.0), 8.0]


@dataclass(frozen=True)
class Volatility(ClosedForm):
    """Returns with log variance t: ``-(log 2 pi + t + y^2 exp(-t)) / 2``."""

    link: str = "log"
    name = "volatility"
    links = ("log",)
    of_scale = True
    label = "sd of a return"

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Normal with mean zero."""
        return normal_log_density(y, t)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        half = 0.5 * y**2 * exponential(-t)
        return half - 0.5, -half

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """``E[y^2 exp(-t)] = y^2 exp(-m + v / 2)``."""
        half = 0.5 * y**2 * exponential(-m + 0.5 * v)
        return chosen(
            orders,
            lambda: -_HALF_LOG_TWO_PI - 0.5 * m - half,
            lambda: half - 0.5,
            lambda: -half,
            lambda: half,
            lambda: -half,
        )

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """The sd of a return, which is what there is to know; its mean is zero."""
        return exponential(0.5 * t)

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """Log-normal."""
        return exponential(0.5 * m + 0.125 * v), exponential(m + 0.5 * v)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Normal returns."""
        return np.exp(0.5 * t) * rng.standard_normal(np.shape(t))

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Logarithm of the mean square."""
        with np.errstate(over="ignore", divide="ignore"):
            return float(np.log(np.mean(y**2)))

    def sites(
        self, y: np.ndarray, offset: Any = 0.0, trials: Any = 1.0, extra: Any = NOTHING
    ) -> tuple[np.ndarray, np.ndarray]:
        """Around the logarithm of every square."""
        centre = np.log(y**2 + 1e-4 * np.mean(y**2)) - _LOG_CHI_SQUARE
        return np.full_like(y, 0.5), 0.5 * (centre - offset)
