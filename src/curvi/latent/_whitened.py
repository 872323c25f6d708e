r"""Hamiltonian Monte Carlo of (theta, u), in coordinates in which q is standard normal.

Given theta, one of the points of an integral, effects are :math:`u = m_\theta + R_\theta z`, and

.. math:: p(\theta, z \mid y) \propto w_\theta\, N(z; 0, I)\, e^{g - E_q g}

with the weights w of the bound and g of `curvi.latent._gap`. A trajectory alternates kicks by the
slopes of g with exact rotations of position and momentum; where responses are Gaussian nothing is
rejected, and how long a step may be depends on g alone, not on the number of effects. A quarter of
a turn makes the momentum the position: every draw of the posterior stands beside the draw of q that
its trajectory would have ended in without kicks, and every theta beside the one that was proposed.
Their differences correct moments of q with far less noise than the draws have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from curvi._core.memory import require_memory
from curvi._core.run import current_run
from curvi._core.threads import one_blas_thread
from curvi.latent._gap import excess
from curvi.latent._site_steps import Effects, SiteFit
from curvi.latent._sites import SiteModel


@dataclass(frozen=True)
class Trajectories:
    """How the chains run.

    Attributes
    ----------
    chains : int
        Side by side.
    draws : int
        Of each chain.
    warm_up : int
        Draws of each chain that are left out before them.
    kicks : int
        Of a trajectory, a quarter of a turn.
    least : float
        Where fewer trajectories of the warm-up are accepted, kicks are doubled and it is repeated.
    doublings : int
        Of the kicks, at most.
    few : float
        Share of accepted moves below which the verdict doubts the chains.
    negligible : float
        Points of theta that together weigh less do not take part.
    numbers_at_once : float
        Entries of factors side by side; where they are more, fewer points take part.
    copied : float
        Entries of factors, one for each chain, up to which chains go side by side.
    """

    chains: int = 32
    draws: int = 48
    warm_up: int = 6
    kicks: int = 3
    least: float = 0.8
    doublings: int = 4
    few: float = 0.2
    negligible: float = 1e-5
    numbers_at_once: float = 1e8
    copied: float = 2e6


class JointDraws(NamedTuple):
    """Draws of the joint posterior, and moments corrected by them.

    Attributes
    ----------
    point : array of int, shape (chains, draws)
        Of theta.
    effects : array, shape (chains, draws, size)
        Draws of u.
    weights : array, shape (points,)
        Of theta.
    moments : Effects
        Means and variances of the effects over all theta, shape (size,).
    error : array, shape (size,)
        Standard errors of the means of effects, from the differences between chains.
    moved : array, shape (size,)
        How far the means of effects moved from those of q with corrected weights, in sds.
    accepted : tuple of float
        Shares of trajectories, and of moves of theta.
    covered : float
        Weight of the points of theta that took part.
    rule : Trajectories
        How they were drawn.
    """

    point: np.ndarray
    effects: np.ndarray
    weights: np.ndarray
    moments: Effects
    error: np.ndarray
    moved: np.ndarray
    accepted: tuple[float, float]
    covered: float
    rule: Trajectories

    @property
    def verdict(self) -> str:
        """What was done, what it changed, and how far it is to be trusted."""
        chains, draws = self.point.shape
        share = self.error / np.sqrt(self.moments.variance)
        told = (
            f"{chains * draws} draws of whitened HMC ({self.accepted[0]:.0%} of trajectories and "
            f"{self.accepted[1]:.0%} of moves of the hyperparameters accepted) moved the means of "
            f"effects by at most {np.abs(self.moved).max():.2g} sd, with a standard error of at "
            f"most {share.max():.2g} sd"
        )
        left_out = f"{max(1 - self.covered, 0.0):.0%}"
        if left_out != "0%":
            told += f"; hyperparameters of {left_out} of the weight were left out"
        if min(self.accepted) < self.rule.few:
            told += "; so few moves are accepted that the chains may not have converged"
        return told


class _Whitened(NamedTuple):
    """Where chains are: the point of theta, z, g - E g, and the slopes of g in z."""

    point: np.ndarray
    z: np.ndarray
    value: np.ndarray
    slope: np.ndarray

    def where(self, accepted: np.ndarray, other: _Whitened) -> _Whitened:
        """The other one in the chains that accept it."""
        pairs = zip(other, self, strict=True)
        return _Whitened(
            *(np.where(accepted.reshape(-1, *(1,) * (b.ndim - 1)), a, b) for a, b in pairs)
        )


class _Turn(NamedTuple):
    """One draw of every chain."""

    state: _Whitened
    draws: np.ndarray  # of u - prior mean, and what q would have drawn: (chains, size, 2)
    moves: np.ndarray  # points of theta before, and those that were proposed: (2, chains)
    refused: np.ndarray  # chance that each was not accepted
    accepted: tuple[float, float]


class _Joint:
    """The joint posterior on the points that take part."""

    def __init__(
        self, model: SiteModel, theta: np.ndarray, weights: np.ndarray, fitted: SiteFit,
        gaps: np.ndarray, rule: Trajectories,
    ) -> None:  # fmt: skip
        self.model, self.theta, self.gaps, self.rule = model, theta, gaps, rule
        self.fitted = fitted = model.completed(theta, fitted)
        logs = np.log(weights) + gaps
        self.proposal = np.exp(logs - logs.max())
        self.proposal /= self.proposal.sum()
        self.factor = model.assembly.factor(model.values(theta, fitted))
        self.centre = self.factor.solve(fitted.linear @ model.assembly.A)
        mean, v = fitted.mean - model.base, fitted.variance
        sites = fitted.linear * mean - 0.5 * fitted.precision * (v + mean**2)
        self.expected = (model.rows(theta, mean, v, (0,))[0] - sites)[:, model.seen].sum(axis=1)

    def _groups(self, point: np.ndarray) -> Iterator[tuple[Any, Any, Any]]:
        """Points side by side, the chains that are there, and the factors.

        Small factors are copied, one for each chain; of large ones chains at a point share a view.
        """
        if len(point) * self.model.assembly.pattern.numbers <= self.rule.copied:
            yield point, slice(None), self.factor.at(point)
            return
        for k in np.unique(point).tolist():
            yield slice(k, k + 1), np.flatnonzero(point == k), self.factor.at(slice(k, k + 1))

    def at(self, point: np.ndarray, z: np.ndarray) -> _Whitened:
        """The value of g and its slopes, of every chain."""
        A, value, slope = self.model.assembly.A, np.empty(len(point)), np.empty_like(z)
        for some, chains, factor in self._groups(point):
            effects = self._sampled(some, factor, z[chains])
            predictors = self.model._seen_by_rows(effects)
            found, bent = excess(self.model, self.theta[some], self.fitted.at(some), predictors)
            value[chains] = (found - self.expected[some][:, None]).ravel()
            pulled = np.stack([A.T @ one for one in bent])
            slope[chains] = _one_by_one(factor.slopes_in_noise(pulled))
        return _Whitened(point, z, value, slope)

    def _sampled(self, some: Any, factor: Any, z: np.ndarray) -> np.ndarray:
        """Centred effects, (points, size, chains at each)."""
        noise = z.reshape(len(self.gaps[some]), -1, z.shape[1]).swapaxes(1, 2)
        drawn: np.ndarray = self.centre[some][:, :, None] + factor.sample(noise)
        return drawn

    def effects(self, point: np.ndarray, z: np.ndarray) -> np.ndarray:
        """Centred effects of every chain."""
        out = np.empty_like(z)
        for some, chains, factor in self._groups(point):
            out[chains] = _one_by_one(self._sampled(some, factor, z[chains]))
        return out

    def propose(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Points by the corrected weights of the bound."""
        return rng.choice(len(self.gaps), size=count, p=self.proposal)

    def turn(self, state: _Whitened, rng: np.random.Generator, kicks: int) -> _Turn:
        """Move theta with z as it is, then z with theta as it is."""
        count = len(state.point)
        point = self.propose(rng, count)
        trial = self.at(point, state.z)
        gain = trial.value - self.gaps[point] - state.value + self.gaps[state.point]
        refused = -np.expm1(np.minimum(np.where(np.isnan(gain), -np.inf, gain), 0.0))
        moves, moved = np.stack([state.point, point]), rng.random(count) >= refused
        state = state.where(moved, trial)
        momentum = rng.standard_normal(state.z.shape)
        now, p = self._trajectory(state, momentum, kicks)
        gain = now.value - 0.5 * (now.z**2 + p**2).sum(axis=1)
        gain -= state.value - 0.5 * (state.z**2 + momentum**2).sum(axis=1)
        good = np.log(rng.random(count)) < gain
        state = state.where(good, now)
        pair = [self.effects(state.point, noise) for noise in (state.z, momentum)]
        accepted = (float(good.mean()), float(moved.mean()))
        return _Turn(state, np.stack(pair, axis=2), moves, refused, accepted)

    def _trajectory(
        self, state: _Whitened, p: np.ndarray, kicks: int
    ) -> tuple[_Whitened, np.ndarray]:
        """A quarter of a turn: half a kick, a rotation, half a kick, and again."""
        angle = 0.5 * math.pi / kicks
        cos, sin = math.cos(angle), math.sin(angle)
        for _ in range(kicks):
            p = p + 0.5 * angle * state.slope
            z, p = cos * state.z + sin * p, cos * p - sin * state.z
            state = self.at(state.point, z)
            p = p + 0.5 * angle * state.slope
        return state, p


