"""``curvi.minimise``: the same methods on any stochastic objective (the paper's "model free")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.compilation import compiled
from curvi._core.errors import InputError, Outcome, keep_result
from curvi._core.text import printable
from curvi.engine import (
    Budget,
    Execution,
    ObjectiveProblem,
    Resources,
    RunResult,
    StepInfo,
    hooks_for,
    opened,
    run,
    traced_objective,
)
from curvi.inference._growth import joined_traces
from curvi.inference._inputs import (
    announce,
    as_execution,
    as_method,
    check_options,
    cut_short_by,
    default_tolerance,
    outside_transformations,
)
from curvi.io import Saved
from curvi.objective import Stream, host_generator
from curvi.plots import plot_trace
from curvi.solvers import Method, TrustRegion


@dataclass(frozen=True, repr=False)
class OptimiseResult(Saved):
    """Where a minimisation ended.

    Attributes
    ----------
    params : pytree
        The last parameters, or their average where the method keeps one.
    outcome, message : Outcome, str
        How it ended, and one sentence.
    value : float
        The objective on the sample of the last step, before that step.
    trace : dict of arrays
        One entry per step: step, seconds, value, grad_norm, gain, cg_steps, accepted, ...
    seconds, compile_seconds : float
        Time spent, compilation included, and the part of it that was compilation.
    """

    params: PyTree
    outcome: Outcome
    message: str
    value: float
    trace: dict[str, np.ndarray]
    seconds: float
    compile_seconds: float = 0.0

    @property
    def converged(self) -> bool:
        """Whether the method's stopping rule was met."""
        return self.outcome is Outcome.CONVERGED

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C cut it short."""
        return self.outcome is Outcome.INTERRUPTED

    _claims = {"trace": "trace steps step"}  # noqa: RUF012  of no instance

    def _check_stored(self) -> None:
        """Refuse a trace of a file that is none, and parameters that no end could have left."""
        leaves = jax.tree.leaves((self.params, self.value))
        if not self.outcome.is_failure and not all(np.isfinite(leaf).all() for leaf in leaves):
            raise InputError("its params or its value have a number that is not finite")

    def __repr__(self) -> str:
        count = sum(np.size(leaf) for leaf in jax.tree.leaves(self.params))
        state = "converged" if self.converged else f"NOT CONVERGED ({self.outcome.name.lower()})"
        return (
            f"OptimiseResult({state}: {count} parameters, objective {self.value:.6g}, "
            f"{len(self.trace['step'])} steps, {self.seconds:.2f} s)"
        )

    def summary(self) -> str:
        """How it ended, how far it came and what it took, as text.

        Returns
        -------
        str
            A few lines.

        Examples
        --------
        >>> import jax.numpy as jnp
        >>> print(minimise(lambda p, batch, key: jnp.sum(p**2), jnp.ones(2),
        ...                fixed_key=True, progress=False).summary().splitlines()[0])
        minimisation over 2 parameters
        """
        count = sum(np.size(leaf) for leaf in jax.tree.leaves(self.params))
        steps, values = len(self.trace["step"]), self.trace["value"]
        lines = [
            f"minimisation over {count} parameters",
            f"{self.outcome}: {printable(self.message)}",
        ]
        if steps:
            taken = int(np.sum(self.trace["accepted"]))
            lines.append(
                f"objective {values[0]:.6g} at the first step, {values[-1]:.6g} at the last"
            )
            lines.append(f"{steps} steps, {taken} of them accepted")
        lines.append(
            f"{self.seconds:.3g} s, {self.compile_seconds:.3g} s of them before the first step "
            "(compilation)"
        )
        return "\n".join(lines)

    def plot(self) -> Any:
        """The objective and the norm of its gradient against time.

        Returns
        -------
        matplotlib Figure
            Two panels; see :func:`curvi.plots.plot_trace`.
        """
        return plot_trace(self.trace, title=str(self.outcome))


@outside_transformations
def minimise(
    fn: Callable[[PyTree, PyTree, PRNGKeyArray], Float[Array, ""]],
    params: PyTree,
    *,
    method: Method | optax.GradientTransformation | None = None,
    data: PyTree | None = None,
    batch_size: int | None = None,
    fixed_key: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    max_steps: int | None = None,
    time_budget: float | None = None,
    execution: str | Execution = "auto",
    progress: bool = True,
    on_failure: str = "raise",
    on_step: Callable[[StepInfo], Any] | None = None,
    checkpoint: Any = None,
) -> OptimiseResult:
    """Minimise ``E[fn(params, batch, key)]`` over a pytree of parameters.

    A deterministic objective (``fixed_key``, all data) that has converged is probed for a
    direction of negative curvature, and left along it: a maximum or a saddle point has a gradient
    of zero, too.

    Parameters
    ----------
    fn : callable
        ``fn(params, batch, key) -> scalar`` in JAX. ``batch`` is None without data.
    params : pytree of floating-point arrays
        Where to start.
    method : Method or optax transformation
        TrustRegion by default; ``optax.adam(1e-3)`` stands for
        ``curvi.FirstOrder(optax.adam(1e-3))``.
    data, batch_size
        Arrays that share their leading axis; ``batch_size`` rows of them at each step, or all.
    fixed_key : bool
        Give ``fn`` the same key at every step: the objective is then deterministic and can be
        minimised to convergence (common random numbers).
    seed : int
        All randomness follows from it: the same seed gives the same bits.
    tolerance : float, optional
        Predicted decrease below which a method with a stopping rule ends.
    max_steps, time_budget : int, float, optional
        Budgets of steps and seconds, compilation of the steps not counted; one that runs out is
        warned about, where the method has a stopping rule.
    execution : {"auto", "eager", "compiled"}
        Where steps are taken, see :func:`curvi.fit`.
    progress : bool
        A progress bar, on a terminal only.
    on_failure : {"raise", "warn", "return"}
        What to do on a numerical failure; the exception carries ``.result``. Budgets and Ctrl-C
        warn in any case.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step, for logging.
    checkpoint : path or Checkpoint, optional
        A file that keeps the state, once a minute, and from which the same call resumes to the
        same bits; see :func:`curvi.fit`.

    Returns
    -------
    OptimiseResult
        The parameters, how the minimisation ended, and its trace.

    Raises
    ------
    InputError
        For input that cannot be minimised, with what, where and what to do.
    NumericalError
        For a numerical failure; ``error.result`` holds the last finite state. It is one to end
        above the start: both are compared on the same 32 samples.

    Warns
    -----
    NotConvergedWarning
        If a budget ran out, or at the first Ctrl-C, which ends the minimisation with the outcome
        INTERRUPTED; the warning carries ``.result``.

    Notes
    -----
    An exception out of ``fn`` or ``on_step`` keeps its type and carries the result so far as
    ``error.curvi_result``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> result = minimise(lambda p, batch, key: jnp.sum((p - 3) ** 2), jnp.zeros(2),
    ...                   fixed_key=True, progress=False)
    >>> result.converged, bool(jnp.abs(result.params - 3).max() < 1e-3)
    (True, True)
    """
    with opened(locals(), "minimise") as call:
        check_options(on_failure, tolerance=tolerance)
        start, unravel = validation.flat_position(params)
        uniform = unravel(start)
        method, execution = as_method(method), as_execution(execution)
        rows, num_rows = (None, 0) if data is None else validation.checked_rows(data)
        if batch_size is not None:
            validation.positive_integer(batch_size, "batch_size")
            if rows is None:
                raise InputError("batch_size needs data; pass data=, a pytree of arrays")
            if batch_size > num_rows:
                raise InputError(f"batch_size is {batch_size} but there are {num_rows} rows")
        key = validation.random_key(seed)
        counts = [] if rows is None else [batch_size or num_rows, *method.batch_sizes]
        objective, reads = traced_objective(fn, uniform, rows, counts, key)
        problem = ObjectiveProblem(objective, batch_size, fixed_key, reads)
        resources = Resources(key, rows, None)
        steps = method.default_max_steps if max_steps is None else max_steps
        validation.positive_integer(steps, "max_steps")
        accuracy = default_tolerance(start.dtype) if tolerance is None else tolerance
        with hooks_for(progress, "objective", on_step) as hooks:
            budget = Budget(accuracy, steps, hooks)
            try:
                ended = run(problem, method, uniform, resources, budget, execution=execution)
                ended = _away_from_saddles(problem, method, ended, resources, budget, execution)
                ended = _judged(problem, uniform, ended, resources)
            except Exception as error:
                if isinstance(kept := getattr(error, "curvi_result", None), RunResult):
                    keep_result(error, _result(kept, cut_short_by(error)))
                raise
        result = _result(ended, ended.outcome.sentence)
        announce(result, on_failure, stops=method.stops(problem))
        return call.returned(result)


def _result(ended: RunResult, message: str) -> OptimiseResult:
    values = ended.trace["value"]
    return OptimiseResult(
        params=ended.params,
        outcome=ended.outcome,
        message=message,
        value=float(values[-1]) if len(values) else float("nan"),
        trace=ended.trace,
        seconds=ended.seconds,
        compile_seconds=ended.compile_seconds,
    )


def _judged(
    problem: ObjectiveProblem, start: PyTree, ended: RunResult, resources: Resources, *,
    slightly_worse: float = 1e-3,
) -> RunResult:  # fmt: skip
    """A run that ended above its start has diverged, whatever its method thinks.

    Start and end see the same samples, so that a difference of five standard errors is no chance.

    ``slightly_worse``: share of the first value that a stochastic run may lose.
    """
    if problem.fixed or not ended.steps or ended.outcome not in (Outcome.CONVERGED, Outcome.BUDGET):
        return ended
    before, after = (np.asarray(v, float) for v in _values(problem, start, ended.params, resources))
    difference = after - before
    error = difference.std(ddof=1) / len(difference) ** 0.5
    slack = 5 * error + slightly_worse * abs(before.mean())
    worse = np.isfinite(before).all() and not difference.mean() <= slack
    return ended._replace(outcome=Outcome.DIVERGED) if worse else ended


@compiled
def _values(
    problem: ObjectiveProblem, first: PyTree, second: PyTree, resources: Resources, *,
    num_samples: int = 32,
) -> tuple[Array, Array]:  # fmt: skip
    """The objective at two points on the same samples, which no step has seen.

    ``num_samples``: on which start and end of a stochastic run are compared.
    """

    def both(number: Array) -> tuple[Array, Array]:
        sample = problem.sample(resources, number, stream=Stream.JUDGES)
        return problem.value(first, sample), problem.value(second, sample)

    return jax.lax.map(both, jnp.arange(num_samples, dtype=jnp.int32))


def _away_from_saddles(
    problem: ObjectiveProblem, method: Method, ended: RunResult, resources: Resources,
    budget: Budget, execution: Execution, *, probe_steps: int = 20, most_descents: int = 5,
) -> RunResult:  # fmt: skip
    """Go on from a maximum or a saddle point of a deterministic objective, until it is a minimum.

    Its gradient is zero and a Newton step from it goes nowhere. From beside it the gradient has a
    part in every direction, so that a few steps meet negative curvature and end lower; from
    beside a minimum they return.

    ``probe_steps``: from beside a stationary point, in which a way down must show itself.
    ``most_descents``: from one stationary point to the next.
    """
    traces, newton = [ended.trace], method if method.takes_newton_steps(problem) else TrustRegion()
    for attempt in range(most_descents):
        spent = sum(len(trace["step"]) for trace in traces)
        over = spent >= budget.max_steps or budget.left() <= 0
        if ended.outcome is not Outcome.CONVERGED or not problem.fixed or over:
            break
        beside = _nudged(ended.params, resources.key, attempt)
        limits = replace(budget, tolerance=0.0, max_steps=probe_steps, hooks=())
        probe = run(problem, newton, beside, resources, limits, execution=execution)
        if probe.outcome is Outcome.INTERRUPTED:
            ended = ended._replace(outcome=Outcome.INTERRUPTED)
            break
        if not probe.steps:  # the time is up
            break
        before, after = ended.trace["value"][-1], probe.trace["value"][-1]
        rounding = 10 * float(np.finfo(_dtype(ended.params)).eps) * max(abs(float(before)), 1.0)
        if not after < before - 2 * max(budget.tolerance, rounding):
            break
        ended = run(
            problem, method, probe.params, resources, budget, execution=execution, spent=spent
        )
        traces.append(ended.trace)
    trace = joined_traces(traces)
    return ended._replace(trace=trace, steps=len(trace["step"]))


def _nudged(params: PyTree, key: PRNGKeyArray, attempt: int) -> PyTree:
    """Parameters a little to the side, by the cube root of the rounding error."""
    rng = host_generator(key, Stream.NUDGES, attempt)

    def moved(leaf: Array) -> Array:
        size = np.finfo(leaf.dtype).eps ** (1 / 3) * np.maximum(np.abs(np.asarray(leaf)), 1.0)
        return jnp.asarray(np.asarray(leaf) + size * rng.normal(size=leaf.shape), leaf.dtype)

    return jax.tree.map(moved, params)


def _dtype(params: PyTree) -> Any:
    return jax.tree.leaves(params)[0].dtype
