"""The integral over the hyperparameters of a model: which way, and whether its answer stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from curvi._core.errors import InputError, Interrupted, Outcome
from curvi._core.run import Phase, within
from curvi.diagnostics import smoothed_weights
from curvi.latent._gap import Gap
from curvi.latent._importance import (
    Proposal,
    Weighted,
    kernels,
    root_of_precision,
    shared,
    two_piece,
    weigh,
    white_points,
)  # fmt: skip
from curvi.latent._lattice import Lattice, integrate
from curvi.latent._posterior import LatentPosterior
from curvi.latent._site_steps import SiteFit
from curvi.latent._sites import SiteModel
from curvi.linalg import find_mode


class Rule(NamedTuple):
    """A lattice: spacing and cutoff (see `integrate`), and points at most."""

    spacing: float
    cutoff: float
    most: int


class Integral(NamedTuple):
    """Points with weights, and how the run ended that found them."""

    lattice: Lattice
    outcome: Outcome

    def posterior(self, model: SiteModel) -> LatentPosterior:
        """Of a model."""
        found = self.lattice
        return LatentPosterior(model, found.points, found.weights, SiteFit(*found.kept))

    def require_whole(self, estimator: Any) -> None:
        """Raise what Ctrl-C ended, with the estimator that holds the best until then."""
        if self.outcome is Outcome.INTERRUPTED:
            text = "interrupted; the model keeps the best hyperparameters until then"
            raise Interrupted(text, estimator)


class Evaluation:
    """Log densities of hyperparameters; every batch starts from the best point so far."""

    def __init__(self, model: SiteModel) -> None:
        self.model, self.best = model, -np.inf
        self.theta: np.ndarray | None = None
        self.top: SiteFit | None = None
        self._fit = shared("points", self._fitted)

    def _fitted(self, theta: np.ndarray, *sites: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(self.model.fit(theta, (sites[0], sites[1]) if sites else None))

    def __call__(self, theta: np.ndarray) -> tuple[np.ndarray, SiteFit]:
        """Bound and prior of each point, and what the bound leaves behind."""
        given: tuple[np.ndarray, ...] = (theta,)
        if self.top is not None and not self.model.likelihood.conjugate:
            shape = (len(theta), len(self.model.y))
            sites = (self.top.precision, self.top.linear)
            given = (theta, *(np.broadcast_to(site, shape).copy() for site in sites))
        fitted = SiteFit(*self._fit(*given))
        values = fitted.bound + self.model.assembly.log_prior(theta)
        top = int(np.argmax(values))
        if values[top] > self.best:
            self.best, self.theta = float(values[top]), theta[top : top + 1]
            self.top = fitted.at(slice(top, top + 1))
        return values, fitted

    def values(self, theta: np.ndarray) -> np.ndarray:
        """Log densities alone."""
        return self(theta)[0]

    def local(self, at: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """Log density, gradient and Hessian at a point, by differences of gradients."""
        size, step = len(at), 100 * self.model.assembly.difference
        moves = np.concatenate([np.zeros((1, size)), step * np.eye(size), -step * np.eye(size)])
        theta = at + moves
        values, fitted = self(theta)
        slopes = self.model.gradient(theta, fitted) + self.model.assembly.prior_slopes(theta)
        hessian = (slopes[1 : size + 1] - slopes[size + 1 :]) / (2 * step)
        return float(values[0]), slopes[0], 0.5 * (hessian + hessian.T)


class Tried(NamedTuple):
    """Points of a proposal, what was kept of each, their Pareto k, and whether they stand."""

    found: Weighted
    kept: SiteFit
    khat: float
    stands: bool


@dataclass(frozen=True)
class Integration:
    """Integrates over the hyperparameters of a model.

    A few are integrated over a lattice, more of them by importance sampling from a proposal that
    is fitted to them. The bound of a response that is not Gaussian lies below the log marginal
    likelihood; how much it differs in that between points enters the weights.

    Parameters
    ----------
    lattices : tuple of Rule
        For one hyperparameter, for two, and so on; beyond them there is importance sampling.
    draws : int
        Points of importance sampling.
    numbers : float
        Numbers that are kept of all points; large models have fewer points.
    pilot : int
        Points per hyperparameter on which a proposal is tried.
    rounds : int
        Proposals that are tried.
    good, least : float
        Shares of effective points from which a proposal is taken, and below which kernels take its
        place in up to ``few`` dimensions.
    few : int
        See ``least``.
    worst_khat, least_points : float
        Pareto k above which an answer does not stand, and effective points that it needs; unless
        half of them are effective.
    gap : Gap
        The correction of the weights.
    most_not_converged : float
        Weight of points without the best effects, above which an answer does not stand.
    """

    lattices: tuple[Rule, ...] = (
        Rule(1.0, 7.0, 100), Rule(1.25, 6.0, 400), Rule(1.25, 6.0, 600), Rule(1.5, 5.0, 800),
    )  # fmt: skip
    draws: int = 1024
    numbers: float = 4e7
    pilot: int = 24
    rounds: int = 3
    good: float = 0.5
    least: float = 0.1
    few: int = 6
    worst_khat: float = 0.7
    least_points: float = 50.0
    gap: Gap = field(default_factory=Gap)
    most_not_converged: float = 0.01

    def __call__(self, model: SiteModel, *, seed: int = 0) -> Integral:
        """Points of the hyperparameters with weights, and the best Gaussian at each.

        Where time is up, or at Ctrl-C, there is the best point until then, and none of the
        integral.

        Raises
        ------
        InputError
            If there is no such point yet, or the density is nowhere finite.
        """
        evaluate = Evaluation(model)
        with Phase("integrating over the hyperparameters") as phase:
            found = self._integrated(model, evaluate, seed)
            kept = model.completed(found.points, SiteFit(*found.kept))
            found = self._weighted(model, found._replace(kept=kept))
            return Integral(self._settled(model, found), Outcome.CONVERGED)
        if evaluate.theta is None:
            if phase.interrupted:
                raise Interrupted("interrupted before the first evaluation")
            raise InputError("time_budget was spent before the first evaluation; give more seconds")
        assert evaluate.top is not None  # noqa: S101  for type checkers
        mode, top = evaluate.theta, evaluate.top
        with within(clock=None):  # the little that is left to do
            kept = model.completed(mode, top)
        one = Lattice(mode, np.ones(1), evaluate.best, kept, mode[0], complete=False)
        return Integral(one, phase.outcome)

    def _integrated(self, model: SiteModel, evaluate: Evaluation, seed: int) -> Lattice:
        start = model.assembly.start()
        size = len(start)
        if not size:
            theta = np.zeros((1, 0))
            values, fitted = evaluate(theta)
            return Lattice(theta, np.ones(1), float(values[0]), fitted, theta[0], complete=True)
        if size > len(self.lattices):
            return self._sampled(model, evaluate, start, seed)
        rule = self.lattices[size - 1]
        return integrate(
            evaluate, start, spacing=rule.spacing, cutoff=rule.cutoff,
            most=min(rule.most, self._most(model)),
        )  # fmt: skip

    def _most(self, model: SiteModel) -> int:
        """Points whose sites and predictors are kept."""
        return max(64, int(self.numbers / (4 * len(model.y))))

    def _sampled(
        self, model: SiteModel, evaluate: Evaluation, start: np.ndarray, seed: int
    ) -> Lattice:
        size = len(start)
        mode, hessian, _ = find_mode(evaluate.values, start, local=evaluate.local)
        wide = two_piece(evaluate.values, mode, -hessian)
        count = min(self.draws, self._most(model))
        tried = self._weighed(evaluate, self._fitted(evaluate, wide, seed), count, seed)
        if not tried.stands and size <= self.few:  # kernels have the tails that it has seen
            again = self._weighed(evaluate, kernels(tried.found, wide), count, seed + 1)
            tried = max(tried, again, key=lambda one: (one.stands, one.found.ess))
        found, kept, khat, stands = tried
        use = found.weights > np.finfo(np.float32).eps * found.weights.max()
        kept = jax.tree.map(lambda a: a[use], kept)
        weights = found.weights[use] / found.weights[use].sum()
        given = found.points[use], weights, found.log_mean_ratio, kept, mode
        return Lattice(*given, complete=stands, khat=khat)

    def _weighed(self, evaluate: Evaluation, proposal: Any, count: int, seed: int) -> Tried:
        """Points of a proposal, and whether they can stand for the density."""
        points, log_q = proposal.at(white_points(count, len(proposal.mean), seed + self.rounds))
        values, kept = evaluate(points)
        found = weigh(points, values, log_q)
        khat = float(smoothed_weights(found.log_ratios).khat)
        enough = khat <= self.worst_khat and found.ess >= self.least_points
        # With half of the points effective, the largest weights carry little.
        return Tried(found, kept, khat, bool(enough or found.ess > 0.5 * count))

    def _fitted(self, evaluate: Evaluation, wide: Proposal, seed: int) -> Any:
        """The proposal whose moments are those of the density, as its own points tell them."""
        size, now = len(wide.mean), wide
        best: tuple[float, Any, Weighted] | None = None
        for turn in range(self.rounds):
            count = (1 + turn) * self.pilot * size
            points, log_q = now.at(white_points(count, size, seed + turn))
            found = weigh(points, evaluate.values(points), log_q)
            share = found.ess / count
            if best is None or share > best[0]:
                best = share, now, found
            if share > self.good:
                break
            now = _with_moments_of(best[2], wide)
        assert best is not None  # noqa: S101  for type checkers
        if best[0] < self.least and size <= self.few:
            return kernels(best[2], wide)
        return best[1]

    def _weighted(self, model: SiteModel, found: Lattice) -> Lattice:
        """With weights of the marginal likelihood instead of its bound."""
        if model.likelihood.conjugate or not model.assembly.dimension:
            return found
        kept = SiteFit(*found.kept)
        nothing = np.zeros(0)

        def gaps(theta: np.ndarray, precision: np.ndarray, linear: np.ndarray) -> np.ndarray:
            return self.gap(model, theta, SiteFit(nothing, precision, linear, nothing, nothing))

        gap = shared("gap", gaps)(found.points, kept.precision, kept.linear)
        gap = np.where(np.isfinite(gap), gap, -np.inf)
        if not np.isfinite(gap.max()):
            raise InputError(
                "the likelihood leaves the range of numbers wherever the hyperparameters have "
                "weight: there are responses that let the predictor run away, as returns do that "
                "are exactly zero in a row; give NaN for them, or scales of priors that say more"
            )
        weights = found.weights * np.exp(gap - gap.max())
        return found._replace(weights=weights / weights.sum())

    def _settled(self, model: SiteModel, found: Lattice) -> Lattice:
        """No answer, where the effects did not converge at points that matter."""
        lost = ~model.converged(found.points, SiteFit(*found.kept))
        not_converged = float(found.weights[lost].sum())
        if not_converged <= self.most_not_converged:
            return found
        return found._replace(complete=False, not_converged=not_converged)


def _with_moments_of(found: Weighted, wide: Proposal) -> Proposal:
    """Mean and covariance of weighted points, and the sd of each side along the new axes.

    As wide as the first proposal where few points carry the weight.
    """
    size = found.points.shape[1]
    trust = found.ess / (found.ess + 2 * size)
    mean = trust * (found.weights @ found.points) + (1 - trust) * wide.mean
    centred = found.points - mean
    spread = (centred * found.weights[:, None]).T @ centred
    spread = trust * spread + (1 - trust) * wide.root @ wide.root.T
    root = root_of_precision(np.linalg.inv(spread))
    x = np.linalg.solve(root, centred.T).T
    sides = []
    for sign in (-1, 1):
        beyond = np.maximum(sign * x, 0.0) ** 2
        share = found.weights @ (sign * x > 0)
        side = np.sqrt(found.weights @ beyond / np.maximum(share, 1e-3))
        sides.append(np.clip(trust * side + 1 - trust, 0.5, 2.0))
    return Proposal(mean, root, *sides)
