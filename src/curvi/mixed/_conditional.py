r"""Importance sampling of hyperparameters and remaining effects, corrected by exact likelihoods.

The proposal is :math:`q(\theta)\, q(u \mid \theta)`. The second factor is the Gaussian that the
variational sites imply for u at each :math:`\theta` (so that funnels are followed), moved and
scaled to the exact mode and curvature at one :math:`\theta_0`; the first is a Student t around the
mode of Laplace's approximation of the exact marginal of :math:`\theta`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from curvi.latent import (
    Mixture,
    Proposal,
    Weighted,
    explore,
    kernels,
    root_of_precision,
    shared,
    two_piece,
    weigh,
    white_points,
)  # fmt: skip
from curvi.linalg import find_mode
from curvi.mixed._marginal import Levels, Marginal
from curvi.mixed._system import condition, whitened
from curvi.mixed._variational import Problem, Variational

_COUNTS = {1: (7, 9, 11, 15, 21), 2: (5, 7, 9, 11), 3: (5, 7)}
_REFERENCE = {1: 31, 2: 15, 3: 9}


@dataclass(frozen=True)
class ExactMode:
    """How the proposal for the remaining effects is moved to the exact mode.

    Attributes
    ----------
    numbers_at_once : int
        Of systems side by side.
    wider : float
        Sds of the proposal beyond those of the curvature, over the root of its dimension.
    enough : float
        Share of effective points below which hyperparameters are sampled again.
    gain : float
        Nats that Newton steps may leave: weights correct them.
    shortest : float
        Part of a Newton step.
    far : float
        Entries of theta from where the exact mode was taken, beyond which it is taken again.
    step : float
        Of theta, in differences of modes.
    exact_to : float
        Nats of the log likelihood that a rule of few nodes may lose.
    """

    numbers_at_once: int = 2**21
    wider: float = 0.25
    enough: float = 0.6
    gain: float = 0.01
    shortest: float = 1e-3
    far: float = 0.5
    step: float = 0.1
    exact_to: float = 2e-3


EXACT = ExactMode()


@dataclass(frozen=True)
class Conditional:
    """``u | theta ~ N(mean(theta), root(theta) root(theta)')``."""

    marginal: Marginal
    origin: np.ndarray  # theta where the exact mode and curvature were taken
    shift: np.ndarray  # (P,) exact mode minus that of the sites
    slope: np.ndarray  # (theta, P) how the shift changes with theta
    twist: np.ndarray  # (P, P): root(theta) = root of the sites @ twist

    def of_sites(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance root of u that the sites imply, in the units of the columns."""
        problem = self.marginal.problem
        width = problem.prior.size * (problem.prior.size + problem.design.factors[0].levels)
        at_once = max(1, EXACT.numbers_at_once // width)
        means, roots = [], []
        for start in range(0, len(theta), at_once):
            part = theta[start : start + at_once]
            factors = problem.layout.scale_factors(part)
            solved = condition(self.marginal.stats, factors, problem.prior, np.ones(len(part)))
            inverse = np.linalg.inv(solved.rest_root)  # rows whitened: covariance = inv' inv
            turned = [np.swapaxes(root, -1, -2) for root in factors[1:]]
            lead = part.shape[:1]
            means.append(whitened(solved.rest_mean, turned, problem.prior, lead))
            roots.append(np.swapaxes(whitened(inverse, turned, problem.prior, lead), -1, -2))
        return np.concatenate(means), np.concatenate(roots)

    def moments(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and covariance root of u given theta."""
        mean, root = self.of_sites(theta)
        # Far from the origin a slope must not go on for ever: where a log sd falls, the mode of u
        # soon changes no more.
        moved = np.tanh(theta - self.origin)
        return mean + self.shift + moved @ self.slope, root @ self.twist

    @property
    def width(self) -> float:
        """Factor of the proposal's sds: a wider one keeps weights of the tails small."""
        return 1 + EXACT.wider / np.sqrt(self.marginal.problem.prior.size)

    def laplace(self, theta: np.ndarray) -> np.ndarray:
        """Laplace's approximation of ``log p(y, theta)``."""
        mean, root = self.moments(theta)
        size = self.marginal.problem.prior.size
        values = self.marginal(np.concatenate([theta, mean], axis=1))
        return values + np.linalg.slogdet(root)[1] + 0.5 * size * np.log(2 * np.pi)


def of_sites_alone(marginal: Marginal, theta: np.ndarray) -> Conditional:
    """What the sites imply, without a correction."""
    size = marginal.problem.prior.size
    return Conditional(marginal, theta, np.zeros(size), np.zeros((len(theta), size)), np.eye(size))


def exact_conditional(marginal: Marginal, theta: np.ndarray) -> Conditional:
    """The exact mode of u and its curvature at one theta, and the mode at its neighbours."""
    plain = of_sites_alone(marginal, theta)
    mean, root = (array[0] for array in plain.of_sites(theta[None]))
    u, precision = _mode_of_rest(marginal, theta, mean)
    exact = root_of_precision(precision)
    slope = np.zeros((len(theta), len(u)))
    for k in range(len(theta)):
        step = np.zeros(len(theta))
        step[k] = EXACT.step
        ends = np.stack([theta + step, theta - step])
        sites = plain.of_sites(ends)[0]
        modes = []
        for end, site in zip(ends, sites, strict=True):
            at = u + site - mean
            gradient, curvature = marginal.slope_and_precision(np.concatenate([end, at]))
            modes.append(at + _solve(curvature, gradient) - site)
        slope[k] = (modes[0] - modes[1]) / (2 * EXACT.step)
    return Conditional(marginal, theta, u - mean, slope, np.linalg.solve(root, exact))


def _mode_of_rest(
    marginal: Marginal, theta: np.ndarray, start: np.ndarray, *, most: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """Newton's method for u at one theta; a gain below a hundredth of a nat is left."""
    u = np.array(start)
    value = float(marginal(np.concatenate([theta, u])[None])[0])
    precision = np.eye(len(u))
    for _ in range(most):
        gradient, precision = marginal.slope_and_precision(np.concatenate([theta, u]))
        step = _solve(precision, gradient)
        if gradient @ step < EXACT.gain:
            break
        length = 1.0
        while length > EXACT.shortest:
            trial = float(marginal(np.concatenate([theta, u + length * step])[None])[0])
            if trial > value:
                break
            length *= 0.5
        else:
            break
        u, value = u + length * step, trial
    return u, precision


def _solve(precision: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    root = root_of_precision(precision)
    return root @ (root.T @ gradient)


def marginal_with_few_nodes(problem: Problem, theta: np.ndarray, fitted: Variational) -> Marginal:
    """The smallest rule whose log likelihood is exact enough at the variational mean."""
    size = problem.design.factors[0].size
    reference = Marginal.of(problem, fitted, _REFERENCE[size])
    plain = of_sites_alone(reference, theta)
    at = np.concatenate([theta, plain.of_sites(theta[None])[0][0]])[None]
    exact = reference(at)[0]
    for count in _COUNTS[size]:
        trial = Marginal.of(problem, fitted, count)
        if abs(trial(at)[0] - exact) < EXACT.exact_to:
            return trial
    return reference


@dataclass(frozen=True)
class Integrated:
    """Weighted points (theta, u), moments of the levels' effects at each, and the mode."""

    weighted: Weighted
    levels: Levels
    mode: np.ndarray
    converged: bool


def integrate(
    problem: Problem, theta: np.ndarray, fitted: Variational, *, count: int, seed: int
) -> Integrated:
    """Importance sampling of the exact marginal around a variational fit."""
    marginal = marginal_with_few_nodes(problem, theta, fitted)
    proposal = exact_conditional(marginal, theta)
    density = shared("density", proposal.laplace)
    mode, hessian, reached = find_mode(density, theta, tolerance=1e-2, most=20)
    if np.abs(mode - theta).max() > EXACT.far:  # the exact curvature of u belongs to another theta
        proposal = exact_conditional(marginal, mode)
        density = shared("density", proposal.laplace)
        mode, hessian, reached = find_mode(density, mode, tolerance=1e-2, most=20)
    wide = two_piece(density, mode, -hessian)
    outer = explore(density, wide, seed=seed + 1)
    found, levels = _sampled(proposal, outer, count, seed)
    if (
        found.ess < EXACT.enough * count
    ):  # Laplace misjudged the tails: take kernels of exact weights
        points = replace(found, points=found.points[:, : len(mode)])
        again = _sampled(proposal, kernels(points, wide), count, seed + 7)
        if again[0].ess > found.ess:
            found, levels = again
    return Integrated(found, levels, mode, reached)


def _sampled(
    proposal: Conditional, outer: Proposal | Mixture, count: int, seed: int
) -> tuple[Weighted, Levels]:
    """Weighted points (theta, u), and the moments of the levels' effects at each."""
    marginal, size = proposal.marginal, len(outer.mean)
    x = white_points(count, size + marginal.problem.prior.size, seed)
    thetas, log_q = outer.at(x[:, :size])
    mean, root = proposal.moments(thetas)
    root, rest = proposal.width * root, x[:, size:]
    u = mean + np.einsum("dij,dj->di", root, rest)
    log_q = log_q - 0.5 * (rest**2 + np.log(2 * np.pi)).sum(axis=1) - np.linalg.slogdet(root)[1]
    points = np.concatenate([thetas, u], axis=1)

    def evaluated(some: np.ndarray) -> tuple[np.ndarray | None, ...]:
        values, levels = marginal.evaluate(some, moments=True)
        return (values, *levels)

    values, *levels = shared("effects", evaluated)(points)
    return weigh(points, values, log_q), Levels(*levels)
