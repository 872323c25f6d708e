"""An objective of one vector instead of a pytree: steps of many vector operations compile sooner.

Conjugate gradients combine vectors in some hundred places, and XLA compiles an operation for every
array in each of them. A deep Markov model has 28 arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi.linalg import FunctionMap
from curvi.solvers import Layer, Pass, TracedLayers


@dataclass(frozen=True)
class Flat:
    """A layered objective as a function of all its parameters in one vector.

    Parameters
    ----------
    inner : TracedLayers
        The objective of a pytree.
    structure : treedef
        Of the pytree.
    shapes : tuple of tuple of int
        Of its leaves.
    """

    inner: TracedLayers
    structure: Any
    shapes: tuple[tuple[int, ...], ...]

    def tree(self, vector: Any) -> PyTree:
        """The parameters as a pytree."""
        vector = jnp.asarray(vector)
        like = [jax.ShapeDtypeStruct(shape, vector.dtype) for shape in self.shapes]
        sizes = [leaf.size for leaf in like]
        firsts = [sum(sizes[:index]) for index in range(len(sizes))]
        leaves = [
            jax.lax.slice(vector, (first,), (first + leaf.size,)).reshape(leaf.shape)
            for first, leaf in zip(firsts, like, strict=True)
        ]
        return jax.tree.unflatten(self.structure, leaves)

    def __call__(self, vector: Array, batch: Any, key: PRNGKeyArray) -> Array:
        """The objective."""
        return self.inner(self.tree(vector), batch, key)

    def gauss_newton(self, vector: Array, batch: Any, key: PRNGKeyArray) -> Any:
        """Value, gradient and Gauss-Newton map of the objective."""
        value, gradient, operator = self.inner.gauss_newton(self.tree(vector), batch, key)

        def product(v: Array) -> Array:
            return ravel_pytree(operator(self.tree(v)))[0]

        return value, ravel_pytree(gradient)[0], FunctionMap(product, vector, operator.definiteness)

    def loss(self, outputs: Any, batch: Any) -> Array:
        """That of the objective."""
        return self.inner.loss(outputs, batch)

    def curvature(self, outputs: Any) -> Any:
        """That of the objective."""
        return self.inner.curvature(outputs)

    def penalty(self, vector: Array) -> Array:
        """That of the objective."""
        return self.inner.penalty(self.tree(vector))

    def layers(self, vector: Array) -> tuple[Layer, ...]:
        """Those of the objective."""
        return self.inner.layers(self.tree(vector))

    def matrices(self, vector: Array) -> tuple[Array, ...]:
        """One for every layer."""
        return self.inner.matrices(self.tree(vector))

    def assemble(self, vector: Array, matrices: tuple[Array, ...]) -> Array:
        """The vector with these matrices."""
        flat: Array = ravel_pytree(self.inner.assemble(self.tree(vector), matrices))[0]
        return flat

    def num_rows(self, batch: Any) -> int | Array:
        """That of the objective."""
        return self.inner.num_rows(batch)

    def unpadded(self, batch: Any) -> float | Array:
        """That of the objective."""
        return self.inner.unpadded(batch)

    def cut(self, fn: Callable[[Any], Any], batch: Any) -> Any:
        """As the objective does it."""
        return self.inner.cut(fn, batch)

    def tap_shapes(self, vector: Array, batch: Any) -> tuple[tuple[int, int], ...]:
        """Those of the objective."""
        return self.inner.tap_shapes(jax.eval_shape(self.tree, vector), batch)

    def tapped(self, vector: Array, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass with taps."""
        return self.inner.tapped(self.tree(vector), taps, batch, key)


def flattened(objective: TracedLayers, params: PyTree) -> tuple[Flat, Array]:
    """The objective of a vector, and the vector."""
    leaves, structure = jax.tree.flatten(params)
    vector: Array = ravel_pytree(params)[0]
    return Flat(objective, structure, tuple(leaf.shape for leaf in leaves)), vector
