"""One trip of truncated conjugate gradients: a step along the search direction, or a check.

Every trip makes exactly one product, with the search direction or, when the recursive residual
claims convergence, with the iterate itself. One product serves both so that the operator is
compiled once and a batch of systems (``vmap``) does not pay for both branches.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax.tree

PyTree = Any

RUNNING = -1


class CGOutcome(enum.IntEnum):
    """Why conjugate gradients stopped."""

    CONVERGED = 0
    PROGRESS = 1
    MAX_STEPS = 2
    NEGATIVE_CURVATURE = 3
    BOUNDARY = 4
    NON_FINITE = 5
    STALLED = 6

    @property
    def sentence(self) -> str:
        """What happened, for people."""
        return _SENTENCES[self]


_SENTENCES = {
    CGOutcome.CONVERGED: "The true residual meets the tolerance.",
    CGOutcome.PROGRESS: "The last steps improved the quadratic model too little to go on.",
    CGOutcome.MAX_STEPS: "The cap on the number of steps was reached.",
    CGOutcome.NEGATIVE_CURVATURE: "A direction without positive curvature was found.",
    CGOutcome.BOUNDARY: "The solution lies on the boundary of the trust region.",
    CGOutcome.NON_FINITE: "A product, the preconditioner or the right-hand side is not finite.",
    CGOutcome.STALLED: "Rounding, or a preconditioner that is not positive, ended progress.",
}


@dataclass(frozen=True)
class Problem:
    """What stays fixed during the iteration; right-hand side and radius are already scaled."""

    operator: Callable[[PyTree], PyTree]
    solve: Callable[[PyTree], PyTree]
    rhs: PyTree
    threshold: jax.Array  # residual norm that counts as converged
    natural: bool  # whether residuals are measured in the norm of M^-1
    eps: float
    radius: jax.Array | None
    max_steps: int
    progress_tolerance: jax.Array | None


class State(NamedTuple):
    """What changes. The current iterate is ``base + correction``.

    The correction is kept apart because it starts again from zero at each refinement: rounding of
    the sum then enters once and not at every step.
    """

    base: PyTree  # the last iterate whose true residual is known
    base_norm: jax.Array  # the norm of that residual
    base_model: jax.Array
    correction: PyTree
    residual: PyTree  # recursive, b - A x
    energy: jax.Array  # r' M^-1 r
    search: PyTree  # direction p
    curvature: jax.Array  # p' A p of the last product with p
    length_sq: jax.Array  # x' M x, and the two products that update it without M
    overlap: jax.Array  # x' M p
    search_sq: jax.Array  # p' M p
    best: PyTree
    best_norm: jax.Array
    best_model: jax.Array
    lowest_model: jax.Array
    checking: jax.Array  # the next product is for the true residual
    refined: jax.Array  # a restart has broken the Lanczos recurrence
    steps: jax.Array
    products: jax.Array
    outcome: jax.Array
    history: jax.Array  # circular: model values of the last steps
    alphas: jax.Array
    betas: jax.Array


class _Residual(NamedTuple):
    vector: PyTree
    preconditioned: PyTree
    energy: jax.Array
    norm: jax.Array


class _Step(NamedTuple):
    curvature: jax.Array  # p' A p
    flat: jax.Array  # not positive up to rounding
    alpha: jax.Array
    beta: jax.Array


def quadratic_model(rhs: PyTree, iterate: PyTree, residual: PyTree) -> jax.Array:
    """phi(x) = x'Ax/2 - b'x = -x'(b + r)/2, without a product."""
    return -0.5 * optax.tree.vdot(iterate, optax.tree.add(rhs, residual))


