"""Importance sampling of low-dimensional log densities, many points at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
from scipy import special

from curvi._core.meshes import divided
from curvi.engine import remembered
from curvi.linalg import Density

_ARM = 2.0  # sds from the mode where its sides are measured
_SIDES = (0.5, 6.0)
_PILOT = 32  # points per dimension on which a proposal is tried
_GOOD = 0.7  # share of effective points from which it is kept
_ROUNDS, _COMPONENTS = 3, 64
_REFINED = 8  # times as many for a mixture: kernels on few points miss the tails
_WIDE_SHARE = 8  # one point in so many comes from the wide proposal


@dataclass(frozen=True)
class Weighted:
    """Points with normalised weights, and how well the proposal matched."""

    points: np.ndarray
    weights: np.ndarray
    log_ratios: np.ndarray

    @property
    def ess(self) -> float:
        """Effective number of points."""
        return float(1 / np.sum(self.weights**2))

    @property
    def log_mean_ratio(self) -> float:
        """Log of the integral of the density, which importance sampling estimates."""
        return float(special.logsumexp(self.log_ratios) - np.log(len(self.log_ratios)))


def weigh(points: np.ndarray, log_density: np.ndarray, log_proposal: np.ndarray) -> Weighted:
    """Self-normalised importance weights; points of no finite density get weight zero."""
    ratios = np.where(np.isfinite(log_density), log_density - log_proposal, -np.inf)
    return Weighted(points, special.softmax(ratios), ratios)


@dataclass(frozen=True)
class Proposal:
    """``z = mean + root x`` with independent entries of x: Student t, each side with a scale.

    The density of an entry is ``2 / (left + right) t(x / scale of its side)``. Log sds of groups
    have a long left tail where the groups hardly differ, and a short right one.
    """

    mean: np.ndarray
    root: np.ndarray
    left: np.ndarray
    right: np.ndarray
    df: float = 8.0

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points and their log densities, from standard normal x."""
        uniform = special.ndtr(x)
        share = self.left / (self.left + self.right)
        low = uniform < share
        inner = np.where(low, uniform / (2 * share), 0.5 + (uniform - share) / (2 - 2 * share))
        tails = special.stdtrit(self.df, np.clip(inner, 1e-15, 1 - 1e-15))
        log_det = np.linalg.slogdet(self.root)[1] + np.log(0.5 * (self.left + self.right)).sum()
        scaled = tails * np.where(low, self.left, self.right)
        return self.mean + scaled @ self.root.T, _log_t(tails, self.df).sum(axis=1) - log_det

    def log_density(self, points: np.ndarray) -> np.ndarray:
        """Log densities of any points."""
        x = np.linalg.solve(self.root, (points - self.mean).T).T
        tails = x / np.where(x < 0, self.left, self.right)
        log_det = np.linalg.slogdet(self.root)[1] + np.log(0.5 * (self.left + self.right)).sum()
        return _log_t(tails, self.df).sum(axis=1) - log_det


def two_piece(density: Density, mode: np.ndarray, precision: np.ndarray) -> Proposal:
    """A proposal around a mode, with the scale of each side from the fall of the density there."""
    root = root_of_precision(precision)
    moves = np.concatenate([_ARM * root.T, -_ARM * root.T, np.zeros((1, len(mode)))])
    values = density(mode + moves)
    fall = np.where(np.isfinite(values[:-1]), values[-1] - values[:-1], np.inf)
    scales = np.clip(_ARM / np.sqrt(2 * np.maximum(fall, 1e-2)), *_SIDES)
    return Proposal(mode, root, scales[len(mode) :], scales[: len(mode)])


def _log_t(x: np.ndarray, df: float) -> np.ndarray:
    constant = special.gammaln(0.5 * (df + 1)) - special.gammaln(0.5 * df)
    return constant - 0.5 * np.log(df * np.pi) - 0.5 * (df + 1) * np.log1p(x**2 / df)


@cache
def _sobol(count: int, dimension: int, seed: int) -> np.ndarray:
    from scipy.stats import qmc

    engine = qmc.Sobol(dimension, scramble=True, rng=np.random.default_rng(seed))
    bits = int(np.ceil(np.log2(max(count, 2))))
    return engine.random_base2(bits)[:count]


