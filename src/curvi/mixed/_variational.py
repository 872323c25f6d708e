r"""The best Gaussian for all effects, given hyperparameters: exact Newton steps.

For :math:`q = N(m, S)` with predictors :math:`t_i \sim N(m_i, v_i)` the bound is

.. math::

    F(q; \theta) = \sum_i E[\ell_i(t_i)] - \mathrm{KL}(q \,\|\, p(\cdot \mid \theta)),

and at its maximum :math:`S^{-1} = Q + A' \mathrm{diag}(w) A` with :math:`w_i = -E[\ell_i'']`
(equations (1)-(3) of the paper, one dimension per row). A step sets the weights, solves the arrow,
and moves m by Newton's step; it is halved while the bound falls. At the maximum
:math:`\partial F / \partial \theta` follows from :math:`E[\ell'], E[\ell'']` and the covariance of
each predictor with its own effects (envelope theorem). In whitened effects the KL term does not
depend on :math:`\theta`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from curvi._core.errors import NumericalError
from curvi.likelihoods import Likelihood
from curvi.mixed._design import Design
from curvi.mixed._hyper import Layout
from curvi.mixed._system import (
    Prior,
    System,
    condition,
    prior_of,
    remaining_columns,
    statistics,
    whitened,
)  # fmt: skip


@dataclass(frozen=True)
class NewtonSteps:
    """When the best Gaussian of a theta, and theta itself, are found.

    Attributes
    ----------
    tolerance : float
        Of the gain that a step promises, in nats.
    rough : float
        The same on the way to the best hyperparameters.
    most_steps : int
        At most.
    halvings : int
        Of a step that loses.
    shortest : float
        Part of a step in theta.
    tiny : float
        Curvature along a step that says nothing.
    least : float
        Weight of a row; the expected curvature of a Student t may have the wrong sign.
    """

    tolerance: float = 1e-7
    rough: float = 1e-3
    most_steps: int = 60
    halvings: int = 8
    shortest: float = 1e-3
    tiny: float = 1e-10
    least: float = 1e-10


NEWTON = NewtonSteps()


@dataclass(frozen=True)
class Variational:
    """A fitted q: sites of rows, means, the factorised precision, the bound."""

    weights: np.ndarray  # w_i
    targets: np.ndarray  # weight times target of the Gaussian site of each row
    predictor: np.ndarray  # m_i, offset included
    variance: np.ndarray  # v_i
    slope: np.ndarray  # E[l']
    curvature: np.ndarray  # E[l'']
    system: System
    row_effects: np.ndarray  # (rows, P) S_rest r_i: covariance of t_i with the other effects
    level_effects: np.ndarray  # (rows, K): covariance of t_i with xi of its level
    bound: float
    steps: int
    converged: bool


@dataclass(frozen=True)
class Problem:
    """What does not depend on hyperparameters."""

    design: Design
    layout: Layout
    likelihood: Likelihood
    A: np.ndarray
    prior: Prior

    @classmethod
    def of(cls, design: Design, layout: Layout, likelihood: Likelihood) -> Problem:
        """Of a design."""
        return cls(design, layout, likelihood, remaining_columns(design), prior_of(design))

    def expected(
        self, m: np.ndarray, v: np.ndarray, extra: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Expectations of every row."""
        d = self.design
        return self.likelihood.expected(m, v, d.y, d.trials, extra)


def fit_effects(
    problem: Problem,
    theta: np.ndarray,
    start: Variational | None,
    tolerance: float = NEWTON.tolerance,
) -> Variational:
    """Maximise the bound over q, from the sites of an earlier fit or from the data alone."""
    roots = problem.layout.scale_factors(theta)
    extra = problem.layout.extra_values(theta)
    d = problem.design
    B = d.factors[0].columns @ roots[0]
    A = whitened(problem.A, roots[1:], problem.prior, ())
    if start is None:
        base = d.offset + problem.likelihood.predictor_start(d.y, d.trials)
        _, slope, curvature = problem.expected(base, np.full(d.rows, 0.5), extra)
        weights = np.maximum(-curvature, NEWTON.least)
        targets = weights * (base - d.offset) + slope
    else:
        weights, targets = start.weights, start.targets
    fitted = _evaluate(problem, roots, A, B, extra, weights, targets)
    for step in range(1, NEWTON.most_steps + 1):
        weights = np.maximum(-fitted.curvature, NEWTON.least)
        targets = weights * (fitted.predictor - d.offset) + fitted.slope
        trial = _evaluate(problem, roots, A, B, extra, weights, targets)
        length = 1.0
        while not trial.bound >= fitted.bound - 1e-9 * abs(fitted.bound):
            length *= 0.5
            if length < 2.0**-NEWTON.halvings:
                return replace(fitted, steps=step, converged=bool(np.isfinite(fitted.bound)))
            mixed_w = fitted.weights + length * (weights - fitted.weights)
            mixed_t = fitted.targets + length * (targets - fitted.targets)
            trial = _evaluate(problem, roots, A, B, extra, mixed_w, mixed_t)
        gain = trial.bound - fitted.bound
        fitted = trial
        if length == 1.0 and gain < tolerance * max(1.0, 1e-3 * abs(fitted.bound)):
            return replace(fitted, steps=step, converged=True)
    return replace(fitted, steps=NEWTON.most_steps)


