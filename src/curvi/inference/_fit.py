"""``curvi.fit``: one call from a log density to a variational posterior with a verdict."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import (
    Interrupted,
    MisfitWarning,
    Outcome,
    keep_result,
    warn_user,
)
from curvi._core.run import Phase
from curvi.diagnostics import Evaluation, FitResult, draws_of, evaluate_all, improper_sentence
from curvi.engine import (
    Budget,
    Execution,
    Resources,
    RunResult,
    StepInfo,
    VariationalProblem,
    hooks_for,
    opened,
)
from curvi.families import Family, MeanField, Params
from curvi.inference._broken_start import broken_gradient
from curvi.inference._first import SIZES, first_rung, has_more_draws, with_found_structure
from curvi.inference._growth import Accuracy, Grown, run_growing
from curvi.inference._initial import (
    STARTS,
    FirstRun,
    around,
    continued,
    evaluator_of,
    first_run,
    starting_params,
)
from curvi.inference._inputs import (
    announce,
    as_execution,
    as_method,
    as_target,
    check_batch,
    check_ladder,
    check_options,
    cut_short_by,
    default_tolerance,
    in_precision_of_target,
    instance_of,
    is_automatic,
    optional_count,
    planned_draws,
)
from curvi.inference._laplace import laplace_params, laplace_within
from curvi.inference.ladder._climb import LADDER, climb
from curvi.inference.ladder._state import Rung
from curvi.objective import Draws, Stream
from curvi.solvers import Method, TrustRegion
from curvi.targets import AbstractTarget

_UNJUDGED = "Interrupted while the bound was evaluated: the last run is returned, unjudged."
_OUTSIDE = (
    "The bound is not finite on fresh draws: q reaches outside the support of the target, or its "
    "log density overflows. "
)


@in_precision_of_target
def fit(
    target: AbstractTarget | Callable[[PyTree], Any],
    position: PyTree | None = None,
    *,
    family: Family | str = "auto",
    method: Method | None = None,
    draws: str | Draws = "auto",
    num_draws: int | str | None = None,
    mc_tolerance: float | None = 0.05,
    num_starts: int | str = "auto",
    init: str | FitResult = "position",
    batch_size: int | None = None,
    execution: str | Execution = "auto",
    mesh: Any = None,
    checkpoint: Any = None,
    seed: int = 0,
    tolerance: float | None = None,
    max_steps: int | None = None,
    time_budget: float | None = None,
    progress: bool = True,
    on_failure: str = "raise",
    on_step: Callable[[StepInfo], Any] | None = None,
    ladder: Sequence[Rung] = LADDER,
) -> FitResult:
    """Fit a variational posterior.

    Parameters
    ----------
    target : Target, DataTarget or callable
        What is inferred. A plain function is a log density and needs ``position``.
    position : pytree, optional
        Where the variational mean starts, for a plain log density.
    family : Family or "auto"
        "auto" climbs a ladder until the answer is right: a full covariance, or above a thousand
        dimensions a sparse precision where the Hessian is sparse; a family that is conditional
        on globals where there are groups; importance weights, HMC from draws of q;
        ``result.rungs`` tells what was tried. Above two thousand dimensions with a dense Hessian
        (fewer where it is expensive), on minibatches, with ``init="laplace"``, a mesh, compiled
        execution and with a method or draws of one's own it is MeanField.
    method : Method
        TrustRegion by default, and NaturalGradient on the ladder and for SparsePrecision: no
        learning rate, both stop by themselves.
    draws, num_draws
        Kind and number of draws, see :class:`curvi.Draws`; chosen for the family and the method by
        default.
    mc_tolerance : float, optional
        Monte-Carlo error of the mean, in posterior sds, that is accepted. Where fixed draws have a
        larger one and their number was left out, or ``"auto"``, TrustRegion fits again on more of
        them, starting from where it stands; the ladder takes more weighted draws, or more of HMC,
        as far as their limit allows. None never does.
    num_starts : int or "auto"
        Starts: the position, and others one normal draw per coordinate away from it. The best bound
        wins; a start that fails does not disturb the others. ``"auto"`` begins with one and tries
        three others where q does not match the target and a run is cheap.
    init : {"position", "laplace"} or FitResult
        Start around the position as it is, at the mode with the curvature there, or where an
        earlier fit of the same coordinates ended.
    batch_size : int, optional
        Rows per step of a DataTarget; all rows by default.
    execution : {"auto", "eager", "compiled"}
        Where steps are taken: on the host, one by one, which compiles little, or in one compiled
        loop, which runs at full speed. "auto" decides by the size of the problem.
    mesh : jax.sharding.Mesh, optional
        Devices that share the rows of a DataTarget (:func:`curvi.data_mesh`).
    checkpoint : path or Checkpoint, optional
        A file (:class:`curvi.Checkpoint`) from which the same call resumes to the same bits.
    seed : int
        All randomness follows from it: the same seed gives the same bits.
    tolerance : float, optional
        Remaining gain in nats at which a fit on fixed draws is done (1e-8 in float64, 1e-5 in
        float32).
    max_steps, time_budget : int, float, optional
        Budgets of steps and seconds. One that runs out ends the fit with a warning and
        ``converged=False``. Seconds count from the call, for everything that it does; the time
        is up only for what can be left, which is all but a compilation.
    progress : bool
        A progress bar, on a terminal only.
    on_failure : {"raise", "warn", "return"}
        What to do on a numerical failure: STALLED, NON_FINITE or DIVERGED. The exception carries
        the result as ``.result``. A budget that ran out and Ctrl-C warn in any case.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step, for logging.
    ladder : tuple of Rung
        What ``family="auto"`` tries after its first run, in this order; rungs of one's own are
        objects with ``applies(state)`` and ``climb(state)`` (:class:`curvi.inference.Rung`).

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
        If the fit converged but q misses the target, if the bound falls on fresh draws, if the
        answer leaves out one of the optima that starts or the search around it found, if the target
        has no mean or sd of something, if a few draws decide those of a constrained quantity, if
        numbers of the target's precision are coarser than an sd, or if the answer is not finite.
    NotConvergedWarning
        If a budget ran out, or at Ctrl-C. Both warnings carry ``.result``, which is not lost where
        warnings are errors.

    Notes
    -----
    The first Ctrl-C ends the fit and returns what there is, with a warning that says what was left
    undone and ``result.interrupted`` set; a second one raises :class:`curvi.Interrupted`, with
    ``.result``. Before the first step there is nothing to return, and the first one raises. A
    loop over fits therefore goes on with the next one: to leave the loop, press Ctrl-C twice, or
    ``break`` where ``result.interrupted``.

    An exception out of ``on_step`` or of the log density keeps its type, and carries the result so
    far as ``error.curvi_result``.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum((x - 8.0) ** 2 / 0.2), jnp.zeros(()),
    ...                    progress=False)
    >>> result.converged, round(float(result.mean), 3), round(float(result.sd), 3)
    (True, 8.0, 0.447)
    """
    with opened(locals()) as run:
        check_options(on_failure, tolerance=tolerance, mc_tolerance=mc_tolerance)
        check_ladder(ladder)
        chosen = (family, method, draws, num_draws, batch_size, init)
        method, execution = as_method(method, family), as_execution(execution)
        check_batch(target, batch_size)
        target = as_target(target, position, (batch_size, *method.batch_sizes), init)
        _ = target.to_user  # a constrain that does not work is refused before the work
        free = mesh is None and execution.mode != "compiled"
        climbs = free and is_automatic(target, *chosen)
        rung = first_rung(target, time_budget) if climbs else None
        automatic = rung is not None
        if rung is not None:
            family, method, draws = rung
        elif isinstance(family, str) and family == "auto":
            family = init.family if isinstance(init, FitResult) else MeanField()
        q: Family = instance_of(family, Family, "family", "curvi.MeanField()")
        family = q if automatic else with_found_structure(q.on(target.position), target)
        num_draws = optional_count(num_draws, "num_draws")
        starts = optional_count(num_starts, "num_starts")
        if not isinstance(init, FitResult):
            validation.one_of(init, ("position", "laplace"), "init")
        family.require_memory(target.dimension, target.dtype, copies=STARTS.copies)
        plan = planned_draws(family, method, target, draws, num_draws, batch_size)
        problem = VariationalProblem(target.density, family, plan, target.dimension, batch_size)
        key = validation.random_key(seed)
        steps = validation.positive_integer(
            method.default_max_steps if max_steps is None else max_steps, "max_steps"
        )
        accuracy = tolerance or default_tolerance(target.dtype)
        noise = None if plan.fresh else draws_of(problem, key, Stream.FIXED_DRAWS)
        resources = Resources(key, target.rows, noise)
        few = not automatic or target.dimension <= SIZES.few  # other starts are tried there
        again = not few and max_steps is None and has_more_draws(target)
        with hooks_for(progress, "ELBO", on_step, sign=-1.0) as hooks:
            budget = Budget(accuracy, steps, hooks)
            call = _Call(target, method, execution, budget, mc_tolerance)
            params = _start(init, problem, call, resources)
            try:
                first = first_run(
                    problem, method, target, params, resources, budget,
                    num_starts=starts or ("auto" if few else 1), execution=execution,
                    fallback=TrustRegion() if automatic and few and max_steps is None else None,
                )  # fmt: skip
                grown = run_growing(
                    problem, first.method, first.ended, resources, budget,
                    execution=execution, restart=first.start if again else None,
                    accuracy=Accuracy(
                        None if num_draws or isinstance(draws, Draws) else mc_tolerance),
                )  # fmt: skip
            except Exception as error:
                call.keep(error, problem, resources)
                raise
            climbing = partial(climb, ladder, target, resources, budget, execution, mc_tolerance)
            call = call._replace(method=first.method)
            result = _judged(call, grown, first, climbing if automatic else None)
        announce(result, on_failure, stops=method.stops(problem))
        if not result.outcome.is_failure and result.outcome is not Outcome.INTERRUPTED:
            for sentence in result.alarms:
                warn_user(MisfitWarning(sentence, result))
        return run.returned(result)


def _start(
    init: Any, problem: VariationalProblem, call: _Call, resources: Resources, *,
    laplace_steps: int = 1000,
) -> Params:  # fmt: skip
    target, execution = call.target, call.execution
    if isinstance(init, FitResult):
        return continued(problem.family, target, init)
    first = around(problem.family, target.start, 1.0)
    evaluate_at = evaluator_of(problem, call.method, first, resources, execution)
    found = None
    if init == "laplace":
        accuracy = default_tolerance(target.dtype)
        limits = replace(call.budget, tolerance=accuracy, max_steps=laplace_steps, hooks=())
        found = laplace_within(target, limits, execution)
    if found is None:  # not asked for, or no time for it
        return starting_params(problem, target, resources, evaluate_at, call.budget)
    params = laplace_params(problem.family, found)
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    if bool(jnp.isfinite(problem.value(params, sample))):
        return params
    # Where the Gaussian at the mode leaves the support, a narrower one may not.
    elsewhere = target.with_position(found.position)
    return starting_params(problem, elsewhere, resources, evaluate_at, call.budget)


class _Call(NamedTuple):
    """What a result takes from the call of ``fit``."""

    target: AbstractTarget
    method: Method
    execution: Execution
    budget: Budget
    mc_tolerance: float | None

    def result(self, grown: Grown, outcome: Outcome, message: str) -> FitResult:
        """What the runs have left, without a judgement on fresh draws."""
        ended, problem = grown.ended, grown.problem
        trace = {**ended.trace, "elbo": -ended.trace["value"]}
        del trace["value"]
        return FitResult(
            target=getattr(self.target, "whole", self.target),  # not its shards
            family=problem.family,
            method=self.method,
            params=ended.params,
            outcome=outcome,
            message=message,
            elbo=np.nan,
            elbo_se=np.nan,
            trace=trace,
            draws=problem.plan,
            steps=ended.steps,
            seconds=self.budget.clock.elapsed,
            batch_size=problem.batch_size,
            execution=self.execution,
            key_data=np.asarray(jax.random.key_data(grown.resources.key)),
            noise=grown.resources.noise,
            replicates=grown.replicates,
            mc_tolerance=self.mc_tolerance,
            interrupted=grown.interrupted or outcome is Outcome.INTERRUPTED,
        )

    def keep(self, error: Exception, problem: VariationalProblem, resources: Resources) -> None:
        """Let an exception out of the user's code carry the result so far, where there is one."""
        kept = getattr(error, "curvi_result", None)
        if isinstance(kept, RunResult):
            kept = Grown(kept, problem, resources)
        if isinstance(kept, Grown):
            keep_result(error, self.result(kept, Outcome.INTERRUPTED, cut_short_by(error)))


