"""The design matrix: dense or sparse, standardised without being densified, with an intercept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

AnyArray = Any  # NumPy until a compiled fit needs it on its device, then JAX


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=[])
@dataclass(frozen=True)
class DenseDesign:
    """A dense matrix, standardised and with its intercept column in place."""

    matrix: Float[AnyArray, "rows columns"]

    @property
    def num_columns(self) -> int:
        """Columns, the intercept included."""
        return int(self.matrix.shape[1])

    def linear(self, weights: Float[Array, "columns ..."]) -> Float[Array, "rows ..."]:
        """``X w``."""
        return self.matrix @ weights

    def squares(self, variances: Float[Array, " columns"]) -> Float[Array, " rows"]:
        """``(X * X) s``."""
        return (self.matrix * self.matrix) @ variances


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["values", "rows", "columns", "centre", "inverse_scale"],
    meta_fields=["num_rows", "intercept"],
)
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
    num_rows: int
    intercept: bool

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

    def _product(self, values: Array, weights: Array) -> Array:
        picked = weights[self.columns]
        scaled = values * picked if picked.ndim == 1 else values[:, None] * picked
        return jax.ops.segment_sum(
            scaled, self.rows, num_segments=self.num_rows, indices_are_sorted=True
        )

    def _split(self, weights: Array) -> tuple[Array, Array]:
        features = self.centre.shape[0]
        last = weights[features] if self.intercept else jnp.zeros_like(weights[0])
        return weights[:features], last

    def linear(self, weights: Float[Array, "columns ..."]) -> Float[Array, "rows ..."]:
        """``X~ w``, plus the intercept."""
        slopes, intercept = self._split(weights)
        scale = self.inverse_scale if slopes.ndim == 1 else self.inverse_scale[:, None]
        scaled = slopes * scale
        shift = intercept - self.centre @ scaled
        product = self._product(self.values, scaled)
        return product + (shift if product.ndim == 1 else shift[None, :])

    def squares(self, variances: Float[Array, " columns"]) -> Float[Array, " rows"]:
        """``(X~ * X~) s``, plus the intercept's."""
        slopes, intercept = self._split(variances)
        scaled = slopes * self.inverse_scale**2
        centred = self.centre * scaled
        total = self._product(self.values**2, scaled) - 2 * self._product(self.values, centred)
        return jnp.maximum(total + self.centre @ centred, 0) + intercept


Design = DenseDesign | SparseDesign
