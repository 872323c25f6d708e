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
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core.compilation import compiled
from curvi._core.errors import InputError, NumericalError
from curvi._core.programs import Program, trace
from curvi._core.trees import Unravel, coordinate_names, ravel
from curvi.diagnostics._flat_directions import flat_direction
from curvi.diagnostics._monte_carlo import draws_of
from curvi.engine import Execution, Resources, VariationalProblem
from curvi.families import Family, Params
from curvi.linalg import (
    CGOutcome,
    FunctionMetric,
    conjugate_gradient,
    eager_conjugate_gradient,
    projected,
)
from curvi.objective import Stream, host_generator, plan_draws
from curvi.solvers import FlatObjective
from curvi.targets import AbstractTarget


@dataclass(frozen=True)
class Solving:
    """How the systems of a linear response are solved."""

    most_together: int = 64  # systems solved together at most
    most_numbers: float = 3e7  # held by one vectorised product at most
    most_steps: int = 10_000
    most_eager_systems: int = 300  # on the host, above which compiling pays
    products_per_system: float = 13.0  # that one solution takes, to judge its cost
    # Relative residuals. The error of a variance b'x is of second order in its residual, that of an
    # entry of the solution is of first order; single precision reaches no more than the last.
    variance_tolerance: float = 1e-4
    entry_tolerance: float = 1e-6
    single_precision_tolerance: float = 1e-4


SOLVING = Solving()


@dataclass(frozen=True, eq=False)
class Optimum:
    """Where the Hessian is taken: a problem on fixed draws, and its optimal parameters."""

    target: AbstractTarget
    problem: VariationalProblem
    params: Params
    resources: Resources
    execution: Execution

    @classmethod
    def of(
        cls, target: AbstractTarget, problem: VariationalProblem, params: Params,
        noise: Array | None, key: PRNGKeyArray, execution: Execution,
    ) -> Optimum:  # fmt: skip
        """That of a fit; after a stochastic one, on the default draws of q."""
        family, problem = problem.family, replace(problem, batch_size=None)
        if noise is None:
            problem = replace(problem, plan=plan_draws(family, target.dimension))
            if problem.plan.fresh:
                raise InputError(
                    f"linear response needs fixed draws, and {type(family).__name__} in "
                    f"{target.dimension} dimensions has too many parameters for them; use "
                    "MeanField() or LowRank(rank)"
                )
            noise = draws_of(problem, key, 1)
        return cls(target, problem, params, Resources(key, target.rows, noise), execution)

    @property
    def noise(self) -> Array:
        """The fixed draws."""
        noise: Any = self.resources.noise
        return noise


def _expectation(
    g: Program, family: Family, params: Params, noise: Float[Array, "draws noise"]
) -> PyTree:
    """``E_q[g]`` on the draws, in the structure of g."""

    def average(leaf: Array) -> Array:
        real = jnp.issubdtype(leaf.dtype, jnp.floating)
        return jnp.mean(leaf if real else leaf.astype(params.mean.dtype), axis=0)

    return jax.tree.map(average, jax.vmap(lambda e: g(family.transform(params, e)))(noise))


@partial(compiled, static_argnames="family")
def gradients(g: Program, family: Family, params: Params, noise: Array, index: Array) -> Params:
    """``b_g`` of some outputs of g: parameters with a leading axis of outputs."""
    values, pull = jax.vjp(lambda p: ravel(_expectation(g, family, p, noise)), params)
    chosen = index[:, None] == jnp.arange(values.shape[0])[None, :]
    (found,) = jax.vmap(pull)(chosen.astype(values.dtype))
    # The slope of a logarithm is finite where the logarithm is not.
    lost = ~jnp.isfinite(values)[index]
    return jax.tree.map(
        lambda leaf: jnp.where(lost.reshape(-1, *[1] * (leaf.ndim - 1)), jnp.nan, leaf), found
    )


class Solved(NamedTuple):
    """Solutions of a block of systems, and why each of them ended."""

    solution: Params
    outcome: Array
    direction: Params


