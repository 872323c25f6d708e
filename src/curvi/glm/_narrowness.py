r"""By how much the sds of a fit are too small, because its covariance leaves correlations out.

From the precision that a full covariance would have (:mod:`_full_bound`) at the fitted q: the sds
of :math:`\Lambda^{-1}` over those of the fit. Up to some hundreds of coefficients it is inverted.
Beyond, random signs z find candidates by :math:`z \odot \Lambda^{-1} z`, whose mean is the
diagonal of the inverse, and conjugate gradients solve for the largest of them. Their quadratic
forms grow towards the solution: what is found is a factor that there is at least.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg

from curvi.glm._full_bound import FullBound
from curvi.glm._rows import Tables
from curvi.glm._sparse_rows import SparseTable
from curvi.glm._starts import GLMFit, blocks_of, total_variance
from curvi.likelihoods import (
    Contrasts,
    Likelihood,
    OnePredictor,
    RowModel,
    contrast_basis,
    logit_draws,
)

TOO_NARROW = 1.25  # ratio of sds from which a covariance that is not full is warned of


@dataclass(frozen=True)
class Check:
    """How closely the sds of a fit are looked at.

    Attributes
    ----------
    largest_inverse : coefficients up to which the curvature is inverted
    rows, rows_per_coefficient : of a longer table a sample of at least so many is used
    probes, candidates, steps : of conjugate gradients beyond that
    """

    largest_inverse: int = 1000
    rows: int = 20_000
    rows_per_coefficient: int = 50
    probes: int = 4
    candidates: int = 8
    steps: int = 60

    def sample(self, tables: Tables, columns: int) -> Tables:
        """All rows, or each k-th with the weight of k."""
        every = tables.num_rows // max(self.rows, self.rows_per_coefficient * columns)
        return tables if every < 2 else tables.thinned(every)


@dataclass(frozen=True)
class Fitted:
    """The moments of K independent blocks of coefficients in fitted units, and their priors.

    ``factor`` of a low-rank covariance is (blocks, columns, rank). ``centred`` coefficients are
    shown as differences from their mean over the classes.
    """

    mean: np.ndarray  # (blocks, columns)
    diagonal: np.ndarray  # sds, (blocks, columns)
    factor: np.ndarray | None
    precision: np.ndarray  # of the prior, (blocks, columns)
    noise: float = 1.0
    centred: bool = False

    @property
    def shown_variance(self) -> np.ndarray:
        """Variances of what is shown."""
        variance = total_variance(self.diagonal, self.factor)
        return centred_variance(variance) if self.centred else variance


def checked(
    found: GLMFit,
    likelihood: Likelihood | None,
    tables: Tables,
    precision: np.ndarray,
    relevance: bool,
    intercept: bool,
) -> GLMFit:
    """With the ratios by which sds are too small; without a likelihood it is the softmax."""
    mean, diagonal, factor = blocks_of(found.family, found.q)
    prior = np.broadcast_to(np.asarray(precision, np.float64), mean.shape)
    if relevance:  # each coefficient has the prior variance that maximises the bound
        moment = mean**2 + total_variance(diagonal, factor)
        chosen = 1 / np.maximum(moment, np.finfo(np.float64).tiny)
        if intercept:
            chosen[:, -1] = np.minimum(chosen[:, -1], prior[:, -1])
        prior = chosen
    centred = likelihood is None and not relevance
    fitted = Fitted(mean, diagonal, factor, prior, found.noise, centred)
    return replace(found, sd_ratios=sd_ratios(likelihood, tables, fitted))


def centred_variance(variance: np.ndarray) -> np.ndarray:
    """Of differences from the mean over independent classes, which are the first axis."""
    classes = variance.shape[0]
    return (1 - 2 / classes) * variance + variance.sum(axis=0) / classes**2


def sd_ratios(
    likelihood: Likelihood | None, tables: Tables, fitted: Fitted, check: Check | None = None
) -> np.ndarray:
    """Sds with all correlations over those of a fit, (blocks, columns), one where not looked at.

    Parameters
    ----------
    likelihood : Likelihood or None
        Of one linear predictor; None is the softmax of several.
    tables : Tables
        The rows.
    fitted : Fitted
        Moments and priors of the coefficients.
    check : Check, optional
        How closely to look.
    """
    check = Check() if check is None else check
    sample = check.sample(tables, fitted.mean.shape[1])
    ratios = _ratios_over(sample, likelihood, fitted, check)
    if sample is tables or ratios.max() <= TOO_NARROW:
        return ratios
    return _ratios_over(tables, likelihood, fitted, check)  # a sample may lack what is rare


def _ratios_over(
    tables: Tables, likelihood: Likelihood | None, fitted: Fitted, check: Check
) -> np.ndarray:
    classes, columns = fitted.mean.shape
    model: RowModel
    if likelihood is not None:
        model, basis = OnePredictor(likelihood), np.ones((1, 1))
    else:
        model, basis = Contrasts(classes - 1, logit_draws(classes - 1, 0)), contrast_basis(classes)
    with np.errstate(all="ignore"):
        if classes * columns <= check.largest_inverse:
            variance = _inverted(model, tables, fitted, basis)
        else:
            variance = _found(model, tables, fitted, basis, check)
        ratio = np.sqrt(variance / fitted.shown_variance)
    return np.where(np.isfinite(ratio), np.maximum(ratio, 1.0), 1.0)


def _inverted(model: RowModel, tables: Tables, fitted: Fitted, basis: np.ndarray) -> np.ndarray:
    """Marginal variances of what is shown, from the inverse of the curvature."""
    classes, columns = fitted.mean.shape
    contrasts = basis.shape[1]
    bound = FullBound(model, tables, np.zeros(columns), abs(fitted.noise))
    mean = (basis.T @ fitted.mean).ravel()
    spread = [np.diag(sd) for sd in fitted.diagonal]
    if fitted.factor is not None:
        spread = [np.hstack(pair) for pair in zip(spread, fitted.factor, strict=True)]
    # Blocks are independent: each has columns of noise of its own.
    factor = np.concatenate([np.kron(basis[k][:, None], spread[k]) for k in range(classes)], axis=1)
    gram = bound.curvature(mean, factor).reshape(contrasts, columns, contrasts, columns)
    lifted = np.einsum("kc,cidj,ld->kilj", basis, gram, basis, optimize=True)
    hessian = lifted.reshape(classes * columns, -1) + np.diag(fitted.precision.ravel())
    unit = 1 / np.sqrt(np.diag(hessian))
    inverse = unit[:, None] * linalg.inv(unit[:, None] * hessian * unit) * unit
    if fitted.centred:
        inverse = inverse.reshape(classes, columns, classes, columns)
        inverse = inverse - inverse.mean(axis=0)
        inverse = (inverse - inverse.mean(axis=2, keepdims=True)).reshape(hessian.shape)
    return np.diag(inverse).reshape(classes, columns)


def _found(
    model: RowModel, tables: Tables, fitted: Fitted, basis: np.ndarray, check: Check
) -> np.ndarray:
    """Lower bounds of the largest marginal variances, by conjugate gradients."""
    (table,) = tables
    forward, backward = _products(table)
    variance = fitted.diagonal**2
    mean = forward(fitted.mean.T)
    squares = _products(table, squared=True)[0](variance.T)
    if fitted.factor is not None:
        for block, factor in enumerate(fitted.factor):
            squares[:, block] += np.sum(forward(factor) ** 2, axis=1)
    inner = np.einsum("kc,ik,kd->icd", basis, squares, basis, optimize=True)
    terms = model.terms(mean @ basis, inner, table.y)
    weight = table.weight.astype(np.float64) / abs(fitted.noise)
    curvature = weight[:, None, None] * (basis @ terms.curvature @ basis.T)
    own = np.einsum("ikk->ik", curvature)
    diagonal = _products(table, squared=True)[1](own).T + fitted.precision

    def product(z: np.ndarray) -> np.ndarray:
        pulled = np.einsum("ikl,il->ik", curvature, forward(z.T))
        return backward(pulled).T + fitted.precision * z

    def centre(z: np.ndarray) -> np.ndarray:
        return z - z.mean(axis=0) if fitted.centred else z

    random, shape = np.random.default_rng(0), fitted.mean.shape
    guess = np.zeros(shape)
    for _ in range(check.probes):
        signs = random.choice([-1.0, 1.0], shape) * np.sqrt(diagonal)
        guess += signs * _solved(product, signs, diagonal, check.steps)
    found = fitted.shown_variance.copy()
    for place in np.argsort(-guess, axis=None)[: check.candidates]:
        index = np.unravel_index(place, shape)
        one = np.zeros(shape)
        one[index] = 1.0
        one = centre(one)
        found[index] = float(np.sum(one * _solved(product, one, diagonal, check.steps)))
    return found


def _solved(
    product: Callable[[np.ndarray], np.ndarray], b: np.ndarray, diagonal: np.ndarray, steps: int
) -> np.ndarray:
    """Conjugate gradients from zero, preconditioned by the diagonal."""
    x, residual = np.zeros_like(b), b.copy()
    z = residual / diagonal
    direction, size = z.copy(), float(np.sum(residual * z))
    first = size
    for _ in range(steps):
        along = product(direction)
        length = size / float(np.sum(direction * along))
        x += length * direction
        residual -= length * along
        z = residual / diagonal
        last, size = size, float(np.sum(residual * z))
        if not size > 1e-8 * first:
            break
        direction = z + size / last * direction
    return x


def _products(table: Any, squared: bool = False) -> tuple[Any, Any]:
    """``X w`` and ``X' u`` of fitted columns, or of their squares, in float64."""
    if not isinstance(table, SparseTable):
        matrix = table.squares if squared else table.matrix

        def forward(w: np.ndarray) -> np.ndarray:
            return (matrix @ w.astype(matrix.dtype)).astype(np.float64)

        def backward(u: np.ndarray) -> np.ndarray:
            return (matrix.T @ u.astype(matrix.dtype)).astype(np.float64)

        return forward, backward
    a, b, size = table.factor[:, None], table.shift[:, None], table.stored.shape[1]
    extra = ((0, a.size - size), (0, 0))
    parts = [(a, table.stored)]
    if squared:
        parts, b = [(a**2, table.stored.power(2)), (2 * a * b, table.stored)], b**2

    def sparse_forward(w: np.ndarray) -> np.ndarray:
        return sum(stored @ (by * w)[:size] for by, stored in parts) + np.sum(b * w, axis=0)

    def sparse_backward(u: np.ndarray) -> np.ndarray:
        pulled = sum(by * np.pad(stored.T @ u, extra) for by, stored in parts)
        return pulled + b * u.sum(axis=0)

    return sparse_forward, sparse_backward
