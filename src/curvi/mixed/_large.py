"""Models with many random effects: the latent Gaussian engine, and a design of points for theta.

The log marginal of theta is exact for Gaussian responses; otherwise it is the variational bound
and what it misses, to second order.
An ascent on a part of the table finds where to begin; on the whole table, points on a star carry
the posterior, each with draws of the effects. Where the rows hardly determine a hyperparameter, a
lattice takes the place of the star.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from scipy import special

from curvi._core.errors import Interrupted, Outcome
from curvi._core.threads import one_blas_thread
from curvi.engine import remembered
from curvi.latent import (
    Ascent,
    Assembly,
    Fixed,
    Gap,
    GivenRest,
    Groups,
    Integration,
    Iteration,
    Parabolas,
    RowSums,
    SiteFit,
    SiteModel,
    Star,
    SummedModel,
    in_doubt,
    root_of_precision,
)  # fmt: skip
from curvi.likelihoods import Likelihood
from curvi.mixed._design import Design, Factor, taken
from curvi.mixed._hyper import Layout
from curvi.mixed._posterior import weighted_moments
from curvi.mixed._sums import Summed, sums_of


@dataclass(frozen=True)
class LargeModels:
    """How models with many random effects are integrated.

    Attributes
    ----------
    stored : float
        Numbers in the table of conditional means, at most.
    small_rows : int
        Rows of the part on which an ascent begins.
    near : float
        Sds that the mode may be from the centre of the star.
    probes : int
        With which traces of large factors are estimated.
    many_numbers : float
        Of a factor that is large.
    on_lattice : int
        Hyperparameters that a lattice can integrate.
    rough : float
        Accuracy of sites on the way to the mode.
    """

    stored: float = 6e7
    small_rows: int = 40_000
    near: float = 0.25
    probes: int = 32
    many_numbers: float = 5e6
    on_lattice: int = 3
    rough: float = 1e-3


LARGE = LargeModels()


def components_of(design: Design) -> list[Fixed | Groups]:
    """Fixed effects, then those of every factor."""
    centre = np.zeros(len(design.names)) if design.centre is None else design.centre
    fixed = Fixed(design.X, prior_scale=design.scales, prior_mean=centre, labels=design.names)
    return [fixed, *(
        Groups(f.codes, f.columns, f.name, bars=f.blocks, levels=f.levels, level_names=f.labels)
        for f in design.factors
    )]  # fmt: skip


def summed_model(
    design: Design, layout: Layout, likelihood: Likelihood, sums: RowSums | None = None,
    last: Sequence[int] = (),
) -> SummedModel:  # fmt: skip
    """The engine's model of a Gaussian design, from sums, which are taken if not given."""
    sums = sums_of(design) if sums is None else sums
    bare = components_of(taken(design, np.arange(0)))
    begin = [1.0] * len(layout.extras)
    assembly = Assembly(bare, layout.extras, begin, gram=sums.gram, last=last)
    probes = LARGE.probes if assembly.pattern.numbers > LARGE.many_numbers else 0
    return SummedModel.given(assembly, likelihood, sums, probes=probes)


def model_of(
    design: Design, layout: Layout, likelihood: Likelihood, sums: RowSums | None = None
) -> SiteModel:
    """The engine's model of a design; of a Gaussian one from sums."""
    if likelihood.conjugate:
        return summed_model(design, layout, likelihood, sums)
    extra_start = likelihood.extra_start(design.y)
    assembly = Assembly(components_of(design), layout.extras, extra_start)
    return SiteModel(assembly, likelihood, design.y, design.offset, design.trials)


def part_of(design: Design, total: int | None = None, most: int = LARGE.small_rows) -> Design:
    """Rows whose levels are all among the first of a share of the levels of every factor.

    ``total`` is the number of all rows, where the design has a block of them; then the levels
    that no row has are still among those of the part.
    """
    rows = design.rows if total is None else total
    if rows <= most:
        return design
    share = (most / rows) ** (1 / len(design.factors))
    keep = np.ones(design.rows, bool)
    for factor in design.factors:
        keep &= factor.codes < max(2, int(np.ceil(share * factor.levels)))
    part = taken(design, np.flatnonzero(keep))
    return part if total is not None else present_levels(part)


def present_levels(design: Design) -> Design:
    """The same rows, without levels that none of them has."""
    factors: list[Factor] = []
    for factor in design.factors:
        present, codes = np.unique(factor.codes, return_inverse=True)
        labels = tuple(factor.labels[i] for i in present)
        factors.append(replace(factor, labels=labels, codes=codes))
    levels = factors[0].levels
    return replace(
        design, factors=tuple(factors), copies=np.ones(levels), order=np.arange(design.rows),
        alias=np.arange(levels),
    )  # fmt: skip


