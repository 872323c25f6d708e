r"""The arrow with many remaining effects: sparse columns, a dense Schur complement.

The same elimination as in `_system`, for crossed factors with thousands of levels. Sums over
rows are sparse matrices; only the Schur complement of the remaining effects, P x P, is dense.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg, sparse

from curvi._core.errors import NumericalError
from curvi._core.memory import require_memory
from curvi.mixed._design import Design
from curvi.mixed._system import Prior, over_levels, prior_of

_NUMBERS_AT_ONCE = 2**23


@dataclass(frozen=True)
class SparseRows:
    """Columns of a design: those of the first factor, and all others as one sparse matrix."""

    design: Design
    prior: Prior
    A: sparse.csr_matrix  # (rows, P), in the units of the columns
    Z: sparse.csr_matrix  # (rows, levels * K)

    @classmethod
    def of(cls, design: Design) -> SparseRows:
        """Of a design; nothing of the size rows times levels is made."""
        prior = prior_of(design)
        require_memory(
            3 * 8.0 * prior.size**2,
            f"the matrix of {prior.size} effects beside those of {design.factors[0].name}",
            "leave out a group term, or give the factor fewer levels",
        )
        parts = [sparse.csr_matrix(design.X)]
        parts += [_indicator(f.codes, f.columns, f.levels) for f in design.factors[1:]]
        first = design.factors[0]
        Z = _indicator(first.codes, first.columns, first.levels)
        return cls(design, prior, sparse.hstack(parts, format="csr"), Z)

    def scaled(self, roots: list[np.ndarray]) -> sparse.csr_matrix:
        """Block-diagonal M: one for fixed effects, the root of its factor for every level."""
        blocks = [sparse.identity(len(self.prior.mean), format="csr")]
        for (levels, _), root in zip(self.prior.shapes, roots, strict=True):
            blocks.append(block_diagonal(np.broadcast_to(root, (levels, *root.shape))))
        return sparse.block_diag(blocks, format="csr")


def _indicator(codes: np.ndarray, columns: np.ndarray, levels: int) -> sparse.csr_matrix:
    rows, size = columns.shape
    index = (codes[:, None] * size + np.arange(size)).ravel()
    starts = np.arange(0, rows * size + 1, size)
    return sparse.csr_matrix((columns.ravel(), index, starts), (rows, levels * size))


def block_diagonal(blocks: np.ndarray) -> sparse.csr_matrix:
    """A sparse matrix from (count, K, K) blocks."""
    count, size, _ = blocks.shape
    if size == 1:
        return sparse.diags(np.ascontiguousarray(blocks[:, 0, 0]), format="csr")
    shape = (count * size, count * size)
    return sparse.bsr_matrix(
        (np.ascontiguousarray(blocks), np.arange(count), np.arange(count + 1)), shape
    ).tocsr()


class SparseStatistics(NamedTuple):
    """Weighted sums over rows."""

    within: np.ndarray  # (levels, K, K)
    cross: sparse.csr_matrix  # (levels * K, P)
    outer: sparse.csr_matrix  # (P, P)
    within_target: np.ndarray  # (levels, K)
    outer_target: np.ndarray


def sparse_statistics(rows: SparseRows, w: np.ndarray, weighted: np.ndarray) -> SparseStatistics:
    """Sums with weights ``w`` and ``weighted`` = weight times target."""
    Z = rows.design.factors[0].columns
    size = Z.shape[1]
    within = over_levels(rows.design, (w[:, None, None] * Z[:, :, None] * Z[:, None, :]))
    turned = sparse.csr_matrix(rows.A.multiply(w[:, None]))
    return SparseStatistics(
        within.reshape(-1, size, size),
        (rows.Z.T @ turned).tocsr(),
        (rows.A.T @ turned).tocsr(),
        over_levels(rows.design, weighted[:, None] * Z),
        rows.A.T @ weighted,
    )


@dataclass(frozen=True)
class SparseSystem:
    """A solved system, effects whitened; see `curvi.mixed._system.System`."""

    level_root: np.ndarray
    coupling: sparse.csr_matrix  # (levels * K, P)
    rest_root: np.ndarray  # lower Cholesky factor
    rest_mean: np.ndarray
    level_mean: np.ndarray
    log_det: float
    fit: float

    def given_rest(self, shift: np.ndarray) -> np.ndarray:
        """Means of the levels' effects where the rest is ``shift`` away from its mean."""
        pulled = (self.coupling @ shift).reshape(*self.level_mean.shape)
        return self.level_mean - np.einsum("gkl,gk->gl", self.level_root, pulled)


def solve_sparse(
    rows: SparseRows, stats: SparseStatistics, roots: list[np.ndarray], tau: float = 1.0
) -> SparseSystem:
    """The posterior of all effects given the factors and a precision of all rows."""
    prior, first = rows.prior, roots[0]
    block = tau * (first.T @ stats.within @ first) + np.eye(len(first))
    level_root = np.linalg.inv(np.linalg.cholesky(block))
    M = rows.scaled(roots[1:])
    coupling = block_diagonal(tau * (level_root @ first.T)) @ stats.cross @ M
    pull = np.zeros(prior.size)
    pull[: len(prior.mean)] = prior.precision * prior.mean
    ridge = np.ones(prior.size)
    ridge[: len(prior.mean)] = prior.precision
    rest = (tau * (M.T @ stats.outer @ M) - coupling.T @ coupling).toarray()
    rest[np.arange(prior.size), np.arange(prior.size)] += ridge
    white = np.einsum("gkl,gl->gk", level_root, tau * stats.within_target @ first)
    reduced = tau * (M.T @ stats.outer_target) + pull - coupling.T @ white.ravel()
    try:
        root = linalg.cholesky(rest, lower=True, overwrite_a=True, check_finite=False)
    except linalg.LinAlgError as error:
        raise NumericalError(
            "the precision of the effects is not positive definite in double precision; rescale "
            "columns of very different sizes"
        ) from error
    half = linalg.solve_triangular(root, reduced, lower=True, check_finite=False)
    mean = linalg.solve_triangular(root, half, lower=True, trans="T", check_finite=False)
    back = white - (coupling @ mean).reshape(white.shape)
    level_mean = np.einsum("gkl,gk->gl", level_root, back)
    diagonal = np.diagonal(level_root, axis1=1, axis2=2)
    log_det = 2 * np.log(np.diag(root)).sum() - 2 * np.log(diagonal).sum()
    fit = float(half @ half + (white**2).sum())
    return SparseSystem(level_root, coupling, root, mean, level_mean, float(log_det), fit)


def row_variances(
    rows: SparseRows, solved: SparseSystem, roots: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Means and variances of all predictors."""
    design = rows.design
    B = design.factors[0].columns @ roots[0]
    codes = design.factors[0].codes
    A = (rows.A @ rows.scaled(roots[1:])).tocsr()
    half = np.einsum("nkj,nj->nk", solved.level_root[codes], B)
    mean = design.offset + A @ solved.rest_mean + (B * solved.level_mean[codes]).sum(axis=1)
    places = _indicator(codes, half, design.factors[0].levels)
    residual = (A - places @ solved.coupling).tocsr()
    inverse = linalg.solve_triangular(
        solved.rest_root, np.eye(rows.prior.size), lower=True, check_finite=False
    )
    variance = (half**2).sum(axis=1)
    size = max(1, _NUMBERS_AT_ONCE // rows.prior.size)
    for start in range(0, design.rows, size):
        part = residual[start : start + size] @ inverse.T
        variance[start : start + size] += np.einsum("np,np->n", part, part)
    return mean, variance
