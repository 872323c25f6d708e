"""L-BFGS-SGVI: the quasi-Newton method of the paper, with screened pairs and a safe line search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi._core.errors import Outcome
from curvi.linalg import SecantMemory, all_finite, apply_inverse, empty_memory, remember, select
from curvi.solvers._method import Info, Method, Problem, make_info
from curvi.solvers._step import rounding_of


class LBFGSState(NamedTuple):
    """Parameters and the memory of secant pairs."""

    params: Any
    memory: SecantMemory


@dataclass(frozen=True)
class LBFGS(Method):
    """Limited-memory BFGS on the stochastic bound.

    Both gradients of a pair and all trials of the line search use the same batch and draws, so
    that differences measure curvature and not noise. Pairs without positive curvature are
    screened out. The line search brackets a weak Wolfe point by doubling and bisection and
    treats a value that is not finite as too high.

    On fixed draws it stops when half the squared gradient norm, in the metric of the secant
    pairs and in the natural one, is below the tolerance; on fresh samples it has no stopping
    rule.

    Parameters
    ----------
    history : int
        Number of pairs kept (10 or 15 in the paper).
    max_trials : int
        Trials of one line search.
    """

    history: int = 10
    max_trials: int = 30

    def __post_init__(self) -> None:
        """Validate counts."""
        validation.positive_integer(self.history, "history")
        validation.positive_integer(self.max_trials, "max_trials")

    def stops(self, problem: Problem) -> bool:
        """On fixed draws only."""
        return problem.fixed

    def init(self, problem: Problem, params: Any, resources: Any) -> LBFGSState:
        """Start with an empty memory."""
        return LBFGSState(params, empty_memory(params, self.history))

    def step(
        self, problem: Problem, state: LBFGSState, resources: Any, step: Array, tolerance: Array
    ) -> tuple[LBFGSState, Info]:
        """Direction from the memory, line search, new pair."""
        sample = problem.sample(resources, step)
        evaluate = jax.value_and_grad(lambda p: problem.value(p, sample))
        value, gradient = evaluate(state.params)
        gradient = problem.project(state.params, gradient)
        direction = optax.tree.scale(-1.0, apply_inverse(state.memory, gradient))
        direction = problem.project(state.params, direction)
        slope = optax.tree.vdot(gradient, direction)
        first = jnp.where(
            state.memory.num_pairs > 0, 1.0, 1 / jnp.maximum(optax.tree.norm(gradient), 1.0)
        )
        line = line_search(evaluate, state.params, direction, value, slope, first, self.max_trials)
        here = all_finite(value, gradient, direction)
        accepted = here & line.success
        move = optax.tree.scale(jnp.where(accepted, line.length, 0.0), direction)
        difference = optax.tree.sub(problem.project(state.params, line.gradient), gradient)
        memory, _ = remember(state.memory, move, difference)
        # After a failed search the memory is of no use: start again from the gradient.
        memory = select(here & ~accepted, empty_memory(state.params, self.history), memory)
        params = select(accepted, optax.tree.add(state.params, move), state.params)
        gain = -0.5 * slope
        outcome = jnp.asarray(Outcome.RUNNING.value, jnp.int32)
        if problem.fixed:
            # Near a saddle the guess is small but the line search finds a way down: go on.
            enough = jnp.maximum(tolerance, rounding_of(value))
            converged = here & (self._remaining(problem, state, gradient, gain) < enough)
            converged &= value - line.value <= jnp.maximum(tolerance, 10 * rounding_of(value))
            outcome = jnp.where(converged, Outcome.CONVERGED.value, Outcome.RUNNING.value)
        info = make_info(
            value,
            grad_norm=optax.tree.norm(gradient),
            gain=gain,
            cg_steps=line.trials,
            accepted=accepted,
            finite=here & line.finite,
            outcome=outcome,
        )
        return LBFGSState(params, select(accepted | here, memory, state.memory)), info

    def _remaining(self, problem: Problem, state: LBFGSState, gradient: Any, gain: Array) -> Array:
        """The larger of two guesses of the Newton decrement: secant pairs and natural metric."""
        metric = problem.metric(state.params)
        if metric is not None:
            natural = problem.project(state.params, metric.solve(gradient))
            gain = jnp.maximum(gain, 0.5 * optax.tree.vdot(gradient, natural))
        known = (state.memory.num_pairs > 0) | (gain <= 0)  # a gradient of zero needs no pairs
        return jnp.where(known, gain, jnp.inf)


class LineSearch(NamedTuple):
    """Where a line search ended."""

    length: Array
    value: Array
    gradient: Any
    success: Array
    finite: Array
    trials: Array


def line_search(
    evaluate: Any,
    params: Any,
    direction: Any,
    value: Array,
    slope: Array,
    first: Array,
    trials: int,
    *,
    armijo: float = 1e-4,
    curvature: float = 0.9,
) -> LineSearch:
    """Bracket a weak Wolfe point by doubling and bisection (Lewis and Overton 2013).

    The lower end of the bracket always satisfies the condition of decrease: if the trials run
    out it is taken, provided it is not zero.
    """
    dtype = value.dtype
    rounding = 10 * rounding_of(value)

    def body(carry: Any) -> Any:
        low, high, length, best, _, finite, count = carry
        trial_value, trial_gradient = evaluate(optax.tree.add_scale(params, length, direction))
        trial_slope = optax.tree.vdot(trial_gradient, direction)
        sound = all_finite(trial_value, trial_gradient)
        decreases = sound & (trial_value <= value + armijo * length * slope + rounding)
        flat = trial_slope >= curvature * slope
        best = select(decreases, (trial_value, trial_gradient), best)
        low = jnp.where(decreases, length, low)
        high = jnp.where(decreases, high, length)
        following = jnp.where(jnp.isfinite(high), 0.5 * (low + high), 2 * length)
        done = decreases & flat
        return low, high, following, best, done, finite & sound, count + 1

    start = (
        jnp.zeros((), dtype),
        jnp.asarray(jnp.inf, dtype),
        jnp.asarray(first, dtype),
        (value, optax.tree.zeros_like(params)),
        jnp.asarray(False),
        jnp.asarray(True),
        jnp.asarray(0, jnp.int32),
    )
    low, _, _, best, _, finite, count = jax.lax.while_loop(
        lambda carry: ~carry[4] & (carry[6] < trials), body, start
    )
    return LineSearch(low, *best, low > 0, finite, count)
