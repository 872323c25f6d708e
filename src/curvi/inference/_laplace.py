r"""Laplace's approximation: a Gaussian at the mode with the curvature there.

.. math:: z \approx N(\hat z, A^{-1}), \qquad A = -\nabla^2 \log p(\hat z), \qquad
    \log Z \approx \log p(\hat z) + \tfrac d2 \log 2\pi - \tfrac12 \log\det A
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from curvi._core import validation
from curvi._core.compilation import compiled
from curvi._core.errors import InputError, MisfitWarning, NumericalError, Outcome, warn_user
from curvi._core.trees import ArrayState, coordinate_names, precision_of
from curvi.diagnostics import (
    UserMoments,
    not_finite_sentence,
    positions,
    require_positions,
    user_moments,
    user_space,
)
from curvi.engine import (
    Budget,
    Execution,
    ObjectiveProblem,
    Resources,
    StepInfo,
    hooks_for,
    opened,
    run,
)
from curvi.families import Family, FullRank, Params
from curvi.inference._inputs import (
    as_execution,
    as_target,
    default_tolerance,
    in_precision_of_target,
)
from curvi.linalg import hessian
from curvi.solvers import TrustRegion
from curvi.targets import AbstractTarget, Density


@dataclass(frozen=True, eq=False)
class LaplaceResult(ArrayState):
    """A Gaussian at the mode of the unconstrained coordinates, read in the user's space.

    Attributes
    ----------
    target : Target or DataTarget
        What was approximated.
    mode : array, shape (dimension,)
        The mode, as one vector of unconstrained coordinates.
    precision, covariance : array, shape (dimension, dimension)
        Curvature at the mode and its inverse, in unconstrained coordinates.
    log_evidence : float
        Laplace's approximation of the log marginal likelihood.
    steps : int
        Newton steps to the mode.
    """

    target: AbstractTarget = field(repr=False)
    mode: Float[Array, " dimension"] = field(repr=False)
    precision: np.ndarray = field(repr=False)
    covariance: np.ndarray = field(repr=False)
    log_evidence: float
    steps: int

    @property
    def position(self) -> PyTree:
        """The mode in the structure of the target's position, unconstrained."""
        with precision_of(self.target.dtype):
            return self.target.density.unravel(self.mode)

    @cached_property
    def _params(self) -> Params:
        with precision_of(self.target.dtype):
            return laplace_params(FullRank(), self)

    @cached_property
    def _moments(self) -> UserMoments:
        found = user_moments(self.target, FullRank(), self._params)
        if sentence := not_finite_sentence(found.mean, found.sd) or found.doubt:
            warn_user(sentence, MisfitWarning)
        return found

    @property
    def mean(self) -> PyTree:
        """Mean of the Gaussian in the user's space; without constraints it is the mode."""
        return self._moments.mean

    @property
    def sd(self) -> PyTree:
        """Standard deviations of the Gaussian in the user's space."""
        return self._moments.sd

    def sample(self, num_draws: int, seed: int = 0) -> PyTree:
        """Draws in the user's space, with a leading axis."""
        validation.positive_integer(num_draws, "num_draws")
        with precision_of(self.target.dtype):
            space = user_space(self.target, FullRank())
            require_positions(space, self.target, num_draws)
            flat = FullRank().sample(self._params, validation.random_key(seed), num_draws)
            return positions(space, flat)


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True, eq=False)
class _Energy:
    """The negative log density; a pytree, as the density is."""

    density: Density

    def tree_flatten(self) -> tuple[tuple[Density], None]:
        return (self.density,), None

    @classmethod
    def tree_unflatten(cls, rest: None, leaves: tuple[Density]) -> _Energy:
        del rest
        return cls(*leaves)

    def __call__(self, z: Array, rows: PyTree, key: PRNGKeyArray | None = None) -> Array:
        return -self.density.log_prob(z, rows)


@compiled
def _value_and_hessian(energy: _Energy, z: Array, rows: PyTree) -> tuple[Array, Array]:
    value, _, curvature = hessian(lambda point: energy(point, rows), z)
    return value, curvature.dense()


