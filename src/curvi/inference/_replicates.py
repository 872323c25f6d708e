"""The optimum on each of several new sets of draws, by Newton steps from the one that is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from curvi._core.errors import Outcome
from curvi.diagnostics._monte_carlo import Replicates
from curvi.engine import _host as host
from curvi.engine import _loop as loop
from curvi.engine._problems import Resources, VariationalProblem
from curvi.objective import fixed_draws
from curvi.solvers import Method, TrustRegion

_MANY, _FEW = 16, 8  # sets of draws; the few where a step is expensive
_CHEAP = 1e7  # numbers that one pass over draws and rows touches
_STEPS = 12  # most Newton steps from the optimum of one set of draws towards that of another
_LINEAR = 1e-3  # nats per parameter: steps that gain less are short enough for one to be exact
_STILL = 1e-3  # natural norm of a gradient, about the distance to the optimum in sds
_STREAM = 0x3C
_LOOKS = 3  # steps in which negative curvature is looked for: each solves its system loosely
_NUDGE = 1e-3  # size of a move of the draws that breaks their symmetry


def replicates(
    problem: VariationalProblem, method: Method, params: Any, resources: Resources
) -> Replicates:
    """Where the optimum would be on other draws of the same kind and number.

    The steps are those of :class:`TrustRegion` in the code that the fit has compiled already:
    only the values of the draws differ. The optimum itself is one more replicate.
    """
    method = method if isinstance(method, TrustRegion) else TrustRegion()

    def compute() -> np.ndarray:
        rows = [np.asarray(params.mean)]
        for index in range(_number_of_sets(problem, resources)):
            key = jax.random.fold_in(jax.random.fold_in(resources.key, _STREAM), index)
            other = resources._replace(noise=draws_of(problem, key))
            rows.append(_moved_mean(problem, method, params, other))
        return np.stack(rows)

    return Replicates(compute)


def way_down(
    problem: VariationalProblem, method: TrustRegion, params: Any, resources: Resources
) -> Any | None:
    """Parameters below a saddle point, or None where the curvature is positive.

    At an exact saddle the gradient is zero and a Newton step goes nowhere. On draws that are moved
    a little it is not zero in any direction, while the curvature is nearly the same: a few steps
    then meet the direction of negative curvature and go down along it.
    """
    key = jax.random.fold_in(jax.random.fold_in(resources.key, _STREAM), _MANY)
    loose = replace(problem, plan=replace(problem.plan, kind="iid"))
    moved = draws_of(problem, resources.key) if resources.noise is None else resources.noise
    other = resources._replace(noise=moved + _NUDGE * draws_of(loose, key))
    run = _few_steps(problem, method, params, other, steps=_LOOKS, tolerance=0.0)
    return run.params if run.negative_curvature and run.moves else None


def _number_of_sets(problem: VariationalProblem, resources: Resources) -> int:
    num_rows = 1 if resources.rows is None else jax.tree.leaves(resources.rows)[0].shape[0]
    touched = problem.plan.num_draws * problem.dimension * num_rows
    return _MANY if touched <= _CHEAP else _FEW


def draws_of(problem: VariationalProblem, key: Any) -> jax.Array:
    """Fixed draws by the problem's plan."""
    width = problem.family.num_noise(problem.dimension)
    return fixed_draws(key, problem.plan, width, problem.family.base, problem.density.dtype)


def _moved_mean(
    problem: VariationalProblem, method: TrustRegion, params: Any, resources: Resources
) -> np.ndarray:
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    tolerance = _LINEAR * max(size, 10)
    run = _few_steps(problem, method, params, resources, steps=_STEPS, tolerance=tolerance)
    # Without a single move only a gradient of nearly nothing says that the optimum is the same.
    if run.converged and (run.moves or run.grad_norm < _STILL):
        return np.asarray(run.params.mean)
    return np.full(params.mean.shape, np.nan)


class _Run(NamedTuple):
    params: Any
    converged: bool
    moves: int
    grad_norm: float  # before the last step
    negative_curvature: bool


def _few_steps(
    problem: VariationalProblem,
    method: TrustRegion,
    params: Any,
    resources: Resources,
    *,
    steps: int,
    tolerance: float,
) -> _Run:
    """Steps in the code that the fit itself has compiled."""
    if host.suits(problem, method, params, resources):
        descent = host.begin(problem, method, params, resources)
        while descent.outcome is Outcome.RUNNING and len(descent.rows) < steps:
            descent.step(tolerance)
        norm = descent.rows[-1][1] if descent.rows else float("nan")
        negative = any(row[6] for row in descent.rows)
        converged = descent.outcome is Outcome.CONVERGED
        return _Run(descent.params, converged, descent.moves, norm, negative)
    carry = loop.start(problem, method, params, resources)
    carry = loop.advance(problem, method, carry, resources, steps, tolerance)
    done = int(carry.step)
    return _Run(
        method.answer(carry.state),
        int(carry.outcome) == Outcome.CONVERGED.value,
        int(carry.state.moves),
        float(np.asarray(carry.trace.grad_norm)[done - 1]),
        bool(np.asarray(carry.trace.negative_curvature)[:done].any()),
    )


def with_draws(
    problem: VariationalProblem, resources: Resources, num_draws: int, key: Any
) -> tuple[VariationalProblem, Resources]:
    """The same problem on another number of draws."""
    larger = replace(problem, plan=replace(problem.plan, num_draws=num_draws))
    return larger, resources._replace(noise=draws_of(larger, key))
