r"""A Kronecker-factored metric for conjugate gradients on layered networks.

With the factors of :mod:`curvi.solvers._kfac`, :math:`A_l = U a U^\top` and
:math:`G_l = V g V^\top`, the damped matrix :math:`A_l \otimes G_l + \lambda I` is inverted exactly:

.. math:: X \mapsto U \big[ (U^\top X V)_{ij} / (a_i g_j + \lambda) \big] V^\top.

No matrix of the size of an image is formed or decomposed: the factor of independent pixels is
diagonal, and so is that of inputs in principal coordinates, whose rows are uncorrelated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from curvi.linalg import FunctionMetric, all_finite, select
from curvi.solvers._factors import layer_factors
from curvi.solvers._method import Layer, Layered


class Side(NamedTuple):
    """One factor: itself, its eigenvalues, its eigenvectors (none where it is diagonal)."""

    factor: Array
    values: Array
    vectors: Array


Sides = tuple[tuple[Side, Side], ...]


def first_sides(objective: Layered, params: Any, layers: tuple[Layer, ...] | None = None) -> Sides:
    """Identity factors of the right shapes; ``layers`` are the objective's unless given."""
    sides = []
    layers = objective.layers(params) if layers is None else layers
    for matrix, layer in zip(objective.matrices(params), layers, strict=True):
        rows, columns = matrix.shape
        left = _side(rows, layer.white_input, matrix.dtype)
        sides.append((left, _side(columns, layer.diagonal_output, matrix.dtype)))
    return tuple(sides)


def _side(size: int, diagonal: bool, dtype: Any) -> Side:
    ones = jnp.ones((1, size), dtype)
    if diagonal:
        return Side(ones, ones[0], jnp.zeros((0, 0), dtype))
    return Side(jnp.eye(size, dtype=dtype), ones[0], jnp.eye(size, dtype=dtype))


def renewed_sides(
    objective: Layered,
    params: Any,
    sides: Sides,
    sample: tuple[Any, Any],
    step: Array,
    layers: tuple[Layer, ...] | None = None,
    *,
    memory: float = 0.7,
) -> Sides:
    """Sides with a new estimate mixed in, if it is finite: ever less often, then every 25 steps.

    ``memory``: weight of the past in the factors.
    """

    def renew() -> Sides:
        first, second = layer_factors(objective, params, *sample, layers=layers, white=True)
        keep = jnp.where(step == 0, 0.0, memory).astype(second[0].dtype)
        fresh = tuple(
            (_mixed(left, a, keep), _mixed(right, g, keep))
            for (left, right), a, g in zip(sides, first, second, strict=True)
        )
        return select(all_finite(fresh), fresh, sides)

    return jax.lax.cond(due(step), renew, lambda: sides)


def due(step: Array, *, every: int = 25) -> Array:
    """Whether a step renews the sides: 0, 1, 3, 7, 15, and then every 25th.

    ``every``: steps of a Hessian-free method, which cost less than the decompositions.
    """
    early = (step & (step + 1)) == 0
    return jnp.where(step < every, early, step % every == 0)


def _mixed(side: Side, estimate: Array, keep: Array) -> Side:
    factor = keep * side.factor + (1 - keep) * estimate
    if side.vectors.size == 0:
        return Side(factor, factor[0], side.vectors)
    values, vectors = jnp.linalg.eigh(factor)
    return Side(factor, jnp.maximum(values, 0.0), vectors)


def kronecker_metric(objective: Layered, sides: Sides, damping: Array) -> FunctionMetric:
    """``A x G + (damping + decay) I`` of every layer, layer by layer.

    The last row of a layer, its bias, is not penalised; in the eigenbasis it cannot be told apart.
    """

    def powered(vector: Any, power: float) -> Any:
        images = []
        layers = objective.layers(vector)
        for matrix, layer, (left, right) in zip(
            objective.matrices(vector), layers, sides, strict=True
        ):
            products = left.values[:, None] * right.values[None, :]
            scale = (products + (damping + layer.decay)) ** power
            inner = _rotated(matrix, left.vectors.T, right.vectors) * scale
            images.append(_rotated(inner, left.vectors, right.vectors.T))
        return objective.assemble(vector, tuple(images))

    return FunctionMetric(lambda v: powered(v, 1.0), lambda v: powered(v, -1.0))


def _rotated(matrix: Array, left: Array, right: Array) -> Array:
    matrix = left @ matrix if left.size else matrix
    return matrix @ right if right.size else matrix


def mean_curvature(objective: Layered, params: Any, sides: Sides) -> Array:
    """The mean of the diagonal of ``A x G`` over all parameters: the unit of the damping."""
    matrices = objective.matrices(params)
    traces = [jnp.sum(left.values) * jnp.sum(right.values) for left, right in sides]
    return jnp.sum(jnp.stack(traces)) / sum(matrix.size for matrix in matrices)
