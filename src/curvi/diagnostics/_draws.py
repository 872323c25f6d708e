"""The variance of estimates from one draw at a fitted posterior."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from curvi.concentration import VarianceReport
from curvi.families import Family, Params
from curvi.objective import energies, host_sample
from curvi.targets import AbstractTarget


def variance_of_draws(
    target: AbstractTarget,
    family: Family,
    params: Params,
    num_draws: int,
    lipschitz: float,
    seed: int,
) -> VarianceReport:
    """Variance of ``log p(z)`` and of its reparameterised gradient over independent draws."""
    width = family.num_noise(target.dimension)
    draws = host_sample(np.random.default_rng(seed), num_draws, width, family.base)

    def energy(params: Params, noise: Float[Array, " noise"]) -> Array:
        return energies(target.density, family, params, noise[None, :], target.rows)[0]

    def one(noise: Float[Array, " noise"]) -> tuple[Array, Any]:
        value, gradient = jax.value_and_grad(energy)(params, noise)
        return value, ravel_pytree(gradient)[0]

    values, gradients = jax.lax.map(jax.jit(one), jnp.asarray(draws.astype(target.dtype)))
    spread = float(jnp.sum(jnp.var(gradients, axis=0, ddof=1)))
    return VarianceReport(float(np.asarray(values, np.float64).var(ddof=1)), spread, lipschitz)
