r"""How the fronts of a bucket lie beside each other, and the little algebra that they need.

Large fronts lie one after another, (count, width, width), and are multiplied by BLAS. Many small
ones lie *side by side*, (width, width, count): an operation on one entry is one on contiguous
numbers, where a call for each front would cost more than its arithmetic.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from scipy import linalg
from scipy.linalg import lapack

# Own block, beside it, below it, and the rest.
Quarters = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class FrontAlgebra:
    """What roots of blocks are good for, in the products of a layout."""

    t: ClassVar[Any]
    times: ClassVar[Any]
    apply: ClassVar[Any]

    @classmethod
    def forward(cls, own: np.ndarray, right: np.ndarray) -> np.ndarray:
        """``L^-1 b`` of what `inverse_root` left, for vectors as in `apply`."""
        return cls.apply(own, right)

    @classmethod
    def backward(cls, own: np.ndarray, right: np.ndarray) -> np.ndarray:
        """``L^-T y``."""
        return cls.apply(cls.t(own), right)

    @classmethod
    def covariance(cls, own: np.ndarray) -> np.ndarray:
        """``L^-T L^-1``."""
        return cls.times(cls.t(own), own)


class OneByOne(FrontAlgebra):
    """Matrices (points, count, rows, columns)."""

    side_by_side = False

    @staticmethod
    def quarters(part: np.ndarray, count: int, own: int, later: int) -> Quarters:
        """Of the fronts in a part of the flat array."""
        fronts = part.reshape(-1, count, own + later, own + later)
        upper, lower = fronts[:, :, :own], fronts[:, :, own:]
        return upper[..., :own], upper[..., own:], lower[..., :own], lower[..., own:]

    @staticmethod
    def index(places: np.ndarray) -> np.ndarray:
        """Indices (count, ...) in the order of the matrices."""
        return places

    @staticmethod
    def t(matrices: np.ndarray) -> np.ndarray:
        """Transposes."""
        return np.swapaxes(matrices, -1, -2)

    @staticmethod
    def times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Products of matrices."""
        return left @ right

    @staticmethod
    def apply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Products with vectors (points, count, columns, k)."""
        return left @ right

    @staticmethod
    def inverse_root(own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Inverses W of Cholesky factors, log determinants (points,), and where all went well.

        W is the identity at points where a block is not positive definite.
        """
        good = np.ones(len(own), bool)
        try:
            root = np.linalg.cholesky(own)
        except np.linalg.LinAlgError:
            root = np.broadcast_to(np.eye(own.shape[-1]), own.shape).copy()
            for point, blocks in enumerate(own):
                try:
                    root[point] = np.linalg.cholesky(blocks)
                except np.linalg.LinAlgError:
                    good[point] = False
        diagonal = np.diagonal(root, axis1=-2, axis2=-1)
        return inverse_of_lower(root), 2 * np.log(diagonal).sum(axis=(1, 2)), good


