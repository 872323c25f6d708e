r"""The evidence lower bound of a generalised linear model, exactly or on draws.

.. math::

    L = \sum_i w_i\, E\big[\ell_i(t_i)\big] - \mathrm{KL}(q \,\|\, p), \qquad
    t_i \sim N\big(x_i^\top \mu,\; \|R^\top x_i\|^2\big)

The prior is Gaussian with given precisions, or the analytically optimised diagonal prior of
Titsias and Lazaro-Gredilla (automatic relevance determination) that the paper uses:
:math:`\log|\det R| - \tfrac12 \sum_j \log(C_{jj} + \mu_j^2)` up to a constant that vanishes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.compilation import Cost, cost_of
from curvi._core.trees import stable_sum
from curvi.engine import Resources, pick_rows, row_keys, step_key
from curvi.families import Family, Params
from curvi.glm._design import AnyArray, DenseDesign, Design
from curvi.likelihoods import Likelihood
from curvi.linalg import FunctionMetric, Metric
from curvi.solvers import Problem


class Rows(NamedTuple):
    """The data of a fit: design, responses, weights, prior precisions, noise variance.

    A noise variance that is not positive is maximised in the bound, but not below ``-noise``.
    """

    design: Design
    y: Float[AnyArray, " rows"]
    weight: Float[AnyArray, " rows"]
    precision: Float[AnyArray, " columns"]
    noise: Float[AnyArray, ""]


def padded(rows: Rows) -> Rows:
    """Add rows of weight zero (and zeros to a sparse design) up to a length of which few exist."""
    count = rows.y.shape[0]
    extra = _padded_length(count) - count
    design: Any = rows.design
    if isinstance(design, DenseDesign):
        design = DenseDesign(np.pad(design.matrix, ((0, extra), (0, 0))))
    else:
        design = design.padded(count + extra, _padded_length(design.values.shape[0]))
    return rows._replace(
        design=design, y=np.pad(rows.y, (0, extra)), weight=np.pad(rows.weight, (0, extra))
    )


def _padded_length(count: int, *, smallest: int = 16, fine: int = 6) -> int:
    """A length at least as large, of which there are few: each new one is compiled anew.

    ``smallest``: no table is padded to fewer rows.
    ``fine``: above 1024 rows, padding stays below 1 / 2^5 of them.
    """
    exponent = max(count - 1, 1).bit_length()
    if count <= 2**10:
        return max(smallest, 2**exponent)
    step = 2 ** max(exponent - fine, 1)
    return -(-count // step) * step


def on_device(tree: Any) -> Any:
    """The same arrays as JAX arrays, of the same dtypes."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf, leaf.dtype), tree)


class Batch(NamedTuple):
    """The rows of a step, draws of its noise, and how many times the rows stand for all."""

    rows: Rows
    noise: Float[Array, "draws noise"]
    multiple: Float[Array, ""]


def sampled_rows(
    resources: Resources, step: Array, stream: int, batch_size: int | None
) -> tuple[PRNGKeyArray, Rows, Float[Array, ""]]:
    """The key of a step, its rows, and how many times these stand for all; sparse ones all do."""
    key, rows, count = step_key(resources, step, stream), resources.rows, resources.rows.y.shape[0]
    if batch_size is not None and isinstance(rows.design, DenseDesign):
        parts = (rows.design, rows.y, rows.weight)
        keys = row_keys(resources, step, stream)
        design, y, weight = pick_rows(keys, parts, batch_size)
        rows = rows._replace(design=design, y=y, weight=weight)
    return key, rows, jnp.asarray(count / rows.y.shape[0], rows.weight.dtype)


def predictor_variance(family: Family, scale: Any, design: Design) -> Float[Array, " rows"]:
    """``|R' x_i|^2`` for every row, by the structure of R."""
    diagonal, factor = family.scale.diagonal_and_factor(scale)
    if factor is None:
        return design.squares(diagonal**2)
    from_factor = jnp.sum(design.linear(factor) ** 2, axis=1)
    return from_factor if diagonal is None else design.squares(diagonal**2) + from_factor


class RegressionProblem(Problem):
    """A bound that is a deterministic function of its parameters, unless it is sampled."""

    def cost(self, params: Params, resources: Any) -> Cost | None:
        """What one Hessian-vector product costs."""
        if not self.fixed:
            return None
        return cost_of(self.value, params, resources).of_product()


