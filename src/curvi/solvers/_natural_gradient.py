"""NaturalGradient: a full covariance from gradients alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.families import HostMap, SparsePrecision, has_host_map
from curvi.linalg import inverse_root
from curvi.solvers._host_steps import HostPoint, HostSteps, SparseSteps
from curvi.solvers._method import Info, Method, Problem, Stepper

_HOST_ONLY = (
    "NaturalGradient steps on the host, on fixed draws and all rows, and fits FullRank(), "
    "SparsePrecision() or Conditional(globals_) without groups; choose TrustRegion() for anything "
    "else"
)


@dataclass(frozen=True)
class NaturalGradient(Method):
    r"""Natural-gradient steps in mean and precision, on common random numbers.

    In the coordinates of the noise, with :math:`s_m = R^\top \nabla \log p(z_m)`, the theorems of
    Bonnet and Price turn gradients into the expected gradient and curvature of the log density,

    .. math:: \delta = \frac1M \sum_m s_m, \qquad
        H = -\frac1M \,\mathrm{sym} \sum_m s_m v_m^\top \approx -E[R^\top \nabla^2 \log p\, R],

    and a step of size :math:`\rho` goes to the precision
    :math:`P = (1 - \rho) I + \rho H` and the mean :math:`\mu + \rho R P^{-1} \delta`. On a Gaussian
    target the full step is exact. A step that does not improve the bound on the same draws is
    shortened. For :class:`~curvi.Conditional` B moves along its own natural gradient. The run
    stops when the natural gradient promises less than ``tolerance`` nats, or when five steps in a
    row improve the bound by less than ``least_progress`` nats each.

    One step costs the gradients at M draws and :math:`O(d^3)` arithmetic; no second derivative is
    compiled. That makes it the method of ``family="auto"``. For
    :class:`~curvi.SparsePrecision` H is the average of sparse Hessians instead, and a step is
    linear in their entries.

    It steps on the host and fits :class:`~curvi.FullRank`, :class:`~curvi.SparsePrecision` and
    :class:`~curvi.Conditional` without groups, on fixed draws and all rows.

    Parameters
    ----------
    least_progress : float
        Nats per step, over five steps, that are worth going on for. Zero goes on to the end.

    Examples
    --------
    >>> import curvi, jax.numpy as jnp
    >>> result = curvi.fit(lambda x: -0.5 * jnp.sum((x - 2.0) ** 2), jnp.zeros(3), progress=False,
    ...                    family=curvi.FullRank(), method=curvi.NaturalGradient())
    >>> result.converged, result.mean.round(3).tolist()
    (True, [2.0, 2.0, 2.0])
    """

    least_progress: float = 0.0

    def __post_init__(self) -> None:
        """Validate the number."""
        if self.least_progress != 0:
            validation.positive_number(self.least_progress, "least_progress")

    @property
    def default_max_steps(self) -> int:
        """A run that takes more has no maximum to find."""
        return 200

    def stops(self, problem: Problem) -> bool:
        """Always, by the gain that the natural gradient promises."""
        return True

    def init(self, problem: Problem, params: Any, resources: Any) -> Any:
        """There is no state on device."""
        raise InputError(_HOST_ONLY)

    def step(
        self, problem: Problem, state: Any, resources: Any, step: Array, tolerance: Array
    ) -> tuple[Any, Info]:
        """There are no steps on device."""
        raise InputError(_HOST_ONLY)

    def has_host_steps(self, problem: Problem) -> bool:
        """On fixed draws, all rows, and a family with a dense map."""
        family = getattr(problem, "family", None)
        return problem.fixed and family is not None and has_host_map(family)

    @property
    def host_only(self) -> bool:
        """It has no compiled steps."""
        return True

    def stepper(self, problem: Problem, params: Any, resources: Any) -> Stepper | None:
        """The steps; raises InputError where the problem has none."""
        if not self.has_host_steps(problem):
            raise InputError(_HOST_ONLY)
        if isinstance(problem.family, SparsePrecision):  # type: ignore[attr-defined]
            return SparseSteps(problem, params, resources, self.least_progress)
        return _Steps(problem, params, resources, self.least_progress)


class _Direction(NamedTuple):
    """delta, H - I, the natural gradient of B, and the gain that they promise."""

    mean: np.ndarray
    excess: np.ndarray
    warp: np.ndarray
    gain: float


class _Steps(HostSteps):
    """A run on a full covariance, or one that is conditional on globals."""

    def __init__(self, problem: Any, params: Any, resources: Any, least: float) -> None:
        super().__init__(problem, resources, HostMap.of(problem.family, params), least)

    def _params_of(self, host_map: HostMap) -> Any:
        return host_map.params(self.problem.family, self.problem.density.dtype)

    def _direction_at(self, here: HostPoint) -> _Direction:
        return _direction(here, self.noise)

    def _trial(self, here: HostPoint, direction: _Direction) -> tuple[HostPoint, bool]:
        """The step goes to the mean last, whose length is in sds of the new q."""
        root, indefinite = _new_root(direction.excess, self.step_size)
        way = self._within_radius(self.step_size * (root.T @ direction.mean))
        return self._at(_moved_map(here.map, direction, self.step_size, root, way)), indefinite

    def _verdict(self, here: HostPoint, there: HostPoint, rounding: float) -> tuple[bool, bool]:
        """Where rounding decides between the two ends, there is nothing left to gain."""
        accepted = bool(there.finite and there.neg_elbo < here.neg_elbo)
        gain = self.step_size * self.direction.gain
        return accepted, bool(not accepted and there.finite and gain < 4 * rounding)


def _direction(here: HostPoint, noise: np.ndarray) -> _Direction:
    r"""The natural gradient: delta, H made symmetric less the identity, and that of B.

    Without the error of the draws H is symmetric. Its average with its transpose has less of that
    error than either triangle, and where it is the identity, q fits the draws less closely than at
    the maximum of their bound, which matters while there are hardly more draws than coordinates.
    """
    count, pulled = here.map.num_globals, here.map.linear_back(here.gradients)
    v = here.moved.v
    curvature = -(pulled.T @ v) / len(v)
    excess = 0.5 * (curvature + curvature.T) - np.eye(len(curvature))
    mean = pulled.mean(axis=0)
    local = pulled[:, count:] * v[:, count:]
    warp = local.T @ noise[:, :count] / len(v)
    warp -= 2 * here.map.warp * (1 + local.mean(axis=0)[:, None])
    gain = (
        0.5 * mean @ mean
        + 0.5 * np.sum(np.tril(excess, -1) ** 2)
        + 0.25 * np.sum(np.diagonal(excess) ** 2)
        + 0.25 * np.sum(warp**2)
    )
    return _Direction(mean, excess, 0.5 * warp, float(gain))


def _new_root(excess: np.ndarray, step_size: float) -> tuple[np.ndarray, bool]:
    """The root of the covariance after a step, and whether the precision was made positive."""
    precision = np.eye(len(excess)) + step_size * excess
    try:
        return inverse_root(precision), False
    except np.linalg.LinAlgError:
        return _lifted_root(precision), True


def _moved_map(
    host_map: HostMap,
    direction: _Direction,
    step_size: float,
    root: np.ndarray,
    way: np.ndarray,
    *,
    largest_warp: float = 0.5,
) -> HostMap:
    """The map after a step whose mean goes ``way``, in sds of the new one.

    ``largest_warp``: that one step may add to an entry of B.
    """
    factor = host_map.factor @ root
    warp = host_map.warp + step_size * np.clip(direction.warp, -largest_warp, largest_warp)
    return replace(host_map, mean=host_map.mean + factor @ way, factor=factor, warp=warp)


def _lifted_root(precision: np.ndarray, *, least: float = 0.1) -> np.ndarray:
    """:func:`inverse_root` with small and negative eigenvalues lifted.

    The matrix itself is not formed again: next to eigenvalues far larger than the lifted ones,
    rounding would make it indefinite.

    ``least``: eigenvalues of the new precision, where it would be indefinite.
    """
    values, vectors = np.linalg.eigh(precision)
    wide = (vectors * np.maximum(values, least) ** -0.5).T
    root = np.linalg.qr(wide).R.T
    return root * np.where(np.diagonal(root) < 0, -1.0, 1.0)[None, :]
