"""Secant pairs: a limited-memory BFGS inverse of the Hessian from steps and differences."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import Array

_SCREEN = 1e-6  # a pair whose cosine is below this carries no curvature worth keeping


class SecantMemory(NamedTuple):
    """The last pairs (s, y) with ``y = H s``, newest at ``(num_pairs - 1) % history``."""

    steps: Any
    differences: Any
    inverse_products: Array
    num_pairs: Array
    scale: Array


def empty_memory(params: Any, history: int) -> SecantMemory:
    """Room for ``history`` pairs shaped like the parameters."""
    stacked = jax.tree.map(lambda leaf: jnp.zeros((history, *leaf.shape), leaf.dtype), params)
    dtype = jax.tree.leaves(params)[0].dtype
    return SecantMemory(
        stacked, stacked, jnp.zeros(history, dtype), jnp.asarray(0, jnp.int32), jnp.ones((), dtype)
    )


def remember(memory: SecantMemory, step: Any, difference: Any) -> tuple[SecantMemory, Array]:
    """Add a pair unless it is screened out; says whether it was kept.

    A pair must have ``s'y > 1e-6 |s||y|``: on a stochastic or non-convex objective others would
    make the inverse indefinite.
    """
    product = optax.tree.vdot(step, difference)
    square = optax.tree.vdot(difference, difference)
    bound = _SCREEN * optax.tree.norm(step) * jnp.sqrt(square)
    keep = jnp.isfinite(product) & jnp.isfinite(square) & (product > bound) & (square > 0)
    slot = memory.num_pairs % memory.inverse_products.shape[0]
    safe = jnp.where(keep, product, 1.0)
    added = SecantMemory(
        jax.tree.map(lambda all_, new: all_.at[slot].set(new), memory.steps, step),
        jax.tree.map(lambda all_, new: all_.at[slot].set(new), memory.differences, difference),
        memory.inverse_products.at[slot].set(1 / safe),
        memory.num_pairs + 1,
        safe / jnp.where(keep, square, 1.0),
    )
    return optax.tree.where(keep, added, memory), keep


def apply_inverse(memory: SecantMemory, vector: Any) -> Any:
    r"""Two-loop recursion: the BFGS inverse of the paper's :math:`B_t`, applied to a vector.

    The paper prints the update of B with :math:`\Delta\theta\,\Delta\theta^\top` as first
    denominator; it is :math:`\Delta G^\top \Delta\theta`. Slots that hold no pair are passed over.
    """
    history = memory.inverse_products.shape[0]
    age = jnp.arange(history, dtype=jnp.int32)
    order = (memory.num_pairs - 1 - age) % history  # newest first
    used = age < memory.num_pairs

    def pair(slot: Array) -> tuple[Any, Any, Array]:
        return (
            jax.tree.map(lambda leaf: leaf[slot], memory.steps),
            jax.tree.map(lambda leaf: leaf[slot], memory.differences),
            memory.inverse_products[slot],
        )

    def backward(carry: Any, item: tuple[Array, Array]) -> tuple[Any, Array]:
        slot, is_used = item
        step, difference, inverse = pair(slot)
        alpha = jnp.where(is_used, inverse * optax.tree.vdot(step, carry), 0.0)
        return optax.tree.add_scale(carry, -alpha, difference), alpha

    def forward(carry: Any, item: tuple[Array, Array, Array]) -> tuple[Any, None]:
        slot, is_used, alpha = item
        step, difference, inverse = pair(slot)
        beta = jnp.where(is_used, inverse * optax.tree.vdot(difference, carry), 0.0)
        return optax.tree.add_scale(carry, alpha - beta, step), None

    reduced, alphas = jax.lax.scan(backward, vector, (order, used))
    scaled = optax.tree.scale(memory.scale, reduced)
    result, _ = jax.lax.scan(forward, scaled, (order[::-1], used[::-1], alphas[::-1]))
    return result
