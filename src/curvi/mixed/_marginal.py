r"""The posterior of all but the effects of the largest factor, which quadrature sums out.

Given the hyperparameters :math:`\theta` and the remaining effects u (fixed ones, other factors)
the levels of the first factor are independent, and the likelihood of each,

.. math::

    L_g(u, \theta) = \int \prod_{i \in g} p(y_i \mid a_i'u + z_i'\Lambda\xi)\, N(\xi; 0, I)\, d\xi ,

has as few dimensions as a level has effects. Gauss-Hermite nodes stand where the variational
posterior of :math:`\xi_g` given :math:`(u, \theta)` is: its Gaussian sites give the place and the
width in closed form for any :math:`(u, \theta)`. So :math:`\log p(y, u, \theta)` is exact to the
precision of the rule, and importance sampling corrects the Gaussian approximation of
:math:`(u, \theta)`, which is good because each of these sees many rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from curvi._core.quadrature import gauss_hermite
from curvi.mixed._system import Statistics, over_levels, statistics
from curvi.mixed._variational import Problem, Variational

_NODES = {1: 15, 2: 9, 3: 7}
_NUMBERS_AT_ONCE = 2**18  # in the largest array: it stays in the cache


def quadrature_possible(problem: Problem) -> bool:
    """Whether levels of the first factor have so few effects that a product rule is cheap."""
    return problem.design.factors[0].size in _NODES


class Levels(NamedTuple):
    """Likelihoods of levels at points (points, levels), and moments of their effects."""

    log_likelihood: np.ndarray
    mean: np.ndarray | None = None  # (points, levels, K), in the units of the columns
    covariance: np.ndarray | None = None  # (points, levels, K, K)


class Inside(NamedTuple):
    """Posterior weights of nodes and slopes of rows at one point, for derivatives."""

    share: np.ndarray  # (levels, nodes)
    slope: np.ndarray  # (rows, nodes)
    curvature: np.ndarray


@dataclass(frozen=True)
class Marginal:
    """``log p(y, z)`` for z = (theta, fixed effects, effects of other factors)."""

    problem: Problem
    stats: Statistics
    nodes: np.ndarray  # (nodes, K)
    log_weights: np.ndarray

    @classmethod
    def of(cls, problem: Problem, fitted: Variational, count: int | None = None) -> Marginal:
        """Around a variational fit, with a product rule of ``count`` nodes per effect."""
        size = problem.design.factors[0].size
        line, weights = gauss_hermite(count or _NODES[size])
        grid = np.stack(np.meshgrid(*[line] * size, indexing="ij"), axis=-1).reshape(-1, size)
        mass = np.prod(
            np.stack(np.meshgrid(*[weights] * size, indexing="ij"), axis=-1), axis=-1
        ).reshape(-1)
        keep = mass > 1e-13 * mass.max()
        log_weights = np.log(mass[keep]) + 0.5 * (grid[keep] ** 2).sum(axis=1)
        stats = statistics(problem.design, problem.A, fitted.weights, fitted.targets)
        return cls(problem, stats, grid[keep], log_weights)

    def unpack(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Theta, the effects u, and the log density of both under the prior."""
        layout, prior = self.problem.layout, self.problem.prior
        theta, u = z[:, : layout.size], z[:, layout.size :]
        fixed = u[:, : len(prior.mean)] - prior.mean
        log_prior = layout.log_prior(theta) - 0.5 * fixed**2 @ prior.precision
        log_prior = log_prior + 0.5 * np.log(prior.precision).sum()
        log_prior = log_prior - 0.5 * np.log(2 * np.pi) * prior.size
        roots = layout.scale_factors(theta)[1:]
        for part, (levels, size), root in zip(prior.parts(), prior.shapes, roots, strict=True):
            effects = np.swapaxes(u[:, part].reshape(-1, levels, size), -1, -2)
            white = np.linalg.solve(root, effects)
            log_det = np.log(np.diagonal(root, axis1=-2, axis2=-1)).sum(axis=-1)
            log_prior = log_prior - levels * log_det - 0.5 * (white**2).sum(axis=(1, 2))
        return theta, u, log_prior

    def __call__(self, z: np.ndarray) -> np.ndarray:
        """``log p(y, z)`` of many points."""
        return self.evaluate(z, moments=False)[0]

    def evaluate(self, z: np.ndarray, *, moments: bool) -> tuple[np.ndarray, Levels]:
        """Log densities, and what is known of the levels at every point."""
        width = self.problem.design.rows * len(self.nodes)
        at_once = max(1, _NUMBERS_AT_ONCE // width)
        values, levels = [], []
        for start in range(0, len(z), at_once):
            theta, u, log_prior = self.unpack(z[start : start + at_once])
            part = self._levels(theta, u, moments)
            levels.append(part)
            values.append(log_prior + part.log_likelihood @ self.problem.design.copies)
        if not moments:
            return np.concatenate(values), levels[0]
        joined = [np.concatenate(arrays) for arrays in zip(*levels, strict=True)]
        return np.concatenate(values), Levels(*joined)

    def _nodes(self, theta: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Whitened nodes (points, levels, nodes, K), Lambda, and log widths (points, levels)."""
        root = self.problem.layout.scale_factors(theta)[0]
        turned = np.swapaxes(root, -1, -2)
        block = turned[:, None] @ self.stats.within @ root[:, None]
        block = block + np.eye(block.shape[-1])
        pull = self.stats.within_target - np.einsum("gkp,dp->dgk", self.stats.cross, u)
        factor = np.linalg.cholesky(block)
        inverse = np.linalg.inv(factor)
        white = inverse @ (pull @ root)[..., None]
        place = np.swapaxes(inverse, -1, -2) @ (white + self.nodes.T)
        log_width = -np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(axis=-1)
        return np.swapaxes(place, -1, -2), root, log_width

    def _levels(self, theta: np.ndarray, u: np.ndarray, moments: bool) -> Levels:
        xi, root, log_width = self._nodes(theta, u)
        effects = xi @ np.swapaxes(root, -1, -2)[:, None]
        log_mass = self._row_sums(theta, u, effects)
        log_mass = log_mass + self.log_weights - 0.5 * (xi**2).sum(axis=-1)
        top = log_mass.max(axis=-1, keepdims=True)
        mass = np.exp(log_mass - top)
        total = mass.sum(axis=-1)
        log_likelihood = np.log(total) + top[..., 0] + log_width
        if not moments:
            return Levels(log_likelihood)
        share = (mass / total[..., None])[..., None]
        mean = (share * effects).sum(axis=2)
        centred = effects - mean[:, :, None]
        covariance = np.swapaxes(share * centred, -1, -2) @ centred
        return Levels(log_likelihood, mean, covariance)

    def _row_sums(self, theta: np.ndarray, u: np.ndarray, effects: np.ndarray) -> np.ndarray:
        """Log likelihoods summed over the rows of each level: (points, levels, nodes)."""
        d, likelihood = self.problem.design, self.problem.likelihood
        factor = d.factors[0]
        base = u @ self.problem.A.T + d.offset  # (points, rows)
        t = np.take(effects[..., 0], factor.codes, axis=1)  # (points, rows, nodes)
        if factor.size > 1 or np.any(factor.columns != 1):
            t *= factor.columns[:, :1]
        for k in range(1, factor.size):
            t += np.take(effects[..., k], factor.codes, axis=1) * factor.columns[:, k, None]
        t += base[..., None]
        extra = self.problem.layout.extra_values(theta)[:, None, None, :]
        return likelihood.level_sums(t, d.y, d.trials, extra, d.starts)

    def _inside(self, z: np.ndarray) -> Inside:
        """What derivatives at one point need."""
        d, factor = self.problem.design, self.problem.design.factors[0]
        theta, u, _ = self.unpack(z[None])
        xi, root, _ = self._nodes(theta, u)
        effects = xi @ np.swapaxes(root, -1, -2)[:, None]
        t = (u @ self.problem.A.T + d.offset)[0, :, None]
        t = t + np.einsum("nk,nqk->nq", factor.columns, effects[0, factor.codes])
        extra = self.problem.layout.extra_values(theta[0])
        y, trials = d.y[:, None], d.trials[:, None]
        values = self.problem.likelihood.log_density(t, y, trials, extra)
        slope, curvature = self.problem.likelihood.slopes(t, y, trials, extra)
        log_mass = over_levels(d, values) + self.log_weights - 0.5 * (xi[0] ** 2).sum(axis=-1)
        mass = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
        return Inside(mass / mass.sum(axis=1, keepdims=True), slope, curvature)

    def slope_and_precision(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gradient and minus the Hessian in u, by the identities of Fisher and Louis."""
        d, A, prior = self.problem.design, self.problem.A, self.problem.prior
        size, u = self.problem.layout.size, z[self.problem.layout.size :]
        inside = self._inside(z)
        share = inside.share[d.factors[0].codes]
        slopes = (share * inside.slope).sum(axis=1)
        gradient = A.T @ (d.weights * slopes)
        inner = -(share * inside.curvature).sum(axis=1)
        matrix = A.T @ ((d.weights * inner)[:, None] * A)
        mean = over_levels(d, slopes[:, None] * A)
        for q in range(inside.share.shape[1]):
            score = over_levels(d, inside.slope[:, q, None] * A) - mean
            matrix -= score.T @ ((d.copies * inside.share[:, q])[:, None] * score)
        fixed = np.arange(len(prior.mean))
        gradient[fixed] -= prior.precision * (u[fixed] - prior.mean)
        matrix[fixed, fixed] += prior.precision
        roots = self.problem.layout.scale_factors(z[:size])[1:]
        for part, (levels, width), root in zip(prior.parts(), prior.shapes, roots, strict=True):
            inverse = np.linalg.inv(root)
            precision = inverse.T @ inverse
            gradient[part] -= (u[part].reshape(levels, width) @ precision).reshape(-1)
            matrix[part, part] += np.kron(np.eye(levels), precision)
        return gradient, matrix
