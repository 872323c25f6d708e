"""The one loop around steps: budgets, Ctrl-C, hooks and the trace, whoever takes the steps."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np

from curvi._core.callbacks import own_exceptions
from curvi._core.errors import Interrupted, Outcome, keep_result
from curvi._core.processes import agreed, beat
from curvi._core.run import Clock, OutOfTime, Phase, current_run
from curvi.engine._drivers import Chunk, Driver, make_driver
from curvi.engine._execution import Execution
from curvi.engine._recording import NOT_RECORDED, Position, Recording
from curvi.solvers import Info, Method, Problem

_CHUNK_SECONDS = 0.2
_OPEN = (Outcome.RUNNING, Outcome.BUDGET)  # what the verdict of a hook may replace


class Progress(NamedTuple):
    """What hooks are shown after every chunk of steps.

    Attributes
    ----------
    step, max_steps : int
        Steps taken by the run that has taken most, and the largest number allowed.
    seconds : float
        Time since the first step, without compilation and without hooks.
    chunks : list of dicts of arrays
        For each run, the rows of the trace that the last chunk added.
    params : callable
        ``params(run)``, the parameters of a run by its number.
    ended : bool
        Whether every run has ended.
    """

    step: int
    max_steps: int
    seconds: float
    chunks: list[dict[str, np.ndarray]]
    params: Callable[[int], Any]
    ended: bool


@runtime_checkable
class Hook(Protocol):
    """Called between chunks: a progress bar, a user's callback, early stopping, a checkpoint."""

    def next_call(self, step: int) -> int | None:
        """The step after ``step`` at which it must be called; None takes chunks as they come."""

    def __call__(self, progress: Progress) -> Outcome | None:
        """Inspect the runs; returning an outcome ends them. Its time does not count."""


class RunResult(NamedTuple):
    """How a run ended.

    Attributes
    ----------
    params : pytree
        The parameters, averaged where the method says so.
    outcome : Outcome
        Why the run ended.
    steps : int
        Steps taken.
    trace : dict of arrays
        One entry per step: step, seconds, and the fields of :class:`~curvi.solvers.Info`.
    seconds, compile_seconds : float
        Wall-clock time of everything, and the part of it before the first step.
    """

    params: Any
    outcome: Outcome
    steps: int
    trace: dict[str, np.ndarray]
    seconds: float
    compile_seconds: float

    def whole(self) -> RunResult:
        """Itself, as a part of something larger.

        Raises
        ------
        Interrupted
            Where Ctrl-C has cut it short.
        """
        if self.outcome is Outcome.INTERRUPTED:
            raise Interrupted(self.outcome.sentence, self)
        return self


@dataclass(frozen=True)
class Budget:
    """When runs stop: a tolerance, and what all of them may spend together.

    Parameters
    ----------
    tolerance : float
        Remaining gain at which a method with a stopping rule has converged.
    max_steps : int
        Largest number of steps of a run.
    hooks : tuple of Hook
        Called between chunks of steps.
    clock : Clock
        The time that they have: that of the call that is under way by default.
    """

    tolerance: float
    max_steps: int
    hooks: tuple[Hook, ...] = ()
    clock: Clock = field(default_factory=lambda: current_run().clock or Clock())

    def left(self) -> float:
        """Seconds that are left; infinite without a budget of time."""
        return self.clock.left()


def run(
    problem: Problem,
    method: Method,
    params: Any,
    resources: Any,
    budget: Budget,
    *,
    execution: Execution | None = None,
    spent: int = 0,
) -> RunResult:
    """Run a method until it converges, gives up, or its budget is spent.

    Parameters
    ----------
    problem : Problem
        What is minimised.
    method : Method
        What takes the steps.
    params : pytree
        Where to start.
    resources : Resources
        The arrays that the problem reads.
    budget : Budget
        When to stop, and what to call between chunks.
    execution : Execution, optional
        Where steps are taken; decided by the size of the problem by default.
    spent : int
        Steps of the budget that earlier runs have used.

    Returns
    -------
    RunResult
        The last parameters, why the run ended, and its trace.
    """
    policy = Execution() if execution is None else execution
    return run_starts(problem, method, [params], resources, budget, execution=policy, spent=spent)[
        0
    ]