def find_on_part(model: SiteModel, start: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mode and Hessian."""
    mode = Ascent().mode(_rough(model), start)
    return mode.theta, Ascent().hessian(_rough(model), mode)


def find_on_whole(
    model: SiteModel, start: np.ndarray, covariance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Mode and about the covariance there, from those of a part."""
    near_enough = Ascent(tolerance=len(start) * LARGE.near**2)  # a star says where else the mode is
    mode = near_enough.mode(_rough(model), start, covariance)
    return mode.theta, mode.covariance


def _rough(model: SiteModel) -> SiteModel:
    if model.likelihood.conjugate:
        return model
    return replace(model, iteration=Iteration(accuracy=LARGE.rough))


def _more(design: Design, part: Design, rows: float, layout: Layout) -> np.ndarray:
    """How much more the whole says of every hyperparameter: by levels, of the noise by rows."""
    pairs = zip(layout.factors, design.factors, part.factors, strict=True)
    times = [
        np.full(sum(block.parameters for block in blocks), whole.levels / few.levels)
        for blocks, whole, few in pairs
    ]
    return np.concatenate([*times, np.full(len(layout.extras), rows / part.rows)])


@dataclass(frozen=True)
class Drawn:
    """q at one theta: draws of all effects but those of the first factor, and these given them."""

    fitted: SiteFit
    rest: np.ndarray  # (draws, rest)
    level_mean: np.ndarray  # (draws, levels, K)
    level_covariance: np.ndarray  # (levels, K, K)
    converged: bool
    thirds: np.ndarray  # (2,) nats, the term that the log density leaves out


class Points:
    """Evaluates a model at one theta after the other.

    Draws are made of new noise at each, with their exact variances, so that all together say how
    effects vary jointly. Those of a large model are of the same noise, corrected by the variances
    at the first theta, since every further selected inverse is dear.

    Parameters
    ----------
    model : SiteModel
        Of the design.
    design : Design
        Rows and factors.
    points : int
        How many theta are expected.
    seed : int
        Of the noise.
    most_effects, in_all, least : int
        Up to so many effects there are so many draws at all points together, and at each no fewer
        than the least: sds that are set right bind fewer to a few values.
    draws : int
        At each point of a larger model.
    """

    def __init__(
        self, model: SiteModel, design: Design, points: int, seed: int,
        *, most_effects: int = 20_000, in_all: int = 1024, least: int = 8, draws: int = 24,
    ) -> None:  # fmt: skip
        assembly, first = model.assembly, design.factors[0]
        self.model = model
        self.given = GivenRest(assembly.pattern, assembly.effects[1], first.size)
        self.small = assembly.size <= most_effects
        wanted = max(least, in_all / points) if self.small else draws
        stored = LARGE.stored // (points * first.levels * first.size**2)
        self.half = max(1, int(min(wanted, stored)) // 2)
        self.seed, self.gap = seed, Gap()

    def _moves(self, factor: Any, *, first: bool) -> np.ndarray:
        """Draws of the rest around their means: (rest, draws)."""
        some, renewed = self.given.rest, first or self.small
        if first:
            self.rng = np.random.default_rng(self.seed)
        if renewed:
            half = self.rng.standard_normal((self.model.assembly.size, self.half))
            self.noise = np.concatenate([half, -half], axis=1)
        moves: np.ndarray = factor.sample(self.noise[None])[0, some]
        if renewed:
            exact = factor.selected_inverse()[0, self.model.assembly.pattern.diagonal[some]]
            self.scale = np.sqrt(exact / np.maximum(moves.var(axis=1), 1e-3 * exact))[:, None]
        return self.scale * moves

    def __call__(self, theta: np.ndarray, near: Drawn | None) -> tuple[float, Drawn]:
        """Log density, and draws."""
        model, point, some = self.model, theta[None], self.given.rest
        fitted, factor, mean = model.with_factor(point, None if near is None else near.fitted.sites)
        value = float(fitted.bound[0] + model.assembly.log_prior(point)[0])
        more, *thirds = self.gap.terms(model, point, fitted)[:, 0]
        value += float(more)
        with one_blas_thread():
            moves = self._moves(factor, first=near is None)
        rest = (mean[0, some, None] + moves).T
        values, pull = model.values(point, fitted)[0], model.pull(point, fitted)[0]
        level_mean, covariance = self.given.moments(values, pull, rest)
        converged = bool(model.converged(point, fitted).all())
        rest += model.origin[some]
        return value, Drawn(fitted, rest, level_mean, covariance, converged, np.asarray(thirds))


def fit_large(
    design: Design, layout: Layout, likelihood: Likelihood, *, seed: int,
    summed: Summed | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Components, their weights, and how it went; see the module."""
    model, mode, root = _beginning(design, layout, likelihood, summed)
    first = design.factors[0]
    star = Star(Points(model, design, 2 * len(mode) + 1, seed))
    found: list[Any] = []

    def around(mode: np.ndarray, root: np.ndarray) -> tuple[np.ndarray, ...]:
        found.clear()  # the draws of two stars may not fit
        found.extend(star.points(mode, root))
        return tuple(found[3])

    seen = Parabolas(*remembered("star", around, mode, root))
    for _ in range(3):
        if not seen.far(LARGE.near):
            break
        mode, root = mode + root @ seen.shift, root * seen.sds
        seen = Parabolas(*remembered("star", around, mode, root))
    if not found:  # the last star was that of an earlier process, without its draws
        around(mode, root)
    points, thetas, values, _ = found
    weights = star.weights(values)
    log_det = float(np.linalg.slogdet(root)[1])
    near = bool(np.abs(seen.shift / seen.sds).max() < 2 * LARGE.near)
    evidence = float(values[0] + log_det + 0.5 * len(mode) * np.log(2 * np.pi))
    wide = _is_wide(thetas, weights) or not near
    on_lattice = wide and not likelihood.conjugate and len(mode) <= LARGE.on_lattice
    if on_lattice:
        points, thetas, weights, evidence, near = _on_lattice(model, design, seed)
    draws = len(points[0].rest)
    covariances = np.stack([point.level_covariance for point in points])
    return {
        "theta": np.repeat(thetas, draws, axis=0), "weights": np.repeat(weights / draws, draws),
        "rest": np.concatenate([point.rest for point in points]),
        "level_mean": np.concatenate([point.level_mean for point in points]),
        "level_covariance": np.repeat(covariances, draws, axis=0),
        "alias": np.arange(first.levels), "log_ratios": np.zeros(0),
        "log_evidence": evidence, "on_lattice": on_lattice,
        "in_doubt": in_doubt(weights, np.transpose([point.thirds for point in points])),
        "converged": near and all(point.converged for point in points), "steps": len(points),
    }  # fmt: skip


def _is_wide(thetas: np.ndarray, weights: np.ndarray, most: float = 0.25) -> bool:
    """Whether a log sd may be too far from normal for a star: the rows hardly determine it."""
    return bool(weighted_moments(thetas, weights)[1].max() > most)


def _on_lattice(
    model: SiteModel, design: Design, seed: int, least: float = 2e-3
) -> tuple[list[Drawn], np.ndarray, np.ndarray, float, bool]:
    """Draws at the points of a lattice, their weights, the log evidence, and whether it is whole.

    ``least``: weights below this share of the largest are left out.
    """
    whole = Integration()(model, seed=seed)
    if whole.outcome is Outcome.INTERRUPTED:
        raise Interrupted("interrupted before the answer was complete")
    lattice = whole.lattice
    order = np.argsort(-lattice.weights, kind="stable")
    some = order[lattice.weights[order] > least * lattice.weights.max()]
    evaluate, found = Points(model, design, len(some), seed), list[Drawn]()
    points, weights = lattice.points[some], lattice.weights[some] / lattice.weights[some].sum()
    gaps = -model.assembly.log_prior(points)
    for i, theta in enumerate(points):
        value, drawn = evaluate(theta, found[0] if found else None)
        found.append(drawn)
        gaps[i] += value - drawn.fitted.bound[0]
    evidence = lattice.log_integral - float(special.logsumexp(-gaps, b=weights))  # no bound
    return found, points, weights, evidence, lattice.complete


def _beginning(
    design: Design, layout: Layout, likelihood: Likelihood, summed: Summed | None
) -> tuple[SiteModel, np.ndarray, np.ndarray]:
    """The model, about its mode, and about a root of the covariance of theta there."""
    y = design.y if summed is None else summed.response
    small = part_of(design) if summed is None else summed.part
    part = model_of(small, layout, likelihood)
    begin = layout.start(likelihood.extra_start(y))
    mode, hessian = remembered("mode on a part", partial(find_on_part, part), begin)
    rows = float(design.rows) if summed is None else summed.sums.rows
    if small.rows == rows:
        return part, mode, root_of_precision(-hessian)
    whole = model_of(design, layout, likelihood, None if summed is None else summed.sums)
    more = np.sqrt(_more(design, small, rows, layout))
    root = root_of_precision(-hessian * np.outer(more, more))
    mode, covariance = remembered("mode", partial(find_on_whole, whole), mode, root @ root.T)
    return whole, mode, np.linalg.cholesky(covariance)
