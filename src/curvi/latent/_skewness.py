r"""Skewness of the effects given theta, which no Gaussian has, to first order.

Around q the rows less their sites are :math:`g = \sum_i \tfrac16 \kappa_i (x_i^3 - 3 v_i x_i) +
\dots` with :math:`x = t - E_q t` and :math:`\kappa_i = E_q[\ell_i''']`. The map

.. math:: u \mapsto u + \tfrac16 S A^\top \kappa (x^2 - v)

carries q to :math:`q (1 + g)`: minus the divergence of the displacement under q is g. It gives
every linear combination of effects the third cumulant :math:`\sum_i \kappa_i \mathrm{Cov}_q(\cdot,
t_i)^3`, leaves means as they are, and takes one solution with a factor that is there.
"""

from __future__ import annotations

import numpy as np

from curvi._core.quadrature import gauss_hermite
from curvi._core.threads import one_blas_thread
from curvi.latent._site_steps import SiteFit
from curvi.latent._sites import SiteModel


def third_slopes(
    model: SiteModel, theta: np.ndarray, fitted: SiteFit, nodes: int = 20
) -> np.ndarray:
    """``E[l''']`` of every row, (points, rows): ``E[l'' x] / v`` for its predictor under q."""
    seen, out = model.seen, np.zeros(fitted.mean.shape)
    mean, sd = fitted.mean[:, seen, None], np.sqrt(fitted.variance[:, seen, None])
    z, weights = gauss_hermite(nodes)
    y, trials = (x[seen][:, None] for x in (model.y, model.trials))
    extra = model.assembly.extra_values(theta)[:, None, None, :]
    second = model.likelihood.slopes(mean + sd * z, y, trials, extra=extra)[1]
    averaged = np.broadcast_to(second, (*sd.shape[:2], nodes)) @ (z * weights)
    out[:, seen] = np.divide(averaged, sd[..., 0], out=out[:, seen], where=sd[..., 0] > 0)
    return out


@one_blas_thread()
def skewed(model: SiteModel, theta: np.ndarray, fitted: SiteFit, drawn: np.ndarray) -> np.ndarray:
    """Draws of q with the skewness of the posterior.

    Parameters
    ----------
    model : SiteModel
        Rows and effects.
    theta : array, shape (points, dimension)
        Hyperparameters.
    fitted : SiteFit
        The best q of each, with the variances of predictors.
    drawn : array, shape (points, size, k)
        Draws of the effects under q (`SiteModel.draw`).

    Returns
    -------
    array, shape (points, size, k)
        The draws, moved.
    """
    third = third_slopes(model, theta, fitted)
    out = np.empty_like(drawn)
    for point in range(len(theta)):
        some = slice(point, point + 1)
        x = model._seen_by_rows(drawn[some]) + (model.offset - fitted.mean[some])[:, :, None]
        bent = third[some, :, None] * (x**2 - fitted.variance[some, :, None]) / 6
        pulled = (model.assembly.A.T @ bent[0])[None]
        factor = model.assembly.factor(model.values(theta[some], fitted.at(some)))
        out[some] = drawn[some] + factor.solve(pulled)
    return out
