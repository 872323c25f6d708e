"""Bayesian linear regression with a normal or a relevance prior."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from scipy import special
from sklearn.base import RegressorMixin

from curvi._core import validation
from curvi._core.errors import InputError
from curvi.glm._base import BayesianLinearModel, as_numbers, checked_level
from curvi.glm._design import Columns
from curvi.glm._fit import GLMFit, fit_glm
from curvi.glm._likelihoods import Gaussian
from curvi.glm._rows import Observations

_LEAST_NOISE = {8: 1e-12, 4: 1e-6}  # of the variance of y, by bytes of a number


class BayesianLinearRegression(RegressorMixin, BayesianLinearModel):
    r"""Linear regression, ``y ~ N(x'w, noise^2)``, with a Gaussian posterior over w.

    With ``covariance="full"`` and a given noise the posterior is the conjugate one, exactly.

    Parameters
    ----------
    noise_scale : float, optional
        Noise sd in the units of y. None chooses it to maximise the ELBO, down to a millionth of
        the sd of y (a thousandth in float32), below which data count as free of noise.
    prior : {"normal", "ard"}
        ``"normal"``: N(0, prior_scale^2). ``"ard"``: every coefficient has a prior variance of
        its own, chosen to maximise the ELBO (automatic relevance determination): irrelevant
        features are switched off.
    prior_scale : float
        Prior sd of coefficients, in sds of y per sd of a feature if ``standardize``.
    covariance : {"diagonal", "full", "low-rank"}
        Structure of the posterior covariance.
    method : {"newton", "hfsgvi", "lbfgs", "dsvi"}
        Exact Newton steps, or one of the paper's stochastic methods, whose result is judged by
        the exact ELBO.
    fit_intercept, standardize : bool
        Add an intercept; centre and scale features and y inside (results are in your units).
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
    noise_sd_ : float
        Noise sd, given or estimated.
    relevance_, selected_ : arrays
        With ``prior="ard"``: prior variances, and which features are not switched off.
    elbo_, elbos_, n_iter_, converged_, result_
        The ELBO, that of every start, the number of steps, whether they converged, and
        everything else about the fit.

    Notes
    -----
    With ``standardize=True`` y is centred and scaled inside as well, and ``prior_scale`` is in
    sds of y per sd of a feature (without an intercept nothing is centred, and root mean squares
    stand for sds). Everything that is returned is in your units, the ELBO too.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.glm import BayesianLinearRegression
    >>> X = np.arange(6.0)[:, None]
    >>> model = BayesianLinearRegression().fit(X, [1.1, 2.9, 5.2, 6.8, 9.1, 10.9])
    >>> model.converged_, bool(abs(model.coef_[0] - 2) < 0.2)
    (True, True)
    """

    def __init__(
        self,
        *,
        noise_scale: float | None = None,
        prior: str = "normal",
        prior_scale: float = 1.0,
        covariance: str = "diagonal",
        method: str = "newton",
        fit_intercept: bool = True,
        standardize: bool = True,
        intercept_prior_scale: float | None = None,
        rank: int = 10,
        num_starts: int | None = None,
        batch_size: int | None = None,
        max_iter: int | None = None,
        tol: float | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.noise_scale = noise_scale
        super().__init__(
            prior=prior,
            prior_scale=prior_scale,
            covariance=covariance,
            method=method,
            fit_intercept=fit_intercept,
            standardize=standardize,
            intercept_prior_scale=intercept_prior_scale,
            rank=rank,
            num_starts=num_starts,
            batch_size=batch_size,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
        )

    def predict(self, X: Any) -> np.ndarray:
        """Posterior mean of the response of each row."""
        mean, _ = self._predictor(X)
        return mean[:, 0].astype(self.coef_.dtype)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of new responses: posterior predictive, noise included."""
        mean, variance = (part[:, 0] for part in self._predictor(X))
        half = special.ndtri(0.5 + checked_level(level) / 2) * np.sqrt(variance + self.noise_sd_**2)
        dtype = self.coef_.dtype
        return (mean - half).astype(dtype), (mean + half).astype(dtype)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.noise_scale is not None:
            validation.positive_number(self.noise_scale, "noise_scale")

    def _fit_rows(self, data: Observations, columns: Columns) -> GLMFit:
        dtype = data.dtype
        # y is standardised before it is rounded to the precision of the table.
        total, mean, variance = data.responses(lambda y: as_numbers(y, np.float64))
        shift, spread = float(mean[0]), float(np.sqrt(variance[0]))
        if not columns.intercept:  # what is not centred has the size of its root mean square
            spread = float(np.hypot(spread, shift))
        flat = spread <= np.finfo(dtype).eps * abs(shift)
        unit = 1.0 if flat else spread
        scale = unit if self.standardize else 1.0
        if not (self.standardize and columns.intercept):
            shift = 0.0
        least = _LEAST_NOISE[dtype.itemsize] * (unit / scale) ** 2
        noise = -least if self.noise_scale is None else (self.noise_scale / scale) ** 2
        if dtype.type(noise) == 0:
            raise InputError(
                f"noise_scale is {self.noise_scale}, too small for {dtype}; use float64 or a "
                "larger one"
            )

        def encode(y: np.ndarray) -> np.ndarray:
            return ((as_numbers(y, np.float64) - shift) / scale).astype(dtype)

        # Noise that is not known is at most that of y, and falls on the way.
        curvature = float(1 / (noise if noise > 0 else (unit / scale) ** 2))
        fitted = fit_glm(
            Gaussian(),
            self._family(columns.count),
            data.rows(columns, self._precision(columns, dtype), noise, encode),
            relevance=self.prior == "ard",
            options=self._options(columns, total, curvature),
        )
        self._response_units = (shift, scale)
        self.noise_sd_ = scale * float(np.sqrt(fitted.noise))
        jacobian = total * np.log(scale)  # the density of y is per unit of y
        trace = {**fitted.trace, "elbo": fitted.trace["elbo"] - jacobian}
        trace["value"] = fitted.trace["value"] + jacobian
        elbos = fitted.elbos - jacobian
        return replace(fitted, elbo=fitted.elbo - jacobian, elbos=elbos, trace=trace)
