"""Where a fit starts: the user's position as mean, and the best of several widths."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.errors import NumericalError
from curvi._core.trees import coordinate_names, leaf_names
from curvi.engine import _host as host
from curvi.engine._problems import Resources, VariationalProblem
from curvi.families import Family, Params
from curvi.objective._look import joined
from curvi.solvers import Method
from curvi.targets import AbstractTarget

_TRIED = 8  # draws at which a broken gradient is looked for
_WIDTHS = (1.0, 0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-6)


@partial(jax.jit, static_argnames="problem")
def _values_by_width(
    problem: VariationalProblem, position: Float[Array, " d"], resources: Resources
) -> Float[Array, " widths"]:
    """The objective on the first sample for each starting width."""
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    widths = jnp.asarray(_WIDTHS, position.dtype)

    def one(width: Array) -> Array:
        return problem.value(problem.family.init(position, width), sample)

    return jax.lax.map(one, widths)


@partial(jax.jit, static_argnames="family")
def _around(family: Family, position: Float[Array, " d"], width: Float[Array, ""]) -> Params:
    return family.init(position, width)


def starting_params(
    problem: VariationalProblem,
    target: AbstractTarget,
    resources: Resources,
    method: Method | None = None,
) -> Params:
    """Parameters around the position with the width that has the best bound.

    A width too large drowns the likelihood in noise or leaves the support; one too small makes
    the first steps timid. Widths whose bound is not finite are passed over.

    Raises
    ------
    InputError
        If the log density is not finite at the position itself.
    NumericalError
        If it is finite there but not around it, however close; the message names the draw, and
        the coordinate whose gradient is not finite.
    """
    best = best_width(problem, target.start, resources, method)
    if best is None:
        target.check_start()
        raise NumericalError(_diagnosis(problem, target, resources))
    return around(problem.family, target.start, best)


def around(family: Family, position: Float[Array, " d"], width: float) -> Params:
    """Parameters around a position, all sds equal to ``width``."""
    return _around(family, position, np.asarray(width, position.dtype))


def best_width(
    problem: VariationalProblem,
    position: Float[Array, " d"],
    resources: Resources,
    method: Method | None = None,
) -> float | None:
    """The starting width with the best bound around a position; None where none is finite."""
    first = around(problem.family, position, _WIDTHS[0])
    if method is not None and host.suits(problem, method, first, resources):
        # The run looks through the same compiled function: widths then cost none of their own.
        look = host.looker(problem, first, resources)
        values = np.asarray(
            [look(joined(around(problem.family, position, width))).value for width in _WIDTHS]
        )
    else:
        values = np.asarray(_values_by_width(problem, position, resources))
    if not np.isfinite(values).any():
        return None
    return _WIDTHS[int(np.nanargmin(np.where(np.isfinite(values), values, np.inf)))]


def broken_gradient(
    problem: VariationalProblem, target: AbstractTarget, params: Params, resources: Resources
) -> str:
    """Name the coordinate whose gradient is not finite where the log density is; or nothing.

    That is what a run which could not take a single step suffers from most often: the square
    root or the norm of a zero, and ``jnp.where`` around a branch that is not finite.
    """
    noise = problem.sample(resources, jnp.asarray(0, jnp.int32)).noise
    noise = noise.reshape(-1, noise.shape[-1])
    points = [params.mean, *(problem.family.transform(params, e) for e in noise[:_TRIED])]
    for z in points:
        value, gradient = jax.value_and_grad(target.log_prob)(z)
        bad = np.flatnonzero(~np.isfinite(np.asarray(gradient)))
        if np.isfinite(value) and len(bad):
            name = coordinate_names(target.position)[bad[0]]
            return (
                f"The log density is finite at the start but its gradient in {name} is not: look "
                "for the square root or the norm of zero, or for jnp.where around a branch that "
                "is not finite. "
            )
    return ""


def _guilty_leaf(target: AbstractTarget, z: Float[Array, " d"]) -> str:
    """Name the first leaf whose move alone, from the start to z, spoils the log density."""
    begin = 0
    names = leaf_names(target.position, "position")
    for name, shape in zip(names, target.density.unravel.shapes, strict=True):
        end = begin + math.prod(shape)
        moved = target.start.at[begin:end].set(z[begin:end])
        if not np.isfinite(target.log_prob(moved)):
            return f" and only {name} moves"
        begin = end
    return ""


def _diagnosis(problem: VariationalProblem, target: AbstractTarget, resources: Resources) -> str:
    """Say which draw and which coordinate fail at the smallest width."""
    params = problem.family.init(target.start, _WIDTHS[-1])
    noise = problem.sample(resources, jnp.asarray(0, jnp.int32)).noise
    noise = noise.reshape(-1, noise.shape[-1])
    for index, epsilon in enumerate(noise):
        z = problem.family.transform(params, epsilon)
        value, gradient = jax.value_and_grad(target.log_prob)(z)
        if not np.isfinite(value):
            bad = np.flatnonzero(~np.isfinite(np.asarray(gradient)))
            names = coordinate_names(target.position)
            where = f", where the gradient in {names[bad[0]]} is not finite" if len(bad) else ""
            return (
                f"the log density is {value} at draw {index} although it is finite at the "
                f"starting position{_guilty_leaf(target, z)}{where}; start further inside the "
                "support"
            )
    return "the bound is not finite at any starting width; rescale the log density"
