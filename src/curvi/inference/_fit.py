"""``curvi.fit``: one call from a log density to a variational posterior with a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import InputError, MisfitWarning, Outcome, warn_user
from curvi.diagnostics import FitResult, evaluate, evaluate_elbo
from curvi.diagnostics._evaluation import Evaluation
from curvi.diagnostics._flat_directions import improper_sentence
from curvi.diagnostics._monte_carlo import draws_of
from curvi.engine import Budget, Execution, Resources, StepInfo, VariationalProblem, hooks_for
from curvi.families import Family, MeanField, Params
from curvi.inference._growth import Grown, Precision, run_growing
from curvi.inference._initial import (
    COPIES,
    FirstRun,
    around,
    broken_gradient,
    first_run,
    starting_params,
)
from curvi.inference._inputs import (
    announce,
    as_execution,
    as_method,
    as_target,
    check_options,
    default_tolerance,
    in_precision_of_target,
    instance_of,
)
from curvi.inference._laplace import laplace, laplace_params
from curvi.objective import Draws, plan_draws
from curvi.solvers import Method
from curvi.targets import AbstractTarget, DataTarget

_STREAM = 0xD4A
_MANY_STEPS = 100  # in which any width that a proper posterior has is reached


@in_precision_of_target
def fit(
    target: AbstractTarget | Callable[[PyTree], Any],
    position: PyTree | None = None,
    *,
    family: Family | None = None,
    method: Method | None = None,
    draws: str | Draws = "auto",
    num_draws: int | str | None = None,
    mc_tolerance: float | None = 0.05,
    num_starts: int | str = "auto",
    init: str = "position",
    batch_size: int | None = None,
    execution: str | Execution = "auto",
    seed: int = 0,
    tolerance: float | None = None,
    max_steps: int | None = None,
    time_budget: float | None = None,
    progress: bool = True,
    on_failure: str = "raise",
    on_step: Callable[[StepInfo], Any] | None = None,
) -> FitResult:
    """Fit a variational posterior.

    Parameters
    ----------
    target : Target, DataTarget or callable
        What is inferred. A plain function is a log density and needs ``position``.
    position : pytree, optional
        Where the variational mean starts, for a plain log density.
    family : Family
        MeanField by default.
    method : Method
        TrustRegion by default: no learning rate, stops by itself.
    draws, num_draws
        Kind and number of draws, see :class:`curvi.Draws`; chosen for the family and the method by
        default.
    mc_tolerance : float, optional
        Monte-Carlo error of the mean, in posterior sds, that is accepted. Where fixed draws have a
        larger one and their number was left out, or ``"auto"``, TrustRegion fits again on more of
        them, starting from where it stands. None never does.
    num_starts : int or "auto"
        Starts: the position, and others one normal draw per coordinate away from it. The best bound
        wins; a start that fails does not disturb the others. ``"auto"`` begins with one and tries
        three others where q does not match the target and a run is cheap.
    init : {"position", "laplace"}
        Start around the position as it is, or at the mode with the curvature there.
    batch_size : int, optional
        Rows per step of a DataTarget; all rows by default.
    execution : {"auto", "eager", "compiled"}
        Where steps are taken: on the host, one by one, which compiles little, or in one compiled
        loop, which runs at full speed. "auto" decides by the size of the problem.
    seed : int
        All randomness follows from it: the same seed gives the same bits.
    tolerance : float, optional
        Remaining gain in nats at which a fit on fixed draws is done (1e-8 in float64, 1e-5 in
        float32).
    max_steps, time_budget : int, float, optional
        Budgets of steps and seconds. One that runs out ends the fit with a warning and
        ``converged=False``.
    progress : bool
        A progress bar, on a terminal only.
    on_failure : {"raise", "warn", "return"}
        What to do on a numerical failure. The exception carries the result as ``.result``;
        ``"return"`` is silent about a budget that ran out, too.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step, for logging.

    Returns
    -------
    FitResult
        The fitted posterior, how the fit ended, and diagnostics of how far to trust it.

    Raises
    ------
    InputError
        For input that cannot be fitted; the message says what is wrong, where, and what to do.
    MemoryBudgetError
        If the parameters of the family or the draws would not fit into the memory budget.
    NumericalError
        For a numerical failure; ``error.result`` holds the last finite state.

    Warns
    -----
    MisfitWarning
        If the fit converged but importance ratios say that q misses the target, if starts ended
        in different optima, if the target has no mean or sd of something, or if ``constrain``
        makes the answer not finite.
    NotConvergedWarning
        If a budget ran out.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum((x - 8.0) ** 2 / 0.2), jnp.zeros(()),
    ...                    progress=False)
    >>> result.converged, round(float(result.mean), 3), round(float(result.sd), 3)
    (True, 8.0, 0.447)
    """
    began = time.perf_counter()
    method, execution = as_method(method), as_execution(execution)
    _check_batch(target, batch_size)
    target = as_target(target, position, (batch_size, *method.batch_sizes))
    family = MeanField() if family is None else family
    instance_of(family, Family, "family", "curvi.MeanField()")
    check_options(on_failure, tolerance, time_budget)
    num_draws, starts = _number(num_draws, "num_draws"), _number(num_starts, "num_starts")
    if mc_tolerance is not None:
        validation.positive_number(mc_tolerance, "mc_tolerance")
    validation.one_of(init, ("position", "laplace"), "init")
    family.require_memory(target.dimension, target.dtype, copies=COPIES)
    plan = _plan(family, method, target, draws, num_draws, batch_size)
    problem = VariationalProblem(target.density, family, plan, target.dimension, batch_size)
    key = jax.random.key(seed)
    noise = None if plan.fresh else draws_of(problem, key, _STREAM)
    resources = Resources(key, target.rows, noise)
    params = _start(init, problem, target, resources, method, execution)
    steps = method.default_max_steps if max_steps is None else max_steps
    validation.positive_integer(steps, "max_steps")
    accuracy = default_tolerance(target.dtype) if tolerance is None else tolerance
    grows = num_draws is None and not isinstance(draws, Draws)
    with hooks_for(progress, "ELBO", on_step, sign=-1.0) as hooks:
        budget = Budget(accuracy, steps, time_budget, hooks, began)
        first = first_run(
            problem, method, target, params, resources, budget,
            num_starts="auto" if starts is None else starts, execution=execution,
        )  # fmt: skip
        grown = run_growing(
            problem, method, first.ended, resources, budget,
            execution=execution, precision=Precision(mc_tolerance if grows else None),
        )  # fmt: skip
    result = _result(grown, method, target, first, began, execution, mc_tolerance)
    announce(result, on_failure, stops=method.stops(problem))
    if not result.outcome.is_failure and result.outcome is not Outcome.INTERRUPTED:
        for sentence in result.alarms:
            warn_user(sentence, MisfitWarning)
    return result


def _number(value: Any, name: str) -> int | None:
    """A count, or None where it is left to curvi."""
    if value is None or isinstance(value, str):
        validation.one_of("auto" if value is None else value, ("auto",), name)
        return None
    return validation.positive_integer(value, name)


def _start(
    init: str,
    problem: VariationalProblem,
    target: AbstractTarget,
    resources: Resources,
    method: Method,
    execution: Execution,
) -> Params:
    first = around(problem.family, target.start, 1.0)
    eagerly = execution.runs_eagerly(problem, method, first, resources)
    if init == "position":
        return starting_params(problem, target, resources, eagerly)
    found = laplace(target, execution=execution)
    params = laplace_params(problem.family, found)
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    if bool(jnp.isfinite(problem.value(params, sample))):
        return params
    # Where the Gaussian at the mode leaves the support, a narrower one may not.
    return starting_params(problem, target.with_position(found.position), resources, eagerly)


def _check_batch(target: Any, batch_size: Any) -> None:
    if batch_size is None:
        return
    validation.positive_integer(batch_size, "batch_size")
    if not isinstance(target, DataTarget):
        raise InputError("batch_size needs a DataTarget; a plain log density has no rows")
    if batch_size > target.num_rows:
        raise InputError(
            f"batch_size is {batch_size} but there are {target.num_rows} rows; leave it out to "
            "use all of them"
        )


def _plan(
    family: Family,
    method: Method,
    target: AbstractTarget,
    draws: str | Draws,
    num_draws: int | None,
    batch_size: int | None,
) -> Draws:
    """Fixed draws where they pay; fresh ones where the method or the batches are stochastic."""
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
    return plan


class _Verdict(NamedTuple):
    outcome: Outcome
    message: str
    evaluation: Evaluation


def _judge(grown: Grown, target: AbstractTarget, first: FirstRun) -> _Verdict:
    """Evaluate the bound on fresh draws, and let a bad one overrule the method's own verdict."""
    ended, problem, key = grown.ended, grown.problem, grown.resources.key
    found = evaluate(target, problem.family, ended.params, key)
    outcome, message = ended.outcome, grown.message or ended.outcome.sentence
    if outcome is Outcome.NON_FINITE and not ended.trace["accepted"].any():
        message = broken_gradient(problem, target, first.start, grown.resources) + message
    if not _is_finite(found.elbo):
        outcome = Outcome.NON_FINITE
        message = (
            "The bound is not finite on fresh draws: q reaches outside the support of the target, "
            "or its log density overflows. " + Outcome.NON_FINITE.sentence
        )
    else:
        before, error = evaluate_elbo(target, problem.family, first.start, key)
        margin = 5 * (found.elbo_se**2 + error**2) ** 0.5 + 1.0
        if _is_finite(before) and found.elbo < before - margin:
            outcome = Outcome.DIVERGED
            fall = f"the bound fell from {before:.6g} to {found.elbo:.6g}"
            message = f"Diverged: {fall}. {outcome.sentence}"
    if outcome.is_failure or (outcome is Outcome.BUDGET and ended.steps >= _MANY_STEPS):
        why = improper_sentence(target, problem.family, ended.params, first.start)
        message = why or message
    return _Verdict(outcome, message, found)


