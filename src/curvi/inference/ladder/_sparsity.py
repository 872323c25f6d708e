"""The rung with sparse precision: its structure, and scales that follow the dense block."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from curvi._core.errors import InputError
from curvi.families import Family, SparsePrecision
from curvi.families._sparse_host import SparseMap
from curvi.objective._curvature import Curvature, find_curvature, work_of
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
