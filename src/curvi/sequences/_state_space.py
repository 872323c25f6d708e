"""``curvi.StateSpace``: structural time series without sampling, tuning or compilation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from curvi._core import validation
from curvi._core.errors import InputError, NotConvergedWarning, Outcome, warn_user
from curvi._core.memory import require_memory
from curvi.engine import belongs, hooks_for, opened
from curvi.io import SavedEstimator
from curvi.latent import Band, Integral, Integration, LatentPosterior, Lattice
from curvi.likelihoods import Likelihood, likelihood_of
from curvi.sequences._page import Reported
from curvi.sequences._series import (
    Parts,
    Series,
    as_series,
    check_season,
    components_of,
    in_series,
    model_for,
    scales_of,
)  # fmt: skip


class StateSpace(Reported, SavedEstimator, BaseEstimator):
    r"""A structural time series: level, slope, season and regression behind a likelihood.

    .. math::

        y_t \sim p(y_t \mid \eta_t), \qquad \eta_t = \text{level}_t + \text{season}_t
        + x_t^\top \beta

    The states are Gaussian given the standard deviations of their innovations, so the best
    Gaussian approximation follows from one-dimensional expectations and a sparse factorisation, in
    time linear in the length of the series: with Gaussian observations it is the Kalman smoother.
    The hyperparameters are integrated over a lattice around the mode of the bound (more than four
    by importance sampling), not fixed at it. The same call gives the same numbers.

    Parameters
    ----------
    level : {"walk", "ar", None}
        A random walk, a stationary autoregression around a mean, or neither. By default a walk, and
        an autoregression for volatility.
    trend : bool
        Give a walking level a slope, which is a random walk itself.
    season : int, optional
        Steps of a period, 2 to 104 and seen twice; the effects of a period sum to about zero.
    likelihood : str or Likelihood
        ``"gaussian"``, real values with noise; ``"student-t"``, with outliers; ``"poisson"`` and
        ``"negative-binomial"``, counts with a log link; ``"bernoulli"``, labels 0 and 1 with a
        logit link; ``"gamma"``, ``"lognormal"`` and more of the table (:doc:`/mixed`);
        ``"volatility"``, returns whose log variance is the predictor (stochastic volatility); or
        one of your own (:class:`curvi.Likelihood`).
    prior_scales : dict, optional
        Scales of the half-normal priors of the standard deviations ``"level"``, ``"trend"``,
        ``"season"`` and ``"noise"``, in place of the defaults: 1, 0.1, 0.5 and 1 times the sd of a
        Gaussian series, or times one; and those of other hyperparameters of the likelihood, such
        as ``"dispersion"``.

    Attributes
    ----------
    hyperparameters_ : dict
        Posterior mean and sd of every standard deviation, of ``"phi"``, and of other
        hyperparameters of the likelihood.
    coef_, coef_sd_ : array, shape (columns,)
        Regression coefficients.
    log_evidence_ : float
        Logarithm of the integral over the hyperparameters of exp(bound) and their prior: the log
        marginal likelihood of Gaussian observations, a lower bound of it otherwise.
    lattice_ : Lattice
        Points and weights of the integral.

    Notes
    -----
    First values have wide normal priors: 10 units for the level, 1 for the slope, 3 for seasonal
    effects, the unit being the sd of a Gaussian series and otherwise one. Coefficients have a
    normal prior of 2.5 units per sd of their column. (1 + phi) / 2 is beta distributed with
    parameters 20 and 1.5.

    Examples
    --------
    >>> import numpy as np
    >>> y = np.asarray([5.0, 5.4, np.nan, 6.1, 5.8, 6.5, 6.2, 7.0])
    >>> model = StateSpace().fit(y)
    >>> model.smooth().mean.shape, model.forecast(3).mean.shape
    ((8,), (3,))
    """

    hyperparameters_: dict[str, tuple[float, float]]
    log_evidence_: float
    coef_: np.ndarray
    coef_sd_: np.ndarray
    _series: Series
    lattice_: Lattice

    def __init__(
        self,
        level: str | None = "auto",
        *,
        trend: bool = False,
        season: int | None = None,
        likelihood: str = "gaussian",
        prior_scales: dict[str, float] | None = None,
    ) -> None:
        self.level, self.trend, self.season = level, trend, season
        self.likelihood, self.prior_scales = likelihood, prior_scales

    def __repr__(self) -> str:
        options = f"level={self.level!r}, trend={self.trend!r}, season={self.season!r}"
        return f"StateSpace({options}, likelihood={self.likelihood!r})"

    def _likelihood(self) -> Likelihood:
        return likelihood_of(self.likelihood, allowed=in_series)

    def _checked_parts(self, steps: int) -> Parts:
        """Validate the options."""
        level = self.level
        if level == "auto":
            level = "ar" if self._likelihood().of_scale else "walk"
        if level is not None:
            validation.one_of(level, ("auto", "walk", "ar"), "level")
        validation.boolean(self.trend, "trend")
        if self.trend and level != "walk":
            raise InputError(f"trend=True needs level='walk', not {level!r}: it is its slope")
        if self.season is not None:
            validation.positive_integer(self.season, "season")
            if self.season < 2:
                raise InputError("season is 1; a period has at least 2 steps, or use season=None")
            check_season(self.season, steps)
        if level is None and self.season is None:
            raise InputError("there is no process left; use level='walk' or season")
        return Parts(level, bool(self.trend), self.season or 0)

    def _learned(self, series: Series) -> dict[str, Any]:
        """The model of a series, and with what it was made."""
        parts, likelihood = self._checked_parts(len(series.y)), self._likelihood()
        scales = scales_of(series, likelihood, self.prior_scales)
        series = replace(series, num_own=int(parts.level != "walk"))
        model = model_for(series, parts, likelihood, scales)
        return {"_parts": parts, "_scales": scales, "_series": series, "_model": model}

    def fit(
        self, y: Any, X: Any = None, *, checkpoint: Any = None, time_budget: float | None = None,
        progress: bool = False,
    ) -> StateSpace:  # fmt: skip
        """Find the posterior of states and hyperparameters.

        Parameters
        ----------
        y : array, shape (steps,)
            The series; NaN, or masked, where an observation is missing. The times of a pandas
            series must go forward and leave out no period, but for days where there is no season.
        X : array, shape (steps, columns), optional
            Regressors; with an index it has to be that of y.
        checkpoint : path or Checkpoint, optional
            A file from which the same call resumes.
        time_budget : float, optional
            Seconds after which the best hyperparameters until then are taken as they are.
        progress : bool
            Whether to draw a bar, if standard error is a terminal.

        Returns
        -------
        StateSpace
            The same object.

        Raises
        ------
        InputError
            For a series or an option that cannot be used, with what, where and what to do.
        Interrupted
            At Ctrl-C, with the attributes of what was found until then.

        Warns
        -----
        NotConvergedWarning
            If the hyperparameters were not integrated: their tails are cut off for want of points,
            importance weights are of no use, effects did not converge, or time was up.
        """
        with opened(locals()), hooks_for(progress):
            series = as_series(y, X, self._likelihood(), season=self.season is not None)
            learned = self._learned(series)
            model = learned["_model"]
            identity = f"{learned['_parts']!r} {learned['_scales']} {model.likelihood.identity}"
            belongs(identity, (series.y, series.X))
            found = Integration()(model)
            self.__dict__.update(learned)  # until now an earlier fit is as it was
            self._publish(found.lattice)
            found.require_whole(self)
            if why := found.lattice.shortcoming:
                remedy = "give prior_scales that say more, or leave out a component"
                if found.outcome is Outcome.BUDGET:
                    remedy = "give more seconds as time_budget"
                warn_user(NotConvergedWarning(f"{why}; {remedy}", self))
            return self

    def _publish(self, lattice: Lattice) -> None:
        self.lattice_, self.log_evidence_ = lattice, lattice.log_integral
        self._posterior = Integral(lattice, Outcome.CONVERGED).posterior(self._model)
        self.hyperparameters_ = self._posterior.hyperparameters()
        columns = self._series.X.shape[1]
        size = self._model.assembly.size
        self.coef_, self.coef_sd_ = (
            self._posterior.effects(slice(size - columns, size))[:2]
            if columns
            else np.zeros((2, 0))
        )

    @classmethod
    def _from_state(cls, state: dict[str, Any]) -> StateSpace:
        """The model of the stored series at the stored points; all else is computed again."""
        found = super()._from_state(state)
        if hasattr(found, "lattice_") or hasattr(found, "_series"):
            found.__dict__.update(found._learned(found._series))
            names = found._model.assembly.names
            found._publish(found.lattice_.fitting(names, len(found._series.y)))
            if not found._posterior.consistent():
                raise InputError(
                    "its lattice_ is not of this series: other sites, other predictors"
                )
            drawn = found._posterior.draw(1, np.random.default_rng(0)).predictors
            if not np.isfinite([*found.smooth(response=True), drawn[0]]).all():
                raise InputError("its lattice_ has states from which nothing finite can be drawn")
        return found

    def _fitted(self) -> LatentPosterior:
        if not hasattr(self, "lattice_"):
            raise InputError("this StateSpace is not fitted yet; call fit(y) first")
        return self._posterior

    def smooth(
        self, component: str = "signal", *, interval: float = 0.9, response: bool = False
    ) -> Band:
        """What is known about a component at every step of the series.

        Parameters
        ----------
        component : {"signal", "level", "slope", "season"}
            The whole predictor, or a part of it.
        interval : float
            Probability of the band.
        response : bool
            The signal in units of the response: rate, probability, or the sd of a return.

        Returns
        -------
        Band
            Mean, sd and a central interval; those of a response are of the transformed variable.

        Raises
        ------
        InputError
            If the model is not fitted or has no such component.
        """
        posterior = self._fitted()
        validation.one_of(component, ("signal", *self._parts.names), "component")
        validation.probability_of_interval(interval)
        if component == "signal":
            return posterior.predictors(interval=interval, response=response)
        if response:
            raise InputError(f"response=True is for the signal, not for {component!r}")
        some = self._parts.effects(component, len(self._series.y))
        band = posterior.effects(some, interval=interval)
        if component == "level" and self._parts.level == "walk":
            middle = self._series.offset
            band = Band(band.mean + middle, band.sd, band.lower + middle, band.upper + middle)
        return band

    def _extended(self, h: int, X: Any) -> LatentPosterior:
        """The posterior with h more steps, at which nothing was observed."""
        posterior, longer = self._fitted(), self._series.extended(h, X)
        components = components_of(longer, self._parts, self._scales)
        return posterior.extended(components, np.full(h, longer.offset), np.ones(h))

    def forecast(self, h: int, *, interval: float = 0.9, X: Any = None, seed: int = 0) -> Band:
        """Predict the next observations.

        Parameters
        ----------
        h : int
            Steps ahead.
        interval : float
            Probability of the band.
        X : array, shape (h, columns), optional
            Regressors of those steps, where the model has some.
        seed : int
            Of the 4,000 draws that the quantiles of observations come from.

        Returns
        -------
        Band
            Mean, sd and a central interval of each observation, noise included.

        Raises
        ------
        InputError
            If the model is not fitted, X does not have h rows, or h is above 10,000.
        """
        validation.probability_of_interval(interval)
        validation.positive_integer(h, "h")
        if h > (most := 10_000):
            raise InputError(
                f"h is {h} steps; forecast at most {most} ahead, or simulate() a few futures"
            )
        drawn = self.simulate(4000, h, X=X, seed=seed)
        tail = 0.5 * (1 - interval)
        lower, upper = np.quantile(drawn, [tail, 1 - tail], axis=0)
        return Band(drawn.mean(axis=0), drawn.std(axis=0), lower, upper)

    def simulate(self, num_draws: int, h: int, *, X: Any = None, seed: int = 0) -> np.ndarray:
        """Draw possible futures: states, hyperparameters and observations.

        Parameters
        ----------
        num_draws : int
            Number of futures.
        h : int
            Steps ahead.
        X : array, shape (h, columns), optional
            Regressors of those steps, where the model has some.
        seed : int
            All randomness follows from it.

        Returns
        -------
        array, shape (num_draws, h)
            Observations.

        Raises
        ------
        InputError
            If the model is not fitted, or X does not have h rows.
        """
        for count, name in ((num_draws, "num_draws"), (h, "h")):
            validation.positive_integer(count, name)
        self._fitted()
        steps = len(self._series.y) + h
        size = 4 * 8 * steps * (num_draws + 2 * len(self.lattice_.points))
        require_memory(size, f"{num_draws} draws of {steps} steps", "ask for fewer steps ahead")
        posterior, rng = self._extended(h, X), np.random.default_rng(seed)
        drawn = posterior.draw(num_draws, rng, slice(-h, None), slice(0))
        return posterior.responses(drawn, rng, slice(-h, None))

    def plot(self, h: int = 0, *, interval: float = 0.9, X: Any = None) -> Any:
        """Draw the series with the band of its signal, and a fan of forecasts.

        Parameters
        ----------
        h : int
            Steps ahead; zero for none.
        interval : float
            Probability of the outer band; the fan has a band of half of it inside.
        X : array, shape (h, columns), optional
            Regressors of those steps.

        Returns
        -------
        matplotlib.figure.Figure
            The figure.
        """
        from curvi.plots import plot_bands

        self._fitted()
        inner = 0.5 * interval
        wide = [self.smooth(interval=p, response=True) for p in (interval, inner)]
        ahead = [self.forecast(h, interval=p, X=X) for p in (interval, inner)] if h else []
        seen = self._series.shown
        return plot_bands(seen, wide, ahead, absolute=self._model.likelihood.of_scale)
