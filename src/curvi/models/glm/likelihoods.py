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
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Rows = Float[Array, " rows"]


@dataclass(frozen=True)
class Bernoulli:
    """Binary labels in {-1, +1}: ``log sigmoid(y t)``, by Gauss-Hermite quadrature."""

    num_nodes: int = 20

    def expected(self, mean: Rows, variance: Rows, y: Rows, noise: Array) -> Rows:
        """``E[log p(y | t)]`` for each row."""
        del noise
        return _expected_log_sigmoid(self.num_nodes, 0, y * mean, variance)

    def second_order(
        self, mean: Rows, variance: Rows, y: Rows, noise: Array
    ) -> tuple[Rows, Rows, Rows]:
        """Second derivatives in (m, m), (m, v) and (v, v)."""
        del noise
        orders = [_expected_log_sigmoid(self.num_nodes, k, y * mean, variance) for k in (2, 3, 4)]
        return orders[0], 0.5 * y * orders[1], 0.25 * orders[2]


@dataclass(frozen=True)
class Poisson:
    """Counts with a log link: ``y t - exp(t) - log y!``, in closed form."""

    def expected(self, mean: Rows, variance: Rows, y: Rows, noise: Array) -> Rows:
        """``y m - exp(m + v / 2) - log y!``."""
        del noise
        return y * mean - jnp.exp(mean + 0.5 * variance) - jax.scipy.special.gammaln(y + 1)

    def second_order(
        self, mean: Rows, variance: Rows, y: Rows, noise: Array
    ) -> tuple[Rows, Rows, Rows]:
        """Second derivatives in (m, m), (m, v) and (v, v)."""
        del y, noise
        rate = jnp.exp(mean + 0.5 * variance)
        return -rate, -0.5 * rate, -0.25 * rate


@dataclass(frozen=True)
class Gaussian:
    """Real responses with noise variance ``noise``, in closed form."""

    def expected(self, mean: Rows, variance: Rows, y: Rows, noise: Array) -> Rows:
        """``-((y - m)^2 + v) / (2 noise) - log(2 pi noise) / 2``."""
        square = (y - mean) ** 2 + variance
        return -0.5 * square / noise - 0.5 * jnp.log(2 * math.pi * noise)

    def second_order(
        self, mean: Rows, variance: Rows, y: Rows, noise: Array
    ) -> tuple[Rows, Rows, Rows]:
        """Second derivatives in (m, m), (m, v) and (v, v)."""
        del variance, y
        zero = jnp.zeros_like(mean)
        return zero - 1 / noise, zero, zero


Likelihood = Bernoulli | Poisson | Gaussian


def gauss_hermite(num_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights for the expectation over a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return nodes, weights / weights.sum()


def _log_sigmoid_derivative(order: int, t: Array) -> Array:
    """The derivative of the given order of ``log sigmoid(t)``."""
    if order == 0:
        return jax.nn.log_sigmoid(t)
    q = jax.nn.sigmoid(-t)
    if order == 1:
        return q
    slope = -q * (1 - q)
    if order == 2:
        return slope
    if order == 3:
        return slope * (2 * q - 1)
    return slope * (1 + 6 * slope)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _expected_log_sigmoid(num_nodes: int, order: int, mean: Rows, variance: Rows) -> Rows:
    nodes, weights = gauss_hermite(num_nodes)
    sd = jnp.sqrt(jnp.maximum(variance, 0))
    total = jnp.zeros_like(mean)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        total = total + weight * _log_sigmoid_derivative(order, mean + sd * node)
    return total


@_expected_log_sigmoid.defjvp
def _(
    num_nodes: int, order: int, primals: tuple[Rows, Rows], tangents: tuple[Rows, Rows]
) -> tuple[Rows, Rows]:
    mean, variance = primals
    mean_dot, variance_dot = tangents
    value = _expected_log_sigmoid(num_nodes, order, mean, variance)
    first = _expected_log_sigmoid(num_nodes, order + 1, mean, variance)
    second = _expected_log_sigmoid(num_nodes, order + 2, mean, variance)
    return value, first * mean_dot + 0.5 * second * variance_dot
