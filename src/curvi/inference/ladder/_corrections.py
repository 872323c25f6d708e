"""Corrections where q is not the target: importance weights, or HMC from its draws."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from curvi._core.trees import coordinate_names, precision_of
from curvi.diagnostics._correction import Correction
from curvi.diagnostics._moments import user_columns, user_space
from curvi.families._sparse_host import SparseMap
from curvi.inference.ladder._hamiltonian import Effort, HMCDraws, run_hmc
from curvi.inference.ladder._search import Mixture
from curvi.inference.ladder._state import CLOSE, Candidate
from curvi.objective._batch import BatchedDensity
from curvi.targets import AbstractTarget

_FEWEST_WEIGHTED, _MOST_WEIGHTED = 1024, 4096  # draws, unless mc_tolerance asks for more
_MOST_DRAWS = 2**16  # that are weighted, whatever mc_tolerance asks for
_NUMBERS_WEIGHTED = 1e8  # that the log density at weighted draws computes
_PATIENCE, _MOST_EVALUATIONS = 400_000, 1_600_000  # gradients of HMC
# Numbers that it computes, and that all positions hold, up to which it continues for want of draws.
_CHEAP_NUMBERS, _HELD_NUMBERS = 4e9, 1e8
_MOST_NUMBERS = 8e10  # that HMC computes
_CHAINS, _FEWEST_CHAINS = 256, 32
_CHAIN_NUMBERS = 400_000  # in the positions of all chains, as far as so many chains allow it
# Effective draws of HMC: the more the cheaper it is, and what mc_tolerance asks for.
_LEAST_ESS, _MOST_ESS, _NUMBERS_FOR_ESS = 1000.0, 2500.0, 1e7


def number_to_weight(target: AbstractTarget, best: Candidate, mc_tolerance: float | None) -> int:
    """How many draws are worth a weight."""
    affordable = _NUMBERS_WEIGHTED / max(target.density.cost.numbers, 1.0)
    needed = 0.0
    if mc_tolerance is not None:
        needed = min((1 / best.relative_ess - 1) / mc_tolerance**2, _MOST_DRAWS)
    return int(np.clip(affordable, _FEWEST_WEIGHTED, max(_MOST_WEIGHTED, needed)))


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
    if ess < CLOSE * len(noise):
        return None
    positions = moved.positions.astype(density.density.dtype)
    return Correction("importance", positions, weights, ess, trusted=True)


def effort_of(
    target: AbstractTarget, mc_tolerance: float | None, time_left: Callable[[], float]
) -> Effort:
    """How long HMC goes on."""
    numbers = max(target.density.cost.numbers, 1.0)
    wanted = float(np.clip(_NUMBERS_FOR_ESS / numbers, _LEAST_ESS, _MOST_ESS))
    patience = int(min(_PATIENCE, _MOST_NUMBERS / numbers))
    most = min(_MOST_EVALUATIONS, _CHEAP_NUMBERS / numbers, _HELD_NUMBERS / target.dimension)
    affordable = _CHAIN_NUMBERS // (_FEWEST_CHAINS * target.dimension)  # whole batches of them
    return Effort(
        wanted_ess=wanted if mc_tolerance is None else max(wanted, mc_tolerance**-2),
        most_evaluations=max(patience, int(most)),
        patience=patience,
        chains=_FEWEST_CHAINS * int(np.clip(affordable, 1, _CHAINS // _FEWEST_CHAINS)),
        time_left=time_left,
    )


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
        f"the mean of {names[order[far]]} is off by {shift[far]:.2g} sds, the sd of "
        f"{names[order[off]]} by a factor of {ratio[off]:.2g}"
    )
