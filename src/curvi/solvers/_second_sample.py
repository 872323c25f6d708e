"""What a second sample says about a Hessian-free step: which iterate, how far, what it delivers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi.linalg import CGPath, LinearMap, vdot
from curvi.solvers._method import Problem
from curvi.solvers._step import rounding_of


@dataclass(frozen=True)
class SecondSample:
    """What a second sample may change about the length of a step."""

    longest: float = 1.5  # multiple of a solution that the second sample may ask for
    # of a step that raises the objective
    retries: int = 3
    shorter: float = 0.25


SECOND_SAMPLE = SecondSample()


class Sampled(NamedTuple):
    """Value and gradient on a sample, and the curvature on its first batch."""

    value: Array
    gradient: Any
    operator: LinearMap


class Move(NamedTuple):
    """A multiple of an iterate, what it promises on the second sample, and what it delivers."""

    step: Any
    length: Array
    signal: Array
    gain: Array
    value: Array
    retries: Array


def mean_of_batches(
    problem: Problem, params: Any, resources: Any, first: Array, count: Array, start: Any
) -> tuple[Array, Any]:
    """Mean value and gradient of the batches ``first`` to ``first + count``, given the first's."""

    def add(index: Array, total: tuple[Array, Any]) -> tuple[Array, Any]:
        batch = problem.sample(resources, first + index)
        return optax.tree.add(total, jax.value_and_grad(problem.value)(params, batch))

    value, gradient = jax.lax.fori_loop(1, count, add, start)
    weight = 1 / count.astype(value.dtype)
    return weight * value, optax.tree.scale(weight, gradient)


def mean_value(problem: Problem, params: Any, resources: Any, first: Array, count: Array) -> Array:
    """The objective over several batches; one place evaluates it, since each is compiled."""
    zero = jnp.zeros((), optax.tree.dtype(params))

    def add(index: Array, total: Array) -> Array:
        return total + problem.value(params, problem.sample(resources, first + index))

    return jax.lax.fori_loop(0, count, add, zero) / count.astype(zero.dtype)


def measured(
    path: CGPath, params: Any, damping: Array, mine: Sampled, other: Sampled, value_of: Any
) -> Move:
    """The iterate that promises most on the second sample, at the length that it asks for.

    Which one is decided by the second gradient and the first curvature, known for all iterates
    without a product: x'Gx = 2 (phi + b'x) - lambda x'x. One product then gives the second
    curvature along the chosen one.
    """
    squares = _along(path.iterates, path.iterates)
    fitted = 2 * (path.models - _along(path.iterates, mine.gradient)) - damping * squares
    slopes = -_along(path.iterates, other.gradient)
    lengths = _length(slopes, fitted)
    gains = lengths * (slopes - 0.5 * lengths * fitted)
    chosen = jnp.argmax(jnp.where(path.used & jnp.isfinite(gains), gains, -jnp.inf))
    iterate = jax.tree.map(lambda stack: stack[chosen], path.iterates)
    curvature = vdot(iterate, other.operator(iterate))
    slope = slopes[chosen]
    length = _length(slope, curvature)
    promised = -vdot(iterate, mine.gradient)
    signal = jnp.clip(slope / jnp.where(promised > 0, promised, 1.0), 0.0, 1.0)

    def at(step_size: Array) -> Array:
        return value_of(jax.tree.map(lambda p, x: p + step_size * x, params, iterate))

    step_size, value, retries = shortened(at, length, other.value)
    gain = step_size * (slope - 0.5 * step_size * curvature)
    return Move(optax.tree.scale(step_size, iterate), length, signal, gain, value, retries)


def shortened(
    at: Callable[[Array], Array],
    length: Array,
    value: Array,
    *,
    policy: SecondSample = SECOND_SAMPLE,
) -> tuple[Array, Array, Array]:
    """A length at which the objective is not above ``value``, that there, and the retries."""
    ceiling = value + 10 * rounding_of(value)

    def worse(carry: tuple[Array, Array, Array]) -> Array:
        _, value, retries = carry
        return ~(value < ceiling) & (retries < policy.retries)

    def tried(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        step_size, _, retries = carry
        shorter = jnp.where(retries < 0, 1.0, policy.shorter) * step_size
        return shorter, at(shorter), retries + 1

    # The first try is the first round of the loop: the objective is compiled once.
    start = (length, jnp.full_like(value, jnp.inf), jnp.asarray(-1, jnp.int32))
    ended: tuple[Array, Array, Array] = jax.lax.while_loop(worse, tried, start)
    return ended


def _length(slope: Array, curvature: Array, *, policy: SecondSample = SECOND_SAMPLE) -> Array:
    """The multiple that minimises the model; the whole where it has no minimum."""
    convex = curvature > 0
    best = slope / jnp.where(convex, curvature, 1.0)
    return jnp.where(convex, jnp.clip(best, 0.0, policy.longest), 1.0)


def _along(stacked: Any, vector: Any) -> Array:
    """Inner products of stacked vectors with one vector, or with each other pair by pair."""

    def one(stack: Array, leaf: Array) -> Array:
        other = leaf if leaf.ndim == stack.ndim else leaf[None]
        return jnp.sum(stack * other, axis=tuple(range(1, stack.ndim)))

    return jnp.sum(jnp.stack(jax.tree.leaves(jax.tree.map(one, stacked, vector))), axis=0)
