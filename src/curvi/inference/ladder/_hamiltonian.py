r"""Hamiltonian Monte Carlo from draws of q: the judge of a fit, and its correction.

Many chains start at draws of q and move in the coordinates of its noise, where the target is

.. math:: \log p(z(\epsilon)) + \log |\det dz / d\epsilon|,

a standard normal if q is right. Moments that move say that q is wrong, and by how much; when they
have stopped moving they are those of the target. In these coordinates a step of the leapfrog is
long and a trajectory of a quarter of a period, :math:`\pi / 2`, all but independent of its start,
so that a few of them do what a sampler without q needs hundreds for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from curvi._core.threads import one_blas_thread
from curvi.families import HostMap, Moved, SparseMap
from curvi.inference.ladder._convergence import (
    TRAJECTORIES,
    Convergence,
    Effort,
    Trajectories,
    convergence_of,
)
from curvi.objective import BatchedDensity


@dataclass(frozen=True, eq=False)
class HMCDraws:
    """Draws of the target, and how far they can be trusted.

    Attributes
    ----------
    positions : array, shape (draws, dimension)
        Flat positions, those of one time together.
    convergence : Convergence
        Effective numbers, and means that still move.
    acceptance : float
        Share of accepted trajectories.
    divergences : float
        Fraction of divergent trajectories, those whose energy error is above 50 nats: the
        curvature somewhere is too high for the step size.
    evaluations : int
        Gradients that were taken.
    chains : int
        Number of chains.
    policy : Trajectories
        How they moved.
    """

    positions: np.ndarray
    convergence: Convergence
    acceptance: float
    divergences: float
    evaluations: int
    chains: int = 256
    policy: Trajectories = TRAJECTORIES

    @property
    def trusted(self) -> bool:
        """Whether the chains move freely, and their moments have stopped moving."""
        least = min(self.convergence.ess.min(initial=np.inf), self.convergence.scale_ess)
        policy = self.policy
        free = self.acceptance >= policy.least_acceptance
        free = free and self.divergences <= policy.most_divergences
        return self.convergence.converged and least >= policy.least_per_chain * self.chains and free


class _State(NamedTuple):
    """Noise of all chains, its log density and the gradient of that."""

    noise: np.ndarray
    values: np.ndarray
    scores: np.ndarray
    positions: np.ndarray

    def replaced(self, which: np.ndarray, other: _State) -> _State:
        """The state with some of its chains where those of another one are."""
        return _State(
            *(
                np.where(which.reshape(-1, *[1] * (new.ndim - 1)), new, old)
                for new, old in zip(other, self, strict=True)
            )
        )


Outputs = Callable[[np.ndarray], np.ndarray]


@runtime_checkable
class Jumps(Protocol):
    """A distribution near the target, from which chains take proposals now and then."""

    @property
    def ways(self) -> np.ndarray:
        """Moves, one per row, that chains also try, there or back."""

    def draw(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Positions, one per row."""

    def log_prob(self, positions: np.ndarray) -> np.ndarray:
        """Log density up to a constant."""


def run_hmc(
    density: BatchedDensity,
    place: HostMap | SparseMap,
    rng: np.random.Generator,
    effort: Effort,
    outputs: Outputs,
    jumps: Jumps | None = None,
) -> HMCDraws:
    """Move draws of q until their moments converge and are known well, or the effort is spent.

    The first trajectories choose the step size. Where the chains then turn out wider or
    narrower than q, the map is matched to them. Of what follows the first third is dropped.

    Parameters
    ----------
    density, place : BatchedDensity, HostMap
        The target, and the map of q.
    rng : numpy Generator
        Source of all chance.
    effort : Effort
        When to stop.
    outputs : callable
        From positions, one per row, to the numbers whose moments are wanted, a row each.
    jumps : Jumps, optional
        Where the target has several modes: chains start at draws of it, and propose one after
        every trajectory. The map is then that within the modes, and has no warp.
    """
    with one_blas_thread():  # small products: threads would wait for each other
        return _Chains(density, place, rng, effort, outputs, jumps).run()