def _result(
    grown: Grown,
    method: Method,
    target: AbstractTarget,
    first: FirstRun,
    began: float,
    execution: Execution,
    mc_tolerance: float | None,
) -> FitResult:
    """Everything that the runs have left, judged; Ctrl-C leaves the judgement out."""
    ended, problem = grown.ended, grown.problem
    try:
        outcome, message, evaluation = _judge(grown, target, first)
    except KeyboardInterrupt:
        outcome, evaluation = Outcome.INTERRUPTED, Evaluation(np.nan, np.nan, np.zeros(0))
        message = "Interrupted while the bound was evaluated: the last run is returned, unjudged."
    trace = {name: column for name, column in ended.trace.items() if name != "value"}
    trace["elbo"] = -ended.trace["value"]
    return FitResult(
        target=target,
        family=problem.family,
        method=method,
        params=ended.params,
        outcome=outcome,
        message=message,
        elbo=evaluation.elbo,
        elbo_se=evaluation.elbo_se,
        trace=trace,
        draws=problem.plan,
        steps=ended.steps,
        seconds=time.perf_counter() - began,
        batch_size=problem.batch_size,
        execution=execution,
        key_data=np.asarray(jax.random.key_data(grown.resources.key)),
        noise=grown.resources.noise,
        replicates=grown.replicates,
        log_ratio=evaluation.log_ratio if evaluation.log_ratio.size else None,
        mc_tolerance=mc_tolerance,
        start_elbos=first.elbos,
        modes=first.modes,
    )


def _is_finite(value: float) -> bool:
    return value - value == 0.0
