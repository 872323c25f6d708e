"""Gradients and Kronecker factors of layers, from what enters them and what is propagated back."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

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
