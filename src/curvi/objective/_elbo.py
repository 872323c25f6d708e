"""The stochastic objective: the negative evidence lower bound on given draws and rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core.errors import InputError
from curvi._core.trees import stable_sum
from curvi.families import Family, Params
from curvi.objective._draws import Draws, sample_draws
from curvi.targets import Density

_PER_ROW = 3  # axes of the noise when every row has draws of its own


class Stream:
    """What is folded into a key, one number for every use that shares its draws with no other."""

    VALIDATION = 3
    JUDGES = 7  # of start and end of a stochastic run
    REPLICATES = 0x3C
    PROBES = 0x9B  # of a solve
    SAME_ORDER = 0xC0  # of the draws that a correction picks
    STARTS = 0x57A
    FIXED_DRAWS = 0xD4A
    EVALUATION = 0xE1B
    NUDGES = 0x5ADD  # off a stationary point


def neg_elbo(
    density: Density,
    family: Family,
    params: Params,
    noise: Float[Array, "..."],
    rows: PyTree | None = None,
) -> Float[Array, ""]:
    r"""Negative evidence lower bound on given draws, with the analytic entropy.

    .. math::

        F(\theta) = -\frac1M \sum_m \Big[ \frac NB \sum_{b} \log p(y_b \mid z_m)
        + \log p(z_m) \Big] - H[q_\theta], \qquad z_m = \mu + R\,\epsilon_m

    Parameters
    ----------
    density : Density
        What is inferred: ``target.density`` of a Target or a DataTarget.
    family, params
        The variational distribution and its parameters.
    noise : array, shape (M, k) or (M, B, k)
        Draws of the base, shared by all rows, or one set for each row of the batch
        (Algorithm 1 of the paper).
    rows : pytree, optional
        For a density with rows, all of them or a minibatch, which is scaled by N / B.

    Returns
    -------
    scalar array
        F, to be minimised.

    Raises
    ------
    InputError
        If a density with rows is given none, or one without rows is given rows or draws per row.
    """
    return jnp.mean(energies(density, family, params, noise, rows)) - family.entropy(params)


def energies(
    density: Density,
    family: Family,
    params: Params,
    noise: Float[Array, "..."],
    rows: PyTree | None = None,
) -> Float[Array, " draws"]:
    """The negative log joint density at each draw, one term of the average in :func:`neg_elbo`.

    Parameters
    ----------
    density, family, params, noise, rows
        As for :func:`neg_elbo`.

    Returns
    -------
    array, shape (M,)
        ``-log p(y, z_m)``, the likelihood of a minibatch scaled to all rows. With draws per row,
        the log prior is averaged over the rows of the batch.

    Raises
    ------
    InputError
        As for :func:`neg_elbo`.
    """
    if density.num_rows:
        if rows is None:
            raise InputError("a DataTarget is evaluated on rows; pass target.rows for all of them")
        if noise.ndim == _PER_ROW:
            return _energies_per_row(density, family, params, noise, rows)
        return jax.vmap(lambda e: -density.log_prob(family.transform(params, e), rows))(noise)
    if rows is not None or noise.ndim == _PER_ROW:
        raise InputError("minibatches and draws per row need a DataTarget; Target has no rows")
    return jax.vmap(lambda e: -density.log_prob(family.transform(params, e)))(noise)


def _energies_per_row(
    density: Density,
    family: Family,
    params: Params,
    noise: Float[Array, "draws rows noise"],
    rows: PyTree,
) -> Float[Array, " draws"]:
    """The same with z_{m,b}: each row sees draws of its own; the prior averages over all."""

    def one(row: PyTree, epsilon: Float[Array, " noise"]) -> tuple[Array, Array]:
        z = family.transform(params, epsilon)
        single = jax.tree.map(lambda leaf: leaf[None], row)
        return density.log_likelihood_rows(z, single)[0], density.log_prior_prob(z)

    def one_set(epsilons: Float[Array, "rows noise"]) -> Float[Array, ""]:
        log_likelihood, log_prior = jax.vmap(one)(rows, epsilons)
        count = min(epsilons.shape[0], density.num_rows)
        weight = density.num_rows / count
        prior = jnp.sum(density.counted(log_prior)) / count
        return -weight * stable_sum(density.counted(log_likelihood)) - prior

    return jax.vmap(one_set)(noise)


def draw_noise(
    key: PRNGKeyArray,
    plan: Draws,
    family: Family,
    dimension: int,
    dtype: Any,
    num_rows: int | None = None,
) -> Float[Array, "..."]:
    """Make the noise of one step: (M, k), or (M, B, k) when the plan draws for each row.

    Parameters
    ----------
    key : key
        Key of the step.
    plan : Draws
        Number and kind of draws, shared or per row.
    family : Family
        Its base distribution and the length k of its noise are used.
    dimension : int
        Number of unconstrained coordinates.
    dtype : dtype
        Precision of the noise.
    num_rows : int, optional
        B, the rows of the batch; needed for draws per row.

    Returns
    -------
    array, shape (M, k) or (M, B, k)
        The noise, as :func:`neg_elbo` takes it.

    Raises
    ------
    InputError
        If the plan draws for each row and ``num_rows`` is left out.
    """

    def one(row_key: PRNGKeyArray) -> Float[Array, "draws noise"]:
        return sample_draws(
            row_key,
            plan.num_draws,
            family.num_noise(dimension),
            kind=plan.kind,
            base=family.base,
            dtype=dtype,
        )

    if not plan.per_row:
        return one(key)
    if num_rows is None:
        raise InputError("draws per row need a DataTarget, whose rows they belong to")
    return jax.vmap(one, out_axes=1)(jax.random.split(key, num_rows))
