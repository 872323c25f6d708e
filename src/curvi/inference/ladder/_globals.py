r"""Which coordinates govern the spread of others: the globals of a posterior with groups.

With :math:`\Lambda` the precision of a Gaussian q and :math:`a = \Lambda (z - \mu)`, Stein's
identity gives the change of the expected curvature of coordinate j along coordinate k from
gradients alone,

.. math:: E[\partial_j^2 \partial_k \log p] \approx
    E[(g_j a_j - E[g_j a_j])\,a_k], \qquad g = \nabla \log p .

In units of the curvature of j and the sd of k it is the relative change of the conditional
precision of z_j when z_k moves by one sd: zero for a Gaussian, about one in the funnel of a group
sd.
"""

from __future__ import annotations

import numpy as np
from scipy import linalg

from curvi.families import HostMap


def find_globals(
    place: HostMap, positions: np.ndarray, gradients: np.ndarray, *, farthest: float = 20.0,
    least: float = 0.3, noises: float = 3.0, most: int = 12,
) -> tuple[tuple[int, ...], np.ndarray]:  # fmt: skip
    """The coordinates that govern the spread of others, strongest first, and the score of each.

    Parameters
    ----------
    place : HostMap
        A Gaussian q, without globals of its own.
    positions, gradients : array, shape (draws, dimension)
        Independent draws of q, and the gradients of log p there.
    farthest : float
        Products of standardised numbers beyond it are outliers.
    least, noises : float
        A global has a total of squares over all j above ``least`` and so many times its noise.
    most : int
        Number of globals.
    """
    good = np.isfinite(gradients).all(axis=1)
    centred, pulled = positions[good] - place.mean, gradients[good]
    factor, count = place.factor, int(good.sum())
    inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    own = np.sqrt(np.sum(inverse**2, axis=0))  # root of the conditional precision
    standardised = centred @ inverse.T @ inverse / own
    product = np.clip(pulled / own * standardised, -farthest, farthest)
    product -= product.mean(axis=0)
    marginal = centred / np.sqrt(np.sum(factor**2, axis=1))
    change = product.T @ marginal / count
    np.fill_diagonal(change, 0.0)
    noise = float(np.sum(np.mean(product**2, axis=0))) / count
    score = np.sum(change**2, axis=0) - noise
    # The total of d squared errors has a spread of about sqrt(2 / d) of itself.
    limit = least + noises * noise * np.sqrt(2 / len(score))
    order = np.argsort(-score)[:most]
    return tuple(int(k) for k in order if score[k] > limit), score


def conditional_start(place: HostMap, order: np.ndarray, count: int) -> HostMap:
    """The same Gaussian with its coordinates in another order, the first ``count`` globals."""
    covariance = (place.factor @ place.factor.T)[np.ix_(order, order)]
    warp = np.zeros((len(order) - count, count))
    return HostMap(place.mean[order], np.linalg.cholesky(covariance), warp, order)
