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

from curvi._core.trees import stable_sum
from curvi.families import Family, Params
from curvi.glm._design import AnyArray, Design
from curvi.glm._likelihoods import Gaussian, Likelihood
from curvi.linalg import FunctionMetric, Metric
from curvi.solvers import Problem


class Rows(NamedTuple):
    """The data of a fit: design, responses, weights, prior precisions, noise variance."""

    design: Design
    y: Float[AnyArray, " rows"]
    weight: Float[AnyArray, " rows"]
    precision: Float[AnyArray, " columns"]
    noise: Float[AnyArray, ""]


def predictor_variance(family: Family, scale: Any, design: Design) -> Float[Array, " rows"]:
    """``|R' x_i|^2`` for every row, by the structure of R."""
    diagonal, factor = family.scale.diagonal_and_factor(scale)
    if factor is None:
        return design.squares(diagonal**2)
    from_factor = jnp.sum(design.linear(factor) ** 2, axis=1)
    return from_factor if diagonal is None else design.squares(diagonal**2) + from_factor


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
        sd = jnp.sqrt(self.family.scale.variance(params.scale_params))
        return Params(params.mean * sd, params.scale_params)

    def from_mean(self, params: Params) -> Params:
        """From (mean, scale) to the chart of the problem."""
        if not self.relevance:
            return params
        sd = jnp.sqrt(self.family.scale.variance(params.scale_params))
        return Params(params.mean / sd, params.scale_params)

    def value(self, params: Params, sample: Rows) -> Float[Array, ""]:
        """The negative bound."""
        q = self.to_mean(params)
        return self.neg_log_likelihood(q, sample) + self.divergence(params, sample)

    def neg_log_likelihood(self, q: Params, sample: Rows) -> Float[Array, ""]:
        """``-sum_i w_i E[log p(y_i | t_i)]``."""
        mean = sample.design.linear(q.mean)
        variance = predictor_variance(self.family, q.scale_params, sample.design)
        noise = self._noise(mean, variance, sample)
        rows = self.likelihood.expected(mean, variance, sample.y, noise)
        return -stable_sum(sample.weight * rows)

    def noise_variance(self, q: Params, sample: Rows) -> Float[Array, ""]:
        """The noise variance of a Gaussian likelihood; for others a number nobody reads."""
        if not isinstance(self.likelihood, Gaussian):
            return sample.noise
        mean = sample.design.linear(q.mean)
        return self._noise(
            mean, predictor_variance(self.family, q.scale_params, sample.design), sample
        )

    def _noise(self, mean: Array, variance: Array, sample: Rows) -> Array:
        """Fixed noise variance, or (when it is not positive) its maximiser, at least ``-noise``."""
        if not isinstance(self.likelihood, Gaussian):
            return sample.noise
        square = stable_sum(sample.weight * ((sample.y - mean) ** 2 + variance))
        best = square / stable_sum(sample.weight)
        return jnp.where(sample.noise > 0, sample.noise, jnp.maximum(best, -sample.noise))

    def divergence(self, params: Params, sample: Rows) -> Float[Array, ""]:
        """KL(q || prior), the prior's own parameters optimised where it is a relevance prior."""
        variance = self.family.scale.variance(params.scale_params)
        log_det = self.family.scale.log_det(params.scale_params)
        if self.relevance:
            alpha_term = 0.5 * jnp.sum(jnp.log1p(params.mean**2))
            if self.family.scale.is_diagonal:
                return alpha_term  # the rest cancels, and must not be left to rounding
            return alpha_term + 0.5 * jnp.sum(jnp.log(variance)) - log_det
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
