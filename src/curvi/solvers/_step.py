"""One step of a trust region over a local model of the objective.

The step is written once, for NumPy vectors on the host and for pytrees inside compiled code. It
sees the objective through :class:`Objective` alone, so that any objective combines with any
solver of its subproblem (truncated conjugate gradients, or a dense factorisation).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

from curvi.linalg import CGOutcome, CGResult, Scalar, Vector
from curvi.linalg import _arithmetic as la


@dataclass(frozen=True)
class RegionRules:
    """When a step is taken, and what it does to the trust region and the next Newton system."""

    # Share of the predicted decrease that a step delivers: at least `accept` to be taken, below
    # `poor` the model is trusted less, above `good` it is trusted more.
    accept: float = 1e-4
    poor: float = 0.25
    good: float = 0.75
    # relative residual of a Newton system
    tightest: float = 0.03
    loosest: float = 0.1


REGION = RegionRules()


class SubproblemSolution(NamedTuple):
    """The minimiser of a quadratic model inside the trust region.

    Attributes
    ----------
    step : the move
    gain : decrease that the model predicts
    length : of the step, in the metric of the region
    inside : whether the model has its minimum inside the region, up to the solver's tolerance
    negative_curvature : whether a direction of negative curvature was met
    iterations : of the solver
    """

    step: Vector
    gain: Scalar
    length: Scalar
    inside: Scalar
    negative_curvature: Scalar
    iterations: Scalar


class LocalModel(NamedTuple):
    """Value, norm of the gradient in the metric, whether both are finite; the quadratic model."""

    value: Scalar
    grad_norm: Scalar
    finite: Scalar
    solve: Callable[[Scalar], SubproblemSolution]


@runtime_checkable
class Objective(Protocol):
    """What a trust region minimises."""

    @property
    def finfo(self) -> Any:
        """Limits of the precision that values are computed in."""

    def model(self, point: Vector) -> LocalModel:
        """The quadratic model at a point."""

    def value(self, point: Vector) -> Scalar:
        """The objective; NaN where the point cannot be used."""

    def moved(self, point: Vector, step: Vector) -> Vector:
        """The point after a step."""


class Step(NamedTuple):
    """A step that was judged; ``radius`` is that of the next one."""

    model: LocalModel
    solution: SubproblemSolution
    point: Vector
    trial: Vector
    trial_value: Scalar
    accepted: Scalar
    finite: Scalar
    converged: Scalar
    radius: Scalar


def trust_region_step(
    objective: Objective,
    point: Vector,
    radius: Scalar,
    tolerance: Scalar,
    *,
    policy: RegionRules = REGION,
) -> Step:
    r"""Minimise the model inside the region, and judge the step by what it delivers.

    The run has converged when an accepted step whose model has its minimum inside the region
    predicts a gain (the Newton decrement :math:`\tfrac12 g^\top H^{-1} g`) below the tolerance or
    the rounding error of the value.
    """
    model = objective.model(point)
    xp = la.namespace(model.value)
    solution = model.solve(radius)
    trial = objective.moved(point, solution.step)
    trial_value = objective.value(trial)
    rounding = rounding_of(model.value, objective.finfo.eps)
    ratio = agreement(model.value, trial_value, solution.gain, rounding)
    finite = model.finite & la.all_finite(trial_value, trial, solution.gain)
    # Where the radius is so small that the predicted gain drowns in rounding, a step says nothing:
    # accepting it would let the radius rise and fall for ever.
    significant = solution.inside | (solution.gain > rounding)
    accepted = finite & (ratio > policy.accept) & significant
    enough = xp.maximum(tolerance, rounding)
    converged = accepted & solution.inside & (solution.gain < enough)
    # Flat directions can look negative by rounding alone, and then no solve ends inside. If
    # shrinking the radius found no way down, the metric decides.
    converged = converged | (model.finite & ~significant & (0.5 * model.grad_norm**2 < enough))
    # A model that predicts no gain is not to be trusted, whatever the ratio.
    trusted = finite & (solution.gain > 0)
    return Step(
        model=model,
        solution=solution,
        point=point,
        trial=trial,
        trial_value=trial_value,
        accepted=accepted,
        finite=finite,
        converged=converged,
        radius=next_radius(radius, solution.length, ratio, trusted, objective.finfo, policy=policy),
    )


def next_radius(
    radius: Scalar,
    length: Scalar,
    ratio: Scalar,
    trusted: Scalar,
    finfo: Any,
    *,
    policy: RegionRules = REGION,
) -> Scalar:
    """Shrink after a bad step; grow after a good one that reached the boundary."""
    xp = la.namespace(radius)
    length = xp.where(xp.isfinite(length), length, radius)
    shrunk = 0.25 * xp.minimum(length, radius)
    grown = xp.where(length > 0.9 * radius, 3 * radius, radius)
    radius = xp.where(ratio > policy.good, grown, xp.where(ratio > policy.poor, radius, shrunk))
    tiny = float(finfo.tiny) ** 0.5
    return xp.clip(xp.where(trusted, radius, shrunk), tiny, 1 / tiny)


def next_damping(damping: Scalar, *, rise: Scalar, fall: Scalar, sound: Scalar) -> Scalar:
    """Levenberg-Marquardt: less after a step that was better than expected, more after a worse one.

    ``sound`` says whether the step was taken as it came; if not, the damping rises at once.
    """
    xp = la.namespace(damping)
    factor = xp.where(rise, 3 / 2, xp.where(fall, 2 / 3, 1.0))
    factor = xp.where(sound, factor, 3.0).astype(damping.dtype)
    return xp.clip(damping * factor, 1e-8, 1e8)


def rounding_of(value: Scalar, eps: Any = None) -> Scalar:
    """Size of the rounding error of an objective value."""
    xp = la.namespace(value)
    eps = float(xp.finfo(value.dtype).eps) if eps is None else float(eps)
    return eps * xp.maximum(xp.abs(value), 1.0)


def agreement(
    value: Scalar, trial_value: Scalar, gain: Scalar, rounding: Scalar | None = None
) -> Scalar:
    """Delivered over predicted decrease of a step.

    Both are lifted by the rounding error of the values: near the optimum their ratio is noise,
    and a good step must not be rejected for it.
    """
    lift = 10 * (rounding_of(value) if rounding is None else rounding)
    return (value - trial_value + lift) / (gain + lift)


def cg_tolerance(grad_norm: Scalar, *, policy: RegionRules = REGION) -> Scalar:
    """Relative residual of a Newton system: looser far from the optimum, where it is enough."""
    return la.namespace(grad_norm).clip(grad_norm, policy.tightest, policy.loosest)


def from_cg(result: CGResult) -> SubproblemSolution:
    """The solution of a subproblem by Steihaug's conjugate gradients."""
    return SubproblemSolution(
        step=result.solution,
        gain=-result.model_value,
        length=result.length,
        inside=(result.outcome == CGOutcome.CONVERGED) | (result.outcome == CGOutcome.STALLED),
        negative_curvature=result.negative_curvature,
        iterations=result.steps,
    )
