r"""Batch and match (Cai and others, 2024, arXiv 2402.14758), Algorithm 1, as a contender.

A step draws a batch z_b from q_t = N(mu_t, S_t), takes the scores g_b of the target there, and
minimises a score-based divergence with a penalty 2 / lambda_t KL(q_t, q):

    U = lambda G + lambda / (1 + lambda) g g',   V = S_t + lambda C + lambda / (1 + lambda) d d',
    S U S + S = V,   mu = mu_t / (1 + lambda) + lambda / (1 + lambda) (S g + z),

with batch means z and g, batch covariances C and G, and d = mu_t - z. With V = L L' and
L' U L = Q diag(a) Q' the positive solution is S = 2 L Q diag(1 / (1 + sqrt(1 + 4 a))) Q' L'.
Written from the paper's formulas, with its lambda_t = B D / (t + 1) for targets that are not
Gaussian.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

BATCH, STEPS = 32, 500


def batch_and_match(
    log_density: Callable[[jax.Array], jax.Array],
    dimension: int,
    *,
    batch: int = BATCH,
    steps: int = STEPS,
    seed: int = 0,
) -> tuple[jax.Array, jax.Array]:
    """Mean and a factor F of the covariance F F', from a standard normal start."""
    scores = jax.vmap(jax.grad(log_density))

    def step(state, t):
        mean, factor = state
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(seed), t), (batch, dimension))
        z = mean + noise @ factor.T
        g = scores(z)
        found = match(mean, factor @ factor.T, z, g, batch * dimension / (t + 1.0))
        usable = jnp.isfinite(g).all() & jnp.isfinite(found[0]).all() & jnp.isfinite(found[1]).all()
        return jax.tree.map(lambda new, old: jnp.where(usable, new, old), found, state), None

    start = (jnp.zeros(dimension), jnp.eye(dimension))
    (mean, factor), _ = jax.jit(lambda s: jax.lax.scan(step, s, jnp.arange(steps)))(start)
    return mean, factor


def match(
    mean: jax.Array, covariance: jax.Array, z: jax.Array, g: jax.Array, rate: float | jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The new mean and a factor of the new covariance, from one batch and its scores."""
    share, size = rate / (1 + rate), len(z)
    z_mean, g_mean = z.mean(axis=0), g.mean(axis=0)
    dz, dg, off = z - z_mean, g - g_mean, mean - z_mean
    # U and V of the paper; U stays in factored form, its rank is at most the batch and one.
    rows = jnp.concatenate([jnp.sqrt(rate / size) * dg, jnp.sqrt(share) * g_mean[None]])
    v = covariance + rate / size * dz.T @ dz + share * jnp.outer(off, off)
    lower = jnp.linalg.cholesky(0.5 * (v + v.T))
    inner = rows @ lower
    values, vectors = jnp.linalg.eigh(inner.T @ inner)
    shrink = jnp.sqrt(2 / (1 + jnp.sqrt(1 + 4 * jnp.maximum(values, 0.0))))
    factor = lower @ (vectors * shrink)
    found = mean / (1 + rate) + share * (factor @ (factor.T @ g_mean) + z_mean)
    return found, factor
