"""Fixed effects: coefficients of given columns, with normal priors of known scales."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import sparse

from curvi._core.errors import InputError
from curvi.latent._component import Component, Precision


class Fixed(Component):
    r"""Coefficients of columns, independent :math:`N(m_j, s_j^2)` a priori.

    Parameters
    ----------
    columns : array or sparse matrix, shape (rows, size)
        What rows see.
    name : str
        Of the component.
    prior_scale : float or array, shape (size,)
        Prior standard deviations.
    prior_mean : float or array, shape (size,)
        Prior means.
    labels : sequence of str, optional
        Names of the columns.
    """

    names = ()

    def __init__(
        self, columns: Any, name: str = "fixed", *, prior_scale: Any = 1.0, prior_mean: Any = 0.0,
        labels: Sequence[str] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.A = self._sparse(columns)
        size = self.size
        self.prior_scale = np.broadcast_to(np.asarray(prior_scale, np.float64), size)
        self.prior_mean = np.broadcast_to(np.asarray(prior_mean, np.float64), size)
        if not (np.isfinite(self.prior_scale) & (self.prior_scale > 0)).all():
            raise InputError(f"prior_scale of {name!r} holds positive numbers, one per column")
        if not np.isfinite(self.prior_mean).all():
            raise InputError(f"prior_mean of {name!r} holds finite numbers, one per column")
        self._labels = super().labels() if labels is None else [str(label) for label in labels]
        if len(self._labels) != size:
            raise InputError(f"{name!r} has {size} columns and {len(self._labels)} labels")
        self.rows = self.columns = np.arange(size)

    def _sparse(self, columns: Any) -> sparse.csr_array:
        found = sparse.csr_array(columns if sparse.issparse(columns) else np.asarray(columns))
        if found.ndim != 2:
            raise InputError(f"columns of {self.name!r} have shape {found.shape}; give two axes")
        return found.astype(np.float64)

    @property
    def mean(self) -> np.ndarray:
        """Prior means."""
        return self.prior_mean

    def precision(self, theta: np.ndarray) -> Precision:
        """The same for every theta."""
        values = np.broadcast_to(self.prior_scale**-2.0, (len(theta), self.size))
        return Precision(values, np.full(len(theta), -2 * np.log(self.prior_scale).sum()))

    def labels(self) -> list[str]:
        """Names of the columns."""
        return list(self._labels)

    def columns_for(self, data: Any) -> sparse.csr_array:
        """The same columns of new rows."""
        found = self._sparse(data)
        if found.shape[1] != self.size:
            raise InputError(f"{self.name!r} has {self.size} columns and new rows {found.shape[1]}")
        return found
