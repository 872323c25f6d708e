"""TrustRegion, the default: Newton-CG steps that are judged before they are taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi._core.errors import Outcome
from curvi._core.trees import Metric
from curvi.linalg import CGOutcome, conjugate_gradient, damped, projected
from curvi.solvers._method import (
    GOOD,
    POOR,
    Info,
    Method,
    agreement,
    all_finite,
    make_info,
    rounding_of,
    select,
)
from curvi.solvers._problem import Problem

ACCEPT = 1e-4  # a step must deliver this share of the gain that its model predicts
TIGHTEST = 0.03  # relative residual of a Newton system; tighter ones cost more than they gain
_WINDOW = 40  # steps, at least, over which the gain of stochastic steps is averaged
_NOISE = 0.05  # nats per root of a parameter: what noise may still cost when a run stops


class TrustRegionState(NamedTuple):
    """Parameters, the last accepted ones before them, and how far the model is trusted."""

    params: Any
    previous: Any
    radius: Array
    damping: Array
    average: Any
    gain_mean: Array
    gain_square: Array
    noise: Array
    moves: Array
    doubt: Array


@dataclass(frozen=True)
class TrustRegion(Method):
    r"""Newton-CG in a trust region, on common random numbers.

    On fixed draws the bound is a deterministic function. Each step minimises its quadratic
    model by conjugate gradients inside an ellipsoid of the natural metric (Steihaug), compares
    both ends on the same draws, and is rejected if it does not deliver. The run stops when the
    Newton decrement :math:`\tfrac12 g^\top H^{-1} g`, the gain that is left, falls below
    ``tolerance`` nats.

    On fresh draws or minibatches a step solves :math:`(H + \lambda M) p = -g` with
    Levenberg-Marquardt damping, H from a sample of its own (``curvature_batch_size``), and is
    judged, at both ends, on that second sample. Because the two samples are independent,
    :math:`\tfrac12 g_H^\top M^{-1} g` estimates the remaining gain without bias; the run stops when
    its average over the last steps is below its standard error and the noise that is left in
    the averaged parameters, which it returns, costs less than 0.05 nats times the root of their
    number.

    Parameters
    ----------
    cg_steps : int
        Cap on conjugate-gradient steps within one Newton step.
    curvature_batch_size : int, optional
        Rows in the curvature sample of stochastic steps; as many as in the batch by default.
    mc_tolerance : float, optional
        Monte-Carlo error of the mean, in posterior sds, that ``curvi.fit`` accepts. Where fixed
        draws have a larger one and their number was left to curvi, it fits again on more of
        them, starting from where it stands. None never does.
    """

    cg_steps: int = 1000
    curvature_batch_size: int | None = None
    mc_tolerance: float | None = 0.05

    def __post_init__(self) -> None:
        """Refuse caps that are no counts."""
        validation.positive_integer(self.cg_steps, "cg_steps")
        if self.curvature_batch_size is not None:
            validation.positive_integer(self.curvature_batch_size, "curvature_batch_size")
        if self.mc_tolerance is not None:
            validation.positive_number(self.mc_tolerance, "mc_tolerance")

    def stops(self, problem: Problem) -> bool:
        """Always: by the Newton decrement, or by the standard error of the gain."""
        del problem
        return True

    def init(self, problem: Problem, params: Any, resources: Any) -> TrustRegionState:
        """Start with a radius of about one posterior sd per coordinate."""
        del problem, resources
        leaf = jax.tree.leaves(params)[0]
        size = sum(x.size for x in jax.tree.leaves(params))
        zero = jnp.zeros((), leaf.dtype)
        return TrustRegionState(
            params=params,
            previous=params,
            radius=zero + size**0.5,
            damping=zero + 1.0,
            average=params,
            gain_mean=zero,
            gain_square=zero,
            noise=zero,
            moves=jnp.asarray(0, jnp.int32),
            doubt=jnp.asarray(False),
        )

    def step(
        self,
        problem: Problem,
        state: TrustRegionState,
        resources: Any,
        step: Array,
        tolerance: Array,
    ) -> tuple[TrustRegionState, Info]:
        """One Newton step, deterministic or stochastic by what the problem is."""
        if problem.fixed:
            return self._deterministic(problem, state, resources, step, tolerance)
        return self._stochastic(problem, state, resources, step)

    def answer(self, state: TrustRegionState) -> Any:
        """The average of stochastic iterates; the iterate itself on fixed draws."""
        return state.average

    def _deterministic(
        self,
        problem: Problem,
        state: TrustRegionState,
        resources: Any,
        step: Array,
        tolerance: Array,
    ) -> tuple[TrustRegionState, Info]:
        sample = problem.sample(resources, step)
        params = state.params
        value, gradient, curvature = problem.linearise(params, sample)
        gradient = problem.project(params, gradient)
        metric = tangent_metric(problem, params)
        norm = metric_norm(metric.solve, gradient)
        solved = conjugate_gradient(
            projected(curvature, lambda t: problem.project(params, t)),
            optax.tree.scale(-1.0, gradient),
            preconditioner=metric,
            natural_norm=True,
            radius=state.radius,
            relative_tolerance=jnp.clip(norm, TIGHTEST, 0.1),
            max_steps=self.cg_steps,
        )
        trial = optax.tree.add(params, solved.solution)
        trial_value = problem.value(trial, sample)
        gain = -solved.model_value
        inside = (solved.outcome == CGOutcome.CONVERGED) | (solved.outcome == CGOutcome.STALLED)
        here = all_finite(value, gradient)
        finite = here & all_finite(trial_value, trial, gain)
        ratio = agreement(value, trial_value, gain)
        # A step whose promise drowns in rounding because the radius is tiny is no step: accepting
        # it would let the radius rise and fall for ever.
        audible = inside | (gain > rounding_of(value))
        accepted = finite & (ratio > ACCEPT) & audible
        enough = jnp.maximum(tolerance, rounding_of(value))
        converged = accepted & inside & (gain < enough)
        # Flat directions can look negative by rounding alone, and then no solve ends inside. If
        # shrinking the radius found no way down, the natural metric decides.
        converged |= here & ~audible & (0.5 * norm**2 < enough)
        length = metric_norm(metric.apply, solved.solution)
        moved = TrustRegionState(
            # A gradient that is not finite at an accepted point: go back to the one before.
            params=select(accepted, trial, select(here, params, state.previous)),
            previous=select(accepted, params, state.previous),
            # A model that predicts no gain is not to be trusted, whatever the ratio.
            radius=_next_radius(state.radius, length, ratio, finite & (gain > 0)),
            damping=state.damping,
            average=params,
            gain_mean=gain,
            gain_square=gain**2,
            noise=jnp.zeros_like(gain),
            moves=state.moves + accepted.astype(jnp.int32),
            doubt=~here,
        )
        info = make_info(
            value,
            grad_norm=norm,
            gain=gain,
            cg_steps=solved.steps,
            accepted=accepted,
            finite=finite,
            negative_curvature=solved.negative_curvature,
            outcome=jnp.where(converged, Outcome.CONVERGED.value, Outcome.RUNNING.value),
        )
        return moved._replace(average=moved.params), info

    def _stochastic(
        self, problem: Problem, state: TrustRegionState, resources: Any, step: Array
    ) -> tuple[TrustRegionState, Info]:
        params = state.params
        sample = problem.sample(resources, step)
        other = problem.sample(resources, step, stream=1, size=self.curvature_batch_size)
        value, gradient = jax.value_and_grad(problem.value)(params, sample)
        other_value, other_gradient, curvature = problem.linearise(params, other)
        gradient = problem.project(params, gradient)
        metric = tangent_metric(problem, params)
        operator = projected(curvature, lambda t: problem.project(params, t))
        solved = conjugate_gradient(
            damped(operator, state.damping, metric),
            optax.tree.scale(-1.0, gradient),
            preconditioner=metric,
            natural_norm=True,
            radius=state.radius,  # bounds the step where the curvature is negative
            relative_tolerance=0.1,
            max_steps=min(self.cg_steps, 50),
        )
        trial = optax.tree.add(params, solved.solution)
        trial_value = problem.value(trial, other)
        here = all_finite(value, gradient, other_value, other_gradient)
        finite = here & all_finite(trial_value, trial)
        # Judged on the sample that the gradient has not seen: a step that only fits the noise of
        # its own sample fails there, the damping rises, and the iterates settle down.
        predicted = jnp.maximum(-solved.model_value, jnp.finfo(value.dtype).tiny)
        ratio = (other_value - trial_value) / predicted
        accepted = finite & (ratio > -1.0)
        length = metric_norm(metric.apply, solved.solution)
        # Not from the step itself, which damping and radius shorten: they must not look like the
        # end of the way.
        natural = metric.solve(gradient)
        gain = 0.5 * optax.tree.vdot(other_gradient, natural)
        change = jnp.where(ratio > GOOD, 0.8, jnp.where(ratio < POOR, 1.5, 1.0))
        # The radius shrinks at a rejection, and any accepted step that it cut short lets it grow
        # again: rejections by noise alone must not freeze the run.
        radius = _next_radius(state.radius, length, accepted.astype(length.dtype), finite)
        damping = _next_damping(state, jnp.where(finite, change, 3.0))
        # A sample that is not finite where we stand may be an accident of that sample: only the
        # second one in a row sends the run back, and neither says anything about the step.
        back = ~here & state.doubt
        state = state._replace(
            params=select(accepted, trial, select(back, state.previous, params)),
            previous=select(accepted, params, state.previous),
            radius=jnp.where(here, radius, state.radius),
            damping=jnp.where(here, damping, state.damping),
            moves=state.moves + accepted.astype(jnp.int32),
            doubt=~here,
        )
        difference = optax.tree.sub(gradient, problem.project(params, other_gradient))
        # The variances of both gradients: more than that of the one which drives the steps, by a
        # factor that depends on the sizes of the two samples. A stopping rule may err that way.
        noise = optax.tree.vdot(difference, metric.solve(difference))
        averaged, converged = _averaged(state, gain, noise, accepted)
        state = select(here, averaged, state)
        converged &= here
        info = make_info(
            value,
            grad_norm=metric_norm(metric.solve, gradient),
            gain=jnp.where(here, gain, 0.0),
            cg_steps=solved.steps,
            accepted=accepted,
            finite=finite,
            negative_curvature=solved.negative_curvature,
            outcome=jnp.where(converged, Outcome.CONVERGED.value, Outcome.RUNNING.value),
        )
        return state, info


def _next_radius(radius: Array, length: Array, ratio: Array, finite: Array) -> Array:
    """Shrink after a bad step; grow after a good one that reached the boundary."""
    length = jnp.where(jnp.isfinite(length), length, radius)
    shrunk = 0.25 * jnp.minimum(length, radius)
    grown = jnp.where(length > 0.9 * radius, 3 * radius, radius)
    radius = jnp.where(ratio > GOOD, grown, jnp.where(ratio > POOR, radius, shrunk))
    tiny = float(jnp.finfo(radius.dtype).tiny) ** 0.5
    return jnp.clip(jnp.where(finite, radius, shrunk), tiny, 1 / tiny)


def _next_damping(state: TrustRegionState, change: Array) -> Array:
    """Adapt the damping, but let it grow no faster than the steps are counted.

    Steps of size 1 / (1 + t / 5) are those of Robbins and Monro with the Newton matrix: they
    shrink fast enough to settle and slowly enough to reach the optimum. Free damping would
    freeze wherever noise outweighs the signal of a single step.
    """
    limit = 1 + 0.2 * state.moves.astype(change.dtype)
    return jnp.clip(state.damping * change, 1e-6, limit)


def _averaged(
    state: TrustRegionState, gain: Array, noise: Array, accepted: Array
) -> tuple[TrustRegionState, Array]:
    """Average iterates over about the last third of the run, and gains over its second half.

    The run may stop when the average gain is below its standard error, and the average of n
    noisy iterates is good enough: with S the covariance of a gradient it costs about
    ``tr(H^-1 S) / 2n`` nats, and the squared difference of two gradients in the natural metric
    estimates the trace from above.
    """
    moves = state.moves.astype(gain.dtype)
    weight = 1 / jnp.maximum(moves / 3, 1.0)
    average = jax.tree.map(lambda a, p: a + weight * (p - a), state.average, state.params)
    share = 1 / jnp.clip(moves, 1.0, jnp.maximum(_WINDOW, moves / 2))
    mean = state.gain_mean + share * (gain - state.gain_mean)
    square = state.gain_square + share * (gain**2 - state.gain_square)
    kept = state._replace(
        average=select(accepted, average, state.average),
        gain_mean=mean,
        gain_square=square,
        noise=state.noise + share * (noise - state.noise),
    )
    # An exponential window of weight w has 2/w - 1 effective terms.
    error = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) / jnp.maximum(2 / share - 1, 1.0))
    cost = 0.5 * kept.noise / jnp.maximum(2 / weight - 1, 1.0)
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return kept, (state.moves >= 2 * _WINDOW) & (mean < error) & (cost < _NOISE * size**0.5)


def tangent_metric(problem: Problem, params: Any) -> Metric:
    """The natural metric on the directions that matter; Euclidean where there is none."""
    natural = problem.metric(params)
    if natural is None:
        return Metric(lambda t: t, lambda t: t)
    return Metric(
        natural.apply, lambda t: problem.project(params, natural.solve(problem.project(params, t)))
    )


def metric_norm(operator: Any, tangent: Any) -> Array:
    """``sqrt(t' A t)``."""
    return jnp.sqrt(jnp.maximum(optax.tree.vdot(tangent, operator(tangent)), 0.0))
