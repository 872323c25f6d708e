r"""Layers of any network, found in its trace: Kronecker curvature for networks of one's own.

A dense layer is a product of rows with a parameter, a convolution one of patches of an image with a
parameter; both are ``rows W`` for :class:`~curvi.solvers._method.Layered`. They are found in the
program (jaxpr) of the network, whatever library built it: a parameter that enters exactly one
``dot_general`` or ``conv_general_dilated``, on its way at most transposed, reshaped or converted.
The curvature of a convolution is that of Grosse and Martens (2016): :math:`A` from patches,
:math:`G` summed over positions. Every other parameter (biases, scales, what recurrences or shared
weights use) has the diagonal of the Gauss-Newton matrix instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jaxpr_core
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core.errors import InputError
from curvi.solvers._method import Layer, Pass

_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")
_LARGEST_FACTOR = 2048  # beyond, a side of a layer is preconditioned by its diagonal, or not at all


class Place(NamedTuple):
    """A product with a parameter.

    Attributes
    ----------
    number : int
        Which of all products with parameters it is, in the order of the program.
    leaf : int
        The leaf of the parameters.
    order : tuple of int
        Its axes, those that are summed over first.
    inputs : int
        How many of them are.
    """

    number: int
    leaf: int
    order: tuple[int, ...]
    inputs: int

    def matrix(self, leaf: Array) -> Array:
        """The leaf as (inputs, outputs)."""
        turned = jnp.transpose(leaf, self.order)
        return turned.reshape(math.prod(turned.shape[: self.inputs]), -1)

    def leaf_of(self, matrix: Array, like: Array) -> Array:
        """Back from a matrix."""
        shape = [like.shape[axis] for axis in self.order]
        return jnp.transpose(matrix.reshape(shape), np.argsort(self.order).tolist())


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
        found = [place.leaf for place in self.places]
        return [*found, *(i for i in range(len(self.decays)) if i not in found)]

    def layers(self, params: PyTree) -> tuple[Layer, ...]:
        """Products with both factors, where they are not too large; the rest with a diagonal."""
        shapes = [matrix.shape for matrix in self.matrices(params)]
        products = len(self.places)
        return tuple(
            Layer(
                white_input=number >= products or shape[0] > _LARGEST_FACTOR,
                diagonal_output=number >= products or shape[1] > _LARGEST_FACTOR,
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
            known = products.get(i)
            shaped = matrix.reshape(leaves[i].shape) if known is None else None
            leaves[i] = shaped if known is None else known.leaf_of(matrix, leaves[i])
        return jax.tree.unflatten(structure, leaves)

    def num_rows(self, batch: Any) -> int:
        """Rows of a batch, of which a convolution makes several each."""
        return int(jax.tree.leaves(batch)[0].shape[0])

    def tap_shapes(self, params: PyTree, batch: Any) -> tuple[tuple[int, int], ...]:
        """(rows, outputs) of every product; one row for every other parameter."""
        found = jax.eval_shape(
            lambda p, b: self.tapped(p, None, b, jax.random.key(0)).inputs, params, batch
        )
        sizes = [matrix.shape[1] for matrix in jax.eval_shape(self.matrices, params)]
        return tuple((rows.shape[0], size) for rows, size in zip(found, sizes, strict=True))

    def tapped(self, params: PyTree, taps: Any, batch: Any, key: PRNGKeyArray) -> Pass:
        """Forward pass of the objective's program, with taps added to its products."""
        leaves, structure = jax.tree.flatten(params)
        order, products = self._leaves(), len(self.places)
        dtype = leaves[0].dtype
        if taps is not None:
            for leaf, tap in zip(order[products:], taps[products:], strict=True):
                leaves[leaf] = leaves[leaf] + tap.reshape(leaves[leaf].shape)
        moved = jax.tree.unflatten(structure, leaves)
        closed, shapes = jax.make_jaxpr(self.objective.outputs, return_shape=True)(
            moved, batch, key
        )
        walk = _Walk({p.number: i for i, p in enumerate(self.places)}, taps)
        arguments = [*leaves, *jax.tree.leaves((batch, key))]
        marks = [_Mark(i, tuple(range(leaf.ndim))) for i, leaf in enumerate(leaves)]
        found = walk.run(closed.jaxpr, closed.consts, arguments, marks)
        ones = [jnp.ones((1, 1), dtype)] * (len(order) - products)
        inputs = (*(walk.rows[i] for i in range(products)), *ones)
        return Pass(jax.tree.unflatten(jax.tree.structure(shapes), found), inputs)


class _Mark(NamedTuple):
    """A value that is a parameter, with its axes in this order."""

    leaf: int
    order: tuple[int, ...]


