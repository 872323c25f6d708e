"""A run of natural-gradient steps on the host: propose, judge, shorten or go on."""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from curvi._core.errors import Outcome
from curvi._core.threads import one_blas_thread
from curvi.families import SparseMap
from curvi.linalg import SparseSymmetric
from curvi.objective import BatchedDensity, Curvature
from curvi.solvers._method import Info


@dataclass(frozen=True)
class StepSizes:
    """How the step size of natural gradients follows what its steps gain."""

    # of the step size, after a rejection and after a success
    shorter: float = 0.4
    longer: float = 1.5
    window: int = 5  # steps over which progress is judged
    # nats of the bound: an improper target is followed to where it has no digits
    most_rounding: float = 1.0
    # Sds of the new q per coordinate, root mean square, that a step may move the mean. Far from the
    # data q is so narrow that a whole Newton step is a million of them: the limit grows with
    # success.
    least_radius: float = 3.0
    farther: float = 4.0


SIZES = StepSizes()


class HostPoint(NamedTuple):
    """A map, the noise that it moved, and what the log density says there."""

    map: Any
    moved: Any
    gradients: np.ndarray
    terms: np.ndarray  # of the bound, a number for every draw
    constant: float  # that all of them lack

    @property
    def neg_elbo(self) -> float:
        """The negative bound on the draws."""
        return -(float(np.mean(self.terms)) + self.constant)

    @property
    def finite(self) -> bool:
        """Whether the bound and all gradients are finite."""
        return bool(np.isfinite(self.terms).all() and np.isfinite(self.gradients).all())


class HostSteps(abc.ABC):
    """A run: its map, the step size as a fraction of a full step, and the trust radius.

    Parameters
    ----------
    problem, resources
        As :meth:`~curvi.solvers.Method.stepper` is given them.
    start : HostMap or SparseMap
        The map to start from.
    least : float
        Nats per step that are worth going on for.
    """

    def __init__(self, problem: Any, resources: Any, start: Any, least: float) -> None:
        self.problem, self.step_size, self.least, self.start = problem, 1.0, least, start
        self.values: list[float] = []
        self.radius, self.cut = SIZES.least_radius, False
        self.density = BatchedDensity(problem.density, resources.rows)
        self.noise = np.asarray(resources.noise, np.float64)
        self.constant = float(problem.family.base.entropy(problem.dimension))
        self.here: HostPoint | None = None
        self.direction: Any = None

    @abc.abstractmethod
    def _direction_at(self, here: HostPoint) -> Any:
        """The natural gradient there, with the ``gain`` that it promises."""

    @abc.abstractmethod
    def _trial(self, here: HostPoint, direction: Any) -> tuple[HostPoint, bool]:
        """The point after a step of the step size, and whether its precision was made positive."""

    @abc.abstractmethod
    def _verdict(self, here: HostPoint, there: HostPoint, rounding: float) -> tuple[bool, bool]:
        """Whether a trial is accepted, and whether a rejected one leaves nothing to try."""

    @abc.abstractmethod
    def _params_of(self, host_map: Any) -> Any:
        """The parameters of a map."""

    @property
    def place(self) -> Any:
        """The map where the run stands."""
        return self.start if self.here is None else self.here.map

    @property
    def params(self) -> Any:
        """The parameters where the run stands."""
        return self._params_of(self.place)

    def state(self) -> list[Any]:
        """Arrays of the map, step size and trust radius; the direction is computed again."""
        parts = {n: part for n, part in vars(self.place).items() if isinstance(part, np.ndarray)}
        return [parts, self.step_size, self.radius, list(self.values)]

    def restore(self, state: list[Any]) -> None:
        """Go on from there."""
        parts, self.step_size, self.radius, self.values = state
        self.start, self.here, self.direction = replace(self.place, **parts), None, None

    @property
    def value(self) -> float:
        """The objective at the start."""
        self.prepare()
        return self.here.neg_elbo  # type: ignore[union-attr]

    def prepare(self) -> None:
        """Compile, and evaluate the start."""
        self.here = self._at(self.start)

    def step(self, tolerance: float) -> Info:
        """Propose a step and judge it on the same draws."""
        # Matrices are small: threads would wait for each other. What overflows is rejected.
        with one_blas_thread(), np.errstate(over="ignore", invalid="ignore"):
            return self._step(tolerance)

    def _step(self, tolerance: float) -> Info:
        here = self._at(self.start) if self.here is None else self.here
        self.here = here
        if not here.finite:
            return _info(here, 0.0, accepted=False, finite=False)
        if self.direction is None:
            self.direction = self._direction_at(here)
        gain = self.direction.gain
        if not np.isfinite(gain):  # slopes so steep that their squares overflow
            return _info(here, 0.0, accepted=False, finite=False)
        rounding = float(np.finfo(self.problem.density.dtype).eps) * abs(here.neg_elbo)
        if gain <= max(tolerance, rounding):
            return _info(here, gain, accepted=True, finite=True, ended=_end(rounding))
        there, raised = self._trial(here, self.direction)
        accepted, spent = self._verdict(here, there, rounding)
        if accepted:
            self.values.append(there.neg_elbo)
            spent = len(self.values) > SIZES.window and bool(
                self.values[-1 - SIZES.window] - self.values[-1] < SIZES.window * self.least
            )
            self.here, self.direction = there, None
            self.step_size = min(1.0, SIZES.longer * self.step_size)
            self.radius = self.radius * SIZES.farther if self.cut else SIZES.least_radius
        elif self.radius > SIZES.least_radius:
            self.radius = max(SIZES.least_radius, self.radius / SIZES.farther**2)
        else:
            self.step_size *= SIZES.shorter
        ended = _end(rounding) if spent else Outcome.RUNNING
        return _info(here, gain, accepted or spent, there.finite, ended, raised)

    def _within_radius(self, way: np.ndarray) -> np.ndarray:
        """A move of the mean in sds of the new q, cut to what is allowed."""
        length = float(np.sqrt(np.mean(way**2)))
        self.cut = length > self.radius
        return way * (self.radius / length) if self.cut else way

    def _at(self, host_map: Any) -> HostPoint:
        moved = host_map.forward(self.noise)
        values, gradients = self.density(moved.positions)
        with np.errstate(invalid="ignore", over="ignore"):
            terms = values + moved.log_det
        return HostPoint(host_map, moved, gradients, terms, self.constant)


