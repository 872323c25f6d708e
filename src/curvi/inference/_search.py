"""A second opinion: other starts, where the optimum that was found does not look like the target.

A bound can have several optima, and a run ends in the one it starts near. The importance ratios at
its end give it away: a q that matches the whole target has a relative ESS near one, a q that
matches a minor mode or none has not. Only then, and only where runs are cheap, are others made.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from curvi._core.errors import Outcome
from curvi.diagnostics import evaluate, evaluate_elbo
from curvi.diagnostics._importance import raw_relative_ess
from curvi.engine import _loop as loop
from curvi.engine._problems import Resources, VariationalProblem
from curvi.families import Params
from curvi.inference._growth import Budget, run_once
from curvi.inference._starts import starting_points
from curvi.solvers import Method, TrustRegion
from curvi.targets import DataTarget, Target

_OTHERS = 3
_DOUBTFUL_ESS = 0.5
_BETTER = 1.0  # nats beyond five standard errors: below that two optima are the same
_MOST_NUMBERS, _MOST_OPERATIONS = 2e8, 1e6  # of one product, so that a run takes seconds
_STREAM = 0xE1B


def affordable(
    problem: VariationalProblem, method: Method, params: Params, resources: Resources
) -> bool:
    """Whether further runs cost little; by the size of the problem, not by a clock."""
    cost = problem.cost(params, resources) if isinstance(method, TrustRegion) else None
    return (
        cost is not None and cost.numbers <= _MOST_NUMBERS and cost.operations <= _MOST_OPERATIONS
    )


def first_run(
    problem: VariationalProblem,
    method: Method,
    target: Target | DataTarget,
    params: Params,
    resources: Resources,
    budget: Budget,
) -> tuple[loop.LoopResult, np.ndarray | None]:
    """The run from the start, or a better one from elsewhere; with bounds if others were tried."""
    ended = run_once(problem, method, params, resources, budget)
    if ended.outcome is not Outcome.CONVERGED:
        return ended, None
    key = jax.random.fold_in(resources.key, _STREAM)
    elbo, error, log_ratio = evaluate(target, problem.family, ended.params, key)
    if not np.isfinite(elbo) or raw_relative_ess(log_ratio) >= _DOUBTFUL_ESS:
        return ended, None
    runs, bounds = [ended], [elbo]
    points = starting_points(problem, target, params, resources, 1 + _OTHERS, method)
    for point in points[1:]:
        runs.append(run_once(problem, method, point, resources, budget))
        if runs[-1].outcome is Outcome.INTERRUPTED:
            return ended._replace(outcome=Outcome.INTERRUPTED), None
        bounds.append(_bound(target, problem, runs[-1], key))
    best = int(np.nanargmax(bounds))
    better = bounds[best] > elbo + 5 * error + _BETTER
    return (runs[best] if better else ended), np.asarray(bounds)


def _bound(
    target: Target | DataTarget, problem: VariationalProblem, run: loop.LoopResult, key: Any
) -> float:
    if run.outcome is not Outcome.CONVERGED:
        return float("nan")
    elbo, _ = evaluate_elbo(target, problem.family, run.params, key)
    return elbo if np.isfinite(elbo) else float("nan")
