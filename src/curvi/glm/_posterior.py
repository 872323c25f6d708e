"""The fitted Gaussian posterior in NumPy: predictors of new rows, draws, moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy import sparse

from curvi.families import Params
from curvi.families._family import Family
from curvi.glm._columns import Columns


@dataclass(frozen=True)
class Posterior:
    """K independent blocks ``w_k = mean_k + diagonal_k e + factor_k e'`` in fitted units.

    Mean-field posteriors have no factor, full-rank ones a diagonal of zeros.
    """

    columns: Columns
    mean: np.ndarray  # (blocks, columns)
    diagonal: np.ndarray  # (blocks, columns)
    factor: np.ndarray | None  # (blocks, columns, rank)

    @property
    def variance(self) -> np.ndarray:
        """Marginal variances in fitted units."""
        variance = self.diagonal**2
        return variance if self.factor is None else variance + np.sum(self.factor**2, axis=2)

    def predictor(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and variance of every linear predictor, both (rows, blocks)."""
        fitted = X if sparse.issparse(X) else self.columns.dense(X).astype(np.float64)
        mean = self._linear(fitted, self.mean.T)
        variance = self._squares(fitted, (self.diagonal**2).T)
        if self.factor is not None:
            for block, factor in enumerate(self.factor):
                variance[:, block] += np.sum(self._linear(fitted, factor) ** 2, axis=1)
        return mean, variance

    def sample(self, num_draws: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Slopes (draws, blocks, features) and intercepts (draws, blocks) in user's units."""
        random = np.random.default_rng(seed)
        weights = self.mean + self.diagonal * random.standard_normal((num_draws, *self.mean.shape))
        if self.factor is not None:
            blocks, _, rank = self.factor.shape
            noise = random.standard_normal((num_draws, blocks, rank))
            weights = weights + np.einsum("kpr,dkr->dkp", self.factor, noise)
        return self.columns.slopes(weights), self.columns.offsets(weights)

    def _linear(self, fitted: Any, weights: np.ndarray) -> np.ndarray:
        if not sparse.issparse(fitted):
            return fitted @ weights
        slopes = self.columns.slopes(weights.T).T
        return np.asarray(fitted @ slopes) + self.columns.offsets(weights.T)

    def _squares(self, fitted: Any, variances: np.ndarray) -> np.ndarray:
        """``(X~ * X~) s`` without forming X~ from a sparse table."""
        if not sparse.issparse(fitted):
            return (fitted * fitted) @ variances
        features = self.columns.scale.shape[0]
        scaled = variances[:features] / self.columns.scale[:, None] ** 2
        centred = self.columns.centre[:, None] * scaled
        table = fitted.astype(np.float64)
        total = table.multiply(table) @ scaled - 2 * (table @ centred)
        total = np.maximum(total + self.columns.centre @ centred, 0)
        return total + variances[-1] if self.columns.intercept else total


def posterior_of(columns: Columns, family: Family, q: Params) -> Posterior:
    """The posterior of a fit, with a leading axis of blocks."""
    mean = np.asarray(q.mean, np.float64)
    single = mean.ndim == 1
    blocks = [q] if single else [_block(q, k) for k in range(mean.shape[0])]
    parts = [_parts(family, block) for block in blocks]
    factors = [factor for _, factor in parts]
    return Posterior(
        columns,
        mean[None, :] if single else mean,
        np.stack([diagonal for diagonal, _ in parts]),
        None if factors[0] is None else np.stack(factors),
    )


def _block(q: Params, k: int) -> Params:
    return jax.tree.map(lambda leaf: leaf[k], q)


def _parts(family: Family, q: Params) -> tuple[np.ndarray, Any]:
    """Diagonal and factor of one block."""
    entries = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), q.scale_params)
    diagonal, factor = family.scale.diagonal_and_factor(entries, np)
    return np.zeros(factor.shape[0]) if diagonal is None else diagonal, factor
