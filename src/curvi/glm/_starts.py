"""What a fit of a regression is, where it starts, and which of several starts is kept."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from curvi._core.errors import Outcome
from curvi.engine import RunResult, hooks_for
from curvi.families import Family, Params
from curvi.glm._stages import Hooks, Options

Start = tuple[np.ndarray, np.ndarray]  # mean and sds


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
) -> GLMFit:
    """Run from every start, or until Ctrl-C; a bound that is not finite loses against any other."""
    found: list[tuple[RunResult, float]] = []
    interrupted = False
    with hooks_for(options.progress, "ELBO", sign=-1.0) as hooks:
        try:
            while len(found) < options.num_starts and not interrupted:
                found.append(run_from(len(found), hooks))
                interrupted = found[-1][0].outcome is Outcome.INTERRUPTED
        except KeyboardInterrupt:  # between runs; what earlier starts found is not lost
            if not found:
                raise
            interrupted = True
    elbos = np.array([elbo for _, elbo in found])
    kept, elbo = found[int(np.argmax(np.where(np.isfinite(elbos), elbos, -np.inf)))]
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
    )
