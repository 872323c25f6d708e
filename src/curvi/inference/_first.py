"""Which rung a ladder begins with: its family, method and draws."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from curvi._core.errors import InputError
from curvi._core.run import OutOfTime, deadline
from curvi.families import Family, FullRank, SparseMap, SparsePrecision
from curvi.objective import Curvature, Draws, find_curvature, work_of
from curvi.solvers import NaturalGradient
from curvi.targets import AbstractTarget

_SEED = 0x5A  # of the positions and groups that show a structure
_NOT_SPARSE = (
    "the Hessian of this log density is not sparse, or not the same everywhere; use LowRank(10), "
    "or FullRank() up to a thousand coordinates"
)
_OTHER_ENTRIES = (
    "the Hessian of this log density has entries that pairs and globals_ leave out; name them, or "
    "leave both out to have the structure found"
)


@dataclass(frozen=True)
class Sizes:
    """Which family a ladder begins with, and on how many draws.

    Parameters
    ----------
    most_full : int
        Coordinates up to which it begins with a full covariance.
    most_dense : int
        Coordinates up to which a Hessian without zeros has a full covariance.
    most_sparse : int
        Coordinates up to which a sparse one is looked for.
    work_of_search, work_of_fit : float
        Numbers that looking for a structure, and the gradients of one fit, may compute.
    steps : int
        Of a run, by which its work is judged.
    fewest_draws, draws_per_dimension
        Of a full covariance; whole batches of the fewest.
    sparse_draws : int
        Of a sparse precision.
    few : int
        Coordinates up to which a run goes on to the end.
    least_progress : float
        Nats per step and root of a dimension that are worth going on for.
    """

    most_full: int = 1000
    most_dense: int = 2000
    most_sparse: int = 100_000
    work_of_search: float = 1e11
    work_of_fit: float = 1e12
    steps: int = 30
    fewest_draws: int = 128
    draws_per_dimension: float = 1.15
    sparse_draws: int = 32
    few: int = 30
    least_progress: float = 0.02


SIZES = Sizes()


def may_be_sparse(target: AbstractTarget) -> bool:
    """Whether a structure is worth looking for: it costs some hundred products."""
    wide = SIZES.most_full < target.dimension <= SIZES.most_sparse
    return wide and work_of(target) <= SIZES.work_of_search


def sparse_family(target: AbstractTarget) -> SparsePrecision | None:
    """The family with the structure of a target; None where it has none."""
    found = find_curvature(target, np.random.default_rng(_SEED))
    return None if found is None else SparsePrecision(elimination=found.structure)


def structure_holds(
    target: AbstractTarget, place: SparseMap, rng: np.random.Generator, *, draws: int = 2
) -> bool:
    """Whether the Hessian has no other entries at draws of a q that was fitted.

    Where a term is switched on by its coordinates, it may have entries that it had not at the
    start. Each draw costs one Hessian, and one product along a dense vector.
    """
    noise = rng.normal(size=(draws, target.dimension))
    positions = place.forward(noise).positions
    return Curvature(target.density, target.rows, place.structure).verified(positions, rng)


def with_found_structure(family: Family, target: AbstractTarget) -> Family:
    """The family; a sparse precision with the structure of the target.

    Raises
    ------
    InputError
        Where the target has none, or one that was given by hand leaves entries out.
    """
    if not isinstance(family, SparsePrecision):
        return family
    rng = np.random.default_rng(_SEED)
    if family.elimination is None:
        found = sparse_family(target)
        if found is None:
            raise InputError(_NOT_SPARSE)
        return replace(found, follows=family.follows)
    given = Curvature(target.density, target.rows, family.elimination)
    places = np.asarray(target.start) + 0.1 * rng.normal(size=(2, target.dimension))
    if not given.verified(places, rng):
        raise InputError(_OTHER_ENTRIES)
    return family


def climbs(target: AbstractTarget) -> bool:
    """Whether a full covariance of the target is affordable, or a sparse precision to be found."""
    return _has_full_rank(target, SIZES.most_dense) or may_be_sparse(target)


def _has_full_rank(target: AbstractTarget, most: int) -> bool:
    draws = number_of_draws(target.dimension)
    work = target.density.cost.numbers * draws * SIZES.steps
    return target.dimension <= most and work <= SIZES.work_of_fit


def number_of_draws(dimension: int) -> int:
    """A little more than coordinates, so that whitened draws exist; whole batches."""
    wanted = max(SIZES.fewest_draws, int(SIZES.draws_per_dimension * dimension) + 2)
    return -(-wanted // SIZES.fewest_draws) * SIZES.fewest_draws


def first_rung(
    target: AbstractTarget, time_budget: float | None = None
) -> tuple[Family, NaturalGradient, Draws] | None:
    """The family, method and draws that a fit begins with; None where there is no such family.

    Looking for one takes no longer than ``time_budget``.
    """
    method, dimension = method_for(target.dimension), target.dimension
    family: Family | None = None
    if not _has_full_rank(target, SIZES.most_full) and may_be_sparse(target):
        try:
            with deadline(float("inf") if time_budget is None else time_budget):
                family = sparse_family(target)
        except OutOfTime:
            return None
    if family is None and _has_full_rank(target, SIZES.most_dense):
        family = FullRank()
    return None if family is None else (family, method, draws_for(family, dimension))


def has_more_draws(target: AbstractTarget) -> bool:
    """Whether a first run that has not ended may begin again on four times its draws."""
    draws = 4 * number_of_draws(target.dimension)
    return target.density.cost.numbers * draws * SIZES.steps <= SIZES.work_of_fit


def draws_for(family: Family, dimension: int) -> Draws:
    """Those on which a family is fitted."""
    if isinstance(family, SparsePrecision):
        return Draws("normalised", SIZES.sparse_draws)
    return Draws("whitened", number_of_draws(dimension))


def method_for(dimension: int) -> NaturalGradient:
    """Natural gradients, to the end where that is cheap: what is improper shows itself there."""
    patient = dimension <= SIZES.few
    return NaturalGradient(0.0 if patient else SIZES.least_progress * dimension**0.5)
