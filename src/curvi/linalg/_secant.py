"""Secant pairs: a limited-memory BFGS inverse of the Hessian from steps and differences."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax.tree
from jaxtyping import Array

from curvi._core.memory import require_memory
from curvi._core.trees import size


class SecantMemory(NamedTuple):
    """The last pairs (s, y) with ``y = H s``, newest at ``(num_pairs - 1) % history``.

    Attributes
    ----------
    steps, differences : pytree
        s and y: parameters with a leading axis of length ``history``.
    inverse_products : array of shape (history,)
        ``1 / s'y`` of each pair.
    num_pairs : integer array
        Pairs added so far, those that were overwritten included.
    scale : array
        ``s'y / y'y`` of the newest pair, the multiple of the identity from which the inverse is
        built; one without pairs.
    """

    steps: Any
    differences: Any
    inverse_products: Array
    num_pairs: Array
    scale: Array


def empty_memory(params: Any, history: int) -> SecantMemory:
    """A memory without pairs.

    Parameters
    ----------
    params : pytree
        Parameters whose shapes and dtypes the pairs have.
    history : int
        The number of pairs to keep.

    Returns
    -------
    SecantMemory
        A memory under which :func:`apply_inverse` is the identity.
    """
    dtype = jax.tree.leaves(params)[0].dtype
    require_memory(
        2 * history * size(params) * dtype.itemsize, f"{history} secant pairs", "keep fewer"
    )
    stacked = jax.tree.map(lambda leaf: jnp.zeros((history, *leaf.shape), leaf.dtype), params)
    return SecantMemory(
        stacked, stacked, jnp.zeros(history, dtype), jnp.asarray(0, jnp.int32), jnp.ones((), dtype)
    )


def remember(
    memory: SecantMemory, step: Any, difference: Any, *, screen: float = 1e-6
) -> tuple[SecantMemory, Array]:
    """Add a pair, in place of the oldest one when the memory is full, unless it is screened out.

    A pair must have ``s'y > 1e-6 |s||y|``: on a stochastic or non-convex objective others would
    make the inverse indefinite.

    Parameters
    ----------
    memory : SecantMemory
        The pairs so far.
    step : pytree
        s, a difference of parameters.
    difference : pytree
        y, the difference of gradients over that step, or the product H s.
    screen : float
        A pair whose cosine is below this carries no curvature worth keeping.

    Returns
    -------
    memory : SecantMemory
        The new memory, or the given one where the pair was screened out.
    kept : boolean array
        Whether the pair was added.
    """
    product = optax.tree.vdot(step, difference)
    square = optax.tree.vdot(difference, difference)
    bound = screen * optax.tree.norm(step) * jnp.sqrt(square)
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
    denominator; it is :math:`\Delta G^\top \Delta\theta`. Slots that hold no pair are skipped.

    Parameters
    ----------
    memory : SecantMemory
        The pairs that define the inverse.
    vector : pytree
        The vector v, in the structure of the parameters.

    Returns
    -------
    pytree
        :math:`B_t^{-1} v`.
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
