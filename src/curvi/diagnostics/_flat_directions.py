"""Names for a direction in parameter space: which coordinates are flat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array

from curvi._core.compilation import compiled
from curvi._core.trees import coordinate_names
from curvi.families import Family, Params
from curvi.solvers import Problem, tangent_metric
from curvi.targets import AbstractTarget


@dataclass(frozen=True)
class Improper:
    """When a direction counts as one along which the posterior has no end."""

    named_share: float = 0.1  # of the length of a direction, for a coordinate to be named
    most_names: int = 4  # coordinates that a sentence names
    runaway: float = 1e3  # times the sds of the start
    # nats from the mean of q to one sd away: half a nat where q matches a Gaussian
    fall: float = 0.25


IMPROPER = Improper()


@compiled
def _product(problem: Problem, params: Params, resources: Any, tangent: Params) -> Params:
    _, _, curvature = problem.linearise(
        params, problem.sample(resources, jnp.asarray(0, jnp.int32))
    )
    return problem.project(params, curvature(problem.project(params, tangent)))


def flat_direction(
    problem: Problem,
    params: Params,
    resources: Any,
    guess: Params,
    position: Any,
    *,
    policy: Improper = IMPROPER,
) -> str:
    """Name the coordinates of the direction of lowest curvature in the natural metric.

    The direction is the lowest eigenvector of the Hessian relative to the metric, by Lanczos
    started from ``guess``; where that fails the guess itself is named.
    """
    metric = problem.metric(params)
    direction = _lowest(problem, params, resources, guess)
    measured = direction if metric is None else metric.apply(direction)
    shares = jax.tree.map(lambda d, m: np.abs(np.asarray(d) * np.asarray(m)), direction, measured)
    total = sum(float(leaf.sum()) for leaf in jax.tree.leaves(shares)) or 1.0
    names = coordinate_names(position)
    entries = [
        (share / total, f"{part} of {names[row]}")
        for part, table in (("the mean", shares.mean), ("the spread", shares.scale_params))
        for row, share in enumerate(_by_coordinate(table, len(names)))
    ]
    entries.sort(key=lambda entry: -entry[0])
    named = [name for share, name in entries[: policy.most_names] if share > policy.named_share]
    return " and ".join(named or [entries[0][1]])


def improper_sentence(
    target: AbstractTarget,
    family: Family,
    params: Params,
    start: Params,
    *,
    policy: Improper = IMPROPER,
) -> str:
    """Name the direction along which q has widened without end; empty where there is none.

    q has grown a thousandfold along it, and one of its sds away the log density is hardly lower
    than at its mean. A q that is on its way to a wide but proper posterior has a fall that grows.
    """
    sd, first = (np.asarray(family.sd(each), np.float64) for each in (params, start))
    growth = np.nan_to_num(sd / first, nan=np.inf, posinf=np.inf)
    worst = int(np.argmax(growth))
    if growth[worst] < policy.runaway:
        return ""
    if np.isfinite(sd[worst]):
        move = _regression(family, params, worst)
        ends = [target.log_prob(params.mean + sign * move) for sign in (-1.0, 0.0, 1.0)]
        left, middle, right = (float(value) for value in ends)
        if middle - 0.5 * (left + right) > policy.fall:
            return ""
    share = (growth / growth[worst]) ** 2 if np.isfinite(growth[worst]) else np.isinf(growth)
    share = share / share.sum()
    names = coordinate_names(target.position)
    largest = [
        i for i in np.argsort(-share)[: policy.most_names] if share[i] > policy.named_share
    ] or [worst]
    listed = " and ".join(names[i] for i in sorted(largest))
    width = f"to an sd of {sd[worst]:.2g}" if np.isfinite(sd[worst]) else "beyond all numbers"
    return (
        f"The posterior looks improper along {listed}: q has widened there {width}, because the "
        "log density does not fall, and no best q exists. Give that direction a proper prior, or "
        "fix one of its coordinates."
    )


def _regression(family: Family, params: Params, coordinate: int) -> Array:
    """The move of all coordinates that goes with one sd of one of them, Cov e_i / sd_i."""
    diagonal, factor = family.scale.diagonal_and_factor(params.scale_params)
    unit = jnp.zeros_like(params.mean).at[coordinate].set(1.0)
    row = 0.0 if factor is None else factor @ factor[coordinate]
    row = row + (0.0 if diagonal is None else diagonal**2 * unit)
    return row * (family.base.variance / jnp.sum(row * unit)) ** 0.5


def _by_coordinate(table: Any, dimension: int) -> np.ndarray:
    """Sum what belongs to a coordinate: rows of every array, but no entries of a pattern."""
    rows = [leaf for leaf in jax.tree.leaves(table) if np.size(leaf) % dimension == 0]
    return sum((leaf.reshape(dimension, -1).sum(axis=1) for leaf in rows), np.zeros(dimension))


def _lowest(problem: Problem, params: Params, resources: Any, guess: Params) -> Params:
    from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh

    flat, unravel = ravel_pytree(guess)
    size = flat.size
    if size < 3:
        return guess
    metric = tangent_metric(problem, params)

    def on_vectors(function: Any) -> LinearOperator:
        def matvec(vector: np.ndarray) -> np.ndarray:
            tangent = unravel(jnp.asarray(vector.reshape(-1), flat.dtype))
            return np.asarray(ravel_pytree(function(tangent))[0], np.float64)

        return LinearOperator((size, size), matvec=matvec, dtype=np.float64)

    try:
        _, vectors = eigsh(
            on_vectors(lambda t: _product(problem, params, resources, t)),
            k=1,
            M=on_vectors(metric.apply),
            Minv=on_vectors(metric.solve),
            which="SA",
            v0=np.asarray(flat, np.float64),
            maxiter=300,
            tol=1e-3,
        )
    except (ArpackError, ValueError):
        return guess
    return unravel(jnp.asarray(vectors[:, 0], flat.dtype))
