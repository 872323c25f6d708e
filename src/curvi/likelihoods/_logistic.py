r"""Expectations of ``log sigmoid`` and of its derivatives under a Gaussian, for any variance.

For :math:`t \sim N(m, v)` equations (1)-(3) of the paper are one-dimensional:

.. math::

    \partial_m E[h(t)] = E[h'(t)], \qquad \partial_v E[h(t)] = \tfrac12 E[h''(t)] .

On the host one pass over the quadrature nodes gives all derivatives. In JAX the recursion is a
differentiation rule, so that ``jax.grad``, ``jax.hessian`` and linearised products are exact and
never differentiate the quadrature. The rules are written once, for NumPy and for JAX.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy import special

from curvi._core.memory import row_slices
from curvi._core.quadrature import gauss_hermite

PerRow = Float[Array, " rows"]

_ORDERS = range(5)  # derivatives of a log likelihood that enter a Hessian
_NARROW = 1.0  # variance up to which Gauss-Hermite is the better rule
# Variance up to which a number of Gauss-Hermite nodes is exact to 1e-9, in all derivatives that
# enter a Hessian; up to 5e-8 in the last band. Most rows of a large table need few.
_BANDS = ((0.1, 8), (0.3, 12), (_NARROW, 20))


def namespace(array: Any) -> tuple[Any, Any]:
    """Array functions and special functions for JAX arrays, or for NumPy."""
    if isinstance(array, jax.Array):
        return jnp, jax.scipy.special
    return np, special


def exponential(t: Any) -> Any:
    """``exp(t)``, infinite without a warning."""
    with np.errstate(over="ignore"):
        return namespace(t)[0].exp(t)


def softplus(t: Any) -> Any:
    """``log(1 + exp(t))``."""
    if isinstance(t, jax.Array):
        return jax.nn.softplus(t)  # whose derivatives are right at zero too
    return np.maximum(t, 0) + np.log1p(np.exp(-np.abs(t)))


def log_sigmoid_expectations(mean: Any, variance: Any, orders: Sequence[int] = _ORDERS) -> Any:
    """``E[h(t)]`` for h the derivatives of the given orders of ``log sigmoid``, one row each."""
    if isinstance(mean, jax.Array):
        return [expected_log_sigmoid(order, mean, variance) for order in orders]
    mean, variance = np.broadcast_arrays(mean, variance)
    m, v = mean.ravel(), variance.ravel()
    out = np.empty((len(orders), m.size))
    for part in row_slices(m.size):
        out[:, part] = _on_host(orders, m[part].astype(np.float64), v[part].astype(np.float64))
    return out.reshape(len(orders), *mean.shape)


def _on_host(orders: Sequence[int], m: np.ndarray, v: np.ndarray) -> np.ndarray:
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
    return block


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
    xp, _ = namespace(mean)
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
    xp, functions = namespace(mean)
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
def _logistic_nodes(*, reach: int = 26) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of the trapezoidal rule over a standard logistic variable.

    ``reach``: distance of the last node.
    """
    u = np.arange(-2 * reach, 2 * reach + 1) / 2
    density = np.exp(-np.abs(u)) / (1 + np.exp(-np.abs(u))) ** 2
    return u, density / density.sum()
