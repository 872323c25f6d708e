"""Bayesian linear and Poisson regression with a normal or a relevance prior."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy import special
from sklearn.base import RegressorMixin
from sklearn.metrics import d2_tweedie_score

from curvi._core import validation
from curvi._core.errors import InputError, warn_user
from curvi._core.quadrature import gauss_hermite
from curvi.families import MeanField
from curvi.glm._base import BayesianLinearModel, estimator
from curvi.glm._design import Columns
from curvi.glm._fit import fit_glm
from curvi.glm._rows import Observations, as_numbers
from curvi.glm._starts import GLMFit
from curvi.likelihoods import Gaussian, Poisson

_LEAST_NOISE = {8: 1e-12, 4: 1e-6}  # of the variance of y, by bytes of a number


@estimator
class BayesianLinearRegression(RegressorMixin, BayesianLinearModel):
    r"""Linear regression, ``y ~ N(x'w, noise^2)``, with a Gaussian posterior over w.

    With ``covariance="full"`` and a given noise the posterior is the conjugate one, exactly.

    Parameters
    ----------
    prior : {"normal", "ard"}
        ``"normal"``: N(0, prior_scale^2). ``"ard"``: every coefficient has a prior variance of
        its own, chosen to maximise the ELBO (automatic relevance determination): irrelevant
        features are switched off.
    prior_scale : float
        Prior sd of coefficients, in sds of y per sd of a feature if ``standardize``.
    covariance : {"auto", "full", "diagonal", "low-rank"}
        Structure of the posterior covariance. ``"auto"`` is full up to 800 coefficients under a
        normal prior with Newton steps, and diagonal otherwise. Sds of a covariance that is not full
        are too small where features are correlated; a fit looks for that, ``"auto"`` warns of it,
        and :meth:`report` says by how much.
    method : {"newton", "hfsgvi", "lbfgs", "dsvi"}
        Exact Newton steps, or one of the paper's stochastic methods, whose result is judged by
        the exact ELBO.
    fit_intercept, standardize : bool
        Add an intercept; centre and scale features and y inside (results are in your units).
    intercept_prior_scale : float, optional
        Prior sd of the intercept; ``prior_scale`` by default. With ``prior="ard"`` this is the
        least one: a larger one is chosen where that raises the ELBO, and the intercept is never
        switched off.
    rank : int
        Rank of a low-rank covariance; at most the number of coefficients less one.
    num_starts : int, optional
        Number of starts, of which the one with the highest ELBO is kept. By default 1, or with
        ``prior="ard"``, whose ELBO has many maxima, as many as are cheap: up to 30 within 1e11
        multiplications, whatever the machine. Where rows outnumber coefficients it is 1e10, and
        four that agree are enough. Stochastic methods make 4 at most.
    num_draws, batch_size : int, optional
        Draws of q (10 by default; the paper's Algorithm 1 takes 1) and rows per step of the
        stochastic methods.
    max_iter, tol : int, float, optional
        Largest number of steps, and the remaining gain in nats at which they end.
    random_state : int, RandomState or None
        Randomness of further starts and of stochastic methods.
    verbose : int
        Show a progress bar on a terminal.
    noise_scale : float, optional
        Noise sd in the units of y. None chooses it to maximise the ELBO, down to a millionth of
        the sd of y (a thousandth in float32), below which data count as free of noise.

    Attributes
    ----------
    coef_, coef_sd_ : arrays, (features,)
        Posterior means and sds. Those of a feature that is switched off are both zero, nearly: the
        posterior takes it as irrelevant for certain, and its sd does not say how sure that is.
    intercept_, intercept_sd_ : float
        Posterior mean and sd of the intercept.
    noise_sd_ : float
        Noise sd, given or estimated.
    covariance_ : str
        The structure of the covariance that was fitted.
    relevance_, selected_ : arrays
        With ``prior="ard"``: prior variances, and which features
        matter: without one of them the ELBO would be lower by more than a nat, which takes a mean
        of about two sds. Others may be on, too, and have their small part in predictions.
    elbo_, elbos_, n_iter_, converged_, result_
        The ELBO, that of every start, the number of steps, whether they converged, and
        everything else about the fit.

    Notes
    -----
    With ``standardize=True`` y is centred and scaled inside as well, and ``prior_scale`` is in
    sds of y per sd of a feature (without an intercept nothing is centred, and root mean squares
    stand for sds). Everything that is returned is in your units, the ELBO too.

    Starts under a relevance prior may end in several optima, of which a fit warns. ``coef_`` and
    all other attributes are those of the best. Predictions, intervals and draws are averages over
    all optima with at least a hundredth of the weight of the best, in proportion to ``exp(elbo)``;
    ``result_.others`` has the moments and weights of the others.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.glm import BayesianLinearRegression
    >>> X = np.arange(6.0)[:, None]
    >>> model = BayesianLinearRegression().fit(X, [1.1, 2.9, 5.2, 6.8, 9.1, 10.9])
    >>> model.converged_, bool(abs(model.coef_[0] - 2) < 0.2)
    (True, True)
    """

    _claims = BayesianLinearModel._claims | {"noise_sd_": "positive"}
    _kind = "linear regression"

    noise_scale: float | None = None

    def predict(
        self, X: Any, return_std: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Posterior mean of the response of each row.

        With ``return_std=True`` also the sd of a new response, noise included.
        """
        weight, means, sds = self._new_responses(X)
        mean, dtype = weight @ means, self.coef_.dtype
        if not return_std:
            return mean.astype(dtype)
        # Root sums of squares without squares, which may be too large.
        sd = np.hypot.reduce(np.sqrt(weight)[:, None] * np.hypot(sds, means - mean), axis=0)
        return mean.astype(dtype), sd.astype(dtype)

    def predict_interval(self, X: Any, *, interval: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of new responses: posterior predictive, noise included."""
        half = validation.probability_of_interval(interval) / 2
        parts = self._new_responses(X)
        low, high = (_normal_quantile(*parts, 0.5 + sign * half) for sign in (-1, 1))
        return low.astype(self.coef_.dtype), high.astype(self.coef_.dtype)

    def _new_responses(self, X: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Weights of the optima, and means and sds of their predictive distributions."""
        parts = [(w, mean[:, 0], np.hypot(sd[:, 0], noise))
                 for w, noise, mean, sd in self._predictors(X)]  # fmt: skip
        weight, means, sds = map(np.array, zip(*parts, strict=True))
        return weight, means, sds

    def _simulated(self, predictor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return predictor + self.noise_sd_ * rng.standard_normal(predictor.shape)

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.noise_scale is not None:
            validation.positive_number(self.noise_scale, "noise_scale")

    def _noise(self, size: float, scale: float, dtype: np.dtype) -> float:
        """Noise variance in fitted units, or minus the least one if it is to be estimated.

        ``size`` is that of y in fitted units, ``scale`` the size of these.
        """
        if self.noise_scale is None:
            what, sd, least = f"y has an sd of {size:.3g}", size, _LEAST_NOISE[dtype.itemsize]
        else:
            what, sd, least = f"noise_scale is {self.noise_scale}", self.noise_scale / scale, 1.0
        variance, numbers = least * sd * sd, np.finfo(dtype)
        if not numbers.tiny <= variance < numbers.max:
            raise InputError(
                f"{what}, {sd:.3g} in fitted units, whose square is too small or too large for "
                f"{dtype}; rescale y, use standardize=True, or choose another noise_scale"
            )
        return -variance if self.noise_scale is None else variance

    def _fit_rows(self, data: Observations, columns: Columns) -> GLMFit:
        dtype = data.dtype
        # y is standardised before it is rounded to the precision of the table.
        total, means, sds = data.responses(lambda y: as_numbers(y, np.float64))
        shift, spread = float(means[0]), float(sds[0])
        if not columns.intercept:  # what is not centred has the size of its root mean square
            spread = float(np.hypot(spread, shift))
        flat = spread <= np.finfo(dtype).eps * abs(shift)
        unit = 1.0 if flat else spread
        scale = unit if self.standardize else 1.0
        if not (self.standardize and columns.intercept):
            shift = 0.0
        noise = self._noise(unit / scale, scale, dtype)

        def encode(y: np.ndarray) -> np.ndarray:
            return ((as_numbers(y, np.float64) - shift) / scale).astype(dtype)

        # Noise that is not known is at most that of y, and falls on the way.
        curvature = float(1 / (noise if noise > 0 else (unit / scale) ** 2))
        fit = partial(
            fit_glm,
            Gaussian(),
            rows=data.rows(columns, self._precision(columns, dtype), noise, encode),
            relevance=self.prior == "ard",
            intercept=columns.intercept,
            options=self._options(columns, total, curvature),
        )
        fitted = fit(family=self._family(columns.count))
        # Columns that can reproduce all rows leave a full covariance no noise to estimate.
        if self.covariance == "auto" and not fitted.converged and fitted.noise <= -1.01 * noise:
            self.covariance_, fitted = "diagonal", fit(family=MeanField())
        self._response_units = (shift, scale)
        self.noise_sd_ = scale * float(np.sqrt(fitted.noise))
        jacobian = total * np.log(scale)  # the density of y is per unit of y
        trace = {**fitted.trace, "elbo": fitted.trace["elbo"] - jacobian}
        trace["value"] = fitted.trace["value"] + jacobian
        others = tuple(replace(one, elbo=one.elbo - jacobian) for one in fitted.others)
        more = {"elbos": fitted.elbos - jacobian, "trace": trace, "others": others}
        return replace(fitted, elbo=fitted.elbo - jacobian, **more)


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
    covariance : {"auto", "full", "diagonal", "low-rank"}
        Structure of the posterior covariance. ``"auto"`` is full up to 800 coefficients under a
        normal prior with Newton steps, and diagonal otherwise. Sds of a covariance that is not full
        are too small where features are correlated; a fit looks for that, ``"auto"`` warns of it,
        and :meth:`report` says by how much.
    method : {"newton", "hfsgvi", "lbfgs", "dsvi"}
        Exact Newton steps, or one of the paper's stochastic methods, whose result is judged by
        the exact ELBO.
    fit_intercept, standardize : bool
        Add an intercept; centre and scale features inside (results are in your units).
    intercept_prior_scale : float, optional
        Prior sd of the intercept; ``prior_scale`` by default. With ``prior="ard"`` this is the
        least one: a larger one is chosen where that raises the ELBO, and the intercept is never
        switched off.
    rank : int
        Rank of a low-rank covariance; at most the number of coefficients less one.
    num_starts : int, optional
        Number of starts, of which the one with the highest ELBO is kept. By default 1, or with
        ``prior="ard"``, whose ELBO has many maxima, as many as are cheap: up to 30 within 1e11
        multiplications, whatever the machine. Where rows outnumber coefficients it is 1e10, and
        four that agree are enough. Stochastic methods make 4 at most.
    num_draws, batch_size : int, optional
        Draws of q (10 by default; the paper's Algorithm 1 takes 1) and rows per step of the
        stochastic methods.
    max_iter, tol : int, float, optional
        Largest number of steps, and the remaining gain in nats at which they end.
    random_state : int, RandomState or None
        Randomness of further starts and of stochastic methods.
    verbose : int
        Show a progress bar on a terminal.

    Attributes
    ----------
    coef_, coef_sd_ : arrays, (features,)
        Posterior means and sds. Those of a feature that is switched off are both zero, nearly: the
        posterior takes it as irrelevant for certain, and its sd does not say how sure that is.
    intercept_, intercept_sd_ : float
        Posterior mean and sd of the intercept.
    covariance_ : str
        The structure of the covariance that was fitted.
    relevance_, selected_ : arrays
        With ``prior="ard"``: prior variances, and which features
        matter: without one of them the ELBO would be lower by more than a nat, which takes a mean
        of about two sds. Others may be on, too, and have their small part in predictions.
    elbo_, elbos_, n_iter_, converged_, result_
        The ELBO, that of every start, the number of steps, whether they converged, and
        everything else about the fit.

    Notes
    -----
    Starts under a relevance prior may end in several optima, of which a fit warns. ``coef_`` and
    all other attributes are those of the best. Predictions, intervals and draws are averages over
    all optima with at least a hundredth of the weight of the best, in proportion to ``exp(elbo)``;
    ``result_.others`` has the moments and weights of the others.

    Examples
    --------
    >>> import numpy as np
    >>> from curvi.glm import BayesianPoissonRegression
    >>> X = np.arange(8.0)[:, None]
    >>> model = BayesianPoissonRegression().fit(X, [0, 1, 1, 2, 3, 5, 9, 12])
    >>> model.converged_, bool(model.coef_[0] > 0)
    (True, True)
    """

    _kind = "Poisson regression of counts"
    _effects = "changes of the logarithm of the expected count"
    _scored = "Deviance"

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        return tags

    def predict(self, X: Any) -> np.ndarray:
        """Expected count of each row, ``exp(m + v / 2)``: integrated over the posterior.

        It is infinite, with a warning, where it is beyond the largest number.
        """
        parts = self._predictors(X)
        with np.errstate(over="ignore"):
            rates = [weight * np.exp(mean + 0.5 * sd**2)[:, 0] for weight, _, mean, sd in parts]
            return _counts(np.sum(rates, axis=0).astype(self.coef_.dtype))

    def predict_interval(self, X: Any, *, interval: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Central interval of new counts (posterior predictive, not of the rate).

        The smallest counts at which the predictive distribution function, a Poisson averaged
        over the posterior of the rate, reaches ``(1 - interval) / 2`` and ``(1 + interval) / 2``.
        They are infinite, with a warning, where they are beyond the largest number.
        """
        half = validation.probability_of_interval(interval) / 2
        rates, weights = self._rates(X)
        low, high = (_quantile(rates, weights, 0.5 + sign * half) for sign in (-1, 1))
        return low, _counts(high)

    def _simulated(self, predictor: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        return rng.poisson(np.exp(np.minimum(predictor, 40.0))).astype(float)

    def _rates(self, X: Any, *, num_nodes: int = 40) -> tuple[np.ndarray, np.ndarray]:
        """Rates of every row at the nodes of a quadrature rule over the posterior, and weights."""
        nodes, weights = gauss_hermite(num_nodes)
        parts = self._predictors(X)
        with np.errstate(over="ignore"):
            rates = np.hstack([np.exp(mean + sd * nodes) for _, _, mean, sd in parts])
        return rates, np.concatenate([share * weights for share, *_ in parts])

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Share of the Poisson deviance that is explained (D^2)."""
        return float(d2_tweedie_score(y, self.predict(X), sample_weight=sample_weight, power=1))

    def _fit_rows(
        self, data: Observations, columns: Columns, *, smallest_start: float = 1e-3
    ) -> GLMFit:
        # smallest_start: mean count at which the intercept starts, at least
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
            centre[-1] = np.log(max(mean, smallest_start))
        return fit_glm(
            Poisson(),
            self._family(columns.count),
            data.rows(columns, self._precision(columns, data.dtype), 1.0, encode),
            relevance=self.prior == "ard",
            intercept=columns.intercept,
            options=self._options(columns, responses.total, mean + 1),
            centre=centre,
        )


def _counts(counts: np.ndarray) -> np.ndarray:
    """The same counts, with a warning where one is infinite."""
    if (beyond := np.isinf(counts)).any():
        message = f"the count of row {np.argmax(beyond)} is infinite: its features are far from "
        warn_user(f"{message}those of the fit", RuntimeWarning)
    return counts


def _normal_quantile(
    weight: np.ndarray, means: np.ndarray, sds: np.ndarray, level: float
) -> np.ndarray:
    """Quantiles of mixtures of normal distributions, one for each column, by bisection."""
    ends = means + special.ndtri(level) * sds
    low, high = ends.min(axis=0), ends.max(axis=0)
    while np.any(high - low > 1e-9 * sds.min(axis=0)):
        middle = 0.5 * low + 0.5 * high
        above = weight @ special.ndtr((middle - means) / sds) >= level
        if np.all((middle == low) | (middle == high)):
            break  # no number is between
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return high


def _quantile(rates: np.ndarray, weights: np.ndarray, level: float) -> np.ndarray:
    """Smallest count at which the averaged distribution function reaches the level."""
    low = np.full(rates.shape[0], -1.0)
    largest = np.finfo(np.float64).max
    high = np.ceil(rates.max(axis=1) + 10 * np.sqrt(rates.max(axis=1)) + 10)
    high = np.where(np.isfinite(high), high, largest)
    while np.any(high - low > np.maximum(1, 1e-12 * high)):
        middle = np.floor(0.5 * low + 0.5 * high)
        reached = special.pdtr(middle[:, None], rates) @ weights >= level
        low, high = np.where(reached, low, middle), np.where(reached, middle, high)
    return np.where(high > 0.99 * largest, np.inf, high)
