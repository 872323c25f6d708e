r"""Expected log likelihoods of one row, exactly, as functions of its Gaussian linear predictor.

For a linear predictor :math:`t \sim N(m, v)` equations (1)-(3) of the paper are one-dimensional:

.. math::

    \partial_m E[h(t)] = E[h'(t)], \qquad \partial_v E[h(t)] = \tfrac12 E[h''(t)] .

Applied to :math:`\ell` itself and to its derivatives they give the gradient (through
:math:`\ell', \ell''`) and the Hessian (through :math:`\ell''` to :math:`\ell''''`) of the
expected log likelihood. The recursion is written once, as a differentiation rule, so that
``jax.grad``, ``jax.hessian`` and linearised products are exact and never differentiate the
quadrature.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Rows = Float[Array, " rows"]

HERMITE_NODES = 20
_LOGISTIC_REACH = 26
NARROW = 1.0  # variance up to which Gauss-Hermite is the better rule


@dataclass(frozen=True)
class Bernoulli:
    """Binary labels in {-1, +1}: ``log sigmoid(y t)``, by quadrature exact to 1e-8."""

    def expected(self, mean: Rows, variance: Rows, y: Rows, noise: Array) -> Rows:
        """``E[log p(y | t)]`` for each row."""
        del noise
        return expected_log_sigmoid(0, y * mean, variance)


@dataclass(frozen=True)
class Poisson:
    """Counts with a log link: ``y t - exp(t) - log y!``, in closed form."""

    def expected(self, mean: Rows, variance: Rows, y: Rows, noise: Array) -> Rows:
        """``y m - exp(m + v / 2) - log y!``."""
        del noise
        return y * mean - jnp.exp(mean + 0.5 * variance) - jax.scipy.special.gammaln(y + 1)


@dataclass(frozen=True)
class Gaussian:
    """Real responses with noise variance ``noise``, in closed form."""

    def expected(self, mean: Rows, variance: Rows, y: Rows, noise: Array) -> Rows:
        """``-((y - m)^2 + v) / (2 noise) - log(2 pi noise) / 2``."""
        square = (y - mean) ** 2 + variance
        return -0.5 * square / noise - 0.5 * jnp.log(2 * math.pi * noise)


Likelihood = Bernoulli | Poisson | Gaussian


@cache
def gauss_hermite(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the expectation over a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return nodes, weights / weights.sum()


@cache
def logistic_nodes() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the trapezoidal rule over a standard logistic variable."""
    u = np.arange(-2 * _LOGISTIC_REACH, 2 * _LOGISTIC_REACH + 1) / 2
    density = np.exp(-np.abs(u)) / (1 + np.exp(-np.abs(u))) ** 2
    return u, density / density.sum()


def _log_sigmoid_derivative(order: int, t: Array) -> Array:
    """The derivative of the given order of ``log sigmoid(t)``."""
    if order == 0:
        return jax.nn.log_sigmoid(t)
    q = jax.nn.sigmoid(-t)
    slope = -q * (1 - q)
    return (q, slope, slope * (2 * q - 1), slope * (1 + 6 * slope))[order - 1]


def _narrow(order: int, mean: Rows, variance: Rows) -> Rows:
    """Gauss-Hermite: twenty nodes are exact to 1e-9 up to a variance of one."""
    nodes, weights = (jnp.asarray(x, mean.dtype) for x in gauss_hermite(HERMITE_NODES))
    t = mean[None, :] + jnp.sqrt(jnp.maximum(variance, 0))[None, :] * nodes[:, None]
    return weights @ _log_sigmoid_derivative(order, t)


def _wide(order: int, mean: Rows, variance: Rows) -> Rows:
    r"""For a wide predictor, average over the logistic side instead.

    :math:`-\log\sigma(t) = E_u[(u - t)_+]` with a logistic u, and the Gaussian expectation of
    each hinge is known. The average over u is the trapezoidal rule with steps of a half, which
    converges exponentially from a variance of one on, and every node obeys the differentiation
    rule exactly.
    """
    u, density = logistic_nodes()
    weights = jnp.asarray(density, mean.dtype)
    # Rows that are narrow take the other branch; their variance is lifted out of harm's way.
    sd = jnp.sqrt(jnp.maximum(variance, 0.25))[None, :]
    z = (jnp.asarray(u, mean.dtype)[:, None] - mean[None, :]) / sd
    if order == 1:
        return weights @ jax.scipy.special.ndtr(z)
    bell = jnp.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    if order == 0:
        return -weights @ (sd * (bell + z * jax.scipy.special.ndtr(z)))
    polynomial = (1.0, z, z**2 - 1)[order - 2]
    return -weights @ (bell * polynomial / sd ** (order - 1))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def expected_log_sigmoid(order: int, mean: Rows, variance: Rows) -> Rows:
    """``E[h(t)]`` with h the derivative of the given order (0 to 4) of ``log sigmoid``."""

    def both() -> Rows:
        wide = variance > NARROW
        return jnp.where(wide, _wide(order, mean, variance), _narrow(order, mean, variance))

    return jax.lax.cond(jnp.any(variance > NARROW), both, lambda: _narrow(order, mean, variance))


@expected_log_sigmoid.defjvp
def _(order: int, primals: tuple[Rows, Rows], tangents: tuple[Rows, Rows]) -> tuple[Rows, Rows]:
    mean, variance = primals
    mean_dot, variance_dot = tangents
    value = expected_log_sigmoid(order, mean, variance)
    first = expected_log_sigmoid(order + 1, mean, variance)
    second = expected_log_sigmoid(order + 2, mean, variance)
    return value, first * mean_dot + 0.5 * second * variance_dot
