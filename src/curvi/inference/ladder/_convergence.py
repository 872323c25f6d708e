"""How chains of HMC move and how long, whether their moments have converged, and their worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np


@dataclass(frozen=True)
class Trajectories:
    """How chains move, and what they are trusted for.

    Parameters
    ----------
    block : int
        Trajectories between two looks at the moments, or this share of those before.
    warm : int
        Trajectories that choose the step size.
    length, jitter : float
        Of a trajectory, and its relative spread.
    acceptance : float
        Rate that the step size aims at.
    shortest, longest : float
        Step sizes.
    most_leaps : int
        Steps of one trajectory.
    mismatch : float
        Variance in the noise, or its inverse, from which the map is matched to the chains.
    least_acceptance, most_divergences : float
        Rates of trusted chains.
    divergent : float
        Nats of energy that a divergent trajectory has lost.
    least_per_chain : float
        Effective draws: a chain that never leaves its start is worth one.
    few_divergences, shorter, shortest_again : float
        Rate from which chains begin again with a step size that is smaller by this factor, down to
        the last of the three.
    most_ways : int
        Ways of jumps that are tried after a trajectory.
    short : float
        Fraction of chains whose next steps are shorter.
    """

    block: int = 8
    warm: int = 8
    length: float = np.pi / 2
    jitter: float = 0.3
    acceptance: float = 0.8
    shortest: float = 0.01
    longest: float = 1.0
    most_leaps: int = 64
    mismatch: float = 1.4
    least_acceptance: float = 0.3
    divergent: float = 50.0
    most_divergences: float = 0.01
    least_per_chain: float = 3.0
    few_divergences: float = 0.002
    shorter: float = 0.7
    shortest_again: float = 0.05
    most_ways: int = 4
    short: float = 0.15


TRAJECTORIES = Trajectories()


@dataclass(frozen=True)
class Effort:
    """How long HMC goes on.

    Parameters
    ----------
    wanted_ess : float
        Effective draws of the worst coordinate at which it ends.
    most_evaluations : int
        Gradients that it may take.
    patience : int
        Gradients from which on it continues only where what is left promises to be enough.
    chains : int
        Number of chains.
    time_left : callable
        Seconds that are left.
    trajectories : Trajectories
        How the chains move.
    """

    wanted_ess: float = 1000.0
    most_evaluations: int = 200_000
    patience: int = 200_000
    chains: int = 256
    time_left: Callable[[], float] = lambda: float("inf")
    trajectories: Trajectories = TRAJECTORIES


class Convergence(NamedTuple):
    """What the kept draws of all chains say about themselves.

    Attributes
    ----------
    ess : effective draws of every coordinate, from the scatter of the chains' means
    drift : change of the mean, or of half the variance, between their halves, in posterior sds;
        zero where chance explains it
    scale_ess : effective draws for the worst distance from the centre: a chain that never leaves a
        spike has the mean of all others
    """

    ess: np.ndarray
    drift: np.ndarray
    scale_ess: float = np.inf

    @property
    def converged(self) -> bool:
        """Whether no mean is still moving."""
        return bool((self.drift == 0).all())


def convergence_of(kept: np.ndarray, *, rounding: float = 1e-12) -> Convergence:
    """Effective numbers and drifts of draws, shape (times, chains, dimension).

    ``rounding``: relative range of draws that do not differ.
    """
    times, chains, _ = kept.shape
    # Around a value of their own, so that squares keep their digits.
    centre = kept[0].mean(axis=0, dtype=np.float64)
    halves = [_Sums.of(part - centre) for part in (kept[: times // 2], kept[times // 2 :])]
    sums = halves[0].plus(halves[1])
    mean = sums.first.sum(axis=0) / (times * chains)
    total = sums.around(mean).sum(axis=0) / (times * chains)
    # Rounding alone moves what is constant, such as the corner of a Cholesky factor.
    constant = total <= (rounding * np.maximum(np.abs(centre), np.abs(mean + centre))) ** 2
    total = np.where(constant, 1.0, total)
    between = np.where(constant, 0.0, (sums.first / times).var(axis=0))
    most = float(chains * times)
    ess = np.minimum(chains * total / np.maximum(between, 1e-300), most)
    far = sums.far / times
    spread = np.where(constant, 1.0, total + mean**2 - far.mean(axis=0) ** 2)
    scattered = np.where(constant, 0.0, far.var(axis=0))
    scale_ess = float(np.min(chains * spread / np.maximum(scattered, 1e-300), initial=most))
    if times < 2:
        return Convergence(ess, np.zeros_like(ess), scale_ess)
    # Of the values and of their squares: a spread that still grows is no spread of the target.
    before, after = halves
    first = (after.first / after.times - before.first / before.times) / np.sqrt(total)
    second = after.around(mean) / after.times - before.around(mean) / before.times
    drifts = [_drift(first), _drift(0.5 * second / total)]
    worst = max(drifts, key=lambda drift: float(np.abs(drift).max(initial=0.0)))
    return Convergence(ess, worst, scale_ess)


class _Sums(NamedTuple):
    """Number of times, and sums over them of every chain's values, their squares and sizes."""

    times: int
    first: np.ndarray
    second: np.ndarray
    far: np.ndarray

    @classmethod
    def of(cls, values: np.ndarray) -> _Sums:
        """Those of values, shape (times, chains, dimension)."""
        squares = np.einsum("tcd,tcd->cd", values, values)
        return cls(len(values), values.sum(axis=0), squares, np.abs(values).sum(axis=0))

    def plus(self, other: _Sums) -> _Sums:
        """Those of both."""
        first, second = self.first + other.first, self.second + other.second
        return _Sums(self.times + other.times, first, second, self.far + other.far)

    def around(self, mean: np.ndarray) -> np.ndarray:
        """The sum of squares of what is left without a mean."""
        return self.second - 2 * mean * self.first + self.times * mean**2


def _drift(change: np.ndarray, *, errors: float = 4.5, sds: float = 0.05) -> np.ndarray:
    """Mean over the chains of a change between two halves, zero within its error.

    A mean still moves where both are exceeded: so many standard ``errors``, and posterior ``sds``.
    """
    drift = change.mean(axis=0)
    error = change.std(axis=0) / np.sqrt(len(change))
    moving = (np.abs(drift) > errors * error) & (np.abs(drift) > sds)
    return np.where(moving, drift, 0.0)
