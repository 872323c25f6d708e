"""Fit a generalised linear model: several starts, the best bound wins, the spread is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.errors import InputError, Outcome
from curvi._core.trees import precision_of
from curvi.engine import Budget, RunResult, hooks_for
from curvi.engine import run as run_loop
from curvi.families import Family, Params
from curvi.glm._bound import GLMProblem, Rows
from curvi.glm._dense import DenseBound
from curvi.glm._design import DenseDesign
from curvi.glm._diagonal_bound import DiagonalBound
from curvi.glm._likelihoods import Likelihood
from curvi.glm._newton import minimise_dense
from curvi.glm._sampled import SampledGLMProblem, SampledResources
from curvi.glm._starts import on_device, padded, starting_moments
from curvi.glm._tables import StreamedRows, Tables, WholeTable
from curvi.glm._threads import available_threads, one_blas_thread
from curvi.inference._inputs import default_tolerance
from curvi.solvers import Method, Problem, TrustRegion

LARGEST_DENSE = 1600  # parameters up to which the Hessian is formed and factorised
_NOISE_LEFT = 0.05  # nats per root of a parameter that may be left after a stochastic run
_HOST_STEPS = 1000
_ROUGH_STEPS = 50  # at most, on a bound that only leads to a start
_THREADED_WORK = 1e10  # multiplications of one step from which several threads pay


@dataclass(frozen=True)
class GLMFit:
    """A fitted model; its arrays are NumPy arrays.

    Attributes
    ----------
    q : Params
        Mean and scale parameters of the coefficients, the intercept last; with several classes
        they have a leading axis.
    elbo : float
        The bound at the end, exact but for quadrature.
    elbo_se : float
        Standard error of ``elbo``: zero unless draws are needed (several classes).
    elbos : array
        The bound of every start; their spread says how rugged the bound is.
    outcome, message, trace, steps
        Of the start that was kept.
    noise : float
        Noise variance of a Gaussian likelihood.
    seconds : float
        Of all starts together.
    """

    family: Family
    q: Params
    elbo: float
    elbos: np.ndarray
    outcome: Outcome
    message: str
    trace: dict[str, np.ndarray]
    steps: int
    seconds: float
    elbo_se: float = 0.0
    noise: float = float("nan")

    @property
    def converged(self) -> bool:
        """Whether the maximum of the bound was reached."""
        return self.outcome is Outcome.CONVERGED


@dataclass(frozen=True)
class Options:
    """How a bound is maximised.

    With ``method=None`` it is the exact bound, by Newton steps in a trust region; any other
    method sees fresh draws, as in the paper, and its answer is judged by the exact bound.
    """

    method: Method | None = None
    num_starts: int = 1
    num_draws: int = 10
    batch_size: int | None = None
    tolerance: float | None = None
    max_steps: int | None = None
    seed: int = 0
    progress: bool = False


def fit_glm(
    likelihood: Likelihood,
    family: Family,
    rows: Rows | StreamedRows,
    *,
    relevance: bool = False,
    options: Options | None = None,
    centre: np.ndarray | None = None,
) -> GLMFit:
    """Maximise the bound of one linear predictor from one or several starts.

    ``rows`` holds NumPy arrays of one floating dtype. Dense tables of moderate width with a
    diagonal covariance are fitted on the host, without compilation; everything else by the
    compiled engine. ``centre`` is where the mean starts.
    """
    options = Options() if options is None else options
    began = time.perf_counter()
    columns, dtype = rows.precision.shape[0], rows.precision.dtype

    def starts(start: int) -> tuple[np.ndarray, np.ndarray]:
        return starting_moments(columns, options.seed, start, centre)

    if isinstance(rows, StreamedRows):
        _check_streamed(family, options, columns)
    if isinstance(rows, StreamedRows) or (
        options.method is None and dense_is_cheap(family, rows, 2 * columns)
    ):
        noise = float(rows.noise)
        bound = DenseBound(
            relevance,
            rows.precision,
            likelihood,
            _tables(rows),
            noise,
            threads=available_threads(),
        )
        found = fit_on_host(bound, family, dtype, starts, options)
        sd = np.exp(found.q.scale_params)
        found = replace(found, noise=bound.noise_variance(np.asarray(found.q.mean), sd))
    else:
        with precision_of(dtype):
            found = _fit_compiled(likelihood, family, rows, relevance, starts, options)
    return replace(found, seconds=time.perf_counter() - began)


def dense_is_cheap(family: Family, rows: Rows, size: int) -> bool:
    """Whether the whole Hessian can be formed and factorised at every step."""
    is_dense = isinstance(rows.design, DenseDesign)
    return is_dense and family.scale.is_diagonal and size <= LARGEST_DENSE


def _tables(rows: Rows | StreamedRows) -> Tables:
    if isinstance(rows, StreamedRows):
        return rows.tables
    assert isinstance(rows.design, DenseDesign)  # noqa: S101  for the type checker
    return WholeTable(*(np.asarray(x) for x in (rows.design.matrix, rows.y, rows.weight)))


def _check_streamed(family: Family, options: Options, columns: int) -> None:
    """Only sums over rows of the dense Newton steps can be streamed."""
    if options.method is not None or not family.scale.is_diagonal:
        raise InputError("rows in blocks need method='newton' and covariance='diagonal'")
    if 2 * columns > LARGEST_DENSE:
        raise InputError(
            f"rows in blocks can have {LARGEST_DENSE // 2} columns at most, the intercept "
            f"included, and there are {columns}; give a sparse or in-memory table instead"
        )


def _fit_compiled(
    likelihood: Likelihood,
    family: Family,
    rows: Rows,
    relevance: bool,
    starts: Callable[[int], tuple[np.ndarray, np.ndarray]],
    options: Options,
) -> GLMFit:
    exact = GLMProblem(likelihood, family, relevance)
    dtype = rows.y.dtype
    rows = on_device(padded(rows) if options.batch_size is None else rows)
    problem: Problem = exact
    resources: Any = rows
    if options.method is not None:
        problem = SampledGLMProblem(
            likelihood, family, relevance, options.num_draws, options.batch_size
        )
        resources = SampledResources(jax.random.key(options.seed), rows)

    def start(index: int) -> Params:
        mean, sd = (jnp.asarray(x, dtype) for x in starts(index))
        return exact.from_mean(family.init(mean, sd))

    found = fit_compiled(exact, rows, problem, resources, family, start, options)
    noise = _noise(exact, found.q, rows)
    return replace(found, noise=float(noise))


def fit_on_host(
    bound: DiagonalBound,
    family: Family,
    dtype: Any,
    starts: Callable[[int], tuple[np.ndarray, np.ndarray]],
    options: Options,
) -> GLMFit:
    """Newton steps with the dense Hessian from every start; the best bound is kept."""
    accuracy = default_tolerance(dtype) if options.tolerance is None else options.tolerance
    steps = _HOST_STEPS if options.max_steps is None else options.max_steps
    eps = float(np.finfo(dtype).eps)
    runs, elbos = [], []
    # On small matrices, or a busy machine, threads of a BLAS wait for each other for longer than
    # one thread needs for the work: measured 20 times on two busy cores.
    threads = one_blas_thread() if bound.work < _THREADED_WORK else nullcontext()
    with threads:
        for index in range(options.num_starts):
            run = _from_coarse_to_fine(bound, bound.join(*starts(index)), accuracy, steps, eps)
            runs.append(run)
            elbos.append(-bound.value(run.params))
    kept, elbo = best_run(runs, elbos)
    _, mean, sd = bound.split(kept.params)
    moments: Any = (mean, np.log(sd))
    q = Params(*moments)
    return _assembled(family, q, kept, elbo, elbos)


def _from_coarse_to_fine(
    bound: DiagonalBound,
    start: np.ndarray,
    accuracy: float,
    steps: int,
    eps: float,
) -> RunResult:
    """Newton steps on cheaper bounds first, for a good start at a fraction of the price.

    The trace holds the steps on all rows, and the time of all steps; ``steps`` counts them all.
    """
    spent, used, traces = 0.0, 0, []
    for stage in (*bound.coarser(), bound):
        if stage is not bound and used + 1 >= steps:
            continue  # the last step is for the bound itself
        left = steps - used - (stage is not bound)
        run = minimise_dense(
            stage,
            start,
            tolerance=max(accuracy, stage.rough),
            max_steps=min(left, _ROUGH_STEPS) if stage.rough else left,
            eps=eps,
            hessian_eps=stage.hessian_eps,
            rough=stage.rough > 0,
        )
        used += run.steps
        if stage is bound or np.isfinite(bound.value(run.params)):
            start = run.params
        if stage.has_all_rows:
            traces.append({**run.trace, "seconds": run.trace["seconds"] + spent})
        spent += run.seconds
        if not stage.rough and run.outcome is Outcome.CONVERGED:
            break
    trace = {name: np.concatenate([part[name] for part in traces]) for name in traces[0]}
    trace["step"] = np.arange(trace["step"].size)
    return run._replace(trace=trace, steps=used, seconds=spent)


def fit_compiled(
    exact: Any,
    sample: Any,
    problem: Problem,
    resources: Any,
    family: Family,
    start: Callable[[int], Params],
    options: Options,
) -> GLMFit:
    """Run a method of the engine from every start; the best exact bound is kept."""
    method = TrustRegion() if options.method is None else options.method
    steps = method.default_max_steps if options.max_steps is None else options.max_steps
    begin = [start(index) for index in range(options.num_starts)]
    dtype = begin[0].mean.dtype
    accuracy = default_tolerance(dtype) if options.tolerance is None else options.tolerance
    runs, elbos = [], []
    with hooks_for(options.progress, "ELBO", sign=-1.0) as hooks:
        for params in begin:
            budget = Budget(accuracy, steps, hooks=hooks)
            run = run_loop(problem, method, params, resources, budget)
            elbos.append(-float(neg_bound(exact, run.params, sample)))
            if options.method is not None:
                first = -float(neg_bound(exact, params, sample))
                run = run._replace(outcome=_verdict(exact, sample, run, first, elbos[-1]))
            runs.append(run)
    kept, elbo = best_run(runs, elbos)
    q = jax.tree.map(np.asarray, exact.to_mean(kept.params))
    return _assembled(family, q, kept, elbo, elbos)


def _verdict(exact: Any, sample: Any, run: RunResult, first: float, last: float) -> Outcome:
    """Judge a stochastic run, which has no stopping rule, by one Newton step on the exact bound."""
    if run.outcome is not Outcome.BUDGET:
        return run.outcome
    if not np.isfinite(last) or last < first:
        return Outcome.DIVERGED
    step = run_loop(exact, TrustRegion(), run.params, sample, Budget(0.0, 1))
    size = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    left = float(step.trace["gain"][0])
    return Outcome.CONVERGED if left < _NOISE_LEFT * size**0.5 else Outcome.BUDGET


def best_run(runs: list[RunResult], elbos: list[float]) -> tuple[RunResult, float]:
    """The run with the highest bound; one that is not finite loses against any other."""
    best = int(np.argmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
    return runs[best], elbos[best]


def _assembled(
    family: Family, q: Params, kept: RunResult, elbo: float, elbos: list[float]
) -> GLMFit:
    return GLMFit(
        family=family,
        q=q,
        elbo=elbo,
        elbos=np.asarray(elbos),
        outcome=kept.outcome,
        message=kept.outcome.sentence,
        trace={**kept.trace, "elbo": -kept.trace["value"]},
        steps=kept.steps,
        seconds=kept.seconds,
    )


def _negative_bound(problem: Any, params: Params, sample: Any) -> jax.Array:
    return problem.value(params, sample)


def _noise_variance(problem: GLMProblem, q: Params, rows: Rows) -> jax.Array:
    return problem.noise_variance(q, rows)


neg_bound = jax.jit(_negative_bound, static_argnums=0)
_noise = jax.jit(_noise_variance, static_argnums=0)
