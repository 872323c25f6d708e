"""The best hyperparameters of a latent Gaussian model, by a quasi-Newton ascent."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from curvi.latent._site_steps import SiteFit
from curvi.latent._sites import SiteModel


@dataclass(frozen=True)
class Ascent:
    """BFGS on exact gradients; the sites of a point start the next.

    Attributes
    ----------
    tolerance : float
        Of the gain that is left, in nats: the mode only centres what follows.
    rounds : int
        At most.
    longest, shortest : float
        Step in an entry of theta; share of a step that is still tried.
    rise : float
        Share of the promised gain that a step must bring.
    rounding : float
        Nats that a bound may lose.
    least : float
        Curvature that is remembered.
    difference : float
        Of gradients, for the curvature.
    """

    tolerance: float = 0.02
    rounds: int = 60
    longest: float = 1.5
    shortest: float = 1e-3
    rise: float = 1e-4
    rounding: float = 1e-6
    least: float = 1e-10
    difference: float = 0.05

    def mode(
        self, model: SiteModel, start: np.ndarray, covariance: np.ndarray | None = None
    ) -> HyperMode:
        """Climb log p(theta) plus the bound; ``covariance`` is about that of theta, if known."""
        at = np.array(start, np.float64)
        value, slope, fitted = self._at(model, at, None)
        inverse = np.eye(len(at)) / max(1.0, float(np.abs(slope).max(initial=0.0)))
        known = covariance is not None
        if covariance is not None:
            inverse = covariance
        for turn in range(self.rounds):
            step = inverse @ slope
            step = step * min(1.0, self.longest / max(float(np.abs(step).max(initial=0.0)), 1e-300))
            promised = float(slope @ step)
            if promised < self.tolerance and (known or turn > 1):
                return HyperMode(at, value, fitted, inverse, True)
            share = 1.0
            while True:
                trial = self._at(model, at + share * step, fitted)
                if trial[0] >= value + self.rise * share * promised - self.rounding * abs(value):
                    break
                share *= 0.3
                if share < self.shortest:
                    return HyperMode(at, value, fitted, inverse, promised < 1.0)
            move, change = share * step, slope - trial[1]
            curved = float(move @ change)
            if curved > self.least:
                if turn == 0 and not known:
                    inverse = np.eye(len(at)) * curved / (change @ change)
                left = np.eye(len(at)) - np.outer(move, change) / curved
                inverse = left @ inverse @ left.T + np.outer(move, move) / curved
            at, (value, slope, fitted) = at + move, trial
        return HyperMode(at, value, fitted, inverse, False)

    def hessian(self, model: SiteModel, mode: HyperMode) -> np.ndarray:
        """Of the log density at a mode, by differences of gradients."""
        rows = []
        for step in self.difference * np.eye(len(mode.theta)):
            up, down = (self._at(model, mode.theta + s, mode.fitted)[1] for s in (step, -step))
            rows.append((up - down) / (2 * self.difference))
        found = np.reshape(rows, (len(mode.theta), -1))
        return 0.5 * (found + found.T)

    def _at(
        self, model: SiteModel, theta: np.ndarray, near: SiteFit | None
    ) -> tuple[float, np.ndarray, SiteFit]:
        """Log density, its gradient, and q."""
        point = theta[None]
        fitted, slope = model.with_gradient(point, None if near is None else near.sites)
        value = float(fitted.bound[0] + model.assembly.log_prior(point)[0])
        return value, slope[0] + model.assembly.prior_slopes(point)[0], fitted


@dataclass(frozen=True)
class HyperMode:
    """Where an ascent ended, about the covariance of theta there, and whether it arrived."""

    theta: np.ndarray
    value: float
    fitted: SiteFit
    covariance: np.ndarray
    converged: bool