def _judged(
    call: _Call, grown: Grown, first: FirstRun, climbing: Callable[[FitResult], FitResult] | None
) -> FitResult:
    """The result, judged on fresh draws, and corrected by a ladder, which Ctrl-C leaves out."""
    unjudged = call.result(grown, Outcome.INTERRUPTED, _UNJUDGED)
    with Phase("checking"):
        try:
            outcome, message, evaluation, hopeless = _verdict(call, grown, first)
            result = replace(
                call.result(grown, outcome, message),
                elbo=evaluation.elbo, elbo_se=evaluation.elbo_se, log_ratio=evaluation.log_ratio,
                start_elbos=first.elbos, modes=first.modes,
            )  # fmt: skip
            lost = outcome.is_failure and not hopeless  # the ladder may begin once more
            if climbing and (outcome is Outcome.CONVERGED or lost) and not grown.interrupted:
                result = climbing(result)
            if not result.outcome.is_failure:
                _ = result.alarms  # computed here, where Ctrl-C loses nothing
        except Exception as error:
            keep_result(error, unjudged)
            raise
        return result
    if grown.interrupted:
        message = "interrupted twice; the last state is kept as .result of this exception"
        raise Interrupted(message, unjudged)
    return unjudged


def _verdict(
    call: _Call, grown: Grown, first: FirstRun, *, many_steps: int = 100
) -> tuple[Outcome, str, Evaluation, bool]:
    """Evaluate the bound on fresh draws, and let a bad one overrule the method's own verdict.

    ``many_steps``: in which any width that a proper posterior has is reached. The last entry is
    whether no other run would do better: the target is improper, or its gradient is broken.
    """
    ended, problem, target, outcome = grown.ended, grown.problem, call.target, grown.ended.outcome
    message = grown.message or first.message or outcome.sentence
    hopeless = outcome is Outcome.NON_FINITE and not ended.trace["accepted"].any()
    if hopeless:
        message = broken_gradient(problem, target, first.start, grown.resources) + message
    candidates, key = [ended.params, first.start], grown.resources.key
    left = float if grown.interrupted else call.budget.left  # no time: float() is zero
    found, before = evaluate_all(target, problem.family, candidates, key, left)
    if not np.isfinite(found.elbo):
        outcome, message = Outcome.NON_FINITE, _OUTSIDE + Outcome.NON_FINITE.sentence
    else:
        margin = 5 * (found.elbo_se**2 + before.elbo_se**2) ** 0.5 + 1.0
        if np.isfinite(before.elbo) and found.elbo < before.elbo - margin:
            outcome = Outcome.DIVERGED
            fall = f"the bound fell from {before.elbo:.6g} to {found.elbo:.6g}"
            other = "" if isinstance(call.method, TrustRegion) else "method=TrustRegion(), "
            advice = outcome.sentence.replace("method=TrustRegion(), ", other)
            message = f"Diverged: {fall}. {advice}"
    if outcome.is_failure or (outcome is Outcome.BUDGET and ended.steps >= many_steps):
        why = improper_sentence(target, problem.family, ended.params, first.start)
        message, hopeless = why or message, hopeless or bool(why)
    return outcome, message, found, hopeless
