r"""Which coefficients a relevance prior keeps: a search on a quadratic model of the bound.

Newton steps on the relevance bound end in one of its many optima, after dozens of steps that take
coefficients to zero one by one. Near the optimum with a normal prior the energy is nearly

.. math:: \tfrac12 \mu^\top A \mu - c^\top \mu + e^\top s, \qquad s = \sigma^2,

with A its Hessian in the means and e its slope in the variances. The rows are no longer needed, and
on this model the best response of a single coefficient is known while the means of all others
follow: with prior variances :math:`\lambda` and :math:`\Sigma = (A + \Lambda^{-1})^{-1}`,

.. math:: \max_{\lambda_j}\; q_j m - \tfrac12 S_j m^2 - e_j s - \tfrac12 \log(1 + m^2 / s),
    \qquad m = \frac{q_j}{S_j + 1 / \lambda_j}, \quad s = \frac{1}{2 e_j + 1 / \lambda_j},

which is zero where the coefficient is off. :math:`S_j` and :math:`q_j` are the curvature and the
slope that the others leave (as in the fast marginal likelihood of Tipping and Faul, 2003). The
coefficient that gains most moves, until none gains. Then each that is on is left out once, and what
the search finds without it is kept if it is better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import linalg

from curvi.glm._diagonal_bound import SWITCHING_OFF, DiagonalBound

_RATIOS = np.exp(np.linspace(-16.0, 10.0, 27))  # of a prior variance to the variance of the rows


@dataclass(frozen=True)
class RelevanceSearch:
    """How the coefficients that matter are searched for."""

    # half widths of the search for the best variance, in logarithms
    half_widths: tuple[float, ...] = (1.0, 0.25, 0.06)
    gain: float = 1e-3  # nats that a move must gain
    least_curvature: float = 1e-12  # curvature
    rough_gain: float = 0.05  # nats, while a change is only tried
    most_work: float = 4e8  # multiplications of all trials, at most


SEARCH = RelevanceSearch()


def relevant_start(
    bound: DiagonalBound,
    mean: np.ndarray,
    sd: np.ndarray,
    seed: int,
    *,
    policy: RelevanceSearch = SEARCH,
) -> np.ndarray:
    """Parameters near a good optimum of a relevance bound, from moments near its normal optimum.

    The second model is made where the first one led. What the search finds is used if the bound
    itself agrees.
    """
    random = np.random.default_rng([seed, mean.size])
    best = bound.join(mean, sd)
    active = ~bound.relevant
    variances = np.where(active, 1 / bound.precision, 0.0)
    for trials in (0, int(policy.most_work / mean.size**3)):
        energy = bound.energy_second_order(mean, sd)
        if energy.mean_mean is None:
            break
        linear = energy.mean_mean @ mean - energy.by_mean
        model = QuadraticModel(energy.mean_mean, linear, energy.by_variance, variances, active)
        if not model.is_usable:
            break
        model.search()
        model = _without_each(model, random, trials, policy=policy)
        mean, sd, variances = model.mean, model.sd, model.variances
        found = bound.join(mean, sd)
        if not bound.value(found) < bound.value(best):
            break
        best = found
    return best


class QuadraticModel:
    """The bound with a quadratic energy, as a function of the prior variances alone.

    A prior variance of zero stands for a coefficient that is off. Those that are ``held`` keep
    their prior variance.
    """

    def __init__(
        self,
        hessian: np.ndarray,
        linear: np.ndarray,
        by_variance: np.ndarray,
        variances: np.ndarray,
        held: np.ndarray,
    ) -> None:
        self.hessian, self.linear, self.by_variance = hessian, linear, by_variance
        self.held, self.variances = held, variances.copy()
        finite = all(map(_is_finite, (hessian, linear, by_variance)))
        self.is_usable = finite and bool(np.all(by_variance > 0))
        if self.is_usable:
            self._refresh()

    def copy(self) -> QuadraticModel:
        """The same state, to be changed apart."""
        twin = object.__new__(QuadraticModel)
        twin.__dict__.update(self.__dict__)
        twin.variances, twin.mean = self.variances.copy(), self.mean.copy()
        twin._covariance, twin._residual = self._covariance.copy(), self._residual.copy()
        twin._left = self._left.copy()
        return twin

    @property
    def on(self) -> np.ndarray:
        """Which coefficients are not switched off."""
        return self.variances > 0

    @property
    def sd(self) -> np.ndarray:
        """Sds of the coefficients; of one that is off nearly zero."""
        prior = np.where(self.on, self.variances, 1.0)
        return np.where(self.on, (2 * self.by_variance + 1 / prior) ** -0.5, SWITCHING_OFF.sd_off)

    @property
    def value(self) -> float:
        """The negative bound of the model, up to a constant."""
        on, mean, variance = self.on, self.mean, self.sd**2
        quadratic = 0.5 * mean @ self.hessian @ mean - self.linear @ mean
        searched = on & ~self.held
        prior = 0.5 * np.log1p(mean[searched] ** 2 / variance[searched]).sum()
        held = self.held & on
        prior += 0.5 * np.sum(mean[held] ** 2 / self.variances[held])
        return float(quadratic + self.by_variance[searched] @ variance[searched] + prior)

    def search(self, enough: float = SEARCH.gain) -> None:
        """Move the coefficient that gains most, until none gains enough."""
        for _ in range(20 * self.mean.size):
            others = (*self._others_left(), self.by_variance)
            now = np.where(self.on, self.variances, 1.0)
            kept = np.where(self.on, _response(*others, now), 0.0)
            tried = _best_of_some(*others)
            for refine in (False, True):  # all of them only where the coarse ones gain nothing
                tried = _refined(*others, tried) if refine else tried
                gains = _response(*others, tried)
                better = np.where(self.held, -np.inf, np.maximum(gains, 0.0) - kept)
                j = int(np.argmax(better))
                if better[j] > enough:
                    break
            else:
                break
            own = [part[j : j + 1] for part in (*others, tried)]
            self.move(j, float(_refined(*own)[0]) if gains[j] > 0 else 0.0)
        self._refresh()  # the updates have rounding errors

    def move(self, j: int, new: float) -> None:
        """Change one prior variance: an update of rank one."""
        old = self.variances[j]
        if old > 0:
            u = self._covariance[:, j].copy()
            change = np.inf if new == 0 else 1 / new - 1 / old
            factor = -1 / u[j] if new == 0 else -change / (1 + change * u[j])
        else:
            u = -self._covariance @ self.hessian[:, j]
            u[j] += 1
            factor = 1 / (self._left[j] + 1 / new)
        image, moved = self.hessian @ u, factor * (u @ self.linear)
        self.variances[j] = new
        self._covariance += factor * np.outer(u, u)
        self.mean += moved * u
        self._residual -= moved * image
        self._left -= factor * image**2
        if new == 0:
            self.mean[j], self._covariance[j], self._covariance[:, j] = 0.0, 0.0, 0.0

    def _others_left(self) -> tuple[np.ndarray, np.ndarray]:
        """Slope and curvature of the model in each mean, the others following."""
        on, own = self.on, np.diag(self._covariance)
        own = np.where(on & (own > 0), own, 1.0)
        prior = np.where(on, self.variances, 1.0)
        curvature = np.where(on, 1 / own - 1 / prior, self._left)
        return np.where(on, self.mean / own, self._residual), np.maximum(
            curvature, SEARCH.least_curvature
        )

    def _refresh(self) -> None:
        """Everything that follows from the prior variances."""
        on, size = self.on, self.linear.size
        self._covariance = np.zeros((size, size))
        active = np.ix_(on, on)
        system = self.hessian[active] + np.diag(1 / self.variances[on])
        self._covariance[active] = linalg.pinvh(system) if system.size else system
        self.mean = self._covariance @ self.linear
        image = self.hessian @ self._covariance
        self._residual = self.linear - self.hessian @ self.mean
        self._left = np.diag(self.hessian) - np.einsum("ij,ji->i", image, self.hessian)


def _without_each(
    model: QuadraticModel,
    random: np.random.Generator,
    trials: int,
    *,
    policy: RelevanceSearch = SEARCH,
) -> QuadraticModel:
    """Try what the search finds without one of the coefficients that are on, in random order.

    The search moves one coefficient at a time, and cannot exchange one for several others.
    """
    best = model.value
    for j in random.permutation(np.flatnonzero(model.on & ~model.held))[:trials]:
        if model.variances[j] == 0:  # since the order was drawn
            continue
        trial, held = model.copy(), model.held
        trial.move(int(j), 0.0)
        trial.held = held | (np.arange(held.size) == j)
        trial.search(policy.rough_gain)
        trial.held = held
        trial.search(policy.rough_gain)
        if trial.value < best + policy.rough_gain:
            trial.search()
        if trial.value < best - policy.gain:
            model, best = trial, trial.value
    return model


def _response(
    slope: np.ndarray, curvature: np.ndarray, by_variance: np.ndarray, prior: np.ndarray
) -> np.ndarray:
    """What a coefficient contributes to the bound with a prior variance."""
    mean, variance = slope / (curvature + 1 / prior), 1 / (2 * by_variance + 1 / prior)
    quadratic = slope * mean - 0.5 * curvature * mean**2
    return quadratic - by_variance * variance - 0.5 * np.log1p(mean**2 / variance)


def _best_of_some(slope: np.ndarray, curvature: np.ndarray, by_variance: np.ndarray) -> np.ndarray:
    """The best of some prior variances for every coefficient."""
    tried = 0.5 * _RATIOS[None, :] / by_variance[:, None]
    found = _response(slope[:, None], curvature[:, None], by_variance[:, None], tried)
    return tried[np.arange(slope.size), np.argmax(found, axis=1)]


def _refined(
    slope: np.ndarray,
    curvature: np.ndarray,
    by_variance: np.ndarray,
    prior: np.ndarray,
    *,
    policy: RelevanceSearch = SEARCH,
) -> np.ndarray:
    """The best prior variance of every coefficient next to one that was tried."""
    columns, rows = (slope[:, None], curvature[:, None], by_variance[:, None]), range(slope.size)
    for width in policy.half_widths:
        tried = prior[:, None] * np.exp(np.linspace(-width, width, 9))
        prior = tried[rows, np.argmax(_response(*columns, tried), axis=1)]
    return prior


def _is_finite(array: np.ndarray) -> bool:
    return bool(np.isfinite(array).all())
