r"""The best Gaussian q over all latent states, given the hyperparameters.

Rows see the states through one predictor, :math:`\eta_t = h^\top u_t + x_t^\top \beta`. At the
optimum

.. math::

    V^{-1} = P(\theta) + H^\top W H, \qquad w_t = -E_q[\ell_t''], \qquad
    V^{-1} m = H^\top r, \qquad r_t = E_q[\ell_t'] + w_t\, m_t

with one-dimensional expectations (equations (1)-(3) of the paper). The equations are iterated:
each round is a natural gradient step, one factorisation of a block-tridiagonal matrix, and the
bound needs nothing but the means and variances of the predictors. With Gaussian observations one
round is exact, and the bound is the log marginal likelihood.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from curvi._core.memory import require_memory
from curvi._core.threads import one_blas_thread
from curvi.latent import Anderson
from curvi.likelihoods import NOTHING, ORDERS, Likelihood
from curvi.sequences._structure import Components, Structure
from curvi.sequences._system import Solved, State, System

_MOST_ROUNDS = 200
_SHORTEST = 1e-8  # step
_LARGEST_LOSS = 1e-2  # of a bound through rounding, in nats
_ROUNDING = 1e-10  # relative, of a bound
# Of means and variances of predictors, in posterior sds; that of the bound is its square.
_ACCURACY = 1e-6
_NEAR = 1e-3  # of the end, in the same unit: what is missing of the bound is its square
_GAP_DRAWS = 512
_QUARTILES = 1.349  # the distance of the quartiles of a normal variable, in sds
_NUMBERS_AT_ONCE = 2e7  # entries of blocks that are factorised together
_BETA = (20.0, 1.5)  # prior of (1 + phi) / 2


class Posterior(NamedTuple):
    """q for several theta side by side: the bound, the sites, and the predictors."""

    bound: np.ndarray  # (points,)
    precision: np.ndarray  # w, (points, times)
    linear: np.ndarray  # r
    mean: np.ndarray  # of the predictor, offset included
    variance: np.ndarray


class _Sites(NamedTuple):
    """Sites, what they give, and the bound."""

    w: np.ndarray
    r: np.ndarray
    solved: Solved
    bound: np.ndarray

    def where(self, better: np.ndarray, other: _Sites) -> _Sites:
        """The other one at the points where it is better."""

        def pick(new: np.ndarray, old: np.ndarray) -> np.ndarray:
            return np.where(better.reshape(-1, *(1,) * (old.ndim - 1)), new, old)

        solved = Solved(*(pick(a, b) for a, b in zip(other.solved, self.solved, strict=True)))
        own = [pick(a, b) for a, b in zip(other[:2], self[:2], strict=True)]
        return _Sites(own[0], own[1], solved, pick(other.bound, self.bound))


@dataclass(frozen=True)
class LatentModel:
    """A series, its likelihood and the processes behind it.

    Attributes
    ----------
    y : array, shape (times,)
        Observations; NaN where there is none. Labels of a Bernoulli series are -1 and +1.
    likelihood : Likelihood
        Of an observation given its predictor.
    components : Components
        The processes.
    design : array, shape (times, columns)
        Regressors, a column of ones for the mean of an autoregression included.
    design_sd : array, shape (columns,)
        Prior standard deviations of their coefficients.
    offset : float
        Added to every predictor.
    prior_scales : dict
        Scales of the half-normal priors of standard deviations, by name.
    """

    y: np.ndarray
    likelihood: Likelihood
    components: Components
    design: np.ndarray
    design_sd: np.ndarray
    offset: float
    prior_scales: dict[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Hyperparameters, in the order of theta."""
        noise = ("noise",) if self.likelihood.conjugate else ()
        return (*self.components.hyperparameters, *noise)

    def natural(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Standard deviations and the autocorrelation from points of theta."""
        columns = dict(zip(self.names, np.asarray(theta, float).T, strict=True))
        return {
            ("phi" if name == "correlation" else name): (
                np.tanh(column) if name == "correlation" else np.exp(column)
            )
            for name, column in columns.items()
        }

    def log_prior(self, theta: np.ndarray) -> np.ndarray:
        """Half-normal standard deviations, a beta prior of (1 + phi) / 2; densities of theta."""
        total = np.zeros(len(theta))
        for name, column in zip(self.names, theta.T, strict=True):
            if name == "correlation":
                a, b = _BETA
                total += -a * np.logaddexp(0, -2 * column) - b * np.logaddexp(0, 2 * column)
                total += math.log(2) - special.betaln(a, b)
                continue
            scale = self.prior_scales[name]
            total += 0.5 * math.log(2 / math.pi) - math.log(scale) + column
            total -= 0.5 * np.exp(2 * (column - math.log(scale)))
        return total

    def _start(self, points: int) -> tuple[np.ndarray, np.ndarray]:
        """Sites of the likelihood around each observation alone."""
        seen = np.isfinite(self.y)
        sites = np.zeros((2, points, len(self.y)))
        for whole, part in zip(
            sites, self.likelihood.sites(self.y[seen], self.offset), strict=True
        ):
            whole[:, seen] = part
        return sites[0], sites[1]

    @one_blas_thread()  # blocks are small, and its threads would wait for each other
    def fit(
        self, theta: np.ndarray, sites: tuple[np.ndarray, np.ndarray] | None = None
    ) -> Posterior:
        """The best q for each theta.

        Parameters
        ----------
        theta : array, shape (points, dimension)
            Hyperparameters.
        sites : pair of arrays, shape (points, times), optional
            Where to begin.

        Returns
        -------
        Posterior
            One entry per point.
        """
        structure = Structure(self.components, len(self.y))
        parts = []
        for chosen in self._together(structure, len(theta)):
            start = None if sites is None else tuple(s[chosen].copy() for s in sites)
            parts.append(self._fit(structure, theta[chosen], start))
        return Posterior(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _together(self, structure: Structure, points: int) -> Iterator[slice]:
        """Points that are worked on side by side, by what their blocks and columns take."""
        columns = structure.states * (1 + self.design.shape[1])
        share = structure.num_blocks * structure.width**2 + structure.times * columns
        what = f"the states of {structure.times} steps"
        remedy = "use fewer steps, a shorter season or fewer columns of X"
        require_memory(12 * 8 * share, what, remedy)
        at_once = max(1, int(_NUMBERS_AT_ONCE / share))
        return (slice(first, first + at_once) for first in range(0, points, at_once))

    def _system(self, structure: Structure, natural: dict[str, np.ndarray]) -> System:
        return System(structure, self.design, self.design_sd, natural)

    def _fit(self, structure: Structure, theta: np.ndarray, sites: Any) -> Posterior:
        natural = self.natural(theta)
        system = self._system(structure, natural)
        if self.likelihood.conjugate:
            seen = np.isfinite(self.y)
            precision = np.where(seen, 1.0, 0.0)[None] / natural["noise"][:, None] ** 2
            linear = precision * (np.where(seen, self.y, 0.0) - self.offset)
            solved = system.solve(precision, linear)
            bound = self._bound(system, solved, precision, linear, natural)
            return Posterior(bound, precision, linear, solved.mean + self.offset, solved.variance)
        return self._iterated(system, self._start(len(theta)) if sites is None else sites, natural)

    def _iterated(self, system: System, sites: Any, natural: dict[str, np.ndarray]) -> Posterior:
        """Natural gradient steps, accelerated, and plain or shorter where the bound would fall."""
        now = self._state(system, sites[0], sites[1], natural)
        memory = Anderson()
        length, done = np.ones(len(now.bound)), np.zeros(len(now.bound), bool)
        for _ in range(_MOST_ROUNDS):
            _, slope, curvature = self.rows(
                now.solved.mean + self.offset, now.solved.variance, natural
            )
            wanted = -curvature
            step_w = wanted - now.w
            step_r = slope + wanted * now.solved.mean - now.r
            moves = memory.step(now.w, now.r, step_w, step_r, now.solved.variance)
            share = np.where(memory.used, 1.0, length)[:, None]
            trial_w = np.maximum(now.w + share * moves[0], 0.0)
            trial = self._state(system, trial_w, now.r + share * moves[1], natural)
            with np.errstate(invalid="ignore"):
                better = trial.bound >= now.bound - _ROUNDING * np.abs(now.bound)
            size = np.abs(step_w) * now.solved.variance + np.abs(
                step_r + step_w * -now.solved.mean
            ) * np.sqrt(now.solved.variance)
            left = size.max(axis=1)
            # Where the bound no longer rises so near to the end, rounding is all that is left.
            done |= (left < _ACCURACY) | (~better & (left < _NEAR))
            plain = ~memory.used
            length = np.where(
                plain, np.where(better, np.minimum(1.0, 1.5 * length), 0.3 * length), length
            )
            memory.forget(~better)
            now = now.where(better, trial)
            if (done | (length < _SHORTEST)).all():
                break
        solved = now.solved
        return Posterior(now.bound, now.w, now.r, solved.mean + self.offset, solved.variance)

    def _state(self, system: System, w: np.ndarray, r: np.ndarray, natural: Any) -> _Sites:
        solved = system.solve(w, r)
        bound = self._bound(system, solved, w, r, natural)
        # A step far too long has sites of 1e16, and what is left of the bound is rounding.
        size = w * (solved.variance + solved.mean**2) + np.abs(r * solved.mean)
        lost = np.finfo(float).eps * size.sum(axis=1)
        return _Sites(w, r, solved, np.where(lost < _LARGEST_LOSS, bound, -np.inf))

    def rows(
        self, mean: np.ndarray, variance: np.ndarray, natural: Any, orders: Sequence[int] = ORDERS
    ) -> np.ndarray:
        """Expected log likelihoods and their derivatives, (points, times); zero where unseen."""
        seen = np.isfinite(self.y)
        extra = natural["noise"][:, None, None] if self.likelihood.conjugate else NOTHING
        out = np.zeros((len(orders), *mean.shape))
        with np.errstate(over="ignore", invalid="ignore"):
            out[..., seen] = self.likelihood.expected(
                mean[:, seen], variance[:, seen], self.y[seen], extra=extra, orders=orders
            )
        return out

    def _bound(
        self, system: System, solved: Solved, w: np.ndarray, r: np.ndarray, natural: Any
    ) -> np.ndarray:
        """The ELBO; the divergence needs predictors and determinants alone."""
        mean = solved.mean + self.offset
        rows = self.rows(mean, solved.variance, natural, (0,))[0].sum(axis=1)
        quadratic = w * (solved.variance + solved.mean**2) - r * solved.mean
        return rows + 0.5 * (quadratic.sum(axis=1) + system.prior_log_det - solved.log_det)

    @one_blas_thread()
    def at(self, theta: np.ndarray, sites: tuple[np.ndarray, np.ndarray]) -> Posterior:
        """The q of given sites: for steps without observations, whose sites are zero."""
        structure = Structure(self.components, len(self.y))
        parts = [
            self._system(structure, self.natural(theta[some])).solve(*(s[some] for s in sites))
            for some in self._together(structure, len(theta))
        ]
        mean, variance, _ = (np.concatenate(column) for column in zip(*parts, strict=True))
        return Posterior(np.full(len(theta), np.nan), *sites, mean + self.offset, variance)

    @one_blas_thread()
    def states(self, theta: np.ndarray, posterior: Posterior) -> State:
        """Means and variances of all components of the state, for fitted points."""
        structure = Structure(self.components, len(self.y))
        parts = [
            self._system(structure, self.natural(theta[some])).states(
                posterior.precision[some], posterior.linear[some]
            )
            for some in self._together(structure, len(theta))
        ]
        return State(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    @one_blas_thread()
    def draw(
        self, theta: np.ndarray, posterior: Posterior, rng: np.random.Generator, num_draws: int
    ) -> np.ndarray:
        """Draws of the predictor, offset included: shape (points, times, num_draws)."""
        structure = Structure(self.components, len(self.y))
        system = self._system(structure, self.natural(theta))
        drawn = system.draw(posterior.precision, system.noise(rng, len(theta), num_draws))
        return drawn + posterior.mean[:, :, None]

    @one_blas_thread()
    def gap(self, theta: np.ndarray, posterior: Posterior) -> np.ndarray:
        r"""How far the bound lies below the log marginal likelihood, to second order.

        .. math:: \log p(y) - L = \log E_q\big[e^{g - E g}\big] \approx \tfrac12 \mathrm{Var}_q(g)

        with :math:`g = \sum_t \ell_t(\eta_t) - (r_t \eta_t - \tfrac12 w_t \eta_t^2)`: the prior
        cancels. The variance is estimated on the same draws for all points, because what matters
        are differences between them. A few draws far out, where a Gaussian q has mass and the
        likelihood none, would be all of it: they are drawn in to four sds of the others.
        """
        structure = Structure(self.components, len(self.y))
        seen = np.isfinite(self.y)
        y, gaps = self.y[seen][:, None].astype(np.float32), np.zeros(len(theta))
        offset = np.float32(self.offset)
        at_once = max(1, int(_NUMBERS_AT_ONCE / (10 * _GAP_DRAWS * structure.times)))
        for first in range(0, len(theta), at_once):
            some = slice(first, first + at_once)
            part = Posterior(*(column[some] for column in posterior))
            system = self._system(structure, self.natural(theta[some]))
            if first == 0:  # for all points, and in single precision: they are only compared
                noise = system.noise(np.random.default_rng(0), 1, _GAP_DRAWS, np.float32)
            drawn = system.draw(part.precision, noise)
            mean, linear, precision = (
                column[:, seen, None].astype(drawn.dtype)
                for column in (part.mean - self.offset, part.linear, part.precision)
            )
            eta = drawn[:, seen] + mean
            site = eta * (linear - 0.5 * precision * eta)
            total = self.likelihood.log_density(eta + offset, y) - site
            total = total.sum(axis=1, dtype=np.float64)
            gaps[some] = 0.5 * _bulk(total).var(axis=1)
        return gaps


def _bulk(values: np.ndarray) -> np.ndarray:
    """Rows without their outliers: those are moved to four sds of what lies between quartiles."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], axis=1)[..., None]
    reach = 4 * (high - low) / _QUARTILES
    return np.clip(values, middle - reach, middle + reach)
