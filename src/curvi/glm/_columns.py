"""Columns in and out of the units in which a model is fitted; a sparse table stays sparse."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError
from curvi.glm._design import DenseDesign, Design, SparseDesign

_SAFE = 1e-4  # share of the root of the largest number up to which squares can be summed

_AT_ONCE = 2048


@dataclass(frozen=True)
class Columns:
    """``x~ = (x - centre) / scale``, and a column of ones at the end for the intercept.

    ``mean_square`` of each fitted column says how much a coefficient moves the predictor.
    """

    centre: np.ndarray
    scale: np.ndarray
    intercept: bool
    mean_square: np.ndarray

    @property
    def count(self) -> int:
        """Fitted columns, the intercept included."""
        return self.centre.shape[0] + self.intercept

    def design(self, X: Any) -> Design:
        """The fitted matrix: dense, or sparse with implicit centring."""
        if not sparse.issparse(X):
            return DenseDesign(self.dense(X))
        table = sparse.csr_array(X)
        rows = np.repeat(np.arange(table.shape[0], dtype=np.int32), np.diff(table.indptr))
        dtype = table.dtype
        return SparseDesign(
            values=np.asarray(table.data),
            rows=rows,
            columns=table.indices.astype(np.int32),
            centre=self.centre.astype(dtype),
            inverse_scale=(1 / self.scale).astype(dtype),
            num_rows=int(table.shape[0]),
            intercept=self.intercept,
        )

    def dense(self, X: np.ndarray) -> np.ndarray:
        """The fitted matrix of a dense table, in the table's precision."""
        features = X.shape[1]
        fitted = np.ones((X.shape[0], features + self.intercept), X.dtype)
        for part in _parts(X.shape[0]):
            fitted[part, :features] = (X[part].astype(np.float64) - self.centre) / self.scale
        return fitted

    def slopes(self, weights: np.ndarray) -> np.ndarray:
        """Coefficients of the user's columns, from (..., columns) in fitted units."""
        return weights[..., : self.scale.shape[0]] / self.scale

    def offsets(self, weights: np.ndarray) -> np.ndarray:
        """The intercept in the user's units; zero where there is none."""
        if not self.intercept:
            return np.zeros(weights.shape[:-1])
        return weights[..., -1] - self.slopes(weights) @ self.centre


class Moments(NamedTuple):
    """Total weight, weighted means and variances of columns, in float64."""

    total: float
    mean: np.ndarray
    variance: np.ndarray

    @classmethod
    def of(cls, X: Any, weight: np.ndarray) -> Moments:
        """Of the columns of a table, whatever its precision."""
        weight = weight.astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if sparse.issparse(X):
                return cls(float(weight.sum()), *_sparse_moments(X, weight))
            return cls(float(weight.sum()), *_dense_moments(X, weight))

    def merged(self, other: Moments) -> Moments:
        """Of the rows of both, exactly."""
        total = self.total + other.total
        share = other.total / total
        gap = other.mean - self.mean
        variance = (1 - share) * self.variance + share * other.variance
        return Moments(total, self.mean + share * gap, variance + share * (1 - share) * gap**2)


def canonical(X: Any) -> Any:
    """A sparse table with one entry per place, in order; a copy where the given one is not."""
    if X.has_canonical_format:
        return X
    X = X.copy()
    X.sum_duplicates()
    return X


def columns_of(moments: Moments, dtype: Any, *, standardize: bool, intercept: bool) -> Columns:
    """How columns of these moments are fitted; a constant column keeps the scale one.

    Without an intercept columns are scaled by their root mean square and not centred, since
    nothing could take up the shift.
    """
    mean, variance = moments.mean, moments.variance
    centre, scale = np.zeros_like(mean), np.ones_like(mean)
    if standardize:
        # What is not centred has the size of its root mean square, not of its sd.
        square = variance if intercept else variance + mean**2
        constant = square <= (10 * np.finfo(dtype).eps * np.abs(mean)) ** 2
        scale = np.where(constant, 1.0, np.sqrt(square))
        centre = mean if intercept else centre
    with np.errstate(over="ignore"):
        mean_square = (variance + (mean - centre) ** 2) / scale**2
    columns = Columns(centre, scale, intercept, mean_square)
    _refuse_overflow(dtype, columns)
    return columns


def _sparse_moments(X: Any, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    table, total = sparse.csr_array(X).astype(np.float64), weight.sum()
    mean = table.T @ weight / total
    filled = sparse.csr_array((weight @ (table != 0)).reshape(1, -1)).toarray()[0]
    centred = table.copy()
    centred.data = (centred.data - mean[centred.indices]) ** 2
    rest = np.maximum(total - filled, 0) * mean**2
    explicit_zeros = sparse.csr_array(
        (centred.data * (table.data != 0), table.indices, table.indptr), table.shape
    )
    return mean, (explicit_zeros.T @ weight + rest) / total


def _dense_moments(X: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean, square, total = np.zeros(X.shape[1]), np.zeros(X.shape[1]), weight.sum()
    for part in _parts(X.shape[0]):
        mean += weight[part] @ X[part].astype(np.float64) / total
    for part in _parts(X.shape[0]):
        square += weight[part] @ (X[part].astype(np.float64) - mean) ** 2
    return mean, square / total


def _parts(rows: int) -> Iterator[slice]:
    """Slices of rows that fit into the cache."""
    return (slice(start, start + _AT_ONCE) for start in range(0, rows, _AT_ONCE))


def _refuse_overflow(dtype: Any, columns: Columns) -> None:
    """Refuse a table whose fitted columns cannot be squared and summed in its precision."""
    limit = _SAFE * float(np.sqrt(np.finfo(dtype).max))
    size = np.sqrt(columns.mean_square)
    bad = ~(np.isfinite(size) & (size < limit) & np.isfinite(columns.scale))
    if bad.any():
        column = int(np.flatnonzero(bad)[0])
        raise InputError(
            f"column {column} of X is too large for {np.dtype(dtype)} (root mean square "
            f"{size[column]:.3g} in fitted units, {limit:.3g} is possible); use "
            "standardize=True or rescale it"
        )
