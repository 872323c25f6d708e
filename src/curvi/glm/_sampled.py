"""The same bound on draws of the coefficients: what the paper's stochastic algorithms see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.trees import stable_sum
from curvi.families import Params
from curvi.glm._bound import GLMProblem, Rows
from curvi.glm._design import DenseDesign
from curvi.glm._likelihoods import Bernoulli, Gaussian, Poisson


class SampledResources(NamedTuple):
    """A key for draws and batches, and the rows."""

    key: PRNGKeyArray
    rows: Rows


class Batch(NamedTuple):
    """Draws of the noise, the rows of a step, and how many times they stand for all."""

    noise: Float[Array, "draws noise"]
    rows: Rows
    multiple: Float[Array, ""]


@dataclass(frozen=True)
class SampledGLMProblem(GLMProblem):
    """The bound with the expectation replaced by fresh draws, on all rows or on batches."""

    num_draws: int = 1
    batch_size: int | None = None

    @property
    def fixed(self) -> bool:
        """Fresh draws at every step."""
        return False

    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """Fresh draws, and fresh rows if there are batches."""
        key = jax.random.fold_in(jax.random.fold_in(resources.key, stream), step)
        rows = resources.rows
        count = rows.y.shape[0]
        batch = size or self.batch_size
        if batch is not None and isinstance(rows.design, DenseDesign):
            index = jax.random.randint(jax.random.fold_in(key, 1), (batch,), 0, count)
            rows = rows._replace(
                design=DenseDesign(rows.design.matrix[index]),
                y=rows.y[index],
                weight=rows.weight[index],
            )
        width = self.family.num_noise(rows.design.num_columns)
        noise = self.family.base.sample(key, (self.num_draws, width), rows.y.dtype)
        multiple = jnp.asarray(count / rows.y.shape[0], rows.y.dtype)
        return Batch(noise, rows, multiple)

    def value(self, params: Params, sample: Any) -> Float[Array, ""]:
        """The negative bound on the draws of a batch."""
        q = self.to_mean(params)
        rows = sample.rows
        draws = jax.vmap(lambda e: self.family.transform(q, e))(sample.noise)
        predictor = rows.design.linear(draws.T)

        noise = self.noise_variance(q, rows)

        def one(t: Array) -> Array:
            return stable_sum(rows.weight * log_likelihood(self.likelihood, t, rows.y, noise))

        total = jnp.mean(jax.vmap(one, in_axes=1)(predictor))
        return -sample.multiple * total + self.divergence(params, rows)


def log_likelihood(
    likelihood: Bernoulli | Poisson | Gaussian, predictor: Array, y: Array, noise: Array
) -> Array:
    """``log p(y | t)`` of every row at a given predictor."""
    if isinstance(likelihood, Bernoulli):
        return jax.nn.log_sigmoid(y * predictor)
    return likelihood.expected(predictor, jnp.zeros_like(predictor), y, noise)
