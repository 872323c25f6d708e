r"""Expected log likelihoods of rows with Gaussian linear predictors, and their derivatives.

For a linear predictor :math:`t \sim N(m, v)` equations (1)-(3) of the paper are one-dimensional:

.. math::

    \partial_m E[h(t)] = E[h'(t)], \qquad \partial_v E[h(t)] = \tfrac12 E[h''(t)] .

Applied to :math:`\ell` itself and to its derivatives they give the gradient (through
:math:`\ell', \ell''`) and the Hessian (through :math:`\ell''` to :math:`\ell''''`) of the
expected log likelihood. Closed forms and quadrature rules are written once, for NumPy and for
JAX. On the host one pass over the quadrature nodes gives all derivatives. In JAX the recursion is
a differentiation rule, so that ``jax.grad``, ``jax.hessian`` and linearised products are exact
and never differentiate the quadrature.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

PerRow = Float[Array, " rows"]

_ORDERS = range(5)  # derivatives of a log likelihood that enter a Hessian
_NARROW = 1.0  # variance up to which Gauss-Hermite is the better rule
# Variance up to which a number of Gauss-Hermite nodes is exact to 1e-9, in all derivatives that
# enter a Hessian; up to 5e-8 in the last band. Most rows of a large table need few.
_BANDS = ((0.1, 8), (0.3, 12), (_NARROW, 20))
_LOGISTIC_REACH = 26
_ROWS_AT_ONCE = 2048  # whose factors or quadrature nodes stay in the cache


def row_slices(count: int, size: int = _ROWS_AT_ONCE) -> Iterator[slice]:
    """Consecutive rows, a few at a time."""
    return (slice(start, start + size) for start in range(0, count, size))


class RowTerms(NamedTuple):
    """``E[log p(y | t)]`` per row, its slopes in (m, v), and its second derivatives.

    None stands for second derivatives that are zero in every row.
    """

    value: Any
    by_mean: Any
    by_variance: Any
    mean_mean: Any
    mean_variance: Any = None
    variance_variance: Any = None


class Likelihood(abc.ABC):
    """``p(y | t)`` of a row with linear predictor t."""

    @abc.abstractmethod
    def row_terms(self, mean: Any, variance: Any, y: Any) -> RowTerms:
        """Value, slopes and second derivatives of every row, with unit noise if it has noise."""

    def expected(self, mean: PerRow, variance: PerRow, y: PerRow, noise: Array) -> PerRow:
        """``E[log p(y | t)]`` for each row."""
        return self.row_terms(mean, variance, y).value

    def log_density(self, predictor: PerRow, y: PerRow, noise: Array) -> PerRow:
        """``log p(y | t)`` of every row at a given predictor."""
        return self.expected(predictor, jnp.zeros_like(predictor), y, noise)


@dataclass(frozen=True)
class Bernoulli(Likelihood):
    """Binary labels in {-1, +1}: ``log sigmoid(y t)``, by quadrature exact to 1e-8."""

    def row_terms(self, mean: Any, variance: Any, y: Any) -> RowTerms:
        """By quadrature on the host."""
        e = log_sigmoid_expectations(y * mean, variance)
        return RowTerms(e[0], y * e[1], 0.5 * e[2], e[2], 0.5 * y * e[3], 0.25 * e[4])

    def expected(self, mean: PerRow, variance: PerRow, y: PerRow, noise: Array) -> PerRow:
        """``E[log sigmoid(y t)]`` for each row, with a differentiation rule of its own."""
        return expected_log_sigmoid(0, y * mean, variance)

    def log_density(self, predictor: PerRow, y: PerRow, noise: Array) -> PerRow:
        """``log sigmoid(y t)``."""
        return jax.nn.log_sigmoid(y * predictor)


@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts with a log link: ``y t - exp(t) - log y!``, in closed form."""

    def row_terms(self, mean: Any, variance: Any, y: Any) -> RowTerms:
        """``y m - exp(m + v / 2) - log y!``."""
        xp, functions = _namespace(mean)
        rate = xp.exp(mean + 0.5 * variance)
        value = y * mean - rate - functions.gammaln(y + 1)
        return RowTerms(value, y - rate, -0.5 * rate, -rate, -0.5 * rate, -0.25 * rate)


@dataclass(frozen=True)
class Gaussian(Likelihood):
    """Real responses with noise variance ``noise``, in closed form."""

    def row_terms(self, mean: Any, variance: Any, y: Any) -> RowTerms:
        """``-((y - m)^2 + v) / 2``, without the constant."""
        one = _namespace(mean)[0].ones_like(mean)
        return RowTerms(-0.5 * ((y - mean) ** 2 + variance), y - mean, -0.5 * one, -one)

    def expected(self, mean: PerRow, variance: PerRow, y: PerRow, noise: Array) -> PerRow:
        """``-((y - m)^2 + v) / (2 noise) - log(2 pi noise) / 2``."""
        unit = self.row_terms(mean, variance, y).value
        return unit / noise - 0.5 * jnp.log(2 * math.pi * noise)


