"""``curvi.fit``: one call from a log density to a variational posterior with a verdict."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import InputError, MisfitWarning, Outcome, warn_user
from curvi.diagnostics import Evidence, FitResult, evaluate, evaluate_elbo
from curvi.diagnostics._verdict import misfit_sentence
from curvi.engine._problems import Resources, VariationalProblem
from curvi.engine._progress import observer_for
from curvi.families import Family, MeanField, Params
from curvi.inference import _search as search
from curvi.inference._growth import Budget, Grown, run_growing
from curvi.inference._inputs import as_target
from curvi.inference._laplace import laplace, laplace_params
from curvi.inference._minimise import announce, check_options, default_tolerance
from curvi.inference._precision import in_precision_of_target
from curvi.inference._start import broken_gradient, starting_params
from curvi.inference._starts import best_start, run_starts, starting_points
from curvi.objective import Draws, fixed_draws, plan_draws
from curvi.solvers import Method, TrustRegion
from curvi.targets import DataTarget, Target


@in_precision_of_target
def fit(
    target: Target | DataTarget | Callable[[PyTree], Any],
    position: PyTree | None = None,
    *,
    family: Family | None = None,
    method: Method | None = None,
    draws: str | Draws = "auto",
    num_draws: int | str | None = None,
    num_starts: int = 1,
    init: str = "position",
    batch_size: int | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    max_steps: int | None = None,
    time_budget: float | None = None,
    progress: bool = True,
    on_failure: str = "raise",
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
        Kind and number of draws, see :mod:`curvi.objective._draws`; chosen for the family and
        the method by default. Where their number is left out, or ``"auto"``, TrustRegion grows
        it until the Monte-Carlo error of the mean is below its ``mc_tolerance``.
    num_starts : int
        Starts in one vectorised run: the position, and others one normal draw per coordinate away
        from it. The best bound wins; a start that fails does not disturb the others. With one
        start, three others are tried where a run is cheap, q does not match the target, and
        neither ``max_steps`` nor ``time_budget`` is given.
    init : {"position", "laplace"}
        Start around the position as it is, or at the mode with the curvature there.
    batch_size : int, optional
        Rows per step of a DataTarget; all rows by default.
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
        What to do on a numerical failure. The exception carries the result as ``.result``.

    Returns
    -------
    FitResult

    Warns
    -----
    MisfitWarning
        If the fit converged but importance ratios say that q misses the target.
    NotConvergedWarning
        If a budget ran out.

    Raises
    ------
    InputError
        For input that cannot be fitted, with what, where and what to do.
    NumericalError
        For a numerical failure; ``error.result`` holds the last finite state.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum((x - 8.0) ** 2 / 0.2), jnp.zeros(()),
    ...                    progress=False)
    >>> result.converged, round(float(result.mean), 3), round(float(result.sd), 3)
    (True, 8.0, 0.447)
    """
    began = time.perf_counter()
    if isinstance(num_draws, str):
        validation.one_of(num_draws, ("auto",), "num_draws")
        num_draws = None
    target = as_target(target, position)
    family = MeanField() if family is None else family
    method = TrustRegion() if method is None else method
    _check_choices(family, method)
    check_options(on_failure, tolerance, time_budget)
    validation.positive_integer(num_starts, "num_starts")
    validation.one_of(init, ("position", "laplace"), "init")
    _check_batch(target, batch_size)
    plan = _plan(family, method, target, draws, num_draws, batch_size)
    problem = VariationalProblem(target.density, family, plan, target.dimension, batch_size)
    key = jax.random.key(seed)
    noise = None
    if not plan.fresh:
        width = family.num_noise(target.dimension)
        noise = fixed_draws(jax.random.fold_in(key, 0xD4A), plan, width, family.base, target.dtype)
    resources = Resources(key, target.rows, noise)
    params = _start(init, problem, target, resources, method)
    steps = method.default_max_steps if max_steps is None else max_steps
    validation.positive_integer(steps, "max_steps")
    with observer_for(progress, "ELBO", sign=-1.0) as observer:
        accuracy = default_tolerance(target.dtype) if tolerance is None else tolerance
        budget = Budget(accuracy, steps, time_budget, observer, began)
        first, bounds = None, None
        if num_starts > 1:
            points = starting_points(problem, target, params, resources, num_starts)
            runs = run_starts(problem, method, points, resources, budget)
            best, bounds = best_start(target, family, runs, jax.random.fold_in(key, 0xE1B))
            first, params = runs[best], points[best]
        elif (
            max_steps is None
            and time_budget is None
            and (search.affordable(problem, method, params, resources))
        ):
            first, bounds = search.first_run(problem, method, target, params, resources, budget)
        grow = num_draws is None and not isinstance(draws, Draws)
        grown = run_growing(problem, method, params, resources, budget, grow=grow, first=first)
    result = _judge(grown, method, target, params, began, bounds)
    announce(result, on_failure, stops=method.stops(problem))
    if result.converged and on_failure != "return" and result.misfit:
        sentence = misfit_sentence(result.khat, result.relative_ess)
        warn_user(sentence, MisfitWarning)
    return result