def white_points(count: int, dimension: int, seed: int) -> np.ndarray:
    """Scrambled Sobol points as normal ones, in pairs of opposite sign, of unit variance."""
    if not dimension:
        return np.zeros((count, 0))
    half = (count + 1) // 2
    uniform = np.clip(_sobol(half, dimension, seed), 1e-12, 1 - 1e-12)
    x = special.ndtri(uniform)
    x = np.concatenate([x, -x])[:count]
    if count > 2 * dimension + 2:  # exact second moments: sums of quadratics have no error
        root = np.linalg.cholesky(x.T @ x / count)
        x = np.linalg.solve(root, x.T).T
    return x


def root_of_precision(precision: np.ndarray) -> np.ndarray:
    """Lower root of the covariance: leading entries first, the rest given them."""
    values, vectors = np.linalg.eigh(precision)
    floor = max(1e-2, 1e-10 * float(values.max()))
    covariance = (vectors / np.maximum(values, floor)) @ vectors.T
    return np.linalg.cholesky(0.5 * (covariance + covariance.T))


@dataclass(frozen=True)
class Mixture:
    """Student t components around points that were found, and a share of a wide proposal."""

    wide: Proposal
    centres: np.ndarray  # (components, dimension)
    root: np.ndarray
    df: float = 6.0

    @property
    def mean(self) -> np.ndarray:
        """Of the wide proposal; its length is the dimension."""
        return self.wide.mean

    def at(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points and their log densities, from standard normal x in pairs of opposite sign."""
        half = (len(x) + 1) // 2
        # The place of a point in a Sobol sequence decides the leading digits of its coordinates: a
        # component that took every n-th point would see a slice of its own density only.
        turn = np.random.default_rng(half).permutation(half)
        local = turn - turn // _WIDE_SHARE - 1  # among points that are not wide
        wide = np.tile(turn % _WIDE_SHARE == 0, 2)[: len(x)]
        chosen = np.tile(local % len(self.centres), 2)[: len(x)]
        tails = special.stdtrit(self.df, np.clip(special.ndtr(x), 1e-15, 1 - 1e-15))
        points = self.centres[chosen] + tails @ self.root.T
        points[wide] = self.wide.at(x[wide])[0]
        share = float(wide.mean())
        logs = np.stack([np.log(share) + self.wide.log_density(points), self._log_local(points)])
        logs[1] += np.log1p(-share)
        return points, special.logsumexp(logs, axis=0)

    def _log_local(self, points: np.ndarray) -> np.ndarray:
        inverse = np.linalg.inv(self.root)
        far = (points[:, None] - self.centres) @ inverse.T
        logs = _log_t(far, self.df).sum(axis=-1)
        total = special.logsumexp(logs, axis=1) - np.log(len(self.centres))
        return total - np.linalg.slogdet(self.root)[1]


def shared(what: str, compute: Callable[..., Any]) -> Callable[..., Any]:
    """A function of many points, one row of the answer each, for checkpoints and meshes.

    What a call has computed is found again when it resumes; processes share the points.
    """
    return partial(remembered, what, partial(divided, compute))


def explore(density: Density, proposal: Proposal, *, seed: int) -> Proposal | Mixture:
    """Try a proposal on a few points; where it does not match, fit a mixture to the density.

    Sds near zero leave the correlations of their effects to the prior: such densities are no
    ellipsoids. Kernels around weighted points follow any shape in a few dimensions.
    """
    size = len(proposal.mean)
    found = _tried(density, proposal, _PILOT * size, seed)
    if found.ess > _GOOD * len(found.weights):
        return proposal
    best = kernels(found, proposal)
    for turn in range(1, _ROUNDS):
        found = _tried(density, best, _REFINED * _PILOT * size, seed + turn)
        best = kernels(found, proposal)
    return best


def kernels(found: Weighted, wide: Proposal) -> Mixture:
    """Components around weighted points, as wide as a kernel estimate of their density."""
    size = found.points.shape[1]
    mean = found.weights @ found.points
    centred = found.points - mean
    spread = (centred * found.weights[:, None]).T @ centred
    width = (4 / ((size + 2) * max(found.ess, 2.0))) ** (1 / (size + 4))
    jitter = 1e-8 * np.diag(np.diag(spread)) + 1e-10 * np.eye(size)
    places = (np.arange(_COMPONENTS) + 0.5) / _COMPONENTS
    chosen = np.searchsorted(np.cumsum(found.weights), places)
    root = np.clip(width, 0.5, 1.0) * np.linalg.cholesky(spread + jitter)
    return Mixture(wide, found.points[np.minimum(chosen, len(found.points) - 1)], root)


def _tried(density: Density, proposal: Proposal | Mixture, count: int, seed: int) -> Weighted:
    points, log_q = proposal.at(white_points(count, len(proposal.mean), seed))
    return weigh(points, density(points), log_q)
