"""R with the shape of an arrow: a dense block, its rows below, and blocks along the diagonal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy import linalg
from jaxtyping import Array, Float

from curvi.families._scales import LowerTriangular, Matrix, Scale, Vector, column_signs
from curvi.linalg import FunctionMetric, Metric

_BLOCK = LowerTriangular()  # the structure of the dense block and of every block


@dataclass(frozen=True)
class Arrow(Scale):
    r"""R = [[G, 0], [C, L]] with G lower triangular, C dense and L block-diagonal.

    Coordinates stand in the order (globals, first kind of groups, second kind, ...), those of a
    group together. The parameters are ``{"globals": G, "below": C, "blocks": [L_1, L_2, ...]}``,
    L_i of shape (groups, width, width); G and the blocks are parameterised as by
    :class:`LowerTriangular`. Such matrices are closed under products, so that the Fisher
    information is diagonal in ``dR = R W`` as it is for a full triangle. Every operation is linear
    in the number of groups.

    Parameters
    ----------
    num_globals : int
        Rows of G.
    blocks : tuple of (int, int)
        Number of groups and width of a group, for each kind.
    """

    num_globals: int
    blocks: tuple[tuple[int, int], ...]

    def min_fixed_draws(self, dimension: int) -> int:
        """A row of R has at most as many free entries as globals and coordinates of a group."""
        widest = max((width for _, width in self.blocks), default=0)
        return self.num_globals + widest + 1

    def _split(self, vector: Array) -> tuple[Array, list[Array]]:
        """The globals, and the groups of each kind."""
        begin, parts = self.num_globals, []
        for number, width in self.blocks:
            part = vector[begin : begin + number * width]
            parts.append(part.reshape(number, width, *vector.shape[1:]))
            begin += number * width
        return vector[: self.num_globals], parts

    @staticmethod
    def _join(parts: list[Array]) -> Array:
        flat = [part.reshape(-1, *part.shape[2:]) for part in parts]
        return jnp.concatenate(flat)

    def init(self, sd: Vector) -> dict[str, Any]:
        """Start from a diagonal R."""
        factor, parts = self._split(sd)
        below = jnp.zeros((sd.shape[0] - self.num_globals, self.num_globals), sd.dtype)
        blocks = [jax.vmap(_BLOCK.init)(part) for part in parts]
        return {"globals": _BLOCK.init(factor), "below": below, "blocks": blocks}

    def _factors(self, params: dict[str, Any]) -> tuple[Matrix, Array, list[Array]]:
        blocks = [jax.vmap(_BLOCK.factor)(block) for block in params["blocks"]]
        return _BLOCK.factor(params["globals"]), params["below"], blocks

    def apply(self, params: dict[str, Any], noise: Vector) -> Vector:
        """``[G e_g, C e_g + L e_l]``."""
        return _product(self, self._factors(params), noise)

    def log_det(self, params: dict[str, Any]) -> Float[Array, ""]:
        """Sum of the log diagonals."""
        diagonals = [jnp.diagonal(block, axis1=1, axis2=2) for block in params["blocks"]]
        return jnp.trace(params["globals"]) + sum(jnp.sum(diagonal) for diagonal in diagonals)

    def solve(self, params: dict[str, Any], centred: Vector) -> Vector:
        """Forward substitution."""
        return _solution(self, self._factors(params), centred)

    def diagonal_and_factor(self, params: Any, xp: Any = jnp) -> tuple[Any, Any]:
        """No diagonal of its own, and R as a dense matrix."""
        factor, below, blocks = self._factors(jax.tree.map(jnp.asarray, params))
        size = self.num_globals + below.shape[0]
        dense = jnp.zeros((size, size), below.dtype)
        dense = dense.at[: self.num_globals, : self.num_globals].set(factor)
        dense = dense.at[self.num_globals :, : self.num_globals].set(below)
        dense = dense.at[self.num_globals :, self.num_globals :].set(
            linalg.block_diag(*[one for block in blocks for one in block])
        )
        return None, xp.asarray(dense)

    def variance(self, params: dict[str, Any]) -> Vector:
        """Diagonal of R R', without R."""
        factor, below, blocks = self._factors(params)
        own = [jnp.sum(block**2, axis=2).reshape(-1) for block in blocks]
        local = jnp.sum(below**2, axis=1) + jnp.concatenate(own)
        return jnp.concatenate([jnp.sum(factor**2, axis=1), local])

    def mean_metric(self, params: dict[str, Any]) -> Metric:
        """``(R R')^-1`` by two substitutions."""
        factors = self._factors(params)

        def apply(v: Array) -> Array:
            return _transposed_solution(self, factors, _solution(self, factors, v))

        def solve(v: Array) -> Array:
            return _product(self, factors, _transposed_product(self, factors, v))

        return FunctionMetric(apply, solve)

    def scale_metric(self, params: dict[str, Any]) -> Metric:
        """Fisher metric in ``dR = R W``: the squares of W, those of its diagonal twice."""
        factor, below, blocks = self._factors(params)
        of_globals = _BLOCK.scale_metric(params["globals"])

        def split(rows: Array) -> list[Array]:
            return self._split(jnp.concatenate([jnp.zeros_like(factor), rows]))[1]

        # In W the rows below are L^-1 (dC - C G^-1 dG): the dense block acts on them.
        def factor_tangent(tangent: Array) -> Array:
            diagonal = jnp.diagonal(tangent) * jnp.diagonal(factor)
            return jnp.tril(tangent, -1) + jnp.diag(diagonal)

        def below_local(tangent: dict[str, Any]) -> list[Array]:
            moved = linalg.solve_triangular(factor, factor_tangent(tangent["globals"]), lower=True)
            rows = split(tangent["below"] - below @ moved)
            return [_each_solve(block, row) for block, row in zip(blocks, rows, strict=True)]

        def apply(tangent: dict[str, Any]) -> dict[str, Any]:
            local = below_local(tangent)
            back = [_each_solve(b, w, trans="T") for b, w in zip(blocks, local, strict=True)]
            rows = self._join(back)
            pulled = linalg.solve_triangular(factor, below.T @ rows, lower=True, trans="T")
            pulled = jnp.tril(pulled, -1) + jnp.diag(jnp.diagonal(pulled) * jnp.diagonal(factor))
            return {
                "globals": of_globals.apply(tangent["globals"]) - pulled,
                "below": rows,
                "blocks": [
                    jax.vmap(lambda p, t: _BLOCK.scale_metric(p).apply(t))(p, t)
                    for p, t in zip(params["blocks"], tangent["blocks"], strict=True)
                ],
            }

        def solve(cotangent: dict[str, Any]) -> dict[str, Any]:
            rows = split(cotangent["below"])
            # The transpose of the map to W, then of the way back: first the dense block.
            scaled = cotangent["globals"] * (
                jnp.tril(jnp.ones_like(factor), -1) + jnp.diag(1 / jnp.diagonal(factor))
            )
            inner = factor.T @ scaled + below.T @ cotangent["below"]
            weight = jnp.tril(jnp.ones_like(factor)) + jnp.eye(len(factor), dtype=factor.dtype)
            local = jnp.tril(inner) / jnp.where(weight > 0, weight, 1)
            moved = factor @ local
            shift = [
                _each_product(b, _each_product(b, r, True))
                for b, r in zip(blocks, rows, strict=True)
            ]
            return {
                "globals": jnp.tril(moved, -1)
                + jnp.diag(jnp.diagonal(moved) / jnp.diagonal(factor)),
                "below": self._join(shift) + below @ local,
                "blocks": [
                    jax.vmap(lambda p, t: _BLOCK.scale_metric(p).solve(t))(p, t)
                    for p, t in zip(params["blocks"], cotangent["blocks"], strict=True)
                ],
            }

        return FunctionMetric(apply, solve)

    def project(self, params: dict[str, Any], tangent: dict[str, Any]) -> dict[str, Any]:
        """Drop the unused upper triangles."""
        blocks = [jnp.tril(block) for block in tangent["blocks"]]
        return {**tangent, "globals": jnp.tril(tangent["globals"]), "blocks": blocks}

    def to_raw(self, params: dict[str, Any]) -> dict[str, Any]:
        """R itself, by its parts."""
        factor, below, blocks = self._factors(params)
        return {"globals": factor, "below": below, "blocks": blocks}

    def from_raw(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Logarithms on the diagonals."""
        blocks = [jax.vmap(_BLOCK.from_raw)(block) for block in raw["blocks"]]
        below = raw["below"] * column_signs(raw["globals"])
        return {"globals": _BLOCK.from_raw(raw["globals"]), "below": below, "blocks": blocks}


Factors = tuple[Matrix, Array, list[Array]]


def _each_product(block: Array, rows: Array, transposed: bool = False) -> Array:
    pattern = "nji,nj...->ni..." if transposed else "nij,nj...->ni..."
    return jnp.einsum(pattern, block, rows)


def _each_solve(block: Array, rows: Array, trans: str = "N") -> Array:
    one = lambda b, r: linalg.solve_triangular(b, r, lower=True, trans=trans)  # noqa: E731
    return jax.vmap(one)(block, rows)


def _product(arrow: Arrow, factors: Factors, vector: Array) -> Array:
    factor, below, blocks = factors
    top, parts = arrow._split(vector)
    own = [_each_product(block, part) for block, part in zip(blocks, parts, strict=True)]
    return jnp.concatenate([factor @ top, below @ top + arrow._join(own)])


def _transposed_product(arrow: Arrow, factors: Factors, vector: Array) -> Array:
    factor, below, blocks = factors
    top, parts = arrow._split(vector)
    own = [_each_product(block, part, True) for block, part in zip(blocks, parts, strict=True)]
    return jnp.concatenate(
        [factor.T @ top + below.T @ vector[arrow.num_globals :], arrow._join(own)]
    )


def _solution(arrow: Arrow, factors: Factors, vector: Array) -> Array:
    factor, below, blocks = factors
    top = linalg.solve_triangular(factor, vector[: arrow.num_globals], lower=True)
    rest = vector.at[arrow.num_globals :].add(-(below @ top))
    own = [_each_solve(b, p) for b, p in zip(blocks, arrow._split(rest)[1], strict=True)]
    return jnp.concatenate([top, arrow._join(own)])


def _transposed_solution(arrow: Arrow, factors: Factors, vector: Array) -> Array:
    factor, below, blocks = factors
    parts = arrow._split(vector)[1]
    own = arrow._join([_each_solve(b, p, "T") for b, p in zip(blocks, parts, strict=True)])
    top = vector[: arrow.num_globals] - below.T @ own
    return jnp.concatenate([linalg.solve_triangular(factor, top, lower=True, trans="T"), own])
