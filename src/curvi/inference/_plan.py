"""What a fit chooses where the call leaves it open: the ladder, and the plan of draws."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from curvi._core.errors import InputError
from curvi.diagnostics import FitResult
from curvi.families import Family, SparsePrecision
from curvi.inference.ladder._first import climbs
from curvi.inference.ladder._sparsity import SIZES
from curvi.io import Stream
from curvi.objective import Draws, plan_draws
from curvi.solvers import Method, NaturalGradient
from curvi.targets import AbstractTarget, DataTarget


def is_automatic(
    target: AbstractTarget,
    family: Any,
    method: Any,
    draws: Any,
    num_draws: Any,
    batch_size: Any,
    init: Any,
) -> bool:
    """Whether the ladder answers: nothing was chosen that it would have to override."""
    begins = init.rungs != () if isinstance(init, FitResult) else init == "position"
    nothing = method is None and num_draws is None and batch_size is None and begins
    untouched = isinstance(family, str) and family == "auto" and isinstance(draws, str)
    return nothing and untouched and draws == "auto" and climbs(target)


def planned_draws(
    family: Family,
    method: Method,
    target: AbstractTarget,
    draws: str | Draws,
    num_draws: int | None,
    batch_size: int | None,
) -> Draws:
    """Fixed draws where they pay; fresh ones where the method or the batches are stochastic."""
    if isinstance(family, SparsePrecision) and isinstance(method, NaturalGradient):
        if draws == "auto" and batch_size is None:  # exact Hessians need few draws
            return Draws("normalised", SIZES.sparse_draws if num_draws is None else num_draws)
        if isinstance(draws, Draws):
            return draws
    stochastic = method.needs_fresh_draws or batch_size is not None
    if isinstance(draws, str) and stochastic and (draws != "auto" or method.needs_fresh_draws):
        # Draws refuses what cannot be drawn anew, and few fresh draws suffice for any family.
        kind = "iid" if draws == "auto" else draws
        fewest = 1 if draws in ("auto", "iid") else 2
        draws = Draws(kind, fewest if num_draws is None else num_draws, fresh=True)
    plan = plan_draws(family, target.dimension, draws=draws, num_draws=num_draws)
    if draws == "auto" and batch_size is not None:
        plan = replace(plan, fresh=True)
    if plan.per_row and not isinstance(target, DataTarget):
        raise InputError("draws per row need a DataTarget; a plain log density has no rows")
    if plan.per_row and not plan.fresh:
        raise InputError("draws per row are made anew at every step; set fresh=True as well")
    if plan.per_row and batch_size is None and isinstance(target.rows, Stream):
        raise InputError("draws for each row of blocks would not fit into memory; set batch_size")
    return plan
