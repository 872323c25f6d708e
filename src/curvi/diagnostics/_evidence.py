"""What a fit leaves behind so that its answer can be judged later."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.errors import InputError
from curvi.diagnostics._monte_carlo import Replicates
from curvi.families import Family
from curvi.objective import fixed_draws, plan_draws
from curvi.targets import AbstractTarget


@dataclass(frozen=True, eq=False)
class Evidence:
    """The material of a verdict.

    Attributes
    ----------
    noise : array or None
        The fixed draws that the bound was maximised on; None where they were fresh.
    replicates : Replicates or None
        The optimum on other sets of draws; None where there is no fixed set.
    log_ratio : array or None
        log p - log q at independent draws of q, made from ``key``.
    starts : array or None
        The bound that every start reached, NaN where it failed.
    """

    noise: Float[Array, "draws noise"] | None = None
    replicates: Replicates | None = None
    log_ratio: np.ndarray | None = None
    key: PRNGKeyArray | None = None
    starts: np.ndarray | None = None

    @property
    def spread_of_starts(self) -> tuple[float, float, int, int] | None:
        """Best and worst bound, the number of starts that failed, and of all starts."""
        if self.starts is None:
            return None
        good = self.starts[np.isfinite(self.starts)]
        failed = len(self.starts) - len(good)
        if not len(good):
            return float("nan"), float("nan"), failed, failed
        return float(good.max()), float(good.min()), failed, len(self.starts)


def draws_for_curvature(
    evidence: Evidence, target: AbstractTarget, family: Family
) -> Float[Array, "draws noise"]:
    """The fixed draws of the fit, or, after a stochastic fit, the default ones of its family."""
    if evidence.noise is not None:
        return evidence.noise
    plan = plan_draws(family, target.dimension)
    if plan.fresh:
        raise InputError(
            f"linear response needs fixed draws, and {type(family).__name__} in {target.dimension} "
            "dimensions has too many parameters for them; use MeanField() or LowRank(rank)"
        )
    width = family.num_noise(target.dimension)
    key = jax.random.key(0) if evidence.key is None else evidence.key
    return fixed_draws(jax.random.fold_in(key, 1), plan, width, family.base, target.dtype)
