r"""R as the inverse root of a sparse precision: the scale of :class:`~curvi.SparsePrecision`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core.compilation import compiled
from curvi._core.errors import InputError
from curvi._core.memory import require_matrix
from curvi.families._scales import LowerTriangular, Matrix, Scale, Vector
from curvi.linalg import Elimination, FunctionMetric, Metric

_BLOCK = LowerTriangular()


@dataclass(frozen=True)
class InverseRoot(Scale):
    r"""R with a sparse :math:`R^{-1}`, by substitution in the order of an elimination.

    .. math:: x_c = G\,\epsilon_c, \qquad x_l = S\,\epsilon_l - K x_c - N x_l,

    with N sparse and strictly lower triangular. The parameters are ``{"block": G, "coupling": K,
    "links": the entries of N, "log_scale": log S}``, G as by :class:`LowerTriangular`. Every
    operation is linear in the number of entries.

    Parameters
    ----------
    elimination : Elimination
        The order of the coordinates, and the entries of N.
    """

    elimination: Elimination

    def min_fixed_draws(self, dimension: int) -> int:
        """``d + 1``, as for a chain."""
        return dimension + 1

    def init(self, sd: Vector) -> dict[str, Array]:
        """Independent coordinates."""
        structure = self.elimination
        if sd.shape[0] != structure.dimension:
            raise InputError(
                f"the position has {sd.shape[0]} coordinate(s) and the structure of "
                f"SparsePrecision {structure.dimension}; give it the structure of this position"
            )
        count = structure.num_dense
        return {
            "block": _BLOCK.init(sd[:count]),
            "coupling": jnp.zeros((structure.num_locals, count), sd.dtype),
            "links": jnp.zeros(len(structure.rows), sd.dtype),
            "log_scale": jnp.log(sd[count:]),
        }

    def apply(self, params: dict[str, Array], noise: Vector) -> Vector:
        """Substitution, round by round."""
        structure, count = self.elimination, self.elimination.num_dense
        top = _BLOCK.apply(params["block"], noise[:count])
        x = jnp.exp(params["log_scale"]) * noise[count:] - params["coupling"] @ top
        for one in structure.rounds():
            if one.entries.stop > one.entries.start:
                rows, columns = structure.rows[one.entries], structure.columns[one.entries]
                x = x.at[rows].add(-params["links"][one.entries] * x[columns])
        return jnp.concatenate([top, x])

    def log_det(self, params: dict[str, Array]) -> Float[Array, ""]:
        """Sum of the log diagonals."""
        return jnp.trace(params["block"]) + jnp.sum(params["log_scale"])

    def solve(self, params: dict[str, Array], centred: Vector) -> Vector:
        """``R^-1 x``: one sparse product."""
        structure, count = self.elimination, self.elimination.num_dense
        top, x = centred[:count], centred[count:]
        links = params["links"] * x[structure.columns]
        rest = (x + params["coupling"] @ top).at[structure.rows].add(links)
        own = jnp.exp(-params["log_scale"]) * rest
        return jnp.concatenate([_BLOCK.solve(params["block"], top), own])

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """No diagonal of its own, and R as a dense matrix; for diagnostics of few coordinates."""
        size = self.elimination.dimension
        given = jax.tree.map(jnp.asarray, params)
        require_matrix(size, given["log_scale"].dtype)
        columns = jax.vmap(lambda e: self.apply(given, e))(jnp.eye(size))
        return None, xp.asarray(columns.T)

    @partial(compiled, static_argnums=0)  # one by one its rounds take ten times as long
    def variance(self, params: dict[str, Array]) -> Vector:
        """Diagonal of R R' by Takahashi's recursion: entries of the inverse where N has them."""
        structure, links, coupling = self.elimination, params["links"], params["coupling"]
        factor = _BLOCK.factor(params["block"])
        block = factor @ factor.T
        one, other, slot = structure.pairs
        own = jnp.exp(2 * params["log_scale"])  # becomes the diagonal of the inverse
        beside = -coupling @ block  # its columns of the dense block
        across = jnp.zeros_like(links)  # its entries where N has them
        for step in structure.rounds():
            r, c = structure.rows[step.entries], structure.columns[step.entries]
            n = links[step.entries]
            p, q, s = one[step.pairs], other[step.pairs], slot[step.pairs]
            beside = beside.at[r].add(-n[:, None] * beside[c])
            direct = -jnp.sum(coupling[r] * beside[c], axis=1) - n * own[c]
            across = across.at[step.entries].add(direct)
            across = across.at[p].add(-links[q] * across[s])
            across = across.at[q].add(-links[p] * across[s])
            rows = step.locals
            own = own.at[rows].add(-jnp.sum(coupling[rows] * beside[rows], axis=1))
            own = own.at[r].add(-n * across[step.entries])
        return jnp.concatenate([jnp.diagonal(block), own])

    def mean_metric(self, params: dict[str, Array]) -> Metric:
        """The precision, which needs no substitution, and its inverse, which needs two."""
        zero = jnp.zeros(self.elimination.dimension, params["log_scale"].dtype)

        def transposed(fn: Any, v: Vector) -> Vector:
            product: Vector = jax.linear_transpose(fn, zero)(v)[0]
            return product

        def apply(v: Vector) -> Vector:
            return transposed(lambda x: self.solve(params, x), self.solve(params, v))

        def solve(v: Vector) -> Vector:
            return self.apply(params, transposed(lambda x: self.apply(params, x), v))

        return FunctionMetric(apply, solve)

    def scale_metric(self, params: dict[str, Array]) -> Metric:
        """The part of the Fisher information that is diagonal, and that of the dense block.

        Given those eliminated later, a local coordinate is a regression on its neighbours: its
        coefficients have the information of their variances, its log scale has two.
        """
        variance = self.variance(params)
        block = _BLOCK.scale_metric(params["block"])
        count, structure = self.elimination.num_dense, self.elimination
        own = jnp.exp(-2 * params["log_scale"])
        weights = {
            "coupling": own[:, None] * variance[:count],
            "links": own[structure.rows] * variance[count:][structure.columns],
            "log_scale": jnp.full_like(own, 2.0),
        }

        def each(name: str, tangent: dict[str, Array]) -> dict[str, Array]:
            rest = {
                key: weight * tangent[key] if name == "apply" else tangent[key] / weight
                for key, weight in weights.items()
            }
            return {"block": getattr(block, name)(tangent["block"]), **rest}

        return FunctionMetric(lambda t: each("apply", t), lambda t: each("solve", t))

    def project(self, params: dict[str, Array], tangent: dict[str, Array]) -> dict[str, Array]:
        """Drop the unused upper triangle of the dense block."""
        return {**tangent, "block": jnp.tril(tangent["block"])}

    def covariance(self, params: dict[str, Array]) -> Matrix:
        """R R', dense, a column at a time."""
        identity = jnp.eye(self.elimination.dimension, dtype=params["log_scale"].dtype)
        return jax.vmap(self.mean_metric(params).solve)(identity)

    def to_raw(self, params: dict[str, Array]) -> dict[str, Array]:
        """G, K, N and S themselves."""
        scale = jnp.exp(params["log_scale"])
        return {**params, "block": _BLOCK.to_raw(params["block"]), "log_scale": scale}

    def from_raw(self, raw: dict[str, Array]) -> dict[str, Array]:
        """Logarithms on the diagonals."""
        logs = jnp.log(jnp.maximum(jnp.abs(raw["log_scale"]), jnp.finfo(raw["links"].dtype).tiny))
        return {**raw, "block": _BLOCK.from_raw(raw["block"]), "log_scale": logs}
