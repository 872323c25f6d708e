"""Systems with the Hessian of a small bound, solved on the host through the look of its fit.

The compiled block solver takes seconds to build. Where a look takes milliseconds, a system takes
some tens of them, and the fit has compiled the look already.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np

from curvi.families import Family, Params
from curvi.linalg import CGOutcome
from curvi.linalg._host_cg import HostSolution, host_conjugate_gradient
from curvi.objective._look import Looker, cut, joined

_MOST_NUMBERS, _MOST_OPERATIONS = 3e8, 1e6  # of one product for every system, together
_MOST_SYSTEMS = 300


@partial(jax.jit, static_argnames="family")
def _natural(family: Family, params: Params, rhs: Params) -> tuple[Params, Params]:
    """P b and P M^-1 P b, for a block of right-hand sides."""

    def one(covector: Params) -> tuple[Params, Params]:
        kept = family.project(params, covector)
        return kept, family.project(params, family.metric(params).solve(kept))

    return jax.vmap(one)(rhs)


def suits(look: Looker, count: int) -> bool:
    """Whether the host should solve ``count`` systems."""
    if jax.default_backend() != "cpu" or count > _MOST_SYSTEMS:
        return False
    cost = look.cost
    return cost.numbers * count <= _MOST_NUMBERS and cost.operations * count <= _MOST_OPERATIONS


def solve_block(
    look: Looker, rhs: Params, tolerances: np.ndarray, max_steps: int
) -> tuple[Any, np.ndarray, Any]:
    """Solutions, outcome codes and last directions of a block, each with a leading axis."""
    vector, eps = joined(look.like), float(np.finfo(look.density.dtype).eps)
    covectors, naturals = (_rows(tree) for tree in _natural(look.family, look.like, rhs))

    def product(tangent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        seen = look(vector, tangent)
        return seen.product, seen.natural_product

    solve = partial(host_conjugate_gradient, product, eps=eps, max_steps=max_steps)
    found = [
        _refined(solve, product, b, natural, float(tolerance))
        for b, natural, tolerance in zip(covectors, naturals, tolerances, strict=True)
    ]
    codes = np.asarray([int(one.outcome) for one in found])
    return (
        _stacked([cut(one.solution, look.like) for one in found]),
        codes,
        _stacked([cut(one.direction, look.like) for one in found]),
    )


def _refined(
    solve: Any, product: Any, rhs: np.ndarray, natural: np.ndarray, tolerance: float
) -> HostSolution:
    """Solve, and solve again for what the true residual leaves, until it meets the tolerance."""
    size = max(float(rhs @ natural), 0.0)
    total, left, natural_left, before = np.zeros_like(rhs), rhs, natural, size
    while True:
        goal = tolerance * (size / before) ** 0.5 if before > 0 else tolerance
        found = solve(left, natural_left, relative_tolerance=min(goal, 0.5))
        total = total + found.solution
        if found.outcome is not CGOutcome.CONVERGED or not rhs.any():
            return _with(found, total, found.outcome)
        image, natural_image = product(total)
        left, natural_left = rhs - image, natural - natural_image
        now = max(float(left @ natural_left), 0.0)
        if now**0.5 <= tolerance * size**0.5:
            return _with(found, total, CGOutcome.CONVERGED)
        if now > 0.25 * before:  # rounding forbids more
            return _with(found, total, CGOutcome.STALLED)
        before = now


def _with(found: HostSolution, solution: np.ndarray, outcome: CGOutcome) -> HostSolution:
    return HostSolution(
        solution, found.direction, found.model_value, found.length, found.steps, outcome
    )


def _rows(tree: Params) -> np.ndarray:
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([leaf.reshape(leaf.shape[0], -1) for leaf in leaves], axis=1)


def _stacked(trees: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees)
