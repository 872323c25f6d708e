"""Scale operators: the structure of R in z = mu + R epsilon.

A scale owns its parameters as a pytree. Its metric is the Fisher information of a Gaussian
with covariance R R', block-diagonal between mean and scale: the natural preconditioner of
Newton steps, because on a Gaussian target it *is* the Hessian at the optimum.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import linalg
from jaxtyping import Array, Float

from curvi._core.errors import InputError
from curvi.linalg import FunctionMetric, Metric

Vector = Float[Array, " dimension"]
Matrix = Float[Array, "dimension dimension"]


class Scale(abc.ABC):
    """The structure of R, and everything that is computed from it.

    Attributes
    ----------
    is_diagonal : bool
        Whether R R' is diagonal for all parameters.
    is_full : bool
        Whether R is square and R R' can be any covariance.
    """

    is_diagonal = False
    is_full = False

    def num_noise(self, dimension: int) -> int:
        """Length of epsilon."""
        return dimension

    def min_fixed_draws(self, dimension: int) -> int:
        """How many fixed draws keep the sampled objective bounded below.

        With fewer, some direction of R is orthogonal to every draw: the entropy grows along it
        and no draw ever feels it.
        """
        return 2

    @abc.abstractmethod
    def init(self, sd: Vector) -> Any:
        """Return parameters whose R has the given standard deviations (approximately)."""

    @abc.abstractmethod
    def apply(self, params: Any, noise: Float[Array, " noise"]) -> Vector:
        """R epsilon."""

    @abc.abstractmethod
    def log_det(self, params: Any) -> Float[Array, ""]:
        """``log |det R|``, or ``log det(R R') / 2`` when R is not square."""

    @abc.abstractmethod
    def solve(self, params: Any, centred: Vector) -> Vector:
        """A vector whose square is ``x' (R R')^-1 x``; it is ``R^-1 x`` when R is square."""

    @abc.abstractmethod
    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """The d and F of ``R R' = diag(d)^2 + F F'``, None for a part that R does not have.

        ``xp`` is ``numpy`` for parameters that are NumPy arrays.
        """

    def variance(self, params: Any) -> Vector:
        """Diagonal of R R'."""
        diagonal, factor = self.diagonal_and_factor(params)
        if factor is None:
            return diagonal**2
        squares = jnp.sum(factor**2, axis=1)
        return squares if diagonal is None else diagonal**2 + squares

    def covariance(self, params: Any) -> Matrix:
        """R R', dense."""
        diagonal, factor = self.diagonal_and_factor(params)
        if factor is None:
            return jnp.diag(diagonal**2)
        product = factor @ factor.T
        return product if diagonal is None else jnp.diag(diagonal**2) + product

    @abc.abstractmethod
    def mean_metric(self, params: Any) -> Metric:
        """Fisher metric of the mean: apply ``(R R')^-1``, solve ``R R'``."""

    @abc.abstractmethod
    def scale_metric(self, params: Any) -> Metric:
        """Fisher metric of the scale parameters (or a definite approximation of it)."""

    def project(self, params: Any, tangent: Any) -> Any:
        """Remove the part of a tangent that does not change R R' (default: there is none)."""
        return tangent

    @abc.abstractmethod
    def to_raw(self, params: Any) -> Any:
        """The entries of R themselves, without logarithms."""

    @abc.abstractmethod
    def from_raw(self, raw: Any) -> Any:
        """Parameters of the same ``R R'``: a column with a negative diagonal entry is turned."""


def _log_magnitude(entries: Vector) -> Vector:
    """``log |x|``, kept finite at zero."""
    return jnp.log(jnp.maximum(jnp.abs(entries), jnp.finfo(entries.dtype).tiny))


def column_signs(factor: Matrix) -> Float[Array, "1 d"]:
    """Which columns to turn for a positive diagonal; ``R R'`` does not notice."""
    return jnp.where(jnp.diagonal(factor) < 0, -1, 1).astype(factor.dtype)[None]


@dataclass(frozen=True)
class Diagonal(Scale):
    """R = diag(exp(l)); the parameters are l."""

    is_diagonal = True

    def init(self, sd: Vector) -> Vector:
        """``l = log sd``."""
        return jnp.log(sd)

    def apply(self, params: Vector, noise: Vector) -> Vector:
        """Elementwise product."""
        return jnp.exp(params) * noise

    def log_det(self, params: Vector) -> Float[Array, ""]:
        """Sum of the log scales."""
        return jnp.sum(params)

    def solve(self, params: Vector, centred: Vector) -> Vector:
        """Elementwise division."""
        return centred * jnp.exp(-params)

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """``exp(l)`` and no factor."""
        return xp.exp(params), None

    def mean_metric(self, params: Vector) -> Metric:
        """``diag(sigma^-2)``."""
        variance = self.variance(params)
        return FunctionMetric(lambda v: v / variance, lambda v: v * variance)

    def scale_metric(self, params: Vector) -> Metric:
        """``2 I`` in the log scales."""
        return FunctionMetric(lambda v: 2 * v, lambda v: 0.5 * v)

    def to_raw(self, params: Vector) -> Vector:
        """``exp(l)``."""
        return jnp.exp(params)

    def from_raw(self, raw: Vector) -> Vector:
        """``log |r|``."""
        return _log_magnitude(raw)


@dataclass(frozen=True)
class LowerTriangular(Scale):
    """R lower triangular with a positive diagonal.

    The parameters are one square array: its strict lower triangle is R's, its diagonal holds the
    logarithms of R's diagonal, and its upper triangle is not used (``project`` removes it).
    One dense array instead of a packed vector, because scattering into a triangle costs more
    than the arithmetic on it.
    """

    is_full = True

    def min_fixed_draws(self, dimension: int) -> int:
        """``d + 1``: centred draws must span all d directions."""
        return dimension + 1

    def factor(self, params: Any, xp: Any = jnp) -> Any:
        """R itself."""
        return xp.tril(params, -1) + xp.diag(xp.exp(xp.diagonal(params)))

    def init(self, sd: Vector) -> Matrix:
        """Start from a diagonal R."""
        return jnp.diag(jnp.log(sd))

    def apply(self, params: Matrix, noise: Vector) -> Vector:
        """Matrix-vector product."""
        return self.factor(params) @ noise

    def log_det(self, params: Matrix) -> Float[Array, ""]:
        """Sum of the log diagonal."""
        return jnp.trace(params)

    def solve(self, params: Matrix, centred: Vector) -> Vector:
        """Forward substitution."""
        return linalg.solve_triangular(self.factor(params), centred, lower=True)

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """No diagonal of its own, and R."""
        return None, self.factor(params, xp)

    def mean_metric(self, params: Matrix) -> Metric:
        """``(R R')^-1``."""
        factor = self.factor(params)
        return FunctionMetric(
            lambda v: linalg.cho_solve((factor, True), v), lambda v: factor @ (factor.T @ v)
        )

    def scale_metric(self, params: Matrix) -> Metric:
        r"""Fisher metric in local coordinates ``dR = R W`` with W lower triangular.

        There the Fisher information is diagonal, :math:`\sum_{i>j} W_{ij}^2 + 2 \sum_i W_{ii}^2`,
        so both directions cost one triangular product or solve on each side.
        """
        factor = self.factor(params)
        diagonal = jnp.diagonal(factor)
        weight = jnp.tril(jnp.ones_like(params)) + jnp.eye(params.shape[0], dtype=params.dtype)

        def rescale(tangent: Array, by: Array) -> Array:
            """From d params to d R with R's diagonal, and back with its inverse; self-adjoint."""
            return jnp.tril(tangent, -1) + jnp.diag(jnp.diagonal(tangent) * by)

        def apply(tangent: Array) -> Array:
            local = linalg.solve_triangular(factor, rescale(tangent, diagonal), lower=True)
            back = linalg.solve_triangular(factor, weight * jnp.tril(local), lower=True, trans="T")
            return rescale(back, diagonal) + jnp.triu(tangent, 1)

        def solve(cotangent: Array) -> Array:
            local = jnp.tril(factor.T @ rescale(cotangent, 1 / diagonal))
            moved = factor @ (local / jnp.where(weight > 0, weight, 1))
            return rescale(moved, 1 / diagonal) + jnp.triu(cotangent, 1)

        return FunctionMetric(apply, solve)

    def project(self, params: Matrix, tangent: Matrix) -> Matrix:
        """Drop the unused upper triangle."""
        return jnp.tril(tangent)

    def to_raw(self, params: Matrix) -> Matrix:
        """R itself."""
        return self.factor(params)

    def from_raw(self, raw: Matrix) -> Matrix:
        """Strict lower triangle, and logarithms on the diagonal."""
        turned = raw * column_signs(raw)
        return jnp.tril(turned, -1) + jnp.diag(_log_magnitude(jnp.diagonal(raw)))


@dataclass(frozen=True)
class DiagonalPlusLowRank(Scale):
    r"""R = [diag(exp(l)), U], so that R R' = D^2 + U U', in O(d rank) memory.

    The parameters are ``{"log_diagonal": l, "factor": U}``; no d x d matrix is ever formed, except
    by :meth:`covariance`. ``U -> U Q`` with an orthogonal Q leaves R R' unchanged: that gauge is
    removed from every tangent by :meth:`project`.

    Parameters
    ----------
    rank : int
        Number of columns of U.
    """

    rank: int

    def num_noise(self, dimension: int) -> int:
        """``d + rank``."""
        return dimension + self.rank

    def min_fixed_draws(self, dimension: int) -> int:
        """``rank + 2``: each row of R has rank + 1 free entries, and draws are centred."""
        return self.rank + 2

    def init(self, sd: Vector) -> dict[str, Array]:
        """Start near a diagonal R; U must not be zero, which is a saddle of the ELBO."""
        if self.rank >= sd.shape[0]:
            raise InputError(
                f"rank is {self.rank} but the position has {sd.shape[0]} coordinate(s); "
                "use a smaller rank, or FullRank()"
            )
        noise = jax.random.normal(jax.random.key(0), (sd.shape[0], self.rank), sd.dtype)
        spread = 0.1 / self.rank**0.5
        return {"log_diagonal": jnp.log(sd), "factor": spread * sd[:, None] * noise}

    def apply(self, params: dict[str, Array], noise: Float[Array, " noise"]) -> Vector:
        """``exp(l) e_1 + U e_2``."""
        diagonal, factor = self.diagonal_and_factor(params)
        return diagonal * noise[: diagonal.shape[0]] + factor @ noise[diagonal.shape[0] :]

    def _whitened(self, params: dict[str, Array]) -> tuple[Array, Array, Array]:
        """D, W = D^-1 U and the Cholesky factor of I + W'W."""
        diagonal, factor = self.diagonal_and_factor(params)
        whitened = factor / diagonal[:, None]
        gram = jnp.eye(self.rank, dtype=whitened.dtype) + whitened.T @ whitened
        return diagonal, whitened, jnp.linalg.cholesky(gram)

    def log_det(self, params: dict[str, Array]) -> Float[Array, ""]:
        """Matrix determinant lemma: ``sum l + log det(I + W'W) / 2``."""
        _, _, chol = self._whitened(params)
        return jnp.sum(params["log_diagonal"]) + jnp.sum(jnp.log(jnp.diagonal(chol)))

    def solve(self, params: dict[str, Array], centred: Vector) -> Vector:
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

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """``exp(l)`` and U."""
        return xp.exp(params["log_diagonal"]), params["factor"]

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

        return FunctionMetric(apply, solve)

    def scale_metric(self, params: dict[str, Array]) -> Metric:
        r"""Definite approximation of the Fisher metric.

        For the log diagonal its diagonal, ``2 (1 - h_i)^2`` with the leverages
        ``h = diag(W (I + W'W)^-1 W')``; for U twice ``C^-1 dU (U' C^-1 U)``, whose r x r part is
        lifted by a small ridge so that it stays invertible while U is small.
        """
        _, whitened, chol = self._whitened(params)
        half = linalg.solve_triangular(chol, whitened.T, lower=True)
        unexplained = jnp.maximum(1 - jnp.sum(half**2, axis=0), 0.03)
        mean = self.mean_metric(params)
        gram = params["factor"].T @ mean.apply(params["factor"])
        gram = gram + 0.01 * jnp.eye(self.rank, dtype=gram.dtype)
        gram_chol = jnp.linalg.cholesky(gram)

        def apply(tangent: dict[str, Array]) -> dict[str, Array]:
            return {
                "log_diagonal": 2 * unexplained**2 * tangent["log_diagonal"],
                "factor": 2 * mean.apply(tangent["factor"]) @ gram,
            }

        def solve(cotangent: dict[str, Array]) -> dict[str, Array]:
            right = linalg.cho_solve((gram_chol, True), cotangent["factor"].T).T
            return {
                "log_diagonal": cotangent["log_diagonal"] / (2 * unexplained**2),
                "factor": 0.5 * mean.solve(right),
            }

        return FunctionMetric(apply, solve)

    def project(self, params: dict[str, Array], tangent: dict[str, Array]) -> dict[str, Array]:
        r"""Remove the gauge: the part ``U Omega`` of ``dU`` with a skew Omega.

        The orthogonal complement has ``U' dU`` symmetric, hence the Sylvester equation
        :math:`U'U\,\Omega + \Omega\,U'U = U' dU - dU' U`, solved in the eigenbasis of U'U.
        """
        factor, factor_tangent = params["factor"], tangent["factor"]
        values, vectors = jnp.linalg.eigh(factor.T @ factor)
        cross = factor.T @ factor_tangent
        rotated = vectors.T @ (cross - cross.T) @ vectors
        total = values[:, None] + values[None, :]
        omega = vectors @ jnp.where(total > 0, rotated / jnp.where(total > 0, total, 1), 0)
        return {**tangent, "factor": factor_tangent - factor @ (omega @ vectors.T)}

    def to_raw(self, params: dict[str, Array]) -> dict[str, Array]:
        """D and U."""
        diagonal, factor = self.diagonal_and_factor(params)
        return {"diagonal": diagonal, "factor": factor}

    def from_raw(self, raw: dict[str, Array]) -> dict[str, Array]:
        """The logarithm of D, and U."""
        return {"log_diagonal": _log_magnitude(raw["diagonal"]), "factor": raw["factor"]}
