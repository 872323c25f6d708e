r"""Rows with one linear predictor or several; a softmax in the contrasts between its logits.

The probabilities of K classes do not change when the same number is added to all logits. With an
orthonormal basis Q of the vectors that sum to zero, :math:`t = Q s`, the K - 1 contrasts s hold
all that the rows say. Coefficients :math:`B = Q^\top W` of contrasts have the prior of those of
classes, and what is common to all classes keeps its prior, independent of them: nothing is lost
where W = Q B, whose coefficients sum to zero over the classes.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from scipy import linalg, special

from curvi._core.memory import row_slices
from curvi.likelihoods._base import Likelihood

_FEWEST_DRAWS = 64
_NUMBERS_AT_ONCE = 2_000_000  # of a table of draws x rows x classes


class PredictorTerms(NamedTuple):
    """``-E[log p(y | t)]`` of rows, its gradient and expected Hessian in C predictors."""

    value: np.ndarray  # (rows,)
    slope: np.ndarray  # (rows, C)
    curvature: np.ndarray  # (rows, C, C), positive semi-definite


class RowModel(abc.ABC):
    """The likelihood of a row as a function of C jointly Gaussian predictors."""

    count: int  # C
    conjugate: bool = False  # rows have Gaussian noise

    @abc.abstractmethod
    def terms(self, mean: np.ndarray, covariance: np.ndarray, y: np.ndarray) -> PredictorTerms:
        """Of rows with means (rows, C) and covariances (rows, C, C)."""


@dataclass(frozen=True)
class OnePredictor(RowModel):
    """A likelihood of one linear predictor, of unit noise where it has noise."""

    likelihood: Likelihood
    count: int = 1

    @property
    def conjugate(self) -> bool:  # type: ignore[override]
        """Whether the likelihood is Gaussian."""
        return self.likelihood.conjugate

    def terms(self, mean: np.ndarray, covariance: np.ndarray, y: np.ndarray) -> PredictorTerms:
        """In closed form or by one-dimensional quadrature."""
        found = self.likelihood.row_terms(
            mean[:, 0], covariance[:, 0, 0], y.astype(np.float64), second=False
        )
        curvature = np.broadcast_to(-found.mean_mean, mean[:, 0].shape)
        return PredictorTerms(-found.value, -found.by_mean[:, None], curvature[:, None, None])


@cache
def contrast_basis(num_classes: int) -> np.ndarray:
    """Orthonormal columns (classes, classes - 1) that sum to zero."""
    return np.ascontiguousarray(linalg.helmert(num_classes).T)


def draws_for(rows: int, most: int = 1024) -> int:
    """Draws for a table of so many rows: what few rows leave open, q reaches far into."""
    return max(_FEWEST_DRAWS, min(most, 2 ** (16 - max(rows, 1).bit_length())))


def logit_draws(dimension: int, seed: int, fewest: int = _FEWEST_DRAWS) -> np.ndarray:
    """Fixed standard-normal draws: scrambled Sobol, antithetic, with an exact second moment.

    Odd moments are exact by symmetry and the second by whitening, so that every polynomial of
    degree three in the logits is integrated exactly.
    """
    from scipy.stats import qmc

    pairs = max(fewest // 2, 2 ** int(np.ceil(np.log2(2 * dimension))))
    points = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed)).random(pairs)
    half = special.ndtri(np.clip(points, 1e-12, 1 - 1e-12))
    factor = np.linalg.cholesky(half.T @ half / pairs)
    half = np.linalg.solve(factor, half.T).T
    return np.concatenate([half, -half])


@dataclass(frozen=True)
class Contrasts(RowModel):
    """The likelihood of class numbers y given ``count`` contrasts, averaged over draws of them."""

    count: int
    draws: np.ndarray

    def terms(self, mean: np.ndarray, covariance: np.ndarray, y: np.ndarray) -> PredictorTerms:
        """``E[logsumexp(Q s)] - E[t_y]``, with gradient and expected Hessian in s."""
        basis = contrast_basis(self.count + 1)
        value, slope = np.empty(len(mean)), np.empty_like(mean)
        curvature = np.empty_like(covariance)
        for part in row_slices(len(mean), max(1, _NUMBERS_AT_ONCE // (self.draws.size + 1))):
            own = basis[y[part].astype(np.intp)]
            t = _logits(mean[part], covariance[part], self.draws)
            spread = special.logsumexp(t, axis=2)
            p = np.exp(t - spread[:, :, None])
            average = p.mean(axis=0)
            second = np.einsum("dik,dil->ikl", p, p, optimize=True) / len(self.draws)
            hessian = average[:, :, None] * np.eye(self.count + 1) - second
            value[part] = spread.mean(axis=0) - np.sum(own * mean[part], axis=1)
            slope[part] = average @ basis - own
            curvature[part] = basis.T @ hessian @ basis
        return PredictorTerms(value, slope, curvature)


def expected_softmax(mean: np.ndarray, covariance: np.ndarray, seed: int = 0) -> np.ndarray:
    """``E[softmax(t)]`` for rows of Gaussian logits (rows, classes), averaged over fixed draws."""
    classes = mean.shape[1]
    basis, draws = contrast_basis(classes), logit_draws(classes - 1, seed, fewest=256)
    out = np.empty_like(mean)
    for part in row_slices(len(mean), max(1, _NUMBERS_AT_ONCE // draws.size)):
        inner = basis.T @ covariance[part] @ basis
        logits = _logits(mean[part] @ basis, inner, draws)
        out[part] = special.softmax(logits, axis=2).mean(axis=0)
    return out


def _logits(
    mean: np.ndarray, covariance: np.ndarray, draws: np.ndarray, *, smallest: float = 1e-150
) -> np.ndarray:
    """Draws of logits that sum to zero, (draws, rows, classes), from moments of contrasts.

    ``smallest``: variance of a logit that counts as none, and can still be divided by.
    """
    index = np.arange(mean.shape[1])
    size = np.einsum("ikk->i", covariance)
    padded = covariance.copy()
    # Contrasts can be known exactly, or depend on each other, as those of a row of zeros do.
    padded[:, index, index] += (1e-12 * size + smallest)[:, None]
    factor = np.linalg.cholesky(padded)
    s = mean + np.einsum("ikl,dl->dik", factor, draws, optimize=True)
    return s @ contrast_basis(mean.shape[1] + 1).T
