"""Fit a generalised linear model: several starts, the best bound wins, the spread is kept."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from curvi.core.outcomes import Outcome
from curvi.families import Family, Params
from curvi.fitting import loop
from curvi.fitting.minimise import default_tolerance
from curvi.fitting.progress import observer_for
from curvi.methods import Method, TrustRegion
from curvi.models.glm.bound import GLMProblem, Rows
from curvi.models.glm.likelihoods import Likelihood
from curvi.models.glm.sampled import SampledGLMProblem, SampledResources


@dataclass(frozen=True)
class GLMFit:
    """A fitted model.

    Attributes
    ----------
    q : Params
        Mean and scale parameters of the coefficients, the intercept last.
    elbo : float
        The bound at the end, exact but for quadrature.
    elbos : array
        The bound of every start; their spread says how rugged the bound is.
    outcome, message, trace, steps
        Of the start that was kept.
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


def fit_glm(
    likelihood: Likelihood,
    family: Family,
    rows: Rows,
    *,
    relevance: bool = False,
    method: Method | None = None,
    num_starts: int = 1,
    num_draws: int = 1,
    batch_size: int | None = None,
    tolerance: float | None = None,
    max_steps: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> GLMFit:
    """Maximise the bound from one or several starts.

    With ``method=None`` the exact bound is maximised by Newton steps in a trust region; any other
    method sees fresh draws, as in the paper, and its answer is judged by the exact bound.
    """
    began = time.perf_counter()
    exact = GLMProblem(likelihood, family, relevance)
    problem: GLMProblem = exact
    resources: Any = rows
    if method is None:
        method = TrustRegion()
    else:
        problem = SampledGLMProblem(likelihood, family, relevance, num_draws, batch_size)
        resources = SampledResources(jax.random.key(seed), rows)
    steps = method.default_max_steps if max_steps is None else max_steps
    accuracy = default_tolerance(rows.y.dtype) if tolerance is None else tolerance
    runs, elbos = [], []
    with observer_for(progress, "ELBO", sign=-1.0) as observer:
        for start in range(num_starts):
            run = loop.run(
                problem,
                method,
                starting_params(exact, rows, seed, start),
                resources,
                tolerance=accuracy,
                max_steps=steps,
                observer=observer,
            )
            runs.append(run)
            elbos.append(-float(_value(exact, run.params, rows)))
    scores = np.where(np.isfinite(elbos), elbos, -np.inf)
    best = int(np.argmax(scores))
    kept = runs[best]
    return GLMFit(
        family=family,
        q=exact.to_mean(kept.params),
        elbo=elbos[best],
        elbos=np.asarray(elbos),
        outcome=kept.outcome,
        message=kept.outcome.sentence,
        trace={**kept.trace, "elbo": -kept.trace["value"]},
        steps=kept.steps,
        seconds=time.perf_counter() - began,
    )


def starting_params(problem: GLMProblem, rows: Rows, seed: int, start: int) -> Params:
    """Zero mean and sds of about ``1 / sqrt(columns)``; later starts are jittered.

    Wider starts drown the likelihood in noise: the variance of a predictor is the sum over
    columns.
    """
    columns = rows.design.num_columns
    dtype = rows.y.dtype
    width = 1 / math.sqrt(max(columns, 1))
    if start == 0:
        return problem.from_mean(problem.family.init(jnp.zeros(columns, dtype), width))
    key = jax.random.fold_in(jax.random.key(seed), 7919 * start)
    jitter = float(jax.random.uniform(key, (), dtype, -1.0, 1.0))
    width *= math.exp(jitter)
    mean = 0.3 * width * jax.random.normal(jax.random.fold_in(key, 1), (columns,), dtype)
    return problem.from_mean(problem.family.init(mean, width))


def _negative_bound(problem: GLMProblem, params: Params, rows: Rows) -> jax.Array:
    return problem.value(params, rows)


_value = jax.jit(_negative_bound, static_argnums=0)
