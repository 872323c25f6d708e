"""HFSGVI: Algorithm 1 of the paper, to the letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

from curvi._core import validation
from curvi.linalg import Diagonal, conjugate_gradient, hessian, hutchinson_diagonal
from curvi.linalg._arithmetic import all_finite, select
from curvi.solvers._method import Info, Problem, StochasticMethod, check_preconditioner, make_info

_PROBES = 10


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

    As in the appendix the parameters are (mu, R) themselves. That matters: for a log-concave
    target the sampled bound is concave in (mu, R), but not in (mu, log R).

    The paper does not treat negative curvature; here CG then returns its last iterate, or the
    steepest-descent direction when it meets it at once, and the step is counted in the trace.

    Parameters
    ----------
    cg_steps : int
        K.
    preconditioner : {None, "diagonal"}
        The appendix says that preconditioned CG was used, without saying which: ``"diagonal"``
        takes magnitudes of the Hessian's diagonal, estimated with ten random probes on the same
        sample.
    """

    cg_steps: int = 10
    preconditioner: str | None = None

    def __post_init__(self) -> None:
        """Validate the options."""
        validation.positive_integer(self.cg_steps, "cg_steps")
        check_preconditioner(self.preconditioner)

    def init(self, problem: Problem, params: Any, resources: Any) -> HFSGVIState:
        """No state but the parameters."""
        return HFSGVIState(params, params)

    def step(
        self, problem: Problem, state: HFSGVIState, resources: Any, step: Array, tolerance: Array
    ) -> tuple[HFSGVIState, Info]:
        """Lines 2 to 7 of Algorithm 1, minimising F = -L."""
        sample = problem.sample(resources, step)
        raw = problem.to_raw(state.params)
        value, gradient, operator = hessian(
            lambda r: problem.value(problem.from_raw(r), sample), raw
        )
        metric = None
        if self.preconditioner == "diagonal":
            key = jax.random.fold_in(jax.random.key(0), step)
            estimate = hutchinson_diagonal(operator, key, _PROBES)
            metric = Diagonal(_magnitudes(estimate))
        solved = conjugate_gradient(
            operator,
            optax.tree.scale(-1.0, gradient),
            preconditioner=metric,
            max_steps=self.cg_steps,
        )
        trial = problem.from_raw(optax.tree.add(raw, solved.solution))
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
    size = sum(leaf.size for leaf in jax.tree.leaves(diagonal))
    total = optax.tree.sum(jax.tree.map(lambda leaf: jnp.sum(jnp.abs(leaf)), diagonal))
    floor = 0.01 * total / size + jnp.finfo(total.dtype).tiny
    return jax.tree.map(lambda leaf: jnp.abs(leaf) + floor, diagonal)
