"""From a design to a posterior: which way of integrating suits it, and what it reports."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from curvi._core.errors import InputError
from curvi._core.threads import one_blas_thread
from curvi.engine import belongs
from curvi.latent import (
    GivenRest,
    Iteration,
    Mixture,
    Proposal,
    SummedModel,
    Weighted,
    explore,
    kernels,
    shared,
    two_piece,
    weigh,
    white_points,
)
from curvi.likelihoods import Likelihood
from curvi.linalg import find_mode
from curvi.mixed._conditional import integrate
from curvi.mixed._design import Design, centred, merge_copies
from curvi.mixed._hyper import Layout
from curvi.mixed._large import fit_large, summed_model
from curvi.mixed._marginal import quadrature_possible
from curvi.mixed._posterior import weighted_moments
from curvi.mixed._standard import in_units_of_table, standardised
from curvi.mixed._sums import Summed, sums_of
from curvi.mixed._variational import Problem, find_hyper


@dataclass(frozen=True)
class Sampling:
    """How hyperparameters and few remaining effects are importance-sampled.

    Attributes
    ----------
    largest_rest : int
        Remaining effects that importance sampling can correct.
    points : int
        Unless the user chooses.
    fewer : int
        Where one evaluation passes over many rows.
    rows : int
        That are many.
    more : float
        Share of effective points below which there are more of them.
    times : int
        How many times as many.
    stored : float
        Numbers in the table of conditional covariances, at most.
    farthest : float
        Entry of theta, a logarithm or a tangent.
    numbers_at_once : float
        Of systems side by side: they stay in the cache.
    resample : float
        Share of effective points below which kernels are tried.
    least_ess : float
        Share of effective points below which an answer does not stand.
    enough_ess : float
        And above which it does, wherever a search for a mode has ended.
    """

    largest_rest: int = 80
    points: int = 1024
    fewer: int = 256
    rows: int = 4000
    more: float = 0.8
    times: int = 4
    stored: float = 2e7
    farthest: float = 30.0
    numbers_at_once: float = 5e5
    resample: float = 0.6
    least_ess: float = 0.05
    enough_ess: float = 0.3


SAMPLING = Sampling()


@dataclass(frozen=True)
class Fitted:
    """Components and their weights, and what the verdict says of them."""

    theta: np.ndarray
    weights: np.ndarray
    rest: np.ndarray
    level_mean: np.ndarray
    level_covariance: np.ndarray
    alias: np.ndarray
    log_ratios: np.ndarray
    log_evidence: float
    converged: bool
    steps: int
    method: str
    warnings: tuple[str, ...] = ()


def fit_design(
    design: Design, layout: Layout, likelihood: Likelihood, *, points: int | None, seed: int,
    summed: Summed | None = None,
) -> Fitted:  # fmt: skip
    """The posterior of a model, by the most exact way that its size allows.

    Where the sums of a Gaussian model are given, in the coordinates of the fit, the design has no
    rows.
    """
    plain, standard = standardised(design, layout)
    try:
        fitted = _fit_standard(plain, standard, likelihood, points=points, seed=seed, summed=summed)
    except (ArithmeticError, np.linalg.LinAlgError) as error:
        raise InputError(
            f"the model cannot be computed from this table ({error}): rescale columns of very "
            "different sizes, and leave out terms that say the same"
        ) from error
    rows = float(design.rows) if summed is None else summed.sums.rows
    return in_units_of_table(fitted, design, layout, rows)


def _fit_standard(
    design: Design, layout: Layout, likelihood: Likelihood, *, points: int | None, seed: int,
    summed: Summed | None,
) -> Fitted:  # fmt: skip
    arrays: Any = (design.y, design.X, design.offset, design.trials, design.weights,
                   [(factor.codes, factor.columns) for factor in design.factors])  # fmt: skip
    arrays = arrays if summed is None else summed.sums.arrays()
    belongs(f"{likelihood.identity}, {layout!r}, {points} points, seed {seed}", arrays)
    if design.is_large:
        return _large(design, layout, likelihood, seed, summed)
    with one_blas_thread():
        if likelihood.conjugate:
            return _gaussian(design, layout, likelihood, points or SAMPLING.points, seed, summed)
        merged = merge_copies(design)
        rest = merged.remaining
        problem = Problem.of(merged, layout, likelihood)
        if rest > SAMPLING.largest_rest or not quadrature_possible(problem):
            return _large(design, layout, likelihood, seed)
        return _quadrature(problem, points, seed)


def _gaussian(
    design: Design, layout: Layout, likelihood: Likelihood, points: int, seed: int,
    summed: Summed | None,
) -> Fitted:  # fmt: skip
    levels = design.factors[0].levels
    if summed is None:
        design, shift = centred(design)
        summed = Summed(sums_of(design), shift, design.y)
    marginal = GaussianMarginal.of(design, layout, likelihood, summed)
    start = layout.start(likelihood.extra_start(summed.response))
    density = shared("density", marginal)
    mode, hessian, reached = find_mode(density, start)
    wide = two_piece(density, mode, -hessian)
    outer = explore(density, wide, seed=seed)
    again = partial(_concentrated, marginal, wide)
    outer, found, parts = again(outer, *_sampled(marginal, outer, points, seed + 1), seed + 7)
    stored = SAMPLING.times * points * levels * design.factors[0].size ** 2
    if found.ess < SAMPLING.more * points and stored < SAMPLING.stored:
        more = _sampled(marginal, outer, SAMPLING.times * points, seed + 11)
        _, found, parts = again(outer, *more, seed + 13)
    rest, mean, covariance = parts
    rest[:, : len(summed.shift)] += summed.shift
    return Fitted(
        found.points, found.weights, rest, mean, covariance, design.alias, found.log_ratios,
        found.log_mean_ratio, _settled(found, reached), 0,
        "exact given hyperparameters, which are importance-sampled",
    )  # fmt: skip


Parts = tuple[np.ndarray, np.ndarray, np.ndarray]


def _concentrated(
    marginal: GaussianMarginal, wide: Proposal, outer: Proposal | Mixture, found: Weighted,
    parts: Parts, seed: int,
) -> tuple[Proposal | Mixture, Weighted, Parts]:  # fmt: skip
    """Kernels around the points, and as many of theirs, where few are effective and more of these.

    More points reach further into tails than a proposal has shown before.
    """
    points = len(found.weights)
    if found.ess >= SAMPLING.resample * points:
        return outer, found, parts
    local = kernels(found, wide)
    again, others = _sampled(marginal, local, points, seed)
    return (local, again, others) if again.ess > found.ess else (outer, found, parts)


def _sampled(
    marginal: GaussianMarginal, outer: Proposal | Mixture, points: int, seed: int
) -> tuple[Weighted, Parts]:
    """Weighted theta, and for each a draw of the rest, and mean and covariance of the levels."""
    size = len(outer.mean)
    x = white_points(points, size + len(marginal.given.rest), seed)
    theta, log_q = outer.at(x[:, :size])
    conditioned = shared("effects", marginal.conditioned)
    parts = [conditioned(theta[some], x[some, size:]) for some in marginal.model.at_once(points)]
    value, rest, mean, covariance = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return weigh(theta, value, log_q), (rest, mean, covariance)


@dataclass(frozen=True)
class GaussianMarginal:
    """``log p(y, theta)`` of Gaussian responses, the effects integrated out, and these given it."""

    model: SummedModel
    given: GivenRest

    @classmethod
    def of(
        cls, design: Design, layout: Layout, likelihood: Likelihood, summed: Summed
    ) -> GaussianMarginal:
        """The levels of the first factor are eliminated first, all other effects last."""
        last = (0, *range(2, 1 + len(design.factors)))
        model = summed_model(design, layout, likelihood, summed.sums, last)
        model = replace(model, iteration=Iteration(numbers_at_once=SAMPLING.numbers_at_once))
        effects, width = model.assembly.effects[1], design.factors[0].size
        return cls(model, GivenRest(model.assembly.pattern, effects, width))

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        """``log p(y, theta)`` of many points."""
        theta = np.clip(theta, -SAMPLING.farthest, SAMPLING.farthest)
        value: np.ndarray = self.model.fit(theta).bound + self.model.assembly.log_prior(theta)
        return value

    def conditioned(self, theta: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, ...]:
        """Log densities, draws of the rest from standard normal x, moments of levels given it."""
        model, given = self.model, self.given
        theta = np.clip(theta, -SAMPLING.farthest, SAMPLING.farthest)
        fitted, factor, mean = model.with_factor(theta)
        noise = np.zeros(mean.shape)
        noise[:, given.rest] = x  # the rest is eliminated last: its levels are at their means
        drawn = mean + factor.sample(noise)
        level_mean = drawn[:, given.levels].reshape(len(theta), -1, given.width)
        covariance = given.covariances(model.values(theta, fitted))
        value = fitted.bound + model.assembly.log_prior(theta)
        # By rows, as a checkpoint returns them: sums over axes depend on the order in memory.
        rest, level_mean, covariance = map(
            np.ascontiguousarray, (drawn[:, given.rest], level_mean, covariance)
        )
        return value, rest, level_mean, covariance


def _settled(found: Weighted, reached: bool) -> bool:
    """Whether the answer stands: weights judge it better than the search for a mode."""
    share = found.ess / len(found.weights)
    return bool(share > SAMPLING.enough_ess or (reached and share > SAMPLING.least_ess))


def _quadrature(problem: Problem, points: int | None, seed: int) -> Fitted:
    layout, likelihood, design = problem.layout, problem.likelihood, problem.design
    start = layout.start(likelihood.extra_start(design.y))
    theta, fitted, reached = find_hyper(problem, start)
    count = points or (SAMPLING.fewer if design.rows > SAMPLING.rows else SAMPLING.points)
    found = integrate(problem, theta, fitted, count=count, seed=seed)
    size = layout.size
    at, levels = found.weighted.points, found.levels
    assert levels.mean is not None  # noqa: S101  for type checkers
    assert levels.covariance is not None  # noqa: S101
    return Fitted(
        at[:, :size], found.weighted.weights, at[:, size:], levels.mean, levels.covariance,
        design.alias, found.weighted.log_ratios, found.weighted.log_mean_ratio,
        _settled(found.weighted, reached and found.converged), fitted.steps,
        "quadrature over groups; importance sampling of all other parameters",
    )  # fmt: skip


def _hardly_known(
    design: Design, layout: Layout, weights: np.ndarray, theta: np.ndarray, most: float = 0.5
) -> list[str]:
    """Factors of which a hyperparameter is too wide for a normal density on a few points."""
    spread, out, at = weighted_moments(theta, weights)[1], [], 0
    for factor, blocks in zip(design.factors, layout.factors, strict=True):
        count = sum(block.parameters for block in blocks)
        if spread[at : at + count].max() > most:
            out.append(factor.name)
        at += count
    return out


def _large(
    design: Design, layout: Layout, likelihood: Likelihood, seed: int,
    summed: Summed | None = None, most_in_doubt: float = 0.3,
) -> Fitted:  # fmt: skip
    """``most_in_doubt``: nats; a mean moves by as many sds at most, to first order."""
    exact = likelihood.conjugate
    method = "exact" if exact else "the best Gaussian for the effects"
    shift = np.zeros(len(design.names)) if summed is None else summed.shift
    if exact and summed is None:
        design, shift = centred(design)
    found = fit_large(design, layout, likelihood, seed=seed, summed=summed)
    on_lattice, in_doubt = found.pop("on_lattice"), found.pop("in_doubt")
    found["rest"][:, : len(shift)] += shift
    first = design.factors[0]
    notes: tuple[str, ...] = (
        ()
        if exact
        else (
            f"The model has {first.size} effect{'s' * (first.size > 1)} per level of {first.name} "
            f"and {found['rest'].shape[1]} others, too many for quadrature with importance "
            "sampling: the posterior of effects is a Gaussian given the hyperparameters, whose "
            "likelihood is corrected for that to second order.",
        )
    )
    if in_doubt > most_in_doubt:
        notes += (
            "The second order is not enough: the next term of the likelihood differs by "
            f"{in_doubt:.1f} nats between hyperparameters, so that sds of groups, and the effects, "
            f"may be off by up to {in_doubt:.1f} of their posterior sds. Give a smaller "
            "group_sd_scale, leave out a term, or use a sampler.",
        )
    points = "a lattice" if on_lattice else "a design of points"
    vague = [] if on_lattice else _hardly_known(design, layout, found["weights"], found["theta"])
    if vague:
        notes += (
            f"The rows hardly determine how much {' and '.join(vague)} differ: intervals of such "
            "sds come from few points and are rough.",
        )
    return Fitted(
        **found, method=f"{method} given hyperparameters; {points} for them",
        warnings=notes,
    )  # fmt: skip
