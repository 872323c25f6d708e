"""The bound on fresh draws, with its standard error."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi.expectation import energies
from curvi.families import Family, Params
from curvi.targets import DataTarget, Density, RowDensity, Target

_DRAWS, _FEWEST_DRAWS = 1024, 64
_WORK = 3e8  # rows times draws beyond which fewer draws are used
_TOGETHER = 32


@partial(jax.jit, static_argnames=("density", "family", "num_draws"))
def _energies(
    density: Density | RowDensity,
    family: Family,
    params: Params,
    rows: PyTree,
    key: PRNGKeyArray,
    num_draws: int,
) -> tuple[Float[Array, " draws"], Float[Array, ""]]:
    shape = (num_draws // _TOGETHER, _TOGETHER, family.num_noise(params.mean.shape[0]))
    noise = family.base.sample(key, shape, params.mean.dtype)
    values = jax.lax.map(lambda block: energies(density, family, params, block, rows), noise)
    return values.reshape(-1), family.entropy(params)


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
    values, entropy = _energies(target.density, family, params, target.rows, key, num_draws)
    column = np.asarray(values, np.float64)
    error = float(column.std(ddof=1) / num_draws**0.5)
    return float(np.asarray(entropy, np.float64) - column.mean()), error
