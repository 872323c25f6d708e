r"""Expected log likelihoods of rows and all their derivatives at once, in NumPy.

The same mathematics as :mod:`curvi.glm._likelihoods`, for the Newton steps on the host:
a table is fitted before a compiler would have finished. By equations (1)-(3) of the paper the
derivatives in the mean m and the variance v of a predictor are expectations of
:math:`\ell', \ell'', \ell''', \ell''''`, and one pass over the quadrature nodes gives them all.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import special

from curvi.glm._likelihoods import (
    HERMITE_NODES,
    NARROW,
    Bernoulli,
    Poisson,
    gauss_hermite,
    logistic_nodes,
)

_ORDERS = 5
_BLOCK = 2048  # rows at a time, so that a table of nodes stays in the cache
# Variance up to which a number of Gauss-Hermite nodes is exact to 1e-9, in all derivatives that
# enter a Hessian; up to 5e-8 in the last band. Most rows of a large table need few.
_BANDS = ((0.1, 8), (0.3, 12), (NARROW, HERMITE_NODES))


class RowTerms(NamedTuple):
    """``E[log p(y | t)]`` per row, its slopes in (m, v), and its second derivatives."""

    value: np.ndarray
    by_mean: np.ndarray
    by_variance: np.ndarray
    mean_mean: np.ndarray
    mean_variance: np.ndarray
    variance_variance: np.ndarray


def row_terms(
    likelihood: Bernoulli | Poisson, mean: np.ndarray, variance: np.ndarray, y: np.ndarray
) -> RowTerms:
    """Value, slopes and second derivatives of every row."""
    if isinstance(likelihood, Poisson):
        rate = np.exp(mean + 0.5 * variance)
        value = y * mean - rate - special.gammaln(y + 1)
        return RowTerms(value, y - rate, -0.5 * rate, -rate, -0.5 * rate, -0.25 * rate)
    e = log_sigmoid_expectations(y * mean, variance)
    return RowTerms(e[0], y * e[1], 0.5 * e[2], e[2], 0.5 * y * e[3], 0.25 * e[4])


def expected_sigmoid(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """``E[sigmoid(t)]`` for Gaussian t: the probability that integrates over the posterior."""
    flipped = log_sigmoid_expectations(-mean, variance, orders=2)
    return flipped[1]


def log_sigmoid_expectations(
    mean: np.ndarray, variance: np.ndarray, orders: int = _ORDERS
) -> np.ndarray:
    """``E[h(t)]`` for h the derivatives of order 0, 1, ... of ``log sigmoid``; one row each."""
    out = np.empty((orders, mean.shape[0]))
    for start in range(0, mean.shape[0], _BLOCK):
        part = slice(start, start + _BLOCK)
        m, v = mean[part].astype(np.float64), variance[part].astype(np.float64)
        block = np.empty((orders, m.shape[0]))
        band = np.searchsorted([limit for limit, _ in _BANDS], v)
        for index in range(len(_BANDS) + 1):
            rows = np.flatnonzero(band == index)
            if rows.size == 0:
                continue
            if index < len(_BANDS):
                block[:, rows] = _narrow(m[rows], v[rows], orders, _BANDS[index][1])
            else:
                block[:, rows] = _wide(m[rows], v[rows], orders)
        out[:, part] = block
    return out


def _narrow(mean: np.ndarray, variance: np.ndarray, orders: int, num_nodes: int) -> np.ndarray:
    """Gauss-Hermite."""
    nodes, weights = gauss_hermite(num_nodes)
    t = mean[None, :] + np.sqrt(np.maximum(variance, 0))[None, :] * nodes[:, None]
    decay = np.exp(-np.abs(t))
    base = weights @ (np.minimum(t, 0) - np.log1p(decay))
    if orders == 1:
        return base[None, :]
    q = np.where(t > 0, decay, 1.0) / (1 + decay)
    slope = -q * (1 - q)
    higher = (lambda: slope, lambda: slope * (2 * q - 1), lambda: slope * (1 + 6 * slope))
    rest = [weights @ term() for term in higher[: orders - 2]]
    return np.stack([base, weights @ q, *rest])


def _wide(mean: np.ndarray, variance: np.ndarray, orders: int) -> np.ndarray:
    """Average over the logistic side, whose hinges have known Gaussian expectations."""
    u, weights = logistic_nodes()
    sd = np.sqrt(variance)[None, :]
    z = (u[:, None] - mean[None, :]) / sd
    bell = np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi)
    below = special.ndtr(z)
    terms = (
        lambda: -sd * (bell + z * below),
        lambda: below,
        lambda: -bell / sd,
        lambda: -bell * z / sd**2,
        lambda: -bell * (z**2 - 1) / sd**3,
    )
    return np.stack([weights @ term() for term in terms[:orders]])
