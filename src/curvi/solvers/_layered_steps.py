r"""Hessian-free steps on a network that shows its layers: the first sample large, products on little.

The gradient takes m batches, which are cheap; products, four times as dear as a forward pass, take
one. Conjugate gradients run in the eigenbasis of the input factors (:mod:`curvi.solvers._rotated`)
from the last step :math:`d`, and add :math:`y` to it. One batch of its own measures both,

.. math:: \min_{c, t}\; \tilde g^\top (c\,d + t\,y)
    + \tfrac12 (c\,d + t\,y)^\top \tilde G (c\,d + t\,y), \qquad 0 \le c \le 1,\ 0 \le t \le 1.5,

by forward passes alone. What d has gathered over steps is signal and is kept at its length, even
where y follows the noise of one sample and has to be shortened.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi.linalg import conjugate_gradient_path, damped
from curvi.linalg._arithmetic import all_finite, vdot
from curvi.solvers._kronecker import Sides, due, mean_curvature, renewed_sides
from curvi.solvers._method import Layer, Layered, Problem
from curvi.solvers._rotated import (
    Batch,
    Matrices,
    along,
    diagonal_layers,
    gauss_newton,
    kronecker_diagonal,
    passed,
    restored,
    rotated,
)

FIRST_BATCHES = 4  # of the gradient, at the first step
# Products, the second sample and rotations, in units of the gradient of a batch.
FIXED_COST = 8.0
_FEWEST = 3  # iterations; then one for every two batches
_LONGEST = 1.5  # multiple of a correction that the second sample may ask for
_PARALLEL = 0.99  # correlation of both directions from which they count as one


class Measured(NamedTuple):
    """A step in both coordinates, what it promises on the second sample, and how it was found.

    ``length`` is t, ``signal`` the slope on the second sample over that on the first.
    """

    step: Any
    direction: Matrices
    length: Array
    signal: Array
    slope: Array
    curvature: Array
    value: Array
    cg_steps: Array


class System(NamedTuple):
    """Value and gradient on the first sample, its first batch, layers and sides."""

    value: Array
    gradient: Matrices
    batch: Batch
    layers: tuple[Layer, ...]
    sides: Sides


def exact_layers(problem: Problem) -> Any:
    """The layers, if they are all that the objective has: its curvature is then that of these."""
    objective: Any = problem.layered()
    return objective if getattr(objective, "is_its_layers", False) else None


def renewed(
    objective: Layered, params: Any, sides: Sides, direction: Matrices, sample: Any, step: Array
) -> tuple[Sides, Matrices, Array]:
    """Sides of this step, the last step in their coordinates, and the unit of the damping."""
    layers = diagonal_layers(objective, params)
    fresh = renewed_sides(objective, params, sides, sample, step, layers)
    moved = jax.lax.cond(
        due(step), lambda: rotated(restored(direction, sides), fresh), lambda: direction
    )
    return fresh, moved, mean_curvature(objective, params, fresh)


def system_of(
    problem: Problem, params: Any, resources: Any, first: Array, count: Array, sides: Sides
) -> System:
    """The mean gradient of batches ``first`` to ``first + count``, the first one linearised."""
    objective = problem.layered()
    batch = passed(objective, params, problem.sample(resources, first), sides)

    def add(index: Array, total: tuple[Array, Any]) -> tuple[Array, Any]:
        sample = problem.sample(resources, first + index)
        return optax.tree.add(total, jax.value_and_grad(problem.value)(params, sample))

    value, gradient = jax.lax.fori_loop(1, count, add, (batch.value, batch.gradient))
    share = 1 / count.astype(value.dtype)
    matrices = objective.matrices(optax.tree.scale(share, gradient))
    layers = diagonal_layers(objective, params)
    return System(share * value, rotated(matrices, sides), batch, layers, sides)


def measured(
    problem: Problem, params: Any, system: System, last: Matrices, damping: Array,
    sample: Any, max_steps: Array,
) -> Measured:  # fmt: skip
    """Solve from the last step, and measure what was there and what was added."""
    objective: Any = problem.layered()
    layers, sides = system.layers, system.sides
    path = conjugate_gradient_path(
        damped(gauss_newton(system.batch, layers, sides), damping),
        optax.tree.scale(-1.0, system.gradient),
        preconditioner=kronecker_diagonal(layers, sides, damping),
        initial=last,
        max_steps=max_steps,
        num_iterates=2,
    )
    added = jax.tree.map(lambda stack: stack[1] - stack[0], path.iterates)
    second = passed(objective, params, sample, sides)
    slope = rotated(objective.matrices(second.gradient), sides)
    slopes = -jnp.stack([vdot(slope, last), vdot(slope, added)])
    curvatures = along(second, (last, added), layers, sides)
    lengths = best_lengths(slopes, curvatures)
    direction = jax.tree.map(lambda a, b: lengths[0] * a + lengths[1] * b, last, added)
    promised = -vdot(system.gradient, direction)
    found = jnp.dot(lengths, slopes)
    step = objective.assemble(optax.tree.zeros_like(params), restored(direction, sides))
    return Measured(
        step=step,
        direction=direction,
        length=lengths[1],
        signal=jnp.clip(found / jnp.where(promised > 0, promised, 1.0), 0.0, 1.0),
        slope=found,
        curvature=lengths @ curvatures @ lengths,
        value=second.value,
        cg_steps=path.steps,
    )


def best_lengths(slopes: Array, curvatures: Array) -> Array:
    """Multiples of two directions that minimise a quadratic, each within its bounds.

    Bounds are met one after the other: that of the first direction, then the best of the second
    for it. Without curvature, or without a decrease, a direction is left out.
    """
    diagonal = jnp.diagonal(curvatures)
    known = jnp.isfinite(diagonal) & (diagonal > 0)
    scale = jnp.sqrt(jnp.where(known, diagonal, 1.0))
    first, second = jnp.where(known, slopes / scale, 0.0)
    mixed = jnp.where(known[0] & known[1], curvatures[0, 1] / (scale[0] * scale[1]), 0.0)
    mixed = jnp.clip(mixed, -_PARALLEL, _PARALLEL)
    together = (first - mixed * second) / (1 - mixed * mixed)
    kept = jnp.clip(together / scale[0], 0.0, 1.0)
    rest = (second - mixed * kept * scale[0]) / scale[1]
    return jnp.stack([kept, jnp.clip(rest, 0.0, _LONGEST)])


def iterations(count: Array, most: int) -> Array:
    """Of conjugate gradients for a gradient of so many batches."""
    return jnp.minimum(jnp.maximum(_FEWEST, count // 2), most)


def finite_step(system: System, found: Measured) -> Array:
    """Whether everything was finite."""
    return all_finite(system.value, system.gradient, found.value, found.step)
