"""More draws until the Monte-Carlo error of the optimum is small enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from curvi._core.errors import Outcome
from curvi.diagnostics._moments import sd_of
from curvi.diagnostics._monte_carlo import Replicates
from curvi.engine import _host as host
from curvi.engine import _loop as loop
from curvi.engine._problems import Resources, VariationalProblem
from curvi.inference._replicates import replicates, way_down, with_draws
from curvi.solvers import Method, TrustRegion

_STREAM = 0xD4A
_FACTORS = (4, 16, 64)  # every number of draws is compiled anew, so there are few of them
_MOST_DRAWS = 8192
_MOST_NOISE = 2e7  # numbers in all draws together
_MOST_WORK = 4e9  # draws times rows times coordinates: seconds for one pass


@dataclass(frozen=True)
class Budget:
    """What all runs of a fit may spend together, since ``began`` on the clock."""

    tolerance: float
    max_steps: int
    time_budget: float | None
    observer: Callable[[loop.Progress], None] | None
    began: float

    def left(self) -> float | None:
        """Seconds that are left, at least zero; None without a budget of time."""
        if self.time_budget is None:
            return None
        return max(self.time_budget - (time.perf_counter() - self.began), 0.0)


@dataclass(frozen=True, eq=False)
class Grown:
    """The last run, the problem it solved, and how far its draws can be trusted."""

    ended: loop.LoopResult
    problem: VariationalProblem
    resources: Resources
    replicates: Replicates | None
    message: str = ""


def run_growing(
    problem: VariationalProblem,
    method: Method,
    params: Any,
    resources: Resources,
    budget: Budget,
    *,
    grow: bool,
    first: loop.LoopResult | None = None,
) -> Grown:
    """Run to convergence; while the Monte-Carlo error is above the tolerance, run on more draws.

    Every run starts from the optimum of the one before. The number of draws grows by the factor
    that the square-root law asks for, in powers of four. The trace names the draws of each step.
    A run that ends on a saddle point is sent down from it once. ``first`` is a run on the first
    draws that has been made already.
    """
    ended = run_once(problem, method, params, resources, budget) if first is None else first
    traces = [_labelled(ended, problem)]
    if not problem.fixed:
        return Grown(_whole(ended, traces), problem, resources, None)
    if not isinstance(method, TrustRegion):
        found = replicates(problem, method, ended.params, resources)
        return Grown(_whole(ended, traces), problem, resources, found)
    limit = method.mc_tolerance if grow else None
    while True:
        spent = sum(len(table["step"]) for table in traces)
        down = None
        if ended.outcome is Outcome.CONVERGED and spent < budget.max_steps:
            down = way_down(problem, method, ended.params, resources)
        if down is not None:
            ended = run_once(problem, method, down, resources, budget, spent)
            traces.append(_labelled(ended, problem))
            spent += len(ended.trace["step"])
        found = replicates(problem, method, ended.params, resources)
        if limit is None or ended.outcome is not Outcome.CONVERGED:
            return Grown(_whole(ended, traces), problem, resources, found)
        error = _largest(problem, ended.params, found)
        if error is None:
            ended = _whole(ended, traces)._replace(outcome=Outcome.IMPRECISE)
            return Grown(ended, problem, resources, found, _unknown(problem, found))
        if error <= limit:
            return Grown(_whole(ended, traces), problem, resources, found)
        count = next_count(problem, resources, error / limit)
        if count is None or spent >= budget.max_steps or _late(budget):
            ended = _whole(ended, traces)._replace(outcome=Outcome.IMPRECISE)
            return Grown(ended, problem, resources, found, _too_few(problem, error, limit))
        key = jax.random.fold_in(jax.random.fold_in(resources.key, _STREAM), count)
        problem, resources = with_draws(problem, resources, count, key)
        ended = run_once(problem, method, ended.params, resources, budget, spent)
        traces.append(_labelled(ended, problem))


def _too_few(problem: VariationalProblem, error: float, limit: float) -> str:
    return (
        f"Converged on {problem.plan.num_draws} draws, but they leave the mean a Monte-Carlo error "
        f"of {error:.2g} posterior sds, above {limit:g}, and more draws are beyond the budget or "
        "the memory of a fit. Pass num_draws= to go further, or choose a family with fewer "
        "parameters."
    )


def _unknown(problem: VariationalProblem, found: Replicates) -> str:
    return (
        f"Converged on {problem.plan.num_draws} draws, but {found.unsolved}, so the Monte-Carlo "
        "error of the mean is unknown. Pass a larger num_draws, or start elsewhere: the bound may "
        "have its optimum at the edge of the support, or none at all."
    )


def _whole(ended: loop.LoopResult, traces: list[dict[str, np.ndarray]]) -> loop.LoopResult:
    trace = _joined(traces)
    return ended._replace(trace=trace, steps=len(trace["step"]))


def next_count(problem: VariationalProblem, resources: Resources, excess: float) -> int | None:
    """The next number of draws when the error is ``excess`` times too large; None if none fits."""
    now = problem.plan.num_draws
    wanted = min((f for f in _FACTORS if f >= 1.2 * excess**2), default=_FACTORS[-1])
    num_rows = 1 if resources.rows is None else jax.tree.leaves(resources.rows)[0].shape[0]
    width = problem.family.num_noise(problem.dimension)
    most = min(
        _MOST_DRAWS, int(_MOST_NOISE / width), int(_MOST_WORK / (num_rows * problem.dimension))
    )
    fitting = [f for f in _FACTORS if f <= wanted and f * now <= most]
    return fitting[-1] * now if fitting else None


def run_once(
    problem: VariationalProblem,
    method: Method,
    params: Any,
    resources: Resources,
    budget: Budget,
    spent: int = 0,
) -> loop.LoopResult:
    """One run within what is left of the budget, on the host where that suits the problem."""
    options: dict[str, Any] = {
        "tolerance": budget.tolerance,
        "max_steps": budget.max_steps - spent,
        "time_budget": budget.left(),
        "observer": budget.observer,
    }
    if isinstance(method, TrustRegion) and host.suits(problem, method, params, resources):
        return host.run(problem, method, params, resources, **options)
    return loop.run(problem, method, params, resources, **options)


def _late(budget: Budget) -> bool:
    """Whether half of the time is gone; the next run takes longer than the ones before it."""
    left = budget.left()
    return budget.time_budget is not None and left is not None and left < 0.5 * budget.time_budget


def _largest(problem: VariationalProblem, params: Any, found: Replicates) -> float | None:
    error = found.error(np.asarray(sd_of(problem.family, params)))
    return None if error is None else float(error.max())


def _labelled(ended: loop.LoopResult, problem: VariationalProblem) -> dict[str, np.ndarray]:
    count = np.full(len(ended.trace["step"]), problem.plan.num_draws)
    return {**ended.trace, "num_draws": count}


def _joined(traces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One table; steps and seconds go on where the run before ended."""
    step, seconds, tables = 0, 0.0, []
    for trace in traces:
        tables.append(
            {**trace, "step": trace["step"] + step, "seconds": trace["seconds"] + seconds}
        )
        step += len(trace["step"])
        seconds += float(trace["seconds"][-1]) if len(trace["seconds"]) else 0.0
    return {name: np.concatenate([table[name] for table in tables]) for name in traces[0]}
