"""The bound on fresh draws, with its standard error."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.expectation import energies, host_sample
from curvi.families import Family, Params
from curvi.targets import DataTarget, Density, RowDensity, Target

_DRAWS, _FEWEST_DRAWS = 1024, 64
_WORK = 3e8  # rows times draws beyond which fewer draws are used
_TOGETHER = 32


@partial(jax.jit, static_argnames=("density", "family"))
def _energies(
    density: Density | RowDensity,
    family: Family,
    params: Params,
    rows: PyTree,
    noise: Float[Array, "blocks together noise"],
) -> tuple[Float[Array, "blocks together"], Float[Array, ""]]:
    values = jax.lax.map(lambda block: energies(density, family, params, block, rows), noise)
    return values, family.entropy(params)


def evaluate_elbo(
    target: Target | DataTarget, family: Family, params: Any, key: PRNGKeyArray
) -> tuple[float, float]:
    """Evidence lower bound and its standard error from independent draws.

    1,024 draws, or fewer (64 at least) when there are very many rows.
    """
    num_draws = _DRAWS
    if isinstance(target, DataTarget):
        num_draws = int(np.clip(_WORK / target.num_rows, _FEWEST_DRAWS, _DRAWS))
        num_draws -= num_draws % _TOGETHER
    width = family.num_noise(target.dimension)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    draws = host_sample(rng, num_draws, width, family.base).astype(target.dtype)
    noise = jnp.asarray(draws.reshape(-1, _TOGETHER, width))
    values, entropy = _energies(target.density, family, params, target.rows, noise)
    column = np.asarray(values, np.float64).ravel()
    with np.errstate(invalid="ignore", over="ignore"):  # a bound that is not finite is judged later
        error = float(column.std(ddof=1) / num_draws**0.5)
        return float(np.asarray(entropy, np.float64) - column.mean()), error
