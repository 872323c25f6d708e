"""The rung with sparse precision: its structure, and scales that follow the dense block."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from curvi._core.errors import InputError
from curvi.families import Family, SparsePrecision
from curvi.families._sparse_host import SparseMap
from curvi.objective._curvature import Curvature, find_curvature, work_of
from curvi.targets import AbstractTarget

SPARSE_DRAWS = 32
MOST_FULL = 1000  # coordinates, up to which the ladder begins with a full covariance
_MOST_DIMENSIONS = 100_000
_MOST_WORK = 1e11  # numbers that looking for a structure may compute
_CHECKED = 2  # draws of a fitted q
_SEED = 0x5A  # of the positions and groups that show a structure
_NOT_SPARSE = (
    "the Hessian of this log density is not sparse, or not the same everywhere; use LowRank(10), "
    "or FullRank() up to a thousand coordinates"
)
_OTHER_ENTRIES = (
    "the Hessian of this log density has entries that pairs and globals_ leave out; name them, or "
    "leave both out to have the structure found"
)


def may_be_sparse(target: AbstractTarget) -> bool:
    """Whether a structure is worth looking for: it costs some hundred products."""
    wide = MOST_FULL < target.dimension <= _MOST_DIMENSIONS
    return wide and work_of(target) <= _MOST_WORK


def sparse_family(target: AbstractTarget) -> SparsePrecision | None:
    """The family with the structure of a target; None where it has none."""
    found = find_curvature(target, np.random.default_rng(_SEED))
    return None if found is None else SparsePrecision(elimination=found.structure)


def structure_holds(target: AbstractTarget, place: SparseMap, rng: np.random.Generator) -> bool:
    """Whether the Hessian has no other entries at draws of a q that was fitted.

    Where a term is switched on by its coordinates, it may have entries that it had not at the
    start. Each draw costs one Hessian, and one product along a dense vector.
    """
    noise = rng.normal(size=(_CHECKED, target.dimension))
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
