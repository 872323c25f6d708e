"""Ten targets for the comparison of optimisers, two to ten thousand dimensions, float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

import curvi
from benchmarks.common import data_folder, load_libsvm, with_intercept


class Case(NamedTuple):
    """A target and its family; None where the data are not there."""

    name: str
    target: Callable[[], curvi.Target | curvi.DataTarget | None]
    family: object


def gaussian(dimension: int, condition: float):
    """A rotated Gaussian whose covariance has the given condition number."""

    def make():
        rng = np.random.default_rng(dimension)
        rotation, _ = np.linalg.qr(rng.normal(size=(dimension, dimension)))
        precision = (rotation * np.geomspace(1, condition, dimension)) @ rotation.T
        matrix, centre = jnp.asarray(precision), jnp.asarray(rng.normal(size=dimension))
        return curvi.Target(
            lambda z: -0.5 * (z - centre) @ (matrix @ (z - centre)), jnp.zeros(dimension)
        )

    return make


def logistic(X: np.ndarray, y: np.ndarray, prior_sd: float) -> curvi.DataTarget:
    return curvi.DataTarget(
        lambda z, rows: jax.nn.log_sigmoid(rows @ z),
        jnp.asarray(X * y[:, None]),
        lambda z: -0.5 * jnp.sum((z / prior_sd) ** 2),
        jnp.zeros(X.shape[1]),
    )


def breast_cancer():
    from sklearn.datasets import load_breast_cancer

    X, y = load_breast_cancer(return_X_y=True)
    return logistic(with_intercept((X - X.mean(0)) / X.std(0)), 2.0 * y - 1, 1.0)


def a9a():
    folder = data_folder()
    if folder is None:
        return None
    X, y = load_libsvm(folder, "a9a", n_features=123)
    return logistic(with_intercept(X[:3000]), y[:3000], 1.0)


def wide():
    """Forty rows of 2,000 correlated columns, as in gene expression."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(40, 15)) @ rng.normal(size=(15, 2000)) / 15**0.5
    X = X + 0.5 * rng.normal(size=X.shape)
    return logistic(X, np.where(X[:, 0] + 0.3 * rng.normal(size=40) > 0, 1.0, -1.0), 0.1)


def poisson():
    """Counts with twenty columns on scales from 0.03 to 3."""
    rng = np.random.default_rng(6)
    X = with_intercept(rng.normal(size=(500, 19)) * np.geomspace(0.03, 3, 19))
    rate = np.exp(np.clip(X @ (0.2 * rng.normal(size=20)), -4, 4))
    counts = rng.poisson(rate).astype(float)
    return curvi.DataTarget(
        lambda z, data: data[1] * (data[0] @ z) - jnp.exp(data[0] @ z) - gammaln(data[1] + 1),
        (jnp.asarray(X), jnp.asarray(counts)),
        lambda z: -0.5 * jnp.sum(z**2) / 25,
        jnp.zeros(20),
    )


def hierarchical():
    """A hundred group means, centred on a mean and a log sd of their own: funnel shaped."""
    rng = np.random.default_rng(7)
    y = jnp.asarray(0.3 * rng.normal(size=100) + rng.normal(size=100))

    def log_density(z):
        mean, log_sd, groups = z["mean"], z["log_sd"], z["groups"]
        prior = -0.5 * (mean / 5) ** 2 - 0.5 * log_sd**2
        spread = -0.5 * jnp.sum(((groups - mean) * jnp.exp(-log_sd)) ** 2) - 100 * log_sd
        return prior + spread - 0.5 * jnp.sum((y - groups) ** 2)

    return curvi.Target(
        log_density, {"mean": jnp.zeros(()), "log_sd": jnp.zeros(()), "groups": jnp.zeros(100)}
    )


def student_t():
    rng = np.random.default_rng(8)
    X = rng.normal(size=(400, 50)) @ (np.eye(50) + 0.3 * rng.normal(size=(50, 50)))
    y = X @ rng.normal(size=50) + rng.standard_t(2, size=400)
    return curvi.DataTarget(
        lambda z, data: -2.0 * jnp.log1p((data[1] - data[0] @ z) ** 2 / 3.0),
        (jnp.asarray(X), jnp.asarray(y)),
        lambda z: -0.5 * jnp.sum(z**2) / 25,
        jnp.zeros(50),
    )


def cox(dimension: int):
    """Poisson counts on a line with a random-walk prior on the log rate."""

    def make():
        rng = np.random.default_rng(9)
        truth = np.cumsum(0.1 * rng.normal(size=dimension))
        counts = jnp.asarray(rng.poisson(np.exp(np.clip(truth, -3, 3))).astype(float))

        def log_density(z):
            walk = -0.5 * jnp.sum((z[1:] - z[:-1]) ** 2) / 0.01 - 0.5 * z[0] ** 2
            return jnp.sum(counts * z - jnp.exp(z)) + walk

        return curvi.Target(log_density, jnp.zeros(dimension))

    return make


CASES = (
    Case("Gaussian, condition 1e6", gaussian(2, 1e6), curvi.FullRank()),
    Case("Poisson regression", poisson, curvi.MeanField()),
    Case("breast cancer, logistic", breast_cancer, curvi.MeanField()),
    Case("Student t regression", student_t, curvi.MeanField()),
    Case("Gaussian, condition 1e6", gaussian(100, 1e6), curvi.MeanField()),
    Case("Gaussian, condition 1e4, full rank", gaussian(100, 1e4), curvi.FullRank()),
    Case("hierarchical, centred", hierarchical, curvi.MeanField()),
    Case("a9a, 3000 rows, logistic", a9a, curvi.MeanField()),
    Case("wide logistic, 40 rows", wide, curvi.MeanField()),
    Case("Cox process on a line", cox(10_000), curvi.MeanField()),
)