def trip(problem: Problem, state: State) -> State:
    """Make one product and use it for a step or for a check."""
    iterate = optax.tree.add(state.base, state.correction)
    product = problem.operator(optax.tree.where(state.checking, iterate, state.search))
    curvature = optax.tree.vdot(state.search, product)
    alpha = state.energy / jnp.where(curvature > 0, curvature, 1.0)
    vector = optax.tree.where(
        state.checking,
        optax.tree.sub(problem.rhs, product),
        optax.tree.add_scale(state.residual, -alpha, product),
    )
    preconditioned = problem.solve(vector)
    residual = _Residual(
        vector,
        preconditioned,
        energy := optax.tree.vdot(vector, preconditioned),
        residual_size(problem, vector, energy),
    )
    # Compared with the rounding error of p'Ap itself, which no rescaling of coordinates changes.
    flat = curvature <= problem.eps * magnitude(state.search, product)
    step = _Step(curvature, flat, alpha, residual.energy / state.energy)
    counted = state._replace(products=state.products + 1)
    checked = _after_check(problem, counted, iterate, residual)
    stepped = _after_step(problem, counted, step, residual)
    return optax.tree.where(state.checking, checked, stepped)


def magnitude(first: PyTree, second: PyTree) -> jax.Array:
    """``sum |a_i b_i|``, the scale of the rounding error of ``a'b``."""
    return optax.tree.vdot(jax.tree.map(jnp.abs, first), jax.tree.map(jnp.abs, second))


def residual_size(problem: Problem, residual: PyTree, energy: jax.Array) -> jax.Array:
    """``|r|``, or ``sqrt(r' M^-1 r)`` where residuals are measured in the metric."""
    if problem.natural:
        return jnp.sqrt(jnp.maximum(energy, 0.0))
    return optax.tree.norm(residual)


def _after_step(problem: Problem, state: State, step: _Step, residual: _Residual) -> State:
    """The state after x + alpha p, or the unchanged iterate and the reason why there is no step."""
    correction = optax.tree.add_scale(state.correction, step.alpha, state.search)
    iterate = optax.tree.add(state.base, correction)
    model = quadratic_model(problem.rhs, iterate, residual.vector)
    moved = _move(problem, state, iterate, step, residual)
    outside = jnp.asarray(False)
    if problem.radius is not None:
        outside = moved.length_sq >= problem.radius**2
    refusal = _first(
        (~jnp.isfinite(step.curvature), CGOutcome.NON_FINITE),
        (step.flat, CGOutcome.NEGATIVE_CURVATURE),
        (outside, CGOutcome.BOUNDARY),
        (~jnp.isfinite(residual.norm + residual.energy + model), CGOutcome.NON_FINITE),
    )
    stay = state._replace(outcome=refusal, curvature=step.curvature)

    steps = state.steps + 1
    claims_convergence = residual.norm <= problem.threshold
    history, slow = _progress(problem, state.history, steps, model)
    outcome = _first(
        (claims_convergence, RUNNING),
        (residual.energy <= 0, CGOutcome.STALLED),
        (slow, CGOutcome.PROGRESS),
        (steps >= problem.max_steps, CGOutcome.MAX_STEPS),
    )
    # After a restart the recurrence is another one, and its coefficients are not stored.
    here = (jnp.arange(state.alphas.size, dtype=jnp.int32) == state.steps) & ~state.refined
    moved = moved._replace(
        correction=correction,
        curvature=step.curvature,
        checking=claims_convergence,
        steps=steps,
        outcome=outcome,
        history=history,
        alphas=jnp.where(here, step.alpha, state.alphas),
        betas=jnp.where(here, step.beta, state.betas),
    )
    moved = _keep_best(problem, moved, iterate, residual.norm, model)
    return optax.tree.where(refusal == RUNNING, moved, stay)


def _move(
    problem: Problem, state: State, iterate: PyTree, step: _Step, residual: _Residual
) -> State:
    """New residual, new direction, and the lengths in the norm of M.

    With M z = r and r'p = 0 for the old p, the lengths follow without a product with M.
    """
    moved = state._replace(
        residual=residual.vector,
        energy=residual.energy,
        search=optax.tree.add_scale(residual.preconditioned, step.beta, state.search),
    )
    if problem.radius is None:
        return moved
    overlap = state.overlap + step.alpha * state.search_sq
    return moved._replace(
        length_sq=state.length_sq + step.alpha * (state.overlap + overlap),
        overlap=optax.tree.vdot(iterate, residual.vector) + step.beta * overlap,
        search_sq=residual.energy + step.beta**2 * state.search_sq,
    )


