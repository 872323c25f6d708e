"""The one loop: chunks of steps on device, one look at the host in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from curvi._core.compilation import QUICK, SizedJit
from curvi._core.errors import Outcome
from curvi.solvers import Info, Method, Problem

CAPACITY = 500  # steps of one chunk at most, and rows of its trace on device
PATIENCE = 40  # rejected steps in a row after which a run gives up
_CHUNK_SECONDS = 0.2


class Carry(NamedTuple):
    """What the loop carries on device."""

    state: Any
    step: Array
    refused: Array
    broken: Array
    outcome: Array
    trace: Info


class Progress(NamedTuple):
    """What an observer is shown after every chunk."""

    step: int
    max_steps: int
    value: float
    seconds: float


class LoopResult(NamedTuple):
    """How a run ended."""

    params: Any
    outcome: Outcome
    steps: int
    trace: dict[str, np.ndarray]
    seconds: float


@partial(jax.jit, static_argnames=("problem", "method"))
def start(problem: Problem, method: Method, params: Any, resources: Any) -> Carry:
    """Initial carry of a run."""
    dtype = jax.tree.leaves(params)[0].dtype
    real, flag, count = (jnp.zeros(CAPACITY, kind) for kind in (dtype, jnp.bool_, jnp.int32))
    zero = jnp.asarray(0, jnp.int32)
    trace = Info(real, real, real, count, flag, flag, flag, count)
    return Carry(method.init(problem, params, resources), zero, zero, zero, zero, trace)


def _steps(
    problem: Problem, method: Method, carry: Carry, resources: Any, stop: Array, tolerance: Array
) -> Carry:
    """Take steps until the step count reaches ``stop`` or the run has an outcome."""
    first = carry.step

    def body(carry: Carry) -> Carry:
        state, info = method.step(problem, carry.state, resources, carry.step, tolerance)
        refused = jnp.where(info.accepted, 0, carry.refused + 1)
        broken = jnp.where(info.accepted, 0, carry.broken + (~info.finite).astype(jnp.int32))
        gave_up = jnp.where(2 * broken >= refused, Outcome.NON_FINITE.value, Outcome.STALLED.value)
        outcome = jnp.where(refused >= PATIENCE, gave_up, info.outcome).astype(jnp.int32)
        slot = carry.step - first
        trace = jax.tree.map(lambda table, row: table.at[slot].set(row), carry.trace, info)
        return Carry(state, carry.step + 1, refused, broken, outcome, trace)

    return jax.lax.while_loop(
        lambda c: (c.outcome == Outcome.RUNNING.value) & (c.step < stop), body, carry
    )


run_chunk = jax.jit(_steps, static_argnames=("problem", "method"))  # inside other compiled code
_sized_chunk = SizedJit(_steps, static_argnames=("problem", "method"))


def advance(
    problem: Problem, method: Method, carry: Carry, resources: Any, stop: int, tolerance: float
) -> Carry:
    """:func:`run_chunk` from the host, compiled with the effort that the problem deserves."""
    params = method.answer(carry.state)
    cost = problem.cost(params, resources)
    # Never without any optimisation: a run may be long.
    work = float("inf") if cost is None else max(cost.numbers, 2 * QUICK)
    limit = jnp.asarray(tolerance, jax.tree.leaves(params)[0].dtype)
    last = jnp.asarray(stop, jnp.int32)
    found: Carry = _sized_chunk(work, problem, method, carry, resources, last, limit)
    return found


def run(
    problem: Problem,
    method: Method,
    params: Any,
    resources: Any,
    *,
    tolerance: float,
    max_steps: int,
    time_budget: float | None = None,
    observer: Callable[[Progress], None] | None = None,
    monitor: Callable[[int, float, Any], bool] | None = None,
    monitor_every: int = 1,
) -> LoopResult:
    """Run a method until it converges, gives up, or its budget is spent.

    ``monitor(step, seconds, params)`` is asked whenever ``monitor_every`` steps are done, and at
    the end of the budget; True ends the run as converged. Its own time does not count.

    Ctrl-C ends the run after the current chunk's results are in; what there is, is returned.
    """
    began = time.perf_counter()
    carry = start(problem, method, params, resources)
    recorded: list[dict[str, np.ndarray]] = []
    length, outcome, step = 4, Outcome.RUNNING, 0
    try:
        # A chunk of no steps compiles; the clock of the trace starts after it.
        jax.block_until_ready(advance(problem, method, carry, resources, 0, tolerance))
        compiled = time.perf_counter()
        seconds = 0.0
        while outcome is Outcome.RUNNING:
            stop = min(step + length, max_steps)
            if monitor is not None:
                stop = min(stop, (step // monitor_every + 1) * monitor_every)
            carry = advance(problem, method, carry, resources, stop, tolerance)
            done, code = int(carry.step), int(carry.outcome)
            now = time.perf_counter() - compiled
            recorded.append(_table(carry.trace, step, done, seconds, now))
            length = _next_length(length, now - seconds)
            step, outcome, seconds = done, Outcome(code), now
            if outcome is Outcome.RUNNING and step >= max_steps:
                outcome = Outcome.BUDGET
            if outcome is Outcome.RUNNING and _spent(began, time_budget):
                outcome = Outcome.BUDGET
            if observer is not None:
                observer(Progress(step, max_steps, float(recorded[-1]["value"][-1]), now))
            if monitor is not None and (step % monitor_every == 0 or outcome is Outcome.BUDGET):
                paused = time.perf_counter()
                if monitor(step, now, method.answer(carry.state)):
                    outcome = Outcome.CONVERGED
                compiled += time.perf_counter() - paused
    except KeyboardInterrupt:
        outcome = Outcome.INTERRUPTED
    trace = {
        name: np.concatenate([table[name] for table in recorded]) if recorded else np.zeros(0)
        for name in ("step", "seconds", *Info._fields)
    }
    return LoopResult(method.answer(carry.state), outcome, step, trace, time.perf_counter() - began)


def _spent(began: float, budget: float | None) -> bool:
    return budget is not None and time.perf_counter() - began >= budget


def _next_length(length: int, elapsed: float) -> int:
    """Aim at chunks of about a fifth of a second, and at most double."""
    if elapsed <= 0:
        return min(2 * length, CAPACITY)
    return int(min(max(1, length * _CHUNK_SECONDS / elapsed), 2 * length, CAPACITY))


def _table(
    trace: Info, first: int, last: int, before: float, after: float
) -> dict[str, np.ndarray]:
    """The rows of one chunk; seconds are spread evenly over its steps."""
    count = last - first
    table = {name: np.asarray(column)[:count] for name, column in trace._asdict().items()}
    table["step"] = np.arange(first, last)
    table["seconds"] = before + (after - before) * np.arange(1, count + 1) / max(count, 1)
    return table
