"""Training: epochs of shuffled rows through the engine's loop, early stopping on held-out rows."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core.compilation import compiled
from curvi._core.errors import InputError, Interrupted, Outcome
from curvi._core.meshes import current_mesh, replicate, split_batch
from curvi.engine import Budget, ObjectiveProblem, Resources, hooks_for, run
from curvi.engine._problems import step_key, traced_objective
from curvi.solvers import Method
from curvi.vae._networks import MLPObjective, principal_rotation
from curvi.vae._stopping import EarlyStopping, Evaluator
from curvi.vae._variance import best_num_draws

_MULTIPLIERS = 256
_MIN_ROWS_BETWEEN_EVALUATIONS = 5000  # on small data an epoch is only a few steps
_VALIDATION_FRACTION = 0.1
_MIN_VALIDATION_ROWS = 10  # an ELBO over a handful of rows would stop at random
_SLIGHTLY_WORSE = 0.1  # share of the first ELBO that training may lose, and a nat
MOST_EVALUATED_ROWS = 10_000
_MAX_TRAINING_ROWS = 5_000  # of the ELBO on training rows


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
        Seconds, compilation included.
    patience : int
        Evaluations of the validation ELBO without a new best before training stops.
    seed : int
        Of shuffling and noise.
    progress : bool
        Draw a bar on a terminal.
    seconds_between : float, optional
        Seconds between evaluations, whose time then does not count; by default they go by steps.
    """

    batch_size: int = 100
    max_epochs: int = 50
    time_budget: float | None = None
    patience: int = 10
    seed: int = 0
    progress: bool = False
    seconds_between: float | None = None


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
        One entry per evaluation: step, epoch, seconds, elbo, validation_elbo. Both ELBOs are per
        row and without the penalty, ``elbo`` on the same 5,000 training rows at most.
    steps : int
        Steps taken.
    seconds : float
        Time spent.
    trace : dict of arrays
        One entry per step.
    out_of_time : bool
        Whether the time budget ended it before its last epoch.
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

    @property
    def elbo(self) -> float:
        """Best validation ELBO per row, or the last training ELBO without one."""
        held_out, trained = self.history["validation_elbo"], self.history["elbo"]
        known = held_out[np.isfinite(held_out)]
        last = trained[-1] if len(trained) else np.nan
        return float(known.max() if len(known) else last)

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


class ShuffledRows(NamedTuple):
    """Rows, shuffled once, and the multipliers that shuffle them again in every epoch."""

    rows: PyTree
    multipliers: Array