class _Chains:
    """All chains, and the map in whose coordinates they move."""

    def __init__(
        self,
        density: BatchedDensity,
        place: HostMap | SparseMap,
        rng: np.random.Generator,
        effort: Effort,
        outputs: Outputs,
        jumps: Jumps | None,
    ) -> None:
        self.density, self.rng, self.effort, self.outputs = density, rng, effort, outputs
        self.policy = effort.trajectories
        # In double precision whatever the target has: far from zero single steps would be lost.
        self.place, self.jumps = place, jumps
        self.before = density.evaluations
        dimension = len(place.mean)
        self.step = float(
            np.clip(1.2 * dimension**-0.25, self.policy.shortest, self.policy.longest)
        )
        if jumps is None:
            noise = rng.normal(size=(effort.chains, dimension))
        else:
            noise = place.noise_of(jumps.draw(rng, effort.chains))
        self.state = self._start(noise)
        self.kept: list[np.ndarray] = []
        self.seen: list[np.ndarray] = []
        self.rates: list[float] = []
        self.divergences: list[float] = []

    def run(self) -> HMCDraws:
        """Warm up, match the map, and go on block by block."""
        self._advance(self.policy.warm, adapt=True)
        if self._match():
            self._advance(self.policy.warm, adapt=True)
            self._match()
            self._advance(self.policy.warm // 2, adapt=True)
        self._forget()
        while True:
            self._advance(max(self.policy.block, len(self.kept) // self.policy.block), adapt=False)
            if self._shortened():
                continue
            self.seen += [self.outputs(places) for places in self.kept[len(self.seen) :]]
            dropped = len(self.kept) // 3
            found = convergence_of(np.stack(self.seen[dropped:]))
            done = found.converged and found.ess.min() >= self.effort.wanted_ess
            done = done and found.scale_ess >= self.policy.least_per_chain * self.effort.chains
            if done or self._spent() or self._impatient(found):
                return HMCDraws(
                    np.concatenate(self.kept[dropped:]),
                    found,
                    float(np.mean(self.rates)),
                    float(np.mean(self.divergences)),
                    self._used(),
                    self.effort.chains,
                    self.policy,
                )

    def _forget(self) -> None:
        self.kept, self.seen, self.rates, self.divergences = [], [], [], []

    def _shortened(self) -> bool:
        """Begin again with a smaller step size where trajectories diverge."""
        divergent = float(np.mean(self.divergences)) > self.policy.few_divergences
        late = self._used() > 0.4 * self.effort.patience  # what follows is the answer
        if not divergent or late or self.step <= self.policy.shortest_again or self._spent():
            return False
        self.step *= self.policy.shorter
        self._forget()
        return True

    def _used(self) -> int:
        return self.density.evaluations - self.before

    def _spent(self) -> bool:
        return self._used() >= self.effort.most_evaluations or self.effort.time_left() <= 0

    def _impatient(self, found: Convergence) -> bool:
        """Whether, past the usual effort, more is not needed, or all that is left is too little."""
        used, enough = self._used(), self.policy.least_per_chain * self.effort.chains
        if used < self.effort.patience:
            return False
        least = float(found.ess.min())
        return (found.converged and least >= enough) or (
            least * self.effort.most_evaluations < enough * used
        )

    def _start(self, noise: np.ndarray) -> _State:
        """Chains where the target is not negligible.

        A chain that starts far outside of it may never move. Draws of q are therefore resampled by
        their importance weights, raised to the power that leaves half of them effective.
        """
        state = self._at(noise)
        good = np.isfinite(state.values) & np.isfinite(state.scores).all(axis=1)
        if not good.any():
            return state
        logs = np.where(good, state.values - self._log_q(state), -np.inf)
        chosen = self.rng.choice(len(noise), len(noise), p=_tempered(logs))
        return _State(*(part[chosen] for part in state))

    def _log_q(self, state: _State) -> np.ndarray:
        """Of the distribution that starts come from, up to a constant."""
        if self.jumps is not None:
            return self.jumps.log_prob(state.positions)
        found: np.ndarray = -0.5 * np.sum(state.noise**2, axis=1)
        return found

    def _jump(self) -> None:
        """Propose a draw of ``jumps`` to every chain, and steps along its ways."""
        if self.jumps is None:
            return
        count, rng = len(self.state.noise), self.rng
        there = self._at(self.place.noise_of(self.jumps.draw(rng, count)))
        self._propose(there, self._log_q(self.state) - self._log_q(there))
        ways = self.jumps.ways
        for _ in range(min(len(ways), self.policy.most_ways)):
            signs = rng.choice([-1.0, 1.0], (count, 1))
            moved = self.state.positions + signs * ways[rng.integers(len(ways), size=count)]
            self._propose(self._at(self.place.noise_of(moved)), 0.0)

    def _propose(self, there: _State, correction: np.ndarray | float) -> None:
        """Metropolis, with the log ratio of what proposes there and back."""
        with np.errstate(invalid="ignore"):
            gained = there.values - self.state.values + correction
        usable = np.isfinite(gained) & np.isfinite(there.scores).all(axis=1)
        chance = np.where(usable, np.exp(np.minimum(gained, 0.0)), 0.0)
        self.state = self.state.replaced(self.rng.random(len(chance)) < chance, there)

    def _at(self, noise: np.ndarray) -> _State:
        moved: Moved = self.place.forward(noise)
        values, gradients = self.density(moved.positions)
        with np.errstate(invalid="ignore", over="ignore"):
            scores = self.place.back(moved, gradients)
            return _State(noise, values + moved.log_det, scores, moved.positions)

    def _advance(self, count: int, adapt: bool) -> None:
        for _ in range(count):
            rate = self._trajectory()
            self.rates.append(rate)
            self.kept.append(self.state.positions)
            if adapt:
                divergent = self.divergences[-1] > 0.5 * self.policy.most_divergences
                longer = (
                    self.step * np.exp(rate - self.policy.acceptance) * (0.8 if divergent else 1.0)
                )
                self.step = float(np.clip(longer, self.policy.shortest, self.policy.longest))
            if self._spent():
                return

    def _trajectory(self) -> float:
        """One trajectory of every chain; the share that was accepted, on average."""
        state, rng = self.state, self.rng
        length = self.policy.length * rng.uniform(1 - self.policy.jitter, 1 + self.policy.jitter)
        leaps = int(np.clip(round(length / self.step), 1, self.policy.most_leaps))
        momentum = rng.normal(size=state.noise.shape)
        # A few chains take short steps: one in a place of high curvature can leave it.
        short = rng.random(len(momentum)) < self.policy.short
        step = self.step * np.where(short, rng.uniform(0.05, 1.0, len(momentum)), 1.0)
        step = step[:, None]
        there, moving = state, momentum + 0.5 * step * state.scores
        with np.errstate(invalid="ignore", over="ignore"):
            for leap in range(leaps):
                there = self._at(there.noise + step * moving)
                moving = moving + (1.0 if leap < leaps - 1 else 0.5) * step * there.scores
            gained = there.values - state.values
            gained -= 0.5 * (np.sum(moving**2, axis=1) - np.sum(momentum**2, axis=1))
        chance = np.where(np.isfinite(gained), np.exp(np.minimum(gained, 0.0)), 0.0)
        self.divergences.append(float(np.mean(~(gained > -self.policy.divergent))))
        accepted = rng.random(len(chance)) < chance
        self.state = state.replaced(accepted, there)
        self._jump()
        return float(chance[~short].mean()) if not short.all() else self.policy.acceptance

    def _match(self) -> bool:
        """Match the map to the chains where they are wider or narrower than q."""
        if self.jumps is not None:  # the spread of all modes together is none of theirs
            return False
        recent = np.concatenate(self.kept[-self.policy.warm // 2 :])
        spread = self.place.noise_of(recent).var(axis=0)
        if not np.isfinite(spread).all() or (
            spread.min() > 1 / self.policy.mismatch and spread.max() < self.policy.mismatch
        ):
            return False
        dimension = recent.shape[1]
        self.place = self.place.matched_to(recent, len(recent) / (len(recent) + 2.0 * dimension))
        self.state = self._at(self.place.noise_of(self.state.positions))
        return True


def _tempered(logs: np.ndarray) -> np.ndarray:
    """Weights raised to the largest power, up to one, that leaves half of them effective."""
    logs = logs - logs.max()

    def weights(power: float) -> np.ndarray:
        found = np.exp(power * np.where(np.isfinite(logs), logs, -np.inf))
        return found / found.sum()

    powers = np.linspace(1.0, 0.0, 41)[:-1]
    enough = (w for w in map(weights, powers) if 1 / np.sum(w**2) >= 0.5 * len(logs))
    return next(enough, weights(float(powers[-1])))
