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
from curvi.linalg import all_finite, conjugate_gradient, damped, projected, select
from curvi.solvers._method import Info, Method, Problem, Stepper, make_info
from curvi.solvers._newton import (
    HostTrustRegion,
    SampledObjective,
    metric_norm,
    step_info,
    tangent_metric,
)
from curvi.solvers._step import REGION, next_radius, trust_region_step


@dataclass(frozen=True)
class Stopping:
    """When a trust-region run has converged under noise, and where it starts."""

    window: int = 40  # steps, at least, over which the gain of stochastic steps is averaged
    rounding: int = 16  # units in the last place of the parameters, as a norm
    first_radius: float = 0.1  # first radius over the size of the parameters
    # nats per root of a parameter: what noise may still cost when a run stops
    noise_left: float = 0.05


STOPPING = Stopping()


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
    """

    cg_steps: int = 1000
    curvature_batch_size: int | None = None

    def __post_init__(self) -> None:
        """Validate counts."""
        validation.positive_integer(self.cg_steps, "cg_steps")
        if self.curvature_batch_size is not None:
            validation.positive_integer(self.curvature_batch_size, "curvature_batch_size")

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """That of the curvature, if it has one of its own."""
        return () if self.curvature_batch_size is None else (self.curvature_batch_size,)

    def stops(self, problem: Problem) -> bool:
        """Always: by the Newton decrement, or by the standard error of the gain."""
        return True

    def init(self, problem: Problem, params: Any, resources: Any) -> TrustRegionState:
        """Start with a radius of about one posterior sd per coordinate."""
        leaf = jax.tree.leaves(params)[0]
        size = sum(x.size for x in jax.tree.leaves(params))
        zero = jnp.zeros((), leaf.dtype)
        return TrustRegionState(
            params=params,
            previous=params,
            radius=zero + self._first_radius(problem, params, size),
            damping=zero + 1.0,
            average=params,
            gain_mean=zero,
            gain_square=zero,
            noise=zero,
            moves=jnp.asarray(0, jnp.int32),
            doubt=jnp.asarray(False),
        )

    def _first_radius(self, problem: Problem, params: Any, size: int) -> Any:
        """One sd per coordinate; a small part of the parameters where no metric gives a scale.

        A step too long is rejected on a fixed sample. On fresh ones it may be accepted by chance.
        """
        if problem.fixed or problem.metric(params) is not None:
            return size**0.5
        return STOPPING.first_radius * (optax.tree.norm(params) + 0.1 * size**0.5)

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

    def estimate(self, state: TrustRegionState) -> Any:
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
        objective = SampledObjective(
            problem, problem.sample(resources, step), self.cg_steps, state.radius.dtype
        )
        taken = trust_region_step(objective, state.params, state.radius, tolerance)
        here, gain = taken.model.finite, taken.solution.gain
        params = select(
            taken.accepted,
            taken.trial,
            # A gradient that is not finite at an accepted point: go back to the one before.
            select(here, state.params, state.previous),
        )
        moved = state._replace(
            params=params,
            previous=select(taken.accepted, state.params, state.previous),
            radius=taken.radius,
            average=params,
            gain_mean=gain,
            gain_square=gain**2,
            noise=jnp.zeros_like(gain),
            moves=state.moves + taken.accepted.astype(jnp.int32),
            doubt=~here,
        )
        return moved, step_info(make_info, taken)

    def takes_newton_steps(self, problem: Problem) -> bool:
        """On deterministic problems."""
        return problem.fixed

    def has_host_steps(self, problem: Problem) -> bool:
        """On deterministic problems."""
        return problem.fixed

    def stepper(self, problem: Problem, params: Any, resources: Any) -> Stepper | None:
        """Steps on the host, where the problem is deterministic and can be evaluated there."""
        objective = problem.flat(params, resources) if problem.fixed else None
        return None if objective is None else HostTrustRegion(objective, params, self.cg_steps)

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
            relative_tolerance=REGION.loosest,
            max_steps=min(self.cg_steps, 50),
            verify=False,
        )
        trial = optax.tree.add(params, solved.solution)
        trial_value = problem.value(trial, other)
        here = all_finite(value, gradient, other_value, other_gradient)
        finite = here & all_finite(trial_value, trial)
        # Judged on the sample that the gradient has not seen: a step that only fits the noise of
        # its own sample fails there, the damping rises, and the iterates settle down.
        predicted = jnp.maximum(-solved.model_value, jnp.finfo(value.dtype).tiny)
        delivered = other_value - trial_value
        ratio = delivered / predicted
        difference = optax.tree.sub(gradient, problem.project(params, other_gradient))
        accepted = finite & (
            _acceptable(delivered, predicted, solved, difference)
            | _is_rounding(solved.solution, params)
        )
        # Not from the step itself, which damping and radius shorten: they must not look like the
        # end of the way.
        natural = metric.solve(gradient)
        gain = 0.5 * optax.tree.vdot(other_gradient, natural)
        change = jnp.where(ratio > REGION.good, 0.8, jnp.where(ratio < REGION.poor, 1.5, 1.0))
        # The radius shrinks at a rejection, and any accepted step that it cut short lets it grow
        # again: rejections by noise alone must not freeze the run. Along negative curvature the
        # model says nothing about how far to go, and only a step that delivers lets it grow.
        success = jnp.where(solved.negative_curvature, ratio, 1.0).astype(value.dtype)
        agreed = jnp.where(accepted, jnp.maximum(success, 0.5), 0.0)
        finfo = jnp.finfo(value.dtype)
        radius = next_radius(state.radius, solved.length, agreed, finite, finfo)
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


def _acceptable(delivered: Array, predicted: Array, solved: Any, difference: Any) -> Array:
    """Whether a stochastic step is taken, by the decrease on the sample that judges it.

    A step of the right kind may raise that sample by chance. The two samples differ by
    ``difference`` in their gradients, so by its product with the step in what they say about it;
    no more than that is forgiven, nor more than the gain that the model predicts. That gain
    means nothing along negative curvature, where a step has to lower the sample.
    """
    noise = jnp.abs(optax.tree.vdot(difference, solved.solution))
    forgiven = jnp.where(solved.negative_curvature, 0.0, jnp.minimum(predicted, noise))
    return delivered > -forgiven


def _is_rounding(step: Any, params: Any, *, policy: Stopping = STOPPING) -> Array:
    """Whether a step is at the level of rounding, where no value can judge it and none is lost."""
    size = optax.tree.norm(params)
    return optax.tree.norm(step) <= policy.rounding * jnp.finfo(size.dtype).eps * size


def _next_damping(state: TrustRegionState, change: Array) -> Array:
    """Adapt the damping, but let it grow no faster than the steps are counted.

    Steps of size 1 / (1 + t / 5) are those of Robbins and Monro with the Newton matrix: they
    shrink fast enough to settle and slowly enough to reach the optimum. Free damping would
    freeze wherever noise outweighs the signal of a single step.
    """
    limit = 1 + 0.2 * state.moves.astype(change.dtype)
    return jnp.clip(state.damping * change, 1e-6, limit)


def _averaged(
    state: TrustRegionState,
    gain: Array,
    noise: Array,
    accepted: Array,
    *,
    policy: Stopping = STOPPING,
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
    weight = 1 / jnp.clip(moves, 1.0, jnp.maximum(policy.window, moves / 2))
    mean = state.gain_mean + weight * (gain - state.gain_mean)
    square = state.gain_square + weight * (gain**2 - state.gain_square)
    kept = state._replace(
        average=select(accepted, average, state.average),
        gain_mean=mean,
        gain_square=square,
        noise=state.noise + weight * (noise - state.noise),
    )
    # An exponential window of weight w has 2/w - 1 effective terms.
    error = jnp.sqrt(jnp.maximum(square - mean**2, 0.0) / jnp.maximum(2 / weight - 1, 1.0))
    cost = 0.5 * kept.noise / jnp.maximum(2 / weight - 1, 1.0)
    size = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    return kept, (state.moves >= 2 * policy.window) & (mean < error) & (
        cost < policy.noise_left * size**0.5
    )
