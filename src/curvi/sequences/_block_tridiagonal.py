r"""Positive definite block-tridiagonal matrices: factor, solve, selected inverse, draws.

Cyclic reduction: every second block is eliminated at once, the rest is block-tridiagonal again.
The work is linear in the number of blocks, and each of its logarithmically many rounds is a few
array operations over all blocks, and over any number of matrices side by side.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class _Level(NamedTuple):
    """What one round leaves for the way back: of the odd blocks o between even blocks a and b."""

    root: np.ndarray  # of the inverse: root root' = D_o^-1
    left: np.ndarray  # D_o^-1 P_oa
    right: np.ndarray  # D_o^-1 P_ob, zero where there is no b


def _t(blocks: np.ndarray) -> np.ndarray:
    return np.swapaxes(blocks, -1, -2)


def _inverse_root(blocks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A root of the inverse of each block, and the sum of their log determinants."""
    if blocks.shape[-1] == 1:
        with np.errstate(invalid="ignore", divide="ignore"):
            root = 1 / np.sqrt(blocks)
        log_det = -2 * np.log(root).sum(axis=(-3, -2, -1))
        if not np.isfinite(log_det).all():
            raise np.linalg.LinAlgError("the matrix is not positive definite")
        return root, log_det
    lower = np.linalg.cholesky(blocks)
    log_det = 2 * np.log(np.diagonal(lower, axis1=-2, axis2=-1)).sum(axis=(-2, -1))
    return _t(np.linalg.inv(lower)), log_det


class Factor:
    r"""The factorisation of :math:`P = \mathrm{tridiag}(E^\top, D, E)`.

    Parameters
    ----------
    diagonal : array, shape (..., N, w, w)
        The blocks D_n.
    below : array, shape (..., N - 1, w, w)
        The blocks E_n = P_{n+1, n}.

    Raises
    ------
    numpy.linalg.LinAlgError
        If a matrix is not positive definite to rounding.
    """

    def __init__(self, diagonal: np.ndarray, below: np.ndarray) -> None:
        self.levels: list[_Level] = []
        self.log_det = np.zeros(diagonal.shape[:-3])
        while diagonal.shape[-3] > 1:
            diagonal, below = self._reduce(diagonal, below)
        self.last, more = _inverse_root(diagonal)
        self.log_det = self.log_det + more

    def _reduce(self, diagonal: np.ndarray, below: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        root, log_det = _inverse_root(diagonal[..., 1::2, :, :])
        self.log_det = self.log_det + log_det
        to_left, to_right = below[..., 0::2, :, :], _t(below[..., 1::2, :, :])
        inverse = root @ _t(root)
        left = inverse @ to_left
        right = np.zeros_like(left)
        pairs = to_right.shape[-3]  # odd blocks with an even block on their right
        right[..., :pairs, :, :] = inverse[..., :pairs, :, :] @ to_right
        kept = diagonal[..., 0::2, :, :].copy()
        kept[..., : left.shape[-3], :, :] -= _t(to_left) @ left
        kept[..., 1 : pairs + 1, :, :] -= _t(to_right) @ right[..., :pairs, :, :]
        self.levels.append(_Level(root, left, right))
        return kept, -_t(to_right) @ left[..., :pairs, :, :]

    def solve(self, rhs: np.ndarray) -> np.ndarray:
        """``P^-1 rhs`` for any number of columns: shape (..., N, w, columns)."""
        waiting = []
        for level in self.levels:
            odd, even = rhs[..., 1::2, :, :], rhs[..., 0::2, :, :].copy()
            even[..., : odd.shape[-3], :, :] -= _t(level.left) @ odd
            pairs = even.shape[-3] - 1
            even[..., 1:, :, :] -= _t(level.right[..., :pairs, :, :]) @ odd[..., :pairs, :, :]
            waiting.append(level.root @ (_t(level.root) @ odd))
            rhs = even
        x = self.last @ (_t(self.last) @ rhs)
        for level, odd in zip(reversed(self.levels), reversed(waiting), strict=True):
            x = _interleaved(x, odd - _regressed(level, x))
        return x

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Draws of N(0, P^-1) from standard normal noise of shape (..., N, w, columns).

        In the precision of the noise.
        """
        levels = [_Level(*(a.astype(noise.dtype, copy=False) for a in one)) for one in self.levels]
        parts = []
        for _ in self.levels:
            parts.append(noise[..., 1::2, :, :])
            noise = noise[..., 0::2, :, :]
        x = self.last.astype(noise.dtype, copy=False) @ noise
        for level, odd in zip(reversed(levels), reversed(parts), strict=True):
            x = _interleaved(x, level.root @ odd - _regressed(level, x))
        return x

    def selected_inverse(self) -> np.ndarray:
        """The diagonal blocks of P^-1: shape (..., N, w, w)."""
        here = self.last @ _t(self.last)
        beside = here[..., :0, :, :]  # blocks (n + 1, n)
        for level in reversed(self.levels):
            here, beside = _expanded(level, here, beside)
        return here


def _regressed(level: _Level, even: np.ndarray) -> np.ndarray:
    """``D_o^-1 (P_oa x_a + P_ob x_b)``."""
    count = level.left.shape[-3]
    total = level.left @ even[..., :count, :, :]
    pairs = even.shape[-3] - 1
    total[..., :pairs, :, :] += level.right[..., :pairs, :, :] @ even[..., 1:, :, :]
    return total


def _interleaved(even: np.ndarray, odd: np.ndarray) -> np.ndarray:
    shape = (*even.shape[:-3], even.shape[-3] + odd.shape[-3], *even.shape[-2:])
    out = np.empty(shape, even.dtype)
    out[..., 0::2, :, :], out[..., 1::2, :, :] = even, odd
    return out


def _expanded(level: _Level, even: np.ndarray, beside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Covariances of one round earlier: of the odd blocks, and between neighbours."""
    count, pairs = level.left.shape[-3], even.shape[-3] - 1
    first = even[..., :count, :, :]
    with_left = -level.left @ first  # Cov(o, a)
    with_left[..., :pairs, :, :] -= level.right[..., :pairs, :, :] @ beside
    with_right = -level.left[..., :pairs, :, :] @ _t(beside)  # Cov(o, b)
    with_right -= level.right[..., :pairs, :, :] @ even[..., 1:, :, :]
    odd = level.root @ _t(level.root) - with_left @ _t(level.left)
    odd[..., :pairs, :, :] -= with_right @ _t(level.right[..., :pairs, :, :])
    return _interleaved(even, odd), _interleaved(with_left, _t(with_right))
