"""Where a fit starts: around the user's position, at several points, or again where in doubt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from curvi._core.compilation import compiled
from curvi._core.errors import InputError, NumericalError, Outcome, keep_result
from curvi._core.memory import require_memory
from curvi._core.run import Phase
from curvi._core.trees import on_device, size
from curvi.diagnostics import (
    FitResult,
    Mode,
    evaluate,
    improper_sentence,
    modes_of,
    raw_relative_ess,
)
from curvi.engine import (
    Budget,
    Execution,
    Resources,
    RunResult,
    VariationalProblem,
    run,
    run_starts,
)
from curvi.families import Family, Params
from curvi.inference._broken_start import no_width
from curvi.inference._growth import joined_traces
from curvi.objective import Stream, host_generator
from curvi.solvers import Method
from curvi.targets import AbstractTarget

_ONE_OF = "Interrupted among {} starts: the best state that they have reached is returned."
_NO_SEARCH = (
    "Interrupted in the search for other starts, which was made because q does not match the "
    "target: the run from the position converged and is returned, but there may be a better "
    "optimum."
)


@dataclass(frozen=True)
class Starts:
    """Where a fit begins, and when it looks for other places.

    Parameters
    ----------
    widths, few_draws
        Of q, in units of the coordinates, of which the best one is taken; draws that tell.
    others, doubtful_ess
        Further starts, where weights of q keep less than this fraction of its draws.
    better, products : float
        Nats, beyond five errors, that tell two optima apart; products of a search that is cheap.
    copies : int
        Of the parameters in a run: they, gradients, and the vectors of a Newton system.
    """

    widths: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6)
    few_draws: int = 128
    others: int = 3
    doubtful_ess: float = 0.5
    better: float = 1.0
    products: float = 20.0
    copies: int = 8


STARTS = Starts()


Evaluator = Callable[[Params], float]
Runner = Callable[[Params, int], tuple[RunResult, Method]]
_DONE = (Outcome.CONVERGED, Outcome.INTERRUPTED)


class FirstRun(NamedTuple):
    """The run that the fit goes on from, where it started, its method, and how all starts ended.

    The message says what an interruption has left undone.
    """

    ended: RunResult
    start: Params
    method: Method
    elbos: np.ndarray | None = None
    modes: tuple[Mode, ...] = ()
    message: str = ""


@compiled
def _value_at_width(
    problem: VariationalProblem,
    position: Float[Array, " d"],
    width: Float[Array, ""],
    resources: Resources,
) -> Float[Array, ""]:
    """The objective on the first sample for a starting width."""
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    return problem.value(problem.family.init(position, width), sample)


@partial(compiled, static_argnames="family")
def _around(family: Family, position: Float[Array, " d"], width: Float[Array, ""]) -> Params:
    return family.init(position, width)


def evaluator_of(
    problem: VariationalProblem,
    method: Method,
    params: Params,
    resources: Resources,
    execution: Execution,
) -> Evaluator | None:
    """The objective through the function that a run on the host compiles anyway; None elsewhere."""
    if not execution.runs_eagerly(problem, method, params, resources):
        return None
    if method.host_only:
        noise = None if resources.noise is None else resources.noise[: STARTS.few_draws]
        few = resources._replace(noise=noise)
        return lambda at: float(method.stepper(problem, at, few).value)  # type: ignore
    objective = problem.flat(params, resources)
    return None if objective is None else lambda at: objective(objective.ravel(at)).value


def starting_params(
    problem: VariationalProblem,
    target: AbstractTarget,
    resources: Resources,
    evaluate_at: Evaluator | None,
    budget: Budget,
) -> Params:
    """Parameters around the position with the width that has the best bound.

    A width too large drowns the likelihood in noise or leaves the support; one too small makes
    the first steps timid. Widths whose bound is not finite are passed over.

    Raises
    ------
    InputError
        If the log density is not finite at the position itself.
    NumericalError
        If it is finite there but not around it, however close; the message names the draw, and
        the coordinate whose gradient is not finite.
    """
    best = best_width(problem, target.start, resources, evaluate_at, budget)
    if best is None:
        target.check_start()
        raise NumericalError(no_width(problem, target, resources, STARTS.widths[-1]))
    return around(problem.family, target.start, best)


def continued(family: Family, target: AbstractTarget, result: FitResult) -> Params:
    """Parameters where an earlier fit ended; of another family, those with its means and sds.

    Raises
    ------
    InputError
        If the fit was one of other coordinates.
    """
    if result.target.dimension != target.dimension:
        raise InputError(
            f"init is a fit in {result.target.dimension} dimensions and the target has "
            f"{target.dimension}; give a fit of the same coordinates"
        )
    params = jax.tree.map(lambda leaf: jnp.asarray(leaf, target.dtype), result.params)
    if family == result.family:
        return params
    sds = jnp.asarray(result.family.sd(result.params), target.dtype)
    return family.init(params.mean, sds)


def around(family: Family, position: Float[Array, " d"], width: float) -> Params:
    """Parameters around a position, all sds equal to ``width``."""
    return _around(family, position, np.asarray(width, position.dtype))


def best_width(
    problem: VariationalProblem,
    position: Float[Array, " d"],
    resources: Resources,
    evaluate_at: Evaluator | None,
    budget: Budget,
) -> float | None:
    """The starting width with the best bound around a position; None where none is finite.

    Where the time ends, those that are left are not tried.
    """
    values = np.full(len(STARTS.widths), np.nan)
    for index, width in enumerate(STARTS.widths):
        if budget.left() <= 0 and np.isfinite(values).any():
            break
        if evaluate_at is None:
            at = np.asarray(width, position.dtype)
            values[index] = float(_value_at_width(problem, position, at, resources))
        else:
            values[index] = evaluate_at(around(problem.family, position, width))
    if not np.isfinite(values).any():
        return None
    return STARTS.widths[int(np.nanargmin(np.where(np.isfinite(values), values, np.inf)))]


def starting_points(
    problem: VariationalProblem,
    target: AbstractTarget,
    first: Params,
    resources: Resources,
    num_starts: int,
    evaluate_at: Evaluator | None,
    budget: Budget,
) -> list[Params]:
    """The user's start, and others at a distance of one normal draw per coordinate from it.

    Each has the width with the best bound. One whose bound is finite at no width is kept: it will
    fail, and be reported. There are fewer where the budget of time ends.
    """
    rng = host_generator(resources.key, Stream.STARTS)
    points = [first]
    for _ in range(num_starts - 1):
        if budget.left() <= 0:
            break
        apart = rng.normal(size=target.dimension)
        moved = on_device(np.asarray(target.start) + apart, target.dtype)
        width = best_width(problem, moved, resources, evaluate_at, budget)
        points.append(around(problem.family, moved, STARTS.widths[-1] if width is None else width))
    return points


def first_run(
    problem: VariationalProblem,
    method: Method,
    target: AbstractTarget,
    start: Params,
    resources: Resources,
    budget: Budget,
    *,
    num_starts: int | str,
    execution: Execution,
    fallback: Method | None = None,
) -> FirstRun:
    """One run, the best of several, or a second opinion where the first does not match the target.

    A bound can have several optima, and a run ends in the one it starts near. The importance
    ratios at its end give it away: a q that matches the whole target has a relative ESS near one,
    a q that matches a minor mode or none has not. Only then, and only where runs are cheap, does
    ``num_starts="auto"`` make others. A run that does not converge is made again by ``fallback``.
    """
    if isinstance(num_starts, int) and num_starts > 1:
        numbers = STARTS.copies * num_starts * size(start)
        require_memory(
            numbers * target.dtype.itemsize, f"{num_starts} starts", "ask for fewer num_starts"
        )
        evaluate_at = evaluator_of(problem, method, start, resources, execution)
        points = starting_points(problem, target, start, resources, num_starts, evaluate_at, budget)
        runs = run_starts(problem, method, points, resources, budget, execution=execution)
        return _best_of(problem, method, target, points, runs, resources.key, budget)

    def run_from(point: Params, spent: int = 0) -> tuple[RunResult, Method]:
        ended = run(problem, method, point, resources, budget, execution=execution, spent=spent)
        if fallback is None or ended.outcome in _DONE or budget.left() <= 0:
            return ended, method
        if improper_sentence(target, problem.family, ended.params, point):
            return ended, method  # nobody can converge
        return _again(problem, (method, fallback), ended, point, resources, budget, execution)

    ended, used = run_from(start)
    first = FirstRun(ended, start, used)
    with Phase("searching"):
        try:
            cheap = execution.is_cheap(problem.cost(start, resources), STARTS.products)
            if num_starts == 1 or not cheap or ended.outcome is not Outcome.CONVERGED:
                return first
            evaluator = partial(evaluator_of, problem, method, start, resources, execution)
            return _second_opinion(problem, target, first, resources, budget, evaluator, run_from)
        except Exception as error:
            keep_result(error, ended)
            raise
    return first._replace(ended=ended._replace(outcome=Outcome.INTERRUPTED), message=_NO_SEARCH)


def _again(
    problem: VariationalProblem, methods: tuple[Method, Method], ended: RunResult, point: Params,
    resources: Resources, budget: Budget, execution: Execution,
) -> tuple[RunResult, Method]:  # fmt: skip
    """A run that did not converge, made again by another method; the better one of both.

    The second run has steps of its own. What it raises is not the user's concern: the first one
    stands.
    """
    first, fallback = methods
    own = replace(budget, max_steps=ended.steps + fallback.default_max_steps)
    try:
        again = run(
            problem, fallback, point, resources, own, execution=execution, spent=ended.steps
        )
    except Exception:  # noqa: BLE001  a fallback needs more of the user's functions, such as Hessians
        return ended, first
    better = again.outcome is Outcome.CONVERGED or not _last_value(again) <= _last_value(ended)
    if np.isnan(_last_value(again)) or not better:
        cut = again.outcome is Outcome.INTERRUPTED
        return (ended._replace(outcome=Outcome.INTERRUPTED) if cut else ended), first
    trace = joined_traces([ended.trace, again.trace])
    joined = again._replace(
        trace=trace, steps=ended.steps + again.steps, seconds=ended.seconds + again.seconds
    )
    return joined, fallback


def _best_of(
    problem: VariationalProblem,
    method: Method,
    target: AbstractTarget,
    points: list[Params],
    runs: list[RunResult],
    key: PRNGKeyArray,
    budget: Budget,
) -> FirstRun:
    """The run with the best bound; interrupted if any of them was.

    One that did not converge is kept only where its bound is higher by more than a nat.
    After Ctrl-C, or when the time is up, the bounds are those of the last steps.
    """
    elbos = np.asarray([_last_value(one) for one in runs])
    interrupted = Outcome.INTERRUPTED in [one.outcome for one in runs]
    if not interrupted and budget.left() > 0:
        with Phase("comparing") as comparing:
            elbos = np.asarray([_elbo(target, problem, one, key, budget) for one in runs])
        interrupted = comparing.left
    unfinished = np.asarray([one.outcome is not Outcome.CONVERGED for one in runs])
    merits = elbos - STARTS.better * unfinished
    best = 0 if np.isnan(merits).all() else int(np.nanargmax(merits))
    if not interrupted:
        modes = _modes(problem, target, runs, elbos)
        return FirstRun(runs[best], points[best], method, elbos, modes)
    ended = runs[best]._replace(outcome=Outcome.INTERRUPTED)
    return FirstRun(ended, points[best], method, elbos, message=_ONE_OF.format(len(runs)))


def _last_value(ended: RunResult) -> float:
    """The bound on the sample of the last step; NaN where the run failed or took none."""
    values = ended.trace["value"]
    known = len(values) and np.isfinite(values[-1]) and not ended.outcome.is_failure
    return -float(values[-1]) if known else float("nan")


def _modes(
    problem: VariationalProblem, target: AbstractTarget, runs: list[RunResult], elbos: np.ndarray
) -> tuple[Mode, ...]:
    """The optima that the converged runs are in."""
    converged = [one.outcome is Outcome.CONVERGED for one in runs]
    ends = [one.params for one in runs]
    return modes_of(target, problem.family, ends, np.where(converged, elbos, np.nan))


def _second_opinion(
    problem: VariationalProblem, target: AbstractTarget, first: FirstRun, resources: Resources,
    budget: Budget, evaluator: Callable[[], Evaluator | None], run_from: Runner,
) -> FirstRun:  # fmt: skip
    """The best of the first run and of runs from elsewhere, where its q looks wrong."""
    key = resources.key
    elbo, error, log_ratio = evaluate(target, problem.family, first.ended.params, key, budget.left)
    if not np.isfinite(elbo) or raw_relative_ess(log_ratio) >= STARTS.doubtful_ess:
        return first
    points = starting_points(
        problem, target, first.start, resources, 1 + STARTS.others, evaluator(), budget
    )
    runs, elbos, spent = [first.ended], [elbo], first.ended.steps
    methods = [first.method]
    for point in points[1:]:
        if budget.left() <= 0 or spent >= budget.max_steps:
            break
        ended, used = run_from(point, spent)
        converged = ended.whole().outcome is Outcome.CONVERGED
        runs.append(ended)
        methods.append(used)
        elbos.append(_elbo(target, problem, ended, key, budget) if converged else float("nan"))
        spent += ended.steps
    modes = _modes(problem, target, runs, np.asarray(elbos))
    best = int(np.nanargmax(elbos))
    if elbos[best] > elbo + 5 * error + STARTS.better:
        return FirstRun(runs[best], points[best], methods[best], np.asarray(elbos), modes)
    return first._replace(elbos=np.asarray(elbos), modes=modes)


def _elbo(
    target: AbstractTarget, problem: VariationalProblem, ended: RunResult, key: Any, budget: Budget
) -> float:
    """The bound on fresh draws; NaN where the run failed or the bound is not finite."""
    if ended.outcome.is_failure:
        return float("nan")
    elbo = evaluate(target, problem.family, ended.params, key, budget.left).elbo
    return elbo if np.isfinite(elbo) else float("nan")
