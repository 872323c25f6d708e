r"""A Kronecker-factored metric for conjugate gradients on layered networks.

With the factors of :mod:`curvi.solvers._kfac`, :math:`A_l = U a U^\top` and
:math:`G_l = V g V^\top`, the damped matrix :math:`A_l \otimes G_l + \lambda I` is inverted exactly:

.. math:: X \mapsto U \big[ (U^\top X V)_{ij} / (a_i g_j + \lambda) \big] V^\top.

No matrix of the size of an image is formed or decomposed: the factor of independent pixels is
diagonal, and so is that of inputs in principal coordinates, whose rows are uncorrelated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi.linalg import FunctionMetric, all_finite, select
from curvi.solvers._method import Layer, Layered


def _forward(objective: Layered, params: Any, batch: Any, key: Any) -> tuple[Any, Any, Any]:
    """Outputs, the way back from them to the deltas of every layer, and the layers' inputs."""
    dtype = optax.tree.dtype(params)
    taps = tuple(jnp.zeros(shape, dtype) for shape in objective.tap_shapes(params, batch))

    def run(taps: Any) -> tuple[Any, Any]:
        done = objective.tapped(params, taps, batch, key)
        return done.outputs, done.inputs

    return jax.vjp(run, taps, has_aux=True)


def backward(objective: Layered, params: Any, batch: Any, key: Any) -> tuple[Array, Any, Any]:
    """Loss, deltas and inputs: the gradient of layer l is ``inputs[l]' deltas[l]``."""
    outputs, pull, inputs = _forward(objective, params, batch, key)
    value, slope = jax.value_and_grad(objective.loss)(outputs, batch)
    (deltas,) = pull(slope)
    return value, deltas, inputs


def layer_factors(
    objective: Layered,
    params: Any,
    batch: Any,
    key: Any,
    *,
    layers: tuple[Layer, ...] | None = None,
    white: bool = False,
) -> tuple[Any, Any]:
    """One estimate of both factors of every layer, from one random sign per output.

    The input factor of a white layer is empty, or with ``white`` its diagonal as a row. ``layers``
    are those of the objective unless others are given.
    """
    layers = objective.layers(params) if layers is None else layers
    outputs, pull, inputs = _forward(objective, params, batch, key)
    weights, structure = jax.tree.flatten(objective.curvature(outputs))
    signs = _random_signs(jax.random.fold_in(key, 2), weights)
    probe = [jnp.sqrt(w) * sign for w, sign in zip(weights, signs, strict=True)]
    (deltas,) = pull(structure.unflatten(probe))
    first, second = [], []
    count, unpadded = num_rows_of(objective, batch, inputs), _unpadded(objective, batch)
    for layer, rows, delta in zip(layers, inputs, deltas, strict=True):
        if layer.white_input:
            squares = jnp.mean(rows * rows, axis=0, keepdims=True) / unpadded
            first.append(squares if white else jnp.zeros((0, 0), rows.dtype))
        else:
            first.append(rows.T @ rows / (rows.shape[0] * unpadded))
        # A row of the batch has M draws of the decoder, whose deltas carry 1/sqrt(M): its block
        # is their sum.
        diagonal = jnp.sum(delta * delta, axis=0, keepdims=True) / count
        second.append(diagonal if layer.diagonal_output else delta.T @ delta / count)
    return tuple(first), tuple(second)


def _random_signs(key: Any, like: list[Array]) -> list[Array]:
    """Random signs in the shapes of arrays, from one call of the generator: each takes code."""
    bits = jax.random.bits(key, (sum(array.size for array in like),), jnp.uint8)
    cuts = list(itertools.accumulate(array.size for array in like))[:-1]
    return [
        (1 - 2 * (part & 1).astype(array.dtype)).reshape(array.shape)
        for part, array in zip(jnp.split(bits, cuts), like, strict=True)
    ]


def num_rows_of(objective: Layered, batch: Any, inputs: Any) -> int | Array:
    """Rows of the batch; a layer may make several of one, and then says how many there are."""
    given = getattr(objective, "num_rows", None)
    return int(inputs[0].shape[0]) if given is None else given(batch)


def _unpadded(objective: Layered, batch: Any) -> float | Array:
    """Share of the rows of a layer that are not padding: all, unless the objective says so."""
    given = getattr(objective, "unpadded", None)
    return 1.0 if given is None else given(batch)


def cut(objective: Any, fn: Callable[[Any], Any], batch: Any) -> Any:
    """``fn`` of a batch, which an objective of sequences cuts off behind the longest one."""
    given = getattr(objective, "cut", None)
    return fn(batch) if given is None else given(fn, batch)


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
