r"""How far the bound lies below the log marginal likelihood, to second order.

.. math:: \log p(y) - L = \log E_q\big[e^{g - E g}\big] \approx \tfrac12 \mathrm{Var}_q(g)

with :math:`g = \sum_i \ell_i(t_i) - (r_i t_i - \tfrac12 w_i t_i^2)`: the prior cancels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from curvi._core.run import current_run
from curvi._core.threads import one_blas_thread
from curvi.latent._site_steps import SiteFit
from curvi.latent._sites import SiteModel


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

    @one_blas_thread()
    def __call__(self, model: SiteModel, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """The gap of each point."""
        assembly, seen = model.assembly, model.seen
        rng = np.random.default_rng(0)
        # Single precision: values are only compared.
        most = max(64, int(5 * self.numbers_at_once / max(assembly.size, 1)))
        draws = min(self.draws, most)
        noise = rng.standard_normal((1, assembly.size, draws), np.float32)
        y, trials = (x[seen, None].astype(np.float32) for x in (model.y, model.trials))
        base = model.base[seen, None].astype(np.float32)
        A = assembly.A[seen].astype(np.float32)
        extra = assembly.extra_values(theta).astype(np.float32)
        out = np.zeros(len(theta))
        step = max(1, int(self.numbers_at_once / (draws * max(assembly.size, 1))))
        for first in range(0, len(theta), step):
            current_run().check()
            some = slice(first, first + step)
            effects = model.draw(theta[some], fitted.at(some), noise, centred=True)
            for point, one in enumerate(effects, first):
                centred = A @ one
                linear = fitted.linear[point, seen, None].astype(np.float32)
                precision = fitted.precision[point, seen, None].astype(np.float32)
                site = centred * (linear - 0.5 * precision * centred)
                found = (
                    model.likelihood.log_density(centred + base, y, trials, extra=extra[point])
                    - site
                )
                out[point] = 0.5 * self._bulk(found.sum(axis=0, dtype=np.float64)).var()
        return out

    def _bulk(self, values: np.ndarray) -> np.ndarray:
        """Values without outliers."""
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        reach = self.reach * (high - low) / 1.349  # the distance of normal quartiles, in sds
        return np.clip(values, middle - reach, middle + reach)
