r"""How far the bound lies below the log marginal likelihood, given the hyperparameters.

With :math:`g(u) = \sum_i \ell_i(t_i) - (r_i t_i - \tfrac12 w_i t_i^2)`, the rows minus their sites,

.. math:: p(y, u \mid \theta) = e^{L}\, q(u)\, e^{g - E_q g}, \qquad
    \log p(y \mid \theta) - L = \log E_q\big[e^{g - E_q g}\big] \approx \tfrac12 \mathrm{Var}_q(g).

The gap depends on theta, and a bound in the place of a log marginal likelihood shifts theta.
The next term, :math:`\tfrac16 E_q (g - E_q g)^3`, says how far the second order goes: log weights
are in doubt by as much as it differs between points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import special

from curvi._core.run import current_run
from curvi._core.threads import one_blas_thread
from curvi.latent._site_steps import SiteFit
from curvi.latent._sites import SiteModel

_QUARTILES = 2 * float(special.ndtri(0.75))  # the distance of those of a normal variable, in sds


@dataclass(frozen=True)
class Gap:
    """Estimates it on the same draws for all points: what matters are differences between them.

    A few draws far out, where a Gaussian q has mass and the likelihood none, would be all of the
    variance: they are drawn in to some sds of the others.

    Parameters
    ----------
    draws : int
        Number of draws, of which there are fewer where there are many effects.
    reach : float
        Sds of what lies between the quartiles, beyond which values are drawn in.
    numbers_at_once : float
        Numbers of draws that are worked on side by side; five times as many of one point at most.
    """

    draws: int = 512
    reach: float = 4.0
    numbers_at_once: float = 4e6

    def __call__(self, model: SiteModel, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """Half the variance of g under q for each theta, in nats; zero for Gaussian responses."""
        return self.terms(model, theta, fitted)[0]

    @one_blas_thread()
    def terms(self, model: SiteModel, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """The term of second order of each theta, and that of third by each half of the draws."""
        out = np.zeros((3, len(theta)))
        if model.likelihood.conjugate or not len(model.seen):
            return out
        assembly, seen = model.assembly, model.seen
        rng = np.random.default_rng(0)
        most = max(64, int(5 * self.numbers_at_once / max(assembly.size, 1)))
        draws = min(self.draws, most) // 2 * 2
        # Draws in single precision; what is computed at them is a small rest of large terms.
        noise = rng.standard_normal((1, assembly.size, draws), np.float32)
        A, extra = assembly.A, assembly.extra_values(theta)
        rows = max(1, int(self.numbers_at_once / draws))
        parts = [seen[begin : begin + rows] for begin in range(0, len(seen), rows)]
        step = max(1, int(self.numbers_at_once / (draws * max(assembly.size, 1))))
        for first in range(0, len(theta), step):
            some = slice(first, first + step)
            effects = model.draw(theta[some], fitted.at(some), noise, centred=True)
            for point, one in enumerate(effects.astype(np.float64), first):
                total = np.zeros(draws)
                for row in parts:
                    current_run().check()
                    sites = fitted.linear[point, row], fitted.precision[point, row]
                    total += _less_sites(model, row, A[row] @ one, *sites, extra[point])
                values = drawn_in(total, self.reach)
                values -= values.mean()
                thirds = np.mean(values.reshape(2, -1) ** 3, axis=1) / 6
                out[:, point] = np.mean(values**2) / 2, *thirds
        return out


def _less_sites(
    model: SiteModel, rows: np.ndarray, t: np.ndarray, linear: np.ndarray, precision: np.ndarray,
    extra: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """The part of g of some rows at their centred predictors, (..., rows, k): shape (..., k)."""
    base, y, trials = (x[rows][:, None] for x in (model.base, model.y, model.trials))
    site = t * (linear[..., None] - 0.5 * precision[..., None] * t)
    value = model.likelihood.log_density(t + base, y, trials, extra=extra) - site
    return np.asarray(value.sum(axis=-2))


def excess(
    model: SiteModel, theta: np.ndarray, fitted: SiteFit, predictors: np.ndarray,
    slopes: bool = True,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """``g``, and its slopes in the predictors.

    Parameters
    ----------
    model : SiteModel
        Rows and effects.
    theta : array, shape (points, dimension)
        Hyperparameters.
    fitted : SiteFit
        The best q of each.
    predictors : array, shape (points, rows, k)
        ``A (u - prior mean)``.
    slopes : bool
        Whether these are computed; otherwise they are zero.

    Returns
    -------
    value, slope : arrays, shapes (points, k) and (points, rows, k)
        Rows without a response have a slope of zero.
    """
    seen, slope = model.seen, np.zeros(predictors.shape if slopes else (0,))
    t = predictors if len(seen) == predictors.shape[1] else predictors[:, seen]
    linear, precision = fitted.linear[:, seen], fitted.precision[:, seen]
    extra = model.assembly.extra_values(theta)[:, None, None, :]
    if slopes:
        base, y, trials = (x[seen][:, None] for x in (model.base, model.y, model.trials))
        first = model.likelihood.slopes(t + base, y, trials, extra=extra)[0]
        slope[:, seen] = first - linear[..., None] + precision[..., None] * t
    return _less_sites(model, seen, t, linear, precision, extra), slope


def drawn_in(values: np.ndarray, reach: float) -> np.ndarray:
    """Values whose outliers are moved to so many sds, which the quartiles measure."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    far = reach * (high - low) / _QUARTILES
    return np.clip(values, middle - far, middle + far)


def in_doubt(weights: np.ndarray, thirds: np.ndarray) -> float:
    """By how many nats the third term differs between points, as far as both halves agree.

    Parameters
    ----------
    weights : array, shape (points,)
        Of the points.
    thirds : array, shape (2, points)
        See `Gap.terms`.
    """
    first, second = thirds - thirds @ weights[:, None]
    return float(np.sqrt(max(weights @ (first * second), 0.0)))