@compiled
def _solve_compiled(
    problem: VariationalProblem,
    params: Params,
    resources: Resources,
    rhs: Params,
    tolerances: Float[Array, " systems"],
) -> Solved:
    sample = problem.sample(resources, jnp.asarray(0, jnp.int32))
    _, _, curvature = problem.linearise(params, sample)
    project = partial(problem.project, params)
    natural = problem.metric(params)
    metric = FunctionMetric(natural.apply, natural.solve, project)

    def solve(one: Params, tolerance: Float[Array, ""]) -> Solved:
        found = conjugate_gradient(
            projected(curvature, project),
            project(one),
            preconditioner=metric,
            natural_norm=True,
            relative_tolerance=tolerance,
            max_steps=_most_steps(params),
        )
        return Solved(found.solution, found.outcome, found.direction)

    if jax.default_backend() == "cpu":
        # One after another they stay in the cache, and none waits for the slowest.
        return jax.lax.map(lambda pair: solve(*pair), (rhs, tolerances))
    return jax.vmap(solve)(rhs, tolerances)


@compiled
def _natural(problem: VariationalProblem, params: Params, rhs: Params) -> tuple[Params, Params]:
    """P b and P M^-1 P b, for a block of right-hand sides."""

    def one(covector: Params) -> tuple[Params, Params]:
        kept = problem.project(params, covector)
        return kept, problem.project(params, problem.metric(params).solve(kept))

    return jax.vmap(one)(rhs)


def _solve_eagerly(
    objective: FlatObjective,
    optimum: Optimum,
    rhs: Params,
    tolerances: np.ndarray,
    *,
    policy: Solving = SOLVING,
) -> Solved:
    """The same on the host, through the evaluation that the fit has compiled."""
    vector = objective.ravel(optimum.params)
    covectors, naturals = (
        [objective.ravel(jax.tree.map(lambda leaf, i=i: leaf[i], tree)) for i in range(len(rhs[0]))]
        for tree in _natural(optimum.problem, optimum.params, rhs)
    )

    def products(tangent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = objective(vector, tangent)
        return found.product, found.natural_product

    found = [
        eager_conjugate_gradient(
            products,
            covector,
            natural,
            eps=float(jnp.finfo(objective.dtype).eps),
            relative_tolerance=float(tolerance),
            max_steps=_most_steps(optimum.params, policy=policy),
            verify=True,
        )
        for covector, natural, tolerance in zip(covectors, naturals, tolerances, strict=True)
    ]

    def stacked(vectors: list[np.ndarray]) -> Params:
        trees = [objective.unravel(one) for one in vectors]
        return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)

    return Solved(
        stacked([one.solution for one in found]),
        jnp.asarray([int(one.outcome) for one in found]),
        stacked([one.direction for one in found]),
    )


def block_size(optimum: Optimum, count: int, *, policy: Solving = SOLVING) -> int:
    """How many of ``count`` systems to solve together, by the memory that their products take."""
    width = max(optimum.problem.density.num_rows, optimum.problem.dimension, count, 1)
    return min(
        count,
        int(
            np.clip(policy.most_numbers / (optimum.noise.shape[0] * width), 1, policy.most_together)
        ),
    )


