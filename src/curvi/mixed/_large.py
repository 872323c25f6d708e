r"""Models with many remaining effects: hyperparameters on a small design of points.

The log marginal of theta is exact for Gaussian responses; otherwise it is the variational bound.
Newton's method on a part of the table finds where to begin; on the whole table, points on a star
(the centre and two points on every axis) give gradient and curvature, and the same points, with
weights, carry the posterior: each with draws of the remaining effects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import linalg

from curvi._core.memory import require_memory
from curvi.engine._recording import remembered
from curvi.latent import root_of_precision, white_points
from curvi.likelihoods import Likelihood
from curvi.linalg import ascent, differences
from curvi.mixed._design import Design, Factor, taken
from curvi.mixed._hyper import Layout
from curvi.mixed._sparse import (
    SparseRows,
    SparseSystem,
    row_variances,
    solve_sparse,
    sparse_statistics,
)  # fmt: skip
from curvi.mixed._sums import Summed, Sums, sparse_sums

_DRAWS = 24  # of the remaining effects at each point
_MOST_STORED = 6e7  # numbers in the table of conditional means
_SMALL_ROWS = 40_000
_ARM = 1.1  # of the star, in units of sqrt(dimension) sds
_NEAR = 0.25  # sds that the mode may be from the centre of the star
_STEPS = 40
_TOLERANCE = 1e-5
_LEAST = 1e-10
_GAIN = 1e-2


@dataclass(frozen=True)
class Point:
    """The posterior of the effects at one theta."""

    theta: np.ndarray
    value: float  # log p(y, theta), or its bound
    system: SparseSystem
    converged: bool
    sites: tuple[np.ndarray, np.ndarray] | None = None


Evaluator = Callable[[np.ndarray, Point | None], Point]


def gaussian_evaluator(rows: SparseRows, layout: Layout, sums: Sums) -> Evaluator:
    """Exact log marginals: sums over rows are taken once."""

    def evaluate(theta: np.ndarray, _: Point | None) -> Point:
        noise = float(layout.extra_values(theta)[0])
        solved = solve_sparse(rows, sums.sparse, layout.scale_factors(theta), noise**-2.0)
        value = -sums.rows * (np.log(noise) + 0.5 * np.log(2 * np.pi))
        value += 0.5 * (np.log(rows.prior.precision).sum() - sums.square / noise**2)
        value += 0.5 * (solved.fit - solved.log_det)
        value -= 0.5 * float(rows.prior.precision @ rows.prior.mean**2)
        return Point(theta, float(value + layout.log_prior(theta)), solved, True)

    return evaluate


def variational_evaluator(rows: SparseRows, layout: Layout, likelihood: Likelihood) -> Evaluator:
    """Bounds, maximised over the Gaussian of all effects; the sites of a point start the next."""
    design = rows.design

    def evaluate(theta: np.ndarray, near: Point | None) -> Point:
        roots, extra = layout.scale_factors(theta), layout.extra_values(theta)
        if near is not None and near.sites is not None:
            weights, targets = near.sites
        else:
            base = design.offset + likelihood.predictor_start(design.y, design.trials)
            wide = np.full(design.rows, 0.5)
            _, slope, curved = likelihood.expected(base, wide, design.y, design.trials, extra)
            weights = np.maximum(-curved, _LEAST)
            targets = weights * (base - design.offset) + slope
        last, converged = -np.inf, False
        for _ in range(_STEPS):
            stats = sparse_statistics(rows, weights, targets)
            solved = solve_sparse(rows, stats, roots)
            mean, variance = row_variances(rows, solved, roots)
            value, slope, curved = likelihood.expected(
                mean, variance, design.y, design.trials, extra
            )
            bound = _bound(rows, solved, float((value + 0.5 * weights * variance).sum()))
            if abs(bound - last) < _TOLERANCE * max(1.0, 1e-3 * abs(bound)):
                converged = True
                break
            damping = 1.0 if bound >= last - 1e-6 * abs(bound) else 0.5
            last = bound
            new_weights = np.maximum(-curved, _LEAST)
            new_targets = new_weights * (mean - design.offset) + slope
            weights = weights + damping * (new_weights - weights)
            targets = targets + damping * (new_targets - targets)
        total = bound + float(layout.log_prior(theta))
        return Point(theta, total, solved, converged, (weights, targets))

    return evaluate


def _bound(rows: SparseRows, solved: SparseSystem, expected: float) -> float:
    prior = rows.prior
    shift = solved.rest_mean[: len(prior.mean)] - prior.mean
    square = prior.precision @ shift**2 + (solved.rest_mean[len(prior.mean) :] ** 2).sum()
    square = square + (solved.level_mean**2).sum()
    return float(
        expected - 0.5 * square + 0.5 * np.log(prior.precision).sum() - 0.5 * solved.log_det
    )


def part_of(design: Design, total: int | None = None, most: int = _SMALL_ROWS) -> Design:
    """Rows whose levels are all among the first of a share of the levels of every factor.

    ``total`` is the number of all rows, where the design has a block of them; then the levels
    that no row has are still among those of the part.
    """
    rows = design.rows if total is None else total
    if rows <= most:
        return design
    share = (most / rows) ** (1 / len(design.factors))
    keep = np.ones(design.rows, bool)
    for factor in design.factors:
        keep &= factor.codes < max(2, int(np.ceil(share * factor.levels)))
    part = taken(design, np.flatnonzero(keep))
    return part if total is not None else present_levels(part)


def present_levels(design: Design) -> Design:
    """The same rows, without levels that none of them has."""
    factors: list[Factor] = []
    for factor in design.factors:
        present, codes = np.unique(factor.codes, return_inverse=True)
        labels = tuple(factor.labels[i] for i in present)
        factors.append(replace(factor, labels=labels, codes=codes))
    levels = factors[0].levels
    return replace(
        design, factors=tuple(factors), copies=np.ones(levels), order=np.arange(design.rows),
        alias=np.arange(levels),
    )  # fmt: skip


def find_on_part(evaluate: Evaluator, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and Hessian by Newton's method on differences, each point near the last."""
    at, near = np.array(start), evaluate(start, None)

    def density(thetas: np.ndarray) -> np.ndarray:
        return np.array([evaluate(theta, near).value for theta in thetas])

    hessian = -np.eye(len(at))
    for _ in range(30):
        _, gradient, hessian = differences(density, at)
        step = ascent(gradient, hessian)
        if gradient @ step < _GAIN:
            break
        for length in (1.0, 0.4, 0.1, 0.02):
            trial = evaluate(at + length * step, near)
            if trial.value > near.value:
                break
        else:
            break
        at, near = trial.theta, trial
    return at, hessian