def _one_by_one(columns: np.ndarray) -> np.ndarray:
    """(points, size, chains at each) as (chains, size)."""
    return columns.swapaxes(1, 2).reshape(-1, columns.shape[1])


@one_blas_thread()
def run_chains(
    model: SiteModel, theta: np.ndarray, weights: np.ndarray, fitted: SiteFit,
    gaps: np.ndarray, *, rule: Trajectories | None = None, seed: int = 0,
) -> JointDraws:  # fmt: skip
    """Draw from the joint posterior on the points of an integral over theta.

    Parameters
    ----------
    model : SiteModel
        Rows and effects.
    theta, weights : arrays, shapes (points, dimension) and (points,)
        Hyperparameters, and what they weigh by the bound.
    fitted : SiteFit
        The best q of each.
    gaps : array, shape (points,)
        Of the bounds (`gap`): theta is proposed by weights that allow for them. They decide how
        many proposals are accepted, not what the chains converge to.
    rule : Trajectories, optional
        Numbers of chains and draws.
    seed : int
        Of all noise.

    Returns
    -------
    JointDraws
        Draws, moments, and how many moves were accepted.
    """
    rule = rule or Trajectories()
    require_memory(
        8.0 * rule.chains * rule.draws * model.assembly.size,
        f"{rule.chains * rule.draws} draws of {model.assembly.size} effects", "draw fewer",
    )  # fmt: skip
    most = max(1, int(rule.numbers_at_once / model.assembly.pattern.numbers))
    order = np.argsort(-weights, kind="stable")[:most]
    order = order[np.cumsum(weights[order]) - weights[order] < 1 - rule.negligible]
    target = _Joint(model, theta[order], weights[order], fitted.at(order), gaps[order], rule)
    with np.errstate(over="ignore", invalid="ignore"):  # such trajectories are not accepted
        turns = list(_turns(target, rule, np.random.default_rng(seed)))
    return _summary(target, turns, order, weights, rule)