class _Walk:
    """Evaluates a program equation by equation, and meets its products with parameters.

    ``wanted`` are the numbers of the products that are layers, with their places among the taps;
    without it, the walk only notes what it meets.
    """

    def __init__(self, wanted: dict[int, int] | None = None, taps: Any = None) -> None:
        self.wanted, self.taps = wanted or {}, taps
        self.rows: dict[int, Array] = {}
        self.met: list[Place] = []
        self.other_uses: list[int] = []

    def run(
        self, jaxpr: Any, consts: list[Any], arguments: list[Any], marks: Sequence[_Mark | None]
    ) -> list[Any]:
        """The outputs of a program; ``marks`` say which arguments are parameters."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        known = {v: m for v, m in zip(jaxpr.invars, marks, strict=False) if m is not None}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jaxpr_core.Literal) else values[atom]

        def mark(atom: Any) -> _Mark | None:
            return None if isinstance(atom, jaxpr_core.Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            found, turned = self._equation(
                jaxpr, equation, inputs, list(map(mark, equation.invars))
            )
            values.update(zip(equation.outvars, found, strict=True))
            if turned is not None:
                known[equation.outvars[0]] = turned
        for atom in jaxpr.outvars:
            if (one := mark(atom)) is not None:
                self.other_uses.append(one.leaf)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(
        self, jaxpr: Any, equation: Any, inputs: list[Any], marks: list[_Mark | None]
    ) -> tuple[list[Any], _Mark | None]:
        name, params = equation.primitive.name, equation.params
        if name in _CALLS and hasattr(params.get("jaxpr"), "jaxpr") and any(marks):
            inner = params["jaxpr"]
            return self.run(inner.jaxpr, inner.consts, inputs, marks), None
        found = _evaluated(jaxpr, equation, inputs)
        present = [m for m in marks if m is not None]
        if not present:
            return found, None
        if name == "transpose":
            order = tuple(present[0].order[axis] for axis in params["permutation"])
            return found, present[0]._replace(order=order)
        if name == "convert_element_type" and equation.outvars[0].aval.dtype == inputs[0].dtype:
            return found, present[0]
        product = _product(equation, inputs, marks)
        if product is None:
            self.other_uses.extend(m.leaf for m in present)
            return found, None
        place, rows, spread = product
        place = place._replace(number=len(self.met))
        self.met.append(place)
        if place.number in self.wanted:
            index = self.wanted[place.number]
            self.rows[index] = rows()
            if self.taps is not None:
                found = [found[0] + spread(self.taps[index])]
        return found, None


def _evaluated(jaxpr: Any, equation: Any, inputs: list[Any]) -> list[Any]:
    """One equation of a program, alone."""
    given = zip(equation.invars, inputs, strict=True)
    pairs = {atom: value for atom, value in given if not isinstance(atom, jaxpr_core.Literal)}
    single = jaxpr.replace(
        constvars=[], invars=list(pairs), outvars=equation.outvars, eqns=[equation]
    )
    found: list[Any] = jax.core.eval_jaxpr(single, (), *pairs.values())
    return found


def _product(equation: Any, inputs: list[Any], marks: list[_Mark | None]) -> Any:
    """A product of rows with one parameter: its place, its rows, and how a tap enters; or None."""
    name = equation.primitive.name
    if len(marks) != 2 or (marks[0] is None) == (marks[1] is None):
        return None
    if name == "dot_general":
        return _dense(equation.params, inputs, marks)
    if name == "conv_general_dilated" and marks[1] is not None:
        return _convolution(equation.params, inputs, marks[1])
    return None


def _dense(params: Any, inputs: list[Any], marks: list[_Mark | None]) -> Any:
    contracted, batched = params["dimension_numbers"]
    if batched[0] or batched[1]:
        return None
    side = 0 if marks[0] is not None else 1
    mark: Any = marks[side]
    x, summed, mine = inputs[1 - side], list(contracted[1 - side]), list(contracted[side])
    free = [axis for axis in range(x.ndim) if axis not in summed]
    kept = [axis for axis in range(inputs[side].ndim) if axis not in mine]
    order = tuple(mark.order[axis] for axis in (*mine, *kept))
    shape = [*(x.shape[a] for a in free), *(inputs[side].shape[a] for a in kept)]

    def rows() -> Array:
        turned = jnp.transpose(x, (*free, *summed))
        return turned.reshape(math.prod(x.shape[a] for a in free), -1)

    def spread(tap: Array) -> Array:
        out = tap.reshape(shape)
        if side == 1:
            return out
        axes = range(len(shape))
        return jnp.transpose(out, (*axes[len(free) :], *axes[: len(free)]))

    return Place(0, mark.leaf, order, len(mine)), rows, spread


def _convolution(params: Any, inputs: list[Any], mark: _Mark) -> Any:
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1:
        return None
    lhs, rhs, out = params["dimension_numbers"]
    kernel = inputs[1].shape
    order = tuple(mark.order[axis] for axis in (rhs[1], *rhs[2:], rhs[0]))
    layout = (out[0], *out[2:], out[1])  # rows, positions, channels

    def patches(image: Array) -> Array:
        return jax.lax.conv_general_dilated_patches(
            image,
            [kernel[axis] for axis in rhs[2:]],
            params["window_strides"],
            params["padding"],
            params["lhs_dilation"],
            params["rhs_dilation"],
            dimension_numbers=jax.lax.ConvDimensionNumbers(lhs, rhs, out),
        )

    positions = jax.eval_shape(patches, inputs[0]).shape
    shape = [*(positions[axis] for axis in layout[:-1]), kernel[rhs[0]]]

    def rows() -> Array:
        turned = jnp.transpose(patches(inputs[0]), layout)
        return turned.reshape(-1, turned.shape[-1])

    def spread(tap: Array) -> Array:
        return jnp.transpose(tap.reshape(shape), np.argsort(layout).tolist())

    return Place(0, mark.leaf, order, len(kernel) - 1), rows, spread


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
    walk = _Walk()

    def analysed(params: PyTree, batch: Any, key: PRNGKeyArray) -> Any:
        closed = jax.make_jaxpr(objective.outputs)(params, batch, key)
        marks = [_Mark(i, tuple(range(leaf.ndim))) for i, leaf in enumerate(leaves)]
        return walk.run(closed.jaxpr, closed.consts, jax.tree.leaves((params, batch, key)), marks)

    jax.eval_shape(analysed, params, batch, key)
    used = [place.leaf for place in walk.met] + walk.other_uses
    places = tuple(place for place in walk.met if used.count(place.leaf) == 1)
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
