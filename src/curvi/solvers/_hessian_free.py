"""HessianFree: damped, preconditioned conjugate gradients on large batches (Martens 2010)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi.linalg import (
    Diagonal,
    LinearMap,
    Metric,
    conjugate_gradient,
    damped,
    hutchinson_diagonal,
)
from curvi.linalg._arithmetic import all_finite, select
from curvi.solvers._kronecker import first_sides, kronecker_metric, renewed_sides
from curvi.solvers._method import Info, Problem, StochasticMethod, check_preconditioner, make_info
from curvi.solvers._step import GOOD, POOR, agreement

_PROBES = 3
_WARM = 0.9  # how much of the last solution conjugate gradients start from


class HessianFreeMethodState(NamedTuple):
    """Parameters, Levenberg-Marquardt damping, last solution, what the preconditioner keeps."""

    params: Any
    damping: Array
    direction: Any
    kept: Any


@dataclass(frozen=True)
class HessianFree(StochasticMethod):
    r"""Solve :math:`(G + \lambda I) p = -\nabla F` by conjugate gradients, and move if it pays.

    G is the Gauss-Newton matrix of the objective (for an auto-encoder with the exact Hessian of
    the KL term) or the exact Hessian. It is linearised once per step; products reuse the stored
    activations. The gradient, the products and both values that judge the step are taken on one
    batch with one set of draws, so that the comparison sees the step and not the noise; lambda
    rises or falls with how well the model predicted it. Conjugate gradients start from the last
    solution and are preconditioned: by the diagonal of the curvature, estimated with random signs
    and kept as a running mean, or by Kronecker factors of every layer.

    Parameters
    ----------
    curvature : {"gauss_newton", "hessian"}
        The matrix.
    cg_steps : int
        K, iterations at most.
    preconditioner : {"diagonal", "kronecker", None}
        "kronecker" needs an objective that shows its layers, as :class:`~curvi.solvers.KFAC` does.
        None is the plain version of the paper.
    initial_damping : float
        First lambda.
    curvature_rows : int, optional
        Rows of the batch that products are taken on; by default all.
    """

    curvature: str = "gauss_newton"
    cg_steps: int = 30
    preconditioner: str | None = "diagonal"
    initial_damping: float = 1.0
    curvature_rows: int | None = None

    def __post_init__(self) -> None:
        """Validate the options."""
        validation.one_of(self.curvature, ("gauss_newton", "hessian"), "curvature")
        validation.positive_integer(self.cg_steps, "cg_steps")
        validation.positive_number(self.initial_damping, "initial_damping")
        if self.curvature_rows is not None:
            validation.positive_integer(self.curvature_rows, "curvature_rows")
        check_preconditioner(self.preconditioner, "kronecker")

    @property
    def decomposes(self) -> bool:
        """Factors of every layer, where they precondition."""
        return self.preconditioner == "kronecker"

    def init(self, problem: Problem, params: Any, resources: Any) -> HessianFreeMethodState:
        """No direction yet."""
        zeros = kept = optax.tree.zeros_like(params)
        if self.preconditioner == "kronecker":
            kept = first_sides(problem.layered(), params)
        damping = jnp.asarray(self.initial_damping, optax.tree.dtype(params))
        return HessianFreeMethodState(params, damping, zeros, kept)

    def step(
        self,
        problem: Problem,
        state: HessianFreeMethodState,
        resources: Any,
        step: Array,
        tolerance: Array,
    ) -> tuple[HessianFreeMethodState, Info]:
        """Linearise, solve, compare on common random numbers."""
        sample = problem.sample(resources, step)
        value, gradient, operator = self._linearised(problem, state.params, sample)
        if self.curvature_rows is not None:
            smaller = problem.sample(resources, step, 1, self.curvature_rows)
            _, _, operator = self._linearised(problem, state.params, smaller)
        metric, kept = self._metric(problem, operator, state, sample, step)
        solved = conjugate_gradient(
            damped(operator, state.damping),
            optax.tree.scale(-1.0, gradient),
            preconditioner=metric,
            initial=optax.tree.scale(_WARM, state.direction),
            max_steps=self.cg_steps,
            progress_tolerance=5e-4,
        )
        trial = optax.tree.add(state.params, solved.solution)
        trial_value = problem.value(trial, sample)
        ratio = agreement(value, trial_value, -solved.model_value)
        finite = all_finite(value, gradient, trial_value, trial)
        good = finite & (ratio > 0)
        factor = jnp.where(ratio > GOOD, 2 / 3, jnp.where(ratio > POOR, 1.0, 3 / 2))
        factor = jnp.where(good, factor, 3.0).astype(state.damping.dtype)
        proposal = HessianFreeMethodState(
            trial, jnp.clip(state.damping * factor, 1e-8, 1e8), solved.solution, kept
        )
        stay = state._replace(
            damping=proposal.damping,
            direction=optax.tree.zeros_like(state.params),
            kept=select(finite, kept, state.kept),
        )
        info = make_info(
            value,
            grad_norm=optax.tree.norm(gradient),
            gain=-solved.model_value,
            cg_steps=solved.steps,
            accepted=good,
            finite=finite,
            negative_curvature=solved.negative_curvature,
        )
        return select(good, proposal, stay), info

    def _linearised(self, problem: Problem, params: Any, sample: Any) -> tuple[Any, Any, LinearMap]:
        if self.curvature == "gauss_newton":
            return problem.gauss_newton(params, sample)
        return problem.linearise(params, sample)

    def _metric(
        self,
        problem: Problem,
        operator: LinearMap,
        state: HessianFreeMethodState,
        sample: Any,
        step: Array,
    ) -> tuple[Metric | None, Any]:
        """Kronecker factors, or (|diag| + lambda)^(3/4) with a running mean of the diagonal."""
        if self.preconditioner is None:
            return None, state.kept
        if self.preconditioner == "kronecker":
            layered = problem.layered()
            sides = renewed_sides(layered, state.params, state.kept, sample, step)
            return kronecker_metric(layered, sides, state.damping), sides
        key = jax.random.fold_in(jax.random.key(0), step)
        fresh = hutchinson_diagonal(operator, key, _PROBES)
        weight = jnp.maximum(0.1, 1 / (1 + step.astype(state.damping.dtype)))
        diagonal = jax.tree.map(lambda d, f: d + weight * (f - d), state.kept, fresh)
        lifted = jax.tree.map(lambda d: (jnp.abs(d) + state.damping) ** 0.75, diagonal)
        return Diagonal(lifted), diagonal
