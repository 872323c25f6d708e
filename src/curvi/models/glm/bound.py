r"""The exact evidence lower bound of a generalised linear model.

.. math::

    L = \sum_i w_i\, E\big[\ell_i(t_i)\big] - \mathrm{KL}(q \,\|\, p), \qquad
    t_i \sim N\big(x_i^\top \mu,\; \|R^\top x_i\|^2\big)

The prior is Gaussian with given precisions, or the analytically optimised diagonal prior of
Titsias and Lazaro-Gredilla (automatic relevance determination) that the paper uses:
:math:`\log|\det R| - \tfrac12 \sum_j \log(C_{jj} + \mu_j^2)` up to a constant that vanishes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi.core.errors import InputError
from curvi.core.trees import Metric, stable_sum
from curvi.curvature import DenseMap, LinearMap
from curvi.families import Diagonal, DiagonalPlusLowRank, Family, LowerTriangular, Params
from curvi.methods import Problem
from curvi.models.glm.design import DenseDesign, Design
from curvi.models.glm.likelihoods import Gaussian, Likelihood

_LARGEST_DENSE = 800  # columns up to which the Hessian is formed as three weighted Gram matrices


class Rows(NamedTuple):
    """The data of a fit: design, responses, weights, prior precisions, noise variance."""

    design: Design
    y: Float[Array, " rows"]
    weight: Float[Array, " rows"]
    precision: Float[Array, " columns"]
    noise: Float[Array, ""]


def predictor_variance(family: Family, scale: Any, design: Design) -> Float[Array, " rows"]:
    """``|R' x_i|^2`` for every row, by the structure of R."""
    if isinstance(family.scale, Diagonal):
        return design.squares(family.scale.variance(scale))
    if isinstance(family.scale, LowerTriangular):
        return jnp.sum(design.linear(family.scale.factor(scale)) ** 2, axis=1)
    if not isinstance(family.scale, DiagonalPlusLowRank):
        raise InputError(
            f"{family} has no closed form for linear predictors; use a Gaussian family"
        )
    diagonal = design.squares(jnp.exp(2 * scale["log_diagonal"]))
    return diagonal + jnp.sum(design.linear(scale["factor"]) ** 2, axis=1)


