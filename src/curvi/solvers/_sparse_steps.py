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

from curvi.families import SparseMap
from curvi.linalg import SparseSymmetric
from curvi.objective import Curvature
from curvi.solvers._host_steps import HostPoint, HostSteps


class _SparseDirection(NamedTuple):
    """The expected gradient in the noise, the expected curvature, and the gain they promise."""

    mean: np.ndarray
    curvature: SparseSymmetric
    gain: float


class SparseSteps(HostSteps):
    """A run on a sparse precision."""

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
