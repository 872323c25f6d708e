r"""Linear response: the covariance that the optimum itself implies, without a dense matrix.

Tilt the target by :math:`t\,g(z)` and the optimum moves; the rate at which :math:`E_q[g]` moves
with it is a covariance (Giordano, Broderick, Jordan 2018). With H the Hessian of the negative
bound at the optimum and :math:`b_g = \partial E_q[g] / \partial\theta`,

.. math:: \mathrm{Cov}(g, h) \approx b_g^\top H^{-1} b_h .

For a Gaussian target this is the exact covariance even where q is mean field. Systems with H
are solved by conjugate gradients with Hessian-vector products, a block of functions at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from curvi._core.errors import NumericalError
from curvi._core.fingerprint import fingerprint
from curvi._core.trees import Unravel, ravel
from curvi.diagnostics import _host_response as host_response
from curvi.diagnostics._directions import flat_direction
from curvi.families import Family, Params
from curvi.linalg import CGOutcome, FromFunctions, conjugate_gradient, hessian, projected
from curvi.objective import neg_elbo
from curvi.objective._look import Looker
from curvi.targets import AbstractTarget, Density

_BLOCK = 64  # systems solved together at most
_NUMBERS = 3e7  # held by one vectorised product at most
_MOST_STEPS = 10_000
# Relative residuals. The error of a variance b'x is of second order in its residual, that of an
# entry of the solution is of first order; single precision reaches no more than the last.
_FOR_VARIANCES, _FOR_ENTRIES, _SINGLE = 1e-4, 1e-6, 1e-4


class Point(NamedTuple):
    """Where the Hessian is taken: the parameters, all rows and the fixed draws."""

    params: Params
    rows: PyTree
    noise: Float[Array, "draws noise"]


@dataclass(frozen=True)
class Functional:
    """``E_q[g]`` on the fixed draws, with what g reads so that it compares by value."""

    density: Density
    family: Family
    fn: Callable[[PyTree], PyTree]
    constrain: Callable[[PyTree], PyTree] | None
    reads: tuple[Any, ...]

    def value(self, params: Params, noise: Float[Array, "draws noise"]) -> PyTree:
        """The average of ``fn`` over the draws, in its own structure."""

        def one(epsilon: Float[Array, " noise"]) -> PyTree:
            position = self.density.unravel(self.family.transform(params, epsilon))
            return self.fn(position if self.constrain is None else self.constrain(position))

        return jax.tree.map(lambda leaf: jnp.mean(leaf, axis=0), jax.vmap(one)(noise))


@partial(jax.jit, static_argnames="functional")
def gradients(functional: Functional, point: Point, index: Array) -> Params:
    """``b_g`` of some outputs of a functional: parameters with a leading axis of outputs."""
    values, pull = jax.vjp(lambda p: ravel(functional.value(p, point.noise)), point.params)
    chosen = index[:, None] == jnp.arange(values.shape[0])[None, :]
    (found,) = jax.vmap(pull)(chosen.astype(values.dtype))
    return found


class Solved(NamedTuple):
    """Solutions of a block of systems, and why each of them ended."""

    solution: Params
    outcome: Array
    direction: Params


@partial(jax.jit, static_argnames=("density", "family"))
def _solve_block(
    density: Density,
    family: Family,
    point: Point,
    rhs: Params,
    tolerances: Float[Array, " systems"],
) -> Solved:
    params = point.params
    _, _, curvature = hessian(
        lambda p: neg_elbo(density, family, p, point.noise, point.rows), params
    )
    project = partial(family.project, params)
    natural = family.metric(params)
    metric = FromFunctions(natural.apply, natural.solve, project)

    def solve(one: Params, tolerance: Float[Array, ""]) -> Solved:
        found = conjugate_gradient(
            projected(curvature, project),
            project(one),
            preconditioner=metric,
            natural_norm=True,
            relative_tolerance=tolerance,
            max_steps=_most_steps(point),
        )
        return Solved(found.solution, found.outcome, found.direction)

    if jax.default_backend() == "cpu":
        # One after another they stay in the cache, and none waits for the slowest.
        return jax.lax.map(lambda pair: solve(*pair), (rhs, tolerances))
    return jax.vmap(solve)(rhs, tolerances)


def block_size(target: AbstractTarget, num_draws: int, count: int) -> int:
    """How many of ``count`` systems to solve together, by the memory that their products take."""
    num_rows = max(target.num_rows, 1)
    width = max(num_rows, target.dimension, count)
    return min(count, int(np.clip(_NUMBERS / (num_draws * width), 1, _BLOCK)))


def solve(
    target: AbstractTarget,
    family: Family,
    point: Point,
    count: int,
    block_of: Callable[[Array], Params],
    keep: Callable[[Params, Params], Array],
    tolerance: float,
) -> Array:
    """``H^-1 b`` for ``count`` right-hand sides, block by block.

    ``block_of(index)`` makes the right-hand sides of some indices, and ``keep(rhs, solutions)``
    says what to keep of a block, so that nothing of size count x parameters exists at once. One
    more system with a random right-hand side is solved with every block: it meets any direction
    of negative curvature, which a chosen one may be blind to.

    Raises
    ------
    NumericalError
        If H is not positive definite, with the names of the coordinates that are flat.
    """
    size = block_size(target, point.noise.shape[0], count)
    probe = jax.tree.map(lambda leaf: leaf[None], _probe(family, point))
    parts = []
    for begin in range(0, count, size):
        # The last block is filled up, so that all blocks share one compilation.
        index = jnp.asarray(np.minimum(np.arange(begin, begin + size), count - 1))
        rhs = jax.tree.map(lambda b, r: np.concatenate([b, r]), block_of(index), probe)
        solved = _solved(target, family, point, rhs, count, tolerance)
        _refuse_failures(target, family, point, solved)
        used = min(size, count - begin)
        parts.append(np.asarray(keep(rhs, solved.solution))[:used])
    return jnp.asarray(np.concatenate(parts))


def _solved(
    target: AbstractTarget,
    family: Family,
    point: Point,
    rhs: Params,
    count: int,
    tolerance: float,
) -> Solved:
    """The systems of one block: on the host where that is cheap, else in one compiled solver."""
    look = Looker(target.density, family, point.params, point.noise, point.rows)
    accuracies = np.full(len(rhs.mean), max(tolerance, _rounding(point)), point.params.mean.dtype)
    if host_response.suits(look, count):
        found = host_response.solve_block(look, rhs, accuracies, _most_steps(point))
        return Solved(*jax.tree.map(jnp.asarray, found))
    return _solve_block(target.density, family, point, rhs, jnp.asarray(accuracies))


def _rounding(point: Point) -> float:
    return 0.0 if jnp.finfo(point.params.mean.dtype).bits > 32 else _SINGLE


def _most_steps(point: Point) -> int:
    return min(_MOST_STEPS, 100 * point.params.mean.size + 1000)


def _probe(family: Family, point: Point) -> Params:
    leaves, structure = jax.tree.flatten(point.params)
    rng = np.random.default_rng(0)
    noise = [np.asarray(rng.normal(size=leaf.shape), leaf.dtype) for leaf in leaves]
    return _covector(family, point.params, jax.tree.unflatten(structure, noise))


@partial(jax.jit, static_argnames="family")
def _covector(family: Family, params: Params, tangent: Params) -> Params:
    kept = family.project(params, tangent)
    return family.project(params, family.metric(params).apply(kept))


def _refuse_failures(target: AbstractTarget, family: Family, point: Point, solved: Solved) -> None:
    codes = np.asarray(solved.outcome)
    fine = np.isin(codes, [CGOutcome.CONVERGED.value, CGOutcome.STALLED.value])
    if fine.all():
        return
    worst = int(np.flatnonzero(~fine)[0])
    if codes[worst] == CGOutcome.NEGATIVE_CURVATURE.value:
        direction = jax.tree.map(lambda leaf: leaf[worst], solved.direction)
        names = flat_direction(target, family, point, direction)
        raise NumericalError(
            "linear response needs a positive definite Hessian, and the bound does not curve "
            f"upwards along {names}: the fit has not converged to a maximum, or the data say "
            "nothing there; fit again from another start, or give that direction a prior"
        )
    raise NumericalError(
        f"linear response could not be solved: {CGOutcome(int(codes[worst])).sentence} "
        "Try float64, or rescale the parameters"
    )


def coordinate_covariance(
    target: AbstractTarget, family: Family, point: Point
) -> Float[Array, "dimension dimension"]:
    """The block of H^-1 that belongs to the means: the covariance of the coordinates."""
    params = point.params
    dimension = params.mean.shape[0]

    def block_of(index: Array) -> Params:
        mean = (np.asarray(index)[:, None] == np.arange(dimension)[None, :]).astype(
            params.mean.dtype
        )
        return Params(
            mean,
            jax.tree.map(
                lambda leaf: np.zeros((len(index), *leaf.shape), leaf.dtype), params.scale
            ),
        )

    matrix = solve(target, family, point, dimension, block_of, _mean_of, _FOR_ENTRIES)
    entries = np.asarray(matrix)
    return jnp.asarray(0.5 * (entries + entries.T))


def response_sd(
    target: AbstractTarget, family: Family, point: Point, fn: Callable[[PyTree], PyTree]
) -> PyTree:
    """Linear-response sd of every output of ``fn(position)``, in the structure of its result."""
    reads = (fingerprint(fn), fingerprint(target.constrain))
    functional = Functional(target.density, family, fn, target.constrain, reads)
    outputs = jax.eval_shape(functional.value, point.params, point.noise)
    leaves, structure = jax.tree.flatten(outputs)
    unravel = Unravel(structure, tuple(leaf.shape for leaf in leaves))
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    block_of = partial(gradients, functional, point)
    found = solve(target, family, point, count, block_of, _products, _FOR_VARIANCES)
    return unravel(jnp.sqrt(found))


def _mean_of(rhs: Params, solution: Params) -> Float[Array, "block dimension"]:
    del rhs
    return solution.mean


def _products(rhs: Params, solution: Params) -> Float[Array, " block"]:
    """``b' H^-1 b`` of every system."""
    pairs = zip(jax.tree.leaves(rhs), jax.tree.leaves(solution), strict=True)
    first, *others = (
        np.sum((np.asarray(b) * np.asarray(x)).reshape(len(b), -1), axis=1) for b, x in pairs
    )
    return jnp.asarray(sum(others, first))
