"""Training networks of one's own as ``curvi.VAE`` trains its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import (
    InputError,
    Interrupted,
    NotConvergedWarning,
    NumericalError,
    Outcome,
    warn_user,
)
from curvi._core.trees import precision_of
from curvi.engine import StepInfo
from curvi.vae._base import as_method, rows_per_step
from curvi.vae._model import VAEModel, checked_conditions
from curvi.vae._objective import Rows, VAEObjective
from curvi.vae._training import Schedule, default_epochs, num_held_out, train


def fit_networks(
    objective: VAEObjective,
    params: PyTree,
    X: Any,
    *,
    condition: Any = None,
    method: Any = "kfac",
    batch_size: int | None = None,
    max_epochs: int | None = None,
    time_budget: float | None = None,
    validation_fraction: float | str = "auto",
    patience: int = 10,
    seed: int = 0,
    progress: bool = False,
    on_step: Callable[[StepInfo], Any] | None = None,
) -> VAEModel:
    """Train an encoder and a decoder of one's own, with the defaults of :class:`curvi.VAE`.

    Dense and convolutional layers are found in the trace of the networks, whatever library built
    them, and get Kronecker curvature; every other parameter gets a diagonal.

    Parameters
    ----------
    objective : VAEObjective
        The networks and the likelihood. Rows with NaN need ``missing=True``.
    params : pytree of arrays
        Where to start; their precision is that of the training.
    X : array, (rows, ...)
        Training rows of the shape that the encoder reads.
    condition : array, (rows, conditions), optional
        Of an objective with ``conditional=True``.
    method : str, method of curvi or of optax
        As for :class:`curvi.VAE`.
    batch_size, max_epochs, time_budget, validation_fraction, patience
        As for :class:`curvi.VAE`.
    seed : int
        Of rows held out, shuffling and noise.
    progress : bool
        A progress bar, on a terminal only.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step.

    Returns
    -------
    VAEModel
        The trained networks, to encode, sample, impute and score with; ``trained`` has the
        history and how the training ended.

    Raises
    ------
    InputError
        For rows or options that cannot be used.
    NumericalError
        If the bound turned non-finite again and again.

    Warns
    -----
    NotConvergedWarning
        If the training failed, diverged, or ran out of time.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np
    >>> from curvi.vae import VAEObjective, fit_networks
    >>> objective = VAEObjective(
    ...     lambda p, x: (x @ p["e"], jnp.zeros((len(x), 1))), lambda p, z: z @ p["d"])
    >>> rng = np.random.default_rng(0)
    >>> params = {"e": 0.1 * rng.normal(size=(4, 1)).astype("f"), "d": np.ones((1, 4), "f")}
    >>> X = (rng.random((120, 1)) < 0.5) * np.ones((1, 4))
    >>> model = fit_networks(objective, params, X, max_epochs=2)
    >>> model.sample(3).shape, str(model.trained.outcome)
    ((3, 4), 'BUDGET')
    """
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(params)]
    if len(kinds := {leaf.dtype for leaf in leaves}) != 1:
        names = ", ".join(sorted(map(str, kinds)))
        raise InputError(f"params have the dtypes {names}; bring them to one precision")
    dtype = jax.dtypes.canonicalize_dtype(kinds.pop())
    validation.refuse_unreal(X, "X")
    X = np.asarray(X).astype(dtype)
    values = np.where(np.isnan(X), 0.0, X) if objective.missing else X
    need = "entries must be finite (NaN is missing with missing=True)"
    validation.refuse_non_finite(values, "X", need)
    if len(X) < 2:
        raise InputError(f"X has {len(X)} rows; networks need at least 2 of them")
    columns = None if objective.conditional else 0
    data = Rows(X, X, checked_conditions(condition, len(X), columns, dtype))
    method = as_method(method)
    order = np.random.default_rng([validation.checked_seed(seed), 1]).permutation(len(X))
    held = num_held_out(validation_fraction, len(X))
    rows = jax.tree.map(lambda leaf: leaf[order[held:]], data)
    held_out = jax.tree.map(lambda leaf: leaf[order[:held]], data) if held else None
    size = rows_per_step(batch_size, method, len(rows.x))
    epochs = max_epochs or default_epochs(len(rows.x), size)
    schedule = Schedule(size, epochs, time_budget, patience, seed, progress, on_step=on_step)
    with precision_of(dtype):
        start = jax.tree.map(lambda leaf: jax.numpy.asarray(leaf, dtype), params)
        trained = train(
            objective, start, rows, method=method, schedule=schedule, validation=held_out
        )
        code = jax.eval_shape(objective.code, start, rows.features[:1], _first(rows.condition))[0]
    if trained.outcome is Outcome.INTERRUPTED:
        raise Interrupted(trained.sentence, trained)
    if trained.outcome is Outcome.NON_FINITE:
        raise NumericalError(trained.sentence, trained)
    if trained.outcome.is_failure or trained.out_of_time:
        warn_user(NotConvergedWarning(trained.sentence, trained))
    return VAEModel(objective, trained.params, tuple(code.shape[1:]), seed, trained)


def _first(condition: np.ndarray | None) -> np.ndarray | None:
    return None if condition is None else condition[:1]
