"""Which rung a ladder begins with: its family, method and draws."""

from __future__ import annotations

from curvi._core.run import OutOfTime, deadline
from curvi.families import Family, FullRank, SparsePrecision
from curvi.inference.ladder._sparsity import SIZES, may_be_sparse, sparse_family
from curvi.objective import Draws
from curvi.solvers import NaturalGradient
from curvi.targets import AbstractTarget


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
