r"""The Monte-Carlo error of an optimum found on fixed draws.

The optimum :math:`\hat\theta` on one set of draws is a random variable. To first order

.. math:: \hat\theta - \theta^* = -H^{-1} g, \qquad
    \mathrm{Cov}(\hat\theta) = H^{-1}\,\mathrm{Cov}(g)\,H^{-1},

with g the gradient on those draws. For independent draws Cov(g) is the covariance of single
draws over M; for draws that are centred, whitened, paired or low-discrepancy points that
formula reports far too much, because most of the variance of single draws cancels in their
average. So the gradient is taken on several sets of draws, each randomised anew, of the same kind
and the same number, and each gives one Newton step from the optimum. The spread of the
end points is the Monte-Carlo error, whatever the kind of draws.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

FEWEST_SETS = 8
_ENOUGH_TO_POOL = 10


@dataclass(frozen=True, eq=False)
class Replicates:
    """Optimal means on independently randomised sets of draws, computed when they are needed.

    Parameters
    ----------
    compute : callable
        Returns an array, one row per set of draws and one column per flat coordinate; a row that
        could not be solved is NaN.
    """

    compute: Callable[[], np.ndarray]

    @cached_property
    def _solved(self) -> tuple[np.ndarray, int]:
        """The rows that are finite, and the number of all rows."""
        rows = np.asarray(self.compute(), np.float64)
        return rows[np.isfinite(rows).all(axis=1)], len(rows)

    @property
    def means(self) -> np.ndarray | None:
        """The rows that are finite, or None where fewer than 8 are."""
        rows, _ = self._solved
        return rows if len(rows) >= FEWEST_SETS else None

    @property
    def unsolved(self) -> str:
        """How many could not be solved, in words; empty where that is at most a quarter."""
        rows, count = self._solved
        failed = count - len(rows)
        if self.means is not None and 4 * failed <= count:
            return ""
        return f"{failed} of {count} replicates could not be solved"

    def error(self, sd: np.ndarray) -> np.ndarray | None:
        """Monte-Carlo error of the mean of every coordinate, in posterior sds."""
        return None if self.means is None else replicate_spread(self.means, sd)


def replicate_spread(replicates: np.ndarray, sd: np.ndarray) -> np.ndarray:
    r"""Standard deviation between the rows in units of ``sd``, one number per column.

    With n rows a sample variance has a relative error of :math:`\sqrt{2/(n-1)}`, and the largest
    of many is far too large. They are therefore shrunk towards their average as far as their
    scatter is explained by that error (the linear Bayes rule, its constants by moments): with
    v the relative variance of the true variances, the weight of a coordinate's own
    estimate is :math:`v / (v + (1 + v)\,2/(n-1))`. Below ten coordinates v cannot be told, and
    nothing is shrunk.
    """
    freedom = len(replicates) - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.var(replicates, axis=0, ddof=1) / np.asarray(sd, np.float64) ** 2
    if not np.isfinite(variance).all():
        return np.sqrt(variance)
    average = variance.mean()
    if variance.size < _ENOUGH_TO_POOL or average == 0:
        return np.sqrt(variance)
    scatter = np.var(variance, ddof=1) / average**2
    true = max((scatter + 1) / (1 + 2 / freedom) - 1, 0.0)
    own = true / (true + (1 + true) * 2 / freedom)
    return np.sqrt(average + own * (variance - average))
