"""Scale operators: the structure of R in z = mu + R epsilon.

A scale owns its parameters as a pytree. Its metric is the Fisher information of a Gaussian
with covariance R R', block-diagonal between mean and scale: the natural preconditioner of
Newton steps, because on a Gaussian target it *is* the Hessian at the optimum.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.scipy import linalg
from jaxtyping import Array, Float

from curvi._core.trees import Metric


class Scale(abc.ABC):
    """The structure of R, and everything that is computed from it."""

    def num_noise(self, dimension: int) -> int:
        """Length of epsilon."""
        return dimension

    def min_fixed_draws(self, dimension: int) -> int:
        """How many fixed draws keep the sampled objective bounded below.

        With fewer, some direction of R is orthogonal to every draw: the entropy grows along it
        and no draw ever feels it.
        """
        del dimension
        return 2

    @abc.abstractmethod
    def init(self, sd: Float[Array, " dimension"]) -> Any:
        """Return parameters whose R has the given standard deviations (approximately)."""

    @abc.abstractmethod
    def apply(self, params: Any, noise: Float[Array, " noise"]) -> Float[Array, " dimension"]:
        """R epsilon."""

    @abc.abstractmethod
    def log_det(self, params: Any) -> Float[Array, ""]:
        """``log |det R|``, or ``log det(R R') / 2`` when R is not square."""

    @abc.abstractmethod
    def solve(self, params: Any, centred: Float[Array, " dimension"]) -> Float[Array, " dimension"]:
        """A vector whose square is ``x' (R R')^-1 x``; it is ``R^-1 x`` when R is square."""

    @abc.abstractmethod
    def variance(self, params: Any) -> Float[Array, " dimension"]:
        """Diagonal of R R'."""

    @abc.abstractmethod
    def covariance(self, params: Any) -> Float[Array, "dimension dimension"]:
        """R R', dense."""

    @abc.abstractmethod
    def mean_metric(self, params: Any) -> Metric:
        """Fisher metric of the mean: apply ``(R R')^-1``, solve ``R R'``."""

    @abc.abstractmethod
    def scale_metric(self, params: Any) -> Metric:
        """Fisher metric of the scale parameters (or a definite approximation of it)."""

    def project(self, params: Any, tangent: Any) -> Any:
        """Remove the part of a tangent that does not change R R' (default: there is none)."""
        del params
        return tangent

    @abc.abstractmethod
    def to_raw(self, params: Any) -> Any:
        """The entries of R themselves, without logarithms."""

    @abc.abstractmethod
    def from_raw(self, raw: Any) -> Any:
        """Parameters from entries of R; the sign of a diagonal entry is dropped."""


def log_magnitude(entries: Float[Array, " dimension"]) -> Float[Array, " dimension"]:
    """``log |x|``, kept finite at zero."""
    return jnp.log(jnp.maximum(jnp.abs(entries), jnp.finfo(entries.dtype).tiny))


@dataclass(frozen=True)
class Diagonal(Scale):
    """R = diag(exp(l)); the parameters are l."""

    def init(self, sd: Float[Array, " dimension"]) -> Float[Array, " dimension"]:
        """``l = log sd``."""
        return jnp.log(sd)

    def apply(
        self, params: Float[Array, " dimension"], noise: Float[Array, " dimension"]
    ) -> Float[Array, " dimension"]:
        """Elementwise product."""
        return jnp.exp(params) * noise

    def log_det(self, params: Float[Array, " dimension"]) -> Float[Array, ""]:
        """Sum of the log scales."""
        return jnp.sum(params)

    def solve(
        self, params: Float[Array, " dimension"], centred: Float[Array, " dimension"]
    ) -> Float[Array, " dimension"]:
        """Elementwise division."""
        return centred * jnp.exp(-params)

    def variance(self, params: Float[Array, " dimension"]) -> Float[Array, " dimension"]:
        """Squared scales."""
        return jnp.exp(2 * params)

    def covariance(self, params: Float[Array, " dimension"]) -> Float[Array, "dimension dimension"]:
        """Diagonal matrix of squared scales."""
        return jnp.diag(self.variance(params))

    def mean_metric(self, params: Float[Array, " dimension"]) -> Metric:
        """``diag(sigma^-2)``."""
        variance = self.variance(params)
        return Metric(lambda v: v / variance, lambda v: v * variance)

    def scale_metric(self, params: Float[Array, " dimension"]) -> Metric:
        """``2 I`` in the log scales."""
        del params
        return Metric(lambda v: 2 * v, lambda v: 0.5 * v)

    def to_raw(self, params: Float[Array, " dimension"]) -> Float[Array, " dimension"]:
        """``exp(l)``."""
        return jnp.exp(params)

    def from_raw(self, raw: Float[Array, " dimension"]) -> Float[Array, " dimension"]:
        """``log |r|``."""
        return log_magnitude(raw)


@dataclass(frozen=True)
class LowerTriangular(Scale):
    """R lower triangular with a positive diagonal.

    The parameters are one square array: its strict lower triangle is R's, its diagonal holds the
    logarithms of R's diagonal, and its upper triangle is not used (``project`` removes it).
    One dense array instead of a packed vector, because scattering into a triangle costs more
    than the arithmetic on it.
    """

    def min_fixed_draws(self, dimension: int) -> int:
        """``d + 1``: centred draws must span all d directions."""
        return dimension + 1

    def factor(
        self, params: Float[Array, "dimension dimension"]
    ) -> Float[Array, "dimension dimension"]:
        """R itself."""
        return jnp.tril(params, -1) + jnp.diag(jnp.exp(jnp.diagonal(params)))

    def init(self, sd: Float[Array, " dimension"]) -> Float[Array, "dimension dimension"]:
        """Start from a diagonal R."""
        return jnp.diag(jnp.log(sd))

    def apply(
        self, params: Float[Array, "dimension dimension"], noise: Float[Array, " dimension"]
    ) -> Float[Array, " dimension"]:
        """Matrix-vector product."""
        return self.factor(params) @ noise

    def log_det(self, params: Float[Array, "dimension dimension"]) -> Float[Array, ""]:
        """Sum of the log diagonal."""
        return jnp.trace(params)

    def solve(
        self, params: Float[Array, "dimension dimension"], centred: Float[Array, " dimension"]
    ) -> Float[Array, " dimension"]:
        """Forward substitution."""
        return linalg.solve_triangular(self.factor(params), centred, lower=True)

    def variance(self, params: Float[Array, "dimension dimension"]) -> Float[Array, " dimension"]:
        """Row sums of squares."""
        return jnp.sum(self.factor(params) ** 2, axis=1)

    def covariance(
        self, params: Float[Array, "dimension dimension"]
    ) -> Float[Array, "dimension dimension"]:
        """R R'."""
        factor = self.factor(params)
        return factor @ factor.T

    def mean_metric(self, params: Float[Array, "dimension dimension"]) -> Metric:
        """``(R R')^-1``."""
        factor = self.factor(params)
        return Metric(
            lambda v: linalg.cho_solve((factor, True), v), lambda v: factor @ (factor.T @ v)
        )

    def scale_metric(self, params: Float[Array, "dimension dimension"]) -> Metric:
        r"""Fisher metric in the local chart ``dR = R W`` with W lower triangular.

        There the Fisher information is diagonal, :math:`\sum_{i>j} W_{ij}^2 + 2 \sum_i W_{ii}^2`,
        so both directions cost one triangular product or solve on each side.
        """
        factor = self.factor(params)
        diagonal = jnp.diagonal(factor)
        weight = jnp.tril(jnp.ones_like(params)) + jnp.eye(params.shape[0], dtype=params.dtype)

        def to_factor(tangent: Array) -> Array:  # d params -> d R; its own adjoint
            return jnp.tril(tangent, -1) + jnp.diag(jnp.diagonal(tangent) * diagonal)

        def inverse_to_factor(tangent: Array) -> Array:  # d R -> d params
            return jnp.tril(tangent, -1) + jnp.diag(jnp.diagonal(tangent) / diagonal)

        def apply(tangent: Array) -> Array:
            local = linalg.solve_triangular(factor, to_factor(tangent), lower=True)
            back = linalg.solve_triangular(factor, weight * jnp.tril(local), lower=True, trans="T")
            return to_factor(back) + jnp.triu(tangent, 1)

        def solve(cotangent: Array) -> Array:
            local = jnp.tril(factor.T @ inverse_to_factor(cotangent)) / jnp.where(
                weight > 0, weight, 1
            )
            return inverse_to_factor(factor @ local) + jnp.triu(cotangent, 1)

        return Metric(apply, solve)

    def project(
        self,
        params: Float[Array, "dimension dimension"],
        tangent: Float[Array, "dimension dimension"],
    ) -> Float[Array, "dimension dimension"]:
        """Drop the unused upper triangle."""
        del params
        return jnp.tril(tangent)

    def to_raw(
        self, params: Float[Array, "dimension dimension"]
    ) -> Float[Array, "dimension dimension"]:
        """R itself."""
        return self.factor(params)

    def from_raw(
        self, raw: Float[Array, "dimension dimension"]
    ) -> Float[Array, "dimension dimension"]:
        """Strict lower triangle, and logarithms on the diagonal."""
        return jnp.tril(raw, -1) + jnp.diag(log_magnitude(jnp.diagonal(raw)))
