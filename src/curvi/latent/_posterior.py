r"""The posterior as weighted Gaussians over points of theta, and all that comes after a fit.

.. math:: p(\theta, u \mid y) \approx \sum_j \omega_j\, \delta(\theta - \theta_j)\, N(u; m_j, S_j)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from curvi.latent._component import Component, Natural
from curvi.latent._mixtures import Band, mixture_band, smooth_quantiles
from curvi.latent._site_steps import Effects, SiteFit
from curvi.latent._sites import SiteModel


class LatentDraws(NamedTuple):
    """Draws from a posterior.

    Attributes
    ----------
    theta : array, shape (draws, dimension)
        Hyperparameters, unconstrained.
    effects : array, shape (draws, size)
        Of all components.
    predictors : array, shape (draws, rows)
        Offset included.
    """

    theta: np.ndarray
    effects: np.ndarray
    predictors: np.ndarray


@dataclass(frozen=True, eq=False)
class LatentPosterior:
    """Weighted Gaussians.

    Attributes
    ----------
    model : SiteModel
        Rows, likelihood and components.
    points : array, shape (points, dimension)
        Hyperparameters.
    weights : array, shape (points,)
        They sum to one.
    sites : SiteFit
        Of each point; of Gaussian responses without variances.
    """

    model: SiteModel
    points: np.ndarray
    weights: np.ndarray
    sites: SiteFit

    @cached_property
    def fitted(self) -> SiteFit:
        """The sites, with means and variances of all predictors."""
        return self.model.completed(self.points, self.sites)

    @cached_property
    def all_effects(self) -> Effects:
        """Means and variances of all effects at every point."""
        return self.model.effects(self.points, self.sites)

    @cached_property
    def natural(self) -> Natural:
        """Hyperparameters as a user reads them, at every point."""
        return self.model.assembly.natural(self.points)

    def _extra(self, theta: np.ndarray) -> np.ndarray:
        """Hyperparameters of the likelihood, beside rows."""
        return self.model.assembly.extra_values(theta)[:, None, :]

    def hyperparameters(self) -> dict[str, tuple[float, float]]:
        """Posterior means and sds of the hyperparameters."""
        found = {}
        for name, values in self.natural.items():
            mean = float(self.weights @ values)
            found[name] = mean, float(np.sqrt(self.weights @ (values - mean) ** 2))
        return found

    def hyperparameter_interval(self, name: str, interval: float) -> tuple[float, float]:
        """Ends of the central interval of a hyperparameter."""
        tails = 0.5 * (1 - interval), 0.5 * (1 + interval)
        ends = smooth_quantiles(self.points, self.weights, tails)
        low, high = self.model.assembly.natural(np.stack(ends))[name]
        return float(low), float(high)

    def effects(self, some: slice | np.ndarray = slice(None), *, interval: float = 0.9) -> Band:
        """Effects, such as those of a component (``model.assembly.effects``)."""
        mean, variance = (column[:, some] for column in self.all_effects)
        return mixture_band(mean, variance, self.weights, interval)

    def predictors(
        self, rows: slice = slice(None), *, interval: float = 0.9, response: bool = False
    ) -> Band:
        """Linear predictors of rows, or the mean responses that they stand for."""
        mean, variance = self.fitted.mean[:, rows], self.fitted.variance[:, rows]
        if not response:
            return mixture_band(mean, variance, self.weights, interval)
        model = self.model
        shift = model.likelihood.mean_shift(self._extra(self.points))
        given = self.weights, interval, model.likelihood, model.trials[rows]
        return mixture_band(mean + shift, variance, *given)

    def extended(
        self, components: Sequence[Component], offset: Any, trials: Any
    ) -> LatentPosterior:
        """The same with components that see more rows, of which nobody has seen a response.

        Parameters
        ----------
        components : sequence of Component
            The rows of the fit first.
        offset, trials : array
            Of the new rows.
        """
        old = self.model
        new = replace(
            old,
            assembly=old.assembly.of(components),
            y=np.append(old.y, np.full(len(offset), np.nan)),
            offset=np.append(old.offset, offset),
            trials=np.append(old.trials, trials),
        )
        more = ((0, 0), (0, len(offset)))
        precision, linear = (
            np.pad(column, more) for column in (self.sites.precision, self.sites.linear)
        )
        unknown = np.full_like(precision, np.nan)
        sites = SiteFit(self.sites.bound, precision, linear, unknown, unknown)
        return LatentPosterior(new, self.points, self.weights, sites)

    def consistent(self, accuracy: float = 1e-4) -> bool:
        """Whether stored predictors are those of the sites, to so many sds; files may lie."""
        effects, model = self.all_effects.mean, self.model
        mean = (model.assembly.A @ effects.T).T + model.offset
        sd = np.sqrt(np.maximum(self.fitted.variance, 0.0))
        far = np.abs(mean - self.fitted.mean) > accuracy * (sd + np.abs(mean))
        return bool(np.isfinite(mean).all() and not far.any())

    def draw(
        self, num_draws: int, rng: np.random.Generator, rows: slice = slice(None),
        some: slice = slice(None),
    ) -> LatentDraws:  # fmt: skip
        """Draws of theta, of some effects given theta, and of the predictors of some rows."""
        counts = rng.multinomial(num_draws, self.weights)
        assembly = self.model.assembly
        A, offset = assembly.A[rows], self.model.offset[rows]
        effects = np.empty((num_draws, len(range(assembly.size)[some])))
        predictors = np.empty((num_draws, A.shape[0]))
        chosen = np.repeat(np.arange(len(counts)), counts)
        turn = rng.permutation(num_draws)  # in no order
        end = 0
        for index in np.flatnonzero(counts):
            begin, end = end, end + int(counts[index])
            one, at = slice(index, index + 1), turn[begin:end]
            noise = rng.standard_normal((1, assembly.size, end - begin))
            drawn = self.model.draw(self.points[one], self.sites.at(one), noise)[0]
            effects[at], predictors[at] = drawn[some].T, (A @ drawn).T + offset
        theta = np.empty((num_draws, self.points.shape[1]))
        theta[turn] = self.points[chosen]
        return LatentDraws(theta, effects, predictors)

    def responses(
        self, draws: LatentDraws, rng: np.random.Generator, rows: slice = slice(None)
    ) -> np.ndarray:
        """New responses of the rows of the draws, (draws, rows)."""
        trials = np.broadcast_to(self.model.trials[rows], draws.predictors.shape)
        extra = self._extra(draws.theta)
        found = self.model.likelihood.sample(draws.predictors, trials, extra, rng)
        return np.asarray(found)

    def log_likelihood(self, draws: LatentDraws) -> np.ndarray:
        """Log densities of the responses, (draws, rows); NaN where there is none."""
        model = self.model
        found = np.full(draws.predictors.shape, np.nan)
        found[:, model.seen] = model.likelihood.log_density(
            draws.predictors[:, model.seen], model.y[model.seen], model.trials[model.seen],
            extra=self._extra(draws.theta),
        )  # fmt: skip
        return found
