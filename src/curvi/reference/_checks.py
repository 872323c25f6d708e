"""The gate of the estimators, and the points at which they evaluate ``f``."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from curvi._core.errors import InputError

Function = Callable[[Float[Array, "d"]], Float[Array, ""]]


def scalar_valued(f: Function) -> Function:
    """Return ``f`` with a refusal, at trace time, of any output that is not one real number."""

    def checked(z: Array) -> Array:
        value = f(z)
        shapes = jax.tree.map(jnp.shape, value)
        if shapes != ():
            raise InputError(
                f"f must return a scalar, but for z of shape {z.shape} it returned {shapes}; "
                "sum it or select one entry"
            )
        if not jnp.issubdtype(jnp.result_type(value), jnp.floating):
            raise InputError(
                f"f must return a real floating-point number, but it returned "
                f"{jnp.result_type(value)}; cast its output to {z.dtype}"
            )
        return value

    return checked


def check_draws(draws: Array, size: int, weights: Array | None, where: str) -> Array:
    """Refuse draws that are not (M, size), and return the weights (M,), equal unless given."""
    if jnp.ndim(draws) != 2 or draws.shape[1] != size or draws.shape[0] == 0:
        raise InputError(
            f"draws has shape {jnp.shape(draws)} in {where}(); pass one row of {size} base-noise "
            f"values per draw, shape (M, {size}) with M >= 1"
        )
    if weights is None:
        return jnp.full(draws.shape[0], 1 / draws.shape[0], draws.dtype)
    if jnp.shape(weights) != draws.shape[:1]:
        raise InputError(
            f"weights has shape {jnp.shape(weights)} in {where}(); pass one weight per draw, "
            f"shape {draws.shape[:1]}, or None for equal weights"
        )
    return weights


def check_mean(mean: Array, where: str) -> None:
    """Refuse a mean that is not a vector."""
    if jnp.ndim(mean) != 1:
        raise InputError(
            f"mean has shape {jnp.shape(mean)} in {where}(); pass a vector, shape (d,)"
        )


def check_inputs(
    mean: Array, scale: Array, draws: Array, weights: Array | None, where: str
) -> Array:
    """Refuse shapes that do not fit ``z = mean + scale @ eps``, and return the weights."""
    check_mean(mean, where)
    if jnp.ndim(scale) != 2 or scale.shape[0] != mean.shape[0]:
        raise InputError(
            f"scale has shape {jnp.shape(scale)} in {where}(); pass a matrix with one row per "
            f"entry of mean, shape ({mean.shape[0]}, k)"
        )
    return check_draws(draws, scale.shape[1], weights, where)


def points(mean: Array, scale: Array, draws: Array) -> Array:
    """Return ``z_m = mean + scale @ eps_m``, one row per draw."""
    return jax.vmap(lambda noise: mean + scale @ noise)(draws)


# Theorem 1 in the coordinates (mean, scale).