def solve(
    optimum: Optimum,
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
    size = block_size(optimum, count)
    probe = jax.tree.map(lambda leaf: leaf[None], _probe(optimum))
    parts = []
    for begin in range(0, count, size):
        # The last block is filled up, so that all blocks share one compilation.
        index = jnp.asarray(np.minimum(np.arange(begin, begin + size), count - 1))
        rhs = jax.tree.map(lambda b, r: np.concatenate([b, r]), block_of(index), probe)
        solved = _solved(optimum, rhs, count, tolerance)
        _raise_on_failure(optimum, solved)
        used = min(size, count - begin)
        parts.append(np.asarray(keep(rhs, solved.solution))[:used])
    return jnp.asarray(np.concatenate(parts))


def _solved(
    optimum: Optimum, rhs: Params, count: int, tolerance: float, *, policy: Solving = SOLVING
) -> Solved:
    """The systems of one block: on the host where that is cheap, else in one compiled solver."""
    params, resources = optimum.params, optimum.resources
    dtype = params.mean.dtype
    reachable = 0.0 if jnp.finfo(dtype).bits > 32 else policy.single_precision_tolerance
    tolerances = np.full(len(rhs.mean), max(tolerance, reachable), dtype)
    objective = optimum.problem.flat(params, resources)
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    products = policy.products_per_system * count
    if (
        objective is not None
        and count <= policy.most_eager_systems
        and optimum.execution.is_eager(objective.cost, size, products)
    ):
        return _solve_eagerly(objective, optimum, rhs, tolerances, policy=policy)
    return _solve_compiled(optimum.problem, params, resources, rhs, jnp.asarray(tolerances))


def _most_steps(params: Params, *, policy: Solving = SOLVING) -> int:
    return min(policy.most_steps, 100 * params.mean.size + 1000)


def _probe(optimum: Optimum) -> Params:
    leaves, structure = jax.tree.flatten(optimum.params)
    rng = host_generator(optimum.resources.key, Stream.PROBES)
    noise = [np.asarray(rng.normal(size=leaf.shape), leaf.dtype) for leaf in leaves]
    return _covector(optimum.problem, optimum.params, jax.tree.unflatten(structure, noise))


@compiled
def _covector(problem: VariationalProblem, params: Params, tangent: Params) -> Params:
    kept = problem.project(params, tangent)
    return problem.project(params, problem.metric(params).apply(kept))


def _raise_on_failure(optimum: Optimum, solved: Solved) -> None:
    codes = np.asarray(solved.outcome)
    fine = np.isin(codes, [CGOutcome.CONVERGED.value, CGOutcome.STALLED.value])
    if fine.all():
        return
    worst = int(np.flatnonzero(~fine)[0])
    if codes[worst] == CGOutcome.NEGATIVE_CURVATURE.value:
        direction = jax.tree.map(lambda leaf: leaf[worst], solved.direction)
        names = flat_direction(
            optimum.problem, optimum.params, optimum.resources, direction, optimum.target.position
        )
        raise NumericalError(
            "linear response needs a positive definite Hessian, and the bound does not curve "
            f"upwards along {names}: the fit has not converged to a maximum, or the data say "
            "nothing there; fit again from another start, or give that direction a prior"
        )
    raise NumericalError(
        f"linear response could not be solved: {CGOutcome(int(codes[worst])).sentence} "
        "See that the function is finite at draws of q, try float64, or rescale the parameters"
    )


def coordinate_covariance(
    optimum: Optimum, *, policy: Solving = SOLVING
) -> Float[Array, "dimension dimension"]:
    """The block of H^-1 that belongs to the means: the covariance of the coordinates."""
    params = optimum.params
    dimension = params.mean.shape[0]

    def block_of(index: Array) -> Params:
        chosen = np.asarray(index)[:, None] == np.arange(dimension)[None, :]
        zeros = jax.tree.map(
            lambda leaf: np.zeros((len(index), *leaf.shape), leaf.dtype), params.scale_params
        )
        return Params(chosen.astype(params.mean.dtype), zeros)

    matrix = solve(optimum, dimension, block_of, _mean_of, policy.entry_tolerance)
    entries = np.asarray(matrix)
    return jnp.asarray(0.5 * (entries + entries.T))


def response_sd(
    optimum: Optimum, fn: Callable[[PyTree], PyTree] | None, *, policy: Solving = SOLVING
) -> PyTree:
    """Linear-response sd of every output of ``fn(position)``, in the structure of its result.

    Without a function it is that of the position itself, NaN where it moves in steps.
    """
    target, family = optimum.target, optimum.problem.family
    g = trace(lambda z: (fn or _itself)(target.to_user(z)), target.start)
    outputs = jax.eval_shape(partial(_expectation, g, family), optimum.params, optimum.noise)
    leaves, structure = jax.tree.flatten(outputs)
    unravel = Unravel(structure, tuple(leaf.shape for leaf in leaves))
    count = sum(math.prod(leaf.shape) for leaf in leaves)
    block_of = partial(gradients, g, family, optimum.params, optimum.noise)
    sds = np.sqrt(np.asarray(solve(optimum, count, block_of, _products, policy.variance_tolerance)))
    steps = np.flatnonzero(sds == 0)
    steps = steps[_varies(g, optimum)[steps]] if len(steps) else steps
    if len(steps) and fn is not None:
        which = "" if count == 1 else f" (output {coordinate_names(outputs)[steps[0]]})"
        raise NumericalError(
            f"fn{which} moves in steps: it varies over the draws, but its gradient is zero at each "
            "of them, so that linear response would call its sd 0; compute it over sample()"
        )
    sds[steps] = np.nan
    return unravel(jnp.asarray(sds))


def _itself(position: PyTree) -> PyTree:
    return position


def _varies(g: Program, optimum: Optimum) -> np.ndarray:
    """Which outputs are not the same at all draws."""
    family, params = optimum.problem.family, optimum.params
    values = jax.vmap(lambda epsilon: g(family.transform(params, epsilon)))(optimum.noise)
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(values)]
    rows = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], axis=1)
    return np.ptp(rows, axis=0) > 0


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
