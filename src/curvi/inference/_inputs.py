"""What the calls of this room share: targets in their precision, options, and how a run ends."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import PyTree

from curvi._core import validation
from curvi._core.errors import InputError, NotConvergedWarning, NumericalError, Outcome, warn_user
from curvi._core.meshes import current_mesh
from curvi._core.trees import precision_of
from curvi.diagnostics import FitResult
from curvi.engine import Execution
from curvi.families import Family, SparsePrecision
from curvi.inference._first import SIZES, climbs
from curvi.inference.ladder._state import Rung
from curvi.io import Stream
from curvi.objective import Draws, plan_draws
from curvi.solvers import FirstOrder, Method, NaturalGradient, TrustRegion
from curvi.targets import AbstractTarget, DataTarget, Target

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
_TRACED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.UnexpectedTracerError,
)


def as_target(
    target: Any, position: PyTree | None, batches: Iterable[int | None] = (), init: Any = None
) -> AbstractTarget:
    """A target from a target, or from a plain log density with a position or an earlier fit.

    The functions of a target are traced anew, for they may read values that have changed since it
    was made.
    """
    if isinstance(target, AbstractTarget):
        found = target if position is None else target.with_position(position)
        sizes = [size for size in batches if size is not None]
        mesh = current_mesh()
        if mesh is not None and isinstance(found, DataTarget):
            return found.on_mesh(mesh, sizes)
        _refuse_mesh()
        return found.with_batches(sizes)
    if not callable(target):
        raise InputError(
            f"target is a {type(target).__name__}; give a curvi.Target, a curvi.DataTarget or a "
            "log density with position="
        )
    if position is None and isinstance(init, FitResult):
        position = init.target.position
    if position is None:
        raise InputError("position is missing; a plain log density needs position= to start from")
    _refuse_mesh()
    return Target(target, position)


def _refuse_mesh() -> None:
    if current_mesh() is not None:
        raise InputError("mesh needs a DataTarget: a plain log density has no rows to share")


def in_precision_of_target(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a function of a target inside JAX's local context for the precision of that target.

    Targets made from PyMC models are float64 by default, whatever JAX's setting is; a plain log
    density follows the setting.
    """
    whole = outside_transformations(call)

    @functools.wraps(call)
    def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        given: Any = args[0] if args else kwargs.get("target")
        known = isinstance(given, AbstractTarget)
        with precision_of(given.dtype) if known else contextlib.nullcontext():
            return whole(*args, **kwargs)

    return inside