@dataclass(frozen=True)
class GLMProblem(RegressionProblem):
    """The negative ELBO as a deterministic problem of the engine.

    With the relevance prior the first block of the parameters is not the mean but
    ``alpha = mu / sqrt(C_jj)``: at fixed alpha the prior term does not depend on the scales of a
    diagonal R, and steps that switch a feature off are straight lines. With ``intercept`` the prior
    variance of the last column is not below ``1 / precision``, and its parameter is the mean:
    centred data would switch it off.
    """

    likelihood: Likelihood
    family: Family
    relevance: bool
    intercept: bool = field(default=False, kw_only=True)

    @property
    def fixed(self) -> bool:
        """There is no randomness at all."""
        return True

    def sampled(self, num_draws: int, batch_size: int | None) -> Problem:
        """The same bound on fresh draws."""
        return SampledGLMProblem(
            self.likelihood,
            self.family,
            self.relevance,
            num_draws,
            batch_size,
            intercept=self.intercept,
        )

    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """All rows, always."""
        return resources

    def to_mean(self, params: Params) -> Params:
        """From the parameterisation of the problem to (mean, scale)."""
        if not self.relevance:
            return params
        return Params(params.mean * self._unit(params), params.scale_params)

    def from_mean(self, params: Params) -> Params:
        """From (mean, scale) to the parameterisation of the problem."""
        if not self.relevance:
            return params
        return Params(params.mean / self._unit(params), params.scale_params)

    def _unit(self, params: Params) -> Array:
        """Of the first block of the parameters: an sd, but one for an intercept."""
        sd = jnp.sqrt(self.family.scale.variance(params.scale_params))
        return sd.at[self._last].set(1.0)

    @property
    def _last(self) -> slice:
        """The intercept, or nothing."""
        return slice(-1, None) if self.intercept else slice(0, 0)

    @property
    def _relevant(self) -> slice:
        """The columns that can be switched off."""
        return slice(-1 if self.intercept else None)

    def value(self, params: Params, sample: Rows) -> Float[Array, ""]:
        """The negative ELBO."""
        mean, variance = self._predictor(self.to_mean(params), sample)
        noise = self._noise(mean, variance, sample)
        extra = jnp.sqrt(noise)[None]
        (rows,) = self.likelihood.expected(mean, variance, sample.y, extra=extra, orders=(0,))
        return -stable_sum(sample.weight * rows) + self.divergence(params, sample)

    def noise_variance(self, q: Params, sample: Rows) -> Float[Array, ""]:
        """The noise variance of a Gaussian likelihood; others do not use it."""
        if not self.likelihood.conjugate:
            return sample.noise
        return self._noise(*self._predictor(q, sample), sample)

    def _predictor(self, q: Params, sample: Rows) -> tuple[Array, Array]:
        """Mean and variance of every linear predictor."""
        design = sample.design
        return design.linear(q.mean), predictor_variance(self.family, q.scale_params, design)

    def _noise(self, mean: Array, variance: Array, sample: Rows) -> Array:
        if not self.likelihood.conjugate:
            return sample.noise
        square = stable_sum(sample.weight * ((sample.y - mean) ** 2 + variance))
        best = square / stable_sum(sample.weight)
        return jnp.where(sample.noise > 0, sample.noise, jnp.maximum(best, -sample.noise))

    def divergence(self, params: Params, sample: Rows) -> Float[Array, ""]:
        """KL(q || prior), the prior's own parameters optimised where it is a relevance prior."""
        variance = self.family.scale.variance(params.scale_params)
        log_det = self.family.scale.log_det(params.scale_params)
        if not self.relevance:
            return _normal_energy(sample.precision, variance + params.mean**2) - log_det
        on, rest = self._relevant, self._last
        moment = variance[rest] + params.mean[rest] ** 2
        energy = 0.5 * jnp.sum(jnp.log1p(params.mean[on] ** 2))
        chosen = jnp.maximum(1 / sample.precision[rest], moment)
        energy += _normal_energy(1 / chosen, moment)
        if self.family.scale.is_diagonal:  # what cancels must not be left to rounding
            return energy - 0.5 * jnp.sum(jnp.log(variance[rest]))
        return energy + 0.5 * jnp.sum(jnp.log(variance[on])) - log_det

    def metric(self, params: Params) -> Metric:
        """The family's natural metric, pulled back to the parameterisation of the problem."""
        natural = self.family.metric(self.to_mean(params))
        if not self.relevance:
            return natural
        _, push = jax.linearize(self.to_mean, params)
        _, pull = jax.linearize(self.from_mean, self.to_mean(params))
        push_back = jax.linear_transpose(push, params)
        pull_back = jax.linear_transpose(pull, params)
        return FunctionMetric(
            lambda t: push_back(natural.apply(push(t)))[0],
            lambda t: pull(natural.solve(pull_back(t)[0])),
        )

    def project(self, params: Params, tangent: Params) -> Params:
        """Remove directions along which q does not change."""
        return self.family.project(params, tangent)

    def to_raw(self, params: Params) -> Params:
        """Mean and entries of R."""
        return self.family.to_raw(self.to_mean(params))

    def from_raw(self, raw: Params) -> Params:
        """Back from entries of R."""
        return self.from_mean(self.family.from_raw(raw))


