"""HFSGVI: Algorithm 1 of the paper, and what it leaves open as options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi.linalg import (
    KEEP,
    DiagonalMetric,
    all_finite,
    conjugate_gradient,
    hessian,
    hutchinson_diagonal,
    martens_diagonal,
    select,
)
from curvi.solvers._method import Info, Problem, StochasticMethod, check_preconditioner, make_info


class HFSGVIState(NamedTuple):
    """Parameters, and the last ones at which everything was finite."""

    params: Any
    previous: Any


@dataclass(frozen=True)
class HFSGVI(StochasticMethod):
    r"""Hessian-free stochastic Gaussian variational inference (Algorithm 1).

    Every step draws a fresh batch and fresh noise, uses them for the gradient G and for the
    exact products :math:`H v` alike, runs conjugate gradients on :math:`H p = -G` for at most K
    iterations from zero, and takes the full step. There is no damping, no line search, no
    rejection and no stopping rule, as in the paper: it can diverge, and then the run says so.
    :class:`~curvi.solvers.TrustRegion` is the method that converges.

    The paper leaves several things open, each of which decides whether full steps converge on an
    indefinite Hessian, such as that of the relevance bound: the parameters, the iterate that CG
    hands back, and whether curvature passes through hyperparameters that are maximised
    analytically. Where CG meets negative curvature at once, the step is steepest descent, which the
    paper does not mention; it is counted in the trace. ``curvature="plug_in"`` and
    ``"gauss_newton"`` are not the Hessian that is printed.

    Parameters
    ----------
    cg_steps : int
        K.
    preconditioner : {None, "diagonal", "martens"}
        The appendix says that preconditioned CG was used, without saying which. ``"diagonal"``
        takes magnitudes of the Hessian's diagonal, estimated with ten random probes on the same
        sample. ``"martens"`` takes :math:`(\sum_i \nabla f_i^2 + \lambda)^{3/4}` over the rows of
        the sample, with a hundredth of the mean entry as :math:`\lambda`, since there is no
        damping; it needs an objective that shows the gradients of its rows, as regressions do.
    parameters : {"scale", "log_scale"}
        Those that the steps are taken in: (mu, R), as in the appendix, in which the sampled bound
        of a log-concave target is concave; or (mu, log R).
    keep : {"lowest_model", "least_residual"}
        The iterate that CG hands back, see :func:`curvi.linalg.conjugate_gradient`.
    curvature : {"exact", "plug_in", "gauss_newton"}
        The Hessian of the bound; or with the prior variances of a relevance bound held at their
        analytic values, which leaves the gradient as it is and the Hessian positive definite; or,
        for an objective that says where its loss begins, such as an auto-encoder, the Gauss-Newton
        matrix, which has no negative curvature. Section 3 of the paper speaks of "bridging the gap
        between Hessian and fisher information matrix" and does not say that it is used.
    """

    cg_steps: int = 10
    preconditioner: str | None = None
    parameters: str = "scale"
    keep: str = "lowest_model"
    curvature: str = "exact"

    def __post_init__(self) -> None:
        """Validate the options."""
        validation.positive_integer(self.cg_steps, "cg_steps")
        check_preconditioner(self.preconditioner, "martens")
        validation.one_of(self.parameters, ("scale", "log_scale"), "parameters")
        validation.one_of(self.keep, KEEP, "keep")
        validation.one_of(self.curvature, ("exact", "plug_in", "gauss_newton"), "curvature")

    @property
    def usual_batch_size(self) -> int:
        """The paper recommends larger batches than the 100 rows of first-order methods."""
        return 500

    def init(self, problem: Problem, params: Any, resources: Any) -> HFSGVIState:
        """No state but the parameters."""
        return HFSGVIState(params, params)

    def step(
        self,
        problem: Problem,
        state: HFSGVIState,
        resources: Any,
        step: Array,
        tolerance: Array,
        *,
        probes: int = 10,
    ) -> tuple[HFSGVIState, Info]:
        """Lines 2 to 7 of Algorithm 1, minimising F = -L.

        ``probes``: of the diagonal of a preconditioner.
        """
        sample = problem.sample(resources, step)
        in_scale = self.parameters == "scale"
        back = problem.from_raw if in_scale else problem.from_mean
        point = (problem.to_raw if in_scale else problem.to_mean)(state.params)
        if self.curvature == "gauss_newton":
            value, gradient, operator = problem.gauss_newton(point, sample)
        else:
            function = problem.value if self.curvature == "exact" else problem.surrogate
            value, gradient, operator = hessian(lambda p: function(back(p), sample), point)
        metric = None
        if self.preconditioner == "diagonal":
            key = problem.probe_key(resources, step)
            estimate = hutchinson_diagonal(operator, key, probes)
            metric = DiagonalMetric(_magnitudes(estimate))
        elif self.preconditioner == "martens":
            squares = problem.squared_gradients(back, point, sample)
            metric = martens_diagonal(squares, _floor(squares))
        solved = conjugate_gradient(
            operator,
            optax.tree.scale(-1.0, gradient),
            preconditioner=metric,
            max_steps=self.cg_steps,
            keep=self.keep,
        )
        trial = back(optax.tree.add(point, solved.solution))
        here = all_finite(value, gradient)
        finite = here & all_finite(trial)
        moved = HFSGVIState(
            params=select(finite, trial, select(here, state.params, state.previous)),
            previous=select(here, state.params, state.previous),
        )
        info = make_info(
            value,
            grad_norm=optax.tree.norm(gradient),
            gain=-solved.model_value,
            cg_steps=solved.steps,
            accepted=finite,
            finite=finite,
            negative_curvature=solved.negative_curvature,
        )
        return moved, info


def _magnitudes(diagonal: Any) -> Any:
    """Absolute values, kept from zero by a hundredth of their mean."""
    floor = _floor(diagonal)
    return jax.tree.map(lambda leaf: jnp.abs(leaf) + floor, diagonal)


def _floor(diagonal: Any) -> Array:
    """A hundredth of the mean of the absolute values."""
    size = sum(leaf.size for leaf in jax.tree.leaves(diagonal))
    total = optax.tree.sum(jax.tree.map(lambda leaf: jnp.sum(jnp.abs(leaf)), diagonal))
    return 0.01 * total / size + jnp.finfo(total.dtype).tiny