def outside_transformations(call: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function that meets a tracer where it needs a value say so in one sentence."""

    @functools.wraps(call)
    def inside(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return call(*args, **kwargs)
        except _TRACED as error:
            raise InputError(
                f"something that {call.__name__}() reads is traced by JAX; {validation.OUTSIDE}"
            ) from error

    return inside


def as_method(method: Any, family: Any = None) -> Method:
    """The method that was given, or that of the family; a transformation of optax is one, too."""
    if method is None:
        return NaturalGradient() if isinstance(family, SparsePrecision) else TrustRegion()
    if isinstance(method, optax.GradientTransformation | optax.GradientTransformationExtraArgs):
        return FirstOrder(method)
    return instance_of(method, Method, "method", "curvi.TrustRegion()")


def instance_of(value: Any, kind: type, name: str, example: str) -> Any:
    """Validate an object of one of curvi's own kinds."""
    if isinstance(value, type):
        raise InputError(f"{name} is a class; did you mean {value.__name__}(...)?")
    if not isinstance(value, kind):
        raise InputError(f"{name} is {value!r}; give a {name} such as {example}")
    return value


def as_execution(execution: Any) -> Execution:
    """A policy from the name of a mode."""
    policy = execution if isinstance(execution, Execution) else Execution(execution)
    # Steps on the host would wait for all devices at every product.
    return Execution("compiled") if current_mesh() is not None else policy


def check_options(on_failure: Any, **positive: Any) -> None:
    """Validate the options of a run; those that were left out are None."""
    validation.one_of(on_failure, ("raise", "warn", "return"), "on_failure")
    for name, value in positive.items():
        if value is not None:
            validation.positive_number(value, name)


def default_tolerance(dtype: Any) -> float:
    """Remaining gain, in nats, at which a deterministic run is done."""
    return 1e-8 if jnp.finfo(dtype).bits > 32 else 1e-5


def cut_short_by(error: Exception) -> str:
    """The message of a result that an exception out of the user's code has cut short."""
    return (
        f"Cut short by {type(error).__name__} out of the user's code: the last state is kept, "
        "unjudged."
    )


def announce(result: Any, on_failure: str, *, stops: bool) -> None:
    """Raise, warn or stay silent about a failure, as the user asked; warn of any other short end.

    A budget that runs out is worth a warning only where the method could have converged before.
    """
    outcome = result.outcome
    if outcome.is_failure and on_failure == "raise":
        raise NumericalError(result.message, result)
    short = outcome is Outcome.IMPRECISE or (outcome is Outcome.BUDGET and stops)
    if result.interrupted:
        warn_user(NotConvergedWarning(f"INTERRUPTED: {result.message}", result))
    elif short or (outcome.is_failure and on_failure == "warn"):
        warn_user(NotConvergedWarning(result.message, result))


def optional_count(value: Any, name: str) -> int | None:
    """A count, or None where it is left to curvi."""
    if value is None or isinstance(value, str):
        validation.one_of("auto" if value is None else value, ("auto",), name)
        return None
    return validation.positive_integer(value, name)


def check_batch(target: Any, batch_size: Any) -> None:
    """Validate the number of rows of a step, which a plain log density has not."""
    if batch_size is None:
        return
    validation.positive_integer(batch_size, "batch_size")
    if not isinstance(target, DataTarget):
        raise InputError("batch_size needs a DataTarget; a plain log density has no rows")
    if batch_size > target.num_rows:
        raise InputError(
            f"batch_size is {batch_size} but there are {target.num_rows} rows; leave it out to "
            "use all of them"
        )
    if isinstance(target.data, Stream) and not target.data.random_access:
        raise InputError(
            "batch_size needs rows that can be read by number, and these come one after another; "
            "use blocks.to_npy(folder), or leave it out"
        )


def is_automatic(
    target: AbstractTarget,
    family: Any,
    method: Any,
    draws: Any,
    num_draws: Any,
    batch_size: Any,
    init: Any,
) -> bool:
    """Whether the ladder answers: nothing was chosen that it would have to override."""
    begins = init.rungs != () if isinstance(init, FitResult) else init == "position"
    nothing = method is None and num_draws is None and batch_size is None and begins
    untouched = isinstance(family, str) and family == "auto" and isinstance(draws, str)
    return nothing and untouched and draws == "auto" and climbs(target)


def planned_draws(
    family: Family,
    method: Method,
    target: AbstractTarget,
    draws: str | Draws,
    num_draws: int | None,
    batch_size: int | None,
) -> Draws:
    """Fixed draws where they pay; fresh ones where the method or the batches are stochastic."""
    if isinstance(family, SparsePrecision) and isinstance(method, NaturalGradient):
        if draws == "auto" and batch_size is None:  # exact Hessians need few draws
            return Draws("normalised", SIZES.sparse_draws if num_draws is None else num_draws)
        if isinstance(draws, Draws):
            return draws
    stochastic = method.needs_fresh_draws or batch_size is not None
    if isinstance(draws, str) and stochastic and (draws != "auto" or method.needs_fresh_draws):
        # Draws refuses what cannot be drawn anew, and few fresh draws suffice for any family.
        kind = "iid" if draws == "auto" else draws
        fewest = 1 if draws in ("auto", "iid") else 2
        draws = Draws(kind, fewest if num_draws is None else num_draws, fresh=True)
    plan = plan_draws(family, target.dimension, draws=draws, num_draws=num_draws)
    if draws == "auto" and batch_size is not None:
        plan = replace(plan, fresh=True)
    if plan.per_row and not isinstance(target, DataTarget):
        raise InputError("draws per row need a DataTarget; a plain log density has no rows")
    if plan.per_row and not plan.fresh:
        raise InputError("draws per row are made anew at every step; set fresh=True as well")
    if plan.per_row and batch_size is None and isinstance(target.rows, Stream):
        raise InputError("draws for each row of blocks would not fit into memory; set batch_size")
    return plan


def check_ladder(ladder: Sequence[Rung]) -> None:
    """Refuse what cannot be climbed."""
    for rung in ladder:
        instance_of(rung, Rung, "a rung of ladder", "curvi.inference.HMC()")
