r"""Multiclass: a softmax over the linear predictors of K independent Gaussian blocks.

.. math::

    E[\log p(y_i)] = m_{i y_i} - E\Big[\log \sum_k e^{t_{ik}}\Big], \qquad
    t_{ik} \sim N\big(x_i^\top \mu_k,\; \|R_k^\top x_i\|^2\big)

The K-dimensional expectation is averaged over draws in the space of logits, not of coefficients:
fixed and normalised for the exact methods, fresh for the paper's stochastic ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.trees import stable_sum
from curvi.families import Family, Params
from curvi.glm._bound import GLMProblem, Rows, predictor_variance
from curvi.glm._design import DenseDesign
from curvi.glm._likelihoods import Bernoulli
from curvi.linalg import FunctionMetric, Metric
from curvi.solvers import Problem

_FEWEST_DRAWS = 64
_DRAWS_AT_ONCE = 8


class SoftmaxRows(NamedTuple):
    """Rows whose ``y`` holds class numbers, and the draws of the logits' noise."""

    rows: Rows
    draws: Float[Array, "draws classes"]
    multiple: Float[Array, ""]


class SoftmaxResources(NamedTuple):
    """What stochastic steps are sampled from."""

    key: PRNGKeyArray
    rows: Rows


def logit_draws(num_classes: int, seed: int) -> np.ndarray:
    """Fixed standard-normal draws: scrambled Sobol, antithetic, with an exact second moment.

    Odd moments are exact by symmetry and the second by whitening, so that every polynomial of
    degree three in the logits is integrated exactly.
    """
    from scipy.special import ndtri
    from scipy.stats import qmc

    pairs = max(_FEWEST_DRAWS // 2, 2 ** int(np.ceil(np.log2(2 * num_classes))))
    points = qmc.Sobol(num_classes, scramble=True, rng=np.random.default_rng(seed)).random(pairs)
    half = ndtri(np.clip(points, 1e-12, 1 - 1e-12))
    factor = np.linalg.cholesky(half.T @ half / pairs)
    half = np.linalg.solve(factor, half.T).T
    return np.concatenate([half, -half])


@dataclass(frozen=True)
class SoftmaxProblem(Problem):
    """The negative bound over parameters with a leading axis of classes."""

    family: Family
    relevance: bool
    num_classes: int
    fresh_draws: int | None = None
    batch_size: int | None = None

    @property
    def _block(self) -> GLMProblem:
        """One class: its chart, prior and metric are those of a single predictor."""
        return GLMProblem(Bernoulli(), self.family, self.relevance)

    @property
    def fixed(self) -> bool:
        """Whether draws and rows are the same at every step."""
        return self.fresh_draws is None

    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """The fixed draws, or fresh draws and rows."""
        if self.fresh_draws is None:
            return resources
        key = jax.random.fold_in(jax.random.fold_in(resources.key, stream), step)
        rows, count = resources.rows, resources.rows.y.shape[0]
        batch = size or self.batch_size
        if batch is not None and isinstance(rows.design, DenseDesign):
            index = jax.random.randint(jax.random.fold_in(key, 1), (batch,), 0, count)
            design = DenseDesign(rows.design.matrix[index])
            rows = rows._replace(design=design, y=rows.y[index], weight=rows.weight[index])
        half = jax.random.normal(key, (self.fresh_draws, self.num_classes), rows.weight.dtype)
        multiple = jnp.asarray(count / rows.y.shape[0], rows.weight.dtype)
        return SoftmaxRows(rows, jnp.concatenate([half, -half]), multiple)

    def value(self, params: Params, sample: SoftmaxRows) -> Float[Array, ""]:
        """The negative bound."""
        q = self.to_mean(params)
        energy = sample.multiple * self.neg_log_likelihood(q, sample)
        return energy + jnp.sum(
            self._per_class(lambda p: self._block.divergence(p, sample.rows), params)
        )

    def neg_log_likelihood(self, q: Params, sample: SoftmaxRows) -> Float[Array, ""]:
        """Minus the expected log likelihood on the draws, a few at a time to save memory."""
        rows = sample.rows
        mean = rows.design.linear(q.mean.T)
        variance = self._per_class(
            lambda p: predictor_variance(self.family, p.scale_params, rows.design), q
        ).T
        tiny = float(jnp.finfo(mean.dtype).tiny) ** 0.5
        width = jnp.sqrt(jnp.maximum(variance, tiny))  # a row of zeros has no width

        @jax.checkpoint
        def spread(noise: Array) -> Array:
            return jax.nn.logsumexp(mean + width * noise[None, :], axis=1)

        averaged = jnp.mean(jax.lax.map(spread, sample.draws, batch_size=_DRAWS_AT_ONCE), axis=0)
        own = jnp.take_along_axis(mean, rows.y[:, None], axis=1)[:, 0]
        return stable_sum(rows.weight * (averaged - own))

    def to_mean(self, params: Params) -> Params:
        """From the chart of the problem to (mean, scale), class by class."""
        return self._per_class(self._block.to_mean, params)

    def from_mean(self, params: Params) -> Params:
        """Back to the chart."""
        return self._per_class(self._block.from_mean, params)

    def metric(self, params: Params) -> Metric:
        """The natural metric of each block."""
        return FunctionMetric(
            lambda t: jax.vmap(lambda p, u: self._block.metric(p).apply(u))(params, t),
            lambda t: jax.vmap(lambda p, u: self._block.metric(p).solve(u))(params, t),
        )

    def project(self, params: Params, tangent: Params) -> Params:
        """Remove directions along which q does not change."""
        return jax.vmap(self._block.project)(params, tangent)

    def to_raw(self, params: Params) -> Params:
        """Means and entries of R."""
        return self._per_class(self._block.to_raw, params)

    def from_raw(self, raw: Params) -> Params:
        """Back from entries of R."""
        return self._per_class(self._block.from_raw, raw)

    def _per_class(self, fn: Any, params: Params) -> Any:
        return jax.vmap(fn)(params)