def _end(rounding: float, *, policy: StepSizes = SIZES) -> Outcome:
    """Nothing is left to gain, unless rounding errors of whole nats hide it."""
    return Outcome.CONVERGED if rounding <= policy.most_rounding else Outcome.STALLED


def _info(
    here: HostPoint,
    gain: float,
    accepted: bool,
    finite: bool,
    ended: Outcome = Outcome.RUNNING,
    indefinite: bool = False,
) -> Info:
    norm = float(np.sqrt(2 * max(gain, 0.0)))
    return Info(here.neg_elbo, norm, gain, 0, accepted, finite, indefinite, ended.value)


class _SparseDirection(NamedTuple):
    """The expected gradient in the noise, the expected curvature, and the gain they promise."""

    mean: np.ndarray
    curvature: SparseSymmetric
    gain: float


class SparseSteps(HostSteps):
    r"""A run on a sparse precision.

    With fixed draws :math:`z_m = \mu + R \epsilon_m`, the theorems of Bonnet and Price give the
    steps of equations (1) to (3) from exact derivatives at the draws,

    .. math:: P \leftarrow (1 - \rho) P - \frac{\rho}{M} \sum_m \nabla^2 \log p(z_m), \qquad
        \mu \leftarrow \mu + \rho\,P^{-1} \frac1M \sum_m \nabla \log p(z_m),

    in which P keeps the zeros of the Hessian. Few draws are enough: a Hessian has no noise that
    grows with the number of coordinates.
    """

    def __init__(self, problem: Any, params: Any, resources: Any, least: float) -> None:
        family = problem.family
        super().__init__(problem, resources, SparseMap.of(family, params), least)
        self.curvature = Curvature(problem.density, resources.rows, family.elimination)

    def _params_of(self, host_map: SparseMap) -> Any:
        return host_map.params(self.problem.density.dtype)

    def _verdict(
        self,
        here: HostPoint,
        there: HostPoint,
        rounding: float,
        *,
        errors: float = 2.0,
        shortest: float = 1e-6,
    ) -> tuple[bool, bool]:
        """Within the error of the change, which few draws know badly.

        ``errors``: standard errors by which a bound must be worse for a step to be
        rejected.
        ``shortest``: step size below which nothing is left to try.
        """
        change = there.terms - here.terms
        slack = errors * float(np.std(change)) / len(change) ** 0.5 + rounding
        accepted = bool(there.finite and np.mean(change) > -slack)
        return accepted, bool(not accepted and self.step_size < shortest)

    def _direction_at(self, here: HostPoint) -> _SparseDirection:
        host_map = here.map
        curvature = self.curvature.negative_mean(here.moved.positions)
        mean = host_map.linear_back(here.gradients).mean(axis=0)
        # |R' C R - I|^2 by the draws, along which R e is known.
        displacements = host_map.apply(np.ascontiguousarray(self.noise.T))
        excess = host_map.transposed(curvature.dot(displacements)) - self.noise.T
        gain = 0.5 * mean @ mean + 0.25 * np.mean(np.sum(excess**2, axis=0))
        return _SparseDirection(mean, curvature, float(gain))

    def _trial(
        self, here: HostPoint, direction: _SparseDirection, *, least_pivot: float = 0.1
    ) -> tuple[HostPoint, bool]:
        """The point after a step, and whether its precision had to be made positive.

        ``least_pivot``: of the old diagonal, where the new precision would be indefinite.
        """
        old = here.map.precision()
        try:
            new = old.blend(direction.curvature, self.step_size)
            root = new.inverse_root(least_pivot, like=old)
        except np.linalg.LinAlgError:  # beyond rounding: a shorter step is not
            return here._replace(terms=np.full_like(here.terms, np.nan)), True
        new_map = here.map.with_root(root)
        gradient = here.gradients.mean(axis=0)[here.map.order]
        way = self.step_size * new_map.transposed(gradient[:, None])
        way = self._within_radius(way)
        mean = here.map.mean + new_map.apply(way)[:, 0]
        return self._at(replace(new_map, mean=mean)), root.raised
