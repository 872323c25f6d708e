"""More draws until the Monte-Carlo error of the optimum is small enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core.errors import Interrupted, Outcome, keep_result
from curvi._core.run import Phase
from curvi.diagnostics import (
    REPLICATES,
    Replicates,
    descend_from_saddle,
    draws_of,
    replicates,
    sd_of,
)
from curvi.engine import Budget, Execution, Resources, RunResult, VariationalProblem, run
from curvi.families import Diagonal, Params
from curvi.objective import Stream
from curvi.solvers import Method

_UNCHECKED = (
    "Interrupted while the optimum was checked: it was reached and is returned, but whether it is "
    "a saddle point, and its Monte-Carlo error, are unknown."
)
_NO_ERROR = (
    "Converged, but interrupted before its Monte-Carlo error was known, which is missing; reading "
    "result.mc_error computes it."
)
_FEW_REPLICATES = (
    "Converged, but interrupted among the replicates: its Monte-Carlo error is that of {} of them."
)
_NO_MORE_DRAWS = (
    "Interrupted before draws were added: the Monte-Carlo error of the mean is {:.2g} posterior "
    "sds, above {:g}."
)
_NO_TIME = (
    "Converged on its draws, but the time budget ran out before the optimum was checked: whether "
    "it is a saddle point, and its Monte-Carlo error, are unknown. Raise time_budget to know them."
)


@dataclass(frozen=True)
class Accuracy:
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
    factors : tuple of int
        By which draws grow; every number of draws is compiled anew, so there are few of them.
    """

    mc_tolerance: float | None = 0.05
    most_draws: int = 8192
    most_noise: float = 2e7
    most_work: float = 4e9
    replicate_steps: int = REPLICATES.most_steps
    factors: tuple[int, ...] = (4, 16, 64)


@dataclass(frozen=True, eq=False)
class Grown:
    """The last run, the problem it solved, and how far its draws can be trusted."""

    ended: RunResult
    problem: VariationalProblem
    resources: Resources
    replicates: Replicates | None = None
    message: str = ""
    interrupted: bool = False


def run_growing(
    problem: VariationalProblem,
    method: Method,
    first: RunResult,
    resources: Resources,
    budget: Budget,
    *,
    execution: Execution,
    accuracy: Accuracy,
    restart: Params | None = None,
) -> Grown:
    """Go on from a run; while the Monte-Carlo error is above the tolerance, run on more draws.

    Every run starts from the optimum of the one before. The number of draws grows by the factor
    that the square-root law asks for, in powers of four. The trace names the draws of each step.
    A run that ends on a saddle point is sent down from it once. Ctrl-C keeps the last run, and so
    does an exception out of the user's code, as its ``curvi_result``. A run that took all its steps
    and did not converge begins again at ``restart``, if that is given, on four times the draws:
    where it ended has too much of its few draws in it.
    """
    growth = _Growth(problem, method, first, resources, budget, execution, accuracy)
    if first.outcome is Outcome.BUDGET and restart is not None and budget.left() > 0:
        return growth.on_more_draws(restart)
    if not method.takes_newton_steps(problem) or first.outcome is not Outcome.CONVERGED:
        return growth.grown(first.outcome)
    with Phase("checking"):
        try:
            return growth.until_precise()
        except Exception as error:
            keep_result(error, growth.grown(Outcome.INTERRUPTED))
            raise
    converged = growth.ended.outcome is Outcome.CONVERGED
    return growth.grown(Outcome.INTERRUPTED, _UNCHECKED if converged else "")


