"""Evaluation of a program (jaxpr) that meets the products of rows with parameters on its way."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core as jaxpr_core
from jaxtyping import Array

_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")


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


class Leaf(NamedTuple):
    """A value that is a parameter, with its axes in this order."""

    leaf: int
    order: tuple[int, ...]


class Walk:
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
        self, jaxpr: Any, consts: list[Any], arguments: list[Any], marks: Sequence[Leaf | None]
    ) -> list[Any]:
        """The outputs of a program; ``marks`` say which arguments are parameters."""
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
        values.update(zip(jaxpr.invars, arguments, strict=True))
        known = {v: m for v, m in zip(jaxpr.invars, marks, strict=False) if m is not None}

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, jaxpr_core.Literal) else values[atom]

        def mark(atom: Any) -> Leaf | None:
            return None if isinstance(atom, jaxpr_core.Literal) else known.get(atom)

        for equation in jaxpr.eqns:
            inputs = [read(atom) for atom in equation.invars]
            outputs, turned = self._equation(
                jaxpr, equation, inputs, list(map(mark, equation.invars))
            )
            values.update(zip(equation.outvars, outputs, strict=True))
            if turned is not None:
                known[equation.outvars[0]] = turned
        for atom in jaxpr.outvars:
            if (one := mark(atom)) is not None:
                self.other_uses.append(one.leaf)
        return [read(atom) for atom in jaxpr.outvars]

    def _equation(
        self, jaxpr: Any, equation: Any, inputs: list[Any], marks: list[Leaf | None]
    ) -> tuple[list[Any], Leaf | None]:
        name, params = equation.primitive.name, equation.params
        inside = self._inside(name, params, inputs, marks)
        if inside is not None:
            return inside, None
        outputs = _evaluated(jaxpr, equation, inputs)
        present = [m for m in marks if m is not None]
        if not present:
            return outputs, None
        if name == "transpose":
            order = tuple(present[0].order[axis] for axis in params["permutation"])
            return outputs, present[0]._replace(order=order)
        if name == "convert_element_type" and equation.outvars[0].aval.dtype == inputs[0].dtype:
            return outputs, present[0]
        product = _product(equation, inputs, marks)
        if product is None:
            self.other_uses.extend(m.leaf for m in present)
            return outputs, None
        site, rows, spread = product
        site = site._replace(number=len(self.met))
        self.met.append(site)
        if site.number in self.wanted:
            index = self.wanted[site.number]
            self.rows[index] = rows()
            if self.taps is not None:
                outputs = [outputs[0] + spread(self.taps[index])]
        return outputs, None

    def _inside(
        self, name: str, params: Any, inputs: list[Any], marks: list[Leaf | None]
    ) -> list[Any] | None:
        """What a program within the program returns, if parameters enter it."""
        inner = params.get("jaxpr")
        if name in _CALLS and hasattr(inner, "jaxpr") and any(marks):
            return self.run(inner.jaxpr, inner.consts, inputs, marks)
        if name == "scan" and any(marks[: params["num_consts"]]):
            return self._scan(params, inputs, marks)
        return None

    def _scan(self, params: Any, inputs: list[Any], marks: list[Leaf | None]) -> list[Any]:
        """A loop over time: taps are read step by step, rows of all steps are put together."""
        consts, carried = params["num_consts"], params["num_carry"]
        body, length = params["jaxpr"], params["length"]
        known, rest = inputs[:consts], inputs[consts:]
        self.other_uses.extend(m.leaf for m in marks[consts:] if m is not None)
        first, noted = len(self.met), Walk()
        a_step = [*inputs[: consts + carried], *(x[0] for x in rest[carried:])]
        jax.eval_shape(lambda *v: noted.run(body.jaxpr, body.consts, [*v], marks[:consts]), *a_step)
        self.met.extend(p._replace(number=p.number + first) for p in noted.met)
        self.other_uses.extend(noted.other_uses)
        places = [self.wanted.get(p.number + first) for p in noted.met]
        wanted = [(number, index) for number, index in enumerate(places) if index is not None]

        def split(index: int) -> Array:
            tap = self.taps[index]
            return tap.reshape(length, -1, tap.shape[1])

        taps = None if self.taps is None else [split(index) for _, index in wanted]
        local = {number: i for i, (number, _) in enumerate(wanted)}

        def step(state: Any, here: Any) -> Any:
            walk = Walk(local, here[1])
            after = walk.run(body.jaxpr, body.consts, [*known, *state, *here[0]], marks[:consts])
            return after[:carried], (after[carried:], [walk.rows[i] for i in range(len(wanted))])

        last, (stacked, rows) = jax.lax.scan(
            step, rest[:carried], (rest[carried:], taps), length, params["reverse"]
        )
        for (_, index), row in zip(wanted, rows, strict=True):
            self.rows[index] = row.reshape(-1, row.shape[-1])
        return [*last, *stacked]


def _evaluated(jaxpr: Any, equation: Any, inputs: list[Any]) -> list[Any]:
    """One equation of a program, alone."""
    given = zip(equation.invars, inputs, strict=True)
    pairs = {atom: value for atom, value in given if not isinstance(atom, jaxpr_core.Literal)}
    single = jaxpr.replace(
        constvars=[], invars=list(pairs), outvars=equation.outvars, eqns=[equation]
    )
    outputs: list[Any] = jax.core.eval_jaxpr(single, (), *pairs.values())
    return outputs


def _product(equation: Any, inputs: list[Any], marks: list[Leaf | None]) -> Any:
    """A product of rows with one parameter: its place, its rows, and how a tap enters; or None."""
    name = equation.primitive.name
    if len(marks) != 2 or (marks[0] is None) == (marks[1] is None):
        return None
    if name == "dot_general":
        return _dense(equation.params, inputs, marks)
    if name == "conv_general_dilated" and marks[1] is not None:
        return _convolution(equation.params, inputs, marks[1])
    return None


def _dense(params: Any, inputs: list[Any], marks: list[Leaf | None]) -> Any:
    contracted, batched = params["dimension_numbers"]
    if batched[0] or batched[1]:
        return None
    side = 0 if marks[0] is not None else 1
    mark: Any = marks[side]
    x, summed, mine = inputs[1 - side], list(contracted[1 - side]), list(contracted[side])
    free = [axis for axis in range(x.ndim) if axis not in summed]
    rest = [axis for axis in range(inputs[side].ndim) if axis not in mine]
    order = tuple(mark.order[axis] for axis in (*mine, *rest))
    shape = [*(x.shape[a] for a in free), *(inputs[side].shape[a] for a in rest)]

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


def _convolution(params: Any, inputs: list[Any], mark: Leaf) -> Any:
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