def _turns(target: _Joint, rule: Trajectories, rng: np.random.Generator) -> Iterator[_Turn]:
    """Draws after a warm-up in which enough trajectories were accepted."""
    point = target.propose(rng, rule.chains)
    z = rng.standard_normal((rule.chains, target.model.assembly.size))
    state, kicks = target.at(point, z), rule.kicks
    for _ in range(1 + rule.doublings):
        shares = []
        for _ in range(rule.warm_up):
            current_run().check()
            one = target.turn(state, rng, kicks)
            state = one.state
            shares.append(one.accepted[0])
        if not shares or np.mean(shares) >= rule.least:
            break
        kicks *= 2
    for _ in range(rule.draws):
        current_run().check()
        one = target.turn(state, rng, kicks)
        state = one.state
        yield one


def _summary(
    target: _Joint, turns: list[_Turn], order: np.ndarray, before: np.ndarray, rule: Trajectories
) -> JointDraws:
    """Moments of q, and what the moves add to them."""
    model = target.model
    point = np.stack([one.state.point for one in turns], axis=1)
    draws = np.stack([one.draws[..., 0] for one in turns], axis=1)  # (chains, draws, size)
    own = model.effects(target.theta, target.fitted)
    mean = own.mean - model.assembly.prior_mean
    added = np.mean([one.draws[..., 0] - one.draws[..., 1] for one in turns], axis=0)
    # What is expected of a move, in the place of whether it was made, has less noise.
    each_weights = np.tile(target.proposal, (len(point), 1))
    for one in turns:
        for places, sign in zip(one.moves, (1, -1), strict=True):
            each_weights[np.arange(len(point)), places] += sign * one.refused / len(turns)
    each = each_weights @ mean + added
    middle = each.mean(axis=0)
    variance = each_weights.mean(axis=0) @ (own.variance + (mean - middle) ** 2)
    for one in turns:
        squares = ((one.draws - middle[:, None]) ** 2).mean(axis=0)
        variance += (squares[:, 0] - squares[:, 1]) / len(turns)
    weights = np.zeros(len(before))
    weights[order] = np.maximum(each_weights.mean(axis=0), 0.0)
    trajectories, moves = np.mean([one.accepted for one in turns], axis=0)
    return JointDraws(
        order[point],
        draws + model.assembly.prior_mean,
        weights / weights.sum(),
        Effects(middle + model.assembly.prior_mean, variance),
        each.std(axis=0, ddof=1) / math.sqrt(len(each)),
        (middle - target.proposal @ mean) / np.sqrt(variance),
        (float(trajectories), float(moves)),
        float(before[order].sum()),
        rule,
    )
