r"""Likelihoods of rows: log densities in the linear predictor, with two derivatives.

Expectations under a Gaussian predictor, :math:`E[\ell], E[\ell'], E[\ell'']` for
:math:`t \sim N(m, v)`, are closed forms or Gauss-Hermite sums; for the logistic link they are
those of `curvi.glm`, exact for any variance.
"""

from __future__ import annotations

import abc
import math
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from scipy import special

from curvi._core.errors import InputError
from curvi.glm._likelihoods import log_sigmoid_expectations
from curvi.mixed._hyper import Extra

_NODES = 20
_LARGEST_EXPONENT = 80.0  # eight factors of 1 + exp(t) stay finite
_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)
Terms = tuple[np.ndarray, np.ndarray, np.ndarray]


@cache
def normal_rule(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the Gauss-Hermite rule for a standard normal variable."""
    nodes, weights = special.roots_hermitenorm(count)
    return nodes, weights / weights.sum()


@dataclass(frozen=True)
class Likelihood(abc.ABC):
    """``p(y | t, trials, extra)`` of a row."""

    link: str = ""
    name: ClassVar[str] = ""
    links: ClassVar[tuple[str, ...]] = ()
    extras: ClassVar[tuple[Extra, ...]] = ()
    log_concave: ClassVar[bool] = True

    @abc.abstractmethod
    def log_density(self, t: Any, y: Any, trials: Any, extra: Any) -> Any:
        """``log p(y | t)``; arguments broadcast."""

    @abc.abstractmethod
    def slopes(self, t: Any, y: Any, trials: Any, extra: Any) -> tuple[Any, Any]:
        """First and second derivative of the log density in t."""

    @abc.abstractmethod
    def mean(self, t: Any, trials: Any) -> Any:
        """``E[y | t]``."""

    @abc.abstractmethod
    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """New responses."""

    def expected(self, m: Any, v: Any, y: Any, trials: Any, extra: Any) -> Terms:
        """``E[l]``, ``E[l']`` and ``E[l'']`` for ``t ~ N(m, v)``."""
        nodes, weights = normal_rule(_NODES)
        t = m[..., None] + np.sqrt(v)[..., None] * nodes
        y, trials = np.asarray(y)[..., None], np.asarray(trials)[..., None]
        value = self.log_density(t, y, trials, extra) @ weights
        first, second = self.slopes(t, y, trials, extra)
        return value, first @ weights, second @ weights

    def level_sums(self, t: Any, y: Any, trials: Any, extra: Any, starts: np.ndarray) -> Any:
        """Log densities summed over the rows of each level.

        ``t`` is (points, rows, nodes); it may be overwritten.
        """
        values = self.log_density(t, y[:, None], trials[:, None], extra)
        return np.add.reduceat(values, starts, axis=1)

    def units(self, y: np.ndarray, trials: np.ndarray) -> tuple[float, float]:
        """Unit and centre of the linear predictor, for default priors."""
        return 1.0, self.predictor_start(y, trials)

    def predictor_start(self, y: np.ndarray, trials: np.ndarray) -> float:
        """The linear predictor that fits the mean response."""
        return 0.0

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Starting values of the extras."""
        return []

    def check(self, y: np.ndarray, trials: np.ndarray) -> None:  # noqa: B027  reals are all right
        """Refuse responses that this likelihood cannot give."""


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Real responses with a residual sd."""

    link: str = "identity"
    name = "gaussian"
    links = ("identity",)
    extras: ClassVar[tuple[Extra, ...]] = (Extra("residual sd", 1.0),)

    def log_density(self, t: Any, y: Any, trials: Any, extra: Any) -> Any:
        """Normal."""
        sd = extra[..., 0]
        return -0.5 * ((y - t) / sd) ** 2 - np.log(sd) - _HALF_LOG_TWO_PI

    def slopes(self, t: Any, y: Any, trials: Any, extra: Any) -> tuple[Any, Any]:
        """Linear and constant."""
        precision = extra[..., 0] ** -2.0
        return (y - t) * precision, np.broadcast_to(-precision, np.shape(t))

    def mean(self, t: Any, trials: Any) -> Any:
        """The predictor itself."""
        return t

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Normal noise."""
        return t + extra[..., 0] * rng.standard_normal(np.shape(t))

    def units(self, y: np.ndarray, trials: np.ndarray) -> tuple[float, float]:
        """Sd and mean of the responses."""
        return float(np.std(y)) or 1.0, float(np.mean(y))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Half the spread of the responses."""
        return [0.5 * (float(np.std(y)) or 1.0)]


@dataclass(frozen=True)
class StudentT(Gaussian):
    """Real responses with heavy tails: scale and degrees of freedom. Not log-concave."""

    name = "student-t"
    extras = (Extra("residual sd", 1.0), Extra("degrees of freedom", 10.0, "gamma"))
    log_concave = False

    def log_density(self, t: Any, y: Any, trials: Any, extra: Any) -> Any:
        """Student t."""
        sd, df = extra[..., 0], extra[..., 1]
        constant = special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)
        constant = constant - 0.5 * np.log(df * math.pi) - np.log(sd)
        return constant - 0.5 * (df + 1) * np.log1p(((y - t) / sd) ** 2 / df)

    def slopes(self, t: Any, y: Any, trials: Any, extra: Any) -> tuple[Any, Any]:
        """The second is positive for outliers."""
        sd, df = extra[..., 0], extra[..., 1]
        residual, scale = y - t, df * sd**2
        bottom = scale + residual**2
        return (df + 1) * residual / bottom, -(df + 1) * (scale - residual**2) / bottom**2

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Noise with heavy tails."""
        return t + extra[..., 0] * rng.standard_t(np.broadcast_to(extra[..., 1], np.shape(t)))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Half the spread of the responses, and moderate tails."""
        return [0.5 * (float(np.std(y)) or 1.0), 8.0]


@dataclass(frozen=True)
class Binomial(Likelihood):
    """Successes among a number of trials."""

    link: str = "logit"
    name = "binomial"
    links = ("logit", "probit")

    def log_density(self, t: Any, y: Any, trials: Any, extra: Any) -> Any:
        """``y log p + (n - y) log(1 - p)``, with the binomial coefficient."""
        constant = self._constant(y, trials)
        if self.link == "probit":
            return y * special.log_ndtr(t) + (trials - y) * special.log_ndtr(-t) + constant
        return y * t - trials * softplus(t) + constant

    def _constant(self, y: Any, trials: Any) -> Any:
        return (
            special.gammaln(trials + 1.0)
            - special.gammaln(y + 1.0)
            - special.gammaln(trials - y + 1.0)
        )

    def slopes(self, t: Any, y: Any, trials: Any, extra: Any) -> tuple[Any, Any]:
        """Of the log density."""
        if self.link == "probit":
            up = np.exp(-0.5 * t**2 - _HALF_LOG_TWO_PI - special.log_ndtr(t))
            down = np.exp(-0.5 * t**2 - _HALF_LOG_TWO_PI - special.log_ndtr(-t))
            first = y * up - (trials - y) * down
            return first, -y * up * (t + up) - (trials - y) * down * (down - t)
        p = special.expit(t)
        return y - trials * p, -trials * p * (1 - p)

    def expected(self, m: Any, v: Any, y: Any, trials: Any, extra: Any) -> Terms:
        """Through ``E[log sigmoid(t)]`` for the logistic link."""
        if self.link == "probit":
            return super().expected(m, v, y, trials, extra)
        # log(1 - sigmoid(t)) = log sigmoid(-t), and log sigmoid(t) = t + log sigmoid(-t)
        e = log_sigmoid_expectations(-m, v, (0, 1, 2))
        value = y * m + trials * e[0] + self._constant(y, trials)
        return value, y - trials * e[1], trials * e[2]

    def mean(self, t: Any, trials: Any) -> Any:
        """Expected successes."""
        return trials * (special.ndtr(t) if self.link == "probit" else special.expit(t))

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Successes."""
        chance = self.mean(t, np.ones_like(trials))
        return rng.binomial(np.broadcast_to(trials, np.shape(t)).astype(int), chance)

    def predictor_start(self, y: np.ndarray, trials: np.ndarray) -> float:
        """Link of the overall share of successes."""
        share = (y.sum() + 0.5) / (trials.sum() + 1)
        return float(special.ndtri(share) if self.link == "probit" else special.logit(share))

    def check(self, y: np.ndarray, trials: np.ndarray) -> None:
        """Whole numbers with ``0 <= y <= trials``."""
        _require_counts(trials, "trials")
        _require_counts(y, "the successes")
        bad = np.flatnonzero(y > trials)
        if len(bad):
            at = bad[0]
            raise InputError(
                f"row {at} has {y[at]:g} successes in {trials[at]:g} trials; write "
                "proportion(successes, trials) on the left of the formula"
            )


@dataclass(frozen=True)
class Bernoulli(Binomial):
    """Binary responses."""

    name = "bernoulli"

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

    def _constant(self, y: Any, trials: Any) -> Any:
        return 0.0


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts with a log link."""

    link: str = "log"
    name = "poisson"
    links = ("log",)

    def log_density(self, t: Any, y: Any, trials: Any, extra: Any) -> Any:
        """``y t - exp(t) - log y!``."""
        with np.errstate(over="ignore"):
            return y * t - np.exp(t) - special.gammaln(y + 1.0)

    def slopes(self, t: Any, y: Any, trials: Any, extra: Any) -> tuple[Any, Any]:
        """``y - exp(t)`` and ``-exp(t)``."""
        with np.errstate(over="ignore"):
            rate = np.exp(t)
        return y - rate, -rate

    def expected(self, m: Any, v: Any, y: Any, trials: Any, extra: Any) -> Terms:
        """``E[exp(t)] = exp(m + v / 2)``."""
        with np.errstate(over="ignore"):
            rate = np.exp(m + 0.5 * v)
        return y * m - rate - special.gammaln(y + 1.0), y - rate, -rate

    def mean(self, t: Any, trials: Any) -> Any:
        """The rate."""
        with np.errstate(over="ignore"):
            return np.exp(t)

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Counts."""
        return rng.poisson(np.exp(np.minimum(t, 40.0)))

    def predictor_start(self, y: np.ndarray, trials: np.ndarray) -> float:
        """Logarithm of the mean count."""
        return math.log(float(y.mean()) + 0.1)

    def check(self, y: np.ndarray, trials: np.ndarray) -> None:
        """Whole numbers from zero on."""
        _require_counts(y, "the response")


@dataclass(frozen=True)
class NegativeBinomial(Poisson):
    """Counts with variance ``mu + dispersion^2 mu^2`` around the mean ``mu = exp(t)``."""

    name = "negative-binomial"
    extras = (Extra("dispersion", 1.0),)

    def log_density(self, t: Any, y: Any, trials: Any, extra: Any) -> Any:
        """Gamma-Poisson with size ``1 / dispersion^2``."""
        size = extra[..., 0] ** -2.0
        constant = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1.0)
        return constant + y * (t - np.log(size)) - (y + size) * softplus(t - np.log(size))

    def slopes(self, t: Any, y: Any, trials: Any, extra: Any) -> tuple[Any, Any]:
        """Of the log density."""
        size = extra[..., 0] ** -2.0
        p = special.expit(t - np.log(size))
        return y - (y + size) * p, -(y + size) * p * (1 - p)

    def expected(self, m: Any, v: Any, y: Any, trials: Any, extra: Any) -> Terms:
        """Through ``E[log sigmoid(t)]``."""
        size = extra[..., 0] ** -2.0
        constant = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1.0)
        shifted = m - np.log(size)
        e = log_sigmoid_expectations(-shifted, v, (0, 1, 2))
        total = y + size
        return constant + y * shifted + total * e[0], y - total * e[1], total * e[2]

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Counts."""
        size = np.broadcast_to(extra[..., 0] ** -2.0, np.shape(t))
        return rng.poisson(rng.gamma(size, np.exp(np.minimum(t, 40.0)) / size))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Moderate dispersion."""
        return [0.5]


def softplus(t: Any) -> Any:
    """``log(1 + exp(t))``."""
    return np.maximum(t, 0) + np.log1p(np.exp(-np.abs(t)))


def _require_counts(y: np.ndarray, what: str) -> None:
    bad = np.flatnonzero((y < 0) | (y != np.round(y)))
    if len(bad):
        raise InputError(
            f"{what} is {y[bad[0]]:g} in row {bad[0]}; counts are whole numbers from zero on"
        )


LIKELIHOODS = {
    kind.name: kind for kind in (Gaussian, Bernoulli, Binomial, Poisson, NegativeBinomial, StudentT)
}


def likelihood_of(name: Any, link: Any) -> Likelihood:
    """The likelihood of a name, with a link that it has."""
    if name not in LIKELIHOODS:
        raise InputError(f"likelihood is {name!r}; choose one of {', '.join(LIKELIHOODS)}")
    kind = LIKELIHOODS[name]
    if link is None:
        return kind()
    if link not in kind.links:
        raise InputError(f"link is {link!r}; {name} has {' and '.join(kind.links)}")
    return kind(link=link)
