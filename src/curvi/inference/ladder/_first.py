"""Which rung a ladder begins with: its family, method and draws."""

from __future__ import annotations

from curvi._core.run import OutOfTime, deadline
from curvi.families import Family, FullRank, SparsePrecision
from curvi.inference.ladder._sparsity import MOST_FULL, SPARSE_DRAWS, may_be_sparse, sparse_family
from curvi.objective import Draws
from curvi.solvers import NaturalGradient
from curvi.targets import AbstractTarget

_MOST_WORK = 1e12  # numbers that the gradients of one fit compute
_STEPS = 30  # of a run, by which its work is judged
MOST_DENSE = 2000  # coordinates, up to which a Hessian without zeros has a full covariance
FEWEST_DRAWS, _DRAWS_PER_DIMENSION = 128, 1.15
FEW_DIMENSIONS = 30  # up to which a run goes on to the end
_LEAST_PROGRESS = 0.02  # nats per step and root of a dimension that are worth going on for


def climbs(target: AbstractTarget) -> bool:
    """Whether a full covariance of the target is affordable, or a sparse precision to be found."""
    return _has_full_rank(target, MOST_DENSE) or may_be_sparse(target)


def _has_full_rank(target: AbstractTarget, most: int) -> bool:
    draws = number_of_draws(target.dimension)
    work = target.density.cost.numbers * draws * _STEPS
    return target.dimension <= most and work <= _MOST_WORK


def number_of_draws(dimension: int) -> int:
    """A little more than coordinates, so that whitened draws exist; whole batches."""
    wanted = max(FEWEST_DRAWS, int(_DRAWS_PER_DIMENSION * dimension) + 2)
    return -(-wanted // FEWEST_DRAWS) * FEWEST_DRAWS


def first_rung(
    target: AbstractTarget, time_budget: float | None = None
) -> tuple[Family, NaturalGradient, Draws] | None:
    """The family, method and draws that a fit begins with; None where there is no such family.

    Looking for one takes no longer than ``time_budget``.
    """
    method, dimension = method_for(target.dimension), target.dimension
    family: Family | None = None
    if not _has_full_rank(target, MOST_FULL) and may_be_sparse(target):
        try:
            with deadline(float("inf") if time_budget is None else time_budget):
                family = sparse_family(target)
        except OutOfTime:
            return None
    if family is None and _has_full_rank(target, MOST_DENSE):
        family = FullRank()
    return None if family is None else (family, method, draws_for(family, dimension))


def has_more_draws(target: AbstractTarget) -> bool:
    """Whether a first run that has not ended may begin again on four times its draws."""
    draws = 4 * number_of_draws(target.dimension)
    return target.density.cost.numbers * draws * _STEPS <= _MOST_WORK


def draws_for(family: Family, dimension: int) -> Draws:
    """Those on which a family is fitted."""
    if isinstance(family, SparsePrecision):
        return Draws("normalised", SPARSE_DRAWS)
    return Draws("whitened", number_of_draws(dimension))


def method_for(dimension: int) -> NaturalGradient:
    """Natural gradients, to the end where that is cheap: what is improper shows itself there."""
    patient = dimension <= FEW_DIMENSIONS
    return NaturalGradient(0.0 if patient else _LEAST_PROGRESS * dimension**0.5)