def shuffling_multipliers(num_rows: int, generator: np.random.Generator) -> np.ndarray:
    """Numbers a, coprime to n, for which i -> a i + c mod n fits 32 bits: each is a permutation."""
    most = max(2, min(num_rows, (2**32 - 1) // max(num_rows, 1) - 1))
    drawn = generator.integers(1, most, size=16 * _MULTIPLIERS)
    coprime = [int(a) for a in drawn if math.gcd(int(a), num_rows) == 1] or [1]
    return np.resize(np.asarray(coprime, np.uint32), _MULTIPLIERS)


@dataclass(frozen=True)
class EpochProblem(ObjectiveProblem):
    """An objective over batches that visit every row once per epoch.

    ``resources.rows`` are :class:`ShuffledRows`. Epoch e visits them in the order
    ``(a_e i + c_e) mod n``, a permutation that is a function of seed and epoch alone: it costs
    nothing, keeps no state, and a run can resume at any step. Other streams draw rows at random.
    """

    fixed_key: bool = False

    def sample(
        self, resources: Resources, step: Array, stream: int = 0, size: int | None = None
    ) -> tuple[PyTree, PRNGKeyArray]:
        """Batch and key of a step."""
        rows, multipliers = resources.rows
        plain = resources._replace(rows=rows)
        if stream != 0 or size is not None:
            return super().sample(plain, step, stream, size)
        index = self._visited(resources.key, multipliers, step, jax.tree.leaves(rows)[0].shape[0])
        index = split_batch(index)
        batch = jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), rows)
        return batch, step_key(plain, step, stream)

    def _visited(self, key: PRNGKeyArray, multipliers: Array, step: Array, num_rows: int) -> Array:
        size = self.batch_size or num_rows
        per_epoch = -(-num_rows // size)
        epoch, within = step // per_epoch, step % per_epoch
        # The last batch of an epoch is filled up from its beginning.
        place = (within * size + jnp.arange(size, dtype=jnp.int32)) % num_rows
        key = jax.random.fold_in(jax.random.fold_in(key, 2), epoch)
        choice = jax.random.randint(key, (), 0, multipliers.shape[0])
        offset = jax.random.randint(jax.random.fold_in(key, 1), (), 0, num_rows, jnp.int32)
        product = multipliers[choice] * place.astype(jnp.uint32)
        spread = (product % jnp.uint32(num_rows)).astype(jnp.int32)
        return (spread + offset) % num_rows


def num_held_out(fraction: float | str, rows: int) -> int:
    """How many rows are held out; at least two are left to train on."""
    if isinstance(fraction, str):
        held = round(_VALIDATION_FRACTION * rows)
        return held if held >= _MIN_VALIDATION_ROWS else 0
    held = math.ceil(fraction * rows - 1e-9)
    if rows - held < 2:
        raise InputError(
            f"validation_fraction is {fraction}, which leaves {rows - held} of {rows} rows to "
            "train on; at least 2 are needed"
        )
    return held


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
    began = time.perf_counter()
    principal = method.principal if isinstance(objective, MLPObjective) else None
    if principal is None or objective.white:
        return _trained(objective, params, X, validation, method, schedule)
    X = np.asarray(X)
    rotation = principal_rotation(X, directions=principal[0], damping=principal[1])
    if validation is not None:
        validation = (rotation.features(np.asarray(validation)), np.asarray(validation))
    white, rows = replace(objective, white=True), (rotation.features(X), X)
    spent = time.perf_counter() - began  # part of the training time, and of its budget
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
    objective: MLPObjective, params: PyTree, X: np.ndarray, method: Method, schedule: Schedule
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
        objective, pilot.params, X, batch_size=schedule.batch_size, seed=schedule.seed
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
    began = time.perf_counter()
    generator = np.random.default_rng(schedule.seed)
    num_rows = jax.tree.leaves(X)[0].shape[0]
    order = generator.permutation(num_rows)
    rows = jax.tree.map(lambda leaf: _placed(np.asarray(leaf)[order]), X)
    multipliers = jnp.asarray(shuffling_multipliers(num_rows, generator))
    key = jax.random.key(schedule.seed)
    batch_size = min(schedule.batch_size, num_rows)
    per_epoch = -(-num_rows // batch_size)
    elbo = _evaluator(objective, params, rows, _MAX_TRAINING_ROWS, key)
    held_out = None
    if validation is not None:
        held_out = _evaluator(objective, params, validation, MOST_EVALUATED_ROWS, key)
    first = (held_out or elbo)(params)
    least = _MIN_ROWS_BETWEEN_EVALUATIONS // method.usual_batch_size
    every = per_epoch * max(1, -(-least // per_epoch))
    pause = schedule.seconds_between
    clock = None if pause is None else (pause, schedule.time_budget or math.inf)
    stopping = EarlyStopping(elbo, held_out, schedule.patience, every, clock)
    max_steps = schedule.max_epochs * per_epoch
    with hooks_for(schedule.progress, "ELBO", sign=-1.0) as hooks:
        limit = None if schedule.seconds_between else schedule.time_budget  # the hook ends it
        budget = Budget(1e-30, max_steps, limit, (*hooks, stopping), began)
        resources = Resources(key, ShuffledRows(rows, multipliers), None)
        fn, reads = traced_objective(objective, params, rows, [batch_size], key)
        problem = EpochProblem(fn, batch_size, reads=reads)
        ended = run(problem, method, params, resources, budget)
    if not stopping.table and ended.outcome is Outcome.BUDGET:  # no time for a step
        stopping.evaluate(ended.steps, ended.seconds, ended.params)
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
    )
    # The draws of both ELBOs are the same: what lies between them is due to the weights.
    return trained.judged(first, 1 + _SLIGHTLY_WORSE * abs(first))


def _placed(rows: np.ndarray) -> Array:
    """On the device, or on every device of the mesh, which share the batches."""
    mesh = current_mesh()
    return jnp.asarray(rows) if mesh is None else replicate(rows, mesh)


def _evaluator(
    objective: Any, params: PyTree, data: Any, limit: int, key: PRNGKeyArray
) -> Evaluator:
    """The ELBO per row on the first rows of the data; compiled here, before the clock starts.

    The draws of the code are always the same: differences are due to the parameters.
    """
    rows = jax.tree.map(lambda leaf: jnp.asarray(leaf[:limit]), data)
    noise_key = jax.random.fold_in(key, 3)
    _elbo(objective, params, rows, noise_key)
    return lambda p: float(_elbo(objective, p, rows, noise_key))


@partial(compiled, static_argnums=0)
def _elbo(objective: Any, params: PyTree, batch: Any, key: PRNGKeyArray) -> Array:
    """The ELBO per row, without the penalty."""
    penalty = objective.penalty(params) if hasattr(objective, "penalty") else 0.0
    return penalty - objective(params, batch, key)
