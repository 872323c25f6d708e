"""More draws until the Monte-Carlo error of the optimum is small enough."""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import numpy as np

from curvi._core.errors import Outcome
from curvi.diagnostics._moments import sd_of
from curvi.diagnostics._monte_carlo import (
    Replicates,
    descend_from_saddle,
    draws_of,
    replicates,
)
from curvi.engine import Budget, Execution, Resources, RunResult, VariationalProblem, run
from curvi.solvers import Method

_STREAM = 0xD4A
_FACTORS = (4, 16, 64)  # every number of draws is compiled anew, so there are few of them


@dataclass(frozen=True)
class Precision:
    """How precise the mean must be, and what may be spent on it.

    Parameters
    ----------
    mc_tolerance : float or None
        Monte-Carlo error of the mean in posterior sds that is accepted; None never adds draws.
    most_draws : int
        Draws at most.
    most_noise : float
        Numbers in all draws together, at most.
    most_work : float
        Draws times rows times coordinates, at most: seconds for one pass.
    replicate_steps : int
        Newton steps towards the optimum on another set of draws, at most.
    """

    mc_tolerance: float | None = 0.05
    most_draws: int = 8192
    most_noise: float = 2e7
    most_work: float = 4e9
    replicate_steps: int = 12


@dataclass(frozen=True, eq=False)
class Grown:
    """The last run, the problem it solved, and how far its draws can be trusted."""

    ended: RunResult
    problem: VariationalProblem
    resources: Resources
    replicates: Replicates | None = None
    message: str = ""


def run_growing(
    problem: VariationalProblem,
    method: Method,
    first: RunResult,
    resources: Resources,
    budget: Budget,
    *,
    execution: Execution,
    precision: Precision,
) -> Grown:
    """Go on from a run; while the Monte-Carlo error is above the tolerance, run on more draws.

    Every run starts from the optimum of the one before. The number of draws grows by the factor
    that the square-root law asks for, in powers of four. The trace names the draws of each step.
    A run that ends on a saddle point is sent down from it once.
    """
    ended, traces = first, [_labelled(first, problem)]
    if not method.has_host_steps(problem):  # no Newton steps, or no fixed draws to run them on
        return Grown(_whole(ended, traces), problem, resources)
    limit = precision.mc_tolerance
    while True:
        spent = sum(len(table["step"]) for table in traces)
        down = None
        if ended.outcome is Outcome.CONVERGED and spent < budget.max_steps:
            down = descend_from_saddle(
                problem, method, ended.params, resources, execution=execution, budget=budget
            )
        if down is not None:
            ended = run(problem, method, down, resources, budget, execution=execution, spent=spent)
            traces.append(_labelled(ended, problem))
            spent += ended.steps
        if limit is None or ended.outcome is not Outcome.CONVERGED:
            return Grown(_whole(ended, traces), problem, resources)
        found = replicates(
            problem,
            method,
            ended.params,
            resources,
            num_steps=precision.replicate_steps,
            execution=execution,
            budget=budget,
        )
        stop = _reason_to_stop(problem, ended, found, limit)
        if stop is None:
            error = _largest(problem, ended, found)
            count = next_count(problem, resources, error / limit, precision)
            if count is None or spent >= budget.max_steps or _is_late(budget):
                stop = Outcome.IMPRECISE, _too_few(problem, error, limit)
            else:
                problem, resources = _with_draws(problem, resources, count)
                ended = run(
                    problem, method, ended.params, resources, budget,
                    execution=execution, spent=spent,
                )  # fmt: skip
                traces.append(_labelled(ended, problem))
                continue
        outcome, message = stop
        ended = _whole(ended, traces)._replace(outcome=outcome)
        return Grown(ended, problem, resources, found, message)


def _reason_to_stop(
    problem: VariationalProblem, ended: RunResult, found: Replicates, limit: float
) -> tuple[Outcome, str] | None:
    """Why no more draws are needed or possible; None where their error is too large."""
    if found.interrupted:
        return Outcome.INTERRUPTED, (
            "Interrupted while its Monte-Carlo error was computed: the optimum on "
            f"{problem.plan.num_draws} draws was reached and is returned."
        )
    error = found.error(_sd(problem, ended))
    if error is None:
        return Outcome.IMPRECISE, _unknown(problem, found)
    return (Outcome.CONVERGED, "") if error.max() <= limit else None


def _sd(problem: VariationalProblem, ended: RunResult) -> np.ndarray:
    return np.asarray(sd_of(problem.family, ended.params))


def _largest(problem: VariationalProblem, ended: RunResult, found: Replicates) -> float:
    error = found.error(_sd(problem, ended))
    return float("nan") if error is None else float(error.max())


def _with_draws(
    problem: VariationalProblem, resources: Resources, count: int
) -> tuple[VariationalProblem, Resources]:
    """The same problem on another number of draws."""
    larger = replace(problem, plan=replace(problem.plan, num_draws=count))
    return larger, resources._replace(noise=draws_of(larger, resources.key, _STREAM, count))


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


def _whole(ended: RunResult, traces: list[dict[str, np.ndarray]]) -> RunResult:
    trace = _joined(traces)
    return ended._replace(trace=trace, steps=len(trace["step"]))


def next_count(
    problem: VariationalProblem, resources: Resources, excess: float, precision: Precision
) -> int | None:
    """The next number of draws when the error is ``excess`` times too large; None if none fits."""
    now = problem.plan.num_draws
    wanted = min((f for f in _FACTORS if f >= 1.2 * excess**2), default=_FACTORS[-1])
    num_rows = 1 if resources.rows is None else jax.tree.leaves(resources.rows)[0].shape[0]
    width = problem.family.num_noise(problem.dimension)
    most = min(
        precision.most_draws,
        int(precision.most_noise / width),
        int(precision.most_work / (num_rows * problem.dimension)),
    )
    fitting = [f for f in _FACTORS if f <= wanted and f * now <= most]
    return fitting[-1] * now if fitting else None


def _is_late(budget: Budget) -> bool:
    """Whether half of the time is gone; the next run takes longer than the ones before it."""
    return budget.time_budget is not None and budget.left() < 0.5 * budget.time_budget


def _labelled(ended: RunResult, problem: VariationalProblem) -> dict[str, np.ndarray]:
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
