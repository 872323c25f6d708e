"""What is wrong with a start at which nothing can be computed."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from curvi._core.trees import coordinate_names, leaf_names
from curvi.engine import Resources, VariationalProblem
from curvi.families import Params
from curvi.targets import AbstractTarget


def broken_gradient(
    problem: VariationalProblem, target: AbstractTarget, params: Params, resources: Resources, *,
    tried: int = 8,
) -> str:  # fmt: skip
    """Name the coordinate whose gradient is not finite where the log density is; or nothing.

    That is what a run which could not take a single step suffers from most often: the square
    root or the norm of a zero, and ``jnp.where`` around a branch that is not finite.

    ``tried``: draws at which a broken gradient is looked for.
    """
    noise = problem.sample(resources, jnp.asarray(0, jnp.int32)).noise
    noise = noise.reshape(-1, noise.shape[-1])
    points = [params.mean, *(problem.family.transform(params, e) for e in noise[:tried])]
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


def _broken_leaf(target: AbstractTarget, z: Float[Array, " d"]) -> str:
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


def no_width(
    problem: VariationalProblem, target: AbstractTarget, resources: Resources, width: float
) -> str:
    """Say which draw and which coordinate fail at the smallest width."""
    params = problem.family.init(target.start, width)
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
                f"starting position{_broken_leaf(target, z)}{where}; start further inside the "
                "support"
            )
    return "the bound is not finite at any starting width; rescale the log density"
