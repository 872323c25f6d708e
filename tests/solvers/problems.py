"""Small problems whose answers are known, written so that many tests share one compilation.

Everything that differs between two problems of a kind (features, responses, walls) travels as
data, and the functions are at module level: the compiled loops are found again.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import curvi
from curvi.engine._problems import Resources, VariationalProblem
from curvi.objective import draw_noise

ROWS, WIDTH = 12, 3
PRIOR_SD = 100.0
LOGISTIC_ROWS = 300


def seed_of(key) -> int:
    return int(jax.random.bits(key)) >> 1


def generator(key) -> np.random.Generator:
    return np.random.default_rng(seed_of(key))


def linear_rows(position, rows):
    return -0.5 * (rows["y"] - rows["x"] @ position) ** 2 - 0.5 * np.log(2 * np.pi)


def wide_prior(position):
    scaled = position / PRIOR_SD
    return jnp.sum(-0.5 * scaled**2 - np.log(PRIOR_SD) - 0.5 * np.log(2 * np.pi))


def logistic_rows(position, rows):
    return jax.nn.log_sigmoid(rows["sign"] * (rows["x"] @ position))


def unit_prior(position):
    return jnp.sum(-0.5 * position**2 - 0.5 * np.log(2 * np.pi))


@dataclass(frozen=True)
class Linear:
    """Linear regression with unit noise: the exact posterior is a Gaussian."""

    x: np.ndarray
    y: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        return self.x.T @ self.x + np.eye(WIDTH) / PRIOR_SD**2

    @property
    def covariance(self) -> np.ndarray:
        return np.linalg.inv(self.precision)

    @property
    def mean(self) -> np.ndarray:
        return np.linalg.solve(self.precision, self.x.T @ self.y)

    @property
    def log_evidence(self) -> float:
        square = self.y @ self.y - self.mean @ self.precision @ self.mean
        determinants = np.linalg.slogdet(self.precision)[1] + 2 * WIDTH * np.log(PRIOR_SD)
        return -0.5 * (square + determinants + ROWS * np.log(2 * np.pi))

    def target(self, dtype, start=None) -> curvi.DataTarget:
        start = jnp.zeros(WIDTH, dtype) if start is None else jnp.asarray(start, dtype)
        data = {"x": jnp.asarray(self.x, dtype), "y": jnp.asarray(self.y, dtype)}
        return curvi.DataTarget(linear_rows, data, wide_prior, start)


def linear(rng: np.random.Generator, scales=(1.0, 1.0, 1.0)) -> Linear:
    x = rng.normal(size=(ROWS, WIDTH)) * np.asarray(scales)
    return Linear(x, x @ (np.array([1.0, -1.0, 0.5]) / np.asarray(scales)) + rng.normal(size=ROWS))


def gaussian(precision: np.ndarray, centre: np.ndarray) -> Linear:
    """Any Gaussian, as a regression: the rows are those of a root of its precision."""
    x = np.zeros((ROWS, WIDTH))
    x[:WIDTH] = np.linalg.cholesky(precision).T
    return Linear(x, x @ centre)


def logistic(rng: np.random.Generator, dtype, scales=(1.0, 1.0, 1.0), steepness=1.0):
    x = rng.normal(size=(LOGISTIC_ROWS, WIDTH))
    weights = steepness * np.array([1.0, -1.0, 0.5])
    sign = np.where(rng.logistic(size=LOGISTIC_ROWS) < x @ weights, 1.0, -1.0)
    data = {"x": jnp.asarray(x * np.asarray(scales), dtype), "sign": jnp.asarray(sign, dtype)}
    return curvi.DataTarget(logistic_rows, data, unit_prior, jnp.zeros(WIDTH, dtype))


def variational(target, family, plan, key, batch_size=None):
    """The problem, its resources and a start, as ``curvi.fit`` would make them."""
    if batch_size is not None:
        target = target.with_batches([batch_size])
    problem = VariationalProblem(target.density, family, plan, target.dimension, batch_size)
    noise = None
    if not plan.fresh:
        noise = draw_noise(key, plan, family, target.dimension, target.dtype)
    params = family.init(target.start, 0.3)
    return problem, Resources(key, target.rows, noise), params
