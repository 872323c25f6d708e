r"""A factorised structured precision, and all that follows from it.

Multifrontal Cholesky factorisation: in the front of a supernode J with later coordinates R,

.. math:: F = \begin{pmatrix} F_{JJ} & \cdot \\ F_{RJ} & F_{RR} \end{pmatrix}, \qquad
    W = L_{JJ}^{-1}, \qquad K = L_{RJ} = F_{RJ} W^\top,

and :math:`F_{RR} - K K^\top` is added to the front of the parent. The inverse on the pattern
follows from the roots down: with :math:`G = K W`,
:math:`S_{RJ} = -S_{RR} G` and :math:`S_{JJ} = W^\top W + G^\top S_{RR} G`.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np

from curvi._core.errors import NumericalError
from curvi.linalg._layout import OneByOne, Quarters

if TYPE_CHECKING:
    from curvi.linalg._fronts import Bucket
    from curvi.linalg._pattern import Pattern


def _t(matrices: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrices, -1, -2)


class Factor:
    """The Cholesky factors of matrices of one pattern.

    Parameters
    ----------
    pattern : Pattern
        Where they are not zero.
    values : array, shape (..., entries)
        Their entries.

    Attributes
    ----------
    log_det : array, shape (...)
        Log determinants; minus infinity where a matrix is not positive definite, and the solutions
        there are those of the identity.

    Raises
    ------
    NumericalError
        If no matrix is positive definite.
    """

    def __init__(self, pattern: Pattern, values: np.ndarray) -> None:
        self.pattern, self._plan = pattern, pattern.plan
        self._lead = values.shape[:-1]
        flat = values.reshape(-1, pattern.entries)
        self._positive = np.ones(len(flat), bool)
        self._log_det = np.zeros(len(flat))
        self._store = np.zeros((len(flat), self._plan.fronts.total))
        self._store[:, self._plan.fronts.entries] = flat[:, self._plan.inner]
        self._store[:, self._plan.fronts.ones] = 1.0
        for bucket in self._plan.fronts.buckets:
            self._eliminate(bucket)
        self._eliminate_border(flat)
        if not self._positive.any():
            raise NumericalError(
                "the precision of the effects is not positive definite in double precision; "
                "rescale columns of very different sizes, or give a prior to effects that "
                "nothing determines"
            )
        self.log_det = np.where(self._positive, self._log_det, -np.inf).reshape(self._lead)

    def _quarters(self, bucket: Bucket, store: np.ndarray) -> Quarters:
        """Own block (W once it is eliminated), K' and K beside and below it, and the rest."""
        part = store[:, bucket.start : bucket.stop]
        return bucket.layout.quarters(part, *bucket.shape)

    def _eliminate(self, bucket: Bucket) -> None:
        layout = bucket.layout
        own, _, below, rest = self._quarters(bucket, self._store)
        inverse, log_det, good = layout.inverse_root(own)
        self._log_det += log_det
        for point in np.flatnonzero(self._positive & ~good):
            self._give_up(int(point))
        if inverse is not own:
            own[...] = inverse
        if bucket.shape[2]:
            below[...] = layout.times(below, layout.t(own))
            handed = (rest - layout.times(below, layout.t(below))).reshape(len(rest), -1)
            low, targets = bucket.triangle
            for number, square in enumerate(handed):
                np.add.at(self._store[number], targets, square[low])

    def _give_up(self, point: int) -> None:
        """Put the identity in the place of a matrix that is not positive definite."""
        plan, self._positive[point] = self._plan, False
        self._store[point] = 0.0
        self._store[point, plan.fronts.ones] = 1.0
        self._store[point, plan.fronts.entries[plan.inner_rows == plan.inner_columns]] = 1.0

    def _eliminate_border(self, flat: np.ndarray) -> None:
        """The border given the rest: its columns H = L^-1 C', and the root of what is left."""
        plan = self._plan
        width = len(plan.border)
        if not width:
            self._beside, self._border_inverse = np.zeros((2, len(flat), 0, 0))
            return
        wide = np.zeros((len(flat), plan.size + 1, width))
        wide[:, plan.across_rows, plan.across_columns] = flat[:, plan.across]
        wide[~self._positive] = 0.0
        corner = np.zeros((len(flat), width, width))
        corner[:, plan.corner_rows, plan.corner_columns] = flat[:, plan.corner]
        corner[~self._positive] = np.eye(width)
        self._beside = self._forward(wide)
        left = corner - _t(self._beside) @ self._beside
        inverse, log_det, good = OneByOne.inverse_root(left[:, None])
        self._border_inverse = inverse[:, 0]
        self._log_det += log_det
        self._positive &= good
        self._beside[~self._positive] = 0.0

    def _forward(self, vectors: np.ndarray) -> np.ndarray:
        """``L^-1 b`` in place, of the part without border: (points, size + 1, k), as positions."""
        if not vectors.shape[2]:
            return vectors
        for bucket in self._plan.fronts.buckets:
            own, _, below, _ = self._quarters(bucket, self._store)
            at, _ = bucket.places
            vectors[:, at] = solved = bucket.layout.forward(own, vectors[:, at])
            if bucket.shape[2]:
                pushed = bucket.layout.apply(below, solved)
                bucket.sums.subtract(vectors, pushed.reshape(len(pushed), -1, vectors.shape[2]))
        return vectors

    def _backward(self, vectors: np.ndarray) -> np.ndarray:
        """``L^-T y`` in place."""
        for bucket in reversed(self._plan.fronts.buckets):
            layout = bucket.layout
            own, _, below, _ = self._quarters(bucket, self._store)
            own, below = (part.astype(vectors.dtype, copy=False) for part in (own, below))
            at, later = bucket.places
            here = vectors[:, at]
            if bucket.shape[2]:
                here -= layout.apply(layout.t(below), vectors[:, later])
            vectors[:, at] = layout.backward(own, here)
        return vectors

    def _arranged(self, given: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Vectors as (points, size + 1, k) in the order of positions, and at the border."""
        vectors = given.ndim == len(self._lead) + 1
        rows = given[..., None] if vectors else given
        flat = np.broadcast_to(rows, (*self._lead, *rows.shape[-2:]))
        flat = flat.reshape(len(self._store), *rows.shape[-2:])
        inner = np.zeros((len(flat), self._plan.size + 1, flat.shape[2]), flat.dtype)
        inner[:, :-1] = flat[:, self._plan.order]
        return inner, flat[:, self._plan.border], vectors

    def _returned(self, inner: np.ndarray, border: np.ndarray, vectors: bool) -> np.ndarray:
        out = np.empty((len(inner), self.pattern.size, inner.shape[2]), inner.dtype)
        out[:, self._plan.order], out[:, self._plan.border] = inner[:, :-1], border
        out = out.reshape(*self._lead, *out.shape[1:])
        return out[..., 0] if vectors else out

    def solve(self, right: np.ndarray) -> np.ndarray:
        """``P^-1 b`` for vectors (..., size), or matrices (..., size, k).

        Parameters
        ----------
        right : array
            With one axis more than the log determinants, vectors; with two more, matrices.
        """
        inner, border, vectors = self._arranged(np.asarray(right, np.float64))
        inner = self._forward(inner)
        if border.shape[1]:
            border = self._border_inverse @ (border - _t(self._beside) @ inner)
            border = _t(self._border_inverse) @ border
            inner -= self._beside @ border
        return self._returned(self._backward(inner), border, vectors)

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Draws of N(0, P^-1) from standard normal noise.

        Parameters
        ----------
        noise : array, shape (..., size) or (..., size, k)
            As the right-hand side of :meth:`solve`; draws have its precision, single or double.
        """
        inner, border, vectors = self._arranged(np.asarray(noise))
        if border.shape[1]:
            border = _t(self._border_inverse).astype(inner.dtype, copy=False) @ border
            inner -= self._beside.astype(inner.dtype, copy=False) @ border
        return self._returned(self._backward(inner), border, vectors)

    def slopes_in_noise(self, slopes: np.ndarray) -> np.ndarray:
        """Slopes in the noise of :meth:`sample` from slopes in its draws: its transpose.

        Parameters
        ----------
        slopes : array, shape (..., size) or (..., size, k)
            As the right-hand side of :meth:`solve`.
        """
        inner, border, vectors = self._arranged(slopes)
        inner = self._forward(inner)
        if border.shape[1]:
            border = self._border_inverse @ (border - _t(self._beside) @ inner)
        return self._returned(inner, border, vectors)

    def at(self, points: np.ndarray | slice) -> Factor:
        """Those of some points of one leading axis, which may repeat."""
        out = copy.copy(self)
        for name in ("_positive", "_log_det", "_store", "_beside", "_border_inverse", "log_det"):
            setattr(out, name, getattr(self, name)[points])
        out._lead = out.log_det.shape
        return out

    def selected_inverse(self) -> np.ndarray:
        """Entries of the inverse on the pattern, shape (..., entries): covariances."""
        plan = self._plan
        store = np.zeros_like(self._store)
        for bucket in reversed(plan.fronts.buckets):
            layout = bucket.layout
            times, t = layout.times, layout.t
            own, _, below, _ = self._quarters(bucket, self._store)
            diagonal, beside, across, rest = self._quarters(bucket, store)
            diagonal[...] = layout.covariance(own)
            if bucket.shape[2]:
                regression = times(below, own)
                rest[...] = np.take(store, bucket.targets, axis=1)
                across[...] = -times(rest, regression)
                diagonal -= times(t(regression), across)
                beside[...] = t(across)
        out = np.empty((len(store), self.pattern.entries))
        out[:, plan.inner] = store[:, plan.fronts.entries]
        if len(plan.border):
            self._add_border(out)
        return out.reshape(*self._lead, -1)

    def _add_border(self, out: np.ndarray) -> None:
        """What the border adds to covariances, and its own."""
        plan = self._plan
        moved = self._backward(self._beside.copy()) @ _t(self._border_inverse)
        moved[:, -1] = 0.0
        for column in np.moveaxis(moved, 2, 0):
            out[:, plan.inner] += column[:, plan.inner_rows] * column[:, plan.inner_columns]
        covariance = _t(self._border_inverse) @ self._border_inverse
        across = -moved @ self._border_inverse
        out[:, plan.across] = across[:, plan.across_rows, plan.across_columns]
        out[:, plan.corner] = covariance[:, plan.corner_rows, plan.corner_columns]