def _start(
    init: str,
    problem: VariationalProblem,
    target: Target | DataTarget,
    resources: Resources,
    method: Method,
) -> Params:
    if init == "position":
        return starting_params(problem, target, resources, method)
    found = laplace(target)
    params = laplace_params(problem.family, found)
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    if bool(jnp.isfinite(problem.value(params, sample))):
        return params
    # Where the Gaussian at the mode leaves the support, a narrower one may not.
    return starting_params(problem, replace(target, position=found.mean), resources, method)


def _check_choices(family: Any, method: Any) -> None:
    for value, kind, name, example in (
        (family, Family, "family", "curvi.MeanField()"),
        (method, Method, "method", "curvi.TrustRegion()"),
    ):
        if isinstance(value, type):
            raise InputError(f"{name} is a class; did you mean {value.__name__}(...)?")
        if not isinstance(value, kind):
            raise InputError(f"{name} is {value!r}; give a {name} such as {example}")


def _check_batch(target: Target | DataTarget, batch_size: Any) -> None:
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
    target: Target | DataTarget,
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


def _judge(
    grown: Grown,
    method: Method,
    target: Target | DataTarget,
    start: Params,
    began: float,
    bounds: np.ndarray | None,
) -> FitResult:
    """Evaluate the bound on fresh draws, and let a bad one overrule the method's own verdict."""
    ended, problem = grown.ended, grown.problem
    key = jax.random.fold_in(grown.resources.key, 0xE1B)
    elbo, error, log_ratio = evaluate(target, problem.family, ended.params, key)
    outcome, message = ended.outcome, grown.message or ended.outcome.sentence
    if outcome is Outcome.NON_FINITE and not ended.trace["accepted"].any():
        message = broken_gradient(problem, target, start, grown.resources) + message
    if not _is_finite(elbo):
        outcome = Outcome.NON_FINITE
        message = (
            "The bound is not finite on fresh draws: q reaches outside the support of the target, "
            "or its log density overflows. " + Outcome.NON_FINITE.sentence
        )
    else:
        first, first_error = evaluate_elbo(target, problem.family, start, key)
        margin = 5 * (error**2 + first_error**2) ** 0.5 + 1.0
        if _is_finite(first) and elbo < first - margin:
            outcome = Outcome.DIVERGED
            message = f"Diverged: the bound fell from {first:.6g} to {elbo:.6g}. {outcome.sentence}"
    trace = {name: column for name, column in ended.trace.items() if name != "value"}
    trace["elbo"] = -ended.trace["value"]
    return FitResult(
        target=target,
        family=problem.family,
        method=method,
        params=ended.params,
        outcome=outcome,
        message=message,
        elbo=elbo,
        elbo_se=error,
        trace=trace,
        draws=problem.plan,
        steps=ended.steps,
        seconds=time.perf_counter() - began,
        evidence=Evidence(
            noise=grown.resources.noise,
            replicates=grown.replicates,
            log_ratio=log_ratio,
            key=key,
            starts=bounds,
        ),
    )


def _is_finite(value: float) -> bool:
    return value - value == 0.0
