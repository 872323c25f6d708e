"""What a trained deep Markov model computes: states given sequences, and sequences from states."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from curvi.sequences._markov import emission, read_backwards, sample_posterior, transition
from curvi.sequences._markov_training import padded


def posterior(
    params: Any, sequences: list[np.ndarray], seed: int
) -> tuple[Array, Array, np.ndarray]:
    """Draws and means of z for every sequence, time first, and the lengths."""
    batch = padded(sequences, np.float32)
    x = jnp.swapaxes(jnp.asarray(batch.x), 0, 1)
    mask = jnp.arange(x.shape[0], dtype=jnp.int32)[:, None] < jnp.asarray(batch.length)[None]
    shape = (*x.shape[:2], params["start"]["mean"].shape[0])
    noise = jax.random.normal(jax.random.key(seed), shape, x.dtype)
    read = read_backwards(params["recognition"], x, mask)
    z, mean, *_ = sample_posterior(params, read, noise)
    return z, mean, batch.length


def emitted(params: Any, likelihood: str, z: Array, key: PRNGKeyArray, *, draw: bool) -> Array:
    """Observations given states: drawn, or their expectations."""
    out = emission(params["emission"], z)
    if likelihood == "bernoulli":
        mean = jax.nn.sigmoid(out)
        return jax.random.bernoulli(key, mean).astype(mean.dtype) if draw else mean
    if not draw:
        return out
    sd = jnp.exp(jnp.asarray(params["emission"]["log_sd"])).reshape((1,) * (out.ndim - 1) + (-1,))
    return out + sd * jax.random.normal(key, out.shape, out.dtype)


def rolled(params: Any, z: Array, key: PRNGKeyArray, steps: int) -> Array:
    """States after z, one for each of so many steps: (steps, rows, latent)."""

    def step(before: Array, here: PRNGKeyArray) -> tuple[Array, Array]:
        mean, log_sd = transition(params["transition"], before)
        noise = jax.random.normal(here, mean.shape, mean.dtype)
        after = mean + jnp.exp(log_sd) * noise
        return after, after

    return jax.lax.scan(step, z, jax.random.split(key, steps))[1]
