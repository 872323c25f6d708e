"""Means and sds of a function over draws, a block of draws at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.expectation import Draws, fixed_draws
from curvi.families import Family, Params

_MOST_DRAWS, _FEWEST_DRAWS = 4096, 64
_NUMBERS = 2e7  # in all draws together, and in the results of one block


def moment_draws(family: Family, params: Params, key: PRNGKeyArray) -> Float[Array, "draws noise"]:
    """Draws whose first two moments are exact, so that linear functions have no noise.

    There are 4,096 of them, or fewer (64 at least) for very many coordinates.
    """
    width = family.num_noise(params.mean.shape[0])
    count = _power_of_two(_NUMBERS / width, _FEWEST_DRAWS, _MOST_DRAWS)
    kind = "whitened" if width < count // 4 else "normalised"
    return fixed_draws(key, Draws(kind, count), width, family.base, params.mean.dtype)


def moments_over(
    fn: Callable[[Array], PyTree], noise: Float[Array, "draws noise"]
) -> tuple[PyTree, PyTree]:
    r"""Mean and sd of ``fn`` over the rows, without all of its results at once.

    Blocks are joined by :math:`S = S_a + S_b + (m_a - m_b)^2 n_a n_b / (n_a + n_b)` for sums of
    squares S about the means m of n results, which loses no digits.
    """
    outputs = jax.eval_shape(fn, noise[0])
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(outputs))
    block = _power_of_two(_NUMBERS / max(size, noise.shape[1]), 1, noise.shape[0])
    count, mean, square = 0, outputs, outputs
    for begin in range(0, noise.shape[0], block):
        results = jax.vmap(fn)(noise[begin : begin + block])
        new = jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), results)
        scatter = jax.tree.map(lambda leaf: block * jnp.var(leaf, axis=0), results)
        if count == 0:
            count, mean, square = block, new, scatter
            continue
        gap = jax.tree.map(jnp.subtract, new, mean)
        both, part = count + block, count * block / (count + block)
        square = jax.tree.map(lambda a, b, g, p=part: a + b + p * g**2, square, scatter, gap)
        share = block / both
        mean = jax.tree.map(lambda a, g, s=share: a + s * g, mean, gap)
        count = both
    return mean, jax.tree.map(lambda leaf: jnp.sqrt(leaf / count), square)


def _power_of_two(wanted: float, least: int, most: int) -> int:
    """The largest power of two up to ``wanted``, within limits that are powers of two."""
    return min(most, max(least, 2 ** int(math.log2(max(wanted, 1.0)))))
