r"""The Gauss-Newton system of a layered network in the eigenbasis of its input factors.

With :math:`A_l = U_l a_l U_l^\top` and coordinates :math:`\tilde W_l = U_l^\top W_l` the Kronecker
preconditioner of :mod:`curvi.solvers._kronecker` is diagonal, :math:`1 / (a_i g_j + \lambda)`. A
product needs no matrix of weights to be rotated either: a change :math:`\tilde V_l` of layer l adds
:math:`(a_l U_l) \tilde V_l` to what the layer gives, for rows :math:`a_l` that enter it, so that

.. math:: (\tilde G \tilde V)_l = (a_l U_l)^\top \big[ J^\top \Lambda J\, (a_k U_k) \tilde V_k
    \big]_l + \mathrm{decay}_l,

with J the derivative of the outputs in what the layers give. Rows are rotated once per batch; in
the coordinates of the weights every product would rotate matrices four times as dear as itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi.linalg import Definiteness, FunctionMap
from curvi.solvers._kronecker import Sides
from curvi.solvers._method import Layer, Layered

Matrices = tuple[Array, ...]


class RotatedBatch(NamedTuple):
    """A batch that was passed through the network.

    Attributes
    ----------
    value : the objective on it, penalty included
    gradient : of the parameters as they are, penalty included
    push, pull : what the layers give to outputs, and back
    rows : what enters the layers, rotated
    slope, weights : of the loss in the outputs, first and second derivatives
    """

    value: Array
    gradient: Any
    push: Callable[[Matrices], Any]
    pull: Callable[[Any], Matrices]
    rows: Matrices
    slope: Any
    weights: Any


def diagonal_layers(objective: Layered, params: Any) -> tuple[Layer, ...]:
    """The layers with the diagonals of their output factors."""
    return tuple(layer._replace(diagonal_output=True) for layer in objective.layers(params))


def passed(objective: Any, params: Any, sample: tuple[Any, Any], sides: Sides) -> RotatedBatch:
    """Linearise the outputs in what the layers give, once for all products."""
    batch, key = sample
    dtype = optax.tree.dtype(params)
    taps = tuple(jnp.zeros(shape, dtype) for shape in objective.tap_shapes(params, batch))

    def run(taps: Matrices) -> tuple[Any, Matrices]:
        done = objective.tapped(params, taps, batch, key)
        return done.outputs, done.inputs

    outputs, push, inputs = jax.linearize(run, taps, has_aux=True)
    transposed = jax.linear_transpose(push, taps)

    def pull(slope: Any) -> Matrices:
        (deltas,) = transposed(slope)
        return deltas

    loss, slope = jax.value_and_grad(objective.loss)(outputs, batch)
    penalty, shrink = jax.value_and_grad(objective.penalty)(params)
    products = tuple(a.T @ d for a, d in zip(inputs, pull(slope), strict=True))
    gradient = optax.tree.add(objective.assemble(shrink, products), shrink)
    rows = tuple(
        a @ left.vectors if left.vectors.size else a
        for a, (left, _) in zip(inputs, sides, strict=True)
    )
    weights = objective.output_weights(outputs, slope)
    return RotatedBatch(loss + penalty, gradient, push, pull, rows, slope, weights)


def rotated(matrices: Matrices, sides: Sides) -> Matrices:
    """``U' W`` of every layer."""
    return tuple(
        left.vectors.T @ m if left.vectors.size else m
        for m, (left, _) in zip(matrices, sides, strict=True)
    )


def restored(matrices: Matrices, sides: Sides) -> Matrices:
    """``U W`` of every layer."""
    return tuple(
        left.vectors @ m if left.vectors.size else m
        for m, (left, _) in zip(matrices, sides, strict=True)
    )


def gauss_newton(batch: RotatedBatch, layers: tuple[Layer, ...], sides: Sides) -> FunctionMap:
    """The map of the formula above."""

    def product(vector: Matrices) -> Matrices:
        deltas = batch.pull(jax.tree.map(jnp.multiply, batch.weights, _outputs(batch, vector)))
        curved = tuple(a.T @ d for a, d in zip(batch.rows, deltas, strict=True))
        return optax.tree.add(curved, _decayed(vector, layers, sides))

    like = tuple(
        jnp.zeros((a.shape[1], right.values.size), a.dtype)
        for a, (_, right) in zip(batch.rows, sides, strict=True)
    )
    return FunctionMap(product, like, Definiteness.POSITIVE_SEMI)


def along(
    batch: RotatedBatch, directions: tuple[Matrices, ...], layers: tuple[Layer, ...], sides: Sides
) -> Array:
    """Curvatures of directions and between them, without a way back."""
    outputs = [_outputs(batch, vector) for vector in directions]
    decayed = [_decayed(vector, layers, sides) for vector in directions]
    return jnp.stack([
        jnp.stack([
            optax.tree.vdot(jax.tree.map(jnp.multiply, batch.weights, one), other)
            + optax.tree.vdot(pulled, vector)
            for other, vector in zip(outputs, directions, strict=True)
        ])
        for one, pulled in zip(outputs, decayed, strict=True)
    ])  # fmt: skip


def kronecker_diagonal(layers: tuple[Layer, ...], sides: Sides, damping: Array) -> Matrices:
    """``a_i g_j + damping + decay``: the preconditioner in these coordinates."""
    return tuple(
        left.values[:, None] * right.values[None, :] + (damping + layer.decay)
        for layer, (left, right) in zip(layers, sides, strict=True)
    )


def _outputs(batch: RotatedBatch, vector: Matrices) -> Any:
    """How the outputs move with the parameters."""
    return batch.push(tuple(a @ v for a, v in zip(batch.rows, vector, strict=True)))


def _decayed(vector: Matrices, layers: tuple[Layer, ...], sides: Sides) -> Matrices:
    """The L2 penalty of every layer, whose last row is a bias and not penalised."""

    def one(matrix: Array, layer: Layer, vectors: Array) -> Array:
        if layer.decay == 0:
            return jnp.zeros_like(matrix)
        if not layer.bias:
            return layer.decay * matrix
        if not vectors.size:
            return layer.decay * matrix.at[-1].set(0.0)
        last = vectors[-1]
        return layer.decay * (matrix - last[:, None] * (last @ matrix)[None, :])

    return tuple(
        one(matrix, layer, left.vectors)
        for matrix, layer, (left, _) in zip(vector, layers, sides, strict=True)
    )
