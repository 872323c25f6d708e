r"""Does q fit? Pareto-smoothed importance sampling of q against the target.

With ratios :math:`w_s = p(z_s) / q(z_s)` at draws of q, a tail of w that is as heavy as that of a
Pareto distribution with shape k > 0.7 means that parts of the target are hardly visited
by q. The relative effective sample size is :math:`(\sum w)^2 / (S \sum w^2)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

WORST_K = 0.7
LEAST_ESS = 0.25  # below this most draws are wasted on places the target avoids, whatever k says
ENOUGH_ESS = 0.9
_CONSTANT = 1e-6  # log ratios that differ by less have no tail to fit


@dataclass(frozen=True, eq=False)
class ImportanceWeights:
    """Smoothed weights of the draws (they sum to one), Pareto k and relative ESS."""

    weights: np.ndarray
    khat: float
    relative_ess: float

    @property
    def misfit(self) -> bool:
        """Whether to warn: k above 0.7 and a relative ESS below 0.9, or one below 0.25.

        k alone misfires on fits that are all but exact, whose ratios are constant to rounding.
        """
        fits = self.khat <= WORST_K or self.relative_ess >= ENOUGH_ESS
        return not fits or self.relative_ess < LEAST_ESS


class Moments(NamedTuple):
    """Mean and sd under the target, by importance weights; pytrees in the user's space."""

    mean: PyTree
    sd: PyTree


def raw_relative_ess(log_ratio: np.ndarray) -> float:
    """Relative ESS without smoothing: a first look that needs no library."""
    finite = log_ratio[np.isfinite(log_ratio)]
    if not finite.size:
        return 0.0
    weights = np.exp(finite - finite.max())
    return float(weights.sum() ** 2 / (log_ratio.size * np.sum(weights**2)))


def smoothed_weights(log_ratio: np.ndarray) -> ImportanceWeights:
    """Pareto-smooth the ratios with arviz-stats.

    Ratios that are not finite (outside the support) have weight zero. If none is finite, k is
    infinite and the relative ESS is zero.
    """
    finite = np.isfinite(log_ratio)
    weights = np.zeros(len(log_ratio))
    if not finite.any():
        return ImportanceWeights(weights, float("inf"), 0.0)
    shifted = log_ratio[finite] - log_ratio[finite].max()
    if np.ptp(shifted) <= _CONSTANT:
        weights[finite] = 1 / finite.sum()  # no tail to fit
        khat = float("-inf")
    else:
        from arviz_stats.base.array import array_stats

        logs, shape = array_stats.psislw(-shifted)  # it takes log likelihoods, as for LOO
        weights[finite] = np.exp(np.asarray(logs))
        khat = float(shape)
    weights /= weights.sum()
    return ImportanceWeights(weights, khat, float(1 / (len(weights) * np.sum(weights**2))))


def weighted_moments(draws: PyTree, weights: np.ndarray) -> Moments:
    """Weighted mean and sd of every leaf over its leading axis."""

    def mean(leaf: Float[Array, "..."]) -> Array:
        return jnp.tensordot(jnp.asarray(weights, leaf.dtype), leaf, axes=1)

    means = jax.tree.map(mean, draws)

    def sd(leaf: Any, centre: Any) -> Array:
        return jnp.sqrt(mean((leaf - centre[None]) ** 2))

    return Moments(means, jax.tree.map(sd, draws, means))
