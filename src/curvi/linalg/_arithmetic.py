"""Vector arithmetic that is the same for a NumPy vector and for a pytree of JAX arrays.

An algorithm written with these functions runs eagerly on the host, where nothing is compiled, and
inside compiled code. A vector is one NumPy array in the first case and any pytree in the second.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax.tree

Vector = Any
Scalar = Any


def is_host(vector: Vector) -> bool:
    """Whether the vector is a NumPy array, so that arithmetic runs on the host."""
    return isinstance(vector, np.ndarray | np.generic)


def namespace(vector: Vector) -> Any:
    """``numpy`` or ``jax.numpy``."""
    return np if is_host(vector) else jnp


def vdot(first: Vector, second: Vector) -> Scalar:
    """The inner product."""
    return np.vdot(first, second) if is_host(first) else optax.tree.vdot(first, second)


def magnitude(first: Vector, second: Vector) -> Scalar:
    """``sum |a_i b_i|``, the scale of the rounding error of the inner product."""
    if is_host(first):
        return np.vdot(np.abs(first), np.abs(second))
    return optax.tree.vdot(jax.tree.map(jnp.abs, first), jax.tree.map(jnp.abs, second))


def norm(vector: Vector) -> Scalar:
    """The Euclidean norm."""
    return np.linalg.norm(vector) if is_host(vector) else optax.tree.norm(vector)


def add(first: Vector, second: Vector) -> Vector:
    """``a + b``."""
    return first + second if is_host(first) else optax.tree.add(first, second)


def subtract(first: Vector, second: Vector) -> Vector:
    """``a - b``."""
    return first - second if is_host(first) else optax.tree.sub(first, second)


def add_scaled(first: Vector, scalar: Scalar, second: Vector) -> Vector:
    """``a + s b``."""
    if is_host(first):
        return first + scalar * second
    return optax.tree.add_scale(first, scalar, second)


def scaled(scalar: Scalar, vector: Vector) -> Vector:
    """``s a``."""
    return scalar * vector if is_host(vector) else optax.tree.scale(scalar, vector)


def zeros_like(vector: Vector) -> Vector:
    """A vector of zeros."""
    return np.zeros_like(vector) if is_host(vector) else optax.tree.zeros_like(vector)


def select(condition: Scalar, first: Any, second: Any) -> Any:
    """The first pytree where the condition holds, otherwise the second."""
    if isinstance(condition, bool | np.bool_):
        return first if condition else second
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), first, second)


def first_case(xp: Any, *cases: tuple[Scalar, int], default: int) -> Scalar:
    """The code of the first condition that holds."""
    conditions, codes = zip(*cases, strict=True)
    if xp is np:
        return next((c for flag, c in zip(conditions, codes, strict=True) if flag), default)
    values = [jnp.asarray(int(code), jnp.int32) for code in codes]
    return jnp.select(list(conditions), values, jnp.asarray(default, jnp.int32))


def put(array: Any, index: Scalar, value: Scalar) -> Any:
    """A copy of a one-dimensional array with one entry replaced."""
    if is_host(array):
        array = array.copy()
        array[index] = value
        return array
    return array.at[index].set(value)


def all_finite(*trees: Any) -> Scalar:
    """Whether every entry of every leaf is finite."""
    leaves = jax.tree.leaves(trees)
    if all(is_host(leaf) or isinstance(leaf, int | float) for leaf in leaves):
        return bool(all(np.isfinite(leaf).all() for leaf in leaves))
    # Zero times an infinity or a NaN is a NaN, which the sum keeps; a sum of numbers runs faster
    # than a conjunction of flags.
    sums = [jnp.sum(0 * leaf) for leaf in leaves]
    return jnp.all(jnp.isfinite(jnp.stack(sums)))


def power_of_two(tree: Vector) -> Scalar:
    """The largest power of two below max |entry|, or one where that is zero or not finite."""
    largest = optax.tree.max(jax.tree.map(jnp.abs, tree))
    usable = jnp.isfinite(largest) & (largest > 0)
    _, exponent = jnp.frexp(jnp.where(usable, largest, 1.0))
    return jnp.ldexp(jnp.ones_like(largest), exponent - 1)
