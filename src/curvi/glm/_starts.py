"""What a fit of a regression is, where it starts, and which of several starts is kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from curvi._core.errors import Interrupted, Outcome
from curvi._core.run import Phase
from curvi.engine import RunResult, hooks_for
from curvi.families import Family, Params
from curvi.glm._stages import Hooks, Options

Start = tuple[np.ndarray, np.ndarray]  # mean and sds


@dataclass(frozen=True)
class Optimum:
    """Another optimum in which starts ended.

    Attributes
    ----------
    q : Params
        As in a fit.
    elbo : float
        The best bound that was reached there.
    weight : float
        Its share of ``exp(elbo)`` over all optima, that of the fit among them.
    noise : float
        Noise variance of a Gaussian likelihood.
    """

    q: Params
    elbo: float
    weight: float
    noise: float = float("nan")


@dataclass(frozen=True)
class GLMFit:
    """A fitted model; its arrays are NumPy arrays.

    Attributes
    ----------
    q : Params
        Mean and scale parameters of the coefficients, the intercept last; with several classes
        they have a leading axis.
    elbo : float
        The bound at the end, exact but for quadrature.
    elbo_se : float
        Standard error of ``elbo``: zero unless draws are needed (several classes).
    elbos : array
        The bound of every start; their spread says how rugged the bound is.
    outcome, message, trace, steps
        Of the start that was kept.
    noise : float
        Noise variance of a Gaussian likelihood.
    sd_ratios : array, (blocks, columns), or None
        Sds with all correlations over those of the fit; None where the covariance is full.
    seconds : float
        Of all starts together.
    others : tuple of Optimum
        Other optima of noticeable weight, the best first.
    """

    family: Family
    q: Params
    elbo: float
    elbos: np.ndarray
    outcome: Outcome
    message: str
    trace: dict[str, np.ndarray]
    steps: int
    seconds: float
    elbo_se: float = 0.0
    noise: float = float("nan")
    sd_ratios: np.ndarray | None = None
    others: tuple[Optimum, ...] = ()

    @property
    def converged(self) -> bool:
        """Whether the maximum of the bound was reached."""
        return self.outcome is Outcome.CONVERGED


def starting_moments(
    columns: int, seed: int, start: int, centre: np.ndarray | None = None
) -> Start:
    """Mean and sds of a start: zero and about ``1 / sqrt(columns)``; later ones are jittered.

    Wider starts drown the likelihood in noise: the variance of a predictor is the sum over
    columns. ``centre`` is where the mean starts instead of zero.
    """
    width = 1 / math.sqrt(max(columns, 1))
    mean = np.zeros(columns) if centre is None else np.array(centre, np.float64)
    if start > 0:
        random = np.random.default_rng([seed, start])
        width *= math.exp(random.uniform(-1.0, 1.0))
        mean = mean + 0.3 * width * random.standard_normal(columns)
    return mean, np.full(columns, width)


def best_start(
    family: Family,
    run_from: Callable[[int, Hooks], tuple[RunResult, float]],
    moments: Callable[[Any], Params],
    options: Options,
    work: float = 0.0,
) -> GLMFit:
    """Run from every start, or until Ctrl-C; a bound that is not finite loses against any other.

    ``work`` is that of a step, in multiplications. No start is made that would exceed what the
    options allow for all of them, nor any after the first few if these ended in one optimum.
    """
    found: list[tuple[RunResult, float]] = []
    spent = 0.0
    optima: tuple[Optimum, ...] = ()
    with hooks_for(options.progress, "ELBO", sign=-1.0) as hooks, Phase("fitting") as phase:
        while len(found) < options.num_starts:
            found.append(run_from(len(found), hooks))
            if found[-1][0].outcome is Outcome.INTERRUPTED:
                break
            spent += work * found[-1][0].steps
            agreed = len(found) == options.enough and len(_optima(family, found, moments)) < 2
            if agreed or spent * (1 + 1 / len(found)) > options.most_work:
                break
    if not found:
        raise Interrupted("interrupted before the first step")
    elbos = np.array([elbo for _, elbo in found])
    best = int(np.argmax(np.where(np.isfinite(elbos), elbos, -np.inf)))
    kept, elbo = found[best]
    exact = options.method is None  # ends of other methods are no optima that can be told apart
    if exact and kept.outcome is Outcome.CONVERGED and len(found) > 1:
        optima = _optima(family, found, moments)
    interrupted = phase.left or found[-1][0].outcome is Outcome.INTERRUPTED
    outcome = Outcome.INTERRUPTED if interrupted else kept.outcome
    return GLMFit(
        family=family,
        q=moments(kept.params),
        elbo=elbo,
        elbos=elbos,
        outcome=outcome,
        message=outcome.sentence,
        trace={**kept.trace, "elbo": -kept.trace["value"]},
        steps=kept.steps,
        seconds=kept.seconds,
        others=optima[1:],
    )


def with_noise(found: GLMFit, noise_of: Callable[[Params], float]) -> GLMFit:
    """The same fit with the noise variance of every optimum."""
    others = tuple(replace(one, noise=noise_of(one.q)) for one in found.others)
    return replace(found, noise=noise_of(found.q), others=others)


def _optima(
    family: Family,
    found: Sequence[tuple[RunResult, float]],
    moments: Callable[[Any], Params],
    apart: float = 1.0,
    least: float = 0.01,
) -> tuple[Optimum, ...]:
    """The different optima in which runs converged, best first, weighted by their bounds.

    Ends belong together where no mean is ``apart`` sds from the other. Weights below ``least``
    are left out.
    """
    groups: list[tuple[Params, float, np.ndarray, np.ndarray]] = []
    ended = [(r, e) for r, e in found if r.outcome is Outcome.CONVERGED and np.isfinite(e)]
    for run, elbo in sorted(ended, key=lambda one: -one[1]):
        q = moments(run.params)
        mean, diagonal, factor = blocks_of(family, q)
        variance = total_variance(diagonal, factor)
        if elbo - max((e for _, e, *_ in groups), default=elbo) < math.log(least):
            break
        if all(np.any((mean - m) ** 2 > apart**2 * 0.5 * (variance + v)) for _, _, m, v in groups):
            groups.append((q, elbo, mean, variance))
    weights = np.exp([elbo - groups[0][1] for _, elbo, *_ in groups])
    weights = weights / weights.sum()
    return tuple(Optimum(g[0], g[1], float(w)) for g, w in zip(groups, weights, strict=True))


def blocks_of(family: Family, q: Params) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Means, own sds, and factors, with a leading axis of blocks."""
    lift = (None,) if q.mean.ndim == 1 else ()
    mean, scale = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64)[lift], tuple(q))
    blocks = [jax.tree.map(lambda leaf, k=k: leaf[k], scale) for k in range(mean.shape[0])]
    parts = [family.scale.diagonal_and_factor(block, np) for block in blocks]
    diagonals, factors = zip(*parts, strict=True)
    diagonal = np.zeros_like(mean) if diagonals[0] is None else np.stack(diagonals)
    return mean, diagonal, None if factors[0] is None else np.stack(factors)


def total_variance(diagonal: np.ndarray, factor: np.ndarray | None) -> np.ndarray:
    """Marginal variances of ``diagonal e + factor e'``."""
    return diagonal**2 if factor is None else diagonal**2 + np.sum(factor**2, axis=2)
