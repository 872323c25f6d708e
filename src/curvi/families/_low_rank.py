"""The scale operator R = [D, U]: diagonal plus low rank, never a dense d x d matrix."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy import linalg
from jaxtyping import Array, Float

from curvi._core.trees import Metric
from curvi.families._scales import Scale, log_magnitude


@dataclass(frozen=True)
class DiagonalPlusLowRank(Scale):
    r"""R = [diag(exp(l)), U], so that R R' = D^2 + U U', in O(d rank) memory.

    The parameters are ``{"log_diagonal": l, "factor": U}``. ``U -> U Q`` with an orthogonal Q
    leaves R R' unchanged: that gauge is removed from every tangent by :meth:`project`.
    """

    rank: int

    def num_noise(self, dimension: int) -> int:
        """``d + rank``."""
        return dimension + self.rank

    def min_fixed_draws(self, dimension: int) -> int:
        """``rank + 2``: each row of R has rank + 1 free entries, and draws are centred."""
        del dimension
        return self.rank + 2

    def init(self, sd: Float[Array, " dimension"]) -> dict[str, Array]:
        """Start near a diagonal R; U must not be zero, which is a saddle of the bound."""
        noise = jax.random.normal(jax.random.key(0), (sd.shape[0], self.rank), sd.dtype)
        share = 0.1 / self.rank**0.5
        return {"log_diagonal": jnp.log(sd), "factor": share * sd[:, None] * noise}

    def apply(
        self, params: dict[str, Array], noise: Float[Array, " noise"]
    ) -> Float[Array, " dimension"]:
        """``exp(l) e_1 + U e_2``."""
        dimension = params["log_diagonal"].shape[0]
        diagonal = jnp.exp(params["log_diagonal"])
        return diagonal * noise[:dimension] + params["factor"] @ noise[dimension:]

    def _whitened(self, params: dict[str, Array]) -> tuple[Array, Array, Array]:
        """D, W = D^-1 U and the Cholesky factor of I + W'W."""
        diagonal = jnp.exp(params["log_diagonal"])
        whitened = params["factor"] / diagonal[:, None]
        gram = jnp.eye(self.rank, dtype=whitened.dtype) + whitened.T @ whitened
        return diagonal, whitened, jnp.linalg.cholesky(gram)

    def log_det(self, params: dict[str, Array]) -> Float[Array, ""]:
        """Matrix determinant lemma: ``sum l + log det(I + W'W) / 2``."""
        _, _, chol = self._whitened(params)
        return jnp.sum(params["log_diagonal"]) + jnp.sum(jnp.log(jnp.diagonal(chol)))

    def solve(
        self, params: dict[str, Array], centred: Float[Array, " dimension"]
    ) -> Float[Array, " dimension"]:
        r"""A symmetric root of the Woodbury inverse, applied to ``D^-1 x``.

        With ``W'W = V diag(s) V'`` the matrix ``(I + W W')^{-1/2}`` is
        ``I + W V diag(((1 + s)^{-1/2} - 1) / s) V' W'``.
        """
        diagonal, whitened, _ = self._whitened(params)
        values, vectors = jnp.linalg.eigh(whitened.T @ whitened)
        root = jnp.sqrt(1 + jnp.maximum(values, 0))
        coefficient = -1 / (root * (1 + root))  # ((1 + s)^(-1/2) - 1) / s without cancellation
        scaled = centred / diagonal
        inner = vectors.T @ (whitened.T @ scaled)
        return scaled + whitened @ (vectors @ (coefficient * inner))

    def variance(self, params: dict[str, Array]) -> Float[Array, " dimension"]:
        """``d_i^2 + |u_i|^2``."""
        return jnp.exp(2 * params["log_diagonal"]) + jnp.sum(params["factor"] ** 2, axis=1)

    def covariance(self, params: dict[str, Array]) -> Float[Array, "dimension dimension"]:
        """Dense ``D^2 + U U'``."""
        factor = params["factor"]
        return jnp.diag(jnp.exp(2 * params["log_diagonal"])) + factor @ factor.T

    def mean_metric(self, params: dict[str, Array]) -> Metric:
        """Woodbury: ``(D^2 + U U')^-1`` and its inverse, O(d rank) each, on vectors or columns."""
        diagonal, whitened, chol = self._whitened(params)
        factor = params["factor"]

        def column(v: Array) -> Array:
            return diagonal if v.ndim == 1 else diagonal[:, None]

        def apply(v: Array) -> Array:
            scaled = v / column(v)
            inner = linalg.cho_solve((chol, True), whitened.T @ scaled)
            return (scaled - whitened @ inner) / column(v)

        def solve(v: Array) -> Array:
            return v * column(v) ** 2 + factor @ (factor.T @ v)

        return Metric(apply, solve)

    def scale_metric(self, params: dict[str, Array]) -> Metric:
        r"""Definite approximation of the Fisher metric.

        For the log diagonal its diagonal, ``2 (1 - h_i)^2`` with the leverages
        ``h = diag(W (I + W'W)^-1 W')``; for U twice ``C^-1 dU (U' C^-1 U)``, whose r x r part is
        lifted by a small ridge so that it stays invertible while U is small.
        """
        _, whitened, chol = self._whitened(params)
        half = linalg.solve_triangular(chol, whitened.T, lower=True)
        share = jnp.maximum(1 - jnp.sum(half**2, axis=0), 0.03)
        mean = self.mean_metric(params)
        gram = params["factor"].T @ mean.apply(params["factor"])
        gram = gram + 0.01 * jnp.eye(self.rank, dtype=gram.dtype)
        gram_chol = jnp.linalg.cholesky(gram)

        def apply(tangent: dict[str, Array]) -> dict[str, Array]:
            return {
                "log_diagonal": 2 * share**2 * tangent["log_diagonal"],
                "factor": 2 * mean.apply(tangent["factor"]) @ gram,
            }

        def solve(cotangent: dict[str, Array]) -> dict[str, Array]:
            right = linalg.cho_solve((gram_chol, True), cotangent["factor"].T).T
            return {
                "log_diagonal": cotangent["log_diagonal"] / (2 * share**2),
                "factor": 0.5 * mean.solve(right),
            }

        return Metric(apply, solve)

    def project(self, params: dict[str, Array], tangent: dict[str, Array]) -> dict[str, Array]:
        r"""Remove the gauge: the part ``U Omega`` of ``dU`` with a skew Omega.

        The orthogonal complement has ``U' dU`` symmetric, hence the Sylvester equation
        :math:`U'U\,\Omega + \Omega\,U'U = U' dU - dU' U`, solved in the eigenbasis of U'U.
        """
        factor, moved = params["factor"], tangent["factor"]
        values, vectors = jnp.linalg.eigh(factor.T @ factor)
        cross = factor.T @ moved
        rotated = vectors.T @ (cross - cross.T) @ vectors
        total = values[:, None] + values[None, :]
        omega = vectors @ jnp.where(total > 0, rotated / jnp.where(total > 0, total, 1), 0)
        return {**tangent, "factor": moved - factor @ (omega @ vectors.T)}

    def to_raw(self, params: dict[str, Array]) -> dict[str, Array]:
        """D and U."""
        return {"diagonal": jnp.exp(params["log_diagonal"]), "factor": params["factor"]}

    def from_raw(self, raw: dict[str, Array]) -> dict[str, Array]:
        """The logarithm of D, and U."""
        return {"log_diagonal": log_magnitude(raw["diagonal"]), "factor": raw["factor"]}
