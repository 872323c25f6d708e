"""Corrections where q is not the target: importance weights, or HMC from its draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from curvi._core.trees import coordinate_names, precision_of
from curvi.diagnostics import Correction, user_columns, user_space
from curvi.families import HostMap, SparseMap
from curvi.inference.ladder._convergence import Effort
from curvi.inference.ladder._hamiltonian import HMCDraws, run_hmc
from curvi.inference.ladder._search import Mixture
from curvi.inference.ladder._state import CLOSE, Candidate
from curvi.objective import BatchedDensity
from curvi.targets import AbstractTarget


@dataclass(frozen=True)
class Spending:
    """What HMC may cost, and how many draws it should be worth.

    Parameters
    ----------
    patience, most_evaluations : int
        Gradients after which it goes on only for want of draws, and gradients in all.
    most_numbers : float
        Numbers that it computes within its patience.
    cheap_numbers, held_numbers : float
        Numbers that it computes, and that all positions hold, up to which it goes on for want of
        draws.
    chains, fewest_chains : int
        Number of chains, in whole batches of the fewest.
    chain_numbers : int
        In the positions of all chains, as far as the fewest chains allow it.
    least_ess, most_ess, numbers_for_ess : float
        Effective draws: the more the cheaper they are, unless mc_tolerance asks for more.
    """

    patience: int = 400_000
    most_evaluations: int = 1_600_000
    most_numbers: float = 8e10
    cheap_numbers: float = 4e9
    held_numbers: float = 1e8
    chains: int = 256
    fewest_chains: int = 32
    chain_numbers: int = 400_000
    least_ess: float = 1000.0
    most_ess: float = 2500.0
    numbers_for_ess: float = 1e7

    def effort(
        self, target: AbstractTarget, mc_tolerance: float | None, time_left: Callable[[], float]
    ) -> Effort:
        """How long HMC goes on for this target."""
        numbers = max(target.density.cost.numbers, 1.0)
        wanted = float(np.clip(self.numbers_for_ess / numbers, self.least_ess, self.most_ess))
        patience = int(min(self.patience, self.most_numbers / numbers))
        affordable = self.cheap_numbers / numbers, self.held_numbers / target.dimension
        most = min(self.most_evaluations, *affordable)
        batches = self.chain_numbers // (self.fewest_chains * target.dimension)
        batches = int(np.clip(batches, 1, self.chains // self.fewest_chains))
        return Effort(
            wanted_ess=wanted if mc_tolerance is None else max(wanted, mc_tolerance**-2),
            most_evaluations=max(patience, int(most)),
            patience=patience,
            chains=self.fewest_chains * batches,
            time_left=time_left,
        )


SPENDING = Spending()


def with_own_moments(place: SparseMap, noise: np.ndarray) -> np.ndarray:
    """Noise whose draws have the means and sds of q exactly, coordinate by coordinate.

    What q has right then has no Monte-Carlo error before it is weighted.
    """
    positions = place.forward(noise).positions
    mean, sd = np.empty_like(place.mean), np.empty_like(place.mean)
    mean[place.order], sd[place.order] = place.mean, place.sds
    scaled = (positions - positions.mean(axis=0)) / positions.std(axis=0)
    return place.noise_of(mean + scaled * sd)


def weighted(density: BatchedDensity, best: Candidate, noise: np.ndarray) -> Correction | None:
    """Importance weights for draws whose noise has exact moments, of each coordinate at least.

    None where a few of them carry the rest: more draws found what those before had missed.
    """
    moved = best.map.forward(noise)
    values, _ = density(moved.positions)
    log_q = -0.5 * np.sum(noise**2, axis=1) - moved.log_det
    logs = np.where(np.isfinite(values), values - log_q, -np.inf)  # no weight off the support
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    ess = float(1 / np.sum(weights**2))
    if ess < CLOSE.relative_ess * len(noise):
        return None
    positions = moved.positions.astype(density.density.dtype)
    return Correction("importance", positions, weights, ess, trusted=True)


def moved(
    target: AbstractTarget,
    density: BatchedDensity,
    best: Candidate,
    rng: np.random.Generator,
    effort: Effort,
    mixture: Mixture | None = None,
) -> tuple[Correction, str]:
    """Draws of the target by HMC from draws of q, and what came of it.

    With a mixture, from draws of that, and with jumps between its parts.
    """
    with precision_of(target.dtype):
        outputs = user_columns(user_space(target, best.family))
        place = best.map if mixture is None else mixture.within
        found = run_hmc(density, place, rng, effort, outputs, mixture)
    verdict = "converged" if found.trusted else "not converged"
    correction = Correction(
        "hmc",
        found.positions.astype(target.dtype),
        None,
        float(found.convergence.ess.min()),
        trusted=found.trusted,
        worst=_worst(target, best, found),
        joins=mixture is not None,
    )
    return correction, f"{verdict}, {found.divergences:.1%} divergences"


def _worst(target: AbstractTarget, best: Candidate, found: HMCDraws) -> str:
    """What q had wrong most."""
    place, names = best.map, coordinate_names(target.position)
    mean = found.positions.mean(axis=0)
    sd = found.positions.std(axis=0)
    order = place.order
    shift = np.abs(place.mean - mean[order]) / np.maximum(sd[order], 1e-300)
    ratio = place.sds / np.maximum(sd[order], 1e-300)
    far = int(np.argmax(shift))
    off = int(np.argmax(np.abs(np.log(np.maximum(ratio, 1e-300)))))
    return (
        f"the mean of {names[order[far]]} off by {shift[far]:.2g} sds, and the sd of "
        f"{names[order[off]]} by a factor of {ratio[off]:.2g}"
    )


def has_light_tails(
    density: BatchedDensity, place: HostMap | SparseMap, rng: np.random.Generator, *,
    reach: int = 12, drawn: float = 3.5, most_beyond: float = 0.03,
) -> bool:  # fmt: skip
    """Whether little of the target's variance lies where q has no draws.

    Along coordinates of the noise through its centre, the share of the second moment of the target
    that is beyond 3.5 sds of q; a normal target has a quarter of a percent there.

    Parameters
    ----------
    density, place : BatchedDensity, HostMap
        The target, and the map of q.
    rng : numpy Generator
        Breaks ties among many axes.
    reach, drawn : float
        Sds of q: how far is looked, and up to where a few thousand draws lie.
    most_beyond : float
        Share of the second moment that may lie beyond these.
    """
    dimension = len(place.mean)
    axes = heaviest_axes(density, place, rng)
    ticks = np.linspace(-reach, reach, 4 * reach + 1)
    noise = np.zeros((len(axes), len(ticks), dimension))
    noise[np.arange(len(axes))[:, None], np.arange(len(ticks)), axes[:, None]] = ticks
    moved = place.forward(noise.reshape(-1, dimension))
    values, _ = density(moved.positions)
    logs = np.reshape(values + moved.log_det, (len(axes), len(ticks)))
    logs = np.where(np.isfinite(logs), logs, -np.inf)
    moments = np.exp(logs - logs.max(axis=1, keepdims=True)) * ticks**2
    beyond = moments[:, np.abs(ticks) > drawn].sum(axis=1) / moments.sum(axis=1)
    return bool((beyond < most_beyond).all())


def heaviest_axes(
    density: BatchedDensity, place: HostMap | SparseMap, rng: np.random.Generator, *,
    most: int = 32, screened: float = 6.0, most_screened: int = 2000,
) -> np.ndarray:  # fmt: skip
    """The axes of the noise along which the target falls least on its way out: 32, or all.

    ``most``: axes that are looked along.
    ``screened``: sds at which many axes are compared, and
    ``most_screened``: how many axes may be compared.
    """
    dimension = len(place.mean)
    if dimension <= most or dimension > most_screened:
        return rng.permutation(dimension)[:most]
    noise = screened * np.concatenate([np.eye(dimension), -np.eye(dimension)])
    moved = place.forward(noise)
    values, _ = density(moved.positions)
    logs = np.where(np.isfinite(values), values + moved.log_det, -np.inf)
    height = np.maximum(logs[:dimension], logs[dimension:])
    return np.argsort(-height)[:most]