@dataclass(frozen=True)
class GLMProblem(Problem):
    """The negative bound as a deterministic problem of the engine.

    With the relevance prior the first block of the parameters is not the mean but
    ``alpha = mu / sqrt(C_jj)``: at fixed alpha the prior term does not depend on the scales of a
    diagonal R, and steps that switch a feature off are straight lines.
    """

    likelihood: Likelihood
    family: Family
    relevance: bool

    @property
    def fixed(self) -> bool:
        """There is no randomness at all."""
        return True

    def sample(self, resources: Any, step: Array, stream: int = 0, size: int | None = None) -> Any:
        """All rows, always."""
        del step, stream, size
        return resources

    def to_mean(self, params: Params) -> Params:
        """From the chart of the problem to (mean, scale)."""
        if not self.relevance:
            return params
        sd = jnp.sqrt(self.family.scale.variance(params.scale))
        return Params(params.mean * sd, params.scale)

    def from_mean(self, params: Params) -> Params:
        """From (mean, scale) to the chart of the problem."""
        if not self.relevance:
            return params
        sd = jnp.sqrt(self.family.scale.variance(params.scale))
        return Params(params.mean / sd, params.scale)

    def value(self, params: Params, sample: Rows) -> Float[Array, ""]:
        """The negative bound."""
        q = self.to_mean(params)
        return self.neg_log_likelihood(q, sample) + self.divergence(params, sample)

    def neg_log_likelihood(self, q: Params, sample: Rows) -> Float[Array, ""]:
        """``-sum_i w_i E[log p(y_i | t_i)]``."""
        mean = sample.design.linear(q.mean)
        variance = predictor_variance(self.family, q.scale, sample.design)
        rows = self.likelihood.expected(
            mean, variance, sample.y, self._noise(mean, variance, sample)
        )
        return -stable_sum(sample.weight * rows)

    def _noise(self, mean: Array, variance: Array, sample: Rows) -> Array:
        """Fixed noise variance, or (when it is not positive) its maximiser in the bound."""
        if not isinstance(self.likelihood, Gaussian):
            return sample.noise
        square = stable_sum(sample.weight * ((sample.y - mean) ** 2 + variance))
        best = square / stable_sum(sample.weight)
        return jnp.where(sample.noise > 0, sample.noise, best)

    def divergence(self, params: Params, sample: Rows) -> Float[Array, ""]:
        """KL(q || prior), the prior's own parameters optimised where it is a relevance prior."""
        variance = self.family.scale.variance(params.scale)
        log_det = self.family.scale.log_det(params.scale)
        if self.relevance:
            alpha = params.mean
            return 0.5 * jnp.sum(jnp.log1p(alpha**2) + jnp.log(variance)) - log_det
        moment = sample.precision * (variance + params.mean**2)
        return 0.5 * jnp.sum(moment - 1 - jnp.log(sample.precision)) - log_det

    def metric(self, params: Params) -> Metric:
        """The family's natural metric, pulled back through the chart."""
        natural = self.family.metric(self.to_mean(params))
        if not self.relevance:
            return natural
        _, push = jax.linearize(self.to_mean, params)
        _, pull = jax.linearize(self.from_mean, self.to_mean(params))
        push_back = jax.linear_transpose(push, params)
        pull_back = jax.linear_transpose(pull, params)
        return Metric(
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

    def linearise(self, params: Params, sample: Rows) -> tuple[Array, Any, LinearMap]:
        """Value, gradient and Hessian: dense where three Gram matrices are cheap."""
        if not self._is_dense(sample):
            return super().linearise(params, sample)
        value, gradient, matrix = dense_second_order(self, params, sample)
        return value, gradient, DenseMap(matrix, params)

    def _is_dense(self, sample: Rows) -> bool:
        return (
            isinstance(sample.design, DenseDesign)
            and isinstance(self.family.scale, Diagonal)
            and not isinstance(self.likelihood, Gaussian)  # its free noise couples all rows
            and sample.design.num_columns <= _LARGEST_DENSE
        )


def dense_second_order(
    problem: GLMProblem, params: Params, sample: Rows
) -> tuple[Array, Params, Float[Array, "size size"]]:
    r"""Value, gradient and dense Hessian of a bound with a diagonal R.

    In :math:`(\mu, s = \sigma^2)` the expected log likelihood has the Hessian blocks
    :math:`X' c_{mm} X`, :math:`X' c_{mv} X^2` and :math:`{X^2}' c_{vv} X^2` by equations (1)-(3):
    three weighted Gram matrices. The map from the parameters (a, rho) to (mu, s) acts column by
    column, with :math:`\mu = a` or, under the relevance prior, :math:`\mu = a\,e^{\rho}`.
    """
    design, a, rho = sample.design, params.mean, params.scale
    if not isinstance(design, DenseDesign):
        raise InputError("a dense Hessian needs a dense design")
    sd = jnp.exp(rho)
    mu, s = problem.to_mean(params).mean, sd**2
    mean, variance = design.linear(mu), design.squares(s)

    def energy(mean: Array, variance: Array) -> Array:
        rows = problem.likelihood.expected(mean, variance, sample.y, sample.noise)
        return -stable_sum(sample.weight * rows)

    fit, (slope_m, slope_v) = jax.value_and_grad(energy, argnums=(0, 1))(mean, variance)
    g_mu, g_s = design.matrix.T @ slope_m, (design.matrix * design.matrix).T @ slope_v
    mm, mv, vv = problem.likelihood.second_order(mean, variance, sample.y, sample.noise)
    first = design.gram(-sample.weight * mm, 1, 1)
    cross = design.gram(-sample.weight * mv, 1, 2)
    second = design.gram(-sample.weight * vv, 2, 2)

    by_a = sd if problem.relevance else jnp.ones_like(a)  # d mu / d a
    by_rho = mu if problem.relevance else jnp.zeros_like(a)  # d mu / d rho
    widen = 2 * s  # d s / d rho
    aa = by_a[:, None] * first * by_a[None, :]
    mixed = first * by_rho[None, :] + cross * widen[None, :]
    ar = by_a[:, None] * mixed
    corner = by_rho[:, None] * mixed + widen[:, None] * (
        cross.T * by_rho[None, :] + second * widen[None, :]
    )
    prior = jax.value_and_grad(lambda p: problem.divergence(p, sample))
    divergence, prior_gradient = prior(params)
    if problem.relevance:
        aa_diagonal = (1 - a**2) / (1 + a**2) ** 2
        ar_diagonal, rho_diagonal = g_mu * sd, g_mu * mu + 4 * g_s * s
    else:
        aa_diagonal, ar_diagonal = sample.precision, jnp.zeros_like(a)
        rho_diagonal = 4 * g_s * s + 2 * sample.precision * s
    aa, ar = aa + jnp.diag(aa_diagonal), ar + jnp.diag(ar_diagonal)
    corner = corner + jnp.diag(rho_diagonal)
    matrix = jnp.block([[aa, ar], [ar.T, corner]])
    gradient = Params(
        g_mu * by_a + prior_gradient.mean, g_mu * by_rho + g_s * widen + prior_gradient.scale
    )
    return fit + divergence, gradient, matrix
