"""HessianFree: damped, preconditioned conjugate gradients on growing batches (Martens 2010)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.linalg import (
    CGPath,
    DiagonalMetric,
    LinearMap,
    Metric,
    all_finite,
    conjugate_gradient_path,
    damped,
    hutchinson_diagonal,
    select,
)
from curvi.solvers import _layered_steps as layered_steps
from curvi.solvers._kronecker import first_sides, kronecker_metric, mean_curvature, renewed_sides
from curvi.solvers._method import (
    Info,
    Layered,
    Problem,
    StochasticMethod,
    check_preconditioner,
    make_info,
)
from curvi.solvers._rotated import diagonal_layers
from curvi.solvers._second_sample import (
    Move,
    Sampled,
    mean_of_batches,
    mean_value,
    measured,
    shortened,
)
from curvi.solvers._step import REGION, agreement, next_damping


@dataclass(frozen=True)
class HessianFreeRules:
    """How a Hessian-free step damps its curvature, and how many batches it asks for."""

    probes: int = 3  # of the diagonal, where there are no layers
    # first lambda
    first_damping: float = 0.1
    first_damping_of_layers: float = 1.0
    warm: float = 0.9  # how much of the last solution conjugate gradients start from
    # iterations with Kronecker factors while few batches serve a step; then one for each
    fewest_iterations: int = 5
    # Multiples of a solution above which lambda may fall, and, relative to the signal, below which
    # it rises: the curvature of the first batch then does not hold on another.
    long_step: float = 0.8
    short_step: float = 0.4
    # What a step costs whatever its batches (products, preconditioner), in units of a batch of both
    # samples. With m batches and a signal s = m / (m + n) for noise n, gain per cost s / (c + m) is
    # greatest at m^2 = c n: below it, s < c / (c + m).
    fixed_cost: float = 3.0
    growth: float = 1.25
    lift: float = 0.01  # of small variances in the scale of principal coordinates


RULES = HessianFreeRules()


class HessianFreeMethodState(NamedTuple):
    """Parameters, Levenberg-Marquardt damping, last solution, what the preconditioner keeps.

    ``growth`` is the number of batches in a sample, ``batches`` how many were drawn so far.
    """

    params: Any
    damping: Array
    direction: Any
    kept: Any
    growth: Array
    batches: Array


@dataclass(frozen=True)
class HessianFree(StochasticMethod):
    r"""Solve :math:`(G + \lambda I) p = -\nabla F` on one sample, and measure p on a second one.

    G is the Gauss-Newton matrix of the objective (for an auto-encoder with the exact Hessian of
    the KL term) or the exact Hessian. It is linearised once per step; products reuse the stored
    activations. Conjugate gradients start from the last solution and keep the iterates
    :math:`x_j` after 1, 3, 7, ... steps. The second sample, of the same size, has its own gradient
    :math:`\tilde g` and curvature :math:`\tilde G`. It chooses the iterate, and how far to go,

    .. math:: t = \min\Big(\frac{-\tilde g^\top x_j}{x_j^\top \tilde G x_j},\ 1.5\Big),

    close to 1 where the solution is signal, and less where it fits the noise of the first sample.
    How much of the slope is signal, :math:`s = \tilde g^\top x_j / g^\top x_j`, decides about the
    batch: below 3 / (3 + m) for a sample of m batches, more of them would gain more for what they
    cost, and the sample grows by a quarter, up to ``max_growth`` batches; products stay on one
    batch. Both values that judge the step are taken on the second sample with common draws, so
    that the comparison sees the step and not its noise. Lambda falls where the model predicted the
    decrease well and t is near 1; it rises where the prediction was poor, or where t is far below
    s, because the curvature of one batch did not hold on another. A step that decreases nothing is
    tried at a quarter of its length.

    The built-in networks of ``curvi.VAE`` have steps that cost less. The first sample begins with
    two batches, the second is one, and conjugate gradients run in the eigenbasis of the Kronecker
    factors, where these are diagonal. The second sample tells the last step d, from which they
    start, from the y that they add: :math:`p = c\,d + t\,y` with the best c and t.
    There the sample grows where s is below 4 / (4 + m).

    Parameters
    ----------
    curvature : {"gauss_newton", "hessian"}
        The matrix.
    cg_steps : int
        K, iterations at most. With Kronecker factors there are as many as batches in the sample,
        and at least five; in the eigenbasis half as many, and at least three; otherwise always K.
    preconditioner : {"auto", "kronecker", "diagonal", None}
        Kronecker factors of every layer, for an objective that shows its layers, as
        :class:`~curvi.solvers.KFAC` needs it; the diagonal of the curvature, estimated with random
        signs and kept as a running mean; or nothing. "auto" takes the first that is possible.
    initial_damping : float, optional
        First lambda, in units of the mean of the curvature's diagonal (without a preconditioner,
        where that is not known, lambda itself). By default 1 in the eigenbasis of layers, whose
        first gradients are mostly noise, and 0.1 otherwise.
    max_growth : int
        Largest number of batches in a sample.
    directions : int, optional
        For ``curvi.VAE`` and Kronecker factors: the encoder reads at most so many principal
        coordinates of the images, as under KFAC. None keeps all.

    References
    ----------
    Martens (2010), *Deep learning via Hessian-free optimization*.
    """

    curvature: str = "gauss_newton"
    cg_steps: int = 30
    preconditioner: str | None = "auto"
    initial_damping: float | None = None
    max_growth: int = 16
    directions: int | None = 200

    def __post_init__(self) -> None:
        """Validate the options."""
        validation.one_of(self.curvature, ("gauss_newton", "hessian"), "curvature")
        for name in ("cg_steps", "max_growth"):
            validation.positive_integer(getattr(self, name), name)
        if self.initial_damping is not None:
            validation.positive_number(self.initial_damping, "initial_damping")
        if self.directions is not None:
            validation.positive_integer(self.directions, "directions")
        check_preconditioner(self.preconditioner, "auto", "kronecker")

    @property
    def decomposes(self) -> bool:
        """Factors of every layer, where they precondition."""
        return self.preconditioner in ("auto", "kronecker")

    @property
    def principal(self) -> tuple[int | None, float] | None:
        """In principal coordinates the input factor is diagonal."""
        return (self.directions, RULES.lift) if self.decomposes else None

    @property
    def usual_batch_size(self) -> int:
        """With layers several make a gradient; otherwise curvature on fewer follows their noise."""
        return 200 if self.decomposes else 500

    def init(self, problem: Problem, params: Any, resources: Any) -> HessianFreeMethodState:
        """No direction yet."""
        zeros = sides = optax.tree.zeros_like(params)
        one, none = jnp.ones((), optax.tree.dtype(params)), jnp.asarray(0, jnp.int32)
        exact = self._exact(problem)
        if exact is not None:
            sides = first_sides(exact, params, diagonal_layers(exact, params))
            growth = jnp.minimum(layered_steps.LAYERED.first_batches * one, self.max_growth)
            last = exact.matrices(zeros)
            return HessianFreeMethodState(params, one, last, sides, growth, none)
        layered = self._layered(problem)
        if layered is not None:
            sides = first_sides(layered, params)
        return HessianFreeMethodState(params, one, zeros, sides, one, none)

    def step(
        self,
        problem: Problem,
        state: HessianFreeMethodState,
        resources: Any,
        step: Array,
        tolerance: Array,
    ) -> tuple[HessianFreeMethodState, Info]:
        """Linearise, solve, measure on a second sample."""
        if self._exact(problem) is not None:
            return self._layered_step(problem, state, resources, step)
        count = state.growth.astype(jnp.int32)
        sample = problem.sample(resources, state.batches)
        mine = self._sampled(problem, state.params, resources, state.batches, count)
        second = state.batches + count
        other = self._sampled(problem, state.params, resources, second, count)
        state = self._begun(problem, state, mine.operator, sample, resources, step)
        path = self._solved(problem, state, mine, count)

        def value_of(params: Any) -> Array:
            return mean_value(problem, params, resources, second, count)

        move = measured(path, state.params, state.damping, mine, other, value_of)
        trial = optax.tree.add(state.params, move.step)
        ratio = agreement(other.value, move.value, move.gain)
        finite = all_finite(mine.value, mine.gradient, other.value, move.value, trial)
        after, accepted = self._judged(state, move, ratio, finite, RULES.fixed_cost)
        after = after._replace(batches=second + count)
        moved = after._replace(params=trial, direction=move.step)
        stay = after._replace(direction=optax.tree.zeros_like(state.params))
        info = make_info(
            mine.value,
            grad_norm=optax.tree.norm(mine.gradient),
            gain=move.gain,
            cg_steps=path.steps,
            accepted=accepted,
            finite=finite,
            negative_curvature=path.negative_curvature,
            batches=2 * count,
        )
        return select(accepted, moved, stay), info

    def _layered_step(
        self, problem: Problem, state: HessianFreeMethodState, resources: Any, step: Array
    ) -> tuple[HessianFreeMethodState, Info]:
        """The same for a network of layers, in the eigenbasis of their factors."""
        count = state.growth.astype(jnp.int32)
        sample = problem.sample(resources, state.batches)
        sides, last, unit = layered_steps.renewed(
            problem.layered(), state.params, state.kept, state.direction, sample, step
        )
        first = jnp.asarray(
            self._first_damping(RULES.first_damping_of_layers) * unit, state.damping.dtype
        )
        damping = jnp.where(step == 0, first, state.damping)
        system = layered_steps.system_of(
            problem, state.params, resources, state.batches, count, sides
        )
        second = problem.sample(resources, state.batches + count)
        model = layered_steps.measured(
            problem, state.params, system, last, damping, second,
            layered_steps.iterations(count, self.cg_steps),
        )  # fmt: skip

        def at(step_size: Array) -> Array:
            moved = jax.tree.map(lambda p, x: p + step_size * x, state.params, model.step)
            return problem.value(moved, second)

        step_size, value, retries = shortened(at, jnp.ones((), model.value.dtype), model.value)
        gain = step_size * (model.slope - 0.5 * step_size * model.curvature)
        trial = jax.tree.map(lambda p, x: p + step_size * x, state.params, model.step)
        ratio = agreement(model.value, value, gain)
        finite = layered_steps.finite_step(system, model) & all_finite(value, trial)
        move = Move(model.step, model.length, model.signal, gain, value, retries)
        begun = state._replace(damping=damping, kept=sides)
        after, accepted = self._judged(begun, move, ratio, finite, layered_steps.LAYERED.fixed_cost)
        after = after._replace(batches=state.batches + count + 1)
        moved = after._replace(params=trial, direction=optax.tree.scale(step_size, model.direction))
        stay = after._replace(direction=optax.tree.zeros_like(last))
        info = make_info(
            system.value,
            grad_norm=optax.tree.norm(system.gradient),
            gain=gain,
            cg_steps=model.cg_steps,
            accepted=accepted,
            finite=finite,
            batches=count + 1,
        )
        return select(accepted, moved, stay), info

    def _judged(
        self, state: HessianFreeMethodState, move: Move, ratio: Array, finite: Array, cost: float
    ) -> tuple[HessianFreeMethodState, Array]:
        """The next damping and size of a sample, and whether the step is taken.

        It is where nothing changes but for rounding: at an optimum nothing decreases.
        """
        accepted = finite & (ratio > 0)
        fall = (ratio > REGION.good) & (move.length > RULES.long_step)
        rise = (ratio < REGION.poor) | (move.length < RULES.short_step * move.signal)
        sound = accepted & (move.retries == 0)
        noisy = move.signal < cost / (cost + state.growth)
        grown = jnp.where(noisy, RULES.growth * state.growth, state.growth)
        after = state._replace(
            damping=next_damping(state.damping, rise=rise, fall=fall, sound=sound),
            growth=jnp.minimum(grown, self.max_growth),
        )
        return after, accepted

    def _sampled(
        self, problem: Problem, params: Any, resources: Any, first: Array, count: Array
    ) -> Sampled:
        """Means over the batches ``first`` to ``first + count``; the curvature of the first."""
        linearised = problem.linearise
        if self.curvature == "gauss_newton":
            linearised = problem.gauss_newton
        value, gradient, operator = linearised(params, problem.sample(resources, first))
        start = value, gradient
        value, gradient = mean_of_batches(problem, params, resources, first, count, start)
        return Sampled(value, gradient, operator)

    def _begun(
        self,
        problem: Problem,
        state: HessianFreeMethodState,
        operator: LinearMap,
        sample: Any,
        resources: Any,
        step: Array,
    ) -> HessianFreeMethodState:
        """The state with a renewed preconditioner, and at the first step with its damping."""
        layered = self._layered(problem)
        unit: Any = 1.0
        if layered is not None:
            sides = renewed_sides(layered, state.params, state.kept, sample, step)
            unit = mean_curvature(layered, state.params, sides)
        elif self.preconditioner is not None:
            key = problem.probe_key(resources, step)
            fresh = hutchinson_diagonal(operator, key, RULES.probes)
            weight = jnp.maximum(0.1, 1 / (1 + step.astype(state.damping.dtype)))
            sides = jax.tree.map(lambda d, f: d + weight * (f - d), state.kept, fresh)
            sides = select(all_finite(sides), sides, state.kept)
            size = sum(leaf.size for leaf in jax.tree.leaves(sides))
            unit = optax.tree.sum(jax.tree.map(jnp.abs, sides)) / size
        else:
            sides = state.kept
        first = jnp.asarray(self._first_damping(RULES.first_damping) * unit, state.damping.dtype)
        return state._replace(kept=sides, damping=jnp.where(step == 0, first, state.damping))

    def _solved(
        self, problem: Problem, state: HessianFreeMethodState, mine: Sampled, count: Array
    ) -> CGPath:
        layered = self._layered(problem)
        metric: Metric | None = None
        steps: Any = self.cg_steps
        if layered is not None:
            metric = kronecker_metric(layered, state.kept, state.damping)
            steps = jnp.minimum(jnp.maximum(RULES.fewest_iterations, count), self.cg_steps)
        elif self.preconditioner is not None:
            lifted = jax.tree.map(lambda d: (jnp.abs(d) + state.damping) ** 0.75, state.kept)
            metric = DiagonalMetric(lifted)
        return conjugate_gradient_path(
            damped(mine.operator, state.damping),
            optax.tree.scale(-1.0, mine.gradient),
            preconditioner=metric,
            initial=optax.tree.scale(RULES.warm, state.direction),
            max_steps=steps,
        )

    def _first_damping(self, usual: float) -> float:
        return usual if self.initial_damping is None else self.initial_damping

    def _exact(self, problem: Problem) -> Any:
        """The layers, where they precondition and are all of the objective."""
        if self.curvature != "gauss_newton" or self._layered(problem) is None:
            return None
        return layered_steps.exact_layers(problem)

    def _layered(self, problem: Problem) -> Layered | None:
        """The layers, where they precondition."""
        if self.preconditioner == "kronecker":
            return problem.layered()
        if self.preconditioner == "auto":
            try:
                return problem.layered()
            except InputError:
                return None
        return None
