"""Training: epochs of shuffled rows through the engine's loop, early stopping on held-out rows."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core.compilation import SizedJit, compiled
from curvi._core.errors import InputError, Interrupted, Outcome
from curvi._core.run import Clock
from curvi._core.threads import one_blas_thread
from curvi.engine import Budget, Resources, StepInfo, belongs, hooks_for, run, traced_objective
from curvi.objective import Stream
from curvi.solvers import Method
from curvi.vae._epochs import EpochProblem, ShuffledRows, shuffling_multipliers, stored_rows
from curvi.vae._mapped import in_memory
from curvi.vae._networks import MLPObjective, principal_rotation
from curvi.vae._objective import VAEObjective
from curvi.vae._stopping import EVALUATIONS, EarlyStopping, Evaluator
from curvi.vae._storage import (
    columns_of,
    device_count,
    encoder_input,
    read_rows,
    rotated_rows,
    stored,
)
from curvi.vae._use import evaluation_work
from curvi.vae._variance import best_num_draws


@dataclass(frozen=True)
class Schedule:
    """How long to train, and when to stop.

    Attributes
    ----------
    batch_size : int
        Rows per step.
    max_epochs : int
        Passes over the rows, at most.
    time_budget : float, optional
        Seconds of training; compilation does not count, and neither do evaluations.
    patience : int
        Evaluations of the validation ELBO without a new best before training stops.
    seed : int
        Of shuffling and noise.
    progress : bool
        Draw a bar on a terminal.
    seconds_between : float, optional
        Processor seconds between evaluations; the budget then is one of processor seconds too, and
        evaluations do not count. By default they go by steps.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step.
    """

    batch_size: int = 100
    max_epochs: int = 50
    time_budget: float | None = None
    patience: int = 10
    seed: int = 0
    progress: bool = False
    seconds_between: float | None = None
    on_step: Callable[[StepInfo], Any] | None = None

    @property
    def clock(self) -> tuple[float, float] | None:
        """Processor seconds between evaluations, and of the whole run; None where steps count."""
        if self.seconds_between is None:
            return None
        return self.seconds_between, math.inf if self.time_budget is None else self.time_budget

    @property
    def seconds_of_run(self) -> float | None:
        """What the loop has to keep to, unless the clock of the evaluations ends it."""
        return self.time_budget if self.clock is None else None


@dataclass(frozen=True)
class Trained:
    """A trained model: everything needed to use it, and how the training went.

    Attributes
    ----------
    objective : VAEObjective or callable
        What was minimised; with the parameters it is the model.
    params : pytree of NumPy arrays
        The best parameters by the validation ELBO, or the last ones without validation rows.
    seed : int
        Seed of the schedule.
    outcome : Outcome
        How the training ended.
    history : dict of arrays
        One entry per evaluation: step, epoch, seconds, elbo, validation_elbo. The first is that of
        the first weights, a few more follow in the first epoch. Both ELBOs are per row and without
        the penalty, ``elbo`` on the same 5,000 training rows at most.
    steps : int
        Steps taken.
    seconds, compile_seconds : float
        Time spent in all, and the part of it before the first step, which was compilation.
    trace : dict of arrays
        One entry per step.
    out_of_time : bool
        Whether the time budget ended it before its last epoch.
    patience : int
        Evaluations without a new best that ended it, where it converged.
    """

    objective: Any
    params: PyTree
    seed: int
    outcome: Outcome
    history: dict[str, np.ndarray]
    steps: int
    seconds: float
    trace: dict[str, np.ndarray]
    out_of_time: bool = False
    compile_seconds: float = 0.0
    patience: int = 0

    @property
    def elbo(self) -> float:
        """Best validation ELBO per row after a step, or the last training ELBO without one."""
        held_out, trained = self.history["validation_elbo"], self.history["elbo"]
        known = held_out[np.isfinite(held_out) & (self.history["step"] > 0 if self.steps else True)]
        last = trained[-1] if len(trained) else np.nan
        return float(known.max() if len(known) else last)

    @property
    def sentence(self) -> str:
        """How the training ended, in terms of the options of :class:`Schedule`."""
        if self.out_of_time:
            epoch = self.history["epoch"][-1] if len(self.history["epoch"]) else 0.0
            plural = "" if self.steps == 1 else "s"
            return (
                f"time_budget ran out after {self.steps} step{plural}, in epoch {epoch:.3g}; raise "
                f"it. Compilation took {self.compile_seconds:.1f} s besides."
            )
        if self.outcome is Outcome.BUDGET:
            return "Trained for max_epochs; raise it if the ELBO of history_ is still rising."
        if self.outcome is Outcome.CONVERGED:
            epoch, held_out = self.history["epoch"], self.history["validation_elbo"]
            best = int(np.nanargmax(np.where(self.history["step"] > 0, held_out, -np.inf)))
            return (
                f"Converged: stopped at epoch {epoch[-1]:.4g} because the validation ELBO had not "
                f"risen for {self.patience} evaluations; the weights of epoch {epoch[best]:.4g}, "
                f"where it was {held_out[best]:.5g}, are kept."
            )
        if self.outcome is Outcome.INTERRUPTED:
            return f"interrupted after {self.steps} steps; what was trained until then is kept"
        return self.outcome.sentence

    def judged(self, reference: float, slack: float) -> Trained:
        """The same with the outcome DIVERGED where it is worse than a reference by the slack.

        An ELBO that is not finite is NON_FINITE, and so are steps none of which was. What ended
        early or failed keeps its outcome.
        """
        if self.outcome not in (Outcome.CONVERGED, Outcome.BUDGET) or not self.steps:
            return self
        if not math.isfinite(self.elbo) or not np.any(self.trace["finite"]):
            return replace(self, outcome=Outcome.NON_FINITE)
        worse = self.elbo < reference - slack
        return replace(self, outcome=Outcome.DIVERGED) if worse else self


def num_held_out(
    fraction: float | str, rows: int, *, least: int = 10, validation_fraction: float = 0.1
) -> int:
    """How many rows are held out; at least two are left to train on.

    ``validation_fraction``: of the rows, where that is left to us; no less than ``least`` rows,
    since an ELBO over a handful would stop at random.
    """
    if isinstance(fraction, str):
        held = round(validation_fraction * rows)
        return held if held >= least else 0
    held = math.ceil(fraction * rows - 1e-9)
    if rows - held < 2:
        raise InputError(
            f"validation_fraction is {fraction}, which leaves {rows - held} of {rows} rows to "
            "train on; at least 2 are needed"
        )
    return held


def default_epochs(rows: int, batch_size: int, *, epochs: int = 50, least_steps: int = 1000) -> int:
    """Fifty, or as many as a thousand steps take on a small table.

    ``epochs``, ``least_steps``: the larger of the two.
    """
    return max(epochs, -(-least_steps // -(-rows // batch_size)))


def train(
    objective: Any,
    params: PyTree,
    X: Any,
    *,
    method: Method,
    schedule: Schedule,
    validation: Any = None,
) -> Trained:
    """Minimise an objective over epochs of rows.

    The built-in networks under :class:`~curvi.solvers.KFAC` and Kronecker
    :class:`~curvi.solvers.HessianFree` are trained in principal coordinates of the images and
    mapped back afterwards; the encoder reads only ``method.directions`` of them.

    Parameters
    ----------
    objective : callable
        ``objective(params, batch, key)``, such as a :class:`VAEObjective`.
    params : pytree of arrays
        Where to start.
    X : array or pytree of arrays that share their leading axis
        Training rows.
    method : Method
        What takes the steps.
    schedule : Schedule
        How long to train, and when to stop.
    validation : like ``X``, optional
        Held-out rows for early stopping.

    Returns
    -------
    Trained
    """
    clock = time.process_time if schedule.seconds_between else time.perf_counter
    began = clock()
    used = objective
    if method.path_derivative and isinstance(objective, VAEObjective):
        used = replace(objective, path_derivative=True)
    principal = method.principal if isinstance(objective, MLPObjective) else None
    if principal is None or objective.white:
        return replace(_trained(used, params, X, validation, method, schedule), objective=objective)
    with one_blas_thread():
        rotation = principal_rotation(
            encoder_input(in_memory(X)), directions=principal[0], damping=principal[1]
        )
    white, rows = replace(used, white=True), rotated_rows(rotation, X)
    validation = None if validation is None else rotated_rows(rotation, validation)
    spent = clock() - began  # part of the training time, and of its budget
    schedule = replace(schedule, time_budget=_remaining(schedule.time_budget, spent))
    found = _trained(white, rotation.rotated(params), rows, validation, method, schedule)
    return replace(
        found,
        objective=objective,
        params=jax.tree.map(np.asarray, rotation.restored(found.params)),
        history={**found.history, "seconds": found.history["seconds"] + spent},
        seconds=found.seconds + spent,
    )


def with_measured_draws(
    objective: MLPObjective, params: PyTree, X: Any, method: Method, schedule: Schedule
) -> tuple[MLPObjective, PyTree, Schedule]:
    """One epoch with one draw, then M from the noise at its end.

    Returns the objective with that M, the parameters after the epoch, and what is left of the
    schedule.
    """
    began = time.perf_counter()
    pilot = train(objective, params, X, method=method, schedule=replace(schedule, max_epochs=1))
    if pilot.outcome is Outcome.INTERRUPTED:
        raise Interrupted("interrupted in the pilot epoch", pilot)
    draws = best_num_draws(
        objective, pilot.params, in_memory(X), batch_size=schedule.batch_size, seed=schedule.seed
    )
    rest = replace(
        schedule,
        max_epochs=max(1, schedule.max_epochs - 1),
        time_budget=_remaining(schedule.time_budget, time.perf_counter() - began),
        seed=(schedule.seed + 1) % (2**31 - 1),  # the pilot's noise must not be repeated
    )
    return replace(objective, num_draws=draws), pilot.params, rest


def _remaining(budget: float | None, spent: float) -> float | None:
    return None if budget is None else max(budget - spent, 0.0)


def _trained(
    objective: Any, params: PyTree, X: Any, validation: Any, method: Method, schedule: Schedule
) -> Trained:
    """Run the engine's loop in the coordinates given."""
    generator = np.random.default_rng(schedule.seed)
    num_rows = jax.tree.leaves(X)[0].shape[0]
    order = generator.permutation(num_rows)
    rows = stored(X, order)
    multipliers = jax.device_put(shuffling_multipliers(num_rows, generator))
    key = jax.random.key(schedule.seed)
    batch_size = schedule.batch_size
    per_epoch = -(-num_rows // batch_size)
    some = order[: min(num_rows, EVALUATIONS.most_training_rows)]
    elbo = _evaluator(objective, read_rows(X, some), key)
    held_out = None
    if validation is not None:
        evaluated = read_rows(validation, slice(EVALUATIONS.most_rows))
        belongs("held-out rows", evaluated)  # they decide when it ends, and what is kept
        held_out = _evaluator(objective, evaluated, key)
    least = EVALUATIONS.rows_between // method.usual_batch_size
    every = per_epoch * max(1, -(-least // per_epoch))
    early = tuple(
        per_epoch // part
        for part in EVALUATIONS.first_epoch
        if per_epoch // part >= EVALUATIONS.least_early
    )
    stopping = EarlyStopping(elbo, held_out, schedule.patience, every, schedule.clock, early)
    stopping.evaluate(0, 0.0, params)
    max_steps = schedule.max_epochs * per_epoch
    with hooks_for(schedule.progress, "ELBO", schedule.on_step, sign=-1.0) as hooks:
        budget = Budget(1e-30, max_steps, (*hooks, stopping), Clock(schedule.seconds_of_run))
        resources = Resources(key, ShuffledRows(rows, multipliers, device_count(num_rows)), None)
        fn, reads = traced_objective(objective, params, rows, [batch_size], key)
        problem = EpochProblem(fn, batch_size, reads=reads)
        ended = run(problem, method, params, resources, budget)
    best = ended.params if stopping.best is None else stopping.best
    trained = Trained(
        objective,
        jax.tree.map(np.asarray, best),
        schedule.seed,
        ended.outcome,
        stopping.history(per_epoch, ended.trace["batches"]),
        ended.steps,
        ended.seconds,
        ended.trace,
        ended.outcome is Outcome.BUDGET and ended.steps < max_steps,
        ended.compile_seconds,
        schedule.patience,
    )
    # The draws of both ELBOs are the same: what lies between them is due to the weights.
    first = stopping.table[0][-2 if held_out is None else -1]
    return trained.judged(first, 1 + EVALUATIONS.slightly_worse * abs(first))


def _evaluator(objective: Any, data: Any, key: PRNGKeyArray) -> Evaluator:
    """The ELBO per row of data.

    The draws of the code are always the same: differences are due to the parameters.
    """
    count = jax.tree.leaves(data)[0].shape[0]
    if not hasattr(objective, "row_losses"):
        some = jax.tree.map(jax.device_put, data)
        return lambda p: float(_elbo(objective, p, some, key))
    index = np.minimum(np.arange(stored_rows(count, columns_of(data))), count - 1)
    rows, number = jax.tree.map(lambda leaf: jax.device_put(leaf[index]), data), device_count(count)

    def evaluated(params: PyTree) -> float:
        work = evaluation_work(params, len(index))
        return float(_mean_elbo(work, objective, params, rows, number, key))

    return evaluated


@partial(compiled, static_argnums=0)
def _elbo(objective: Any, params: PyTree, batch: Any, key: PRNGKeyArray) -> Array:
    """The ELBO per row, without the penalty."""
    penalty = objective.penalty(params) if hasattr(objective, "penalty") else 0.0
    return penalty - objective(params, batch, jax.random.fold_in(key, Stream.VALIDATION))


@partial(SizedJit, static_argnames=("objective",))
def _mean_elbo(
    objective: Any, params: PyTree, rows: Any, count: Array, key: PRNGKeyArray, *,
    most_rows: int = 256,
) -> Array:  # fmt: skip
    """The same over the first ``count`` rows, in as many blocks as hold them.

    ``most_rows``: rows that are evaluated at once.
    """
    stored = jax.tree.leaves(rows)[0].shape[0]
    size = math.gcd(stored, most_rows)
    key = jax.random.fold_in(key, Stream.VALIDATION)

    def body(block: Array, total: Array) -> Array:
        first = block * size
        some = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, size), rows)
        outputs = objective.outputs(params, some, jax.random.fold_in(key, block))
        counts = first + jnp.arange(size, dtype=jnp.int32) < count
        return total - jnp.sum(jnp.where(counts, objective.row_losses(outputs, some), 0.0))

    zero = jnp.zeros((), optax.tree.dtype(params))
    return jax.lax.fori_loop(0, -(-count // size), body, zero) / count.astype(zero.dtype)