def _evaluate(
    problem: Problem,
    roots: list[np.ndarray],
    A: np.ndarray,
    B: np.ndarray,
    extra: np.ndarray,
    weights: np.ndarray,
    targets: np.ndarray,
) -> Variational:
    """The Gaussian of some sites, the bound there, and the expectations of all rows."""
    d, prior = problem.design, problem.prior
    try:
        system = condition(statistics(d, problem.A, weights, targets), roots, prior)
    except np.linalg.LinAlgError as error:
        raise NumericalError(
            "the precision of the effects is not positive definite in double precision; rescale "
            "columns of very different sizes"
        ) from error
    codes = d.factors[0].codes
    predictor = d.offset + A @ system.rest_mean + (B * system.level_mean[codes]).sum(axis=1)
    half = np.einsum("nkj,nj->nk", system.level_root[codes], B)  # H^{-1/2} b
    residual = A - np.einsum("nkp,nk->np", system.coupling[codes], half)
    inverse = np.linalg.inv(system.rest_root)  # small; many rows are multiplied with it
    rest = residual @ inverse.T
    variance = np.einsum("np,np->n", rest, rest) + (half**2).sum(axis=1)
    row_effects = rest @ inverse
    back = half - np.einsum("nkp,np->nk", system.coupling[codes], row_effects)
    level_effects = np.einsum("nkj,nk->nj", system.level_root[codes], back)
    value, slope, curvature = problem.expected(predictor, variance, extra)
    shift = system.rest_mean[: len(prior.mean)] - prior.mean
    square = prior.precision @ shift**2 + (system.rest_mean[len(prior.mean) :] ** 2).sum()
    square = square + (prior.copies[:, None] * system.level_mean**2).sum()
    bound = d.weights @ (value + 0.5 * weights * variance) - 0.5 * square
    bound = bound + 0.5 * np.log(prior.precision).sum() - 0.5 * system.log_det
    return Variational(
        weights, targets, predictor, variance, slope, curvature, system, row_effects,
        level_effects, float(bound), 0, False,
    )  # fmt: skip


def bound_and_slope(
    problem: Problem,
    theta: np.ndarray,
    start: Variational | None,
    tolerance: float = NEWTON.tolerance,
) -> tuple[float, np.ndarray, Variational]:
    """``F(theta) + log p(theta)`` maximised over q, and its gradient in theta."""
    layout, d = problem.layout, problem.design
    fitted = fit_effects(problem, theta, start, tolerance)
    slope = layout.slopes_of_prior(theta)
    parts = problem.prior.parts()
    for index, changes in enumerate(layout.derivatives(theta)):
        for place, (factor, change) in enumerate(zip(d.factors, changes, strict=True)):
            if not change.any():
                continue
            moved = factor.columns @ change  # derivative of b_i, per row
            if place == 0:
                mean, cov = fitted.system.level_mean[factor.codes], fitted.level_effects
            else:
                shape = (factor.levels, factor.size)
                mean = fitted.system.rest_mean[parts[place - 1]].reshape(shape)[factor.codes]
                wide = fitted.row_effects[:, parts[place - 1]].reshape(-1, *shape)
                cov = wide[np.arange(d.rows), factor.codes]
            by_row = fitted.slope * (moved * mean).sum(axis=1)
            by_row = by_row + fitted.curvature * (moved * cov).sum(axis=1)
            slope[index] += d.weights @ by_row
    for index in range(len(layout.extras)):
        at = layout.size - len(layout.extras) + index
        slope[at] += _slope_of_extra(problem, theta, fitted, at)
    return fitted.bound + float(layout.log_prior(theta)), slope, fitted


def _slope_of_extra(
    problem: Problem, theta: np.ndarray, fitted: Variational, at: int, step: float = 1e-4
) -> float:
    ends = []
    for sign in (1, -1):
        moved = theta.copy()
        moved[at] += sign * step
        extra = problem.layout.extra_values(moved)
        value, _, _ = problem.expected(fitted.predictor, fitted.variance, extra)
        ends.append(float(problem.design.weights @ value))
    return (ends[0] - ends[1]) / (2 * step)


def find_hyper(
    problem: Problem, start: np.ndarray, *, tolerance: float = 0.02, most: int = 60
) -> tuple[np.ndarray, Variational, bool]:
    """The theta of the largest bound, by BFGS on exact gradients; q is carried along.

    The tolerance is of the gain that is left, in nats: the mode only centres what follows.
    """
    at = np.array(start)
    value, slope, fitted = bound_and_slope(problem, at, None, NEWTON.rough)
    inverse = np.eye(len(at)) / max(1.0, float(np.abs(slope).max()))
    for turn in range(most):
        step = inverse @ slope
        step = step * min(1.0, 1.5 / max(float(np.abs(step).max()), 1e-300))
        promised = slope @ step
        if promised < tolerance and turn > 1:
            return at, fitted, fitted.converged
        length = 1.0
        while True:
            trial = bound_and_slope(problem, at + length * step, fitted, NEWTON.rough)
            if trial[0] >= value + 1e-4 * length * promised - 2 * NEWTON.rough:
                break
            length *= 0.3
            if length < NEWTON.shortest:
                return at, fitted, bool(promised < 1.0)
        move, change = length * step, slope - trial[1]
        if (curved := move @ change) > NEWTON.tiny:
            if turn == 0:
                inverse = np.eye(len(at)) * curved / (change @ change)
            left = np.eye(len(at)) - np.outer(move, change) / curved
            inverse = left @ inverse @ left.T + np.outer(move, move) / curved
        at, (value, slope, fitted) = at + move, trial
    return at, fitted, False
