r"""The best Gaussian q over all effects, given the hyperparameters.

Rows see the effects through one predictor each, :math:`t = b + A u`. At the optimum

.. math::

    S^{-1} = Q(\theta) + A^\top W A, \qquad w_i = -E_q[\ell_i''], \qquad
    S^{-1} m = A^\top r, \qquad r_i = E_q[\ell_i'] + w_i\, (A m)_i

with one-dimensional expectations (equations (1)-(3) of the paper). The equations are iterated on
these *sites*: each round is a natural gradient step with one factorisation, and the bound needs
nothing but the means and variances of the predictors. With Gaussian responses one round is exact,
and the bound is the log marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from curvi._core.errors import NumericalError
from curvi._core.memory import require_memory
from curvi._core.run import current_run
from curvi._core.threads import one_blas_thread
from curvi.latent._anderson import Anderson
from curvi.latent._assembly import Assembly
from curvi.latent._site_steps import Effects, Iteration, SiteFit, SiteStep
from curvi.likelihoods import ORDERS, Likelihood


@dataclass(frozen=True)
class SiteModel:
    """Rows, their likelihood, and the effects that they see.

    Attributes
    ----------
    assembly : Assembly
        The effects.
    likelihood : Likelihood
        Of a response given its predictor.
    y : array, shape (rows,)
        Responses; NaN where there is none.
    offset : array, shape (rows,)
        Added to the predictors.
    trials : array, shape (rows,)
        Of binomial responses; ones otherwise.
    """

    assembly: Assembly
    likelihood: Likelihood
    y: np.ndarray
    offset: np.ndarray
    trials: np.ndarray
    iteration: Iteration = field(default_factory=Iteration)

    @cached_property
    def base(self) -> np.ndarray:
        """Offset, and what the prior means of the effects add to it."""
        shift: np.ndarray = self.assembly.A @ self.assembly.prior_mean
        return self.offset + shift

    @cached_property
    def seen(self) -> np.ndarray:
        """Rows that have a response."""
        return np.flatnonzero(np.isfinite(self.y))

    @cached_property
    def _unit_gram(self) -> np.ndarray:
        """Entries of A' A over rows with a response."""
        seen = np.zeros(len(self.y))
        seen[self.seen] = 1.0
        return self.assembly.products.gram(seen)

    def at_once(self, points: int) -> Iterator[slice]:
        """Points that are worked on side by side, by what they take; the clock is looked at."""
        assembly = self.assembly
        share = assembly.pattern.numbers + assembly.pattern.entries + 8 * len(self.y)
        what = f"the precision of {assembly.size} effects that {len(self.y)} rows see"
        require_memory(2 * 8 * share, what, "use fewer rows, effects or steps")
        step = max(1, int(self.iteration.numbers_at_once / share))
        for first in range(0, points, step):
            current_run().check()
            yield slice(first, min(first + step, points))

    @one_blas_thread()  # fronts are small, and its threads would wait for each other
    def fit(self, theta: np.ndarray, sites: tuple[np.ndarray, np.ndarray] | None = None) -> SiteFit:
        """The best q for each theta.

        Parameters
        ----------
        theta : array, shape (points, dimension)
            Hyperparameters.
        sites : pair of arrays, shape (points, rows), optional
            Where to begin.

        Returns
        -------
        SiteFit
            One entry per point. Where there is no Gaussian the bound is minus infinity.
        """
        parts = []
        for some in self.at_once(len(theta)):
            start = None if sites is None else tuple(s[some] for s in sites)
            if self.likelihood.conjugate:
                parts.append(self._exact(theta[some]))
            else:
                parts.append(self._iterated(theta[some], start))
        return SiteFit(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _exact(self, theta: np.ndarray) -> SiteFit:
        """One natural gradient step from predictors at their offset; no variances."""
        zero = np.zeros((len(theta), len(self.y)))
        value, slope, curvature = self.rows(theta, zero, zero)
        precision = np.zeros_like(zero)
        precision[:, self.seen] = -curvature[:, self.seen]
        prior = self.assembly.precision(theta)
        weight = precision[:, self.seen[:1]] if len(self.seen) else zero[:, :1]
        nothing = np.full_like(zero, np.nan)
        try:
            factor = self.assembly.factor(prior.values + weight * self._unit_gram)
        except NumericalError:
            return SiteFit(np.full(len(theta), -np.inf), precision, slope, nothing, nothing)
        pulled = self.assembly.pulled(slope)
        solved = factor.solve(pulled)
        bound = value.sum(axis=1) + 0.5 * ((pulled * solved).sum(axis=1) + prior.log_det)
        with np.errstate(invalid="ignore"):
            bound = np.where(np.isfinite(factor.log_det), bound - 0.5 * factor.log_det, -np.inf)
        return SiteFit(bound, precision, slope, self._seen_by_rows(solved) + self.base, nothing)

    def _seen_by_rows(self, effects: np.ndarray) -> np.ndarray:
        """A u, for effects of shape (points, size) or (points, size, k)."""
        if effects.ndim == 3:
            return np.stack([self.assembly.A @ one for one in effects])
        return np.ascontiguousarray((self.assembly.A @ effects.T).T)

    def _start(self, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sites of the likelihood around each response alone."""
        out = np.zeros((2, len(theta), len(self.y)))
        if len(self.seen):
            given = self.likelihood.sites(
                self.y[self.seen], self.base[self.seen], self.trials[self.seen],
                extra=self._extra(theta),
            )  # fmt: skip
            for whole, part in zip(out, given, strict=True):
                whole[:, self.seen] = part
        return out[0], out[1]

    def _extra(self, theta: np.ndarray) -> np.ndarray:
        return self.assembly.extra_values(theta)[:, None, :]

    def _iterated(self, theta: np.ndarray, sites: Any) -> SiteFit:
        """Natural gradient steps, accelerated, and plain or shorter where the bound would fall."""
        rule = self.iteration
        prior = self.assembly.precision(theta)
        now = self._trial(theta, prior, *(self._start(theta) if sites is None else sites))
        if sites is not None and not np.isfinite(now.bound).all():
            now = now.where(~np.isfinite(now.bound), self._trial(theta, prior, *self._start(theta)))
        out, active = now, np.arange(len(theta))
        memory, length = Anderson(), np.ones(len(theta))
        for _ in range(rule.rounds):
            _, slope, curvature = self.rows(theta[active], now.mean, now.variance)
            wanted = -curvature
            step_w = wanted - now.w
            step_r = slope + wanted * now.mean - now.r
            moves = memory.step(now.w, now.r, step_w, step_r, now.variance)
            share = np.where(memory.used, 1.0, length)[:, None]
            # Where l is concave no weight is negative; elsewhere none beyond what is asked for.
            least = np.minimum(np.minimum(wanted, now.w), 0.0)
            trial_w = np.maximum(now.w + share * moves[0], least)
            part = type(prior)(prior.values[active], prior.log_det[active])
            trial = self._trial(theta[active], part, trial_w, now.r + share * moves[1])
            with np.errstate(invalid="ignore"):
                better = trial.bound >= now.bound - rule.rounding * np.abs(now.bound)
            left = _largest_move(step_w, step_r, now.mean, now.variance)
            done = (left < rule.accuracy) | (~better & (left < rule.near))
            length = np.where(
                memory.used, length,
                np.where(better, np.minimum(1.0, 1.5 * length), 0.3 * length),
            )  # fmt: skip
            memory.forget(~better)
            now = now.where(better, trial)
            done |= (length < rule.shortest) | ~np.isfinite(now.bound)
            if done.all() or 2 * done.sum() > len(active):
                for whole, column in zip(out, now, strict=True):
                    whole[active] = column
                if done.all():
                    break
                active, now, length = active[~done], now.at(~done), length[~done]
                memory.restrict(~done)
        else:
            for whole, column in zip(out, now, strict=True):
                whole[active] = column
        return SiteFit(out.bound, out.w, out.r, out.mean + self.base, out.variance)

    def converged(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """Whether the sites of each point are those that its q asks for, shape (points,)."""
        finite = np.isfinite(fitted.bound)
        if self.likelihood.conjugate:
            return finite
        mean = fitted.mean - self.base
        _, slope, curvature = self.rows(theta, mean, fitted.variance)
        step_w = -curvature - fitted.precision
        step_r = slope - curvature * mean - fitted.linear
        left = _largest_move(step_w, step_r, mean, fitted.variance)
        return finite & (left < self.iteration.near)

    def _trial(self, theta: np.ndarray, prior: Any, w: np.ndarray, r: np.ndarray) -> SiteStep:
        """What sites give."""
        assembly = self.assembly
        try:
            factor = assembly.factor(prior.values + assembly.products.gram(w))
        except NumericalError:
            nothing = np.zeros_like(w)
            return SiteStep(w, r, nothing, nothing + 1.0, np.full(len(w), -np.inf))
        mean = self._seen_by_rows(factor.solve(assembly.pulled(r)))
        variance = assembly.products.variances(factor.selected_inverse())
        positive = np.isfinite(factor.log_det) & (variance >= 0).all(axis=1)
        variance = np.maximum(variance, 0.0)
        rows = self.rows(theta, mean, variance, (0,))[0].sum(axis=1)
        # The divergence needs predictors and determinants alone.
        quadratic = (w * (variance + mean**2) - r * mean).sum(axis=1)
        with np.errstate(invalid="ignore"):
            bound = rows + 0.5 * (quadratic + prior.log_det - factor.log_det)
        # A step far too long has sites of 1e16, and what is left of the bound is rounding.
        size = np.abs(w) * (variance + mean**2) + np.abs(r * mean)
        lost = np.finfo(float).eps * size.sum(axis=1)
        good = positive & (lost < self.iteration.largest_loss) & np.isfinite(bound)
        return SiteStep(w, r, mean, variance, np.where(good, bound, -np.inf))

    def rows(
        self, theta: np.ndarray, mean: np.ndarray, variance: np.ndarray,
        orders: Sequence[int] = ORDERS,
    ) -> np.ndarray:  # fmt: skip
        """Expected log likelihoods and their derivatives; zero where there is no response.

        ``mean`` is that of the centred predictors, (points, rows).
        """
        seen = self.seen
        every = len(seen) == len(self.y)
        some: Any = slice(None) if every else seen
        with np.errstate(over="ignore", invalid="ignore"):
            found = self.likelihood.expected(
                mean[:, some] + self.base[some], variance[:, some], self.y[some],
                self.trials[some], extra=self._extra(theta), orders=orders,
            )  # fmt: skip
        if every:
            return np.stack([np.broadcast_to(part, mean.shape) for part in found])
        out = np.zeros((len(orders), *mean.shape))
        for whole, part in zip(out, found, strict=True):
            whole[:, seen] = part
        return out

    @property
    def origin(self) -> np.ndarray:
        """From where `pull` and its solutions count the effects: their prior means."""
        return self.assembly.prior_mean

    def values(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """Entries of the precision of q on the pattern, (points, entries)."""
        gram = self.assembly.products.gram(fitted.precision)
        return self.assembly.precision(theta).values + gram

    def pull(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """The precision of q times its mean less the origin, (points, size)."""
        return self.assembly.pulled(fitted.linear)

    def with_gradient(
        self, theta: np.ndarray, sites: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[SiteFit, np.ndarray]:
        """`fit` and `gradient` together."""
        fitted = self.fit(theta, sites)
        return fitted, self.gradient(theta, fitted)

    @one_blas_thread()
    def gradient(self, theta: np.ndarray, fitted: SiteFit) -> np.ndarray:
        """Gradient of the bound in theta, (points, dimension), by the envelope theorem.

        At the best q the bound depends on theta through its prior and its likelihood alone.
        """
        out = np.zeros(theta.shape)
        for some in self.at_once(len(theta)):
            factor, effects = self._solved(theta[some], fitted.at(some))
            pattern, selected = self.assembly.pattern, factor.selected_inverse()
            second = selected + effects[:, pattern.rows] * effects[:, pattern.columns]
            out[some] = self.assembly.slopes(theta[some], second)
            if self.assembly.extras:
                mean = self._seen_by_rows(effects)
                variance = self.assembly.products.variances(selected)
                out[some] += self._slopes_of_extras(theta[some], mean, variance)
        return out

    def _slopes_of_extras(
        self, theta: np.ndarray, mean: np.ndarray, variance: np.ndarray
    ) -> np.ndarray:
        out, step = np.zeros(theta.shape), self.assembly.difference
        for j in range(self.assembly.dimension - len(self.assembly.extras), theta.shape[1]):
            move = step * np.eye(theta.shape[1])[j]
            up, down = (self.rows(theta + s, mean, variance, (0,))[0] for s in (move, -move))
            out[:, j] = (up - down).sum(axis=1) / (2 * step)
        return out

    @one_blas_thread()
    def with_factor(
        self, theta: np.ndarray, sites: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[SiteFit, Any, np.ndarray]:
        """`fit`, the factor of the precision of q, and its means less the origin.

        All points at once: for few.
        """
        fitted = self.fit(theta, sites)
        return fitted, *self._solved(theta, fitted)

    def _solved(self, theta: np.ndarray, fitted: SiteFit) -> tuple[Any, np.ndarray]:
        """The factor of q, and its means less the origin."""
        factor = self.assembly.factor(self.values(theta, fitted))
        return factor, factor.solve(self.pull(theta, fitted))

    @one_blas_thread()
    def completed(self, theta: np.ndarray, fitted: SiteFit) -> SiteFit:
        """The same with means and variances of the predictors, where those are still missing."""
        if not np.isnan(fitted.variance).any():
            return fitted
        mean, variance = np.empty_like(fitted.mean), np.empty_like(fitted.variance)
        for some in self.at_once(len(theta)):
            factor, solved = self._solved(theta[some], fitted.at(some))
            mean[some] = self._seen_by_rows(solved) + self.base
            variance[some] = self.assembly.products.variances(factor.selected_inverse())
        return fitted._replace(mean=mean, variance=variance)

    @one_blas_thread()
    def effects(self, theta: np.ndarray, fitted: SiteFit) -> Effects:
        """Means and variances of all effects, for fitted points."""
        parts = []
        for some in self.at_once(len(theta)):
            factor, mean = self._solved(theta[some], fitted.at(some))
            variance = factor.selected_inverse()[:, self.assembly.pattern.diagonal]
            parts.append((mean + self.origin, variance))
        return Effects(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @one_blas_thread()
    def draw(
        self, theta: np.ndarray, fitted: SiteFit, noise: np.ndarray, *, centred: bool = False
    ) -> np.ndarray:
        """Draws of the effects from standard normal noise, both of shape (points, size, k).

        Noise with one point is shared by all; ``centred`` leaves prior means out.
        """
        factor, mean = self._solved(theta, fitted)
        centre = (mean if centred else mean + self.origin).astype(noise.dtype)
        noise = np.broadcast_to(noise, (len(theta), *noise.shape[1:]))
        drawn: np.ndarray = factor.sample(noise) + centre[:, :, None]
        return drawn


def _largest_move(
    step_w: np.ndarray, step_r: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> np.ndarray:
    """Of the predictors of each point through a step of their sites, in posterior sds."""
    size = np.abs(step_w) * variance + np.abs(step_r - step_w * mean) * np.sqrt(variance)
    return size.max(axis=1, initial=0.0)
