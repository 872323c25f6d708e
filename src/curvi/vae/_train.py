"""Training: epochs through the engine's loop, a validation bound, early stopping."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree

from curvi._core.errors import Outcome
from curvi.engine import Budget, Progress, hooks_for, run
from curvi.solvers import KFAC, Method
from curvi.vae._mlp import MLPObjective
from curvi.vae._problem import EpochProblem, EpochResources, shuffling_multipliers
from curvi.vae._rotation import principal_rotation

_STEPS_BETWEEN_LOOKS = 50  # on small data an epoch is a few steps: look less often than that
_MOST_VALIDATION_ROWS = 10_000
_MOST_TRAINING_ROWS = 5_000  # of the bound on training rows


@dataclass(frozen=True)
class Schedule:
    """How long to train, and when to stop.

    Attributes
    ----------
    batch_size : rows per step
    max_epochs : passes over the rows, at most
    time_budget : seconds, compilation included, or None
    patience : looks at the validation bound without a new best before training stops
    seed : of shuffling and noise
    progress : draw a bar on a terminal
    """

    batch_size: int = 100
    max_epochs: int = 50
    time_budget: float | None = None
    patience: int = 10
    seed: int = 0
    progress: bool = False


class Trained(NamedTuple):
    """What came out of a training run.

    Attributes
    ----------
    params : the best parameters by the validation bound, or the last without one
    outcome : how it ended
    history : arrays, one entry per look: step, epoch, seconds, elbo, validation_elbo; both bounds
        are per row and without the penalty, ``elbo`` on the same 5,000 training rows at most
    steps, seconds : taken and spent
    trace : one entry per step
    """

    params: PyTree
    outcome: Outcome
    history: dict[str, np.ndarray]
    steps: int
    seconds: float
    trace: dict[str, np.ndarray]


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

    ``X`` is an array, or a pytree of arrays that share their leading axis. The built-in networks
    under :class:`~curvi.solvers.KFAC` are trained in principal coordinates of the images and
    mapped back afterwards; only ``method.directions`` of them are read by the encoder.
    """
    if isinstance(objective, MLPObjective) and isinstance(method, KFAC) and not objective.white:
        return _train_rotated(objective, params, X, method, schedule, validation)
    generator = np.random.default_rng(schedule.seed)
    num_rows = jax.tree.leaves(X)[0].shape[0]
    order = generator.permutation(num_rows)
    rows = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[order]), X)
    multipliers = jnp.asarray(shuffling_multipliers(num_rows, generator))
    key = jax.random.key(schedule.seed)
    problem = EpochProblem(objective, min(schedule.batch_size, num_rows))
    per_epoch = -(-num_rows // problem.batch_size)
    keeper = _Keeper(objective, rows, validation, schedule.patience, key, params)
    keeper.every = per_epoch * max(1, -(-_STEPS_BETWEEN_LOOKS // per_epoch))
    with hooks_for(schedule.progress, "bound", sign=-1.0) as hooks:
        budget = Budget(
            1e-30, schedule.max_epochs * per_epoch, schedule.time_budget, (*hooks, keeper)
        )
        ended = run(problem, method, params, EpochResources(key, rows, multipliers), budget)
    history = keeper.history(per_epoch)
    best = ended.params if keeper.best is None else keeper.best
    return Trained(best, ended.outcome, history, ended.steps, ended.seconds, ended.trace)


def _train_rotated(
    objective: MLPObjective,
    params: Any,
    X: Any,
    method: KFAC,
    schedule: Schedule,
    validation: Any,
) -> Trained:
    began = time.perf_counter()
    X = np.asarray(X)
    rotation = principal_rotation(X, directions=method.directions, damping=method.damping)
    held = None
    if validation is not None:
        held = (rotation.features(np.asarray(validation)), np.asarray(validation))
    fields = {**objective.__dict__, "white": True}
    features = rotation.features(X)
    spent = time.perf_counter() - began  # part of the training time, and of its budget
    if schedule.time_budget is not None:
        schedule = replace(schedule, time_budget=max(schedule.time_budget - spent, 0.0))
    done = train(
        MLPObjective(**fields),
        rotation.rotated(params),
        (features, X),
        method=method,
        schedule=schedule,
        validation=held,
    )
    history = {**done.history, "seconds": done.history["seconds"] + spent}
    return done._replace(
        params=rotation.restored(done.params), history=history, seconds=done.seconds + spent
    )


class _Keeper:
    """Looks at the validation bound, keeps the best parameters, and says when to stop."""

    def __init__(
        self,
        objective: Any,
        rows: Any,
        validation: Any,
        patience: int,
        key: PRNGKeyArray,
        params: PyTree,
    ) -> None:
        self.every = 1
        self.best: Any = None
        self.patience = patience
        self.looks: list[tuple[int, float, float, float]] = []
        # The same draws at every look: differences are due to the parameters.
        noise_key = jax.random.fold_in(key, 3)

        def evaluator(data: Any, most: int) -> Callable[[PyTree], float]:
            held = jax.tree.map(lambda leaf: jnp.asarray(leaf[:most]), data)
            return lambda p: float(_held_out(objective, p, held, noise_key))

        self.train_bound = evaluator(rows, _MOST_TRAINING_ROWS)
        self.train_bound(params)  # compiles before the clock starts
        self.held_bound: Callable[[PyTree], float] | None = None
        if validation is not None:
            self.held_bound = evaluator(validation, _MOST_VALIDATION_ROWS)
            self.held_bound(params)

    def next_call(self, step: int) -> int:
        """Whenever so many steps are done."""
        return (step // self.every + 1) * self.every

    def __call__(self, progress: Progress) -> Outcome | None:
        """One look; the run has converged after ``patience`` looks without a new best."""
        step, seconds, params = progress.step, progress.seconds, progress.params(0)
        value = float("nan") if self.held_bound is None else self.held_bound(params)
        earlier = [look[-1] if np.isfinite(look[-1]) else -np.inf for look in self.looks]
        self.looks.append((step, seconds, self.train_bound(params), value))
        if self.held_bound is None:
            return None
        if np.isfinite(value) and value > max(earlier, default=-np.inf):
            self.best = params
        top = int(np.argmax([-np.inf, *earlier, value if np.isfinite(value) else -np.inf]))
        return Outcome.CONVERGED if len(self.looks) - top >= self.patience else None

    def history(self, per_epoch: int) -> dict[str, np.ndarray]:
        """The looks as a table."""
        table = np.asarray(self.looks, float).reshape(-1, 4)
        return {
            "step": table[:, 0].astype(int),
            "epoch": table[:, 0] / per_epoch,
            "seconds": table[:, 1],
            "elbo": table[:, 2],
            "validation_elbo": table[:, 3],
        }


def _bound(objective: Any, params: PyTree, batch: Any, key: PRNGKeyArray) -> Array:
    """The bound per row: the penalty is no part of it."""
    if hasattr(objective, "penalty"):
        return objective.penalty(params) - objective(params, batch, key)
    return -objective(params, batch, key)


_held_out = jax.jit(_bound, static_argnums=0)
