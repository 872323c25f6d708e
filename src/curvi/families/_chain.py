r"""Chains: Gaussians over sequences whose precision is block-tridiagonal.

.. math::

    P = L L^\top, \qquad z = \mu + L^{-\top} \epsilon, \qquad
    z_t - \mu_t = S_t\,\epsilon_t + A_t\,(z_{t+1} - \mu_{t+1})

with L block lower-bidiagonal, :math:`L_{tt} = S_t^{-\top}` and
:math:`L_{t+1,t} = -A_t^\top S_t^{-\top}`. The parameters are the blocks of the back-substitution,
S_t and A_t: any L is of this form, no step divides, and the Fisher information falls apart into
blocks. Time and memory are linear in the length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import linalg
from jaxtyping import Array, Float

from curvi._core import validation
from curvi._core.errors import InputError
from curvi._core.memory import require_matrix
from curvi.families._family import Family
from curvi.families._scales import LowerTriangular, Matrix, Scale, Vector
from curvi.linalg import FunctionMetric, Metric

Blocks = Float[Array, "length width width"]
Links = Float[Array, "links width width"]
Steps = Float[Array, "length width"]

_STEP = LowerTriangular()  # the structure of every S_t


@dataclass(frozen=True)
class BlockBidiagonal(Scale):
    r"""R = L^{-T} with L block lower-bidiagonal, so that (R R')^-1 = L L' is block-tridiagonal.

    The parameters are ``{"steps": (T, w, w), "links": (T - 1, w, w)}``: the S_t, each in the
    parameterisation of :class:`LowerTriangular`, and the A_t. ``log det R`` is the sum of the log
    diagonals of the S_t. Coordinates are ordered by time: those of z_t stand together.

    Parameters
    ----------
    length, width : int
        T, the number of steps, and w, the number of coordinates of a step.
    """

    length: int
    width: int

    def min_fixed_draws(self, dimension: int) -> int:
        """``d + 1``, as for full rank: no fixed number of draws is enough for a long chain.

        The span of what S_t may be offset against, z_{t+1} on the draws, is not given but a
        function of the later blocks. After M steps they can turn it to any direction, that of
        epsilon_t too; then S_t grows without a bound while z stays where it is.
        """
        return dimension + 1

    def init(self, sd: Vector) -> dict[str, Array]:
        """Independent steps with the given standard deviations."""
        if sd.shape[0] != self.length * self.width:
            raise InputError(
                f"the position has {sd.shape[0]} coordinate(s) but a chain of length {self.length} "
                f"and width {self.width} has {self.length * self.width}; use Chain(length, width) "
                "with length * width coordinates, ordered by time"
            )
        links = jnp.zeros((self.length - 1, self.width, self.width), sd.dtype)
        return {"steps": jax.vmap(_STEP.init)(self._by_step(sd)), "links": links}

    def _by_step(self, flat: Vector) -> Steps:
        return flat.reshape(self.length, self.width)

    def _factors(self, params: dict[str, Array]) -> Blocks:
        return jax.vmap(_STEP.factor)(params["steps"])

    def apply(self, params: dict[str, Array], noise: Vector) -> Vector:
        """Back-substitution: ``x_t = S_t e_t + A_t x_{t+1}``."""
        own = jnp.einsum("tij,tj->ti", self._factors(params), self._by_step(noise))
        return _backward(params["links"], own).reshape(-1)

    def log_det(self, params: dict[str, Array]) -> Float[Array, ""]:
        """Sum of the log diagonals."""
        return jnp.sum(jnp.diagonal(params["steps"], axis1=1, axis2=2))

    def solve(self, params: dict[str, Array], centred: Vector) -> Vector:
        """``e_t = S_t^-1 (x_t - A_t x_{t+1})``: all steps at once."""
        x = self._by_step(centred)
        explained = jnp.einsum("tij,tj->ti", params["links"], x[1:])
        return _triangular(self._factors(params), x.at[:-1].add(-explained)).reshape(-1)

    def _transposed_solve(self, params: dict[str, Array], noise: Vector) -> Vector:
        """``R^-T e``."""
        own = _triangular(self._factors(params), self._by_step(noise), trans="T")
        passed = jnp.einsum("tji,tj->ti", params["links"], own[:-1])
        return own.at[1:].add(-passed).reshape(-1)

    def _transposed_apply(self, params: dict[str, Array], centred: Vector) -> Vector:
        """``R' x``."""
        gathered = _forward(params["links"], self._by_step(centred))
        return jnp.einsum("tji,tj->ti", self._factors(params), gathered).reshape(-1)

    def marginals(self, params: dict[str, Array]) -> Blocks:
        """The covariance of every step: ``C_t = S_t S_t' + A_t C_{t+1} A_t'``.

        Parameters
        ----------
        params : dict of arrays
            Parameters of R.

        Returns
        -------
        array, shape (length, width, width)
            The diagonal blocks of R R'. Those beside the diagonal are ``A_t C_{t+1}``.
        """
        factors = self._factors(params)
        own = factors @ jnp.swapaxes(factors, 1, 2)

        def step(later: Matrix, here: tuple[Matrix, Matrix]) -> tuple[Matrix, Matrix]:
            link, covariance = here
            covariance = covariance + link @ later @ link.T
            return covariance, covariance

        _, earlier = jax.lax.scan(step, own[-1], (params["links"], own[:-1]), reverse=True)
        return jnp.concatenate([earlier, own[-1:]])

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """No diagonal of its own, and R as a dense matrix; MemoryBudgetError where it is too large.

        For diagnostics of small chains: everything else uses the blocks.
        """
        size, width = self.length * self.width, self.width
        require_matrix(size, params["links"].dtype)
        rows = [xp.zeros((0, size), params["links"].dtype)]
        for t in reversed(range(self.length)):
            factor = _STEP.factor(params["steps"][t], xp)
            own = [xp.zeros((width, t * width), factor.dtype), factor]
            own.append(xp.zeros((width, size - (t + 1) * width), factor.dtype))
            row = xp.concatenate(own, axis=1)
            if t + 1 < self.length:
                row = row + params["links"][t] @ rows[-1]
            rows.append(row)
        return None, xp.concatenate(rows[::-1], axis=0)

    def variance(self, params: dict[str, Array]) -> Vector:
        """Diagonals of the marginal covariances."""
        return jnp.diagonal(self.marginals(params), axis1=1, axis2=2).reshape(-1)

    def covariance(self, params: dict[str, Array]) -> Matrix:
        """R R', dense, a column at a time."""
        identity = jnp.eye(self.length * self.width, dtype=params["links"].dtype)
        return jax.vmap(self.mean_metric(params).solve)(identity)

    def mean_metric(self, params: dict[str, Array]) -> Metric:
        """``L L'``, which needs no recursion, and its inverse, which needs two."""

        def apply(v: Vector) -> Vector:
            return self._transposed_solve(params, self.solve(params, v))

        def solve(v: Vector) -> Vector:
            return self.apply(params, self._transposed_apply(params, v))

        return FunctionMetric(apply, solve)

    def scale_metric(self, params: dict[str, Array]) -> Metric:
        r"""The Fisher information, block by block.

        q is a product of regressions of z_t on z_{t+1}, each with parameters of its own: that of
        A_t is :math:`(S_t S_t^\top)^{-1}\, dA\; C_{t+1}`, that of S_t the metric of a
        lower-triangular scale, and nothing couples them.
        """
        roots = self._factors(params)[:-1]
        following = jnp.linalg.cholesky(self.marginals(params)[1:])

        def own(name: str, blocks: Blocks) -> Blocks:
            def one(block: Matrix, tangent: Matrix) -> Matrix:
                tangents: Matrix = getattr(_STEP.scale_metric(block), name)(tangent)
                return tangents

            return jax.vmap(one)(params["steps"], blocks)

        def apply(tangent: dict[str, Array]) -> dict[str, Array]:
            left = jax.vmap(lambda s, d: linalg.cho_solve((s, True), d))(roots, tangent["links"])
            spread = left @ following @ jnp.swapaxes(following, 1, 2)
            return {"steps": own("apply", tangent["steps"]), "links": spread}

        def solve(cotangent: dict[str, Array]) -> dict[str, Array]:
            left = roots @ jnp.swapaxes(roots, 1, 2) @ cotangent["links"]
            right = jax.vmap(lambda c, g: linalg.cho_solve((c, True), g.T).T)(following, left)
            return {"steps": own("solve", cotangent["steps"]), "links": right}

        return FunctionMetric(apply, solve)

    def project(self, params: dict[str, Array], tangent: dict[str, Array]) -> dict[str, Array]:
        """Drop the unused upper triangles."""
        return {**tangent, "steps": jnp.tril(tangent["steps"])}

    def to_raw(self, params: dict[str, Array]) -> dict[str, Array]:
        """The S_t and A_t themselves."""
        return {**params, "steps": self._factors(params)}

    def from_raw(self, raw: dict[str, Array]) -> dict[str, Array]:
        """Logarithms on the diagonals of the S_t."""
        return {**raw, "steps": jax.vmap(_STEP.from_raw)(raw["steps"])}


def _triangular(factors: Blocks, x: Steps, trans: str = "N") -> Steps:
    """``S_t^-1 x_t``, or with the transposed S_t."""
    if factors.shape[1] == 1:
        return x / factors[:, :, 0]
    return jax.vmap(lambda s, v: linalg.solve_triangular(s, v, lower=True, trans=trans))(factors, x)


def _backward(links: Links, own: Steps) -> Steps:
    """``x_t = own_t + A_t x_{t+1}`` from the last step to the first."""

    def step(later: Vector, here: tuple[Matrix, Vector]) -> tuple[Vector, Vector]:
        x = here[1] + here[0] @ later
        return x, x

    _, earlier = jax.lax.scan(step, own[-1], (links, own[:-1]), reverse=True)
    return jnp.concatenate([earlier, own[-1:]])


def _forward(links: Links, own: Steps) -> Steps:
    """``g_{t+1} = own_{t+1} + A_t' g_t`` from the first step to the last."""

    def step(before: Vector, here: tuple[Matrix, Vector]) -> tuple[Vector, Vector]:
        g = here[1] + here[0].T @ before
        return g, g

    _, later = jax.lax.scan(step, own[0], (links, own[1:]))
    return jnp.concatenate([own[:1], later])


@dataclass(frozen=True)
class Chain(Family):
    """A Gaussian over a sequence: each step depends on the rest through its neighbours alone.

    On a linear-Gaussian state-space model the best one *is* the Kalman smoother, and its ELBO the
    log marginal likelihood. A chain needs ``length * width + 1`` fixed draws, like a full
    covariance; beyond 1,000 coordinates draws are fresh at every step.
    :class:`curvi.StateSpace` needs no draws at all.

    Parameters
    ----------
    length : int
        Number of steps.
    width : int
        Coordinates of one step. A position of shape (length, width) has the right order.

    Raises
    ------
    InputError
        If one of them is not a positive integer, or if the position that :meth:`init` is given has
        another size.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> family = Chain(length=3, width=1)
    >>> family.sd(family.init(jnp.zeros(3), 1.0)).tolist()
    [1.0, 1.0, 1.0]
    """

    length: int
    width: int = 1

    def __post_init__(self) -> None:
        """Validate the sizes."""
        validation.positive_integer(self.length, "length")
        validation.positive_integer(self.width, "width")

    @property
    def scale(self) -> Scale:
        """Block-bidiagonal."""
        return BlockBidiagonal(self.length, self.width)
