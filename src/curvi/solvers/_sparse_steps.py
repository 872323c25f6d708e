r"""Natural-gradient steps of a Gaussian with sparse precision.

With fixed draws :math:`z_m = \mu + R \epsilon_m`, the theorems of Bonnet and Price give the steps
of equations (1) to (3) from exact derivatives at the draws,

.. math:: P \leftarrow (1 - \rho) P - \frac{\rho}{M} \sum_m \nabla^2 \log p(z_m), \qquad
    \mu \leftarrow \mu + \rho\,P^{-1} \frac1M \sum_m \nabla \log p(z_m),

in which P keeps the zeros of the Hessian. Few draws are enough: a Hessian has no noise that grows
with the number of coordinates.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from curvi._core.errors import Outcome
from curvi._core.threads import one_blas_thread
from curvi.families._sparse_host import SparseMap
from curvi.linalg._sparse_symmetric import SparseSymmetric
from curvi.objective._batch import BatchedDensity
from curvi.objective._curvature import Curvature
from curvi.solvers._method import Info

_LONGEST = 3.0  # posterior sds per coordinate that a step may move the mean, root mean square
_SHORTER, _LONGER = 0.4, 1.5  # of the share of a step, after a rejection and after a success
_LEAST_PIVOT = 0.1  # of the old diagonal, where the new precision would be indefinite
_WINDOW = 5  # steps over which progress is judged
_ERRORS = 2.0  # standard errors by which a bound must be worse for a step to be rejected
_SHORTEST = 1e-6  # share of a step below which nothing is left to try


class _Point(NamedTuple):
    """A map, and what the draws say there."""

    map: SparseMap
    positions: np.ndarray
    gradients: np.ndarray
    terms: np.ndarray  # of the bound, a number for every draw

    @property
    def neg_elbo(self) -> float:
        return -float(np.mean(self.terms))

    @property
    def finite(self) -> bool:
        return bool(np.isfinite(self.terms).all() and np.isfinite(self.gradients).all())


class _Direction(NamedTuple):
    """The expected gradient in the noise, the expected curvature, and the gain they promise."""

    mean: np.ndarray
    curvature: SparseSymmetric
    gain: float


class SparseSteps:
    """A run: where it stands, and the share of a full step that it dares to take."""

    def __init__(self, problem: Any, params: Any, resources: Any, least: float) -> None:
        self.problem, self.share, self.least = problem, 1.0, least
        self.values: list[float] = []
        self.density = BatchedDensity(problem.density, resources.rows)
        family = problem.family
        self.curvature = Curvature(problem.density, resources.rows, family.elimination)
        self.noise = np.asarray(resources.noise, np.float64)
        self.constant = float(family.base.entropy(problem.dimension))
        self.start = SparseMap.of(family, params)
        self.here: _Point | None = None
        self.direction: _Direction | None = None

    @property
    def params(self) -> Any:
        """The parameters where the run stands."""
        found = self.start if self.here is None else self.here.map
        return found.params(self.problem.density.dtype)

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
        with one_blas_thread():
            return self._step(tolerance)

    def _step(self, tolerance: float) -> Info:
        if self.here is None:
            self.prepare()
        here = self.here
        assert here is not None  # noqa: S101  for the type checker
        if not here.finite:
            return self._info(here, 0.0, accepted=False, finite=False)
        if self.direction is None:
            self.direction = self._direction_at(here)
        gain = self.direction.gain
        rounding = np.finfo(self.problem.density.dtype).eps * abs(here.neg_elbo)
        if gain <= max(tolerance, rounding):
            return self._info(here, gain, accepted=True, finite=True, converged=True)
        there, raised = self._trial(here, self.direction)
        change = there.terms - here.terms
        slack = _ERRORS * float(np.std(change)) / len(change) ** 0.5 + rounding
        accepted = bool(there.finite and np.mean(change) > -slack)
        spent = bool(not accepted and self.share < _SHORTEST)
        if accepted:
            self.values.append(there.neg_elbo)
            spent = len(self.values) > _WINDOW and bool(
                self.values[-1 - _WINDOW] - self.values[-1] < _WINDOW * self.least
            )
            self.here, self.direction = there, None
            self.share = min(1.0, _LONGER * self.share)
        else:
            self.share *= _SHORTER
        return self._info(here, gain, accepted or spent, there.finite, spent, raised)

    def _direction_at(self, here: _Point) -> _Direction:
        place = here.map
        curvature = self.curvature.negative_mean(here.positions)
        mean = place.linear_back(here.gradients).mean(axis=0)
        # |R' C R - I|^2 by the draws, along which R e is known.
        moved = place.apply(np.ascontiguousarray(self.noise.T))
        excess = place.transposed(curvature.dot(moved)) - self.noise.T
        gain = 0.5 * mean @ mean + 0.25 * np.mean(np.sum(excess**2, axis=0))
        return _Direction(mean, curvature, float(gain))

    def _trial(self, here: _Point, direction: _Direction) -> tuple[_Point, bool]:
        """The point after a step, and whether its precision had to be made positive."""
        old = here.map.precision()
        try:
            root = old.blend(direction.curvature, self.share).inverse_root(_LEAST_PIVOT, like=old)
        except np.linalg.LinAlgError:  # beyond rounding: a shorter step is not
            return here._replace(terms=np.full_like(here.terms, np.nan)), True
        moved = here.map.with_root(root)
        gradient = here.gradients.mean(axis=0)[here.map.order]
        way = self.share * moved.transposed(gradient[:, None])
        way *= min(1.0, _LONGEST / max(float(np.sqrt(np.mean(way**2))), 1e-300))
        mean = here.map.mean + moved.apply(way)[:, 0]
        return self._at(replace(moved, mean=mean)), root.raised

    def _at(self, place: SparseMap) -> _Point:
        moved = place.forward(self.noise)
        values, gradients = self.density(moved.positions)
        with np.errstate(invalid="ignore", over="ignore"):
            terms = values + moved.log_det + self.constant
        return _Point(place, moved.positions, gradients, terms)

    @staticmethod
    def _info(
        here: _Point,
        gain: float,
        accepted: bool,
        finite: bool,
        converged: bool = False,
        indefinite: bool = False,
    ) -> Info:
        outcome = Outcome.CONVERGED if converged else Outcome.RUNNING
        norm = float(np.sqrt(2 * max(gain, 0.0)))
        return Info(here.neg_elbo, norm, gain, 0, accepted, finite, indefinite, outcome.value)
