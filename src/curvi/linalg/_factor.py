r"""A factorised structured precision, and all that follows from it.

Multifrontal Cholesky factorisation: in the front of a supernode J with later coordinates R,

.. math:: F = \begin{pmatrix} F_{JJ} & \cdot \\ F_{RJ} & F_{RR} \end{pmatrix}, \qquad
    W = L_{JJ}^{-1}, \qquad K = L_{RJ} = F_{RJ} W^\top,

and :math:`F_{RR} - K K^\top` is added to the front of the parent. The inverse on the pattern
follows from the roots down: with :math:`G = K W`,
:math:`S_{RJ} = -S_{RR} G` and :math:`S_{JJ} = W^\top W + G^\top S_{RR} G`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.linalg import lapack

from curvi._core.errors import NumericalError

if TYPE_CHECKING:
    from curvi.linalg._fronts import Bucket
    from curvi.linalg._pattern import Pattern


def _t(matrices: np.ndarray) -> np.ndarray:
    return np.swapaxes(matrices, -1, -2)


def _inverse_of_lower(root: np.ndarray) -> np.ndarray:
    """Inverses of lower triangular matrices, half by half."""
    size = root.shape[-1]
    if size <= 8:
        return np.linalg.inv(root)
    if root.size <= 8 * size**2:
        out = np.empty_like(root)
        for at in np.ndindex(root.shape[:-2]):
            out[at] = lapack.dtrtri(root[at].T, lower=0)[0].T  # of the transpose: no copy
        return out
    half = size // 2
    out = np.zeros_like(root)
    first = out[..., :half, :half] = _inverse_of_lower(root[..., :half, :half])
    second = out[..., half:, half:] = _inverse_of_lower(root[..., half:, half:])
    np.matmul(-second @ root[..., half:, :half], first, out=out[..., half:, :half])
    return out


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

    def _parts(self, bucket: Bucket) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Own block (W once it is eliminated), block below it (K), and the rest of the fronts."""
        count, s, _ = bucket.shape
        part = self._store[:, bucket.start : bucket.stop]
        front = part.reshape(-1, count, bucket.width, bucket.width)
        return front[..., :s, :s], front[..., s:, :s], front[..., s:, s:]

    def _root(self, blocks: np.ndarray) -> np.ndarray:
        """Cholesky factors, (points, ...); that of the identity where a point fails."""
        try:
            return np.linalg.cholesky(blocks)
        except np.linalg.LinAlgError:
            out = np.broadcast_to(np.eye(blocks.shape[-1]), blocks.shape).copy()
            for point in np.flatnonzero(self._positive):
                try:
                    out[point] = np.linalg.cholesky(blocks[point])
                except np.linalg.LinAlgError:
                    self._give_up(int(point))
            return out

    def _eliminate(self, bucket: Bucket) -> None:
        own, below, rest = self._parts(bucket)
        root = self._root(own)
        diagonal = np.diagonal(root, axis1=-2, axis2=-1)
        self._log_det += 2 * np.log(diagonal).sum(axis=(1, 2))
        own[...] = _inverse_of_lower(root)
        if bucket.shape[2]:
            below[...] = below @ _t(own)
            rest -= below @ _t(below)
            low, targets = bucket.triangle
            for point, update in zip(self._store, rest.reshape(len(rest), -1), strict=True):
                np.add.at(point, targets, update[low])

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
        wide = np.zeros((len(flat), plan.size + 1, width))
        wide[:, plan.across_rows, plan.across_columns] = flat[:, plan.across]
        wide[~self._positive] = 0.0
        corner = np.zeros((len(flat), width, width))
        corner[:, plan.corner_rows, plan.corner_columns] = flat[:, plan.corner]
        corner[~self._positive] = np.eye(width)
        self._columns = self._forward(wide)
        self._border_root = self._root(corner - _t(self._columns) @ self._columns)
        diagonal = np.diagonal(self._border_root, axis1=-2, axis2=-1)
        self._log_det += 2 * np.log(diagonal).sum(axis=1)
        self._columns[~self._positive] = 0.0
        self._border_inverse = _inverse_of_lower(self._border_root) if width else corner

    def _forward(self, vectors: np.ndarray) -> np.ndarray:
        """``L^-1 b`` in place, of the part without border: (points, size + 1, k), as positions."""
        if not vectors.shape[-1]:
            return vectors
        for bucket in self._plan.fronts.buckets:
            own, below, _ = self._parts(bucket)
            solved = own @ vectors[:, bucket.own]
            vectors[:, bucket.own] = solved
            if bucket.shape[2]:
                pushed = (below @ solved).reshape(len(vectors), bucket.later.size, -1)
                bucket.sums.subtract(vectors, pushed)
        return vectors

    def _backward(self, vectors: np.ndarray) -> np.ndarray:
        """``L^-T y`` in place."""
        for bucket in reversed(self._plan.fronts.buckets):
            own, below, _ = self._parts(bucket)
            here = vectors[:, bucket.own]
            if bucket.shape[2]:
                here = here - _t(below) @ vectors[:, bucket.later]
            vectors[:, bucket.own] = _t(own) @ here
        return vectors

    def _arranged(self, given: np.ndarray) -> tuple[np.ndarray, np.ndarray, bool]:
        """Vectors as (points, size + 1, k) in the order of positions, and at the border."""
        given = np.asarray(given, np.float64)
        vectors = given.ndim == len(self._lead) + 1
        columns = given[..., None] if vectors else given
        flat = np.broadcast_to(columns, (*self._lead, *columns.shape[-2:]))
        flat = flat.reshape(len(self._store), *columns.shape[-2:])
        inner = np.zeros((len(flat), self._plan.size + 1, flat.shape[-1]))
        inner[:, :-1] = flat[:, self._plan.order]
        return inner, flat[:, self._plan.border], vectors

    def _returned(self, inner: np.ndarray, border: np.ndarray, vectors: bool) -> np.ndarray:
        out = np.empty((len(inner), self.pattern.size, inner.shape[-1]))
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
        inner, border, vectors = self._arranged(right)
        inner = self._forward(inner)
        half = self._border_inverse @ (border - _t(self._columns) @ inner)
        border = _t(self._border_inverse) @ half
        return self._returned(self._backward(inner - self._columns @ border), border, vectors)

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Draws of N(0, P^-1) from standard normal noise.

        Parameters
        ----------
        noise : array, shape (..., size) or (..., size, k)
            As the right-hand side of :meth:`solve`.
        """
        inner, border, vectors = self._arranged(noise)
        border = _t(self._border_inverse) @ border
        return self._returned(self._backward(inner - self._columns @ border), border, vectors)

    def selected_inverse(self) -> np.ndarray:
        """Entries of the inverse on the pattern, shape (..., entries): covariances."""
        plan = self._plan
        store = np.zeros_like(self._store)
        for bucket in reversed(plan.fronts.buckets):
            own, below, _ = self._parts(bucket)
            count, s, r = bucket.shape
            part = store[:, bucket.start : bucket.stop]
            front = part.reshape(-1, count, bucket.width, bucket.width)
            front[..., :s, :s] = _t(own) @ own
            if r:
                regression = below @ own
                above = np.take(store, bucket.targets(), axis=1)
                across = above @ regression
                front[..., :s, :s] += _t(regression) @ across
                front[..., s:, :s] = -across
                front[..., :s, s:] = -_t(across)
                front[..., s:, s:] = above
        out = np.empty((len(store), self.pattern.entries))
        out[:, plan.inner] = store[:, plan.fronts.entries]
        if len(plan.border):
            self._add_border(out)
        return out.reshape(*self._lead, -1)

    def _add_border(self, out: np.ndarray) -> None:
        """What the border adds to covariances, and its own."""
        plan = self._plan
        moved = self._backward(self._columns.copy()) @ _t(self._border_inverse)
        moved[:, -1] = 0.0
        for k in range(len(plan.border)):
            column = np.ascontiguousarray(moved[..., k])
            out[:, plan.inner] += column[:, plan.inner_rows] * column[:, plan.inner_columns]
        covariance = _t(self._border_inverse) @ self._border_inverse
        across = -moved @ self._border_inverse
        out[:, plan.across] = across[:, plan.across_rows, plan.across_columns]
        out[:, plan.corner] = covariance[:, plan.corner_rows, plan.corner_columns]
