"""An answer that is better than q: draws of the target, or weights for draws of q."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.trees import ArrayState, flat_numbers, on_device, precision_of
from curvi.diagnostics._evaluation import Moments, evaluation_noise, weighted_moments
from curvi.diagnostics._moments import (
    UserMoments,
    UserSpace,
    doubt_of,
    positions,
    positions_in_blocks,
)
from curvi.diagnostics._tails import continued_sd
from curvi.objective import Stream


@dataclass(frozen=True, eq=False)
class Attempt:
    """One attempt of ``family="auto"``, and what it cost.

    Attributes
    ----------
    name : str
        What was tried.
    elbo : float
        The bound of its q on fresh draws.
    relative_ess : float
        Effective sample size per draw of that q.
    evaluations : int
        Gradients of the log density that it took.
    seconds : float
        Wall-clock time.
    note : str
        What came of it.
    """

    name: str
    elbo: float
    relative_ess: float
    evaluations: int
    seconds: float
    note: str


@dataclass(frozen=True, eq=False)
class Correction(ArrayState):
    """Weighted draws that represent the target where q alone does not.

    Attributes
    ----------
    kind : {"hmc", "importance"}
        Draws of the target by HMC from draws of q, or draws of q with
        importance weights.
    draws : array, shape (draws, dimension)
        Flat, unconstrained positions.
    weights : array or None
        Their weights, which sum to one; None where all are equal.
    ess : float
        Effective number of draws for the worst coordinate.
    trusted : bool
        Whether the moments of the draws have converged.
    worst : str
        What q had wrong most, in words; empty where nothing was.
    joins : bool
        Whether the draws hold all modes of the result, each with its share.
    """

    kind: str
    draws: np.ndarray
    weights: np.ndarray | None
    ess: float
    trusted: bool
    worst: str = ""
    joins: bool = False

    def moments(self, space: UserSpace, orders: np.ndarray) -> UserMoments:
        """Mean and sd in the user's space, and why not to trust them.

        Where ``orders`` has the lowest order of an infinite moment and that is above two, the tail
        of transitions is continued beyond their draws.
        """
        found = self._numbers(space)
        weights = self.weights
        if weights is None:
            weights = np.full(len(self.draws), 1 / len(self.draws))
        mean, sd = weighted_moments(found, weights)
        heavy = np.isfinite(orders) & (orders > 2)
        if self.weights is not None or not heavy.any():
            return UserMoments(mean, sd, doubt_of(found))
        leaves, tree = jax.tree.flatten(found)
        columns = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
        flat, errors = flat_numbers(sd).astype(np.float64), np.full(len(heavy), np.nan)
        for j in np.flatnonzero(heavy):
            flat[j], errors[j] = continued_sd(columns[:, j], orders[j], self.ess)
        ends = np.cumsum([leaf[0].size for leaf in leaves])[:-1]
        parts = zip(np.split(flat, ends), leaves, strict=True)
        sds = [part.reshape(leaf[0].shape).astype(leaf.dtype) for part, leaf in parts]
        return UserMoments(mean, jax.tree.unflatten(tree, sds), doubt_of(found), errors)

    def positions(self, space: UserSpace, index: np.ndarray | None = None) -> PyTree:
        """The draws, or those with the given numbers, as the user sees them."""
        flat = self.draws if index is None else self.draws[index]
        return jax.tree.map(on_device, positions_in_blocks(space, flat))

    def _numbers(self, space: UserSpace) -> PyTree:
        """The draws as the user sees them, switches as zeros and ones."""

        def real(leaf: np.ndarray) -> np.ndarray:
            floating = np.issubdtype(leaf.dtype, np.floating)
            return leaf if floating else leaf.astype(self.draws.dtype)

        return jax.tree.map(real, positions_in_blocks(space, self.draws))

    def sample(self, space: UserSpace, num_draws: int, seed: int) -> PyTree:
        """``num_draws`` of the draws in the user's space."""
        return self.positions(space, self.chosen(num_draws, seed))

    def chosen(self, num_draws: int, seed: int) -> np.ndarray:
        """Numbers of the draws in a sample, no more than once each while there are enough."""
        rng = np.random.default_rng([Stream.SAME_ORDER, validation.checked_seed(seed)])
        again = num_draws > len(self.draws) or self.weights is not None
        return rng.choice(len(self.draws), num_draws, replace=again, p=self.weights)

    def covariance(self) -> np.ndarray:
        """Of the unconstrained coordinates."""
        return np.atleast_2d(np.cov(self.draws.T, aweights=self.weights, ddof=0))

    @property
    def error(self) -> float:
        """Monte-Carlo error of the mean in posterior sds, for the worst coordinate.

        The draws that are weighted have the mean of q exactly: only their weights have an error.
        """
        if self.weights is None:
            return float(self.ess**-0.5)
        count = len(self.draws)
        return float((max(count / self.ess - 1, 0.0) / count) ** 0.5)

    def sentence(self) -> str:
        """Where the answer comes from."""
        if self.kind == "importance":
            return f"draws of q with importance weights, worth {self.ess:.0f} draws"
        doubt = "" if self.trusted else ", not converged"
        return f"{len(self.draws)} draws by HMC from q, worth at least {self.ess:.0f}{doubt}"


def importance_moments(result: Any) -> Moments:
    """Mean and sd of a fit by the importance weights of its draws for the bound."""
    with precision_of(result.target.dtype):
        noise = jnp.asarray(evaluation_noise(result.target, result.family, result._key))
        weights = result._weights.weights  # of fewer draws where the time was up
        few = noise[: len(weights)]
        flat = jax.vmap(lambda e: result.family.transform(result.params, e))(few)
        return weighted_moments(positions(result._space, flat), weights)