@in_precision_of_target
def laplace(
    target: AbstractTarget | Callable[[PyTree], Any],
    position: PyTree | None = None,
    *,
    max_steps: int = 1000,
    execution: str | Execution = "auto",
    time_budget: float | None = None,
    progress: bool = True,
    on_step: Callable[[StepInfo], Any] | None = None,
    checkpoint: Any = None,
) -> LaplaceResult:
    """Laplace's approximation of a posterior, as a start or as a comparison for a fit.

    Parameters
    ----------
    target : Target, DataTarget or callable
        What is inferred. A plain function is a log density and needs ``position``.
    position : pytree, optional
        Where the search for the mode starts. Required for a plain log density; otherwise it
        replaces the position of the target.
    max_steps : int
        Largest number of Newton steps to the mode.
    execution : {"auto", "eager", "compiled"}
        Where steps are taken, see :func:`curvi.fit`.
    time_budget : float, optional
        Seconds for the steps, their compilation not counted.
    progress : bool
        A progress bar, on a terminal only.
    on_step : callable, optional
        Called with a :class:`~curvi.engine.StepInfo` for every step, for logging.
    checkpoint : path or Checkpoint, optional
        A file from which the same call resumes, see :func:`curvi.fit`.

    Returns
    -------
    LaplaceResult
        The Gaussian, in unconstrained coordinates and in the user's space, and the log evidence.

    Raises
    ------
    NumericalError
        If no mode is found, in the time or at all, or if the Hessian there is not positive
        definite: the flat directions are named and never given a variance.
    InputError
        Above 2,000 coordinates, where a dense Hessian is too expensive.
    Interrupted
        At Ctrl-C: a point on the way to the mode is no approximation.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> found = laplace(lambda x: -0.5 * (x - 8.0) ** 2 / 0.2, jnp.zeros(()))
    >>> round(float(found.mean), 3), round(float(found.sd), 3)
    (8.0, 0.447)
    """
    with opened(locals(), "laplace") as call:
        validation.positive_integer(max_steps, "max_steps")
        target, policy = as_target(target, position), as_execution(execution)
        with hooks_for(progress, "objective", on_step) as hooks:
            budget = Budget(default_tolerance(target.dtype), max_steps, hooks)
            found = laplace_within(target, budget, policy)
        if found is None:
            raise NumericalError("time_budget ran out before the mode was reached; raise it")
        return call.returned(found)


def laplace_within(
    target: AbstractTarget, budget: Budget, policy: Execution, *, largest: int = 2000
) -> LaplaceResult | None:
    """:func:`laplace` within a budget; None where its time runs out.

    ``largest``: coordinates up to which a dense Hessian is formed.
    """
    if target.dimension > largest:
        raise InputError(
            f"the target has {target.dimension} coordinates; laplace() forms a dense Hessian and "
            f"takes at most {largest}: use fit() with MeanField() and linear_response"
        )
    target.check_start()
    energy = _Energy(target.density)
    problem = ObjectiveProblem(energy, None, fixed_key=True)
    resources = Resources(jax.random.key(0), target.rows, None)
    ended = run(problem, TrustRegion(), target.start, resources, budget, execution=policy).whole()
    if ended.outcome is Outcome.BUDGET and budget.left() <= 0:
        return None
    if ended.outcome is not Outcome.CONVERGED:
        raise NumericalError(f"no mode was found: {ended.outcome.sentence}")
    value, matrix = _value_and_hessian(energy, ended.params, target.rows)
    precision = np.asarray(matrix, np.float64)
    precision = 0.5 * (precision + precision.T)
    covariance, log_det = _inverse(precision, target)
    evidence = -float(value) + 0.5 * target.dimension * math.log(2 * math.pi) - 0.5 * log_det
    return LaplaceResult(target, ended.params, precision, covariance, evidence, ended.steps)


def _inverse(
    precision: np.ndarray, target: AbstractTarget, *, named: float = 0.1
) -> tuple[np.ndarray, float]:
    """The inverse and the log determinant, or a refusal that names what is flat.

    ``named``: share of a direction at which a coordinate is named.
    """
    size = np.sqrt(np.abs(np.diag(precision)))
    size = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(precision / np.outer(size, size))  # free of units
    rounding = len(values) * float(jnp.finfo(target.dtype).eps)
    if not values[0] > rounding * max(values[-1], 1.0):
        share = vectors[:, 0] ** 2
        names = coordinate_names(target.position)
        flat = [names[i] for i in np.argsort(-share)[:4] if share[i] > named]
        raise NumericalError(
            f"the Hessian at the mode is not positive definite along {' and '.join(flat)}: the "
            "posterior is flat or curves upwards there, and Laplace has no variance for it; give "
            "it a prior, or use fit()"
        )
    half = (vectors / np.sqrt(values)[None, :]) / size[:, None]
    return half @ half.T, float(np.log(values).sum() + 2 * np.log(size).sum())


def laplace_params(family: Family, found: LaplaceResult) -> Params:
    """Parameters of a family at the mode: its Cholesky factor, or sds given the other coordinates.

    The latter, one over the root of the diagonal of the precision, are the optimum of a mean-field
    family on a Gaussian target.
    """
    dtype = found.target.dtype
    if family.scale.is_full:
        root = np.linalg.cholesky(found.covariance / family.base.variance)
        return family.from_raw(Params(found.mode, jnp.asarray(root, dtype)))
    return family.init(found.mode, jnp.asarray(np.diag(found.precision) ** -0.5, dtype))