def run_starts(
    problem: Problem,
    method: Method,
    starts: list[Any],
    resources: Any,
    budget: Budget,
    *,
    execution: Execution,
    spent: int = 0,
) -> list[RunResult]:
    """Run from several starts together; one that fails does not disturb the others.

    Parameters
    ----------
    problem, method
        As for :func:`run`.
    starts : list of pytrees
        Where to start, one entry per run.
    resources, budget, execution, spent
        As for :func:`run`; all runs share them.

    Returns
    -------
    list of RunResult
        One result per start, in their order.
    """
    recording = Recording(lambda s: s.identities.of_run(problem, method, starts, resources))
    if (ended := recording.ended(starts, budget.max_steps - spent, budget.hooks)) is not None:
        return [RunResult(*result) for result in ended]
    if budget.left() <= 0:  # not even to compile
        return [_unmoved(params, Outcome.BUDGET) for params in starts]
    entered = time.perf_counter()
    with Phase("compiling") as compiling:
        driver = make_driver(problem, method, starts, resources, execution)
    if compiling.left:
        return [_unmoved(params, compiling.outcome) for params in starts]
    budget.clock.compiled(time.perf_counter() - entered)
    return run_driver(driver, len(starts), budget, spent=spent, recording=recording)


def run_driver(
    driver: Driver,
    num_runs: int,
    budget: Budget,
    *,
    spent: int = 0,
    recording: Recording = NOT_RECORDED,
) -> list[RunResult]:
    """Ask a driver for steps until every run has an outcome or the budget is spent.

    Ctrl-C ends the runs with what the last chunk left, and the outcome INTERRUPTED. So does an
    exception out of a hook or the user's code, which goes on to the caller with the first run as
    its ``curvi_result``. A chunk that is under way when the time is up is not waited for.

    Parameters
    ----------
    driver : Driver
        What takes the steps of all runs, a chunk at a time.
    num_runs : int
        Number of runs that the driver advances.
    budget : Budget
        When to stop, and what to call between chunks.
    spent : int
        Steps of the budget that earlier runs have used.
    recording : Recording, optional
        The entry of these runs in the checkpoint of the call, from which they resume.

    Returns
    -------
    list of RunResult
        One result per run.
    """
    entered = clock = time.perf_counter()
    max_steps = budget.max_steps - spent
    outcomes = [Outcome.RUNNING if max_steps > 0 else Outcome.BUDGET] * num_runs
    tables: list[list[dict[str, np.ndarray]]] = [[] for _ in range(num_runs)]
    length, step, seconds, compiling = 1, 0, 0.0, 0.0  # one step may take minutes

    def results() -> list[RunResult]:
        elapsed = time.perf_counter() - entered
        return [
            _ended(driver, run, outcome, tables[run], (elapsed, compiling))
            for run, outcome in enumerate(outcomes)
        ]

    with Phase("fitting") as phase:
        try:
            driver.prepare(budget.tolerance)
            clock = time.perf_counter()
            compiling = clock - entered
            budget.clock.compiled(compiling)
            at = Position(outcomes, tables, step, seconds)
            outcomes, tables, step, seconds = recording.restored(driver, budget.hooks, at)
            clock -= seconds
            while Outcome.RUNNING in outcomes:
                wishes = [hook.next_call(step) for hook in budget.hooks]
                due_at = [max(wish, step + 1) for wish in wishes if wish is not None]
                last = int(agreed(min([step + length, max_steps, *due_at])))
                chunks = _advance(driver, last - step, budget, outcomes, is_first=step == 0)
                now = time.perf_counter() - clock
                _record(tables, chunks, step, seconds, now)
                length = _next_length(length, now - seconds, driver.most_steps)
                seconds, step = now, step + max(len(c.rows["value"]) for c in chunks)
                outcomes = [chunk.outcome for chunk in chunks]
                if step >= max_steps or budget.left() <= 0:
                    outcomes = [Outcome.BUDGET if o is Outcome.RUNNING else o for o in outcomes]
                ended = Outcome.RUNNING not in outcomes
                rows = [table[-1] for table in tables]
                progress = Progress(step, max_steps, now, rows, driver.params, ended)
                due = [w is None or step >= w or ended for w in wishes]
                for verdict in [h(progress) for h, d in zip(budget.hooks, due, strict=True) if d]:
                    if verdict is not None:
                        outcomes = [verdict if o in _OPEN else o for o in outcomes]
                at = Position(outcomes, tables, step, seconds)
                outcomes = recording.after_chunk(driver, budget.hooks, at)
                clock += time.perf_counter() - clock - now
        except Exception as error:
            if step:
                outcomes = [Outcome.INTERRUPTED] * num_runs
                keep_result(error, results()[0])
            raise
    if phase.left:
        # Even where every run has just ended: the caller must not go on to the next task.
        cut = [o is Outcome.RUNNING for o in outcomes]
        pairs = zip(outcomes, cut, strict=True)
        outcomes = [phase.outcome if c or not any(cut) else o for o, c in pairs]
    at = Position(outcomes, tables, step, seconds)
    return recording.finished(driver, budget.hooks, at, results())


