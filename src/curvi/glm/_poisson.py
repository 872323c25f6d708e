"""Bayesian Poisson regression: counts with a log link, in closed form."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from curvi._core.errors import InputError
from curvi.glm._base import BayesianLinearModel, as_numbers, checked_level
from curvi.glm._design import Columns
from curvi.glm._fit import GLMFit, fit_glm
from curvi.glm._likelihoods import Poisson, gauss_hermite
from curvi.glm._rows import Observations

_NODES = 40
_SMALLEST_START = 1e-3  # mean count at which the intercept starts, at least


class BayesianPoissonRegression(RegressorMixin, BayesianLinearModel):
    r"""Regression of counts, ``y ~ Poisson(exp(x'w))``, with a Gaussian posterior over w.

    The ELBO needs no quadrature: ``E[exp(t)] = exp(m + v / 2)``.

    Parameters
    ----------
    prior : {"normal", "ard"}
        ``"normal"``: N(0, prior_scale^2). ``"ard"``: every coefficient has a prior variance of
        its own, chosen to maximise the ELBO (automatic relevance determination): irrelevant
        features are switched off.
    prior_scale : float
        Prior sd of coefficients, in standardised units if ``standardize``.
    covariance : {"diagonal", "full", "low-rank"}
        Structure of the posterior covariance.
    method : {"newton", "hfsgvi", "lbfgs", "dsvi"}
        Exact Newton steps, or one of the paper's stochastic methods, whose result is judged by
        the exact ELBO.
    fit_intercept, standardize : bool
        Add an intercept; centre and scale features inside (results are in your units).
    intercept_prior_scale : float, optional
        Prior sd of the intercept; ``prior_scale`` by default. With ``prior="ard"`` the intercept
        is included in the relevance prior and this is not used.
    rank : int
        Rank of a low-rank covariance; at most the number of coefficients less one.
    num_starts : int, optional
        Number of starts, of which the one with the highest ELBO is kept; 1 by default, or with
        ``prior="ard"``, whose ELBO has many maxima, 4, or 2 on large tables.
    batch_size : int, optional
        Rows per step of the stochastic methods.
    max_iter, tol : int, float, optional
        Largest number of steps, and the remaining gain in nats at which they end.
    random_state : int, RandomState or None
        Randomness of further starts and of stochastic methods.
    verbose : int
        Show a progress bar on a terminal.

    Attributes
    ----------
    coef_, coef_sd_ : arrays, (features,)
        Posterior means and sds.
    intercept_, intercept_sd_ : float
        Posterior mean and sd of the intercept.
    relevance_, selected_ : arrays
        With ``prior="ard"``: prior variances, and which features are not switched off.
    elbo_, elbos_, n_iter_, converged_, result_
        The ELBO, that of every start, the number of steps, whether they converged, and
        everything else about the fit.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.glm import BayesianPoissonRegression
    >>> X = np.arange(8.0)[:, None]
    >>> model = BayesianPoissonRegression().fit(X, [0, 1, 1, 2, 3, 5, 9, 12])
    >>> model.converged_, bool(model.coef_[0] > 0)
    (True, True)
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """Expected count of each row, ``exp(m + v / 2)``: integrated over the posterior."""
        mean, variance = self._predictor(X)
        with np.errstate(over="ignore"):
            return np.exp(mean + 0.5 * variance)[:, 0].astype(self.coef_.dtype)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of new counts (posterior predictive, not of the rate).

        The smallest counts at which the predictive distribution function, a Poisson averaged
        over the posterior of the rate, reaches ``(1 - level) / 2`` and ``(1 + level) / 2``.
        """
        level = checked_level(level)
        mean, variance = (part[:, 0] for part in self._predictor(X))
        nodes, weights = gauss_hermite(_NODES)
        with np.errstate(over="ignore"):
            rates = np.exp(mean[:, None] + np.sqrt(variance)[:, None] * nodes)
        low, high = (_quantile(rates, weights, 0.5 + sign * level / 2) for sign in (-1, 1))
        return low, high

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the Poisson deviance that is explained (D^2)."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def _fit_rows(self, data: Observations, columns: Columns) -> GLMFit:
        def encode(y: np.ndarray) -> np.ndarray:
            counts = as_numbers(y, data.dtype)
            if (counts < 0).any():
                row = int(np.flatnonzero(counts < 0)[0])
                raise InputError(f"y[{row}] is {counts[row]}; counts must not be negative")
            return counts

        responses = data.responses(encode)
        mean = float(responses.mean[0])
        centre = np.zeros(columns.count)
        if columns.intercept:
            centre[-1] = np.log(max(mean, _SMALLEST_START))
        return fit_glm(
            Poisson(),
            self._family(columns.count),
            data.rows(columns, self._precision(columns, data.dtype), 1.0, encode),
            relevance=self.prior == "ard",
            options=self._options(columns, responses.total, mean + 1),
            centre=centre,
        )


def _quantile(rates: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Smallest count at which the averaged distribution function reaches the level."""
    low = np.full(rates.shape[0], -1.0)
    high = np.ceil(rates.max(axis=1) + 10 * np.sqrt(rates.max(axis=1)) + 10)
    high = np.where(np.isfinite(high), high, np.finfo(np.float64).max)
    while np.any(high - low > np.maximum(1, 1e-12 * high)):
        middle = np.floor(0.5 * (low + high))
        reached = special.pdtr(middle[:, None], rates) @ weights >= level
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return high
