"""The Hessian-free step as an optax transformation, for a plain optax loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.linalg import all_finite, conjugate_gradient, damped, hessian, select
from curvi.solvers import REGION, agreement, next_damping


class HessianFreeState(NamedTuple):
    """Levenberg-Marquardt damping, and how the last step went.

    Attributes
    ----------
    damping : array
        lambda of the next step.
    ratio : array
        Decrease of the objective over the decrease that the quadratic model predicted.
    cg_steps : array
        Conjugate-gradient iterations of the last step.
    """

    damping: Array
    ratio: Array
    cg_steps: Array


def hessian_free(
    *, cg_steps: int = 30, initial_damping: float = 1.0
) -> optax.GradientTransformationExtraArgs:
    r"""Scale a gradient by :math:`(H + \lambda I)^{-1}`, with the exact Hessian of ``value_fn``.

    The update solves :math:`(H + \lambda I) p = -g` by truncated conjugate gradients. ``value_fn``
    must be the objective *on the sample that the gradient came from*; it is also used to
    compare both ends of the step on common random numbers: a step that does not decrease it is
    replaced by zero, and the damping adapts to how well the model predicted the decrease.

    Parameters
    ----------
    cg_steps : int
        Cap on conjugate-gradient iterations.
    initial_damping : float
        Starting value of lambda.

    Returns
    -------
    optax.GradientTransformationExtraArgs
        Its ``update`` takes ``value_fn``, the objective as a function of the parameters.

    Raises
    ------
    InputError
        If an option is out of range; from ``init``, if the parameters are not floating-point
        arrays of one precision; from ``update``, if it is not given ``params`` and ``value_fn``,
        if gradient or state do not belong to these parameters, or the value is not a scalar.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, optax
    >>> from curvi.interop import hessian_free
    >>> loss = lambda p: jnp.sum((p - 3.0) ** 4) + jnp.sum(p**2)
    >>> optimiser, params = hessian_free(), jnp.zeros(2)
    >>> state = optimiser.init(params)
    >>> for _ in range(20):
    ...     gradient = jax.grad(loss)(params)
    ...     updates, state = optimiser.update(gradient, state, params, value_fn=loss)
    ...     params = optax.apply_updates(params, updates)
    >>> print(params.round(2))
    [2. 2.]
    """
    validation.positive_integer(cg_steps, "cg_steps")
    validation.positive_number(initial_damping, "initial_damping")

    def init(params: Any) -> HessianFreeState:
        one = jnp.ones((), _common_dtype(params))
        return HessianFreeState(initial_damping * one, one, jnp.asarray(0, jnp.int32))

    def update(
        updates: Any,
        state: HessianFreeState,
        params: Any = None,
        *,
        value_fn: Callable[[Any], Array] | None = None,
        **_: Any,
    ) -> tuple[Any, HessianFreeState]:
        if params is None or value_fn is None:
            raise InputError(
                "hessian_free needs both ends: optimiser.update(gradient, state, params, "
                "value_fn=loss)"
            )
        _check_update(updates, state, params, value_fn)
        value, _gradient, operator = hessian(value_fn, params)
        solved = conjugate_gradient(
            damped(operator, state.damping),
            optax.tree.scale(-1.0, updates),
            max_steps=cg_steps,
            relative_tolerance=1e-3,
        )
        trial_value = value_fn(optax.tree.add(params, solved.solution))
        ratio = agreement(value, trial_value, -solved.model_value)
        good = all_finite(trial_value, solved.solution, updates) & (ratio > 0)
        damping = next_damping(
            state.damping, rise=ratio < REGION.poor, fall=ratio > REGION.good, sound=good
        )
        new = HessianFreeState(damping, ratio, solved.steps)
        return select(good, solved.solution, optax.tree.zeros_like(params)), new

    return optax.GradientTransformationExtraArgs(init, update)


def _common_dtype(params: Any) -> Any:
    kinds = {jnp.result_type(leaf) for leaf in jax.tree.leaves(params)}
    if len(kinds) != 1 or not jnp.issubdtype(kind := kinds.pop(), jnp.floating):
        raise InputError(
            "params must be floating-point arrays of one precision, at least one; convert them, or "
            "leave integers out of params"
        )
    return kind


def _check_update(updates: Any, state: Any, params: Any, value_fn: Any) -> None:
    """Raise InputError for arguments that do not belong together; under jit, while tracing."""
    if not isinstance(state, HessianFreeState):
        raise InputError(
            f"state is a {type(state).__name__}; give what hessian_free().init(params) or the last "
            "update returned"
        )
    shapes = [jax.tree.map(jnp.shape, tree) for tree in (updates, params)]
    if shapes[0] != shapes[1]:
        raise InputError(
            f"the gradient has the shapes {shapes[0]}, but params have {shapes[1]}; give the "
            "gradient with respect to all of params"
        )
    if not callable(value_fn):
        raise InputError(
            f"value_fn is a {type(value_fn).__name__}; give the loss as a function of params, not "
            "its value"
        )
    validation.require_float_of_shape(
        jax.eval_shape(value_fn, params),
        (),
        "value_fn(params)",
        "the loss without auxiliary values",
    )
