"""The units in which a model is fitted: design matrices, columns, and the posterior in them.

A dense table is standardised in a copy with its intercept column in place. A sparse table stays
sparse: centring and scaling are applied to products.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

from curvi._core.errors import InputError
from curvi._core.memory import row_slices

AnyArray = Any  # NumPy on the host, JAX in compiled fits


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DenseDesign:
    """A dense matrix, standardised and with its intercept column in place."""

    matrix: Float[AnyArray, "rows columns"]

    @property
    def num_columns(self) -> int:
        """Columns, the intercept included."""
        return int(self.matrix.shape[1])

    def linear(
        self, weights: Float[AnyArray, "columns ..."], *, rows_of_block: int = 256
    ) -> Float[AnyArray, "rows ..."]:
        """``X w``, of several w by blocks of rows.

        The transposed product adds them up in their order; left to XLA, the order would depend on
        the number of cores.

        ``rows_of_block``: rows whose products no library splits further.
        """
        rows, columns = self.matrix.shape
        whole = rows // rows_of_block * rows_of_block
        if isinstance(self.matrix, np.ndarray) or weights.ndim == 1 or whole == 0:
            return self.matrix @ weights
        blocks = self.matrix[:whole].reshape(-1, rows_of_block, columns)
        product = jax.lax.map(lambda block: block @ weights, blocks).reshape(whole, -1)
        return jnp.concatenate([product, self.matrix[whole:] @ weights])

    def squares(self, variances: Float[AnyArray, "columns ..."]) -> Float[AnyArray, "rows ..."]:
        """``(X * X) s``."""
        return (self.matrix * self.matrix) @ variances

    @property
    def num_entries(self) -> int:
        """Numbers that a product passes over."""
        return int(self.matrix.size)

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Of one draw of the coefficients for every row."""
        return self.matrix.shape

    def noisy(
        self, sd: Float[AnyArray, " columns"], noise: Float[AnyArray, "rows columns"]
    ) -> Float[AnyArray, " rows"]:
        """``sum_j x_ij s_j e_ij``: every row with noise of its own."""
        return (self.matrix * noise) @ sd


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SparseDesign:
    """Non-zeros in row order; centring and scaling are applied to products, never to the matrix.

    With ``x~ = (x - c) / s``: ``X~ w = X (w / s) - c'(w / s)`` and
    ``(X~ * X~) u = (X * X) u' - 2 X (c u') + (c * c)'u'`` where ``u' = u / s^2``.
    """

    values: Float[AnyArray, " nonzeros"]
    rows: Int[AnyArray, " nonzeros"]
    columns: Int[AnyArray, " nonzeros"]
    centre: Float[AnyArray, " features"]
    inverse_scale: Float[AnyArray, " features"]
    num_rows: int = field(metadata={"static": True})
    intercept: bool = field(metadata={"static": True})

    @property
    def num_columns(self) -> int:
        """Columns, the intercept included."""
        return int(self.centre.shape[0]) + self.intercept

    def padded(self, num_rows: int, num_values: int) -> SparseDesign:
        """The same matrix with rows of zeros at the end and explicit zeros among its values."""
        extra = num_values - self.values.shape[0]
        return replace(
            self,
            values=np.pad(self.values, (0, extra)),
            rows=np.pad(self.rows, (0, extra), constant_values=num_rows - 1),
            columns=np.pad(self.columns, (0, extra)),
            num_rows=num_rows,
        )

    def linear(self, weights: Float[AnyArray, "columns ..."]) -> Float[AnyArray, "rows ..."]:
        """``X~ w``, plus the intercept."""
        slopes, intercept = self._split(weights)
        scaled = slopes * _beside(self.inverse_scale, slopes)
        product = self._product(self.values, scaled)
        return product + _in_every_row(intercept - self.centre @ scaled)

    def squares(self, variances: Float[AnyArray, "columns ..."]) -> Float[AnyArray, "rows ..."]:
        """``(X~ * X~) s``, plus the intercept's."""
        slopes, intercept = self._split(variances)
        scaled = slopes * _beside(self.inverse_scale**2, slopes)
        centred = _beside(self.centre, slopes) * scaled
        total = self._product(self.values**2, scaled) - 2 * self._product(self.values, centred)
        total = total + _in_every_row(self.centre @ centred)
        return total.clip(0) + _in_every_row(intercept)

    @property
    def num_entries(self) -> int:
        """Numbers that a product passes over."""
        return int(self.values.shape[0])

    @property
    def noise_shape(self) -> tuple[int, ...]:
        """Of one draw of the coefficients for every row: where a feature is zero, none is needed.

        The intercept's come last. That is for features that are not centred.
        """
        return (self.values.shape[0] + self.intercept * self.num_rows,)

    def noisy(
        self, sd: Float[AnyArray, " columns"], noise: Float[AnyArray, " entries"]
    ) -> Float[AnyArray, " rows"]:
        """``sum_j x_ij s_j e_ij``: every row with noise of its own."""
        slopes, intercept = self._split(sd)
        entries = self.values.shape[0]
        spread = self.values * (slopes * self.inverse_scale)[self.columns] * noise[:entries]
        total = jax.ops.segment_sum(
            spread, self.rows, num_segments=self.num_rows, indices_are_sorted=True
        )
        return total + intercept * noise[entries:] if self.intercept else total

    def _product(self, values: Any, weights: Any) -> Any:
        if isinstance(values, np.ndarray):
            ends = np.searchsorted(self.rows, np.arange(self.num_rows + 1))
            shape = (self.num_rows, weights.shape[0])
            return sparse.csr_array((values, self.columns, ends), shape=shape) @ weights
        scaled = _beside(values, weights) * weights[self.columns]
        return jax.ops.segment_sum(
            scaled, self.rows, num_segments=self.num_rows, indices_are_sorted=True
        )

    def _split(self, weights: Any) -> tuple[Any, Any]:
        features = self.centre.shape[0]
        return weights[:features], weights[features] if self.intercept else 0 * weights[0]


