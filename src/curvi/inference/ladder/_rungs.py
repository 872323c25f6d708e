"""The rungs between a first q and an answer that is right: richer families, weights, HMC."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from scipy import linalg

from curvi._core.run import OutOfTime, deadline
from curvi._core.trees import coordinate_names
from curvi.diagnostics import improper_sentence
from curvi.families import Conditional, FullRank, HostMap, SparseMap
from curvi.inference._first import number_of_draws, sparse_family, structure_holds
from curvi.inference._initial import around
from curvi.inference.ladder._convergence import TRAJECTORIES, Trajectories
from curvi.inference.ladder._corrections import (
    SPENDING,
    Spending,
    has_light_tails,
    moved,
    weighted,
    with_own_moments,
)
from curvi.inference.ladder._dense_rows import FOLLOWING, Following, FollowingSteps
from curvi.inference.ladder._recentre import Recentred
from curvi.inference.ladder._state import Candidate, State
from curvi.objective import BatchedDensity, Curvature, normalise, whiten


def find_globals(
    place: HostMap, positions: np.ndarray, gradients: np.ndarray, *, farthest: float = 20.0,
    least: float = 0.3, noises: float = 3.0, most: int = 12,
) -> tuple[tuple[int, ...], np.ndarray]:  # fmt: skip
    r"""The coordinates that govern the spread of others, strongest first, and the score of each.

    With :math:`\Lambda` the precision of a Gaussian q and :math:`a = \Lambda (z - \mu)`, Stein's
    identity gives the change of the expected curvature of coordinate j along coordinate k from
    gradients alone,

    .. math:: E[\partial_j^2 \partial_k \log p] \approx
        E[(g_j a_j - E[g_j a_j])\,a_k], \qquad g = \nabla \log p .

    In units of the curvature of j and the sd of k it is the relative change of the conditional
    precision of z_j when z_k moves by one sd: zero for a Gaussian, about one in the funnel of a
    group sd.

    Parameters
    ----------
    place : HostMap
        A Gaussian q, without globals of its own.
    positions, gradients : array, shape (draws, dimension)
        Independent draws of q, and the gradients of log p there.
    farthest : float
        Products of standardised numbers beyond it are outliers.
    least, noises : float
        A global has a total of squares over all j above ``least`` and so many times its noise.
    most : int
        Number of globals.
    """
    good = np.isfinite(gradients).all(axis=1)
    centred, pulled = positions[good] - place.mean, gradients[good]
    factor, count = place.factor, int(good.sum())
    inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    own = np.sqrt(np.sum(inverse**2, axis=0))  # root of the conditional precision
    standardised = centred @ inverse.T @ inverse / own
    product = np.clip(pulled / own * standardised, -farthest, farthest)
    product -= product.mean(axis=0)
    marginal = centred / np.sqrt(np.sum(factor**2, axis=1))
    change = product.T @ marginal / count
    np.fill_diagonal(change, 0.0)
    noise = float(np.sum(np.mean(product**2, axis=0))) / count
    score = np.sum(change**2, axis=0) - noise
    # The total of d squared errors has a spread of about sqrt(2 / d) of itself.
    limit = least + noises * noise * np.sqrt(2 / len(score))
    order = np.argsort(-score)[:most]
    return tuple(int(k) for k in order if score[k] > limit), score


def conditional_start(place: HostMap, order: np.ndarray, count: int) -> HostMap:
    """The same Gaussian with its coordinates in another order, the first ``count`` globals."""
    covariance = (place.factor @ place.factor.T)[np.ix_(order, order)]
    warp = np.zeros((len(order) - count, count))
    return HostMap(place.mean[order], np.linalg.cholesky(covariance), warp, order)


def _with_better(state: State, name: str, fitted: Candidate | None, *, better: bool) -> State:
    """The state with a q that is better, and a note in any case."""
    state = state.noted(name, "better" if better else "no better", fitted)
    return replace(state, candidate=fitted) if better and fitted is not None else state


@dataclass(frozen=True)
class FreshStart:
    """Another beginning, where the first fit has failed: narrow, with more draws.

    A few draws can pull a flexible q far from the target, which fresh ones then show. What is
    narrow around a place of high density is no answer, but HMC can start from it and judge.

    Parameters
    ----------
    widths : tuple of float
        Of the q that are compared, in units of the coordinates.
    """

    widths: tuple[float, ...] = (1.0, 0.3, 0.1, 0.03, 0.01)

    def applies(self, state: State) -> bool:
        """Whether the first fit has failed."""
        return state.failed

    def climb(self, state: State) -> State:
        """The best q of several widths around the start, and a fit from it."""
        family, start = state.given.family, state.target.start
        tried = [state.judged(family, around(family, start, width)) for width in self.widths]
        found = [one for one in tried if one is not None]
        if not found or state.exhausted:
            return state.noted("narrower q", "none")
        best = max(found, key=lambda one: one.elbo)
        state, fitted = state.fitted(family, best.params)
        if fitted is not None and fitted.elbo > best.elbo:
            if improper_sentence(state.target, family, fitted.params, best.params):
                return state.noted("narrower q", "improper", fitted)
            best = fitted
        return _with_better(replace(state, failed=False), "narrower q", best, better=True)


@dataclass(frozen=True)
class AllEntries:
    """A sparse q whose precision has the entries of the Hessian at its own draws, too.

    They were found around the start. What is missing makes q worse, not the answer wrong: weights
    and HMC know nothing of it.

    Parameters
    ----------
    width : float
        Of the q that the second fit starts from, in units of the coordinates.
    """

    width: float = 0.1

    def applies(self, state: State) -> bool:
        """Whether the Hessian has other entries at draws of q."""
        place = state.candidate.map
        return isinstance(place, SparseMap) and not structure_holds(
            state.target, place, state.generator(8)
        )

    def climb(self, state: State) -> State:
        """Find the entries again around the mean of q, and fit once more."""
        state = state.noted("entries of the Hessian", "others at draws of q")
        there, family = state.candidate.params.mean, None
        with suppress(OutOfTime), deadline(state.budget.left()):
            family = sparse_family(state.target.started_at(state.target.density.unravel(there)))
        if family is None or state.exhausted:
            return state
        state, fitted = state.fitted(family, around(family, there, self.width))
        better = fitted is not None and fitted.elbo > state.candidate.elbo
        return _with_better(state, "sparse precision once more", fitted, better=better)


@dataclass(frozen=True)
class Recentre:
    """A q with group effects in the form that suits them, where it fits better.

    The climb goes on in the coordinates of that form; the answer is moved back.
    """

    def applies(self, state: State) -> bool:
        """Whether a dense q does not fit."""
        first = state.candidate
        return not (first.close or state.sparse or state.exhausted)

    def climb(self, state: State) -> State:
        """Fit in the form whose degrees of centring follow from q."""
        place = HostMap.of(state.candidate.family, state.candidate.params)
        other = Recentred.by(state.target, place)
        if other is None:
            return state
        noise = whiten(state.noise(number_of_draws(state.target.dimension), 7))
        start = HostMap.matching(other.there(place.forward(noise).positions))
        if start is None:
            return state
        there = replace(state, target=other.target, density=BatchedDensity.of(other.target))
        params = start.params(FullRank(), state.target.dtype)
        there, fitted = there.fitted(FullRank(), params)
        name = "full rank, centred by degrees"
        if fitted is None or fitted.elbo <= state.candidate.elbo:
            state = replace(state, spent=there.spent)
            return _with_better(state, name, fitted, better=False)
        there = replace(there, recentred=other, noted_at=(state.noted_at[0], 0))
        return _with_better(there, name, fitted, better=True)


@dataclass(frozen=True)
class ConditionalOnGlobals:
    """A family that is conditional on globals, where some coordinates govern the spread of others.

    Parameters
    ----------
    draws : int
        That show who governs whom.
    gain : float
        Nats that make a richer family worth its name.
    """

    draws: int = 1024
    gain: float = 0.2

    def applies(self, state: State) -> bool:
        """Whether a dense q does not fit."""
        return not (state.candidate.close or state.sparse)

    def climb(self, state: State) -> State:
        """Find the globals from scores at draws of q, and fit given them."""
        first, dimension = state.candidate, state.target.dimension
        place = HostMap.of(first.family, first.params)
        positions = place.forward(state.noise(self.draws, 0)).positions
        _, gradients = state.density(positions)
        governing, _ = find_globals(place, positions, gradients)
        if not governing or len(governing) >= dimension or state.spent >= state.budget.max_steps:
            return state
        family = Conditional(governing).on(state.target.position)
        start = conditional_start(place, np.asarray(family.order), len(governing))
        state, fitted = state.fitted(family, start.params(family, state.target.dtype))
        gain = -np.inf if fitted is None else fitted.elbo - first.elbo
        better = gain > self.gain or (fitted is not None and fitted.close and gain > 0)
        names = coordinate_names(state.target.position)
        listed = ", ".join(names[k] for k in governing[:4]) + (", ..." * (len(governing) > 4))
        return _with_better(state, f"conditional on {listed}", fitted, better=better)


@dataclass(frozen=True)
class FollowDenseRows:
    """Scales that follow the dense block of a sparse q, where that fits better.

    Parameters
    ----------
    gain : float
        Nats that make a richer family worth its name.
    steps : FollowingSteps
        Of the fit.
    """

    gain: float = 0.2
    steps: FollowingSteps = FOLLOWING

    def applies(self, state: State) -> bool:
        """Whether a sparse q with a dense block does not fit."""
        place = state.candidate.map
        dense = isinstance(place, SparseMap) and bool(place.structure.num_dense)
        return dense and not state.candidate.close

    def climb(self, state: State) -> State:
        """Let the scales follow."""
        place, target = state.candidate.map, state.target
        assert isinstance(place, SparseMap)  # noqa: S101  for the type checker
        curvature = Curvature(target.density, target.rows, place.structure)
        family = replace(state.candidate.family, follows=True)  # type: ignore[type-var]
        rng = state.generator(7)
        following, gained = Following(state.density, curvature, place, rng, self.steps).run()
        fitted = state.judged(family, following.params(target.dtype))
        better = fitted is not None and (gained > self.gain or (gained > 0 and fitted.close))
        return _with_better(state, "scales that follow dense rows", fitted, better=better)


@dataclass(frozen=True)
class ImportanceWeights:
    """Weights for draws of q, where q is close and no tail of the target is heavier.

    Parameters
    ----------
    fewest, most : int
        Draws, unless mc_tolerance asks for more.
    most_for_tolerance : int
        Draws, whatever it asks for.
    numbers : float
        That the log density at these draws computes.
    """

    fewest: int = 1024
    most: int = 4096
    most_for_tolerance: int = 2**16
    numbers: float = 1e8

    def applies(self, state: State) -> bool:
        """Whether q is close, and nothing corrects it yet."""
        return (
            state.correction is None
            and state.candidate.close
            and has_light_tails(state.density, state.candidate.map, state.generator(5))
        )

    def climb(self, state: State) -> State:
        """Weigh draws of q; a few that carry the rest are no answer."""
        place, count = state.candidate.map, self._number(state)
        if isinstance(place, SparseMap):
            noise = with_own_moments(place, normalise(state.noise(count, 2)))
        else:
            noise = whiten(state.noise(max(count, number_of_draws(state.target.dimension)), 2))
        correction = weighted(state.density, state.candidate, noise)
        note = "a few carry the rest" if correction is None else "corrected"
        return replace(state, correction=correction).noted("importance weights", note)

    def _number(self, state: State) -> int:
        """How many draws are worth a weight."""
        affordable = self.numbers / max(state.target.density.cost.numbers, 1.0)
        needed = 0.0
        if state.mc_tolerance is not None:
            lost = 1 / state.candidate.relative_ess - 1
            needed = min(lost / state.mc_tolerance**2, self.most_for_tolerance)
        return int(np.clip(affordable, self.fewest, max(self.most, needed)))


@dataclass(frozen=True)
class HMC:
    """Draws of the target by Hamiltonian Monte Carlo from draws of q, which it judges.

    Parameters
    ----------
    spending : Spending
        What it may cost.
    trajectories : Trajectories
        How its chains move.
    """

    spending: Spending = SPENDING
    trajectories: Trajectories = TRAJECTORIES

    def applies(self, state: State) -> bool:
        """Whether nothing corrects q yet."""
        return state.correction is None

    def climb(self, state: State) -> State:
        """Move many chains until their moments have converged."""
        effort = self.spending.effort(state.target, state.mc_tolerance, state.budget.left)
        effort = replace(effort, trajectories=self.trajectories)
        rng = state.generator(3)
        correction, note = moved(state.target, state.density, state.candidate, rng, effort)
        return replace(state, correction=correction).noted("HMC", note)
