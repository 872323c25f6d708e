r"""Layers of any network, found in its trace: Kronecker curvature for networks of one's own.

A dense layer is a product of rows with a parameter, a convolution one of patches of an image with a
parameter; both are ``rows W`` for :class:`~curvi.solvers._method.Layered`. They are found in the
program (jaxpr) of the network, whatever library built it: a parameter that enters exactly one
``dot_general`` or ``conv_general_dilated``, on its way at most transposed, or
converted to the dtype that it has.
The curvature of a convolution is that of Grosse and Martens (2016): :math:`A` from patches,
:math:`G` summed over positions. A product inside a ``scan`` is one of the rows of all steps, as in
Martens, Ba and Johnson (2018) where steps are taken as independent: its factors are shared over
time. Every other parameter (biases, scales, what several products share) has the diagonal of the
Gauss-Newton matrix instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core.errors import InputError
from curvi.solvers._kronecker import cut
from curvi.solvers._method import Layer, Pass
from curvi.solvers._walk import Leaf, Place, Walk


@dataclass(frozen=True)
class TracedLayers:
    """An objective with the layers of its networks, for KFAC and Kronecker Hessian-free.

    Parameters
    ----------
    objective : object
        With ``outputs(params, batch, key)``, ``loss(outputs, batch)``, ``curvature(outputs)`` and
        ``penalty(params)``, such as a :class:`curvi.vae.VAEObjective`.
    places : tuple of Place
        The products that are layers.
    decays : tuple of float
        Weight of the L2 penalty on every leaf of the parameters.
    """

    objective: Any
    places: tuple[Place, ...]
    decays: tuple[float, ...]

    def __call__(self, params: PyTree, batch: Any, key: PRNGKeyArray) -> Array:
        """The objective itself."""
        value: Array = self.objective(params, batch, key)
        return value

    def gauss_newton(self, params: PyTree, batch: Any, key: PRNGKeyArray) -> Any:
        """That of the objective."""
        return self.objective.gauss_newton(params, batch, key)

    def loss(self, outputs: Any, batch: Any) -> Array:
        """Mean loss per row."""
        value: Array = self.objective.loss(outputs, batch)
        return value

    def curvature(self, outputs: Any) -> Any:
        """Diagonal of the loss's curvature in the outputs, for single rows."""
        return self.objective.curvature(outputs)

    def penalty(self, params: PyTree) -> Array:
        """What the objective adds to the loss."""
        value: Array = self.objective.penalty(params)
        return value

    def _leaves(self) -> list[int]:
        """Leaves in the order of the layers: products first, then all others."""
        leaves = [site.leaf for site in self.places]
        return [*leaves, *(i for i in range(len(self.decays)) if i not in leaves)]

    def layers(self, params: PyTree, *, largest_factor: int = 2048) -> tuple[Layer, ...]:
        """Products with both factors, where they are not too large; the rest with a diagonal.

        ``largest_factor``: beyond, a side of a layer is preconditioned by its diagonal, or
        not at all.
        """
        shapes = [matrix.shape for matrix in self.matrices(params)]
        products = len(self.places)
        return tuple(
            Layer(
                white_input=number >= products or shape[0] > largest_factor,
                diagonal_output=number >= products or shape[1] > largest_factor,
                decay=self.decays[leaf],
                bias=False,
            )
            for number, (leaf, shape) in enumerate(zip(self._leaves(), shapes, strict=True))
        )

    def matrices(self, params: PyTree) -> tuple[Array, ...]:
        """Parameters as matrices: (inputs, outputs) of a product, one row of all others."""
        leaves, products = jax.tree.leaves(params), {p.leaf: p for p in self.places}
        return tuple(
            products[i].matrix(leaves[i]) if i in products else leaves[i].reshape(1, -1)
            for i in self._leaves()
        )

    def assemble(self, params: PyTree, matrices: tuple[Array, ...]) -> PyTree:
        """Parameters like the given ones, with these matrices."""
        leaves, structure = jax.tree.flatten(params)
        products = {p.leaf: p for p in self.places}
        for i, matrix in zip(self._leaves(), matrices, strict=True):
            known, leaf = products.get(i), leaves[i]
            leaves[i] = matrix.reshape(leaf.shape) if known is None else known.leaf_of(matrix, leaf)
        return jax.tree.unflatten(structure, leaves)

    def num_rows(self, batch: Any) -> int | Array:
        """Rows of a batch, of which a convolution makes several each; of sequences, the steps."""
        inside = self._inside(batch)
        return int(jax.tree.leaves(batch)[0].shape[0]) if inside is None else jnp.sum(inside)

    def unpadded(self, batch: Any) -> float | Array:
        """Share of the rows of a layer that are not padding."""
        inside = self._inside(batch)
        return 1.0 if inside is None else jnp.mean(inside)

    def cut(self, fn: Callable[[Any], Any], batch: Any) -> Any:
        """``fn`` of a batch, cut off where an objective of sequences says so."""
        return cut(self.objective, fn, batch)

    def _inside(self, batch: Any) -> Array | None:
        """One for rows that exist, zero for padding, where an objective has some."""
        known = getattr(self.objective, "inside", None)
        return None if known is None else known(batch)

    def tap_shapes(self, params: PyTree, batch: Any) -> tuple[tuple[int, int], ...]:
        """(rows, outputs) of every product; one row for every other parameter."""
        shapes = jax.eval_shape(
            lambda p, b: self.tapped(p, None, b, jax.random.key(0)).inputs, params, batch
        )
        sizes = [matrix.shape[1] for matrix in jax.eval_shape(self.matrices, params)]
        return tuple((rows.shape[0], size) for rows, size in zip(shapes, sizes, strict=True))

    def tapped(self, params: PyTree, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass of the objective's program, with taps added to its products."""
        leaves, structure = jax.tree.flatten(params)
        order, products = self._leaves(), len(self.places)
        dtype = leaves[0].dtype
        if taps is not None:
            for leaf, tap in zip(order[products:], taps[products:], strict=True):
                leaves[leaf] = leaves[leaf] + tap.reshape(leaves[leaf].shape)
        params_at_taps = jax.tree.unflatten(structure, leaves)
        closed, shapes = jax.make_jaxpr(self.objective.outputs, return_shape=True)(
            params_at_taps, batch, key
        )
        walk = Walk({p.number: i for i, p in enumerate(self.places)}, taps)
        arguments = [*leaves, *jax.tree.leaves((batch, key))]
        marks = [Leaf(i, tuple(range(leaf.ndim))) for i, leaf in enumerate(leaves)]
        outputs = walk.run(closed.jaxpr, closed.consts, arguments, marks)
        ones = [jnp.ones((1, 1), dtype)] * (len(order) - products)
        rows, inside = [walk.rows[i] for i in range(products)], self._inside(batch)
        if inside is not None:
            rows = [row * inside[:, None] for row in rows]
        inputs = (*rows, *ones)
        return Pass(jax.tree.unflatten(jax.tree.structure(shapes), outputs), inputs)


def with_layers(objective: Any, params: PyTree, batch: Any, key: PRNGKeyArray) -> TracedLayers:
    """An objective with the layers that its trace shows.

    Parameters
    ----------
    objective : object
        With ``outputs``, ``loss``, ``curvature`` and ``penalty``.
    params, batch, key
        Of the shapes that it will meet; only shapes are read of the batch.

    Returns
    -------
    TracedLayers
    """
    leaves = jax.tree.leaves(params)
    walk = Walk()

    def analysed(params: PyTree, batch: Any, key: PRNGKeyArray) -> Any:
        closed = jax.make_jaxpr(objective.outputs)(params, batch, key)
        marks = [Leaf(i, tuple(range(leaf.ndim))) for i, leaf in enumerate(leaves)]
        return walk.run(closed.jaxpr, closed.consts, jax.tree.leaves((params, batch, key)), marks)

    jax.eval_shape(analysed, params, batch, key)
    used = [site.leaf for site in walk.met] + walk.other_uses
    places = tuple(site for site in walk.met if used.count(site.leaf) == 1)
    return TracedLayers(objective, places, _decays(objective, params))


def _decays(objective: Any, params: PyTree) -> tuple[float, ...]:
    """The weight of the L2 penalty on every leaf, from its slope at ones."""
    ones = jax.tree.map(jnp.ones_like, params)
    slopes = [np.asarray(s) for s in jax.tree.leaves(jax.jit(jax.grad(objective.penalty))(ones))]
    for slope in slopes:
        if slope.size and slope.min() != slope.max():
            raise InputError(
                "the L2 penalty acts on a part of an array of params; Kronecker curvature needs "
                "whole arrays: keep biases apart from weights, or set decoder_l2=0"
            )
    return tuple(float(slope.flat[0]) if slope.size else 0.0 for slope in slopes)