def _after_check(problem: Problem, state: State, iterate: PyTree, residual: _Residual) -> State:
    """Accept a true residual below the threshold; otherwise restart from it, or give up.

    A restart is iterative refinement. It is worth while only as long as it halves the true
    residual; when it does not, the precision is used up.
    """
    model = quadratic_model(problem.rhs, iterate, residual.vector)
    converged = residual.norm <= problem.threshold
    outcome = _first(
        (~jnp.isfinite(residual.norm + residual.energy + model), CGOutcome.NON_FINITE),
        (converged, CGOutcome.CONVERGED),
        (state.steps >= problem.max_steps, CGOutcome.MAX_STEPS),
        (~(residual.norm <= 0.5 * state.base_norm), CGOutcome.STALLED),
        (residual.energy <= 0, CGOutcome.STALLED),
    )
    improves = (residual.norm <= state.base_norm) | (
        model < state.base_model - _slack(problem, state.base_model)
    )
    candidate = (iterate, residual.norm, model)
    fallback = (state.base, state.base_norm, state.base_model)
    kept, kept_norm, kept_model = optax.tree.where(improves, candidate, fallback)
    lowest = jnp.where(converged, jnp.inf, state.lowest_model).astype(model.dtype)
    best = _keep_best(problem, state._replace(lowest_model=lowest), kept, kept_norm, kept_model)
    restarted = best._replace(
        base=iterate,
        base_norm=residual.norm,
        base_model=model,
        correction=optax.tree.zeros_like(iterate),
        residual=residual.vector,
        energy=residual.energy,
        search=residual.preconditioned,
        overlap=optax.tree.vdot(iterate, residual.vector),
        search_sq=residual.energy,
        checking=jnp.asarray(False),
        refined=jnp.asarray(True),
        outcome=outcome,
    )
    bad = state._replace(outcome=outcome)
    return optax.tree.where(outcome == CGOutcome.NON_FINITE, bad, restarted)


def _keep_best(
    problem: Problem, state: State, iterate: PyTree, norm: jax.Array, model: jax.Array
) -> State:
    """Adopt the iterate unless its model value is worse than the lowest one by more than rounding.

    Close to the solution model values cannot tell iterates apart while residuals still fall, so a
    tie goes to the later iterate. An iterate that does not descend (b'x <= 0) is never adopted: it
    can only arise from a warm start on an indefinite system.
    """
    adopt = model <= state.lowest_model + _slack(problem, state.lowest_model)
    adopt &= optax.tree.vdot(problem.rhs, iterate) > 0
    best, best_norm, best_model = optax.tree.where(
        adopt, (iterate, norm, model), (state.best, state.best_norm, state.best_model)
    )
    return state._replace(
        best=best,
        best_norm=best_norm,
        best_model=best_model,
        lowest_model=jnp.minimum(state.lowest_model, best_model),
    )


def _slack(problem: Problem, model: jax.Array) -> jax.Array:
    return problem.eps**0.5 * jnp.abs(model)


def _progress(
    problem: Problem, history: jax.Array, steps: jax.Array, model: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Martens' test: whether the relative progress over a window is below the tolerance."""
    if problem.progress_tolerance is None:
        return history, jnp.asarray(False)
    window = jnp.maximum(10, steps // 10)
    past = history[(steps - window) % history.size]
    history = history.at[steps % history.size].set(model)
    gain = past - model  # both are <= 0 and the later one is lower
    limit = window.astype(model.dtype) * problem.progress_tolerance * -model
    return history, (steps > window) & (model < 0) & (gain < limit)


def _first(*cases: tuple[jax.Array, int]) -> jax.Array:
    """The code of the first condition that holds, else RUNNING."""
    conditions, codes = zip(*cases, strict=True)
    values = [jnp.asarray(int(code), jnp.int32) for code in codes]
    return jnp.select(list(conditions), values, jnp.asarray(RUNNING, jnp.int32))
