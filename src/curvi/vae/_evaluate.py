"""Quantities of a trained auto-encoder: the bound, importance-weighted likelihood, imputation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi.vae._objective import VAEObjective, kl_divergence, reparameterise

_ROWS = 500


def in_blocks(fn: Callable[..., Array], **arrays: np.ndarray) -> np.ndarray:
    """Apply a compiled function block by block; the last block is padded, so one shape compiles."""
    total = len(next(iter(arrays.values())))
    size = min(_ROWS, total)
    pieces = []
    for number, first in enumerate(range(0, total, size)):
        part = {name: array[first : first + size] for name, array in arrays.items()}
        count = len(next(iter(part.values())))
        padded = {
            name: np.concatenate([array, np.repeat(array[-1:], size - count, axis=0)])
            for name, array in part.items()
        }
        pieces.append(np.asarray(fn(number, **padded))[:count])
    return np.concatenate(pieces)


@partial(jax.jit, static_argnames=("objective", "num_draws"))
def row_elbos(
    objective: VAEObjective, params: PyTree, x: Array, key: PRNGKeyArray, num_draws: int
) -> Array:
    """The bound of every row, averaged over draws."""
    mean, log_variance = objective.code(params, x)
    kl = kl_divergence(mean, log_variance)

    def one(draw: Array) -> Array:
        noise = jax.random.normal(jax.random.fold_in(key, draw), (1, *mean.shape), mean.dtype)
        codes = reparameterise(mean, log_variance, noise)
        return objective.likelihood.log_prob(objective.decoded(params, codes), x)

    return jnp.mean(jax.lax.map(one, jnp.arange(num_draws)), axis=0) - kl


@partial(jax.jit, static_argnames=("objective", "num_draws"))
def row_log_likelihoods(
    objective: VAEObjective, params: PyTree, x: Array, key: PRNGKeyArray, num_draws: int
) -> Array:
    r"""Importance-weighted estimate of every row.

    .. math:: \log \frac1S \sum_s \frac{p(x \mid z_s)\, p(z_s)}{q(z_s \mid x)}, \quad z_s \sim q
    """
    mean, log_variance = objective.code(params, x)

    def one(draw: Array) -> Array:
        noise = jax.random.normal(jax.random.fold_in(key, draw), (1, *mean.shape), mean.dtype)
        codes = reparameterise(mean, log_variance, noise)
        fit = objective.likelihood.log_prob(objective.decoded(params, codes), x)
        # log p(z) - log q(z | x); the constants of both densities cancel.
        ratio = 0.5 * jnp.sum(noise[0] ** 2 + log_variance - codes**2, axis=-1)
        return fit + ratio

    terms = jax.lax.map(one, jnp.arange(num_draws))
    return jax.scipy.special.logsumexp(terms, axis=0) - math.log(num_draws)


@partial(jax.jit, static_argnames=("objective",))
def code_means(objective: VAEObjective, params: PyTree, x: Array) -> Array:
    """Posterior means of the codes."""
    return objective.code(params, x)[0]


@partial(jax.jit, static_argnames=("objective",))
def decoded_means(objective: VAEObjective, params: PyTree, codes: Array) -> Array:
    """E[x | z]."""
    return objective.likelihood.mean(objective.decoded(params, codes))


@partial(jax.jit, static_argnames=("objective", "sweeps"))
def filled(
    objective: VAEObjective,
    params: PyTree,
    x: Array,
    missing: Array,
    key: PRNGKeyArray,
    sweeps: int,
) -> Array:
    """Fill missing entries by a Markov chain: draw a code, replace what is missing by its mean.

    The first half of the sweeps finds the mode of interest; the answer is the mean over the rest.
    """

    def sweep(number: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        current, total = carry
        mean, log_variance = objective.code(params, current)
        noise = jax.random.normal(jax.random.fold_in(key, number), (1, *mean.shape), mean.dtype)
        codes = reparameterise(mean, log_variance, noise)
        guess = objective.likelihood.mean(objective.decoded(params, codes))
        current = jnp.where(missing, guess, x)
        counted = (2 * number >= sweeps).astype(x.dtype)
        return current, total + counted * current

    # A start at the decoder's average image, not at black.
    origin = objective.likelihood.mean(
        objective.decoded(params, jnp.zeros((x.shape[0], _latent(objective, params, x)), x.dtype))
    )
    start = jnp.where(missing, origin, x), jnp.zeros_like(x)
    _, total = jax.lax.fori_loop(0, sweeps, sweep, start)
    return jnp.where(missing, total / (sweeps - (sweeps + 1) // 2), x)


def _latent(objective: VAEObjective, params: PyTree, x: Array) -> int:
    shapes: Any = jax.eval_shape(lambda p: objective.code(p, x), params)
    return int(shapes[0].shape[1])


@partial(jax.jit, static_argnames=("objective", "num_draws"))
def denoised(
    objective: VAEObjective, params: PyTree, x: Array, key: PRNGKeyArray, num_draws: int
) -> Array:
    """E[x | z] averaged over draws of the code."""
    mean, log_variance = objective.code(params, x)

    def one(draw: Array) -> Array:
        noise = jax.random.normal(jax.random.fold_in(key, draw), (1, *mean.shape), mean.dtype)
        codes = reparameterise(mean, log_variance, noise)
        return objective.likelihood.mean(objective.decoded(params, codes))

    return jnp.mean(jax.lax.map(one, jnp.arange(num_draws)), axis=0)