@dataclass(eq=False)
class _Growth:
    """The last run, the problem that it solved, and the traces of all runs."""

    problem: VariationalProblem
    method: Method
    ended: RunResult
    resources: Resources
    budget: Budget
    execution: Execution
    accuracy: Accuracy
    replicates: Replicates | None = None

    def __post_init__(self) -> None:
        self.traces = [_labelled(self.ended, self.problem)]

    @property
    def spent(self) -> int:
        """Steps of all runs."""
        return sum(len(table["step"]) for table in self.traces)

    def grown(self, outcome: Outcome, message: str = "") -> Grown:
        """What there is now, with the traces of all runs in one."""
        trace = joined_traces(self.traces)
        ended = self.ended._replace(trace=trace, steps=len(trace["step"]), outcome=outcome)
        cut = outcome is Outcome.INTERRUPTED
        return Grown(ended, self.problem, self.resources, self.replicates, message, cut)

    def on_more_draws(self, start: Params) -> Grown:
        """Once more where few draws made a bound that is rough, and its steps short.

        A run that is cut short on the way is not what the first one reached.
        """
        first = self.ended, self.problem, self.resources
        self.budget = replace(self.budget, max_steps=self.spent + self.budget.max_steps)
        self._use_draws(self.accuracy.factors[0] * self.problem.plan.num_draws)
        self._run(start)
        outcome = self.ended.outcome
        if outcome is Outcome.INTERRUPTED or (
            outcome is Outcome.BUDGET and self.budget.left() <= 0
        ):
            self.ended, self.problem, self.resources = first
        return self.grown(outcome)

    def until_precise(self) -> Grown:
        """Check for saddles and for precision, and add draws, until there is nothing to do."""
        while True:
            if self.ended.outcome is Outcome.CONVERGED and self.budget.left() <= 0:
                return self.grown(Outcome.IMPRECISE, _NO_TIME)
            self._leave_saddle()
            limit = self.accuracy.mc_tolerance
            if limit is None or self.ended.outcome is not Outcome.CONVERGED:
                return self.grown(self.ended.outcome)
            try:
                error = self._mc_error()
            except Interrupted as cut:
                return self._without_all_replicates(cut.result, limit)
            if error is None:
                assert self.replicates is not None  # noqa: S101  for the type checker
                return self.grown(Outcome.IMPRECISE, _unknown(self.problem, self.replicates))
            if error <= limit:
                return self.grown(Outcome.CONVERGED)
            count = next_count(self.problem, error / limit, self.accuracy)
            if count is None or self.spent >= self.budget.max_steps or _is_late(self.budget):
                return self.grown(Outcome.IMPRECISE, _too_few(self.problem, error, limit))
            self._use_draws(count)
            self._run(self.ended.params)

    def _mc_error(self) -> float | None:
        """The Monte-Carlo error by replicates, which are kept; None where too few are solved."""
        self.replicates = replicates(
            self.problem,
            self.method,
            self.ended.params,
            self.resources,
            execution=self.execution,
            budget=self.budget,
            num_steps=self.accuracy.replicate_steps,
        )
        return self._error_of(self.replicates)

    def _error_of(self, found: Replicates) -> float | None:
        errors = found.error(np.asarray(sd_of(self.problem.family, self.ended.params)))
        return None if errors is None else float(errors.max())

    def _without_all_replicates(self, found: Replicates, limit: float) -> Grown:
        """Ctrl-C among the replicates: the fit has converged, and its error may be known."""
        error = self._error_of(found)
        self.replicates = None if error is None else found
        if error is None:
            grown = self.grown(Outcome.CONVERGED, _NO_ERROR)
        elif error <= limit:
            grown = self.grown(Outcome.CONVERGED, _FEW_REPLICATES.format(len(found.rows)))
        else:
            grown = self.grown(Outcome.IMPRECISE, _NO_MORE_DRAWS.format(error, limit))
        return replace(grown, interrupted=True)

    def _leave_saddle(self) -> None:
        if self.ended.outcome is not Outcome.CONVERGED or self.spent >= self.budget.max_steps:
            return
        down = descend_from_saddle(
            self.problem,
            self.method,
            self.ended.params,
            self.resources,
            execution=self.execution,
            budget=self.budget,
        )
        if down is not None:
            self._run(down)

    def _run(self, params: Any) -> None:
        self.ended = run(
            self.problem,
            self.method,
            params,
            self.resources,
            self.budget,
            execution=self.execution,
            spent=self.spent,
        )
        self.traces.append(_labelled(self.ended, self.problem))
        self.replicates = None

    def _use_draws(self, count: int) -> None:
        """The same problem on another number of draws."""
        plan = replace(self.problem.plan, num_draws=count)
        larger = replace(self.problem, plan=plan)
        noise = draws_of(larger, self.resources.key, Stream.FIXED_DRAWS, count)
        self.problem, self.resources = larger, self.resources._replace(noise=noise)


def _too_few(problem: VariationalProblem, error: float, limit: float) -> str:
    other = "choose a family with fewer parameters"
    if isinstance(problem.family.scale, Diagonal):
        other = (
            "accept a larger mc_tolerance: sds of a mean field are too small where coordinates are "
            "correlated, and in those of result.linear_response() the error is smaller"
        )
    return (
        f"Converged on {problem.plan.num_draws} draws, but they leave the mean a Monte-Carlo error "
        f"of {error:.2g} posterior sds, above {limit:g}, and more draws are beyond the budget or "
        f"the memory of a fit. Pass num_draws= to go further, or {other}."
    )


def _unknown(problem: VariationalProblem, found: Replicates) -> str:
    start = (
        f"Converged on {problem.plan.num_draws} draws, but {found.unsolved}, so the Monte-Carlo "
    )
    if found.out_of_time:
        return start + "error of the mean is unknown. Raise time_budget to know it."
    return start + (
        "error of the mean is unknown. Pass a larger num_draws, or start elsewhere: the bound may "
        "have its optimum at the edge of the support, or none at all."
    )


def next_count(problem: VariationalProblem, excess: float, accuracy: Accuracy) -> int | None:
    """The next number of draws when the error is ``excess`` times too large; None if none fits."""
    now = problem.plan.num_draws
    wanted = min(
        (f for f in accuracy.factors if f >= 1.2 * excess**2), default=accuracy.factors[-1]
    )
    num_rows = max(problem.density.num_rows, 1)
    width = problem.family.num_noise(problem.dimension)
    most = min(
        accuracy.most_draws,
        int(accuracy.most_noise / width),
        int(accuracy.most_work / (num_rows * problem.dimension)),
    )
    fitting = [f for f in accuracy.factors if f <= wanted and f * now <= most]
    return fitting[-1] * now if fitting else None


def _is_late(budget: Budget) -> bool:
    """Whether half of the time is gone; the next run takes longer than the ones before it."""
    return budget.left() < budget.clock.elapsed - budget.clock.compiling


def _labelled(ended: RunResult, problem: VariationalProblem) -> dict[str, np.ndarray]:
    count = np.full(len(ended.trace["step"]), problem.plan.num_draws)
    return {**ended.trace, "num_draws": count}


def joined_traces(traces: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """One trace of several runs; steps and seconds go on where the run before ended."""
    step, seconds, tables = 0, 0.0, []
    for trace in traces:
        tables.append(
            {**trace, "step": trace["step"] + step, "seconds": trace["seconds"] + seconds}
        )
        step += len(trace["step"])
        seconds += float(trace["seconds"][-1]) if len(trace["seconds"]) else 0.0
    return {name: np.concatenate([table[name] for table in tables]) for name in traces[0]}
