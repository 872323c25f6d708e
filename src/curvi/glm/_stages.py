"""The stages of a fit on the host: cheap bounds first, relevant coefficients, then the bound."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from curvi._core.errors import Outcome
from curvi.engine import Budget, Hook, RunResult
from curvi.glm._dense import PASSES
from curvi.glm._diagonal_bound import DiagonalBound
from curvi.glm._newton import run_newton
from curvi.glm._relevance import relevant_start
from curvi.inference import default_tolerance
from curvi.solvers import Method


@dataclass(frozen=True)
class Stages:
    """Where a fit changes from a rough bound to the whole one."""

    host_steps: int = 1000  # at most
    threaded_work: float = 1e10  # multiplications of one step from which several threads pay
    # nats that the normal optimum may leave, from where coefficients are chosen
    gain_before_search: float = 0.05
    rough_steps: int = 50  # at most, on a bound that only leads to a start


STAGES = Stages()

Hooks = tuple[Hook, ...]


@dataclass(frozen=True)
class Options:
    """How a bound is maximised.

    With ``method=None`` it is the exact bound, by Newton steps in a trust region; any other
    method sees fresh draws, as in the paper, and its result is judged by the exact bound. Of a
    long dense table the first Newton steps see ``coarse_rows`` rows or a few more.

    At most ``num_starts`` starts are made: fewer where more than ``most_work`` multiplications
    would be needed for all, counted by rows, columns and steps and not by a clock, or where the
    first ``enough`` end in the same optimum.
    """

    method: Method | None = None
    num_starts: int = 1
    most_work: float = math.inf
    enough: int | None = None
    num_draws: int = 10
    batch_size: int | None = None
    tolerance: float | None = None
    max_steps: int | None = None
    seed: int = 0
    progress: bool = False
    coarse_rows: int = PASSES.coarse_rows

    def accuracy(self, dtype: Any) -> float:
        """The gain in nats that may be left."""
        return default_tolerance(dtype) if self.tolerance is None else self.tolerance


def by_relevance(
    bound: DiagonalBound,
    mean: np.ndarray,
    sd: np.ndarray,
    dtype: Any,
    options: Options,
    hooks: Hooks,
    *,
    policy: Stages = STAGES,
) -> RunResult:
    """The optimum with a normal prior, the search for relevant coefficients, Newton steps.

    The trace holds the last of these alone, and the time of all.
    """
    began, most = time.perf_counter(), options.max_steps
    normal = replace(bound, relevance=False)
    tolerance = max(policy.gain_before_search, options.accuracy(dtype))
    loose = replace(options, tolerance=tolerance, max_steps=None if most is None else most - 1)
    stages = (*normal.coarser(), normal)
    first = by_stages(stages, normal.join(mean, sd), dtype, loose, hooks, policy=policy)
    _, *moments = normal.split(first.params)
    if first.outcome is Outcome.INTERRUPTED:
        return first._replace(params=bound.join(*moments))
    if np.isfinite(bound.value(bound.join(*moments))):
        mean, sd = moments
    start = relevant_start(bound, mean, sd, options.seed)
    before = time.perf_counter() - began
    rest = replace(options, max_steps=None if most is None else most - first.steps)
    run = by_stages((*bound.finer(), bound), start, dtype, rest, hooks, policy=policy)
    trace = {**run.trace, "seconds": run.trace["seconds"] + before}
    steps, seconds = run.steps + first.steps, run.seconds + before
    return run._replace(trace=trace, steps=steps, seconds=seconds)


def by_stages(
    stages: Sequence[DiagonalBound],
    start: np.ndarray,
    dtype: Any,
    options: Options,
    hooks: Hooks,
    *,
    policy: Stages = STAGES,
) -> RunResult:
    """Newton steps on cheaper bounds first, for a good start at a fraction of the price.

    The trace holds the steps on all rows, and the time of all steps; ``steps`` counts them all.
    """
    bound = stages[-1]
    steps = policy.host_steps if options.max_steps is None else options.max_steps
    accuracy = options.accuracy(dtype)
    spent, used, traces = 0.0, 0, []
    for stage in stages:
        if stage is not bound and used + 1 >= steps:
            continue  # the last step is for the bound itself
        left = steps - used - (stage is not bound)
        most = min(left, policy.rough_steps) if stage.rough else left
        budget = Budget(max(accuracy, stage.rough), most, hooks=hooks)
        run = run_newton(stage, start, budget, dtype)
        used += run.steps
        if stage is bound or np.isfinite(bound.value(run.params)):
            start = run.params
        seen = slice(None if stage.has_all_rows else 0)
        timed = {**run.trace, "seconds": run.trace["seconds"] + spent}
        traces.append({name: column[seen] for name, column in timed.items()})
        spent += run.seconds
        done = run.outcome is Outcome.CONVERGED and not stage.rough
        if done or run.outcome is Outcome.INTERRUPTED:
            break
    trace = {name: np.concatenate([part[name] for part in traces]) for name in traces[0]}
    trace["step"] = np.arange(trace["step"].size)
    return run._replace(params=start, trace=trace, steps=used, seconds=spent)
