r"""Hessian-free steps on a network of layers: many rows for the gradient, few for products.

The gradient takes m batches, which are cheap; products, four times as dear as a forward pass, take
one. Conjugate gradients run in the eigenbasis of the input factors (:mod:`curvi.solvers._rotated`)
from the last step :math:`d`, and add :math:`y` to it. One batch of its own measures both,

.. math:: \min_{c, t}\; \tilde g^\top (c\,d + t\,y)
    + \tfrac12 (c\,d + t\,y)^\top \tilde G (c\,d + t\,y), \qquad 0 \le c \le 1,\ 0 \le t \le 1.5,

with its gradient and forward derivatives along both. What d has gathered over steps is signal and
is kept at its length, even where y follows the noise of one sample and has to be shortened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi.linalg import DiagonalMetric, all_finite, conjugate_gradient, damped, vdot
from curvi.solvers._kronecker import Sides, due, mean_curvature, renewed_sides
from curvi.solvers._method import Layer, Layered, Problem
from curvi.solvers._rotated import (
    Matrices,
    RotatedBatch,
    along,
    diagonal_layers,
    gauss_newton,
    kronecker_diagonal,
    passed,
    restored,
    rotated,
)
from curvi.solvers._second_sample import SECOND_SAMPLE, mean_of_batches


@dataclass(frozen=True)
class LayeredRules:
    """How steps with factors of layers are begun and solved."""

    first_batches: int = 2  # of the gradient, at the first step
    # Products, the second sample and rotations, in units of the gradient of a batch.
    fixed_cost: float = 4.0
    fewest_iterations: int = 3  # iterations; then one for every two batches
    # relative, in the norm of the preconditioner, at which a system is solved
    residual: float = 1e-3
    parallel: float = 0.99  # correlation of both directions from which they count as one


LAYERED = LayeredRules()


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


class LayeredSystem(NamedTuple):
    """Value and gradient on the first sample, its first batch, layers and sides."""

    value: Array
    gradient: Matrices
    batch: RotatedBatch
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
    previous = jax.lax.cond(
        due(step), lambda: rotated(restored(direction, sides), fresh), lambda: direction
    )
    return fresh, previous, mean_curvature(objective, params, fresh)


def system_of(
    problem: Problem, params: Any, resources: Any, first: Array, count: Array, sides: Sides
) -> LayeredSystem:
    """The mean gradient of batches ``first`` to ``first + count``, the first one linearised."""
    objective = problem.layered()
    batch = passed(objective, params, problem.sample(resources, first), sides)
    start = batch.value, batch.gradient
    value, gradient = mean_of_batches(problem, params, resources, first, count, start)
    matrices = objective.matrices(gradient)
    layers = diagonal_layers(objective, params)
    return LayeredSystem(value, rotated(matrices, sides), batch, layers, sides)


def measured(
    problem: Problem, params: Any, system: LayeredSystem, last: Matrices, damping: Array,
    sample: Any, max_steps: Array,
) -> Measured:  # fmt: skip
    """Solve from the last step, and measure what was there and what was added."""
    objective: Any = problem.layered()
    layers, sides = system.layers, system.sides
    added, steps = corrected(
        damped(gauss_newton(system.batch, layers, sides), damping),
        system.gradient,
        kronecker_diagonal(layers, sides, damping),
        last,
        max_steps,
    )
    second = passed(objective, params, sample, sides)
    slope = rotated(objective.matrices(second.gradient), sides)
    slopes = -jnp.stack([vdot(slope, last), vdot(slope, added)])
    curvatures = along(second, (last, added), layers, sides)
    lengths = best_lengths(slopes, curvatures)
    direction = jax.tree.map(lambda a, b: lengths[0] * a + lengths[1] * b, last, added)
    promised = -vdot(system.gradient, direction)
    gain = jnp.dot(lengths, slopes)
    step = objective.assemble(optax.tree.zeros_like(params), restored(direction, sides))
    return Measured(
        step=step,
        direction=direction,
        length=lengths[1],
        signal=jnp.clip(gain / jnp.where(promised > 0, promised, 1.0), 0.0, 1.0),
        slope=gain,
        curvature=lengths @ curvatures @ lengths,
        value=second.value,
        cg_steps=steps,
    )


def corrected(
    operator: Callable[[Matrices], Matrices],
    gradient: Matrices,
    diagonal: Matrices,
    last: Matrices,
    max_steps: Array,
    *,
    policy: LayeredRules = LAYERED,
) -> tuple[Matrices, Array]:
    """What conjugate gradients add to a multiple of the last step, and their iterations.

    The multiple is the best one within [0, 1].
    """
    image = operator(last)
    curvature, slope = vdot(last, image), -vdot(gradient, last)
    multiple = jnp.where(curvature > 0, slope / jnp.where(curvature > 0, curvature, 1.0), 0.0)
    multiple = jnp.clip(multiple, 0.0, 1.0)
    residual = jax.tree.map(lambda g, i: -g - multiple * i, gradient, image)
    result = conjugate_gradient(
        operator, residual, preconditioner=DiagonalMetric(diagonal), max_steps=max_steps,
        relative_tolerance=policy.residual, natural_norm=True, verify=False,
    )  # fmt: skip
    return result.solution, result.steps


def best_lengths(slopes: Array, curvatures: Array, *, policy: LayeredRules = LAYERED) -> Array:
    """Multiples within [0, 1] and [0, 1.5] of two directions that minimise a quadratic.

    The minimum is inside, or the best on one of four edges. A direction without curvature, such as
    the last step where there was none, is left out.
    """
    diagonal = jnp.diagonal(curvatures)
    known = jnp.isfinite(diagonal) & (diagonal > 0)
    square = jnp.where(known, diagonal, 1.0)
    slopes = jnp.where(known, slopes, 0.0)
    most = jnp.where(known, jnp.asarray([1.0, SECOND_SAMPLE.longest], slopes.dtype), 0.0)
    mixed = jnp.where(known[0] & known[1], curvatures[0, 1], 0.0)

    def edge(fixed: int, at: Array) -> Array:
        other = 1 - fixed
        best = jnp.clip((slopes[other] - mixed * at) / square[other], 0.0, most[other])
        return jnp.stack([at, best] if fixed == 0 else [best, at])

    room = square[0] * square[1] - mixed**2
    separate = room > (1 - policy.parallel**2) * square[0] * square[1]
    free = (square[::-1] * slopes - mixed * slopes[::-1]) / jnp.where(separate, room, 1.0)
    inside = separate & jnp.all((free >= 0) & (free <= most))
    zero = jnp.zeros_like(most[0])
    edges = [edge(0, zero), edge(0, most[0]), edge(1, zero), edge(1, most[1])]
    choices = jnp.stack([jnp.where(inside, free, edges[0]), *edges])
    bends = jnp.stack([jnp.stack([square[0], mixed]), jnp.stack([mixed, square[1]])])
    gains = choices @ slopes - 0.5 * jnp.einsum("ki,ij,kj->k", choices, bends, choices)
    return choices[jnp.argmax(gains)]


def iterations(count: Array, most: int, *, policy: LayeredRules = LAYERED) -> Array:
    """Of conjugate gradients for a gradient of so many batches."""
    return jnp.minimum(jnp.maximum(policy.fewest_iterations, count // 2), most)


def finite_step(system: LayeredSystem, measured: Measured) -> Array:
    """Whether everything was finite."""
    return all_finite(system.value, system.gradient, measured.value, measured.step)
