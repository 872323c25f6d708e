"""From a variational posterior to a sampler of BlackJAX."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
from jaxtyping import Array, Float, PyTree

from curvi._core import validation
from curvi._core.trees import precision_of, ravel
from curvi.diagnostics import FitResult
from curvi.targets import AbstractTarget, StoredTarget


class SamplerStart(NamedTuple):
    """What a sampler such as ``blackjax.nuts`` needs to begin where the fit ended.

    Attributes
    ----------
    logdensity_fn : callable
        The log density of an unconstrained position, a pytree; all rows of data included.
    positions : pytree
        Independent draws from q, one per chain along the leading axis, unconstrained.
    inverse_mass_matrix : array
        Variances of q, (D,), for a mean-field family and the covariance, (D, D), otherwise, in
        the flattening order of the position, which is BlackJAX's.
    step_size : float
        ``D ** -0.25``, the scaling of HMC for a whitened target: a first guess to adapt from.
    """

    logdensity_fn: Callable[[PyTree], Array]
    positions: PyTree
    inverse_mass_matrix: Array
    step_size: float


def to_blackjax(result: FitResult, num_chains: int = 4, *, seed: int = 0) -> SamplerStart:
    """Starting positions and an inverse mass matrix from a fit.

    Parameters
    ----------
    result : FitResult
        The fit to start from.
    num_chains : int
        Number of starting positions.
    seed : int
        Seed of the draws.

    Returns
    -------
    SamplerStart
        Log density, positions, inverse mass matrix and step size; BlackJAX itself is not needed.

    Raises
    ------
    InputError
        If ``num_chains`` is not a positive integer.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum(x**2), jnp.ones(2), progress=False)
    >>> start = result.to_blackjax(num_chains=3)
    >>> start.positions.shape, start.inverse_mass_matrix.shape
    ((3, 2), (2, 2))
    """
    validation.positive_integer(num_chains, "num_chains")
    target, family, params = result.target, result.family, result.params
    if isinstance(target, StoredTarget):
        target.check_start()  # says what is missing, before a sampler does
    with precision_of(target.dtype):
        flat = family.sample(params, validation.random_key(seed), num_chains)
        diagonal = family.scale.is_diagonal
        matrix = family.sd(params) ** 2 if diagonal else family.covariance(params)
        positions = jax.vmap(target.density.unravel)(flat)
    return SamplerStart(partial(_log_density, target), positions, matrix, target.dimension**-0.25)


def _log_density(target: AbstractTarget, position: PyTree) -> Float[Array, ""]:
    with precision_of(target.dtype):
        return target.log_prob(ravel(position))
