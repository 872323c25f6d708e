"""A problem as a trust region sees it: its local quadratic model, compiled and on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array

from curvi._core.errors import Outcome
from curvi.linalg import (
    FunctionMetric,
    Metric,
    all_finite,
    conjugate_gradient,
    eager_conjugate_gradient,
    projected,
    select,
)
from curvi.solvers._flat import Derivatives, FlatObjective
from curvi.solvers._method import Info, Problem
from curvi.solvers._step import (
    LocalModel,
    Step,
    SubproblemSolution,
    cg_tolerance,
    from_cg,
    trust_region_step,
)


class SampledObjective:
    """The objective on one sample inside compiled code, as a trust region sees it."""

    def __init__(self, problem: Problem, sample: Any, cg_steps: int, dtype: Any) -> None:
        self.problem, self.sample, self.cg_steps = problem, sample, cg_steps
        self.finfo = jnp.finfo(dtype)

    def model(self, params: Any) -> LocalModel:
        """Value, gradient and Hessian by the R-operator, and Steihaug's solver."""
        value, gradient, curvature = self.problem.linearise(params, self.sample)
        gradient = self.problem.project(params, gradient)
        metric = tangent_metric(self.problem, params)
        norm = metric_norm(metric.solve, gradient)

        def solve(radius: Array) -> SubproblemSolution:
            found = conjugate_gradient(
                projected(curvature, lambda t: self.problem.project(params, t)),
                optax.tree.scale(-1.0, gradient),
                preconditioner=metric,
                natural_norm=True,
                radius=radius,
                relative_tolerance=cg_tolerance(norm),
                max_steps=self.cg_steps,
                verify=False,
            )
            return from_cg(found)

        return LocalModel(value, norm, all_finite(value, gradient), solve)

    def value(self, params: Any) -> Array:
        """The objective."""
        return self.problem.value(params, self.sample)

    def moved(self, params: Any, step: Any) -> Any:
        """The sum."""
        return optax.tree.add(params, step)


class HostTrustRegion:
    """The same steps on the host, through one compiled evaluation of the objective."""

    def __init__(self, objective: FlatObjective, params: Any, cg_steps: int) -> None:
        self.objective, self.cg_steps = objective, cg_steps
        self.finfo = jnp.finfo(objective.dtype)
        self.vector = objective.ravel(params)
        self.radius = np.float64(len(self.vector) ** 0.5)
        self._known: list[tuple[np.ndarray, Derivatives]] = []

    @property
    def params(self) -> Any:
        """Where the run stands."""
        return self.objective.unravel(self.vector)

    def state(self) -> list[Any]:
        """Where the run stands, and its radius."""
        return [self.vector, float(self.radius)]

    def restore(self, state: list[Any]) -> None:
        """Go on from there; derivatives are evaluated again."""
        self.vector, self.radius = state[0], np.float64(state[1])

    def prepare(self) -> None:
        """Compile the objective."""
        self._evaluated(self.vector)

    def step(self, tolerance: float) -> Info:
        """One step of the trust region."""
        with np.errstate(all="ignore"):  # what is not finite is rejected
            taken = trust_region_step(self, self.vector, self.radius, tolerance)
        if not taken.model.finite:
            # There is no earlier point to return to: only the start can be like this.
            return step_info(_host_info, taken)._replace(outcome=Outcome.NON_FINITE.value)
        self.radius = taken.radius
        if taken.accepted:
            self.vector = taken.trial
        return step_info(_host_info, taken)

    def model(self, vector: np.ndarray) -> LocalModel:
        """Value and gradient, and Steihaug's solver with products from the compiled function."""
        here = self._evaluated(vector)
        norm = np.sqrt(np.maximum(here.gradient @ here.natural, 0.0))

        def products(tangent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = self.objective(vector, tangent)
            return found.product, found.natural_product

        def solve(radius: float) -> SubproblemSolution:
            found = eager_conjugate_gradient(
                products,
                -here.gradient,
                -here.natural,
                eps=float(self.finfo.eps),
                relative_tolerance=cg_tolerance(norm),
                max_steps=self.cg_steps,
                radius=radius,
            )
            return from_cg(found)

        return LocalModel(np.float64(here.value), norm, np.bool_(here.finite), solve)

    def value(self, vector: np.ndarray) -> Any:
        """The objective, or NaN where its gradient is not finite."""
        found = self._evaluated(vector)
        return np.float64(found.value if found.finite else np.nan)

    def moved(self, vector: np.ndarray, step: np.ndarray) -> np.ndarray:
        """The sum, rounded to the precision of the objective."""
        return self.objective.rounded(vector + step)

    def _evaluated(self, vector: np.ndarray) -> Derivatives:
        """Those of the last two points are kept: a trial may be the next start, or be rejected."""
        for point, derivatives in self._known:
            if point is vector:
                return derivatives
        self._known = [*self._known[-1:], (vector, self.objective(vector))]
        return self._known[-1][1]


def step_info(make: Callable[..., Info], taken: Step) -> Info:
    """What a step of the trust region reports."""
    outcome = select(taken.converged, Outcome.CONVERGED.value, Outcome.RUNNING.value)
    return make(
        taken.model.value,
        grad_norm=taken.model.grad_norm,
        gain=taken.solution.gain,
        cg_steps=taken.solution.iterations,
        accepted=taken.accepted,
        finite=taken.finite,
        negative_curvature=taken.solution.negative_curvature,
        outcome=outcome,
    )


def _host_info(value: Any, **entries: Any) -> Info:
    return Info(value, **entries)


def tangent_metric(problem: Problem, params: Any) -> Metric:
    """The natural metric on the directions that matter; Euclidean where there is none."""
    natural = problem.metric(params)
    if natural is None:
        return FunctionMetric(lambda t: t, lambda t: t)
    return FunctionMetric(
        natural.apply, lambda t: problem.project(params, natural.solve(problem.project(params, t)))
    )


def metric_norm(operator: Any, tangent: Any) -> Array:
    """``sqrt(t' A t)``."""
    return jnp.sqrt(jnp.maximum(optax.tree.vdot(tangent, operator(tangent)), 0.0))
