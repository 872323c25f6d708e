"""The posterior of a regression in fitted units: moments, predictors, draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError
from curvi._core.memory import row_slices
from curvi.families import Family, Params
from curvi.glm._design import Columns, DenseDesign, Design, binary_unit
from curvi.glm._narrowness import centred_variance
from curvi.glm._starts import blocks_of, total_variance
from curvi.likelihoods import contrast_basis


@dataclass(frozen=True)
class Posterior:
    """K blocks ``w_k = mean_k + diagonal_k e + factor_k e'`` in fitted units.

    Mean-field posteriors have no factor, full-rank ones a diagonal of zeros. Blocks are
    independent, or ``shared`` says that they have the noise e' in common. ``centred`` blocks are
    shown as differences from their mean, which changes no probability of a class.
    """

    columns: Columns
    mean: np.ndarray  # (blocks, columns)
    diagonal: np.ndarray  # (blocks, columns)
    factor: np.ndarray | None  # (blocks, columns, rank)
    shared: bool = False
    centred: bool = False

    @classmethod
    def of(cls, columns: Columns, family: Family, q: Params, *, centred: bool = False) -> Posterior:
        """The posterior of a fit, with a leading axis of blocks."""
        if q.mean.ndim == 1 and q.mean.size > columns.count:
            return cls._of_contrasts(columns, family, q)
        return cls(columns, *blocks_of(family, q), centred=centred)

    @classmethod
    def _of_contrasts(cls, columns: Columns, family: Family, q: Params) -> Posterior:
        """Of classes whose coefficients sum to zero, from the contrasts between them."""
        basis = contrast_basis(q.mean.size // columns.count + 1)
        parts: Any = (q.mean, family.scale.diagonal_and_factor(q.scale_params, np)[1])
        mean, factor = (
            np.tensordot(basis, np.asarray(part, np.float64).reshape(shape), 1)
            for part, shape in zip(
                parts, [(-1, columns.count), (basis.shape[1], columns.count, -1)], strict=True
            )
        )
        return cls(columns, mean, np.zeros_like(mean), factor, shared=True)

    @property
    def shown_mean(self) -> np.ndarray:
        """Means of the coefficients that are shown."""
        return self.mean - self.mean.mean(axis=0) if self.centred else self.mean

    @property
    def variance(self) -> np.ndarray:
        """Marginal variances of the coefficients that are shown."""
        variance = total_variance(self.diagonal, self.factor)
        return centred_variance(variance) if self.centred else variance

    def at_origin(self) -> np.ndarray:
        """Sds of the predictors that are shown, where all features are zero."""
        variance = self.predictor(np.zeros((1, self.columns.scale.shape[0])))[1][0] ** 2
        return np.sqrt(centred_variance(variance) if self.centred else variance)

    def joint_predictor(self, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean and sd of every predictor, (rows, blocks), and the correlations of each row."""
        mean, sd = self.predictor(X)
        correlation = np.tile(np.eye(mean.shape[1]), (mean.shape[0], 1, 1))
        if self.shared and self.factor is not None:
            X = X.astype(np.float64, copy=False)
            for part in row_slices(mean.shape[0]):
                with np.errstate(all="ignore"):
                    spread = self._directions(self.columns.design(X[part]))
                lost = np.flatnonzero(~np.isfinite(spread).all(axis=(1, 2)))
                for row in lost:
                    spread[row] = self._directions(self._scaled(X[[part.start + row]])[0])[0]
                for order in (np.inf, 2):  # the largest first: squares of the others are in range
                    size = np.linalg.norm(spread, order, axis=2, keepdims=True)
                    spread /= np.where(size > 0, size, 1.0)
                correlation[part] = np.einsum("ikr,ilr->ikl", spread, spread, optimize=True)
        return mean, sd, correlation

    def _directions(self, design: Design) -> np.ndarray:
        """How the noise moves every predictor, (rows, blocks, rank)."""
        assert self.factor is not None  # noqa: S101  for the type checker
        return np.stack([design.linear(block) for block in self.factor], axis=1)

    def predictor(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and sd of every linear predictor, both (rows, blocks), in float64.

        Raises
        ------
        InputError
            For a row whose predictor is beyond the largest number.
        """
        X = X.astype(np.float64, copy=False)
        with np.errstate(all="ignore"):  # what overflows is computed again, in other units
            mean, sd = self._moments(self.columns.design(X))
            for row in np.flatnonzero(~np.isfinite(np.hypot(mean, sd)).all(axis=1)):
                mean[row], sd[row] = self._distant(X[[row]])
                if not np.isfinite([mean[row], sd[row]]).all():
                    raise InputError(
                        f"row {row} of X is so far from the rows of the fit that its predictor "
                        "overflows; is it in the units of the fit?"
                    )
        return mean, sd

    def _moments(self, design: Design) -> tuple[np.ndarray, np.ndarray]:
        variance = design.squares((self.diagonal**2).T)
        if self.factor is not None:
            for block, factor in enumerate(self.factor):
                variance[:, block] += np.sum(design.linear(factor) ** 2, axis=1)
        return design.linear(self.mean.T), np.sqrt(variance)

    def _distant(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Moments of one row whose entries cannot be squared: of the row in units of its size."""
        design, unit, again = self._scaled(X)
        mean, sd = self._moments(design)
        return mean[0] * again * unit, sd[0] * again * unit

    def _scaled(self, X: Any) -> tuple[DenseDesign, Any, Any]:
        """One row in units of its size, and these units."""
        x = X.toarray() if sparse.issparse(X) else X
        columns, unit = self.columns, binary_unit(np.abs(x).max())
        fitted = np.full((1, columns.count), 1 / unit)
        fitted[:, : x.shape[1]] = (x / unit - columns.centre / unit) / columns.scale
        again = binary_unit(np.abs(fitted).max())
        return DenseDesign(fitted / again), unit, again

    def sample(self, num_draws: int, seed: int | list[int]) -> np.ndarray:
        """Draws of the coefficients (draws, blocks, columns) in fitted units."""
        random = np.random.default_rng(seed)
        weights = self.mean + self.diagonal * random.standard_normal((num_draws, *self.mean.shape))
        if self.factor is not None:
            blocks, _, rank = self.factor.shape
            noise = random.standard_normal((num_draws, 1 if self.shared else blocks, rank))
            shape = (num_draws, blocks, rank)
            moved = np.einsum("kpr,dkr->dkp", self.factor, np.broadcast_to(noise, shape))
            weights = weights + moved
        return weights - weights.mean(axis=1, keepdims=True) if self.centred else weights