class Alone(OneByOne):
    """A large front with no later coordinates: its root L itself, which costs half of L^-1."""

    @staticmethod
    def inverse_root(own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """L in the place of the inverse; see `OneByOne.inverse_root`."""
        good, log_det = np.ones(len(own), bool), np.zeros(len(own))
        for point, (block,) in enumerate(own):
            # LAPACK's upper triangle by columns is the lower one by rows.
            root, failed = lapack.dpotrf(block.T, lower=0, clean=0, overwrite_a=1)
            good[point] = not failed
            block[...] = np.eye(len(block)) if failed else root.T
            log_det[point] = 2 * np.log(np.diagonal(block)).sum()
        return own, log_det, good

    @classmethod
    def forward(cls, own: np.ndarray, right: np.ndarray) -> np.ndarray:
        """See `OneByOne.forward`."""
        return cls._solved(own, right, 1)

    @classmethod
    def backward(cls, own: np.ndarray, right: np.ndarray) -> np.ndarray:
        """See `OneByOne.backward`."""
        return cls._solved(own, right, 0)

    @staticmethod
    def _solved(own: np.ndarray, right: np.ndarray, trans: int) -> np.ndarray:
        pairs = zip(own[:, 0], right[:, 0], strict=True)
        return np.stack([
            linalg.solve_triangular(block.T, one, trans=trans, check_finite=False)
            for block, one in pairs
        ])[:, None]  # fmt: skip

    @classmethod
    def covariance(cls, own: np.ndarray) -> np.ndarray:
        """See `OneByOne.covariance`."""
        out = np.empty_like(own)
        for (block,), (given,) in zip(out, own, strict=True):
            lower = np.tril(lapack.dpotri(given.T, lower=0)[0].T)
            np.add(lower, np.tril(lower, -1).T, out=block)
        return out


class SideBySide(FrontAlgebra):
    """Matrices (points, rows, columns, count)."""

    side_by_side = True

    @staticmethod
    def quarters(part: np.ndarray, count: int, own: int, later: int) -> Quarters:
        """Of the fronts in a part of the flat array."""
        fronts = part.reshape(-1, own + later, own + later, count)
        upper, lower = fronts[:, :own], fronts[:, own:]
        return upper[:, :, :own], upper[:, :, own:], lower[:, :, :own], lower[:, :, own:]

    @staticmethod
    def index(places: np.ndarray) -> np.ndarray:
        """Indices (count, ...) in the order of the matrices."""
        return np.moveaxis(places, 0, -1)

    @staticmethod
    def t(matrices: np.ndarray) -> np.ndarray:
        """Transposes."""
        return np.swapaxes(matrices, 1, 2)

    @staticmethod
    def times(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Products of matrices."""
        out = left[:, :, 0, None] * right[:, None, 0]
        for k in range(1, left.shape[2]):
            out += left[:, :, k, None] * right[:, None, k]
        return out

    @staticmethod
    def apply(left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Products with vectors (points, columns, count, k)."""
        if right.shape[3] <= 4:  # an operation on so few numbers costs more than they do
            columns = [
                SideBySide.times(left, one) for one in np.moveaxis(right, 3, 0)[:, :, :, None]
            ]
            return np.stack([column[:, :, 0] for column in columns], axis=3)
        out = left[:, :, 0, :, None] * right[:, None, 0]
        for j in range(1, left.shape[2]):
            out += left[:, :, j, :, None] * right[:, None, j]
        return out

    @staticmethod
    def inverse_root(own: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `OneByOne.inverse_root`."""
        size = own.shape[1]
        good, log_det = np.ones(len(own), bool), np.zeros(len(own))
        root: dict[tuple[int, int], np.ndarray] = {}
        out = np.zeros_like(own)
        for j in range(size):
            pivot = own[:, j, j] - sum(root[j, k] ** 2 for k in range(j))
            positive = pivot > 0
            good &= positive.all(axis=1)
            pivot = np.where(positive, pivot, 1.0)
            log_det += np.log(pivot).sum(axis=1)
            out[:, j, j] = inverse = 1 / np.sqrt(pivot)
            for i in range(j + 1, size):
                across = own[:, i, j] - sum(root[i, k] * root[j, k] for k in range(j))
                root[i, j] = across * inverse
        for i in range(size):
            for j in range(i):
                pulled = sum(root[i, k] * out[:, k, j] for k in range(j, i))
                out[:, i, j] = -pulled * out[:, i, i]
        out[~good] = np.eye(size)[:, :, None]
        return out, log_det, good


Layout = OneByOne | SideBySide


def layout_of(
    own: int, later: int, count: int, *, most: tuple[int, int] = (4, 16), large: int = 256
) -> Layout:
    """How a bucket's fronts lie: side by side, if they are small and many."""
    if count == 1 and not later and own >= large:
        return Alone()
    small = own <= most[0] and later <= most[1]
    return SideBySide() if small and count > 2 * (own + later) else OneByOne()


def inverse_of_lower(root: np.ndarray) -> np.ndarray:
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
    first = out[..., :half, :half] = inverse_of_lower(root[..., :half, :half])
    second = out[..., half:, half:] = inverse_of_lower(root[..., half:, half:])
    np.matmul(-second @ root[..., half:, :half], first, out=out[..., half:, :half])
    return out
