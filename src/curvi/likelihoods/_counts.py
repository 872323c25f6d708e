"""Likelihoods of counts and of binary responses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from curvi.likelihoods._base import NOTHING, ORDERS, ClosedForm, Extra, Likelihood, chosen
from curvi.likelihoods._links import LINKS
from curvi.likelihoods._logistic import (
    exponential,
    log_sigmoid_expectations,
    namespace,
    softplus,
)

_LARGEST_EXPONENT = 80.0  # eight factors of 1 + exp(t) stay finite
_LARGEST_RATE = 40.0  # log rate up to which counts are drawn


def logistic_log_density(t: Any, y: Any) -> Any:
    """``y log sigmoid(t) + (1 - y) log sigmoid(-t)``, for y in [0, 1]."""
    return y * t - softplus(t)


@dataclass(frozen=True)
class Binomial(ClosedForm):
    """Successes among a number of trials."""

    link: str = "logit"
    name = "binomial"
    links = tuple(LINKS)
    takes_trials: ClassVar[bool] = True
    whole_numbers = True
    label = "expected count"

    def _width(self, extra: Any) -> Any:
        return LINKS[self.link].width

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """``y log p + (n - y) log(1 - p)``, with the binomial coefficient."""
        if self.link == "logit":
            return y * t - trials * softplus(t) + _coefficient(y, trials)
        link = LINKS[self.link]
        chances = y * link.log_chance(t) + (trials - y) * link.log_rest(t)
        return chances + _coefficient(y, trials)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        if self.link == "logit":
            p = namespace(t)[1].expit(t)
            return y - trials * p, -trials * p * (1 - p)
        link = LINKS[self.link]
        up, down = link.slopes(t), link.rest_slopes(t)
        first, second = (y * a + (trials - y) * b for a, b in zip(up, down, strict=True))
        return first, second

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Through ``E[log sigmoid(t)]`` for the logistic link."""
        if self.link != "logit":
            return super().expected(m, v, y, trials, extra, orders)
        return _logit_terms(m, v, y, trials, _coefficient(y, trials), orders)

    def mean(self, t: Any, trials: Any = 1.0) -> Any:
        """Expected successes."""
        return trials * LINKS[self.link].chance(t)

    def expected_mean(self, m: Any, v: Any, trials: Any = 1.0) -> Any:
        """In closed form, or by the expectations of the logistic link."""
        if self.link == "logit":
            return trials * log_sigmoid_expectations(-m, v, (1,))[0]
        if self.link == "probit":
            return trials * special.ndtr(m / np.sqrt(1 + v))
        return super().expected_mean(m, v, trials)

    def moments(self, m: Any, v: Any, trials: Any = 1.0) -> tuple[Any, Any]:
        """Of sigmoids, whose squares are what their slopes leave: ``s^2 = s - s'``."""
        if self.link == "logit":
            first, slope = log_sigmoid_expectations(-m, v, (1, 2))
            second = first + slope
        elif self.link == "probit":
            at = m / np.sqrt(1 + v)
            first = special.ndtr(at)
            # the probability that two normal variables with correlation v / (1 + v) are below
            second = first - 2 * special.owens_t(at, 1 / np.sqrt(1 + 2 * v))
        else:
            return super().moments(m, v, trials)
        return trials * first, trials**2 * second

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Successes."""
        chance = self.mean(t, np.ones_like(trials))
        return rng.binomial(np.broadcast_to(trials, np.shape(t)).astype(int), chance)

    def predictor_start(self, y: np.ndarray, trials: Any = 1.0) -> float:
        """Link of the overall share of successes."""
        share = (y.sum() + 0.5) / (np.broadcast_to(trials, y.shape).sum() + 1)
        return float(LINKS[self.link].predictor(share))

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
        link = LINKS[self.link]
        if link.symmetric:
            return link.log_chance(_sign(y) * t)
        return namespace(t)[0].where(y > 0, link.log_chance(t), link.log_rest(t))

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        link, sign = LINKS[self.link], _sign(y)
        if link.symmetric:
            first, second = link.slopes(sign * t)
            return sign * first, second
        up, down = link.slopes(t), link.rest_slopes(t)
        first, second = (namespace(t)[0].where(y > 0, a, b) for a, b in zip(up, down, strict=True))
        return first, second

    def expected(
        self, m: Any, v: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING,
        orders: Sequence[int] = ORDERS,
    ) -> tuple[Any, ...]:  # fmt: skip
        """Through ``E[log sigmoid(t)]`` for the logistic link."""
        if self.link != "logit":
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

    def sites(
        self, y: np.ndarray, offset: Any = 0.0, trials: Any = 1.0, extra: Any = NOTHING
    ) -> tuple[np.ndarray, np.ndarray]:
        """The slope and the largest curvature at the offset of even odds."""
        if self.link != "logit":
            return super().sites(y, offset, trials, extra)
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

    def sites(
        self, y: np.ndarray, offset: Any = 0.0, trials: Any = 1.0, extra: Any = NOTHING
    ) -> tuple[np.ndarray, np.ndarray]:
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
    extras: ClassVar[tuple[Extra, ...]] = (Extra("dispersion", 1.0),)

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


@dataclass(frozen=True)
class LinearNegativeBinomial(Poisson):
    """Counts with variance ``(1 + dispersion) mu`` around the mean ``mu = exp(t)``."""

    name = "negative-binomial-1"
    extras = (Extra("dispersion", 1.0),)
    expected = Likelihood.expected

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """Gamma-Poisson with size ``mu / dispersion``."""
        dispersion = extra[..., 0]
        size = exponential(t) / dispersion
        constant = special.gammaln(y + size) - special.gammaln(size) - special.gammaln(y + 1.0)
        return constant - y * np.log1p(1 / dispersion) - size * np.log1p(dispersion)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density."""
        dispersion = extra[..., 0]
        size = exponential(t) / dispersion
        by_size = special.digamma(y + size) - special.digamma(size) - np.log1p(dispersion)
        curved = special.polygamma(1, y + size) - special.polygamma(1, size)
        return size * by_size, size * by_size + size**2 * curved

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Counts."""
        dispersion = np.broadcast_to(extra[..., 0], np.shape(t))
        size = np.exp(np.minimum(t, _LARGEST_RATE)) / dispersion
        return rng.poisson(rng.gamma(size) * dispersion)

    def extra_start(self, y: np.ndarray) -> list[float]:
        """Moderate dispersion."""
        return [0.5]


_ODDS = Extra("odds of an extra zero", 1.0)


@dataclass(frozen=True)
class ZeroInflatedPoisson(Poisson):
    """Counts that are zero for another reason, too, with the same odds in every row."""

    name = "zero-inflated-poisson"
    extras: ClassVar[tuple[Extra, ...]] = (_ODDS,)
    expected = Likelihood.expected

    def _width(self, extra: Any) -> Any:
        """A little less than where the chance of a zero vanishes, ``exp(-exp(t)) = -odds``."""
        return 0.9 * np.arctan2(math.pi, -np.log(extra[..., -1]))

    def log_density(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> Any:
        """A mixture of zero and a count."""
        odds = extra[..., -1]
        plain = super().log_density(t, y, trials, extra)
        return np.where(y > 0, plain, np.logaddexp(np.log(odds), plain)) - np.log1p(odds)

    def slopes(self, t: Any, y: Any, trials: Any = 1.0, extra: Any = NOTHING) -> tuple[Any, Any]:
        """Of the log density; the second is positive for some zeros."""
        first, second = super().slopes(t, y, trials, extra)
        plain = super().log_density(t, y, trials, extra)
        count = np.where(y > 0, 1.0, special.expit(plain - np.log(extra[..., -1])))
        return count * first, count * (second + (1 - count) * first**2)

    def mean_shift(self, extra: Any) -> Any:
        """Logarithm of the share of counts."""
        return -np.log1p(extra[..., -1])

    def sample(self, t: Any, trials: Any, extra: Any, rng: np.random.Generator) -> Any:
        """Counts, and zeros among them."""
        counts = super().sample(t, trials, extra, rng)
        return counts * (rng.random(np.shape(counts)) > special.expit(np.log(extra[..., -1])))

    def extra_start(self, y: np.ndarray) -> list[float]:
        """A fifth of the rows."""
        return [*super().extra_start(y), 0.25]


@dataclass(frozen=True)
class ZeroInflatedNegativeBinomial(ZeroInflatedPoisson, NegativeBinomial):
    """Overdispersed counts that are zero for another reason, too."""

    name = "zero-inflated-negative-binomial"
    extras = (*NegativeBinomial.extras, _ODDS)

    def _width(self, extra: Any) -> Any:
        """Where ``(1 + exp(t) / size)^-size = -odds``."""
        power = extra[..., 0] ** 2
        place = extra[..., -1] ** -power * np.exp(1j * math.pi * np.minimum(power, 1.0)) - 1
        return np.maximum(np.abs(np.angle(place)), np.finfo(float).eps)


def _sign(y: Any) -> Any:
    return namespace(y)[0].sign(y - 0.5)


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
