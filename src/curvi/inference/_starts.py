"""Several starts in one vectorised run: one that fails does not disturb the others."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from curvi._core.errors import Outcome
from curvi.diagnostics import evaluate_elbo
from curvi.engine import _loop as loop
from curvi.engine._problems import Resources, VariationalProblem
from curvi.families import Params
from curvi.inference._growth import Budget
from curvi.inference._start import around, best_width
from curvi.solvers import Info, Method, Problem
from curvi.targets import DataTarget, Target

_STREAM = 0x57A
_NARROWEST = 1e-6
_FIRST_CHUNK = 8


@partial(jax.jit, static_argnames=("problem", "method"))
def _begin(problem: Problem, method: Method, params: Any, resources: Any) -> loop.Carry:
    return jax.vmap(lambda one: loop.start(problem, method, one, resources))(params)


@partial(jax.jit, static_argnames=("problem", "method"))
def _chunk(
    problem: Problem,
    method: Method,
    carry: loop.Carry,
    resources: Any,
    stop: Array,
    tolerance: Array,
) -> loop.Carry:
    def one(single: loop.Carry) -> loop.Carry:
        return loop.run_chunk(problem, method, single, resources, stop, tolerance)

    return jax.vmap(one)(carry)


def starting_points(
    problem: VariationalProblem,
    target: Target | DataTarget,
    first: Params,
    resources: Resources,
    num_starts: int,
    method: Method | None = None,
) -> list[Params]:
    """The user's start, and others at a distance of one normal draw per coordinate from it.

    Each has the width with the best bound. One whose bound is finite at no width is kept: it will
    fail, and be reported.
    """
    key: PRNGKeyArray = jax.random.fold_in(resources.key, _STREAM)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(key), np.uint32))
    points = [first]
    for _ in range(num_starts - 1):
        moved = target.start + jnp.asarray(rng.normal(size=target.dimension), target.dtype)
        width = best_width(problem, moved, resources, method)
        points.append(around(problem.family, moved, _NARROWEST if width is None else width))
    return points


def run_starts(
    problem: VariationalProblem,
    method: Method,
    points: list[Params],
    resources: Resources,
    budget: Budget,
) -> list[loop.LoopResult]:
    """Run all starts together; each has an outcome, a trace and parameters of its own."""
    began = time.perf_counter()
    params = jax.tree.map(lambda *leaves: jnp.stack(leaves), *points)
    carry = _begin(problem, method, params, resources)
    tolerance = jnp.asarray(budget.tolerance, problem.density.dtype)
    step, length = 0, _FIRST_CHUNK
    tables: list[list[dict[str, np.ndarray]]] = [[] for _ in points]
    seconds = 0.0
    while True:
        before = np.asarray(carry.step)
        step = min(step + length, budget.max_steps)
        carry = _chunk(problem, method, carry, resources, jnp.asarray(step, jnp.int32), tolerance)
        codes = np.asarray(carry.outcome)
        now = time.perf_counter() - began
        for index, rows in enumerate(tables):
            rows.append(_rows(carry, index, int(before[index]), seconds, now))
        seconds, length = now, min(2 * length, loop.CAPACITY)
        late = budget.left() == 0.0
        if (codes != Outcome.RUNNING.value).all() or step >= budget.max_steps or late:
            break
    return [_ended(method, carry, index, rows, seconds) for index, rows in enumerate(tables)]


def _rows(
    carry: loop.Carry, index: int, first: int, before: float, after: float
) -> dict[str, np.ndarray]:
    count = int(carry.step[index]) - first
    table = {
        name: np.asarray(column[index])[:count] for name, column in carry.trace._asdict().items()
    }
    table["step"] = np.arange(first, first + count)
    table["seconds"] = before + (after - before) * np.arange(1, count + 1) / max(count, 1)
    return table


def _ended(
    method: Method,
    carry: loop.Carry,
    index: int,
    rows: list[dict[str, np.ndarray]],
    seconds: float,
) -> loop.LoopResult:
    state = jax.tree.map(lambda leaf: leaf[index], carry.state)
    outcome = Outcome(int(carry.outcome[index]))
    trace = {
        name: np.concatenate([table[name] for table in rows])
        for name in ("step", "seconds", *Info._fields)
    }
    return loop.LoopResult(
        params=method.answer(state),
        outcome=Outcome.BUDGET if outcome is Outcome.RUNNING else outcome,
        steps=int(carry.step[index]),
        trace=trace,
        seconds=seconds,
    )


def best_start(
    target: Target | DataTarget, family: Any, ended: list[loop.LoopResult], key: PRNGKeyArray
) -> tuple[int, np.ndarray]:
    """Index of the start with the best bound on fresh draws, and all bounds (NaN if failed)."""
    bounds = np.full(len(ended), np.nan)
    for index, run in enumerate(ended):
        if not run.outcome.is_failure:
            elbo, _ = evaluate_elbo(target, family, run.params, key)
            bounds[index] = elbo if np.isfinite(elbo) else np.nan
    if np.isnan(bounds).all():
        return 0, bounds
    return int(np.nanargmax(bounds)), bounds