Design = DenseDesign | SparseDesign


def _beside(vector: Any, weights: Any) -> Any:
    """A vector as one column next to weights that may have several."""
    return vector if weights.ndim == 1 else vector[:, None]


def _in_every_row(shift: Any) -> Any:
    """A scalar, or one number for each column of weights, to be added to all rows."""
    return shift if shift.ndim == 0 else shift[None, :]


class Moments(NamedTuple):
    """Total weight, weighted means and sds of columns, in float64.

    Sds and not variances: the square of an ordinary number can be too small or too large.
    """

    total: float
    mean: np.ndarray
    sd: np.ndarray

    @classmethod
    def of(cls, X: Any, weight: np.ndarray) -> Moments:
        """Of the columns of a table, whatever its precision."""
        weight = weight.astype(np.float64)
        moments = _sparse_moments if sparse.issparse(X) else _dense_moments
        with np.errstate(over="ignore", invalid="ignore"):  # of weights whose sum is not finite
            unit, mean, square = moments(X, weight)
            return cls(float(weight.sum()), unit * mean, unit * np.sqrt(square))

    def merged(self, other: Moments) -> Moments:
        """Of the rows of both, exactly."""
        total = self.total + other.total
        share = other.total / total
        gap = other.mean - self.mean
        within = np.hypot(np.sqrt(1 - share) * self.sd, np.sqrt(share) * other.sd)
        sd = np.hypot(within, np.sqrt(share * (1 - share)) * gap)
        return Moments(total, self.mean + share * gap, sd)


