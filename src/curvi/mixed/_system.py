r"""The arrow: Gaussian posteriors of all effects given hyperparameters, by block elimination.

With weights :math:`w_i` and targets :math:`\tilde t_i` per row (noise precisions and responses, or
the Gaussian sites of a variational posterior) the effects have a Gaussian posterior. The effects
:math:`\xi_g` of the largest factor meet only those rows that belong to level g, so that their block
of the precision matrix is block diagonal; they are eliminated first, and what is left is a dense
system in the fixed effects and the effects of all other factors. The cost is linear in rows and
levels. Leading axes of hyperparameters are allowed everywhere: many systems are solved at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import linalg

from curvi.mixed._design import Design


def remaining_columns(design: Design) -> np.ndarray:
    """Columns of all effects but those of the first factor: fixed ones, then level by level."""
    parts = [design.X]
    for factor in design.factors[1:]:
        wide = np.zeros((design.rows, factor.levels, factor.size))
        wide[np.arange(design.rows), factor.codes] = factor.columns
        parts.append(wide.reshape(design.rows, -1))
    return np.concatenate(parts, axis=1)


def over_levels(design: Design, values: np.ndarray) -> np.ndarray:
    """RowSums over the rows of each level of the first factor, along the first axis."""
    starts = design.starts
    there = np.flatnonzero(np.diff(starts, append=design.rows))  # a block has not every level
    if len(there) == len(starts):
        return np.add.reduceat(values, starts, axis=0)
    out = np.zeros((len(starts), *values.shape[1:]))
    out[there] = np.add.reduceat(values, starts[there], axis=0)
    return out


class Statistics(NamedTuple):
    """Weighted sums over rows, in the units of the columns: all that a system needs to know."""

    within: np.ndarray  # (levels, K, K) sum of w z z'
    cross: np.ndarray  # (levels, K, P) sum of w z a'
    outer: np.ndarray  # (P, P) sum of w a a'
    within_target: np.ndarray  # (levels, K) sum of w z t
    outer_target: np.ndarray  # (P,)


def statistics(design: Design, A: np.ndarray, w: np.ndarray, weighted: np.ndarray) -> Statistics:
    """RowSums with weights ``w`` and ``weighted`` = weight times target."""
    Z = design.factors[0].columns
    wz, copies = w[:, None] * Z, design.weights
    size = Z.shape[1]
    within = over_levels(design, (wz[:, :, None] * Z[:, None, :]).reshape(len(w), -1))
    cross = np.stack([over_levels(design, wz[:, k, None] * A) for k in range(size)], axis=1)
    return Statistics(
        within.reshape(-1, size, size),
        cross,
        A.T @ ((copies * w)[:, None] * A),
        over_levels(design, weighted[:, None] * Z),
        A.T @ (copies * weighted),
    )


@dataclass(frozen=True)
class Prior:
    """Gaussian prior of the effects that remain: precision and mean of the fixed ones."""

    precision: np.ndarray  # (p,) of the fixed effects
    mean: np.ndarray  # (p,)
    shapes: tuple[tuple[int, int], ...]  # levels and size of every other factor
    copies: np.ndarray  # (levels of the first factor,)

    @property
    def size(self) -> int:
        """Number of effects that remain."""
        return len(self.precision) + sum(levels * size for levels, size in self.shapes)

    def parts(self) -> list[slice]:
        """Where the effects of each other factor stand."""
        out, at = [], len(self.precision)
        for levels, size in self.shapes:
            out.append(slice(at, at + levels * size))
            at += levels * size
        return out


def prior_of(design: Design) -> Prior:
    """The prior of a design."""
    centre = design.centre if design.centre is not None else np.zeros(len(design.names))
    shapes = tuple((factor.levels, factor.size) for factor in design.factors[1:])
    return Prior(design.scales**-2.0, centre, shapes, design.copies)


@dataclass(frozen=True)
class System:
    """A solved system: means, factors of the precision, and its log determinant.

    Effects are whitened: those of the first factor are ``xi``, of the others likewise.
    """

    level_root: np.ndarray  # (..., levels, K, K) inverse Cholesky factor of each block
    coupling: np.ndarray  # (..., levels, K, P) level_root @ (block of xi and the rest)
    rest_root: np.ndarray  # (..., P, P) lower Cholesky factor of the Schur complement
    rest_mean: np.ndarray  # (..., P)
    level_mean: np.ndarray  # (..., levels, K)
    log_det: np.ndarray  # (...) of the whole precision
    fit: np.ndarray  # (...) b' H^-1 b


def condition(
    stats: Statistics, roots: list[np.ndarray], prior: Prior, precision: np.ndarray | float = 1.0
) -> System:
    """The posterior given the factors ``Lambda`` of all levels and a precision of all rows."""
    first, others = roots[0], roots[1:]
    lead = first.shape[:-2]

    def spread(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values, (*lead, *values.shape))

    tau = np.broadcast_to(np.asarray(precision, np.float64), lead)
    t1, t2, t3 = tau[..., None], tau[..., None, None], tau[..., None, None, None]
    turned = np.swapaxes(first, -1, -2)[..., None, :, :]
    block = t3 * (turned @ stats.within @ first[..., None, :, :])
    size = block.shape[-1]
    block = block + np.eye(size)
    level_root = _inverse_root(block)
    cross = t3 * (turned @ whitened(spread(stats.cross), others, prior, lead))
    coupling = level_root @ cross
    flat = (np.sqrt(prior.copies)[:, None, None] * coupling).reshape(*lead, -1, prior.size)
    right = whitened(spread(stats.outer), others, prior, lead)
    outer = t2 * whitened(np.swapaxes(right, -1, -2), others, prior, lead)
    rest = outer - np.swapaxes(flat, -1, -2) @ flat
    index = np.arange(prior.size)
    ridge = np.ones(prior.size)
    ridge[: len(prior.precision)] = prior.precision
    rest[..., index, index] += ridge
    # right-hand sides
    pull = np.zeros(prior.size)
    pull[: len(prior.precision)] = prior.precision * prior.mean
    b_rest = t1 * whitened(spread(stats.outer_target), others, prior, lead) + pull
    b_level = t2 * (stats.within_target @ first)
    white = (level_root @ b_level[..., None])[..., 0]
    reduced = b_rest - np.einsum(
        "...gkp,...gk->...p", coupling, prior.copies[:, None] * white, optimize=True
    )
    rest_root = np.linalg.cholesky(rest)
    half = _solve_lower(rest_root, reduced[..., None])
    rest_mean = np.linalg.solve(np.swapaxes(rest_root, -1, -2), half)[..., 0]
    back = white - np.einsum("...gkp,...p->...gk", coupling, rest_mean, optimize=True)
    level_mean = (np.swapaxes(level_root, -1, -2) @ back[..., None])[..., 0]
    diagonal = np.diagonal(level_root, axis1=-2, axis2=-1)
    log_det = -2 * (prior.copies * np.log(diagonal).sum(axis=-1)).sum(axis=-1)
    log_det = log_det + 2 * np.log(np.diagonal(rest_root, axis1=-2, axis2=-1)).sum(axis=-1)
    fit = (half[..., 0] ** 2).sum(axis=-1)
    fit = fit + (prior.copies[:, None] * white**2).sum(axis=(-2, -1))
    return System(level_root, coupling, rest_root, rest_mean, level_mean, log_det, fit)


def _solve_lower(root: np.ndarray, right: np.ndarray) -> np.ndarray:
    if root.ndim == 2:
        return linalg.solve_triangular(root, right, lower=True, check_finite=False)
    return np.linalg.solve(root, right)


def _inverse_root(block: np.ndarray) -> np.ndarray:
    """Inverse of the lower Cholesky factor of every block."""
    if block.shape[-1] == 1:
        return 1 / np.sqrt(block)
    return np.linalg.inv(np.linalg.cholesky(block))


def whitened(
    values: np.ndarray, roots: list[np.ndarray], prior: Prior, lead: tuple[int, ...]
) -> np.ndarray:
    """Values times M along the last axis; M is one for fixed effects, then the roots.

    ``lead`` are leading axes that both have; between them and the last axis, values may have more.
    """
    if not roots:
        return values
    out, middle = np.array(values), values.shape[len(lead) : -1]
    for part, (levels, size), root in zip(prior.parts(), prior.shapes, roots, strict=True):
        shaped = out[..., part].reshape(*values.shape[:-1], levels, size)
        wide = root.reshape(*lead, *(1,) * len(middle), size, size)
        out[..., part] = (shaped @ wide).reshape(*values.shape[:-1], levels * size)
    return out