def star(
    evaluate: Evaluator, centre: np.ndarray, root: np.ndarray
) -> tuple[list[Point], np.ndarray, np.ndarray]:
    """Points on a star, and the mode and sds (in its axes) that a parabola on each axis gives."""
    arm = _ARM * np.sqrt(len(centre))
    middle = evaluate(centre, None)
    points, shift, sds = [middle], np.zeros(len(centre)), np.ones(len(centre))
    for axis in range(len(centre)):
        ends = [evaluate(centre + sign * arm * root[:, axis], middle) for sign in (1, -1)]
        points += ends
        slope = (ends[0].value - ends[1].value) / (2 * arm)
        curvature = (2 * middle.value - ends[0].value - ends[1].value) / arm**2
        sds[axis] = np.clip(curvature, 0.05, 20.0) ** -0.5
        shift[axis] = np.clip(slope * sds[axis] ** 2, -5, 5)
    return points, shift, sds


def star_weights(dimension: int) -> np.ndarray:
    """Weights of the star that give a standard normal its mean and covariance."""
    outer = 1 / (2 * _ARM**2 * dimension)
    return np.array([1 - 2 * dimension * outer] + [outer] * (2 * dimension))


def draws_of(
    rows: SparseRows, layout: Layout, points: list[Point], seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Theta, remaining effects, conditional means and covariances of levels, per component."""
    first = rows.design.factors[0]
    stored = len(points) * first.levels * first.size**2
    count = int(np.clip(_MOST_STORED // stored, 2, _DRAWS)) // 2 * 2
    thetas, rests, means, covariances = [], [], [], []
    x = white_points(count, rows.prior.size, seed).T
    # Few draws have variances of their own; the exact ones at the centre correct all points.
    inverse = linalg.solve_triangular(
        points[0].system.rest_root, np.eye(rows.prior.size), lower=True, check_finite=False
    )
    exact, drawn = (inverse**2).sum(axis=0), ((inverse.T @ x) ** 2).mean(axis=1)
    scale = np.sqrt(exact / np.maximum(drawn, 1e-3 * exact))[:, None]
    del inverse
    for point in points:
        roots, solved = layout.scale_factors(point.theta), point.system
        moves = scale * linalg.solve_triangular(
            solved.rest_root, x, lower=True, trans="T", check_finite=False
        )
        M = rows.scaled(roots[1:])
        spread = np.einsum("kl,glm->gkm", roots[0], np.swapaxes(solved.level_root, 1, 2))
        covariance = spread @ np.swapaxes(spread, 1, 2)
        for move in moves.T:
            thetas.append(point.theta)
            rests.append(M @ (solved.rest_mean + move))
            means.append(solved.given_rest(move) @ roots[0].T)
            covariances.append(covariance)
    return np.array(thetas), np.array(rests), np.array(means), np.array(covariances)


def fit_large(
    design: Design, layout: Layout, likelihood: Likelihood, *, seed: int,
    summed: Summed | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Components, their weights, and how it went; see the module."""
    y = design.y if summed is None else summed.response
    start = layout.start(likelihood.extra_start(y))
    small = part_of(design) if summed is None else summed.part
    on_part = partial(find_on_part, _evaluator(SparseRows.of(small), layout, likelihood))
    mode, hessian = remembered("mode on a part", on_part, start)
    ratio = max(1.0, min(
        whole.levels / part.levels
        for whole, part in zip(design.factors, small.factors, strict=True)
    ))  # fmt: skip
    root = root_of_precision(-hessian * ratio)
    rows = SparseRows.of(design)
    require_memory(
        8.0 * (2 * len(start) + 4) * rows.prior.size**2,  # each point of a star keeps a factor
        f"{2 * len(start) + 1} factors of {rows.prior.size} effects beside those of "
        f"{design.factors[0].name}",
        "make fixed factors of many levels groups, or leave out a group term",
    )
    evaluate = _evaluator(rows, layout, likelihood, None if summed is None else summed.sums)
    points: list[Point] = []

    def around(mode: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        points.clear()  # each holds a dense factor: those of two stars may not fit
        found, *rest = star(evaluate, mode, root)
        points.extend(found)
        return rest[0], rest[1]

    shift, sds = remembered("star", around, mode, root)
    for _ in range(3):
        if np.abs(shift / sds).max() < _NEAR and np.abs(np.log(sds)).max() < _NEAR:
            break
        mode, root = mode + root @ shift, root * sds
        shift, sds = remembered("star", around, mode, root)
    if not points:  # the last star was that of an earlier process, without its factors
        around(mode, root)
    near = bool(np.abs(shift / sds).max() < 2 * _NEAR)
    values = np.array([point.value for point in points])
    arms = np.concatenate([[0.0], np.full(2 * len(mode), 0.5 * _ARM**2 * len(mode))])
    weights = star_weights(len(mode)) * np.exp(values - values[0] + arms)
    weights = weights / weights.sum()
    theta, rest, mean, covariance = draws_of(rows, layout, points, seed)
    each = len(theta) // len(points)
    log_det = float(np.linalg.slogdet(root)[1])
    evidence = values[0] + log_det + 0.5 * len(mode) * np.log(2 * np.pi)
    return {
        "theta": theta, "weights": np.repeat(weights / each, each), "rest": rest,
        "level_mean": mean, "level_covariance": covariance, "alias": np.arange(mean.shape[1]),
        "log_ratios": np.zeros(0), "log_evidence": float(evidence),
        "converged": near and all(point.converged for point in points), "steps": len(points),
    }  # fmt: skip


def _evaluator(
    rows: SparseRows, layout: Layout, likelihood: Likelihood, sums: Sums | None = None
) -> Evaluator:
    if likelihood.conjugate:
        return gaussian_evaluator(rows, layout, sums or sparse_sums(rows))
    return variational_evaluator(rows, layout, likelihood)