def expected_sigmoid(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """``E[sigmoid(t)]`` for Gaussian t: the probability that integrates over the posterior."""
    return log_sigmoid_expectations(-mean, variance, (1,))[0]


def log_sigmoid_expectations(
    mean: np.ndarray, variance: np.ndarray, orders: Sequence[int] = _ORDERS
) -> np.ndarray:
    """``E[h(t)]`` for h the derivatives of the given orders of ``log sigmoid``; one row each."""
    out = np.empty((len(orders), mean.shape[0]))
    for part in row_slices(mean.shape[0]):
        m, v = mean[part].astype(np.float64), variance[part].astype(np.float64)
        block = np.empty((len(orders), m.shape[0]))
        band = np.searchsorted([limit for limit, _ in _BANDS], v)
        for index in range(len(_BANDS) + 1):
            rows = np.flatnonzero(band == index)
            if rows.size == 0:
                continue
            if index < len(_BANDS):
                block[:, rows] = _narrow(orders, m[rows], v[rows], _BANDS[index][1])
            else:
                block[:, rows] = _wide(orders, m[rows], v[rows])
        out[:, part] = block
    return out


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def expected_log_sigmoid(order: int, mean: PerRow, variance: PerRow) -> PerRow:
    """``E[h(t)]`` with h the derivative of the given order (0 to 4) of ``log sigmoid``."""

    def narrow() -> PerRow:
        return _narrow((order,), mean, variance, _BANDS[-1][1])[0]

    def both() -> PerRow:
        return jnp.where(variance > _NARROW, _wide((order,), mean, variance)[0], narrow())

    return jax.lax.cond(jnp.any(variance > _NARROW), both, narrow)


@expected_log_sigmoid.defjvp
def _(
    order: int, primals: tuple[PerRow, PerRow], tangents: tuple[PerRow, PerRow]
) -> tuple[PerRow, PerRow]:
    value, first, second = (expected_log_sigmoid(order + k, *primals) for k in range(3))
    mean_dot, variance_dot = tangents
    return value, first * mean_dot + 0.5 * second * variance_dot


def _narrow(orders: Sequence[int], mean: Any, variance: Any, num_nodes: int) -> Any:
    """Gauss-Hermite: twenty nodes are exact to 1e-9 up to a variance of one."""
    xp, _ = _namespace(mean)
    nodes, weights = (xp.asarray(x, mean.dtype) for x in gauss_hermite(num_nodes))
    t = mean[None, :] + xp.sqrt(xp.maximum(variance, 0))[None, :] * nodes[:, None]
    decay = xp.exp(-xp.abs(t))
    q = xp.where(t > 0, decay, 1.0) / (1 + decay)  # sigmoid(-t)
    slope = -q * (1 - q)
    terms = (
        lambda: xp.minimum(t, 0) - xp.log1p(decay),
        lambda: q,
        lambda: slope,
        lambda: slope * (2 * q - 1),
        lambda: slope * (1 + 6 * slope),
    )
    return xp.stack([weights @ terms[order]() for order in orders])


def _wide(orders: Sequence[int], mean: Any, variance: Any) -> Any:
    r"""For a wide predictor, average over the logistic side instead.

    :math:`-\log\sigma(t) = E_u[(u - t)_+]` with a logistic u, and the Gaussian expectation of
    each hinge is known. The average over u is the trapezoidal rule with steps of a half, which
    converges exponentially from a variance of one on, and every node obeys the differentiation
    rule exactly.
    """
    xp, functions = _namespace(mean)
    u, weights = (xp.asarray(x, mean.dtype) for x in _logistic_nodes())
    # Compiled code selects rows afterwards: the variance of narrow ones is lifted to a safe value.
    sd = xp.sqrt(xp.maximum(variance, 0.25))[None, :]
    z = (u[:, None] - mean[None, :]) / sd
    bell = xp.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    below = functions.ndtr(z)
    terms = (
        lambda: -sd * (bell + z * below),
        lambda: below,
        lambda: -bell / sd,
        lambda: -bell * z / sd**2,
        lambda: -bell * (z**2 - 1) / sd**3,
    )
    return xp.stack([weights @ terms[order]() for order in orders])


@cache
def gauss_hermite(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the expectation over a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return nodes, weights / weights.sum()


@cache
def _logistic_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the trapezoidal rule over a standard logistic variable."""
    u = np.arange(-2 * _LOGISTIC_REACH, 2 * _LOGISTIC_REACH + 1) / 2
    density = np.exp(-np.abs(u)) / (1 + np.exp(-np.abs(u))) ** 2
    return u, density / density.sum()


def _namespace(array: Any) -> tuple[Any, Any]:
    """Array functions and special functions for NumPy or for JAX arrays."""
    if isinstance(array, np.ndarray):
        return np, special
    return jnp, jax.scipy.special