@dataclass(frozen=True)
class Columns:
    """``x~ = (x - centre) / scale``, and a column of ones at the end for the intercept.

    ``mean_square`` of each fitted column says how much a coefficient moves the predictor.
    """

    centre: np.ndarray
    scale: np.ndarray
    intercept: bool
    mean_square: np.ndarray

    @classmethod
    def of(cls, moments: Moments, dtype: Any, *, standardize: bool, intercept: bool) -> Columns:
        """How columns of these moments are fitted; a constant column keeps the scale one.

        Without an intercept columns are scaled by their root mean square and not centred, since
        nothing could take up the shift.
        """
        mean, sd = moments.mean, moments.sd
        centre, scale = np.zeros_like(mean), np.ones_like(mean)
        if standardize:
            # What is not centred has the size of its root mean square, not of its sd.
            size = sd if intercept else np.hypot(sd, mean)
            constant = size <= 10 * np.finfo(dtype).eps * np.abs(mean)
            scale = np.where(constant, 1.0, size)
            centre = mean if intercept else centre
        with np.errstate(over="ignore"):
            mean_square = (np.hypot(sd, mean - centre) / scale) ** 2
        columns = cls(centre, scale, intercept, mean_square)
        columns._check_squares(dtype)
        return columns

    @property
    def count(self) -> int:
        """Fitted columns, the intercept included."""
        return self.centre.shape[0] + self.intercept

    def design(self, X: Any) -> Design:
        """The fitted matrix: dense, or sparse with implicit centring."""
        if not sparse.issparse(X):
            return DenseDesign(self.dense(X))
        table = sparse.csr_array(X)
        dtype, unit = table.dtype, binary_unit(self.scale)  # so that entries can be squared
        return SparseDesign(
            values=(table.data / unit[table.indices]).astype(dtype),
            rows=np.repeat(np.arange(table.shape[0], dtype=np.int32), np.diff(table.indptr)),
            columns=table.indices.astype(np.int32),
            centre=(self.centre / unit).astype(dtype),
            inverse_scale=(unit / self.scale).astype(dtype),
            num_rows=int(table.shape[0]),
            intercept=self.intercept,
        )

    def dense(self, X: np.ndarray) -> np.ndarray:
        """The fitted matrix of a dense table, in the table's precision."""
        features = X.shape[1]
        fitted = np.ones((X.shape[0], features + self.intercept), X.dtype)
        for part in row_slices(X.shape[0]):
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

    def _check_squares(self, dtype: Any, *, safe: float = 1e-4) -> None:
        """Fitted columns must be small enough to be squared and summed in their precision.

        ``safe``: share of the root of the largest number up to which squares can be summed.
        """
        limit = safe * float(np.sqrt(np.finfo(dtype).max))
        size = np.sqrt(self.mean_square)
        bad = ~(np.isfinite(size) & (size < limit) & np.isfinite(self.scale))
        if bad.any():
            column = int(np.flatnonzero(bad)[0])
            raise InputError(
                f"column {column} of X is too large for {np.dtype(dtype)} (root mean square "
                f"{size[column]:.3g} in fitted units, {limit:.3g} is possible); use "
                "standardize=True or rescale it"
            )


def is_selected(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    r"""Whether the bound would lose more than a nat if a coefficient were switched off.

    The model with it is then e times as probable. With a quadratic energy the loss of an optimum
    of the relevance bound is :math:`\tfrac12 (r - \log(1 + r))`, :math:`r = m^2 / s`, the others
    held: half the square of a z-value, less what the prior takes.
    """
    ratio = mean**2 / np.maximum(variance, np.finfo(np.float64).tiny)
    return 0.5 * (ratio - np.log1p(ratio)) > 1.0


def binary_unit(size: Any) -> Any:
    """The power of two next to a size: dividing by it brings numbers to one without rounding."""
    _, exponent = np.frexp(size)
    return np.where(size > 0, np.ldexp(1.0, np.clip(exponent, -1021, 1023)), 1.0)


def _sparse_moments(X: Any, weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """Units of columns, and in these their means and variances."""
    table, total = sparse.csr_array(X).astype(np.float64), weight.sum()
    unit = binary_unit(abs(table).max(axis=0).toarray().ravel())
    table.data = table.data / unit[table.indices]
    mean = table.T @ weight / total
    filled = (table != 0).T @ weight
    squares = np.where(table.data != 0, (table.data - mean[table.indices]) ** 2, 0.0)
    of_filled = sparse.csr_array((squares, table.indices, table.indptr), table.shape).T @ weight
    return unit, mean, (of_filled + np.maximum(total - filled, 0) * mean**2) / total


def _dense_moments(X: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """Units of columns, and in these their means and variances."""
    total = weight.sum()
    size, mean, square = np.zeros((3, X.shape[1]))
    for part in row_slices(X.shape[0]):
        size = np.maximum(size, np.abs(X[part]).max(axis=0))
    unit = binary_unit(size)
    for part in row_slices(X.shape[0]):
        mean += weight[part] @ (X[part] / unit) / total
    for part in row_slices(X.shape[0]):
        square += weight[part] @ (X[part] / unit - mean) ** 2
    return unit, mean, square / total