def _normal_energy(precision: Array, moment: Array) -> Float[Array, ""]:
    """Minus the expected log density of a normal prior, up to the constant of an entropy."""
    return 0.5 * jnp.sum(precision * moment - 1 - jnp.log(precision))


@dataclass(frozen=True)
class SampledGLMProblem(GLMProblem):
    """The bound on fresh draws of the coefficients, which the paper's stochastic methods see.

    A step uses all rows, or a batch of them. Rows share their draws, or every row has draws of
    its own (``per_row``, line 3 of Algorithm 1).
    """

    num_draws: int = 1
    batch_size: int | None = None
    per_row: bool = False

    @property
    def fixed(self) -> bool:
        """Fresh draws at every step."""
        return False

    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """Fresh draws, and fresh rows if there are batches."""
        key, rows, multiple = sampled_rows(resources, step, stream, size or self.batch_size)
        shared = (self.family.num_noise(rows.design.num_columns),)
        shape = rows.design.noise_shape if self.per_row else shared
        noise = self.family.base.sample(key, (self.num_draws, *shape), rows.y.dtype)
        return Batch(rows, noise, multiple)

    def value(self, params: Params, sample: Any) -> Float[Array, ""]:
        """The negative ELBO on the draws of a batch."""
        return self._energy(params, sample) + self.divergence(params, sample.rows)

    def surrogate(self, params: Params, sample: Any) -> Float[Array, ""]:
        r"""The same with the prior variances of the relevance bound held at their optimum.

        .. math:: \tfrac12 \sum_j \Big(\frac{C_{jj} + \mu_j^2}{\lambda_j} - 1 + \log\lambda_j\Big)
            - \log|\det R|, \qquad \lambda_j = C_{jj} + \mu_j^2 \text{ fixed}
        """
        if not self.relevance:
            return super().surrogate(params, sample)
        q = self.to_mean(params)
        moment = self.family.scale.variance(q.scale_params) + q.mean**2
        precision = 1 / jax.lax.stop_gradient(moment)
        precision = precision.at[self._last].min(sample.rows.precision[self._last])
        prior = _normal_energy(precision, moment) - self.family.scale.log_det(q.scale_params)
        return self._energy(params, sample) + prior

    def squared_gradients(
        self, back: Callable[[Any], Params], point: Any, sample: Any, *, rows_at_once: int = 1024
    ) -> Any:
        """Entrywise squares of the gradients of single rows, summed; the prior is no row.

        ``rows_at_once``: whose gradients are held together.
        """
        rows = sample.rows
        shared_noise = self.likelihood.conjugate  # which is not a sum over rows
        if shared_noise or not isinstance(rows.design, DenseDesign):
            return super().squared_gradients(back, point, sample)
        matrix, noise = rows.design.matrix, sample.noise

        def squared(row: tuple[Array, ...]) -> Any:
            x, y, weight, *own = row
            one = rows._replace(design=DenseDesign(x[None]), y=y[None], weight=weight[None])
            seen = sample._replace(rows=one, noise=own[0][:, None] if own else noise)
            gradient = jax.grad(lambda p: self._energy(back(p), seen))(point)
            return jax.tree.map(jnp.square, gradient)

        own = (jnp.moveaxis(noise, 1, 0),) if self.per_row else ()
        parts = (matrix, rows.y, rows.weight, *own)
        squares = jax.lax.map(squared, parts, batch_size=rows_at_once)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), squares)

    def _energy(self, params: Params, sample: Any) -> Float[Array, ""]:
        """Minus the log likelihood on the draws, scaled to all rows."""
        q, rows = self.to_mean(params), sample.rows
        extra = jnp.sqrt(self.noise_variance(q, rows))[None]

        def of_draw(t: Array) -> Array:
            return stable_sum(rows.weight * self.likelihood.log_density(t, rows.y, extra=extra))

        total = jnp.mean(jax.vmap(of_draw)(self._predictors(q, sample)))
        return -sample.multiple * total

    def _predictors(self, q: Params, sample: Any) -> Float[Array, "draws rows"]:
        design = sample.rows.design
        if not self.per_row:
            draws = jax.vmap(lambda e: self.family.transform(q, e))(sample.noise)
            return design.linear(draws.T).T
        sd, factor = self.family.scale.diagonal_and_factor(q.scale_params)
        assert factor is None  # noqa: S101  draws per row are for diagonal covariances
        mean = design.linear(q.mean)
        return jax.vmap(lambda e: mean + design.noisy(sd, e))(sample.noise)
