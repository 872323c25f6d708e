r"""Gaussians under linear constraints C u = 0, by conditioning (kriging).

.. math:: N\big(P^{-1}b - X M^{-1} C P^{-1} b,\; P^{-1} - X M^{-1} X^\top\big),
    \qquad X = P^{-1} C^\top,\quad M = C X.
"""

from __future__ import annotations

import copy

import numpy as np

from curvi._core.errors import InputError
from curvi.linalg._factor import Factor


class ConstrainedFactor:
    """A factor under constraints; used like one.

    Parameters
    ----------
    factor : Factor
        Of the precision without constraints.
    constraints : array, shape (k, size)
        Independent rows C of C u = 0.

    Attributes
    ----------
    log_det : array, shape (...)
        Log determinant of the precision within the space that the constraints leave:
        log det P + log det(C P^-1 C') - log det(C C').
    """

    def __init__(self, factor: Factor, constraints: np.ndarray) -> None:
        self.factor, self.pattern = factor, factor.pattern
        self.constraints = np.asarray(constraints, np.float64)
        self._check()
        lead = factor.log_det.shape
        wide = np.broadcast_to(self.constraints.T, (*lead, *self.constraints.T.shape))
        self._across = factor.solve(wide)
        inner = self.constraints @ self._across
        self._inner = np.linalg.inv(inner)
        gram = np.linalg.slogdet(self.constraints @ self.constraints.T)[1]
        self.log_det = factor.log_det + np.linalg.slogdet(inner)[1] - gram

    def _check(self) -> None:
        if self.constraints.ndim != 2 or self.constraints.shape[1] != self.pattern.size:
            raise InputError(
                f"constraints have shape {self.constraints.shape}; they need one row each and "
                f"{self.pattern.size} columns"
            )
        if np.linalg.matrix_rank(self.constraints) < len(self.constraints):
            raise InputError(
                "constraints repeat each other; leave out rows that follow from others"
            )

    def _conditioned(self, free: np.ndarray) -> np.ndarray:
        """Move what is free onto the constraints."""
        if free.ndim == self.log_det.ndim + 1:
            return self._conditioned(free[..., None])[..., 0]
        return free - self._across @ (self._inner @ (self.constraints @ free))

    def solve(self, right: np.ndarray) -> np.ndarray:
        """The constrained mean for a right-hand side, shaped as for `Factor.solve`."""
        return self._conditioned(self.factor.solve(right))

    def sample(self, noise: np.ndarray) -> np.ndarray:
        """Draws under the constraints, from noise shaped as for `Factor.sample`."""
        return self._conditioned(self.factor.sample(noise))

    def slopes_in_noise(self, slopes: np.ndarray) -> np.ndarray:
        """Slopes in the noise of `sample`, from slopes in its draws."""
        if slopes.ndim == self.log_det.ndim + 1:
            return self.slopes_in_noise(slopes[..., None])[..., 0]
        weights = self._inner @ (np.swapaxes(self._across, -1, -2) @ slopes)
        return self.factor.slopes_in_noise(slopes - self.constraints.T @ weights)

    def at(self, points: np.ndarray | slice) -> ConstrainedFactor:
        """Those of some points of one leading axis, which may repeat."""
        out = copy.copy(self)
        out.factor = self.factor.at(points)
        for name in ("_across", "_inner", "log_det"):
            setattr(out, name, getattr(self, name)[points])
        return out

    def selected_inverse(self) -> np.ndarray:
        """Covariances on the pattern, shape (..., entries)."""
        out = self.factor.selected_inverse()
        weighted = self._across @ self._inner
        for k in range(len(self.constraints)):
            left, right = weighted[..., k], self._across[..., k]
            out -= left[..., self.pattern.rows] * right[..., self.pattern.columns]
        return out
