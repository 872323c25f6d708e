"""Fit a generalised linear model: several starts, the best bound wins, the spread is kept."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from curvi._core.compilation import compiled
from curvi._core.errors import InputError, Outcome
from curvi._core.meshes import current_mesh, padded_count, place_rows, replicate
from curvi._core.threads import one_blas_thread
from curvi._core.trees import precision_of
from curvi.engine import Budget, Execution, Resources, RunResult
from curvi.engine import run as run_loop
from curvi.families import Family, Params
from curvi.glm._bound import GLMProblem, Rows, on_device, padded
from curvi.glm._dense import DenseBound
from curvi.glm._design import DenseDesign
from curvi.glm._diagonal_bound import DiagonalBound
from curvi.glm._full_bound import FullBound
from curvi.glm._full_newton import fit_full, full_moments
from curvi.glm._narrowness import checked
from curvi.glm._rows import StreamedRows, Tables, WholeTable
from curvi.glm._sparse_rows import SparseTable, pairs_fit
from curvi.glm._stages import STAGES, Hooks, Options, by_relevance, by_stages
from curvi.glm._starts import GLMFit, Start, best_start, starting_moments, with_noise
from curvi.likelihoods import Likelihood, OnePredictor
from curvi.solvers import TrustRegion


@dataclass(frozen=True)
class FitLimits:
    """Where a regression is fitted by its whole Hessian, and what noise a run may leave."""

    largest_dense: int = 1600  # parameters up to which the Hessian is formed and factorised
    noise_left: float = 0.05  # nats per root of a parameter that may be left after a stochastic run


LIMITS = FitLimits()


def fit_glm(
    likelihood: Likelihood,
    family: Family,
    rows: Rows | StreamedRows,
    *,
    relevance: bool = False,
    intercept: bool = False,
    options: Options | None = None,
    centre: np.ndarray | None = None,
) -> GLMFit:
    """Maximise the bound of one linear predictor from one or several starts.

    Full covariances under a normal prior, and diagonal ones of tables of moderate width, are
    fitted on the host, without compilation; everything else by the compiled engine.

    Parameters
    ----------
    likelihood : Likelihood
        Of a response given its linear predictor.
    family : Family
        Structure of the posterior covariance.
    rows : Rows or StreamedRows
        NumPy arrays of one floating dtype; streamed ones need ``options.method=None`` and a full
        covariance under a normal prior or a diagonal one.
    relevance : bool
        Whether the prior is the relevance prior; otherwise it is normal.
    intercept : bool
        Whether the last column is an intercept. Under a relevance prior its prior variance is
        maximised as well, but not below ``1 / precision``: it is never switched off.
    options : Options, optional
        How the bound is maximised.
    centre : array, (columns,), optional
        Where the mean starts; zero by default.

    Returns
    -------
    GLMFit
        The fit from the best start.

    Raises
    ------
    InputError
        For streamed rows of more columns than the dense Newton steps can take.
    """
    options = Options() if options is None else options
    began = time.perf_counter()
    columns, dtype = rows.precision.shape[0], rows.precision.dtype

    def starts(index: int) -> Start:
        return starting_moments(columns, options.seed, index, centre)

    def compiled(rows: Rows) -> GLMFit:
        exact = GLMProblem(likelihood, family, relevance, intercept=intercept)
        with precision_of(dtype), one_blas_thread():  # whose number would change the last bits
            device = _placed(rows, options)
            found = fit_compiled(exact, device, device, starts, options)
            return with_noise(found, lambda q: float(_noise(exact, q, device)))

    def on_host(tables: Tables) -> GLMFit:
        noise = float(rows.noise)
        relevant = relevant_columns(columns, relevance, intercept)
        bound = DenseBound(
            relevant, rows.precision, likelihood, tables, noise, coarse_rows=options.coarse_rows
        )
        found = fit_on_host(bound, family, dtype, starts, options)
        return with_noise(
            found, lambda q: bound.noise_variance(np.asarray(q.mean), np.exp(q.scale_params))
        )

    def in_full(tables: Tables) -> GLMFit:
        bound = FullBound(OnePredictor(likelihood), tables, rows.precision, float(rows.noise))
        found = fit_full(bound, family, dtype, starts, options)
        return with_noise(found, lambda q: bound.noise_variance(*full_moments(family, q)))

    mesh, streamed = current_mesh(), isinstance(rows, StreamedRows)
    exact = options.method is None and not mesh
    if exact and takes_full_steps(family, relevance):
        found = in_full(_tables(rows))
        # Rows that say little about wide coefficients: the trust region converges where these
        # steps hardly do, and is worth its compilation. Gaussian ones began at the optimum.
        gave_up = found.outcome in (Outcome.BUDGET, Outcome.STALLED) and options.max_steps is None
        if gave_up and isinstance(rows, Rows) and not likelihood.conjugate:
            found = compiled(rows)
    elif streamed or (exact and dense_is_cheap(family, rows, 2 * columns)):
        if streamed:
            _check_streamed(columns, mesh)
        found = on_host(_tables(rows))
    else:
        found = compiled(cast("Rows", rows))
    if not family.scale.is_full:
        found = checked(found, likelihood, _tables(rows), rows.precision, relevance, intercept)
    return replace(found, seconds=time.perf_counter() - began)


def _tables(rows: Rows | StreamedRows) -> Tables:
    return rows.tables if isinstance(rows, StreamedRows) else whole_table(rows)


def _check_streamed(columns: int, mesh: Any, *, policy: FitLimits = LIMITS) -> None:
    if mesh is not None:
        raise InputError("rows in blocks have no mesh; give the table itself, on disk perhaps")
    if 2 * columns > policy.largest_dense:
        raise InputError(
            f"rows in blocks can have {policy.largest_dense // 2} columns at most, the intercept "
            f"included, and there are {columns}; give a sparse or in-memory table instead"
        )


def _placed(rows: Rows, options: Options) -> Rows:
    """Rows on the device, or over the devices of the mesh, filled up by rows of weight zero."""
    mesh = current_mesh()
    if mesh is None:
        return on_device(padded(rows) if options.batch_size is None else rows)
    if not isinstance(rows.design, DenseDesign) or options.method is not None:
        raise InputError("mesh needs a dense X and method='newton'; leave it out otherwise")
    extra = padded_count(rows.y.shape[0], mesh) - rows.y.shape[0]
    matrix = np.pad(rows.design.matrix, ((0, extra), (0, 0)))
    y, weight = np.pad(rows.y, (0, extra)), np.pad(rows.weight, (0, extra))
    parts = place_rows((matrix, y, weight), mesh)
    rest = replicate((rows.precision, np.asarray(rows.noise)), mesh)
    return Rows(DenseDesign(parts[0]), *parts[1:], *rest)


def dense_is_cheap(family: Family, rows: Any, size: int, *, policy: FitLimits = LIMITS) -> bool:
    """Whether the whole Hessian can be formed and factorised at every step."""
    if not family.scale.is_diagonal or size > policy.largest_dense:
        return False
    return isinstance(rows.design, DenseDesign) or pairs_fit(rows.design)


def takes_full_steps(family: Family, relevance: bool) -> bool:
    """Whether the steps of a full covariance, on the host, are those of this bound."""
    return family.scale.is_full and not relevance


def relevant_columns(columns: int, relevance: bool, intercept: bool) -> np.ndarray:
    """Which columns can be switched off: those of a relevance prior, but never an intercept."""
    return np.append(np.full(columns - intercept, relevance), np.zeros(int(intercept), bool))


def whole_table(rows: Rows) -> WholeTable | SparseTable:
    """The rows as a table on the host."""
    if not isinstance(rows.design, DenseDesign):
        return SparseTable.of(rows.design, rows.y, rows.weight)
    return WholeTable(*(np.asarray(x) for x in (rows.design.matrix, rows.y, rows.weight)))


def fit_on_host(
    bound: DiagonalBound,
    family: Family,
    dtype: Any,
    starts: Callable[[int], Start],
    options: Options,
) -> GLMFit:
    """Newton steps with the dense Hessian from every start; the best bound is kept."""
    shape = starts(0)[0].shape

    def run_from(index: int, hooks: Hooks) -> tuple[RunResult, float]:
        mean, sd = (part.ravel() for part in starts(index))
        if index == 0 and bound.relevant.any() and options.max_steps != 1:
            run = by_relevance(bound, mean, sd, dtype, options, hooks)
        else:
            stages = (*bound.coarser(), bound)
            run = by_stages(stages, bound.join(mean, sd), dtype, options, hooks)
        return run, -bound.value(run.params)

    def moments(params: np.ndarray) -> Params:
        _, mean, sd = bound.split(params)
        parts: Any = (mean.reshape(shape), np.log(sd).reshape(shape))
        return Params(*parts)

    # On small matrices, or a busy machine, threads of a BLAS wait for each other for longer than
    # one thread needs for the work: measured 20 times on two busy cores.
    with one_blas_thread() if bound.work < STAGES.threaded_work else nullcontext():
        return best_start(family, run_from, moments, options, bound.work)


def fit_compiled(
    exact: Any, rows: Rows, sample: Any, starts: Callable[[int], Start], options: Options
) -> GLMFit:
    """Run a method of the engine from every start; the best exact bound is kept.

    ``exact`` is evaluated on ``sample``; a stochastic method draws its own samples of ``rows``.
    Both are on the device.
    """
    dtype, family = rows.weight.dtype, exact.family
    method = TrustRegion() if options.method is None else options.method
    problem, resources = exact, sample
    # Under a relevance prior a run takes hundreds of steps, which pay for their compilation.
    is_long = exact.relevance or current_mesh() is not None
    execution = Execution("compiled" if is_long else "auto")
    if options.method is not None:
        problem = exact.sampled(options.num_draws, options.batch_size)
        resources = Resources(jax.random.key(options.seed), rows, noise=None)

    def run_from(index: int, hooks: Hooks) -> tuple[RunResult, float]:
        mean, sd = (jnp.asarray(part, dtype) for part in starts(index))
        init = family.init if mean.ndim == 1 else jax.vmap(family.init)
        params = exact.from_mean(init(mean, sd))
        steps = method.default_max_steps if options.max_steps is None else options.max_steps
        budget = Budget(options.accuracy(dtype), steps, hooks=hooks)
        run = run_loop(problem, method, params, resources, budget, execution=execution)
        elbo = -float(neg_elbo(exact, run.params, sample))
        if options.method is not None:
            first = -float(neg_elbo(exact, params, sample))
            run = run._replace(outcome=_verdict(exact, sample, run, first, elbo))
        return run, elbo

    def moments(params: Params) -> Params:
        return jax.tree.map(np.asarray, exact.to_mean(params))

    # Products with the rows: of quadrature, or some draws, times steps of conjugate gradients.
    passes = 100 * starts(0)[0].size / rows.design.num_columns
    return best_start(family, run_from, moments, options, passes * rows.design.num_entries)


def _verdict(
    exact: Any,
    sample: Any,
    run: RunResult,
    first: float,
    last: float,
    *,
    policy: FitLimits = LIMITS,
) -> Outcome:
    """Judge a stochastic run, which has no stopping rule, by one Newton step on the exact bound."""
    if run.outcome is not Outcome.BUDGET:
        return run.outcome
    if not np.isfinite(last) or last < first:
        return Outcome.DIVERGED
    step = run_loop(exact, TrustRegion(), run.params, sample, Budget(0.0, 1))
    if step.outcome is Outcome.INTERRUPTED:  # it may have taken no step
        return Outcome.INTERRUPTED
    size = sum(leaf.size for leaf in jax.tree.leaves(run.params))
    left = float(step.trace["gain"][0])
    return Outcome.CONVERGED if left < policy.noise_left * size**0.5 else Outcome.BUDGET


@partial(compiled, static_argnums=0)
def neg_elbo(problem: Any, params: Params, sample: Any) -> jax.Array:
    """The objective of a problem, compiled."""
    return problem.value(params, sample)


@partial(compiled, static_argnums=0)
def _noise(problem: GLMProblem, q: Params, rows: Rows) -> jax.Array:
    return problem.noise_variance(q, rows)
