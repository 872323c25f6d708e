"""``curvi.minimise``: the same methods on any stochastic objective (the paper's "model free")."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.errors import InputError, NotConvergedWarning, NumericalError, Outcome, warn_user
from curvi._core.fingerprint import fingerprint
from curvi.engine import _loop as loop
from curvi.engine._problems import ObjectiveProblem, Resources
from curvi.engine._progress import observer_for
from curvi.solvers import Method, TrustRegion


@dataclass(frozen=True)
class OptimiseResult:
    """Where a minimisation ended.

    Attributes
    ----------
    params : pytree
        The last parameters, or their average where the method keeps one.
    outcome, message : Outcome, str
        How it ended, and one sentence.
    value : float
        The objective on the sample of the last step, before that step.
    trace : dict of arrays
        One entry per step: step, seconds, value, grad_norm, gain, cg_steps, accepted, ...
    seconds : float
        Time spent, compilation included.
    """

    params: PyTree
    outcome: Outcome
    message: str
    value: float
    trace: dict[str, np.ndarray]
    seconds: float

    @property
    def converged(self) -> bool:
        """Whether the method's stopping rule was met."""
        return self.outcome is Outcome.CONVERGED


def minimise(
    fn: Callable[[PyTree, PyTree, PRNGKeyArray], Float[Array, ""]],
    params: PyTree,
    *,
    method: Method | None = None,
    data: PyTree | None = None,
    batch_size: int | None = None,
    fixed_key: bool = False,
    seed: int = 0,
    tolerance: float | None = None,
    max_steps: int | None = None,
    time_budget: float | None = None,
    progress: bool = True,
    on_failure: str = "raise",
) -> OptimiseResult:
    """Minimise ``E[fn(params, batch, key)]`` over a pytree of parameters.

    Parameters
    ----------
    fn : callable
        ``fn(params, batch, key) -> scalar`` in JAX. ``batch`` is None without data.
    params : pytree of floating-point arrays
        Where to start.
    method : Method
        TrustRegion by default.
    data, batch_size
        Arrays that share their leading axis; ``batch_size`` rows of them at each step, or all.
    fixed_key : bool
        Give ``fn`` the same key at every step: the objective is then deterministic and can be
        minimised to convergence (common random numbers).
    tolerance : float, optional
        Predicted decrease below which a method with a stopping rule ends.
    on_failure : {"raise", "warn", "return"}
        What to do on a numerical failure; the exception carries ``.result``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> result = minimise(lambda p, batch, key: jnp.sum((p - 3) ** 2), jnp.zeros(2),
    ...                   fixed_key=True, progress=False)
    >>> result.converged, bool(jnp.abs(result.params - 3).max() < 1e-3)
    (True, True)
    """
    check_options(on_failure, tolerance, time_budget)
    start, unravel = validation.flat_position(params)
    uniform = unravel(start)
    method = TrustRegion() if method is None else method
    if not isinstance(method, Method):
        raise InputError(f"method is {method!r}; give a method such as curvi.TrustRegion()")
    rows = None if data is None else validation.checked_rows(data)[0]
    if batch_size is not None:
        validation.positive_integer(batch_size, "batch_size")
        if rows is None:
            raise InputError("batch_size needs data; pass data=, a pytree of arrays")
        num_rows = jax.tree.leaves(rows)[0].shape[0]
        if batch_size > num_rows:
            raise InputError(f"batch_size is {batch_size} but there are {num_rows} rows")
    key = jax.random.key(seed)
    problem = ObjectiveProblem(fn, batch_size, fixed_key, fingerprint(fn))
    resources = Resources(key, rows, None)
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    jax.eval_shape(problem.value, uniform, sample)  # traces once, and checks what comes back
    steps = method.default_max_steps if max_steps is None else max_steps
    validation.positive_integer(steps, "max_steps")
    with observer_for(progress, "objective") as observer:
        ended = loop.run(
            problem,
            method,
            uniform,
            resources,
            tolerance=default_tolerance(start.dtype) if tolerance is None else tolerance,
            max_steps=steps,
            time_budget=time_budget,
            observer=observer,
        )
    values = ended.trace["value"]
    result = OptimiseResult(
        params=ended.params,
        outcome=ended.outcome,
        message=ended.outcome.sentence,
        value=float(values[-1]) if len(values) else float("nan"),
        trace=ended.trace,
        seconds=ended.seconds,
    )
    announce(result, on_failure, stops=method.stops(problem))
    return result


def check_options(on_failure: Any, tolerance: Any, time_budget: Any) -> None:
    """Refuse options of the loop that are no choices or no positive numbers."""
    validation.one_of(on_failure, ("raise", "warn", "return"), "on_failure")
    if tolerance is not None:
        validation.positive_number(tolerance, "tolerance")
    if time_budget is not None:
        validation.positive_number(time_budget, "time_budget")


def default_tolerance(dtype: Any) -> float:
    """Remaining gain, in nats, at which a deterministic run is done."""
    return 1e-8 if jnp.finfo(dtype).bits > 32 else 1e-5


def announce(result: Any, on_failure: str, *, stops: bool) -> None:
    """Raise, warn or stay silent about how a run ended, as the user asked.

    A budget that runs out is worth a warning only where the method could have converged before.
    """
    outcome = result.outcome
    if outcome.is_failure and on_failure == "raise":
        raise NumericalError(result.message, result)
    short = outcome is Outcome.IMPRECISE or (outcome is Outcome.BUDGET and stops)
    if on_failure != "return" and (outcome.is_failure or short):
        warn_user(result.message, NotConvergedWarning)
