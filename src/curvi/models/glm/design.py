"""The design matrix: dense or sparse, standardised without being densified, with an intercept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@partial(jax.tree_util.register_dataclass, data_fields=["matrix"], meta_fields=[])
@dataclass(frozen=True)
class DenseDesign:
    """A dense matrix, standardised and with its intercept column in place."""

    matrix: Float[Array, "rows columns"]

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

    def gram(
        self, weights: Float[Array, " rows"], left: int, right: int
    ) -> Float[Array, "columns columns"]:
        """``(X^left)' diag(w) X^right`` with elementwise powers one or two."""
        first = self.matrix if left == 1 else self.matrix * self.matrix
        second = self.matrix if right == 1 else self.matrix * self.matrix
        return first.T @ (weights[:, None] * second)


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

    values: Float[Array, " nonzeros"]
    rows: Int[Array, " nonzeros"]
    columns: Int[Array, " nonzeros"]
    centre: Float[Array, " features"]
    inverse_scale: Float[Array, " features"]
    num_rows: int
    intercept: bool

    @property
    def num_columns(self) -> int:
        """Columns, the intercept included."""
        return int(self.centre.shape[0]) + self.intercept

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