def _advance(
    driver: Driver, count: int, budget: Budget, outcomes: list[Outcome], *, is_first: bool,
    first_step_seconds: float = 0.5,
) -> list[Chunk]:  # fmt: skip
    """Ask for steps; a chunk that the clock overtakes has none.

    ``first_step_seconds``: granted even where compilation has used up the budget.
    """
    beat()
    limit = max(budget.left(), first_step_seconds if is_first else 0.0)
    if jax.process_count() > 1:
        limit = float("inf")  # a chunk that one process leaves is waited for by the others
    try:
        with own_exceptions():
            return driver.advance(count, budget.tolerance, limit)
    except OutOfTime:
        return [Chunk({name: np.zeros(0) for name in Info._fields}, o) for o in outcomes]


def _record(
    tables: list[list[dict[str, np.ndarray]]],
    chunks: list[Chunk],
    first: int,
    before: float,
    after: float,
) -> None:
    """Append the rows of every run; seconds are spread evenly over the steps of a chunk."""
    for table, chunk in zip(tables, chunks, strict=True):
        count = len(chunk.rows["value"])
        seconds = before + (after - before) * np.arange(1, count + 1) / max(count, 1)
        table.append({"step": np.arange(first, first + count), "seconds": seconds, **chunk.rows})


def _ended(
    driver: Driver,
    run: int,
    outcome: Outcome,
    table: list[dict[str, np.ndarray]],
    seconds: tuple[float, float],
) -> RunResult:
    trace = _trace(table)
    return RunResult(driver.params(run), outcome, len(trace["step"]), trace, *seconds)


def _unmoved(params: Any, outcome: Outcome) -> RunResult:
    """A run that ended before its first step."""
    return RunResult(params, outcome, 0, _trace([]), 0.0, 0.0)


def _trace(table: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    table = [rows for rows in table if len(rows["step"])]
    return {
        name: np.concatenate([rows[name] for rows in table]) if table else np.zeros(0)
        for name in ("step", "seconds", *Info._fields)
    }


def _next_length(length: int, elapsed: float, most: int) -> int:
    """Aim at chunks of about a fifth of a second, and at most double."""
    if elapsed <= 0:
        return min(2 * length, most)
    return int(min(max(1, length * _CHUNK_SECONDS / elapsed), 2 * length, most))
